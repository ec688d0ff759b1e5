//! The fields that pass the gateway. All others could identify the client and are removed.

use tandem_http::Fields;

/// The fields of a submission and of an answer that pass the gateway, in both directions.
pub const PASSED: [&str; 3] = ["content-type", "content-encoding", "content-language"];

/// The largest total size of these fields, in bytes of their text.
pub const MAX_LENGTH: usize = 1024;

/// Returns the fields that pass. A field with several lines keeps its first line. Returns `None`
/// if they are longer than [`MAX_LENGTH`], or if a value is not printable ASCII.
pub fn passed(fields: &Fields) -> Option<Fields> {
    let mut kept = Fields::new();
    for name in PASSED {
        if let Some(value) = fields.get(name) {
            let is_visible = |byte: &u8| (b' '..=b'~').contains(byte);
            if !value.iter().all(is_visible) {
                return None;
            }
            kept.push(name, value.trim_ascii());
        }
    }
    (kept.text_len() <= MAX_LENGTH).then_some(kept)
}

/// Writes fields as lines, for a store.
pub fn write(fields: &Fields) -> Vec<u8> {
    let mut text = Vec::new();
    for field in fields.iter() {
        text.extend_from_slice(field.name.as_ref());
        text.extend_from_slice(b": ");
        text.extend_from_slice(field.value);
        text.push(b'\n');
    }
    text
}

/// Reads the lines of [`write()`]. Other lines and fields that must not pass are left out.
pub fn read(text: &[u8]) -> Fields {
    let mut fields = Fields::new();
    for line in text.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if PASSED.iter().any(|passed| passed.as_bytes() == name) {
            fields.push(name, value);
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_client_are_removed() {
        let mut fields = Fields::new();
        for (name, value) in [
            ("authorization", "Bearer secret"),
            ("content-type", "text/plain"),
            ("cookie", "a=b"),
            ("user-agent", "Somebody"),
            ("content-language", "de"),
            ("x-forwarded-for", "192.0.2.1"),
        ] {
            fields.push(name, value);
        }
        let kept = passed(&fields).expect("short fields");
        let names: Vec<&[u8]> = kept.iter().map(|field| field.name).collect();
        assert_eq!(names, [b"content-type".as_slice(), b"content-language"]);
        assert_eq!(read(&write(&kept)), kept);
    }

    #[test]
    fn long_and_binary_fields_are_refused() {
        for value in [
            "x".repeat(MAX_LENGTH),
            "caf\u{e9}".to_owned(),
            "a\tb".to_owned(),
        ] {
            let mut fields = Fields::new();
            fields.push("content-type", value);
            assert!(passed(&fields).is_none());
        }
    }
}
