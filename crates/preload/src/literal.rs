//! The string literals of a script that may be URLs (ECMAScript section 12.9.4).
//!
//! [`Literals`] reads no expression, regular expression or comment, because only a full parser can
//! distinguish them. A quote in one of these begins a text that soon has a byte which no URL has,
//! and the search goes on behind it. A text that is no literal but looks like one does no harm: the
//! caller compares each text with URLs that it knows.

/// The largest number of bytes of a text.
const MAX_TEXT: usize = 1_024;
/// The largest number of texts of one document.
const MAX_TEXTS: usize = 1_024;

/// A search for URLs in the bytes of scripts. It takes any cut of the stream.
#[derive(Debug)]
pub(super) struct Literals {
    /// The quote that ends the present text.
    quote: Option<u8>,
    text: Vec<u8>,
    /// True if the last byte was a backslash.
    is_escaped: bool,
    /// The number of texts that may still be found.
    left: usize,
    found: Vec<String>,
}

impl Literals {
    pub(super) const fn new() -> Self {
        Self {
            quote: None,
            text: Vec::new(),
            is_escaped: false,
            left: MAX_TEXTS,
            found: Vec::new(),
        }
    }

    /// Begins another script.
    pub(super) const fn restart(&mut self) {
        self.quote = None;
    }

    /// Returns true if no more texts are searched for.
    pub(super) const fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Takes the texts that were found since the last call.
    pub(super) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.found)
    }

    /// Takes the next bytes.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while self.left > 0 {
            if self.quote.is_none() {
                // Most bytes of a script are outside of strings.
                let Some(at) = memchr::memchr3(b'"', b'\'', b'`', rest) else {
                    return;
                };
                self.begin(rest[at]);
                rest = &rest[at + 1..];
            }
            let Some((&byte, after)) = rest.split_first() else {
                return;
            };
            self.step(byte);
            rest = after;
        }
    }

    fn begin(&mut self, quote: u8) {
        self.quote = Some(quote);
        self.text.clear();
        self.is_escaped = false;
    }

    fn step(&mut self, byte: u8) {
        if std::mem::take(&mut self.is_escaped) {
            // JSON in scripts often has an escaped slash. No URL needs another escape.
            match byte {
                b'/' => self.push(byte),
                _ => self.quote = None,
            }
        } else if Some(byte) == self.quote {
            self.end();
        } else if matches!(byte, b'"' | b'\'' | b'`') {
            self.begin(byte);
        } else if byte == b'\\' {
            self.is_escaped = true;
        } else if is_url_byte(byte) {
            self.push(byte);
        } else {
            self.quote = None;
        }
    }

    fn push(&mut self, byte: u8) {
        match self.text.len() < MAX_TEXT {
            true => self.text.push(byte),
            false => self.quote = None,
        }
    }

    fn end(&mut self) {
        self.quote = None;
        let text = std::str::from_utf8(&self.text).ok();
        if let Some(text) = text.filter(|text| is_url(text)) {
            self.found.push(text.to_owned());
            self.left -= 1;
        }
    }
}

/// Returns whether a byte may be part of a URL: of RFC 3986 section 2, or not ASCII. The marks of
/// calls and statements are left out, so that a search within code ends soon.
const fn is_url_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || !byte.is_ascii()
        || matches!(
            byte,
            b'-' | b'.'
                | b'_'
                | b'~'
                | b':'
                | b'/'
                | b'?'
                | b'#'
                | b'@'
                | b'&'
                | b'+'
                | b'='
                | b'%'
        )
}

/// Returns whether a text looks like a URL that a script would request.
fn is_url(text: &str) -> bool {
    let is_absolute = text.starts_with("http://") || text.starts_with("https://");
    let is_relative = || !text.contains(':') && text.contains(['/', '.', '?']);
    text.len() > 1 && (is_absolute || is_relative())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(script: &str, cut: usize) -> Vec<String> {
        let (mut literals, mut found) = (Literals::new(), Vec::new());
        for piece in script.as_bytes().chunks(cut) {
            literals.feed(piece);
            found.append(&mut literals.take());
        }
        found
    }

    #[test]
    fn search_finds_urls_in_any_pieces() {
        let script = "var a='/api/items',b=\"http://cdn.test/x.json?y=1\";fetch(`data/z`);\
                      g({\"u\":\"http:\\/\\/a.test\\/j\"});";
        let expected = [
            "/api/items",
            "http://cdn.test/x.json?y=1",
            "data/z",
            "http://a.test/j",
        ];
        for cut in [1, 3, 1000] {
            assert_eq!(found(script, cut), expected, "{cut}");
        }
    }

    #[test]
    fn search_leaves_other_strings_out() {
        for text in [
            "'use strict'",
            "'click'",
            "'/'",
            "'a:b/c'",
            "'javascript:void(0)'",
            "'<a href=/x>'",
            "`/items/${id}`",
            "'/a\\x62'",
            "'/a\n'",
            "'/open",
        ] {
            assert_eq!(found(text, 1000), [""; 0], "{text}");
        }
    }

    #[test]
    fn search_goes_on_behind_quotes_of_other_code() {
        for before in [
            "// it's\n",
            "/'/.test(x);",
            "\"it's\" ",
            "'\\'' ",
            "/* \" */ ",
        ] {
            let script = format!("{before}f('/api/items')");
            assert_eq!(found(&script, 1000), ["/api/items"], "{before}");
        }
    }

    #[test]
    fn search_is_bounded() {
        let mut literals = Literals::new();
        literals.feed(format!("'{}'", "x/".repeat(MAX_TEXT)).as_bytes());
        assert!(literals.found.is_empty() && literals.text.len() <= MAX_TEXT);
        assert!(!literals.is_over());
        literals.restart();
        literals.feed("'/a'".repeat(MAX_TEXTS + 5).as_bytes());
        assert_eq!(literals.take().len(), MAX_TEXTS);
        assert!(literals.is_over());
    }

    proptest! {
        #[test]
        fn search_depends_on_no_cut(script in "[a\"'`/\\\\.\n ]{0,60}", cut in 1usize..9) {
            prop_assert_eq!(found(&script, cut), found(&script, 1000));
        }

        #[test]
        fn search_finds_a_literal_in_other_strings(
            before in "[a-z ();/*]{0,20}",
            path in "/[a-z0-9/.]{1,30}",
        ) {
            let script = format!("{before};f(\"{path}\")");
            prop_assert_eq!(found(&script, 1000), [path]);
        }
    }
}
