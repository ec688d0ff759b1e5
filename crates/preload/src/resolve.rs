//! The URLs that references in a page stand for (WHATWG URL), as [`resolve`] makes them.
//!
//! The crate `url` parses and resolves. This module adds the limits of a preload scanner: only
//! `http` and `https`, no user information, plain host names, no fragment, at most [`MAX_URL`]
//! bytes. A refusal means that nothing is sent ahead of the request. References that need neither
//! encoding nor much normalisation, which are nearly all, are joined without a parser; a property
//! test compares both ways.

use ::url::{Host, Position};

/// The longest URL that is made, in bytes.
pub const MAX_URL: usize = 4_096;
/// The longest reference that is resolved, in bytes: dot segments may shorten it.
const MAX_REFERENCE: usize = 2 * MAX_URL;
const MAX_HOST: usize = 253;

/// Resolves `reference` in a document with the base URL `base`.
///
/// Returns an absolute `http` or `https` URL, normalised, without a fragment, of at most
/// [`MAX_URL`] bytes, or `None` where no such URL results.
pub fn resolve(base: &str, reference: &str) -> Option<String> {
    Some(Url::parse(base)?.join(reference)?.text)
}

/// Splits a URL that [`resolve`] made into its scheme, its authority, and its path with query.
pub fn split(url: &str) -> Option<(&str, &str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let path = rest.find('/')?;
    let (authority, path) = rest.split_at(path);
    (matches!(scheme, "http" | "https") && !authority.is_empty())
        .then_some((scheme, authority, path))
}

/// An absolute `http` or `https` URL, normalised, without a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    text: String,
    /// The offset of the path.
    path: usize,
    /// The offset of the query's question mark, or the end.
    query: usize,
}

impl Url {
    /// Parses an absolute URL.
    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::accept(::url::Url::parse(trim(text)?).ok()?)
    }

    /// Resolves `reference` in a document at this URL.
    pub(super) fn join(&self, reference: &str) -> Option<Self> {
        let reference = trim(reference)?;
        self.join_plain(reference)
            .or_else(|| self.join_parsed(reference))
    }

    /// The whole URL.
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// The whole URL, without a copy.
    pub(super) fn into_string(self) -> String {
        self.text
    }

    /// The scheme and the authority.
    pub(super) fn origin(&self) -> &str {
        &self.text[..self.path]
    }

    fn join_parsed(&self, reference: &str) -> Option<Self> {
        let base = ::url::Url::parse(&self.text).ok()?;
        // "Special authority ignore slashes state": after two slashes, further ones are ignored.
        // The crate does so only after a scheme.
        let authority = reference.trim_start_matches(['/', '\\']);
        let joined = if reference.len() - authority.len() > 2 {
            base.join(&format!("//{authority}"))
        } else {
            base.join(reference)
        };
        Self::accept(joined.ok()?)
    }

    /// Applies the limits to a parsed URL.
    fn accept(mut url: ::url::Url) -> Option<Self> {
        url.set_fragment(None);
        let host = match url.host()? {
            Host::Domain(name) => is_plain_name(name),
            Host::Ipv4(_) | Host::Ipv6(_) => true,
        };
        let accepted = matches!(url.scheme(), "http" | "https")
            && host
            && url.username().is_empty()
            && url.password().is_none()
            && url.as_str().len() <= MAX_URL;
        accepted.then(|| Self {
            path: url[..Position::BeforePath].len(),
            query: url[..Position::AfterPath].len(),
            text: url.into(),
        })
    }

    /// Resolves a path, relative or absolute, that needs no escaping or normalisation. Returns
    /// `None` for any other reference.
    fn join_plain(&self, reference: &str) -> Option<Self> {
        let reference = reference.strip_suffix('#').unwrap_or(reference);
        let slash = self.text[..self.query].rfind('/')?;
        let mut folder = &self.text[..=slash];
        let mut rest = reference;
        if let Some(absolute) = reference.strip_prefix('/') {
            folder = &self.text[..=self.path];
            rest = absolute;
            // Two slashes begin an authority.
            if rest.starts_with('/') {
                return None;
            }
        } else if matches!(reference.as_bytes().first(), None | Some(b'?')) {
            return None;
        }
        while let Some(after) = rest.strip_prefix('.') {
            if let Some(below) = after.strip_prefix("./") {
                let parent = folder[self.path..folder.len() - 1].rfind('/').unwrap_or(0);
                folder = &folder[..=self.path + parent];
                rest = below;
            } else {
                rest = after.strip_prefix('/')?;
            }
        }
        let path = plain_path(rest)?;
        if folder.len() + rest.len() > MAX_URL {
            return None;
        }
        let mut text = String::with_capacity(folder.len() + rest.len());
        text.push_str(folder);
        text.push_str(rest);
        Some(Self {
            path: self.path,
            query: folder.len() + path,
            text,
        })
    }
}

/// Returns a reference without surrounding spaces and without the text of its fragment, or `None`
/// if it is too long. The number sign stays, so that a space before it is not at the end.
fn trim(text: &str) -> Option<&str> {
    let text = text.trim_matches(|c: char| c <= ' ');
    let text = text.find('#').map_or(text, |at| &text[..=at]);
    (text.len() <= MAX_REFERENCE).then_some(text)
}

/// Returns the length of the path in a path with query, if no byte of either needs encoding and no
/// segment begins with a dot.
fn plain_path(text: &str) -> Option<usize> {
    let mut before = b'/';
    for (at, &byte) in text.as_bytes().iter().enumerate() {
        match PLAIN[usize::from(byte)] {
            Plain::Everywhere if before != b'/' || byte != b'.' => before = byte,
            Plain::QuestionMark => {
                let query = &text.as_bytes()[at + 1..];
                return query
                    .iter()
                    .all(|&byte| PLAIN[usize::from(byte)] != Plain::Never)
                    .then_some(at);
            }
            _ => return None,
        }
    }
    Some(text.len())
}

/// The places in a path with query where a byte stands for itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plain {
    Never,
    Everywhere,
    /// In the query only. In a path, a colon may end a scheme, and a percent sign may encode a dot.
    Query,
    /// Itself the beginning of the query.
    QuestionMark,
}

const PLAIN: [Plain; 256] = {
    let mut table = [Plain::Never; 256];
    let mut byte = 0;
    while byte < 128 {
        table[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => Plain::Everywhere,
            b'-' | b'.' | b'_' | b'~' | b'/' | b'!' | b'$' | b'&' | b'(' | b')' | b'*' | b'+'
            | b',' | b';' | b'=' | b'@' => Plain::Everywhere,
            b':' | b'%' => Plain::Query,
            b'?' => Plain::QuestionMark,
            _ => Plain::Never,
        };
        byte += 1;
    }
    table
};

/// Reports whether a host has only letters, digits, hyphens and underscores in labels that are not
/// empty.
fn is_plain_name(host: &str) -> bool {
    let plain = host
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'));
    plain && host.len() <= MAX_HOST && !host.starts_with('.') && !host.contains("..")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BASE: &str = "http://a/b/c/d;p?q";

    fn check(base: &str, cases: &[(&str, &str)]) {
        for (reference, target) in cases {
            let expected = (!target.is_empty()).then(|| (*target).to_owned());
            assert_eq!(resolve(base, reference), expected, "{reference}");
        }
    }

    #[test]
    fn normal_examples_of_rfc_3986_section_5_4_1() {
        check(
            BASE,
            &[
                ("g:h", ""),
                ("g", "http://a/b/c/g"),
                ("./g", "http://a/b/c/g"),
                ("g/", "http://a/b/c/g/"),
                ("/g", "http://a/g"),
                ("//g", "http://g/"),
                ("?y", "http://a/b/c/d;p?y"),
                ("g?y", "http://a/b/c/g?y"),
                ("#s", "http://a/b/c/d;p?q"),
                ("g#s", "http://a/b/c/g"),
                ("g?y#s", "http://a/b/c/g?y"),
                (";x", "http://a/b/c/;x"),
                ("g;x", "http://a/b/c/g;x"),
                ("g;x?y#s", "http://a/b/c/g;x?y"),
                ("", "http://a/b/c/d;p?q"),
                (".", "http://a/b/c/"),
                ("./", "http://a/b/c/"),
                ("..", "http://a/b/"),
                ("../", "http://a/b/"),
                ("../g", "http://a/b/g"),
                ("../..", "http://a/"),
                ("../../", "http://a/"),
                ("../../g", "http://a/g"),
            ],
        );
    }

    #[test]
    fn abnormal_examples_of_rfc_3986_section_5_4_2() {
        check(
            BASE,
            &[
                ("../../../g", "http://a/g"),
                ("../../../../g", "http://a/g"),
                ("/./g", "http://a/g"),
                ("/../g", "http://a/g"),
                ("g.", "http://a/b/c/g."),
                (".g", "http://a/b/c/.g"),
                ("g..", "http://a/b/c/g.."),
                ("..g", "http://a/b/c/..g"),
                ("./../g", "http://a/b/g"),
                ("./g/.", "http://a/b/c/g/"),
                ("g/./h", "http://a/b/c/g/h"),
                ("g/../h", "http://a/b/c/h"),
                ("g;x=1/./y", "http://a/b/c/g;x=1/y"),
                ("g;x=1/../y", "http://a/b/c/y"),
                ("g?y/./x", "http://a/b/c/g?y/./x"),
                ("g?y/../x", "http://a/b/c/g?y/../x"),
                ("g#s/./x", "http://a/b/c/g"),
                ("g#s/../x", "http://a/b/c/g"),
                // For browsers, the same scheme without slashes is relative.
                ("http:g", "http://a/b/c/g"),
            ],
        );
    }

    #[test]
    fn resolve_repairs_sloppy_references() {
        check(
            "https://Example.COM:443/a/b?c",
            &[
                (" \n x.png\t ", "https://example.com/a/x.png"),
                ("im\nages/a\tb.png", "https://example.com/a/images/ab.png"),
                ("..\\x\\y.png?a\\b", "https://example.com/x/y.png?a\\b"),
                ("\\\\cdn.example\\x", "https://cdn.example/x"),
                ("/\\cdn.example/x", "https://cdn.example/x"),
                ("////cdn.example/x", "https://cdn.example/x"),
                ("https:/x", "https://example.com/x"),
                ("https:x", "https://example.com/a/x"),
                ("http:x", "http://x/"),
                ("HTTP://X.example:80", "http://x.example/"),
                ("http://x.example:8080?q", "http://x.example:8080/?q"),
                ("http://x.example:/y", "http://x.example/y"),
                ("http://x.example:0080/y", "http://x.example/y"),
                (
                    "a b\u{e4}.png?\u{e4} '",
                    "https://example.com/a/a%20b%C3%A4.png?%C3%A4%20%27".trim_end(),
                ),
                ("%2e%2E/x%2fy%zz", "https://example.com/x%2fy%zz"),
                ("a//b///c", "https://example.com/a/a//b///c"),
                ("//[2001:DB8:0::1]:8443/x", "https://[2001:db8::1]:8443/x"),
                ("//192.0.2.1/x", "https://192.0.2.1/x"),
                ("//0xc0.0.0x2.1/x", "https://192.0.2.1/x"),
                ("//ex%61mple.com/", "https://example.com/"),
                ("//b\u{fc}cher.example/", "https://xn--bcher-kva.example/"),
            ],
        );
    }

    #[test]
    fn resolve_refuses_urls_that_are_not_pushed() {
        let none = [
            "data:image/png;base64,AAAA",
            "javascript:void(0)",
            "mailto:a@b.example",
            "about:blank",
            "blob:https://example.com/1",
            "ftp://example.com/x",
            "//user@example.com/x",
            "//user:secret@example.com/x",
            "//",
            "http://",
            "//exa mple.com/",
            "//a;b.example/",
            "//example.com:99999/",
            "//example.com:8a/",
            "//[::1/",
            "//[::1]x/",
            "//1.2.3.256/",
            "//.example/",
            "//a..example/",
        ];
        for reference in none {
            assert_eq!(
                resolve("https://example.com/", reference),
                None,
                "{reference}"
            );
        }
        for base in [
            "",
            "x",
            "/x",
            "ftp://h/x",
            "data:,x",
            "//h/x",
            "http:",
            "about:blank",
        ] {
            assert_eq!(resolve(base, "x"), None, "{base}");
        }
    }

    #[test]
    fn resolve_bounds_the_length() {
        let base = "http://h/";
        let longest = "a".repeat(MAX_URL - base.len());
        assert_eq!(resolve(base, &longest).map(|url| url.len()), Some(MAX_URL));
        assert_eq!(resolve(base, &format!("{longest}a")), None);
        assert_eq!(resolve(base, &"\u{e4}".repeat(1_000)), None);
        assert_eq!(
            resolve(base, &"a/../".repeat(1_000)),
            Some("http://h/".to_owned())
        );
        assert_eq!(resolve(base, &"../".repeat(100_000)), None);
    }

    #[test]
    fn split_returns_three_parts() {
        assert_eq!(
            split("https://h:8443/a/b?c=d/e"),
            Some(("https", "h:8443", "/a/b?c=d/e"))
        );
        for other in ["ftp://h/", "http:/h/", "http://h", "http:///x", ""] {
            assert_eq!(split(other), None, "{other}");
        }
    }

    /// Pieces of references that mean something to a parser, and some that do not.
    fn piece() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec![
            "a", "b1.png", "c-d_e", ".", "..", "/", "//", "\\", "?", "#", " ", "%2e", "%41", ":",
            "http:", "https:", "@", "\u{e4}", "'", "\t", "^", "|", ";v=1", "&x=y", "~", "[", "(",
        ])
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

        #[test]
        fn join_plain_equals_the_parser(
            base in prop::sample::select(vec![
                "http://h/", "https://h:8443/a/b/c?d/e", "http://h/a/", "https://[::1]/a//b/?q",
                "http://h/a/b?", "http://h//",
            ]),
            pieces in prop::collection::vec(piece(), 0..8),
        ) {
            let base = Url::parse(base).expect("an http URL");
            let reference = pieces.concat();
            if let Some(reference) = trim(&reference)
                && let Some(plain) = base.join_plain(reference)
            {
                prop_assert_eq!(Some(plain), base.join_parsed(reference), "{}", reference);
            }
        }
    }
}
