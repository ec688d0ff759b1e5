//! The fields with which the two proxies agree on a coded body. They never leave the pair.
//!
//! ```text
//!  client ─▶ gateway  tandem-accept: zstd      the client decodes the response, and its pushes
//!                     tandem-accept: recode    it also takes decoded bodies in place of gzip
//!                     tandem-dictionary: NAME  it holds this version of the body
//!  gateway ─▶ client  tandem-coded: zstd       the body is one zstd frame
//!                     tandem-dictionary: NAME  the frame needs this version of the body
//!                     tandem-length: 12345     its length before, in place of Content-Length
//!                     vary: tandem-accept      so that no cache between the two mixes them up
//!                     vary: tandem-dictionary  the same, for a frame that needs a version
//! ```
//!
//! A gateway without support removes the first field, and a client without support never sends it.
//! A relay passes all of them on.

use tandem_http::message::content_length;
use tandem_http::{Fields, ResponseHead};

use crate::{CodingError, Name};

/// The field by which a client offers to decode bodies.
const ACCEPT: &str = "tandem-accept";

/// The field of a coded body.
const CODED: &str = "tandem-coded";

/// The field with the name of a dictionary.
const DICTIONARY: &str = "tandem-dictionary";

/// The value of this field in a request before its session is known.
const ASKED: &str = "?";

/// The field with the length of a coded body before its coding.
const LENGTH: &str = "tandem-length";

/// The field with the length of a body.
const CONTENT_LENGTH: &str = "content-length";

/// The name of the coding.
const ZSTD: &str = "zstd";

/// The token of a client that permits the decoding of gzip.
const RECODE: &str = "recode";

/// Adds the offer to decode bodies to a request. With `permits_recoding`, bodies with gzip may lose
/// that coding.
pub fn offer(fields: &mut Fields, permits_recoding: bool) {
    let value = if permits_recoding {
        "zstd, recode"
    } else {
        ZSTD
    };
    fields.set(ACCEPT, value);
}

/// Marks a request whose session decides about the version that it names. The mark never leaves the
/// client.
pub fn ask_dictionary(fields: &mut Fields) {
    fields.set(DICTIONARY, ASKED);
}

/// Returns whether [`ask_dictionary`] marked a request.
pub fn asks_dictionary(fields: &Fields) -> bool {
    fields.get(DICTIONARY) == Some(ASKED.as_bytes())
}

/// Sets or removes the name of the version that the client holds. The field stays out of the tables
/// of header compression, since each value is used for one URL only.
pub fn set_dictionary(fields: &mut Fields, name: Option<Name>) {
    fields.remove(DICTIONARY);
    if let Some(name) = name {
        fields.push_sensitive(DICTIONARY, name.encode());
    }
}

/// Adds the name of the version that a coded body needs to its head.
pub fn need_dictionary(head: &mut ResponseHead, name: Name) {
    head.fields.push(DICTIONARY, name.encode());
    head.fields.push("vary", DICTIONARY);
}

/// Returns true if a request has an offer of any kind, valid or not.
pub fn has_offer(fields: &Fields) -> bool {
    fields.contains(ACCEPT)
}

/// The offer of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// The version of the body that the client holds.
    pub version: Option<Name>,
    /// True if bodies with gzip may lose that coding.
    pub permits_recoding: bool,
}

/// Removes the offer from a request. Returns it if it is valid. An unknown form of a version counts
/// as none.
pub fn take_offer(fields: &mut Fields) -> Option<Offer> {
    let is_valid = fields.has_token(ACCEPT, ZSTD);
    let version = fields.get(DICTIONARY).and_then(Name::parse);
    let permits_recoding = fields.has_token(ACCEPT, RECODE);
    fields.remove(ACCEPT);
    fields.remove(DICTIONARY);
    is_valid.then_some(Offer {
        version,
        permits_recoding,
    })
}

/// Changes the head of a response to that of a coded body.
pub fn mark(head: &mut ResponseHead) {
    let mut fields = renamed(&head.fields, CONTENT_LENGTH, LENGTH);
    fields.push(CODED, ZSTD);
    fields.push("vary", ACCEPT);
    head.fields = fields;
}

/// The coded body that follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodedBody {
    /// The length in bytes before the coding, if the origin stated it.
    pub length: Option<u64>,
    /// The dictionary that the body needs.
    pub dictionary: Option<Name>,
}

/// Restores the head that the gateway had before [`mark`]. Returns `None` and changes nothing if
/// the body is not coded.
///
/// # Errors
/// Fails if the coding is unknown, or if a length or name is malformed.
pub fn restore(head: &mut ResponseHead) -> Result<Option<CodedBody>, CodingError> {
    let codings: Vec<_> = head.fields.get_all(CODED).collect();
    match codings[..] {
        [] => return Ok(None),
        [coding] if coding == ZSTD.as_bytes() => {}
        _ => return Err(CodingError::Head),
    }
    drop(codings);
    let name = head.fields.get(DICTIONARY).map(Name::parse);
    let dictionary = match name {
        Some(None) => return Err(CodingError::Head),
        name => name.flatten(),
    };
    let mut fields = Fields::with_capacity(head.fields.len(), head.fields.text_len());
    for field in renamed(&head.fields, LENGTH, CONTENT_LENGTH).iter() {
        let is_ours = [CODED, DICTIONARY].map(str::as_bytes).contains(&field.name)
            || (field.name == b"vary"
                && [ACCEPT, DICTIONARY]
                    .map(str::as_bytes)
                    .contains(&field.value));
        if !is_ours {
            copy(&mut fields, field.name, field.value, field.sensitive);
        }
    }
    let length = content_length(&fields).map_err(|_| CodingError::Head)?;
    head.fields = fields;
    Ok(Some(CodedBody { length, dictionary }))
}

/// Returns the fields with another name for one of them, in the same order. Fields that already
/// have the new name are left out.
fn renamed(fields: &Fields, from: &str, to: &str) -> Fields {
    let mut all = Fields::with_capacity(fields.len() + 2, fields.text_len() + 64);
    for field in fields.iter().filter(|field| field.name != to.as_bytes()) {
        let name = if field.name == from.as_bytes() {
            to.as_bytes()
        } else {
            field.name
        };
        copy(&mut all, name, field.value, field.sensitive);
    }
    all
}

fn copy(fields: &mut Fields, name: &[u8], value: &[u8], is_sensitive: bool) {
    if is_sensitive {
        fields.push_sensitive(name, value);
    } else {
        fields.push(name, value);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the head of a success with these fields.
    pub(crate) fn head(fields: &[(&str, &str)]) -> ResponseHead {
        ResponseHead {
            status: 200,
            fields: fields.iter().copied().collect(),
        }
    }

    #[test]
    fn restored_head_is_the_original_one() {
        for original in [
            &[("content-type", "text/html"), ("content-length", "7")][..],
            &[("content-length", "7"), ("vary", "Accept"), ("etag", "x")],
            &[("vary", "Accept-Encoding"), ("vary", "Origin")],
            &[],
        ] {
            let original = head(original);
            for dictionary in [None, Name::of_hash(&[7; 32])] {
                let mut coded = original.clone();
                mark(&mut coded);
                if let Some(name) = dictionary {
                    need_dictionary(&mut coded, name);
                }
                assert!(!coded.fields.contains("content-length"));
                assert!(coded.fields.has_token("vary", "tandem-accept"));
                let length = original.fields.get("content-length").map(|_| 7);
                let body = CodedBody { length, dictionary };
                assert_eq!(restore(&mut coded), Ok(Some(body)));
                assert_eq!(coded, original);
            }
        }
    }

    #[test]
    fn head_without_a_coding_stays_as_it_is() {
        let original = head(&[("tandem-length", "7"), ("vary", "tandem-accept")]);
        let mut plain = original.clone();
        assert_eq!(restore(&mut plain), Ok(None));
        assert_eq!(plain, original);
    }

    #[test]
    fn malformed_head_is_refused() {
        for bad in [
            &[("tandem-coded", "br")][..],
            &[("tandem-coded", "zstd"), ("tandem-coded", "zstd")],
            &[("tandem-coded", "zstd"), ("tandem-length", "x")],
            &[("tandem-coded", "zstd"), ("tandem-dictionary", "x")],
            &[
                ("tandem-coded", "zstd"),
                ("tandem-length", "1"),
                ("tandem-length", "2"),
            ],
        ] {
            assert_eq!(restore(&mut head(bad)), Err(CodingError::Head), "{bad:?}");
        }
    }

    #[test]
    fn offer_is_taken_once() {
        let mut fields = Fields::new();
        assert!(!has_offer(&fields) && take_offer(&mut fields).is_none());
        for version in [None, Name::of_hash(&[7; 32])] {
            let permits_recoding = version.is_some();
            offer(&mut fields, permits_recoding);
            if let Some(name) = version {
                ask_dictionary(&mut fields);
                assert!(asks_dictionary(&fields));
                set_dictionary(&mut fields, Some(name));
            }
            assert!(!asks_dictionary(&fields));
            assert!(has_offer(&fields));
            let expected = Offer {
                version,
                permits_recoding,
            };
            assert_eq!(take_offer(&mut fields), Some(expected));
            assert!(fields.is_empty());
        }
        fields.push(ACCEPT, "br");
        assert!(has_offer(&fields) && take_offer(&mut fields).is_none() && fields.is_empty());
        offer(&mut fields, false);
        ask_dictionary(&mut fields);
        assert_eq!(take_offer(&mut fields), Some(Offer::default()));
        ask_dictionary(&mut fields);
        set_dictionary(&mut fields, None);
        assert!(fields.is_empty());
    }
}
