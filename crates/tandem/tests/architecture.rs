//! Checks the modules of the source, and their imports, against the picture in ARCHITECTURE.md.
//!
//! The picture names each module once. A module imports only modules to its right, and only those
//! that [`ARROWS`] lists for it. Modules that the picture joins with a comma never import each
//! other. There are no exceptions.

#![expect(
    clippy::unwrap_used,
    reason = "sources that cannot be read fail the test"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use proc_macro2::{TokenStream, TokenTree};

/// The modules, each with the modules that it may name. The order is from the values up to the
/// program.
const ARROWS: &[(&str, &[&str])] = &[
    // Values and the interface that they pass through: every module may name these.
    ("wakers", &[]),
    ("moment", &[]),
    ("role_name", &[]),
    ("error", &[]),
    ("priority", &[]),
    ("exchange", &["error", "priority", "wakers"]),
    ("expiring", &[]),
    ("end_listeners", &[]),
    ("versions", &["exchange"]),
    ("textual", &[]),
    ("files", &[]),
    ("in_use", &[]),
    ("secret", &[]),
    ("endpoint", &["textual"]),
    ("hosts", &["endpoint", "textual"]),
    ("announcement", &["endpoint"]),
    ("metrics", &[]),
    ("log_limit", &[]),
    ("descriptors", &[]),
    ("token_bucket", &[]),
    ("renewal", &[]),
    ("issuer", &["files", "log_limit", "metrics", "renewal"]),
    ("embedded", &[]),
    ("users", &["embedded"]),
    ("learned", &["files", "moment", "users"]),
    ("digest_file", &["files"]),
    ("visit_file", &["endpoint", "files", "hosts", "in_use"]),
    ("body_memory", &[]),
    ("response_cache", &["body_memory", "error", "metrics"]),
    ("disk_cache", &["journal", "metrics", "response_cache"]),
    ("journal", &["exchange"]),
    ("warm_up", &[]),
    ("probe", &[]),
    ("path", &[]),
    ("resume", &["path"]),
    ("carrier", &["error", "path"]),
    ("status", &["metrics", "path"]),
    ("stage", &["carrier", "error", "exchange"]),
    ("failure", &["error", "role_name"]),
    ("path_speed", &["path"]),
    // Session protocols, and the transports below them.
    ("transport", VALUES),
    ("session", VALUES),
    (
        "connections",
        &["metrics", "moment", "session", "path", "status", "users"],
    ),
    // The objects that outlive a reload.
    (
        "fleet",
        &[
            "endpoint",
            "journal",
            "learned",
            "log_limit",
            "metrics",
            "response_cache",
            "secret",
            "transport",
            "users",
        ],
    ),
    (
        "services",
        &[
            "in_use",
            "connections",
            "digest_file",
            "disk_cache",
            "fleet",
            "hosts",
            "issuer",
            "journal",
            "learned",
            "renewal",
            "response_cache",
            "resume",
            "users",
            "visit_file",
        ],
    ),
    // The pipeline.
    (
        "middle",
        &[
            "role_name",
            "moment",
            "digest_file",
            "issuer",
            "announcement",
            "files",
            "secret",
            "journal",
            "carrier",
            "hosts",
            "renewal",
            "error",
            "failure",
            "exchange",
            "priority",
            "stage",
            "versions",
            "endpoint",
            "metrics",
            "log_limit",
            "probe",
            "learned",
            "body_memory",
            "response_cache",
            "warm_up",
            "resume",
            "path",
            "path_speed",
            "connections",
            "wakers",
        ],
    ),
    (
        "back",
        &[
            "role_name",
            "moment",
            "journal",
            "hosts",
            "embedded",
            "error",
            "exchange",
            "expiring",
            "end_listeners",
            "priority",
            "status",
            "stage",
            "versions",
            "endpoint",
            "metrics",
            "descriptors",
            "log_limit",
            "token_bucket",
            "probe",
            "warm_up",
            "resume",
            "path",
            "carrier",
            "session",
            "textual",
            "renewal",
            "transport",
        ],
    ),
    (
        "front",
        &[
            "error",
            "failure",
            "descriptors",
            "log_limit",
            "token_bucket",
            "exchange",
            "expiring",
            "end_listeners",
            "priority",
            "status",
            "stage",
            "endpoint",
            "metrics",
            "probe",
            "path",
            "carrier",
            "session",
            "transport",
            "connections",
        ],
    ),
    // The pages about the process itself.
    (
        "admin",
        &[
            "role_name",
            "secret",
            "journal",
            "descriptors",
            "log_limit",
            "connections",
            "middle",
            "exchange",
            "metrics",
            "path",
            "probe",
            "stage",
            "status",
            "session",
            "transport",
            "front",
        ],
    ),
    // The program: typed configuration, compositions, threads, commands.
    (
        "config",
        &[
            "role_name",
            "issuer",
            "announcement",
            "secret",
            "renewal",
            "textual",
            "disk_cache",
            "fleet",
            "services",
            "hosts",
            "endpoint",
            "learned",
            "warm_up",
            "middle",
            "back",
            "session",
            "transport",
        ],
    ),
    (
        "roles",
        &[
            "role_name",
            "digest_file",
            "issuer",
            "announcement",
            "journal",
            "error",
            "renewal",
            "config",
            "endpoint",
            "exchange",
            "priority",
            "secret",
            "services",
            "status",
            "admin",
            "stage",
            "path",
            "carrier",
            "path_speed",
            "session",
            "transport",
            "connections",
            "front",
            "middle",
            "back",
        ],
    ),
    (
        "runtime",
        &[
            "config",
            "endpoint",
            "roles",
            "services",
            "status",
            "session",
            "transport",
        ],
    ),
    ("cli", EVERYTHING),
    // The interface of the fuzz targets; it is in no other build.
    ("fuzzing", &["error", "middle", "resume", "transport"]),
    ("lib", EVERYTHING),
];

const VALUES: &[&str] = &[
    "descriptors",
    "error",
    "renewal",
    "exchange",
    "priority",
    "failure",
    "stage",
    "endpoint",
    "metrics",
    "probe",
    "path",
    "carrier",
    "secret",
    "body_memory",
    "role_name",
    "moment",
    "wakers",
];

/// The modules that the program itself may name.
const EVERYTHING: &[&str] = &["*"];

/// The sources that the picture leaves out: the root of the crate, and a module that only the build
/// of the fuzz targets has.
const NOT_IN_PICTURE: [&str; 2] = ["lib", "fuzzing"];

#[test]
fn picture_names_each_module_once() {
    let mut drawn: Vec<String> = picture().into_iter().flatten().collect();
    drawn.sort();
    let mut found: Vec<String> = sources()
        .iter()
        .map(|file| module(file)[0].clone())
        .collect();
    found.retain(|name| !NOT_IN_PICTURE.contains(&name.as_str()));
    found.sort();
    found.dedup();
    assert_eq!(
        drawn, found,
        "the picture in ARCHITECTURE.md, and the source"
    );
}

#[test]
fn modules_name_only_permitted_modules() {
    let mut wrong = Vec::new();
    let modules: BTreeSet<String> = sources()
        .iter()
        .map(|file| module(file)[0].clone())
        .collect();
    for file in sources() {
        let from = module(&file)[0].clone();
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == from) else {
            wrong.push(format!("{from}: a new module; give it its place in ARROWS"));
            continue;
        };
        for item in named(&file) {
            let to = item.split("::").next().unwrap_or_default();
            let is_permitted = *allowed == EVERYTHING || allowed.contains(&to);
            if to != from && modules.contains(to) && !is_permitted {
                wrong.push(format!("{}: {from} must not name {item}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn permitted_imports_point_to_the_right() {
    let picture = picture();
    for group in [
        ["front", "middle", "back"].as_slice(),
        &["session", "transport"],
    ] {
        assert!(
            picture.iter().any(|drawn| drawn == group),
            "{group:?} stand beside each other"
        );
    }
    let place = |module: &str| {
        let mut places = picture.iter();
        places.position(|group| group.iter().any(|name| name == module))
    };
    for (from, allowed) in ARROWS {
        // Sources outside the picture stand to the left of all modules.
        let own = place(from);
        for to in allowed.iter().filter(|_| *allowed != EVERYTHING) {
            let other = place(to).unwrap_or_else(|| panic!("{to} is not in the picture"));
            assert!(
                own.is_none_or(|own| own < other),
                "{from} stands beside {to} or to its right, and must not import it"
            );
        }
    }
}

#[test]
fn picture_reader_finds_groups() {
    let text = "Words:\n\n```\n program ▶ a, b ▶\n   c ▶\n\n   d · e_f\n```\n\nMore ▶ words.\n";
    let expected: [&[&str]; 5] = [&["program"], &["a", "b"], &["c"], &["d"], &["e_f"]];
    assert_eq!(groups(text, " program ▶"), expected);
}

#[test]
fn path_reader_finds_items_in_source() {
    let text = r#"
        use crate::session::{Drain, http1::{Form, self}};
        use super::super::back::Pool;
        use super::tls;
        // use crate::demo;
        impl crate::stage::Stage for X {
            fn f() { log!("crate::cli", crate::metrics::METRICS); crate::roles::go::<u8>() }
        }
        mod tests { use super::*; use super::super::pages; }
    "#;
    let found = items(text, &["front".into(), "socks".into()]);
    let expected = [
        "back::Pool",
        "front::pages",
        "front::socks",
        "front::tls",
        "metrics::METRICS",
        "roles::go",
        "session::Drain",
        "session::http1",
        "session::http1::Form",
        "stage::Stage",
    ];
    assert_eq!(found, expected.map(String::from).into());
}

/// Returns the modules in the order of the picture, the program first. Modules in a group never
/// import each other.
fn picture() -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ARCHITECTURE.md");
    groups(&std::fs::read_to_string(path).unwrap(), " cli ▶")
}

/// Returns the groups in the block of code that begins with `start`.
fn groups(text: &str, start: &str) -> Vec<Vec<String>> {
    let lines = text.lines().skip_while(|line| !line.starts_with(start));
    let block: Vec<&str> = lines.take_while(|line| !line.starts_with("```")).collect();
    block
        .join(" ")
        .split(['▶', '·'])
        .map(|group| group.split(',').map(|name| name.trim().into()).collect())
        .collect()
}

/// Returns the paths of all sources of the crate.
fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 20, "the sources are not where they were");
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Returns the module of a file's items: `src/front/socks.rs` is `front::socks`, `src/front/mod.rs`
/// is `front`.
fn module(file: &Path) -> Vec<String> {
    let inside = file.strip_prefix(root()).unwrap().with_extension("");
    let mut names: Vec<String> = inside
        .iter()
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    if names.last().is_some_and(|name| name == "mod") {
        names.pop();
    }
    names
}

fn named(file: &Path) -> BTreeSet<String> {
    items(&std::fs::read_to_string(file).unwrap(), &module(file))
}

/// Returns every item that `text`, a source of `module`, names by a path from the crate's root or
/// from a parent module.
fn items(text: &str, module: &[String]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let tokens = TokenStream::from_str(text).expect("a source that compiles");
    paths(tokens, module, &mut found);
    found
}

/// Adds the paths in `tokens` of the module `module`. Macro calls are searched like other code.
fn paths(tokens: TokenStream, module: &[String], found: &mut BTreeSet<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut inner = module.to_vec();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token {
            TokenTree::Ident(word) if word == "crate" && is_colons(&tokens, at + 1) => {
                at = tree(&tokens, at + 3, &[], found);
                continue;
            }
            TokenTree::Ident(word) if word == "super" && is_colons(&tokens, at + 1) => {
                at = tree(&tokens, at, module, found);
                continue;
            }
            TokenTree::Ident(word) if word == "mod" => {
                if let Some(TokenTree::Ident(name)) = tokens.get(at + 1) {
                    inner.push(name.to_string());
                }
            }
            TokenTree::Group(group) => {
                paths(group.stream(), &inner, found);
                inner.truncate(module.len());
            }
            TokenTree::Punct(punct) if punct.as_char() == ';' => inner.truncate(module.len()),
            _ => {}
        }
        at += 1;
    }
}

/// Returns true if the tokens at `at` are `::`.
fn is_colons(tokens: &[TokenTree], at: usize) -> bool {
    tokens.get(at..at + 2).is_some_and(|two| {
        two.iter()
            .all(|token| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ':'))
    })
}

/// Adds the items that a path, or a tree of paths in braces, names below `base`; returns the index
/// after it.
fn tree(
    tokens: &[TokenTree],
    mut at: usize,
    base: &[String],
    found: &mut BTreeSet<String>,
) -> usize {
    let mut path = base.to_vec();
    loop {
        match tokens.get(at) {
            Some(TokenTree::Ident(word)) if word == "super" => drop(path.pop()),
            Some(TokenTree::Ident(word)) if word == "self" => {}
            Some(TokenTree::Ident(word)) => path.push(word.to_string()),
            Some(TokenTree::Group(group)) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',');
                for one in inner.split(is_comma).filter(|one| !one.is_empty()) {
                    tree(one, 0, &path, found);
                }
                return at + 1;
            }
            // A `*` names the module itself, and so does the `<` of generic arguments.
            _ => break,
        }
        at += 1;
        if !is_colons(tokens, at) {
            break;
        }
        at += 2;
    }
    found.insert(path.join("::"));
    at
}
