//! URLs that look like those of files, which are the same at each visit.
//!
//! Scripts also make requests that are valid for one visit only, with tokens, times or random
//! numbers, and requests for actions of the user. Repeating one of these early is useless or
//! harmful. So the rules refuse a URL if in doubt.

/// The names of parameters that hold the version of a file.
const VERSION_NAMES: [&str; 3] = ["v", "ver", "version"];

/// The length of the longest version in a query.
const MAX_VERSION: usize = 16;

/// The length from which letters and digits are taken for a token, a hash, a time or a random
/// number.
const TOKEN: usize = 8;

/// Returns whether a path with a query may be that of a file. A name with a hash suffices only if
/// the response `is_fresh`: caches may use it again without a request.
pub(super) fn may_be_static(path: &str, is_fresh: bool) -> bool {
    let (path, query) = match path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path, None),
    };
    let (directories, name) = path.rsplit_once('/').unwrap_or(("", path));
    // Escapes may hide anything.
    !path.contains('%')
        && query.is_none_or(is_version)
        && !has_token(directories)
        && (is_fresh || !has_token(name))
}

/// Returns whether a query is the version of a file, such as `v=1.2.3`.
fn is_version(query: &str) -> bool {
    let Some((name, value)) = query.split_once('=') else {
        return false;
    };
    let is_in_version = |letter: u8| letter.is_ascii_alphanumeric() || b".-_".contains(&letter);
    VERSION_NAMES.contains(&name)
        && value.len() <= MAX_VERSION
        && value.bytes().all(is_in_version)
        && !has_token(value)
}

/// Returns whether a text has a token: many letters and digits in a row, with a digit among them.
fn has_token(text: &str) -> bool {
    let mut runs = text.split(|letter: char| !letter.is_ascii_alphanumeric());
    runs.any(|run| run.len() >= TOKEN && run.bytes().any(|letter| letter.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_urls_have_no_tokens() {
        for (path, expected) in [
            ("/x.js", true),
            ("/static/js/jquery-3.7.1.min.js", true),
            ("/2024/01/theme-long-name.css", true),
            ("/x?v=1", true),
            ("/x?ver=6.4.2-beta_1", true),
            ("/x?version=1234567", true),
            ("/x?", false),
            ("/x?1", false),
            ("/x?t=1", false),
            ("/x?v=1&t=1", false),
            ("/x?v=12345678", false),
            ("/x?v=9f3ab2c1", false),
            ("/x?v=1.2.3.4.5.6.7.8.9", false),
            ("/x?v=%31", false),
            ("/x?csrf=9f3ab2", false),
            ("/x?cb=k3j9x", false),
            ("/x?token=abc", false),
            ("/%31/x.js", false),
            ("/t/1700000000/x.js", false),
            ("/9f3ab2c1/x.js", false),
            ("/app.9f3ab2c1.js", false),
            ("/s-k3j9xQ7p", false),
        ] {
            assert_eq!(may_be_static(path, false), expected, "{path}");
        }
    }

    #[test]
    fn hash_in_the_name_of_a_fresh_file_is_permitted() {
        for (path, expected) in [
            ("/static/app.9f3ab2c1.js", true),
            ("/static/app.9f3ab2c1.js?v=1", true),
            ("/9f3ab2c1/app.js", false),
            ("/app.js?h=9f3ab2c1", false),
            ("/app.js?v=9f3ab2c1", false),
        ] {
            assert_eq!(may_be_static(path, true), expected, "{path}");
        }
    }
}
