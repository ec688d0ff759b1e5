//! Binary HTTP messages of uniform sizes (RFC 9292).
//!
//! Messages are padded to size classes: the powers of two from 4 KiB on. A relay thus learns the
//! class of a message only.

use std::fmt;
use std::io::Cursor;

use bhttp::{Message, Mode, StatusCode};
use bytes::Bytes;
use tandem_http::Fields;

/// The smallest size class in bytes.
const SMALLEST_CLASS: usize = 4096;

/// The most bytes that a message has beside its content: control data and fields.
pub const MAX_HEAD: usize = 16 << 10;

/// The reason why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The message is malformed.
    #[error("the binary HTTP message is malformed")]
    Malformed,
    /// The control data and the fields are too long.
    #[error("the binary HTTP message has more than 16 KiB of fields")]
    TooLong,
    /// The length is no size class, or the padding has other bytes than zeros.
    #[error("the binary HTTP message is not padded to a size class")]
    Padding,
}

/// A request.
#[derive(Clone, PartialEq, Eq)]
pub struct Request {
    /// The method.
    pub method: String,
    /// The host, with its port.
    pub authority: String,
    /// The path with its query.
    pub path: String,
    /// The fields.
    pub fields: Fields,
    /// The content.
    pub body: Bytes,
}

/// A response.
#[derive(Clone, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The fields.
    pub fields: Fields,
    /// The content.
    pub body: Bytes,
}

/// Hides the content.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Request")
    }
}

/// Hides the content.
impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Response")
    }
}

impl Request {
    /// Reads a padded request.
    ///
    /// # Errors
    /// Fails for a malformed message, a wrong length, and fields above [`MAX_HEAD`].
    pub fn read(input: &[u8]) -> Result<Self, MessageError> {
        let message = read(input)?;
        let control = message.control();
        let text = |part: Option<&[u8]>| {
            let part = part.filter(|part| part.iter().all(u8::is_ascii_graphic));
            let part = part.map(|part| String::from_utf8_lossy(part).into_owned());
            part.ok_or(MessageError::Malformed)
        };
        Ok(Self {
            method: text(control.method())?,
            authority: text(control.authority())?,
            path: text(control.path())?,
            fields: fields(&message)?,
            body: Bytes::copy_from_slice(message.content()),
        })
    }

    /// Returns the padded message.
    ///
    /// # Errors
    /// Fails for fields above [`MAX_HEAD`].
    pub fn write(&self) -> Result<Vec<u8>, MessageError> {
        let message = Message::request(
            self.method.clone().into_bytes(),
            b"https".to_vec(),
            self.authority.clone().into_bytes(),
            self.path.clone().into_bytes(),
        );
        write(message, &self.fields, &self.body)
    }
}

impl Response {
    /// Reads a padded response.
    ///
    /// # Errors
    /// Fails for a malformed message, a wrong length, and fields above [`MAX_HEAD`].
    pub fn read(input: &[u8]) -> Result<Self, MessageError> {
        let message = read(input)?;
        let status = message.control().status();
        Ok(Self {
            status: status.ok_or(MessageError::Malformed)?.code(),
            fields: fields(&message)?,
            body: Bytes::copy_from_slice(message.content()),
        })
    }

    /// Returns the padded message.
    ///
    /// # Errors
    /// Fails for fields above [`MAX_HEAD`], and for a status code outside 200 to 599.
    pub fn write(&self) -> Result<Vec<u8>, MessageError> {
        let status = StatusCode::try_from(self.status).map_err(|_| MessageError::Malformed)?;
        if !(200..600).contains(&self.status) {
            return Err(MessageError::Malformed);
        }
        write(Message::response(status), &self.fields, &self.body)
    }
}

/// Returns the size class of a length: the smallest class that has room for it.
pub const fn class_of(length: usize) -> usize {
    if length <= SMALLEST_CLASS {
        return SMALLEST_CLASS;
    }
    match length.checked_next_power_of_two() {
        Some(class) => class,
        None => usize::MAX,
    }
}

/// Returns the length of the largest padded message with `body` bytes of content.
pub const fn longest(body: usize) -> usize {
    class_of(body.saturating_add(MAX_HEAD))
}

fn read(input: &[u8]) -> Result<Message, MessageError> {
    if class_of(input.len()) != input.len() {
        return Err(MessageError::Padding);
    }
    let mut cursor = Cursor::new(input);
    let message = Message::read_bhttp(&mut cursor).map_err(|_| MessageError::Malformed)?;
    let read = usize::try_from(cursor.position()).unwrap_or(usize::MAX);
    let padding = input.get(read..).unwrap_or_default();
    if padding.iter().any(|byte| *byte != 0) {
        return Err(MessageError::Padding);
    }
    match read.saturating_sub(message.content().len()) {
        0..=MAX_HEAD => Ok(message),
        _ => Err(MessageError::TooLong),
    }
}

fn write(mut message: Message, fields: &Fields, body: &[u8]) -> Result<Vec<u8>, MessageError> {
    for field in fields.iter() {
        message.put_header(field.name, field.value);
    }
    message.write_content(body);
    let mut output = Vec::new();
    message
        .write_bhttp(Mode::KnownLength, &mut output)
        .map_err(|_| MessageError::Malformed)?;
    if output.len() - body.len() > MAX_HEAD {
        return Err(MessageError::TooLong);
    }
    output.resize(class_of(output.len()), 0);
    Ok(output)
}

/// Returns the fields of a message: names in lower case, values without control characters.
fn fields(message: &Message) -> Result<Fields, MessageError> {
    let mut fields = Fields::new();
    for field in message.header().iter() {
        let is_name = |byte: &u8| {
            byte.is_ascii_digit() || byte.is_ascii_lowercase() || matches!(byte, b'-' | b'_')
        };
        let is_valid = !field.name().is_empty()
            && field.name().iter().all(is_name)
            && field
                .value()
                .iter()
                .all(|byte| (b' '..=b'~').contains(byte));
        if !is_valid {
            return Err(MessageError::Malformed);
        }
        fields.push(field.name(), field.value().trim_ascii());
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(body: Vec<u8>) -> Request {
        let mut fields = Fields::new();
        fields.push("content-type", "text/plain");
        Request {
            method: "POST".into(),
            authority: "gateway.example".into(),
            path: "/submissions".into(),
            fields,
            body: body.into(),
        }
    }

    #[test]
    fn messages_have_the_lengths_of_classes() {
        for (length, class) in [(0, 4096), (4096, 4096), (4097, 8192), (70_000, 131_072)] {
            assert_eq!(class_of(length), class);
        }
        for length in [0, 1000, 5000, 100_000] {
            let written = request(vec![b'x'; length]).write().expect("short fields");
            assert!(written.len().is_power_of_two() && written.len() <= longest(length));
        }
        assert_eq!(class_of(usize::MAX), usize::MAX);
    }

    #[test]
    fn padding_has_zeros_only() {
        let mut written = request(b"data".to_vec()).write().expect("short fields");
        assert_eq!(Request::read(&written[..4095]), Err(MessageError::Padding));
        written[4095] = 1;
        assert_eq!(Request::read(&written), Err(MessageError::Padding));
    }

    #[test]
    fn fields_with_line_breaks_are_refused() {
        let mut message = Message::request(
            b"POST".to_vec(),
            b"https".to_vec(),
            b"gateway".to_vec(),
            b"/".to_vec(),
        );
        message.put_header("content-type", "a\r\nx: y");
        let mut written = Vec::new();
        let known = Mode::KnownLength;
        message.write_bhttp(known, &mut written).expect("a vector");
        written.resize(4096, 0);
        assert_eq!(Request::read(&written), Err(MessageError::Malformed));
    }

    #[test]
    fn long_fields_are_refused() {
        let mut long = request(Vec::new());
        long.fields.push("x", "y".repeat(MAX_HEAD));
        assert_eq!(long.write(), Err(MessageError::TooLong));
    }

    #[test]
    fn response_round_trips() {
        let response = Response {
            status: 202,
            fields: request(Vec::new()).fields,
            body: Bytes::from_static(b"{}"),
        };
        let written = response.write().expect("short fields");
        let informational = Response {
            status: 103,
            ..response.clone()
        };
        assert_eq!(Response::read(&written), Ok(response));
        assert_eq!(informational.write(), Err(MessageError::Malformed));
    }

    proptest! {
        #[test]
        fn requests_round_trip(body in proptest::collection::vec(any::<u8>(), 0..9000)) {
            let request = request(body);
            let written = request.write().expect("short fields");
            prop_assert_eq!(Request::read(&written), Ok(request));
        }

        #[test]
        fn message_parsers_survive_any_input(
            start in proptest::collection::vec(any::<u8>(), 0..100)
        ) {
            let mut input = start;
            input.resize(4096, 0);
            let _ = Request::read(&input);
            let _ = Response::read(&input);
        }
    }
}
