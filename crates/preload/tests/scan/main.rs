//! The needs that the scan finds in pages and style sheets, compared with the requests of a
//! browser.

mod elements;
mod limits;
mod random;
mod samples;
mod scripts;
mod sheets;

use tandem_preload::{Need, Scanner};

const PAGE: &str = "https://www.example.org/news/index.html";
const SHEET: &str = "https://www.example.org/css/site.css";
const SCRIPT: &str = "https://www.example.org/js/main.js";

fn all(mut scanner: Scanner, bytes: &[u8], cut: usize) -> Vec<Need> {
    let mut found = Vec::new();
    for piece in bytes.chunks(cut.max(1)) {
        scanner.feed(piece, &mut found);
    }
    scanner.finish(&mut found);
    found
}

fn html() -> Scanner {
    Scanner::html(PAGE).expect("an https URL")
}

fn css() -> Scanner {
    Scanner::css(SHEET).expect("an https URL")
}

fn script() -> Scanner {
    Scanner::script(SCRIPT).expect("an https URL").page(PAGE)
}

/// Each need as a line: urgency, kind, URL (of this site without its origin), and whether
/// anonymous. Fed as a whole and byte by byte.
fn lines(scanner: fn() -> Scanner, text: &str) -> Vec<String> {
    let found = all(scanner(), text.as_bytes(), text.len());
    assert_eq!(
        all(scanner(), text.as_bytes(), 1),
        found,
        "cut into single bytes: {text}"
    );
    let line = |need: &Need| {
        let url = need
            .url
            .strip_prefix("https://www.example.org")
            .unwrap_or(&need.url);
        let anonymous = if need.anonymous { " anonymous" } else { "" };
        format!("{} {:?} {url}{anonymous}", need.urgency, need.kind)
    };
    found.iter().map(line).collect()
}

#[track_caller]
fn page(text: &str, expected: &[&str]) {
    assert_eq!(lines(html, text), expected, "{text}");
}

#[track_caller]
fn sheet(text: &str, expected: &[&str]) {
    assert_eq!(lines(css, text), expected, "{text}");
}

#[track_caller]
fn module(text: &str, expected: &[&str]) {
    assert_eq!(lines(script, text), expected, "{text}");
}
