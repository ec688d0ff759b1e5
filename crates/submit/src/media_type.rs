//! Media types: that of a submission, as `Content-Type` has it (RFC 9110 section 8.3.1), and those
//! that the rights grant.

use tandem_http::message::is_token;

/// The longest name of a type or subtype, in bytes (RFC 6838 section 4.2).
const MAX_NAME: usize = 127;

/// Returns the type and subtype of a value in lower case. Returns `None` unless the value is one
/// valid media type: servers may take any part of a list for its type.
pub(crate) fn essence(value: &[u8]) -> Option<String> {
    let value = value.trim_ascii();
    let end = value.iter().position(|byte| *byte == b';');
    let (essence, parameters) = value.split_at(end.unwrap_or(value.len()));
    let essence = std::str::from_utf8(essence.trim_ascii_end()).ok()?;
    let (kind, subtype) = essence.split_once('/')?;
    let is_valid = is_name(kind) && is_name(subtype) && are_parameters(parameters);
    is_valid.then(|| essence.to_ascii_lowercase())
}

/// Returns true for a type and subtype without parameters, and for all subtypes of a type, such as
/// `image/*`.
pub(crate) fn is_range(text: &str) -> bool {
    match text.split_once('/') {
        Some((kind, subtype)) => is_name(kind) && (subtype == "*" || is_name(subtype)),
        None => false,
    }
}

/// Returns true for the names that can be registered (RFC 6838 section 4.2). `*` is none of them.
fn is_name(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte);
    text.len() <= MAX_NAME
        && text.starts_with(|letter: char| letter.is_ascii_alphanumeric())
        && text.bytes().all(is_inner)
}

/// Returns true if the text is a sequence of semicolons, each with or without a parameter.
fn are_parameters(mut text: &[u8]) -> bool {
    while let Some(rest) = text.strip_prefix(b";") {
        let rest = rest.trim_ascii_start();
        text = match rest.first() {
            None | Some(b';') => rest,
            Some(_) => match after_parameter(rest) {
                Some(rest) => rest.trim_ascii_start(),
                None => return false,
            },
        };
    }
    text.is_empty()
}

/// Returns the rest of a text that begins with a parameter.
fn after_parameter(text: &[u8]) -> Option<&[u8]> {
    let value = after_token(text)?.strip_prefix(b"=")?;
    match value.strip_prefix(b"\"") {
        Some(quoted) => after_quoted(quoted),
        None => after_token(value),
    }
}

fn after_token(text: &[u8]) -> Option<&[u8]> {
    let length = text.iter().take_while(|byte| is_token(**byte)).count();
    (length > 0).then(|| &text[length..])
}

/// Returns the rest after the end of a quoted string. Its characters are printable ASCII, as in all
/// fields that pass the gateway.
fn after_quoted(text: &[u8]) -> Option<&[u8]> {
    let mut is_escaped = false;
    for (at, byte) in text.iter().enumerate() {
        match byte {
            b' '..=b'~' if is_escaped => is_escaped = false,
            b'"' => return Some(&text[at + 1..]),
            b'\\' => is_escaped = true,
            b' '..=b'~' => {}
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn essence_is_that_of_one_media_type() {
        for (value, expected) in [
            ("image/png", "image/png"),
            (" IMAGE/Svg+XML ", "image/svg+xml"),
            ("text/plain;charset=utf-8", "text/plain"),
            ("text/plain ; a=b;; c=\"d\" ;", "text/plain"),
            ("video/mp4; codecs=\"avc1.42E01E, mp4a.40.2\"", "video/mp4"),
            ("a/b; c=\"\\\"; \\\\\"", "a/b"),
            ("application/vnd.a-b_c", "application/vnd.a-b_c"),
        ] {
            assert_eq!(essence(value.as_bytes()).as_deref(), Some(expected));
        }
    }

    #[test]
    fn lists_ranges_and_malformed_values_have_no_essence() {
        let long = format!("image/{}", "x".repeat(MAX_NAME + 1));
        for value in [
            "",
            "image",
            "image/",
            "/png",
            "image/*",
            "*/*",
            "image/png, text/html",
            "image/png,text/html",
            "image/png; a=b, text/html",
            "image/png; a=\"b\", text/html",
            "image/png;, text/html",
            "image/png text/html",
            "image/png/html",
            "image /png",
            "image/ png",
            "image/png; a",
            "image/png; a=",
            "image/png; a =b",
            "image/png; =b",
            "image/png; a=\"b",
            "image/png; a=\"b\\\"",
            "image/png; a=\"b\"c",
            "image/png; a=\"\u{e9}\"",
            "image/png; a=\"\\\t\"",
            "imag\u{e9}/png",
            &long,
        ] {
            assert_eq!(essence(value.as_bytes()), None, "{value}");
        }
    }

    #[test]
    fn ranges_have_no_parameters_and_no_lists() {
        for text in ["image/png", "Image/*", "application/ld+json"] {
            assert!(is_range(text), "{text}");
        }
        for text in [
            "*/*", "*", "image", "image/", "image/p*", "a/b;c=d", "a/b, c/d", " a/b",
        ] {
            assert!(!is_range(text), "{text}");
        }
    }
}
