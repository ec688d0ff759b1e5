//! HTTP in header blocks: the pairs of requests, responses and pushes. Draft sections 3.2 and 3.3.
//!
//! ```text
//! request   :method :path :version :host :scheme  + fields        (all five required)
//! response  :status :version                      + fields        (both required)
//! push      :scheme :host :path, and in ours :method :status :version; more fields in HEADERS
//! ```
//!
//! Fields of one name are joined by NUL on the wire and separate here; only cookies become one
//! field, joined as browsers write them.

use memchr::{memchr, memchr3};
use tandem_http::fields::Field;
use tandem_http::message::{content_length, has_controls, is_framing_lookalike};
use tandem_http::target::encoded_target;
use tandem_http::{Fields, Method, RequestHead, ResponseHead, Scheme};

use crate::header_block::{Block, Pairs, Seen};

const VERSION: &[u8] = b"HTTP/1.1";

/// The approximate size, in bytes, of the names with a colon and the shorter of their values.
const OWN_PAIRS_TEXT: usize = 64;

/// Fields of one hop, which "are not valid and must not be sent", and those that mean nothing
/// without them.
const HOP_BY_HOP: [&[u8]; 7] = [
    b"connection",
    b"host",
    b"http2-settings",
    b"keep-alive",
    b"proxy-connection",
    b"transfer-encoding",
    b"upgrade",
];

/// A head that cannot be written: too large, an illegal name or value, or a feature that SPDY
/// lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unwritable;

/// The block of a request. `full_url`: `:path` carries scheme and authority too.
///
/// CONNECT has the authority as its `:path`, as the clients of SPDY proxies wrote it, and as
/// `:host`.
pub(crate) fn request_block(
    head: &RequestHead,
    full_url: bool,
    limit: usize,
) -> Result<Block, Unwritable> {
    if head.protocol.is_some() {
        return Err(Unwritable);
    }
    let authority = head.authority.as_bytes();
    let path = head.path.as_bytes();
    let text = OWN_PAIRS_TEXT + 2 * authority.len() + path.len() + head.fields.text_len();
    let mut block = Block::with_capacity(5 + head.fields.len(), text);
    put(&mut block, b":method", head.method.as_str().as_bytes())?;
    if head.is_connect() {
        put(&mut block, b":path", authority)?;
    } else if full_url && path.starts_with(b"/") {
        put(
            &mut block,
            b":path",
            format!("{}://{}{}", head.scheme.as_str(), head.authority, head.path).as_bytes(),
        )?;
    } else {
        put(&mut block, b":path", path)?;
    }
    put(&mut block, b":version", VERSION)?;
    put(&mut block, b":host", authority)?;
    put(&mut block, b":scheme", head.scheme.as_str().as_bytes())?;
    put_fields(&mut block, &head.fields, limit)?;
    Ok(block)
}

/// The block of a response.
pub(crate) fn response_block(head: &ResponseHead, limit: usize) -> Result<Block, Unwritable> {
    let status = head.status.to_string();
    literal_response_block(status.as_bytes(), VERSION, &head.fields, limit)
}

/// The block of a response with this text as its `:status` and `:version`.
pub(crate) fn literal_response_block(
    status: &[u8],
    version: &[u8],
    fields: &Fields,
    limit: usize,
) -> Result<Block, Unwritable> {
    let mut block = Block::with_capacity(2 + fields.len(), OWN_PAIRS_TEXT + fields.text_len());
    put(&mut block, b":status", status)?;
    put(&mut block, b":version", version)?;
    put_fields(&mut block, fields, limit)?;
    Ok(block)
}

/// Encodes the block that announces the push of `request`.
///
/// The announcement must leave before anything that mentions the resource, when the status is not
/// yet known. Existing clients read `:status` from it (spdy-transport stops reading the connection
/// without), so it carries 200. A response with another status is withdrawn instead of sent.
pub(crate) fn push_block(request: &RequestHead, limit: usize) -> Result<Block, Unwritable> {
    let mut block = Block::new();
    put(&mut block, b":method", request.method.as_str().as_bytes())?;
    put(&mut block, b":path", request.path.as_bytes())?;
    put(&mut block, b":version", VERSION)?;
    put(&mut block, b":host", request.authority.as_bytes())?;
    put(&mut block, b":scheme", request.scheme.as_str().as_bytes())?;
    put(&mut block, b":status", PUSHED_STATUS.to_string().as_bytes())?;
    if block.list_size() > limit {
        Err(Unwritable)
    } else {
        Ok(block)
    }
}

/// The only status of our pushes.
pub(crate) const PUSHED_STATUS: u16 = 200;

/// Encodes a block of fields alone: trailers, or the fields that a push adds to its announcement.
pub(crate) fn fields_block(fields: &Fields, limit: usize) -> Result<Block, Unwritable> {
    let mut block = Block::new();
    put_fields(&mut block, fields, limit)?;
    Ok(block)
}

fn put(block: &mut Block, name: &[u8], value: &[u8]) -> Result<(), Unwritable> {
    if !is_writable(value) {
        return Err(Unwritable);
    }
    block.push(name, &[value], 0, false);
    Ok(())
}

/// Fields with those of one name together, where the first of them stands.
fn put_fields(block: &mut Block, fields: &Fields, limit: usize) -> Result<(), Unwritable> {
    if fields.text_len() + 32 * fields.len() > limit {
        return Err(Unwritable);
    }
    let to_write = || {
        fields
            .iter()
            .filter(|field| !HOP_BY_HOP.contains(&field.name))
    };
    let mut seen = Seen::default();
    if to_write().any(|field| seen.perhaps(field.name)) {
        put_gathered(block, to_write().map(Some).collect())?;
    } else {
        to_write().try_for_each(|field| put_joined(block, &[field]))?;
    }
    if block.list_size() > limit {
        Err(Unwritable)
    } else {
        Ok(())
    }
}

/// Each name once, with the values of all its fields.
fn put_gathered(block: &mut Block, mut pending: Vec<Option<Field<'_>>>) -> Result<(), Unwritable> {
    let mut parts = Vec::new();
    for at in 0..pending.len() {
        let Some(first) = pending[at].take() else {
            continue;
        };
        parts.clear();
        parts.push(first);
        for slot in &mut pending[at + 1..] {
            if slot.is_some_and(|field| field.name == first.name) {
                parts.extend(slot.take());
            }
        }
        put_joined(block, &parts)?;
    }
    Ok(())
}

fn put_joined(block: &mut Block, fields: &[Field<'_>]) -> Result<(), Unwritable> {
    let name = fields[0].name;
    if name.is_empty() || name[0] == b':' || !fields.iter().all(|field| is_writable(field.value)) {
        return Err(Unwritable);
    }
    let sensitive = fields.iter().any(|field| field.sensitive);
    if let [only] = fields {
        block.push(name, &[only.value], 0, sensitive);
        return Ok(());
    }
    // No part of a joined value may be empty; an empty one among others says nothing.
    let parts: Vec<_> = fields
        .iter()
        .map(|field| field.value)
        .filter(|value| !value.is_empty())
        .collect();
    let separator: u8 = 0;
    if name == b"cookie" {
        block.push(name, &[&parts.join(&b"; "[..])], separator, sensitive);
    } else {
        block.push(name, &parts, separator, sensitive);
    }
    Ok(())
}

fn is_writable(value: &[u8]) -> bool {
    memchr3(0, b'\r', b'\n', value).is_none()
}

/// Returns whether a value has a control byte, which a request must not pass on.
pub(crate) fn holds_controls(fields: &Fields) -> bool {
    fields.iter().any(|field| has_controls(field.value))
}

/// The parsed contents of a block, before it is known to be complete.
#[derive(Debug, Default)]
pub(crate) struct Message<'a> {
    pub(crate) method: Option<&'a [u8]>,
    pub(crate) path: Option<&'a [u8]>,
    pub(crate) version: Option<&'a [u8]>,
    pub(crate) host: Option<&'a [u8]>,
    pub(crate) scheme: Option<&'a [u8]>,
    pub(crate) status: Option<&'a [u8]>,
    pub(crate) fields: Fields,
}

impl<'a> Message<'a> {
    /// Sorts the pairs. Fields of one hop and unknown names with a colon are dropped.
    pub(crate) fn load(pairs: &Pairs<'a>) -> Self {
        let fields = Fields::with_capacity(pairs.iter().len(), pairs.text_len());
        let mut message = Self {
            fields,
            ..Self::default()
        };
        for (name, value) in pairs.iter() {
            match name {
                b":method" => message.method = Some(value),
                b":path" => message.path = Some(value),
                b":version" => message.version = Some(value),
                b":host" => message.host = Some(value),
                b":scheme" => message.scheme = Some(value),
                b":status" => message.status = Some(value),
                [b':', ..] => {}
                name if HOP_BY_HOP.contains(&name) || is_framing_lookalike(name) => {}
                // As in HTTP/1.1 and HTTP/2: other codings belong to one hop.
                b"te" => {
                    if has_trailers(value) {
                        message.fields.push(name, "trailers");
                    }
                }
                name if memchr(0, value).is_none() => message.fields.push(name, value.trim_ascii()),
                b"cookie" => {
                    let crumbs: Vec<_> = value
                        .split(|&byte| byte == 0)
                        .map(<[u8]>::trim_ascii)
                        .collect();
                    message.fields.push(name, crumbs.join(&b"; "[..]));
                }
                name => {
                    for part in value.split(|&byte| byte == 0) {
                        message.fields.push(name, part.trim_ascii());
                    }
                }
            }
        }
        message
    }

    /// Returns the request; `None` if a required part is missing or invalid, which leads to a 400
    /// response.
    pub(crate) fn into_request(self) -> Option<RequestHead> {
        let method = Method::parse(self.method?)?;
        // As in HTTP/1.1 and HTTP/2. Of responses they are kept.
        if holds_controls(&self.fields) {
            return None;
        }
        if method == Method::Connect {
            return self.into_connect();
        }
        self.version?;
        let target = Target::load(&method, self.path?, self.host?, self.scheme?)?;
        content_length(&self.fields).ok()?;
        Some(RequestHead {
            method,
            scheme: target.scheme,
            authority: target.authority,
            path: target.path,
            protocol: None,
            fields: self.fields,
        })
    }

    /// Returns the request with its five required parts as they are written, for
    /// [`crate::Config::literal_requests`].
    pub(crate) fn into_literal_request(mut self) -> Option<RequestHead> {
        let text = |part: Option<&[u8]>| {
            let text = std::str::from_utf8(part?).ok()?;
            let legal = !text.is_empty() && text.bytes().all(|byte| byte > b' ' && byte != 0x7f);
            legal.then(|| text.to_owned())
        };
        content_length(&self.fields).ok()?;
        let version = text(self.version)?;
        let mut fields = Fields::with_capacity(
            self.fields.len() + 1,
            self.fields.text_len() + OWN_PAIRS_TEXT,
        );
        fields.push(":version", version);
        for field in std::mem::take(&mut self.fields).iter() {
            fields.push(field.name, field.value);
        }
        Some(RequestHead {
            method: Method::parse(self.method?)?,
            scheme: Scheme::parse(self.scheme?)?,
            authority: text(self.host)?,
            path: text(self.path)?,
            protocol: None,
            fields,
        })
    }

    /// A tunnel goes to the `:path` when that is an authority, or else to the `:host`.
    fn into_connect(self) -> Option<RequestHead> {
        let place = |text: &[u8]| load_authority(text).filter(|authority| authority.contains(':'));
        let authority = self
            .path
            .and_then(place)
            .or_else(|| self.host.and_then(place))?;
        Some(RequestHead {
            method: Method::Connect,
            scheme: self.scheme.and_then(Scheme::parse).unwrap_or(Scheme::Https),
            authority,
            path: String::new(),
            protocol: None,
            fields: self.fields,
        })
    }

    /// Returns the GET request of a pushed response, which needs `:scheme`, `:host` and `:path`.
    /// Its fields are those of the associated request.
    pub(crate) fn pushed_request(&self, inherited: Fields) -> Option<RequestHead> {
        let target = Target::load(&Method::Get, self.path?, self.host?, self.scheme?)?;
        let mut request = RequestHead::get(target.scheme, target.authority, target.path);
        request.fields = inherited;
        Some(request)
    }

    /// Three digits, then nothing or a space and words. SPDY has no interim responses.
    pub(crate) fn status(&self) -> Option<u16> {
        let (digits, rest) = self.status?.split_first_chunk::<3>()?;
        if !digits.iter().all(u8::is_ascii_digit) || rest.first().is_some_and(|&byte| byte != b' ')
        {
            return None;
        }
        let status = digits
            .iter()
            .fold(0, |number, digit| number * 10 + u16::from(digit - b'0'));
        (status >= 200).then_some(status)
    }

    /// The response that it is.
    pub(crate) fn into_response(self) -> Option<ResponseHead> {
        self.version?;
        let status = self.status()?;
        Some(ResponseHead {
            status,
            fields: self.fields,
        })
    }

    /// Returns true if a block names the request of a push once more.
    pub(crate) const fn has_identity(&self) -> bool {
        self.scheme.is_some() || self.host.is_some() || self.path.is_some()
    }
}

/// Returns whether a value of `te` has the token `trailers` (RFC 9110 section 10.1.4).
fn has_trailers(value: &[u8]) -> bool {
    let mut tokens = value.split(|byte| matches!(byte, 0 | b','));
    tokens.any(|token| token.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

/// The destination of a request.
struct Target {
    scheme: Scheme,
    authority: String,
    path: String,
}

impl Target {
    /// Reads the target of a request. A `:path` that is a whole address (forward mode) overrides
    /// `:host` and `:scheme`. Only OPTIONS asks about a whole server, with `*` or an address
    /// without a path (RFC 9112 section 3.2.4).
    fn load(method: &Method, path: &[u8], host: &[u8], scheme: &[u8]) -> Option<Self> {
        let text = encoded_target(path)?;
        let is_options = *method == Method::Options;
        if text.starts_with('/') || (text == "*" && is_options) {
            let authority = load_authority(host)?;
            return Some(Self {
                scheme: Scheme::parse(scheme)?,
                authority,
                path: text.into_owned(),
            });
        }
        let (scheme, rest) = text.split_once("://")?;
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let authority = authority
            .rsplit_once('@')
            .map_or(authority, |(_, host)| host);
        let path = if path.starts_with('/') {
            path.to_owned()
        } else if path.is_empty() && is_options {
            "*".to_owned()
        } else {
            format!("/{path}")
        };
        Some(Self {
            scheme: Scheme::parse(scheme.as_bytes())?,
            authority: load_authority(authority.as_bytes())?,
            path,
        })
    }
}

/// A host, perhaps with a port, and nothing that could end it early elsewhere.
fn load_authority(text: &[u8]) -> Option<String> {
    let legal = |byte: &u8| {
        byte.is_ascii_alphanumeric() || b"-._~:[]%!$&'()*+,;=".contains(byte) || *byte >= 0x80
    };
    if text.is_empty() || !text.iter().all(legal) {
        return None;
    }
    String::from_utf8(text.to_vec()).ok()
}

#[cfg(test)]
mod tests;
