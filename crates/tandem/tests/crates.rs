//! Checks the dependencies between the crates against the picture in ARCHITECTURE.md.

#![expect(
    clippy::unwrap_used,
    reason = "manifests that cannot be read fail the test"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The crates that each crate depends on.
type Dependencies = BTreeMap<String, BTreeSet<String>>;

#[test]
fn picture_shows_the_dependencies_of_each_manifest() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let drawn = drawn(&text);
    let mut found = Dependencies::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let entry = entry.unwrap();
        let manifest = std::fs::read_to_string(entry.path().join("Cargo.toml")).unwrap();
        let name = entry.file_name().into_string().unwrap();
        found.insert(name, dependencies(&manifest));
    }
    assert!(found.len() > 20, "the crates are not where they were");
    assert_eq!(
        drawn, found,
        "the picture in ARCHITECTURE.md, and the manifests"
    );
}

#[test]
fn manifest_reader_leaves_out_dependencies_of_tests() {
    let manifest = "[package]\nname = \"tandem-a\"\n[dependencies]\ntandem-b.workspace = true\n\
        tandem = { path = \"../tandem\" }\ntokio = \"1\"\n[dev-dependencies]\n\
        tandem-c.workspace = true\n[target.'cfg(unix)'.dependencies]\ntandem-d = \"1\"\n";
    let found: Vec<String> = dependencies(manifest).into_iter().collect();
    assert_eq!(found, ["b", "d", "tandem"]);
}

#[test]
fn picture_reader_splits_lists_on_both_sides() {
    let drawn = drawn("text\n```\n cli ──▶ a,\n     b\n a, b ──▶ none\n```\n c ──▶ d\n");
    let set = |names: &[&str]| names.iter().map(|name| (*name).into()).collect();
    let expected = [("cli", set(&["a", "b"])), ("a", set(&[])), ("b", set(&[]))];
    let expected = expected.map(|(name, found)| (name.to_owned(), found));
    assert_eq!(drawn, Dependencies::from(expected));
}

/// Returns the root of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the crates of the workspace that a manifest names as dependencies.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut is_inside = false;
    let mut found = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_inside = line == "[dependencies]" || line.ends_with(".dependencies]");
        } else if is_inside {
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            match name.strip_prefix("tandem-") {
                Some(name) => found.insert(name.into()),
                None if name == "tandem" => found.insert(name.into()),
                None => false,
            };
        }
    }
    found
}

/// Returns the arrows in the block of code that begins with the program.
fn drawn(text: &str) -> Dependencies {
    let lines = text.lines().skip_while(|line| !is_first(line));
    let mut drawn = Dependencies::new();
    let block: Vec<&str> = lines.take_while(|line| !line.starts_with("```")).collect();
    // An indented line continues the list of the line before.
    for line in block.join("\n").replace("\n  ", "").lines() {
        let (from, to) = line.split_once("──▶").unwrap();
        for from in names(from) {
            drawn.insert(from, names(to).filter(|name| name != "none").collect());
        }
    }
    drawn
}

/// Returns whether a line begins the picture of the crates.
fn is_first(line: &str) -> bool {
    line.starts_with(" cli ") && line.contains("──▶")
}

fn names(list: &str) -> impl Iterator<Item = String> {
    list.split(',').map(|name| name.trim().to_owned())
}
