//! The rules of a style sheet that are read as a whole, from the text that [`super::css`] collected
//! of them.

use super::image::{Candidate, nearest};
use super::media::{self, Viewport, resolution};
use super::text::to_text;
use super::{Ask, Cors, Kind, Sink, urgency};
use std::borrow::Cow;

/// Stands before an address in collected text.
pub(super) const MARK_URL: u8 = 1;
/// Stands before a string in collected text.
pub(super) const MARK_STRING: u8 = 2;
/// Stands after either.
pub(super) const MARK_END: u8 = 3;

/// Returns true if a block under this media query list may apply; a list that was too long counts
/// as applying.
pub(super) fn applies(query: Option<&[u8]>, viewport: Viewport) -> bool {
    let Some(query) = query else { return true };
    media::matches(&to_text(query), viewport) != Some(false)
}

/// `@import`: an address or a string, then layer, conditions and media.
pub(super) fn import(text: &[u8], sink: &mut Sink) {
    let Some((raw, rest)) = first_token(text) else {
        return;
    };
    let rest = to_text(rest);
    let mut query = rest.trim();
    for function in ["layer", "supports"] {
        query = without_function(query, function);
    }
    let urgency = match media::matches(query, sink.viewport) {
        Some(false) => urgency::UNUSED_STYLE,
        _ => urgency::IMPORT,
    };
    sink.offer(&unescape(raw), Ask::new(Kind::Style, urgency));
}

fn without_function<'a>(text: &'a str, name: &str) -> &'a str {
    let Some(head) = text
        .get(..name.len())
        .filter(|head| head.eq_ignore_ascii_case(name))
    else {
        return text;
    };
    let rest = &text[head.len()..];
    if !rest.starts_with('(') {
        return if rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-') {
            text
        } else {
            rest.trim_start()
        };
    }
    let mut depth = 0_usize;
    for (at, c) in rest.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return rest[at + 1..].trim_start();
        }
    }
    ""
}

/// The block of `@font-face`: of the last list of sources, the first that a browser takes. Fonts
/// that hold no letter of ASCII wait until the page is known to need them, which the style sheet
/// does not tell.
pub(super) fn font_face(text: &[u8], sink: &mut Sink) {
    let mut chosen = None;
    let mut letters = true;
    for declaration in split_marked(text, b';') {
        let Some(colon) = declaration.iter().position(|&b| b == b':') else {
            continue;
        };
        let (name, value) = (declaration[..colon].trim_ascii(), &declaration[colon + 1..]);
        if name.eq_ignore_ascii_case(b"src") {
            chosen = split_marked(value, b',').find_map(font_source);
        } else if name.eq_ignore_ascii_case(b"unicode-range") {
            letters = has_letters(&to_text(value));
        }
    }
    if let Some(raw) = chosen.filter(|_| letters) {
        sink.offer(
            &unescape(raw),
            Ask::new(Kind::Font, urgency::FACE).cors(Cors::Anonymous),
        );
    }
}

/// The address of one source of a font if its format is known to browsers.
fn font_source(component: &[u8]) -> Option<&[u8]> {
    // The name in `local("…")` is no address.
    let (raw, rest) = first_token(component).filter(|_| component.contains(&MARK_URL))?;
    let rest = to_text(rest).to_ascii_lowercase();
    let known = match rest.find("format(") {
        Some(at) => {
            ["woff", "truetype", "opentype", "collection"]
                .iter()
                .any(|name| rest[at..].contains(name))
                && !rest[at..].contains("embedded")
        }
        None => {
            let path = raw
                .split(|&b| matches!(b, b'?' | b'#'))
                .next()
                .unwrap_or(raw);
            !path.ends_with(b".eot") && !path.ends_with(b".svg")
        }
    };
    known.then_some(raw)
}

/// Returns true if ranges such as `U+0000-00FF, U+131, U+4??` contain a letter of ASCII.
fn has_letters(ranges: &str) -> bool {
    ranges.split(',').any(|range| {
        let range = range.trim();
        let Some(digits) = range
            .strip_prefix("U+")
            .or_else(|| range.strip_prefix("u+"))
        else {
            return true;
        };
        let (low, high) = digits.split_once('-').unwrap_or((digits, digits));
        let bound = |text: &str, wild| u32::from_str_radix(&text.trim().replace('?', wild), 16);
        match (bound(low, "0"), bound(high, "F")) {
            (Ok(low), Ok(high)) => low <= u32::from('z') && high >= u32::from('A'),
            _ => true,
        }
    })
}

/// The inside of `image-set()`: of the formats that are shown, the resolution that suits.
pub(super) fn image_set(text: &[u8], urgency: u8, sink: &mut Sink) {
    let mut urls = Vec::new();
    for component in split_marked(text, b',') {
        let Some((raw, rest)) = first_token(component) else {
            continue;
        };
        let rest = to_text(rest);
        let mut density = 1.0;
        let mut shown = true;
        for word in rest.split_ascii_whitespace() {
            let word = word.trim_end_matches(')');
            if let Some(kind) = word.strip_prefix("type(") {
                shown = sink
                    .formats
                    .shows(kind.trim_matches(|c: char| c <= ' ' || matches!(c, '"' | '\'')));
            } else if let Some(found) = resolution(word) {
                density = found;
            }
        }
        if shown {
            urls.push((unescape(raw), density));
        }
    }
    let candidates = urls
        .iter()
        .map(|(url, density)| Candidate {
            url,
            density: *density,
        })
        .collect();
    if let Some(url) = nearest(candidates, sink.viewport.ratio) {
        sink.offer(url, Ask::new(Kind::Image, urgency));
    }
}

/// A pointer is only fetched once it is over its element.
pub(super) fn image_urgency(url: &str, usual: u8) -> u8 {
    let path = url.split(['?', '#']).next().unwrap_or(url);
    if path.ends_with(".cur") {
        urgency::POINTER
    } else {
        usual
    }
}

/// Returns the first address or string in collected text, and the rest of the text.
fn first_token(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = text
        .iter()
        .position(|&b| matches!(b, MARK_URL | MARK_STRING))?
        + 1;
    let length = text[start..].iter().position(|&b| b == MARK_END)?;
    Some((&text[start..start + length], &text[start + length + 1..]))
}

/// Parts of collected text between `separator`s that stand neither between marks nor in
/// parentheses.
fn split_marked(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut inside = false;
    let mut depth = 0_usize;
    text.split(move |&byte| {
        match byte {
            MARK_URL | MARK_STRING => inside = true,
            MARK_END => inside = false,
            b'(' if !inside => depth += 1,
            b')' if !inside => depth = depth.saturating_sub(1),
            _ => {}
        }
        !inside && depth == 0 && byte == separator
    })
}

/// An address or string without its escapes.
pub(super) fn unescape(raw: &[u8]) -> Cow<'_, str> {
    let text = to_text(raw);
    if !text.contains('\\') {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = &*text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = take_escape(&rest[at + 1..], &mut out);
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Appends the character that the text after a backslash stands for, and returns the rest.
fn take_escape<'a>(text: &'a str, out: &mut String) -> &'a str {
    let digits = text
        .bytes()
        .take(6)
        .take_while(u8::is_ascii_hexdigit)
        .count();
    if digits == 0 {
        let mut rest = text.chars();
        // An escaped line end is nothing.
        out.extend(rest.next().filter(|c| !matches!(c, '\n' | '\r' | '\u{c}')));
        return rest.as_str();
    }
    let code = u32::from_str_radix(&text[..digits], 16).unwrap_or(0);
    out.push(
        char::from_u32(code)
            .filter(|&c| c != '\0')
            .unwrap_or(char::REPLACEMENT_CHARACTER),
    );
    let rest = &text[digits..];
    rest.strip_prefix("\r\n")
        .or_else(|| rest.strip_prefix([' ', '\t', '\n', '\r', '\u{c}']))
        .unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes() {
        let cases = [
            ("plain.png", "plain.png"),
            ("a\\ b\\(c\\).png", "a b(c).png"),
            ("\\66oo\\2e png\\000041\\42", "foo.pngAB"),
            ("a\\\nb", "ab"),
            ("\\0\\d800 x\\110000", "\u{fffd}\u{fffd}x\u{fffd}"),
            ("a\\", "a"),
            ("\\\u{e4}", "\u{e4}"),
        ];
        for (raw, text) in cases {
            assert_eq!(unescape(raw.as_bytes()), text, "{raw}");
        }
    }

    #[test]
    fn letters_in_ranges() {
        for (ranges, letters) in [
            ("U+0000-00FF, U+0131", true),
            ("U+0400-045F", false),
            ("U+1F00-1FFF, u+41", true),
            ("U+4??", false),
            ("U+??", true),
            ("U+26", false),
            ("nonsense", true),
        ] {
            assert_eq!(has_letters(ranges), letters, "{ranges}");
        }
    }

    #[test]
    fn functions_before_a_query() {
        assert_eq!(without_function("layer(a.b) screen", "layer"), "screen");
        assert_eq!(without_function("LAYER screen", "layer"), "screen");
        assert_eq!(without_function("layered", "layer"), "layered");
        assert_eq!(
            without_function("supports((a:b) and (c:d)) print", "supports"),
            "print"
        );
        assert_eq!(without_function("supports((a:b", "supports"), "");
        assert_eq!(without_function("l\u{e4}yer", "layer"), "l\u{e4}yer");
    }
}
