//! The arrows of ARCHITECTURE.md, read off the source: which module of the crate names which other.
//!
//! `front`, `middle` and `back` meet only as stages, `session` and `transport` only as a path.
//! Every exception stands in [`EXCEPTIONS`] with its reason; one that is no longer needed fails
//! too.

#![expect(
    clippy::unwrap_used,
    reason = "sources that cannot be read fail the test"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Modules and the modules that each may name. Order is from the values up to the program: an arrow
/// points to an earlier line.
const ARROWS: &[(&str, &[&str])] = &[
    // Values and the interface they travel by: anyone may name these.
    ("error", &[]),
    ("exchange", &["error"]),
    ("stage", &["exchange"]),
    ("endpoint", &[]),
    ("metrics", &[]),
    ("learned", &[]),
    ("warm_up", &[]),
    ("probe", &[]),
    ("path", &[]),
    ("gauge", &["path"]),
    // What is spoken, and over what.
    ("transport", VALUES),
    ("session", VALUES),
    // The pipeline.
    (
        "middle",
        &[
            "error", "exchange", "stage", "endpoint", "metrics", "probe", "learned", "warm_up",
            "path", "gauge",
        ],
    ),
    (
        "back",
        &[
            "error",
            "exchange",
            "stage",
            "endpoint",
            "metrics",
            "probe",
            "warm_up",
            "path",
            "session",
            "transport",
        ],
    ),
    (
        "front",
        &[
            "error",
            "exchange",
            "stage",
            "endpoint",
            "metrics",
            "probe",
            "path",
            "session",
            "transport",
        ],
    ),
    // The program: typed configuration, compositions, threads, commands.
    (
        "config",
        &[
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
            "config",
            "endpoint",
            "exchange",
            "stage",
            "path",
            "gauge",
            "session",
            "transport",
            "front",
            "middle",
            "back",
        ],
    ),
    ("runtime", &["config", "endpoint", "roles", "session"]),
    ("cli", EVERYTHING),
    ("demo", &["cli", "config", "endpoint", "runtime"]),
    ("predict", &["cli"]),
    // What fuzz targets reach; in no other build.
    ("fuzzing", &["error", "middle", "transport"]),
    ("lib", EVERYTHING),
    ("main", EVERYTHING),
];

const VALUES: &[&str] = &[
    "error", "exchange", "stage", "endpoint", "metrics", "probe", "path",
];

const EVERYTHING: &[&str] = &[
    "error",
    "exchange",
    "stage",
    "endpoint",
    "metrics",
    "learned",
    "warm_up",
    "probe",
    "path",
    "gauge",
    "transport",
    "session",
    "middle",
    "back",
    "front",
    "config",
    "roles",
    "runtime",
    "cli",
    "demo",
    "predict",
];

/// Module, item that it names against the arrows, why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "path",
        "transport::socks::SocksStream",
        "a path is a closed set of streams, and this is one of them",
    ),
    (
        "path",
        "transport::tls::records::TlsPath",
        "another of them",
    ),
    (
        "session",
        "transport::LocalBoxFuture",
        "an alias for a boxed future, nothing of a transport",
    ),
    (
        "session",
        "front::pages",
        "the page of a failure is written where the head it replaces would have been",
    ),
    (
        "back",
        "front::early::Liveness",
        "front asks through this trait whether a session stands; the pool answers",
    ),
    (
        "back",
        "front::socks::Gateways",
        "the same, for waiting until it does",
    ),
];

#[test]
fn modules_meet_only_where_the_picture_says() {
    let mut used = BTreeSet::new();
    let mut wrong = Vec::new();
    for file in sources() {
        let from = module(&file)[0].clone();
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == from) else {
            wrong.push(format!(
                "{from}: a new module; give it its place in ARROWS and in ARCHITECTURE.md"
            ));
            continue;
        };
        for item in named(&file) {
            let to = item.split("::").next().unwrap_or_default();
            if to == from || allowed.contains(&to) || !EVERYTHING.contains(&to) {
                continue;
            }
            match EXCEPTIONS
                .iter()
                .position(|(module, part, _)| *module == from && is_within(&item, part))
            {
                Some(exception) => drop(used.insert(exception)),
                None => wrong.push(format!("{}: {from} must not name {item}", file.display())),
            }
        }
    }
    for (index, (from, item, _)) in EXCEPTIONS.iter().enumerate() {
        if !used.contains(&index) {
            wrong.push(format!(
                "the exception of {from} for {item} is no longer needed: strike it"
            ));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn arrows_never_point_back() {
    for (index, (from, allowed)) in ARROWS.iter().enumerate() {
        for to in allowed.iter().filter(|_| **allowed != *EVERYTHING) {
            let place = ARROWS
                .iter()
                .position(|(name, _)| name == to)
                .unwrap_or_else(|| panic!("{to} is no module"));
            assert!(place < index, "{from} -> {to} points to a later line");
        }
    }
    for group in [
        ["front", "middle", "back"].as_slice(),
        &["session", "transport"],
    ] {
        for from in group {
            let (_, allowed) = ARROWS
                .iter()
                .find(|(name, _)| name == from)
                .expect("it is in ARROWS");
            for to in group.iter().filter(|to| *to != from) {
                assert!(
                    !allowed.contains(to),
                    "{from} and {to} never import each other"
                );
            }
        }
    }
}

#[test]
fn reads_what_source_names() {
    let text = "use crate::session::{Drain, http1::{Form, self}};\nuse super::super::back::Pool;\nuse super::tls;\n\
        // use crate::demo;\nimpl crate::stage::Stage for X { fn f() { \"crate::cli\"; \
        crate::roles::go::<u8>() } }";
    let found = items(text, &["front".into(), "socks".into()]);
    let expected = [
        "back::Pool",
        "front::tls",
        "roles::go",
        "session::Drain",
        "session::http1::Form",
        "session::http1",
        "stage::Stage",
    ];
    assert_eq!(found, expected.map(String::from).into());
}

/// Whether `item` is `part` or something in it.
fn is_within(item: &str, part: &str) -> bool {
    item.strip_prefix(part)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// All sources of the crate.
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

/// Where a file's own items live: `src/front/socks.rs` is `front::socks`, `src/front/mod.rs` is
/// `front`.
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

/// Every item that `text`, a source of `module`, names by a path from the crate's root or from a
/// parent of its own.
fn items(text: &str, module: &[String]) -> BTreeSet<String> {
    let code = code(text);
    let mut found = BTreeSet::new();
    for start in ["crate::", "super::"]
        .iter()
        .flat_map(|word| code.match_indices(word))
        .map(|(at, _)| at)
    {
        // Only where a path begins: not in `super::super::`, which is read from its first word on,
        // nor in `xcrate::`.
        if code[..start].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ':' | '$')) {
            continue;
        }
        let (mut rest, mut base) = (&code[start..], module.to_vec());
        if let Some(after) = rest.strip_prefix("crate::") {
            (rest, base) = (after, Vec::new());
        }
        while let Some(after) = rest.strip_prefix("super::") {
            rest = after;
            base.pop();
        }
        tree(rest, &base.join("::"), &mut found);
    }
    found
}

/// Adds what a path or a tree of paths in braces names; gives back what follows it.
fn tree<'a>(text: &'a str, base: &str, found: &mut BTreeSet<String>) -> &'a str {
    let join = |name: &str| {
        if base.is_empty() {
            name.to_owned()
        } else {
            format!("{base}::{name}")
        }
    };
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = tree(rest, base, found).trim_start();
            match rest.strip_prefix(',') {
                Some(after) if after.trim_start().starts_with('}') => {
                    return after.trim_start().trim_start_matches('}');
                }
                Some(after) => rest = after,
                None => return rest.strip_prefix('}').unwrap_or(rest),
            }
        }
    }
    let end = text
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    match rest.strip_prefix("::") {
        Some(after)
            if after.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '{')) =>
        {
            return tree(after, &join(name), found);
        }
        _ if name == "self" || name.is_empty() => found.insert(base.to_owned()),
        _ => found.insert(join(name)),
    };
    rest
}

/// The text without comments and string literals.
fn code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    for line in text.lines() {
        let mut quoted = false;
        let mut last = ' ';
        for (at, c) in line.char_indices() {
            if !quoted && line[at..].starts_with("//") {
                break;
            }
            if c == '"' && last != '\\' && !(last == '\'' && line[at..].starts_with("\"'")) {
                quoted = !quoted;
            } else if !quoted {
                code.push(c);
            }
            last = if last == '\\' && c == '\\' { ' ' } else { c };
        }
        code.push('\n');
    }
    code
}
