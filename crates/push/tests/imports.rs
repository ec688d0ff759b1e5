//! Checks that no modules of the crate import each other in a circle.
//!
//! The modules of one parent are compared with each other. An import by a descendant counts for the
//! module that contains it. A parent and its children may name each other.

#![expect(
    clippy::unwrap_used,
    reason = "sources that cannot be read fail the test"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The names of a module and its ancestors, outermost first. The crate's root has none.
type Module = Vec<String>;

/// The imports between the children of each module.
type Imports = BTreeMap<Module, BTreeSet<(String, String)>>;

#[test]
fn no_modules_import_each_other_in_a_circle() {
    let sources = sources();
    assert!(sources.len() > 40, "the sources are not where they were");
    let circles = imports(&sources).into_values().map(without_ends);
    let circles: Vec<_> = circles.filter(|circle| !circle.is_empty()).collect();
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn reader_finds_the_imports_of_siblings() {
    let source = |module: &[&str], text: &str| {
        let module = module.iter().map(|name| (*name).to_owned()).collect();
        (module, text.to_owned())
    };
    let text = "
        use super::{b::{self, X}, c::Y};
        use crate::d::Z; // crate::e
        fn f() -> crate::a::b::X { super::superb::g() }
#[cfg(test)]
mod tests { use super::e::T; }";
    let sources = BTreeMap::from([
        source(&["a"], "pub use b::X;"),
        source(&["a", "b"], "use super::Own;"),
        source(&["a", "c"], text),
        source(&["a", "e"], ""),
        source(&["d"], "use crate::a::c::Y;"),
        source(&["e"], ""),
    ]);
    let pair = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    let expected = Imports::from([
        (vec!["a".to_owned()], BTreeSet::from([pair("c", "b")])),
        (vec![], BTreeSet::from([pair("a", "d"), pair("d", "a")])),
    ]);
    let found = imports(&sources);
    assert_eq!(found, expected);
    assert_eq!(without_ends(found[&vec![]].clone()).len(), 2);
    assert!(without_ends(found[&vec!["a".to_owned()]].clone()).is_empty());
}

/// Returns the imports that remain after those of modules that nothing imports, or that import
/// nothing, were removed again and again: the circles.
fn without_ends(mut imports: BTreeSet<(String, String)>) -> BTreeSet<(String, String)> {
    loop {
        let importers: BTreeSet<String> = imports.iter().map(|(from, _)| from.clone()).collect();
        let imported: BTreeSet<String> = imports.iter().map(|(_, to)| to.clone()).collect();
        let before = imports.len();
        imports.retain(|(from, to)| importers.contains(to) && imported.contains(from));
        if imports.len() == before {
            return imports;
        }
    }
}

/// Returns the imports between the modules with these sources.
fn imports(sources: &BTreeMap<Module, String>) -> Imports {
    let mut found = Imports::new();
    for (module, text) in sources {
        for path in paths(&code(text), module) {
            let length = (0..=path.len())
                .rev()
                .find(|length| *length == 0 || sources.contains_key(&path[..*length]))
                .unwrap_or_default();
            let target = &path[..length];
            let same = module.iter().zip(target).take_while(|(a, b)| a == b);
            let same = same.count();
            if let (Some(from), Some(to)) = (module.get(same), target.get(same)) {
                let edge = (from.clone(), to.clone());
                found.entry(path[..same].to_vec()).or_default().insert(edge);
            }
        }
    }
    found
}

/// Returns a source without comments and without its tests.
fn code(text: &str) -> String {
    let product = text.split("#[cfg(test)]\nmod tests").next();
    let lines = product.unwrap_or_default().lines();
    let code = lines.map(|line| line.split("//").next().unwrap_or_default());
    code.collect::<Vec<_>>().join("\n")
}

/// Returns the paths from the crate's root, or from a parent, that the source of `module` names.
fn paths(code: &str, module: &[String]) -> Vec<Module> {
    let mut found = Vec::new();
    for (word, levels) in [("crate::", module.len()), ("super::", 1)] {
        for (at, _) in code.match_indices(word) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|before| before == ':' || is_in_name(before)) {
                continue;
            }
            let base = module[..module.len() - levels].to_vec();
            read_tree(&code[at + word.len()..], base, &mut found);
        }
    }
    found
}

/// Reads the paths at the start of `code`, which continue `path`. Returns the rest of the code.
fn read_tree<'a>(code: &'a str, mut path: Module, found: &mut Vec<Module>) -> &'a str {
    let mut rest = code.trim_start();
    if let Some(mut inner) = rest.strip_prefix('{') {
        loop {
            inner = inner.trim_start_matches([',', ' ', '\n']);
            if let Some(after) = inner.strip_prefix('}') {
                return after;
            }
            let after = read_tree(inner, path.clone(), found);
            assert!(after.len() < inner.len(), "not read: {inner:.40}");
            inner = after;
        }
    }
    let length = rest.find(|letter| !is_in_name(letter));
    let name;
    (name, rest) = rest.split_at(length.unwrap_or(rest.len()));
    match name {
        "super" => drop(path.pop()),
        "self" | "" => {}
        name => path.push(name.to_owned()),
    }
    match rest.strip_prefix("::") {
        Some(after) if !after.starts_with('<') => read_tree(after, path, found),
        _ => {
            found.push(path);
            rest.trim_start_matches('*')
        }
    }
}

fn is_in_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Returns the source of each module, without the files of tests.
fn sources() -> BTreeMap<Module, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = BTreeMap::new();
    let mut open: Vec<PathBuf> = vec![root.clone()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let inside = path.strip_prefix(&root).unwrap().with_extension("");
            let names = inside.iter().map(|name| name.to_string_lossy());
            let mut module: Module = names.map(String::from).collect();
            if module.last().is_some_and(|name| name == "tests") {
                continue;
            }
            if path.is_dir() {
                open.push(path);
                continue;
            }
            if module == ["lib"] {
                module.clear();
            }
            found.insert(module, std::fs::read_to_string(path).unwrap());
        }
    }
    found
}
