//! Bytes of an attribute as text: character references (HTML section 13.2.5.72) and encodings.

use std::borrow::Cow;

/// Names of U+00A0 to U+00FF, in order; these stand without a semicolon too.
const LATIN: [&str; 96] = [
    "nbsp", "iexcl", "cent", "pound", "curren", "yen", "brvbar", "sect", "uml", "copy", "ordf",
    "laquo", "not", "shy", "reg", "macr", "deg", "plusmn", "sup2", "sup3", "acute", "micro",
    "para", "middot", "cedil", "sup1", "ordm", "raquo", "frac14", "frac12", "frac34", "iquest",
    "Agrave", "Aacute", "Acirc", "Atilde", "Auml", "Aring", "AElig", "Ccedil", "Egrave", "Eacute",
    "Ecirc", "Euml", "Igrave", "Iacute", "Icirc", "Iuml", "ETH", "Ntilde", "Ograve", "Oacute",
    "Ocirc", "Otilde", "Ouml", "times", "Oslash", "Ugrave", "Uacute", "Ucirc", "Uuml", "Yacute",
    "THORN", "szlig", "agrave", "aacute", "acirc", "atilde", "auml", "aring", "aelig", "ccedil",
    "egrave", "eacute", "ecirc", "euml", "igrave", "iacute", "icirc", "iuml", "eth", "ntilde",
    "ograve", "oacute", "ocirc", "otilde", "ouml", "divide", "oslash", "ugrave", "uacute", "ucirc",
    "uuml", "yacute", "thorn", "yuml",
];
/// The other names that need no semicolon.
const OLD: [(&str, char); 10] = [
    ("amp", '&'),
    ("AMP", '&'),
    ("lt", '<'),
    ("LT", '<'),
    ("gt", '>'),
    ("GT", '>'),
    ("quot", '"'),
    ("QUOT", '"'),
    ("COPY", '\u{a9}'),
    ("REG", '\u{ae}'),
];
/// Character references that need a semicolon: of the two thousand, those that occur in addresses
/// and style sheets.
const NEW: [(&str, char); 31] = [
    ("apos", '\''),
    ("sol", '/'),
    ("bsol", '\\'),
    ("colon", ':'),
    ("semi", ';'),
    ("quest", '?'),
    ("equals", '='),
    ("num", '#'),
    ("period", '.'),
    ("comma", ','),
    ("lowbar", '_'),
    ("UnderBar", '_'),
    ("percnt", '%'),
    ("plus", '+'),
    ("excl", '!'),
    ("ast", '*'),
    ("dollar", '$'),
    ("commat", '@'),
    ("lpar", '('),
    ("rpar", ')'),
    ("lsqb", '['),
    ("rsqb", ']'),
    ("lbrack", '['),
    ("rbrack", ']'),
    ("lcub", '{'),
    ("rcub", '}'),
    ("vert", '|'),
    ("grave", '`'),
    ("Tab", '\t'),
    ("NewLine", '\n'),
    ("hyphen", '\u{2010}'),
];
/// Letters of the longest name above.
const LONGEST: usize = 8;

/// The value of an attribute as it stands in the page, with character references replaced.
pub(super) fn decode(bytes: &[u8]) -> Cow<'_, str> {
    let mut text = to_text(bytes);
    if memchr::memchr(0, text.as_bytes()).is_some() {
        text = Cow::Owned(text.replace('\0', "\u{fffd}"));
    }
    let Some(first) = text.find('&') else {
        return text;
    };
    let mut out = String::with_capacity(text.len());
    out.push_str(&text[..first]);
    let mut rest = &text[first..];
    while let Some(after) = rest.strip_prefix('&') {
        match reference(after) {
            Some((c, length)) => {
                out.push(c);
                rest = &after[length..];
            }
            None => {
                out.push('&');
                rest = after;
            }
        }
        let next = rest.find('&').unwrap_or(rest.len());
        out.push_str(&rest[..next]);
        rest = &rest[next..];
    }
    Cow::Owned(out)
}

/// UTF-8, or else ISO 8859-1. A browser writes the query of a reference in the page's own encoding:
/// its bytes stay.
pub(super) fn to_text(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(bytes.len() * 2);
    let query = memchr::memchr(b'?', bytes).unwrap_or(bytes.len());
    out.extend(bytes[..query].iter().map(|&b| char::from(b)));
    for &byte in &bytes[query..] {
        if byte.is_ascii() {
            out.push(char::from(byte));
        } else {
            out.extend(['%', digit(byte >> 4), digit(byte & 15)]);
        }
    }
    Cow::Owned(out)
}

fn digit(value: u8) -> char {
    char::from_digit(u32::from(value), 16).map_or('0', |c| c.to_ascii_uppercase())
}

/// The character that the text after an ampersand names, and how many bytes of it that takes.
fn reference(text: &str) -> Option<(char, usize)> {
    if let Some(number) = text.strip_prefix('#') {
        return numeric(number).map(|(c, length)| (c, length + 1));
    }
    let length = text
        .bytes()
        .take(LONGEST + 1)
        .take_while(u8::is_ascii_alphanumeric)
        .count();
    let (name, after) = text.split_at(length);
    let old = OLD
        .iter()
        .find(|(known, _)| *known == name)
        .map(|&(_, c)| c)
        .or_else(|| latin(name));
    if after.starts_with(';') {
        let c = old.or_else(|| {
            NEW.iter()
                .find(|(known, _)| *known == name)
                .map(|&(_, c)| c)
        })?;
        return Some((c, length + 1));
    }
    // In attributes, `&copy=1` is no reference: it is a query.
    if after.starts_with('=') {
        None
    } else {
        old.map(|c| (c, length))
    }
}

fn latin(name: &str) -> Option<char> {
    let at = LATIN.iter().position(|known| *known == name)?;
    char::from_u32(0xa0 + u32::try_from(at).ok()?)
}

fn numeric(text: &str) -> Option<(char, usize)> {
    let (radix, prefix) = if text.starts_with(['x', 'X']) {
        (16, 1)
    } else {
        (10, 0)
    };
    let digits = text[prefix..]
        .bytes()
        .take_while(|b| char::from(*b).is_digit(radix))
        .count();
    if digits == 0 {
        return None;
    }
    let end = prefix + digits;
    let code = u32::from_str_radix(&text[prefix..end], radix).unwrap_or(u32::MAX);
    let c = char::from_u32(code)
        .filter(|&c| c != '\0')
        .unwrap_or(char::REPLACEMENT_CHARACTER);
    Some((c, end + usize::from(text[end..].starts_with(';'))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn character_references() {
        let cases = [
            ("plain", "plain"),
            ("?a=1&amp;b=2&#38;c=3&#x26;d=4&#X26;e", "?a=1&b=2&c=3&d=4&e"),
            ("?a&b&amp", "?a&b&"),
            (
                "?a=1&copy=2&reg=3&ampx=4&notit;",
                "?a=1&copy=2&reg=3&ampx=4&notit;",
            ),
            ("&lt;&gt;&quot;&apos;&apos", "<>\"'&apos"),
            (
                "caf&eacute;/&uuml/&Auml;&yuml;",
                "caf\u{e9}/\u{fc}/\u{c4}\u{ff}",
            ),
            ("&sol;a&period;png&quest;b&equals;c", "/a.png?b=c"),
            (
                "&#0;&#xD800;&#99999999999;&#;&#x;",
                "\u{fffd}\u{fffd}\u{fffd}&#;&#x;",
            ),
            ("&#65&#x42", "AB"),
            ("&&&", "&&&"),
            ("a\0b", "a\u{fffd}b"),
            ("&\u{e4};&a\u{e4}", "&\u{e4};&a\u{e4}"),
        ];
        for (text, decoded) in cases {
            assert_eq!(decode(text.as_bytes()), decoded, "{text}");
        }
    }

    #[test]
    fn other_encodings() {
        assert_eq!(decode(b"/caf\xe9?x=\xe9&amp;y"), "/caf\u{e9}?x=%E9&y");
        assert_eq!(
            decode("/caf\u{e9}?x=\u{e9}".as_bytes()),
            "/caf\u{e9}?x=\u{e9}"
        );
    }
}
