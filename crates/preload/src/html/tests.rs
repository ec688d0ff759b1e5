//! The tokenizer against the test data of html5lib (`vectors/preload/README.md`).

use serde::Deserialize;

use super::super::resolve::Url;
use super::super::text::decode;
use super::*;

/// A tag as a test sees it: name (with a slash in an end tag), attributes, self-closing flag.
pub(super) type Tag = (String, Vec<(String, String)>, bool);

impl Html {
    /// Keeps the tag instead of passing it on, if a test asked for that.
    pub(super) fn record(&mut self) -> bool {
        let Some(tags) = &mut self.tags else {
            return false;
        };
        let slash = if self.closing { "/" } else { "" };
        let name = self.name.get().unwrap_or(b"(long)");
        let attributes = self.attributes.take_recorded();
        let attributes = attributes
            .into_iter()
            .map(|(name, value)| (folded(&name), value));
        let attributes: Vec<_> = attributes.collect();
        tags.push((
            format!("{slash}{}", folded(&decode(name))),
            if self.closing { Vec::new() } else { attributes },
            self.slash && !self.closing,
        ));
        true
    }
}

#[derive(Debug, Deserialize)]
struct Case {
    from: String,
    description: String,
    input: String,
    states: Vec<String>,
    last: String,
    tags: Vec<Tag>,
}

impl Case {
    /// Returns the tags that the scanner finds, with the input cut into pieces of `step` bytes.
    fn found(&self, state: &str, step: usize) -> Vec<Tag> {
        let page = Url::parse("http://h/").expect("an http URL");
        let mut sink = Sink::new(page.clone(), Some(page));
        let mut html = Html::new();
        html.tags = Some(Vec::new());
        // Raw text always belongs to an element, which a few cases do not name.
        let last = if self.last.is_empty() {
            "x"
        } else {
            &self.last
        };
        html.name.push(last.as_bytes());
        (html.state, html.inside) = match state {
            "Data" => (State::Data, Inside::Content),
            "PLAINTEXT" => (State::Over, Inside::Nothing),
            "RCDATA" | "RAWTEXT" => (State::Raw, Inside::Text),
            "Script data" => (State::Raw, Inside::Script),
            "CDATA section" => (State::Section(0), Inside::Content),
            other => panic!("{other}: a new state"),
        };
        // Line ends are normalised before tokenization (section 13.2.3.5).
        let input = self.input.replace("\r\n", "\n").replace('\r', "\n");
        for piece in input.as_bytes().chunks(step) {
            html.feed(piece, &mut sink);
        }
        html.tags.unwrap_or_default()
    }

    /// Returns the tags of the case as the scanner keeps them.
    fn expected(&self) -> Vec<Tag> {
        let tags = self.tags.iter().map(|(name, attributes, closing)| {
            let attributes = attributes.iter();
            let attributes = attributes.map(|(name, value)| (folded(name), value.clone()));
            (folded(name), attributes.collect(), *closing)
        });
        tags.collect()
    }
}

/// Returns a name with a question mark for each zero byte and for its replacement: no name that
/// the scanner knows contains one.
fn folded(name: &str) -> String {
    name.replace(['\0', '\u{fffd}'], "?")
}

/// The only case with a character reference that is not in the scanner's list. That list has the
/// references of Latin-1 and of the punctuation of URLs and style sheets.
const UNKNOWN_REFERENCE: &str = "Non BMP-charref in attribute";

#[test]
fn tokenizer_agrees_with_html5lib() {
    let text = include_str!("../../../../vectors/preload/tokenizer.json");
    let cases: Vec<Case> = serde_json::from_str(text).expect("the file of this repository");
    assert!(cases.len() > 1_900, "cases are missing");
    let mut wrong = Vec::new();
    for case in cases
        .iter()
        .filter(|case| case.description != UNKNOWN_REFERENCE)
    {
        let expected = case.expected();
        for state in &case.states {
            for step in [1, 3, usize::MAX] {
                let found = case.found(state, step);
                if found != expected {
                    wrong.push(format!(
                        "{} {:?} in {state}: {:?}\n  expected {:?}\n  found    {found:?}",
                        case.from, case.description, case.input, expected
                    ));
                    break;
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} cases:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
