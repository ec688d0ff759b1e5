//! Resolution of references against the URL test data of web-platform-tests.
//!
//! `vectors/preload/README.md` names the source, the licence and the selection of cases.

use serde::Deserialize;
use tandem_preload::{MAX_URL, resolve};

#[derive(Debug, Deserialize)]
struct Case {
    input: String,
    base: Option<String>,
    #[serde(default)]
    failure: bool,
    #[serde(default)]
    href: String,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    hostname: String,
}

impl Case {
    /// Returns the URL that a scanner may list: the standard's, less those that this crate refuses.
    fn expected(&self) -> Option<String> {
        let host = self.hostname.trim_start_matches('[').trim_end_matches(']');
        let plain = host
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b':'));
        let accepted = !self.failure
            && (self.href.starts_with("http://") || self.href.starts_with("https://"))
            && self.username.is_empty()
            && self.password.is_empty()
            && plain
            && !host.starts_with('.')
            && !host.contains("..")
            && host.len() <= 253
            && self.href.len() <= MAX_URL;
        accepted.then(|| {
            let end = self.href.find('#').unwrap_or(self.href.len());
            self.href[..end].to_owned()
        })
    }

    fn resolved(&self) -> Option<String> {
        match &self.base {
            Some(base) => resolve(base, &self.input),
            None => resolve(&self.input, ""),
        }
    }
}

#[test]
fn resolve_agrees_with_web_platform_tests() {
    let text = include_str!("../../../vectors/preload/urltestdata.json");
    let cases: Vec<Case> = serde_json::from_str(text).expect("the file of this repository");
    let accepted = cases.iter().filter(|case| case.expected().is_some());
    assert!(
        cases.len() > 700 && accepted.count() > 150,
        "cases are missing"
    );
    let wrong: Vec<String> = cases
        .iter()
        .filter(|case| case.resolved() != case.expected())
        .map(|case| format!("{case:?}\n    gives {:?}", case.resolved()))
        .collect();
    assert!(
        wrong.is_empty(),
        "{} cases:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
