//! The record of the stores that trust the local authority, a file in its directory. `tandem trust`
//! writes a line `KIND DIRECTORY` for each store, and `KIND? DIRECTORY` while a change is not known
//! to be complete. A client reads it to know whether Firefox accepts its TLS listener.

use std::path::{Path, PathBuf};

/// The kind of Firefox's profiles in a line.
pub const FIREFOX: &str = "firefox";

/// The mark behind the kind of a store that may not trust the authority.
pub const UNFINISHED: char = '?';

/// Returns the path of the record.
pub fn record_file(directory: &Path) -> PathBuf {
    directory.join("trusted-by")
}

/// Returns true if the record of an authority's directory lists a profile of Firefox that trusts
/// the authority.
pub fn lists_firefox(directory: &Path) -> bool {
    let text = std::fs::read_to_string(record_file(directory)).unwrap_or_default();
    let kinds = text.lines().filter_map(|line| line.split_once(' '));
    kinds.into_iter().any(|(kind, _)| kind == FIREFOX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_tells_whether_firefox_is_listed() {
        let name = format!("tandem-trusted-by-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory");
        assert!(!lists_firefox(&directory));
        for (text, expected) in [
            ("chromium /home/firefox /x\n", false),
            ("firefox? /home/a\n", false),
            ("firefox? /home/a\nfirefox /home/b\n", true),
            ("chromium /home/.pki\nfirefox /home/a b\n", true),
        ] {
            std::fs::write(record_file(&directory), text).expect("written");
            assert_eq!(lists_firefox(&directory), expected, "{text}");
        }
        std::fs::remove_dir_all(&directory).expect("removed");
    }
}
