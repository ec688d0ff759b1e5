//! References in pages made absolute: RFC 3986 section 5, with what browsers forgive (WHATWG URL).
//!
//! Forgiven: spaces around, tabs and line ends inside, backslashes for slashes, one slash or none
//! or many after a scheme, `%2e` as a dot, and anything that only needs percent-encoding. Refused:
//! other schemes, user information, hosts that are not plain ASCII names or plain addresses, and
//! whatever would be longer than [`MAX_URL`]. A refusal only means that nothing is sent ahead, so
//! the rule in doubt is to refuse.

use std::borrow::Cow;
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Longest URL that is made, in bytes.
pub const MAX_URL: usize = 4_096;
/// Longest reference that is looked at, in bytes: dot segments may shorten it.
const MAX_REFERENCE: usize = 2 * MAX_URL;
const MAX_HOST: usize = 253;

/// `reference` as it stands in a page whose base URL is `base`: absolute `http` or `https`,
/// normalised, without a fragment, at most [`MAX_URL`] bytes. `None` where either is nothing that
/// can be fetched so.
pub fn resolve(base: &str, reference: &str) -> Option<String> {
    Some(Url::parse(base)?.join(reference)?.text)
}

/// Scheme, authority, and path with query of a URL that [`resolve`] made.
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
    /// Where the path begins.
    path: usize,
    /// Where the query's question mark stands, or the end.
    query: usize,
}

impl Url {
    /// Reads an absolute URL.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = clean(text)?;
        let (scheme, rest) = split_scheme(&text)?;
        Self::absolute(known(scheme)?, rest)
    }

    /// What `reference` means in a document at this URL.
    pub(super) fn join(&self, reference: &str) -> Option<Self> {
        let reference = clean(reference)?;
        let Some((scheme, rest)) = split_scheme(&reference) else {
            if leading_slashes(&reference) >= 2 {
                return Self::absolute(self.scheme(), &reference);
            }
            return self.relative(&reference);
        };
        let scheme = known(scheme)?;
        if leading_slashes(rest) >= 2 || scheme != self.scheme() {
            return Self::absolute(scheme, rest);
        }
        self.relative(rest)
    }

    /// Whole.
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Whole, given away.
    pub(super) fn into_string(self) -> String {
        self.text
    }

    /// Scheme and authority.
    pub(super) fn origin(&self) -> &str {
        &self.text[..self.path]
    }

    /// The path without its query.
    pub(super) fn path(&self) -> &str {
        &self.text[self.path..self.query]
    }

    fn scheme(&self) -> &'static str {
        if self.text.starts_with("https:") {
            "https"
        } else {
            "http"
        }
    }

    fn absolute(scheme: &str, rest: &str) -> Option<Self> {
        let rest = rest.trim_start_matches(is_slash);
        let end = rest.find(|c| is_slash(c) || c == '?').unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        let mut text = String::with_capacity(scheme.len() + rest.len() + authority.len() + 4);
        text.push_str(scheme);
        text.push_str("://");
        push_authority(&mut text, scheme, authority)?;
        Self::compose(text, "/", rest.strip_prefix(is_slash).unwrap_or(rest))
    }

    fn relative(&self, reference: &str) -> Option<Self> {
        if reference.is_empty() {
            return Some(self.clone());
        }
        let mut text = String::with_capacity(self.query + reference.len());
        text.push_str(self.origin());
        if let Some(rest) = reference.strip_prefix(is_slash) {
            return Self::compose(text, "/", rest);
        }
        if reference.starts_with('?') {
            text.push_str(self.path());
            return Self::with_query(text, self.path, reference);
        }
        let folder = self
            .path()
            .rfind('/')
            .map_or("/", |slash| &self.path()[..=slash]);
        Self::compose(text, folder, reference)
    }

    /// `text` is the origin, `folder` a normalised path that begins and ends with a slash.
    fn compose(mut text: String, folder: &str, reference: &str) -> Option<Self> {
        let path = text.len();
        let (segments, query) = reference.split_at(reference.find('?').unwrap_or(reference.len()));
        text.push_str(folder);
        let mut segments = segments.split(is_slash).peekable();
        while let Some(segment) = segments.next() {
            match dots(segment) {
                2 => {
                    let parent = text[path..text.len() - 1].rfind('/').unwrap_or(0);
                    text.truncate(path + parent + 1);
                }
                1 => {}
                _ => {
                    encode(&mut text, segment, in_path);
                    if segments.peek().is_some() {
                        text.push('/');
                    }
                }
            }
        }
        Self::with_query(text, path, query)
    }

    /// `text` ends with the path; `query` is empty or begins with its question mark.
    fn with_query(mut text: String, path: usize, query: &str) -> Option<Self> {
        let at = text.len();
        if let Some(query) = query.strip_prefix('?') {
            text.push('?');
            encode(&mut text, query, in_query);
        }
        (text.len() <= MAX_URL).then_some(Self {
            text,
            path,
            query: at,
        })
    }
}

const fn is_slash(c: char) -> bool {
    matches!(c, '/' | '\\')
}

fn leading_slashes(text: &str) -> usize {
    text.chars().take_while(|&c| is_slash(c)).count()
}

/// Without spaces around, line ends and tabs inside, and the fragment; `None` if too long.
fn clean(text: &str) -> Option<Cow<'_, str>> {
    let text = text.trim_matches(|c: char| c <= ' ');
    let text = text.find('#').map_or(text, |at| &text[..at]);
    if text.len() > MAX_REFERENCE {
        return None;
    }
    let drop = |c: char| matches!(c, '\t' | '\n' | '\r');
    if text.contains(drop) {
        return Some(Cow::Owned(text.chars().filter(|&c| !drop(c)).collect()));
    }
    Some(Cow::Borrowed(text))
}

fn split_scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let name = scheme.as_bytes();
    let well = name.first().is_some_and(u8::is_ascii_alphabetic)
        && name
            .iter()
            .all(|&b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
    well.then_some((scheme, rest))
}

fn known(scheme: &str) -> Option<&'static str> {
    ["http", "https"]
        .into_iter()
        .find(|known| scheme.eq_ignore_ascii_case(known))
}

fn push_authority(text: &mut String, scheme: &str, authority: &str) -> Option<()> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        write!(text, "[{}]", address.parse::<Ipv6Addr>().ok()?).ok()?;
        ("", port)
    } else {
        authority.split_at(authority.find(':').unwrap_or(authority.len()))
    };
    if !authority.starts_with('[') {
        push_host(text, host)?;
    }
    if port.is_empty() {
        return Some(());
    }
    push_port(text, scheme, port.strip_prefix(':')?)
}

fn push_host(text: &mut String, host: &str) -> Option<()> {
    let well = host
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'));
    if !well
        || host.is_empty()
        || host.len() > MAX_HOST
        || host.starts_with('.')
        || host.contains("..")
    {
        return None;
    }
    let last = host
        .trim_end_matches('.')
        .rsplit('.')
        .next()
        .unwrap_or(host);
    // Numbers written in other ways than a.b.c.d mean addresses too; nobody writes them honestly.
    if last.bytes().next().is_some_and(|b| b.is_ascii_digit()) && (is_number(last)) {
        host.parse::<Ipv4Addr>().ok()?;
    }
    text.extend(host.chars().map(|c| c.to_ascii_lowercase()));
    Some(())
}

fn is_number(label: &str) -> bool {
    let hex = label
        .strip_prefix("0x")
        .or_else(|| label.strip_prefix("0X"));
    hex.map_or_else(
        || label.bytes().all(|b| b.is_ascii_digit()),
        |digits| digits.bytes().all(|b| b.is_ascii_hexdigit()),
    )
}

fn push_port(text: &mut String, scheme: &str, port: &str) -> Option<()> {
    let digits = port.trim_start_matches('0');
    if port.is_empty() {
        return Some(());
    }
    if digits.len() > 5 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number = if digits.is_empty() {
        0
    } else {
        digits.parse::<u16>().ok()?
    };
    let default = if scheme == "https" { 443 } else { 80 };
    if number != default {
        write!(text, ":{number}").ok()?;
    }
    Some(())
}

/// 1 for `.`, 2 for `..`, 0 for any other segment; `%2e` is a dot.
fn dots(segment: &str) -> usize {
    if segment.len() > 6 || !segment.starts_with(['.', '%']) {
        return 0;
    }
    let mut rest = segment;
    let mut count = 0;
    while !rest.is_empty() {
        let dot = rest
            .strip_prefix('.')
            .or_else(|| rest.strip_prefix("%2e"))
            .or_else(|| rest.strip_prefix("%2E"));
        let Some(after) = dot else { return 0 };
        rest = after;
        count += 1;
    }
    if count > 2 { 0 } else { count }
}

/// Appends `text`, percent-encoding every byte that may not stand.
fn encode(out: &mut String, text: &str, stands: fn(u8) -> bool) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if stands(byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(DIGITS[usize::from(byte >> 4)]));
            out.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
}

const fn in_path(byte: u8) -> bool {
    byte > b' '
        && byte < 0x7f
        && !matches!(
            byte,
            b'"' | b'#' | b'<' | b'>' | b'?' | b'^' | b'`' | b'{' | b'}'
        )
}

const fn in_query(byte: u8) -> bool {
    byte > b' ' && byte < 0x7f && !matches!(byte, b'"' | b'#' | b'<' | b'>' | b'\'')
}

#[cfg(test)]
mod tests {
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
    fn what_browsers_forgive() {
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
            ],
        );
    }

    #[test]
    fn what_is_refused() {
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
            "//ex%61mple.com/",
            "//b\u{fc}cher.example/",
            "//example.com:99999/",
            "//example.com:8a/",
            "//[::1/",
            "//[::1]x/",
            "//2130706433/",
            "//0x7f.1/",
            "//127.1/",
            "//1.2.3.04/",
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
    fn length_is_bounded() {
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
    fn a_url_in_three_parts() {
        assert_eq!(
            split("https://h:8443/a/b?c=d/e"),
            Some(("https", "h:8443", "/a/b?c=d/e"))
        );
        for other in ["ftp://h/", "http:/h/", "http://h", "http:///x", ""] {
            assert_eq!(split(other), None, "{other}");
        }
    }
}
