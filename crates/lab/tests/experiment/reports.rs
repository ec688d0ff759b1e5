//! Reports: the parts that the tests of runs look for, and well-formed HTML.

use tandem_lab::experiment::{Experiment, report};

use crate::TINY;

#[test]
fn a_report_takes_in_what_was_measured_over_tor() {
    let experiment = Experiment::parse(TINY).expect("valid");
    let tor = serde_json::json!({ "rows": [{ "page": "<a>", "time": { "median": 1.5 }, "all": [1] }, { "page": "b" }] });
    let html = report::html(&experiment, &[], Some(&tor));
    well_formed(&html);
    for part in ["private Tor network", "&lt;a&gt;", "time median", "1.50"] {
        assert!(html.contains(part), "{part}");
    }
}

/// Fails unless every element is closed in order, attributes are quoted and references are known.
/// XML requires that, and HTML requires less.
pub(super) fn well_formed(html: &str) {
    let mut rest = html
        .strip_prefix("<!DOCTYPE html>\n")
        .expect("a document type");
    let mut open: Vec<&str> = Vec::new();
    while let Some(at) = rest.find('<') {
        references(&rest[..at]);
        let end = rest[at..]
            .find('>')
            .map(|end| at + end)
            .expect("a tag that ends");
        let tag = &rest[at + 1..end];
        assert!(!tag.contains('<'), "{tag}");
        rest = &rest[end + 1..];
        let name = tag
            .trim_start_matches('/')
            .split([' ', '/'])
            .next()
            .unwrap_or_default();
        assert!(
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric()),
            "{tag}"
        );
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
        } else {
            attributes(&tag[name.len()..]);
            if !tag.ends_with('/') {
                open.push(name);
            }
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
}

fn attributes(mut text: &str) {
    loop {
        text = text.trim_start();
        if text.is_empty() || text == "/" {
            return;
        }
        let (name, rest) = text.split_once("=\"").expect("a quoted attribute");
        assert!(
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'),
            "{name}"
        );
        let (value, rest) = rest.split_once('"').expect("an attribute that ends");
        references(value);
        text = rest;
    }
}

fn references(text: &str) {
    for part in text.split('&').skip(1) {
        let known = ["amp;", "lt;", "gt;", "quot;"];
        assert!(known.iter().any(|known| part.starts_with(known)), "&{part}");
    }
    assert!(
        !text.chars().any(|c| c.is_control() && c != '\n'),
        "{text:?}"
    );
}
