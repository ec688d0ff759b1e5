//! Responses that programs build and queue. A response is immutable and may answer many requests.

use bytes::Bytes;
use tandem_http::Fields;

use crate::ffi::callbacks::BodyCallback;
use crate::name_value::NameValue;

/// The largest block of a body callback, and the block of one that names none, in bytes.
pub(crate) const MAX_BLOCK: u32 = 8192;

/// The largest list of fields, in bytes with 32 for each field: that of the session core.
const MAX_FIELDS: usize = 60 << 10;

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// The `:status` on the wire: the number, and the text if there is one.
    pub(crate) status_text: String,
    pub(crate) version: String,
    pub(crate) fields: Fields,
    pub(crate) body: Body,
}

/// The body of a response.
#[derive(Debug)]
pub(crate) enum Body {
    Bytes(Bytes),
    Callback(BodyCallback),
}

impl Response {
    /// Builds a response. `None` if it cannot be sent: a status outside 100 to 999, a line break in
    /// a text, an illegal field, or too many fields.
    pub(crate) fn new(
        status: i32,
        text: Option<&str>,
        version: &str,
        fields: Option<&NameValue>,
        body: Body,
    ) -> Option<Self> {
        let status = u16::try_from(status).ok()?;
        let legal = |text: &str| !text.bytes().any(|byte| byte < b' ' || byte == 0x7f);
        let texts_legal = legal(version) && !version.is_empty() && text.is_none_or(legal);
        if !(100..=999).contains(&status) || !texts_legal {
            return None;
        }
        let fields = fields.map_or_else(|| Some(Fields::new()), NameValue::to_fields)?;
        let status_text = match text {
            Some(text) => format!("{status} {text}"),
            None => status.to_string(),
        };
        let size = fields.text_len() + 32 * fields.len() + status_text.len() + version.len();
        (size <= MAX_FIELDS).then(|| Self {
            status,
            status_text,
            version: version.to_owned(),
            fields,
            body,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(status: i32, text: Option<&str>, version: &str) -> Option<Response> {
        Response::new(status, text, version, None, Body::Bytes(Bytes::new()))
    }

    #[test]
    fn status_text_follows_the_number() {
        let full = build(404, Some("Not Found"), "HTTP/1.1").expect("legal");
        assert_eq!(full.status_text, "404 Not Found");
        assert_eq!(
            build(200, None, "HTTP/1.1").expect("legal").status_text,
            "200"
        );
    }

    #[test]
    fn response_refuses_what_cannot_be_sent() {
        assert!(build(99, None, "HTTP/1.1").is_none());
        assert!(build(-1, None, "HTTP/1.1").is_none());
        assert!(build(1000, None, "HTTP/1.1").is_none());
        assert!(build(200, Some("a\r\nb"), "HTTP/1.1").is_none());
        assert!(build(200, None, "").is_none());
        assert!(build(200, None, "HTTP/1.1\n").is_none());
    }

    #[test]
    fn response_refuses_too_many_fields() {
        let list = NameValue::default();
        let long = std::ffi::CString::new(vec![b'x'; MAX_FIELDS]).expect("no NUL");
        list.add(c"a", &long);
        let body = Body::Bytes(Bytes::new());
        assert!(Response::new(200, None, "HTTP/1.1", Some(&list), body).is_none());
    }
}
