//! Signatures of requests (RFC 9421), for the side that signs and for the side that verifies.
//!
//! The signature base (section 2.5) supports all fields and the derived components `@method`,
//! `@authority`, `@scheme`, `@target-uri`, `@request-target`, `@path` and `@query`. Component
//! parameters, such as `sf` and `key`, are refused.

use sfv::{BareItem, Dictionary, FieldType as _, InnerList, Item, Key, ListEntry, Parser};
use tandem_http::RequestHead;

use crate::digest::joined;

/// The largest number of signatures in a message, and of components in a signature.
const MAX_MEMBERS: usize = 64;

/// The reason why a request cannot be signed, or why its signature is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// A field is missing, or the two fields do not name the same signature.
    #[error("the request has no signature with this tag")]
    Missing,
    /// A field of the signature cannot be read.
    #[error("{0} is not a dictionary as RFC 9421 section 4 defines it")]
    Malformed(&'static str),
    /// The signature covers a component that the request does not have, or one with parameters.
    #[error("the component {0} cannot be covered")]
    Component(String),
    /// The signature covers a component twice.
    #[error("the component {0} is covered twice")]
    Repeated(String),
    /// The signature does not cover a component that the receiver requires.
    #[error("the signature does not cover {0}")]
    NotCovered(String),
    /// The signature names another algorithm than Ed25519.
    #[error("the algorithm is not ed25519")]
    Algorithm,
    /// The signature does not name its key.
    #[error("the signature has no keyid")]
    NoKey,
    /// The signature has no time of creation.
    #[error("the signature has no time of creation")]
    NoTime,
    /// The signature was created too long ago or in the future, or has expired.
    #[error("the signature is not valid at this time")]
    Stale,
    /// The key is unknown, or the signature does not belong to the request and the key.
    #[error("the signature is wrong, or its key is unknown")]
    Wrong,
}

/// The parameters of a signature (section 2.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The time of creation, in seconds since 1970.
    pub created: i64,
    /// The time after which the signature is not valid, in seconds since 1970.
    pub expires: Option<i64>,
    /// The identifier of the key.
    pub key_id: String,
    /// The algorithm, such as `ed25519`. The key may determine it as well.
    pub algorithm: Option<String>,
    /// The application of the signature.
    pub tag: Option<String>,
}

/// The requirements of a receiver.
#[derive(Clone, Copy, Debug)]
pub struct Requirements<'a> {
    /// The tag of the signature to verify; signatures with other tags are ignored.
    pub tag: Option<&'a str>,
    /// The components that the signature must cover.
    pub components: &'a [&'a str],
    /// The fields that the signature must cover if the request has them. Without this, a field
    /// could be added on the way.
    pub if_present: &'a [&'a str],
    /// The present time, in seconds since 1970.
    pub now: i64,
    /// The accepted age, and the accepted error of clocks, in seconds.
    pub max_age: i64,
}

/// Adds `signature-input` and `signature` to the request. The function `sign` computes the
/// signature of the signature base.
///
/// # Errors
/// Returns the component that the request does not have.
pub fn sign(
    request: &mut RequestHead,
    label: &str,
    components: &[&str],
    parameters: &Parameters,
    sign: impl FnOnce(&[u8]) -> Vec<u8>,
) -> Result<(), SignatureError> {
    let text = |text: &str| {
        let text = sfv::String::from_string(text.to_owned());
        text.map_err(|_| SignatureError::Malformed("signature-input"))
    };
    let key = |name: &str| {
        let key = Key::from_string(name.to_owned());
        key.map_err(|_| SignatureError::Malformed("signature-input"))
    };
    let integer = |number: i64| {
        let number = sfv::Integer::try_from(number);
        number.map_err(|_| SignatureError::Malformed("signature-input"))
    };
    let mut list = InnerList::default();
    for component in components {
        list.items.push(Item::new(text(component)?));
    }
    let created = integer(parameters.created)?;
    list.params.insert(key("created")?, created.into());
    if let Some(expires) = parameters.expires {
        list.params
            .insert(key("expires")?, integer(expires)?.into());
    }
    list.params
        .insert(key("keyid")?, text(&parameters.key_id)?.into());
    if let Some(algorithm) = &parameters.algorithm {
        list.params.insert(key("alg")?, text(algorithm)?.into());
    }
    if let Some(tag) = &parameters.tag {
        list.params.insert(key("tag")?, text(tag)?.into());
    }
    let signature = sign(base(request, &list)?.as_bytes());
    let label = key(label)?;
    let write = |entry: ListEntry| {
        let dictionary = Dictionary::from([(label.clone(), entry)]);
        dictionary.serialize().unwrap_or_default()
    };
    let (input, signature) = (
        write(list.into()),
        write(BareItem::ByteSequence(signature).into()),
    );
    request.fields.set("signature-input", input);
    request.fields.set("signature", signature);
    Ok(())
}

/// Verifies the signature of a request and returns its parameters. The function `is_genuine` gets
/// the identifier of the key, the signature base and the signature.
///
/// The signature covers the digest of the body at most. The caller compares the digest with the
/// body (see [`crate::digest::check`]).
///
/// # Errors
/// Returns the reason why the request must not be trusted.
pub fn verify(
    request: &RequestHead,
    requirements: &Requirements<'_>,
    is_genuine: impl Fn(&str, &[u8], &[u8]) -> bool,
) -> Result<Parameters, SignatureError> {
    let inputs = dictionary(request, "signature-input")?;
    let signatures = dictionary(request, "signature")?;
    let has_tag = |entry: &ListEntry| match entry {
        ListEntry::InnerList(list) => {
            requirements.tag.is_none() || parameter(list, "tag") == requirements.tag
        }
        ListEntry::Item(_) => false,
    };
    let (label, input) = inputs
        .iter()
        .find(|(_, entry)| has_tag(entry))
        .ok_or(SignatureError::Missing)?;
    let ListEntry::InnerList(list) = input else {
        return Err(SignatureError::Missing);
    };
    let signature = match signatures.get(label) {
        Some(ListEntry::Item(item)) => item.bare_item.as_byte_sequence(),
        _ => return Err(SignatureError::Missing),
    };
    let signature = signature.ok_or(SignatureError::Malformed("signature"))?;
    let parameters = read(list)?;
    check_time(&parameters, requirements)?;
    let present = requirements.if_present.iter();
    let present = present.filter(|name| request.fields.contains(name));
    for required in requirements.components.iter().chain(present) {
        if !list.items.iter().any(|item| name(item) == Some(*required)) {
            return Err(SignatureError::NotCovered((*required).to_owned()));
        }
    }
    let base = base(request, list)?;
    match is_genuine(&parameters.key_id, base.as_bytes(), signature) {
        true => Ok(parameters),
        false => Err(SignatureError::Wrong),
    }
}

fn dictionary(request: &RequestHead, field: &'static str) -> Result<Dictionary, SignatureError> {
    let value = joined(&request.fields, field).ok_or(SignatureError::Missing)?;
    let dictionary: Dictionary = Parser::new(&value)
        .parse()
        .map_err(|_| SignatureError::Malformed(field))?;
    match dictionary.len() <= MAX_MEMBERS {
        true => Ok(dictionary),
        false => Err(SignatureError::Malformed(field)),
    }
}

fn read(list: &InnerList) -> Result<Parameters, SignatureError> {
    let malformed = SignatureError::Malformed("signature-input");
    // A parameter of a wrong type is an error: reading it as absent would skip its check.
    let number = |name: &str| match list.params.get(name) {
        None => Ok(None),
        Some(value) => value
            .as_integer()
            .map(|number| Some(i64::from(number)))
            .ok_or_else(|| malformed.clone()),
    };
    let text = |name: &str| match list.params.get(name) {
        None => Ok(None),
        Some(value) => value
            .as_string()
            .map(|text| Some(text.as_str().to_owned()))
            .ok_or_else(|| malformed.clone()),
    };
    let algorithm = text("alg")?;
    if algorithm.as_deref().is_some_and(|name| name != "ed25519") {
        return Err(SignatureError::Algorithm);
    }
    Ok(Parameters {
        created: number("created")?.ok_or(SignatureError::NoTime)?,
        expires: number("expires")?,
        key_id: text("keyid")?.ok_or(SignatureError::NoKey)?,
        algorithm,
        tag: text("tag")?,
    })
}

fn check_time(
    parameters: &Parameters,
    requirements: &Requirements<'_>,
) -> Result<(), SignatureError> {
    let age = requirements.now.saturating_sub(parameters.created);
    let has_expired = parameters
        .expires
        .is_some_and(|expires| expires < requirements.now);
    match age.saturating_abs() > requirements.max_age || has_expired {
        true => Err(SignatureError::Stale),
        false => Ok(()),
    }
}

fn parameter<'a>(list: &'a InnerList, name: &str) -> Option<&'a str> {
    let value = list.params.get(name)?.as_string()?;
    Some(value.as_str())
}

fn name(item: &Item) -> Option<&str> {
    item.bare_item.as_string().map(|name| name.as_str())
}

/// Returns the signature base (section 2.5).
fn base(request: &RequestHead, list: &InnerList) -> Result<String, SignatureError> {
    if list.items.len() > MAX_MEMBERS {
        return Err(SignatureError::Malformed("signature-input"));
    }
    let mut base = String::new();
    for (at, item) in list.items.iter().enumerate() {
        let refused = || SignatureError::Component(item.serialize());
        let name = name(item).ok_or_else(refused)?;
        let is_named_before = list.items[..at].iter().any(|before| before == item);
        if is_named_before {
            return Err(SignatureError::Repeated(name.to_owned()));
        }
        let is_lower = !name.bytes().any(|byte| byte.is_ascii_uppercase());
        let value = component(request, name).filter(|_| is_lower && item.params.is_empty());
        base.push_str(&format!("\"{name}\": {}\n", value.ok_or_else(refused)?));
    }
    // A dictionary with one member is the only public way to write an inner list.
    let label = Key::from_string("a".to_owned());
    let label = label.map_err(|_| SignatureError::Malformed("signature-input"))?;
    let dictionary = Dictionary::from([(label, ListEntry::InnerList(list.clone()))]);
    let written = dictionary.serialize().unwrap_or_default();
    let parameters = written.strip_prefix("a=").unwrap_or_default();
    base.push_str(&format!("\"@signature-params\": {parameters}"));
    Ok(base)
}

/// Returns the value of a component (section 2.1 and 2.2).
fn component(request: &RequestHead, name: &str) -> Option<String> {
    let (path, query) = match request.path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (request.path.as_str(), None),
    };
    let scheme = request.scheme.as_str();
    let authority = authority(request);
    Some(match name {
        "@method" => request.method.as_str().to_owned(),
        "@authority" => authority,
        "@scheme" => scheme.to_owned(),
        "@target-uri" => format!("{scheme}://{authority}{}", request.path),
        "@request-target" => request.path.clone(),
        "@path" if path.is_empty() => "/".to_owned(),
        "@path" => path.to_owned(),
        "@query" => format!("?{}", query.unwrap_or_default()),
        _ if name.starts_with('@') => return None,
        _ => {
            // A line feed in a value would make two components of one.
            let value = joined(&request.fields, name)?;
            let is_line = value.is_ascii() && !value.contains(&b'\n') && !value.contains(&b'\r');
            String::from_utf8(value).ok().filter(|_| is_line)?
        }
    })
}

/// Returns the authority in lower case, without the default port of the scheme (section 2.2.3).
fn authority(request: &RequestHead) -> String {
    let authority = request.authority.to_ascii_lowercase();
    let port = format!(":{}", request.scheme.default_port());
    match authority.strip_suffix(&port) {
        Some(host) => host.to_owned(),
        None => authority,
    }
}

#[cfg(test)]
mod tests;
