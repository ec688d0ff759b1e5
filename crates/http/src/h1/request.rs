//! Request heads. RFC 9112 sections 3, 6.3 and 9.3.

use super::head::{BadHead, BadVersion, HeadEnd, Lines, Sender, Sorted, parse_version, split};
use super::target::{Authority, Form, Target, parse_target, without_empty_port};
use super::{Framing, Limits, Version};
use crate::message::{Method, RequestHead, Scheme, is_token};
use crate::target::encoded_target;

/// Longest method token, as [`Method::parse`] takes them.
const MAX_METHOD: usize = 64;

/// A request head and its effect on the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The head for the next hop.
    pub head: RequestHead,
    /// How the target was written.
    pub form: Form,
    /// Version of the message.
    pub version: Version,
    /// How the body is delimited.
    pub framing: Framing,
    /// The client wants the connection to stay open.
    pub keep_alive: bool,
    /// Protocols to switch to, as in `Upgrade`, when `Connection` names it and the version is
    /// HTTP/1.1.
    pub upgrade: Option<String>,
    /// The client waits for 100 before it sends the body (RFC 9110 section 10.1.1).
    pub expect_continue: bool,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadRequest {
    /// Lines or fields.
    #[error(transparent)]
    Head(#[from] BadHead),
    /// The request line does not begin with a method and one space.
    #[error("the request line does not begin with a method")]
    Method,
    /// The target is empty, has controls or a fragment, or is in no known form.
    #[error("the request target is not valid")]
    Target,
    /// The request line alone exceeds the limit.
    #[error("the request line is too long")]
    TargetTooLong,
    /// Absolute form with a scheme other than http or https.
    #[error("the scheme of the request target is neither http nor https")]
    Scheme,
    /// User information, or no valid host and port, in target or `Host`.
    #[error("the authority is not a host with an optional port")]
    Authority,
    /// The request line does not end with a version.
    #[error("the request line does not end with a version")]
    Version,
    /// A version other than 1.0 and 1.1.
    #[error("HTTP version not supported")]
    UnsupportedVersion,
    /// HTTP/1.1 without `Host`, or with an empty one.
    #[error("no host field")]
    HostMissing,
    /// Several `Host` fields.
    #[error("more than one host field")]
    HostRepeated,
    /// The target of a CONNECT and `Host` name different places.
    #[error("the host field contradicts the request target")]
    HostConflict,
}

impl BadRequest {
    /// Status of the answer: 400, 414, 431, 501 or 505.
    pub const fn status(&self) -> u16 {
        match self {
            Self::Head(BadHead::TooLarge | BadHead::TooManyFields) => 431,
            Self::Head(BadHead::UnknownCoding) => 501,
            Self::TargetTooLong => 414,
            Self::UnsupportedVersion => 505,
            _ => 400,
        }
    }
}

/// Reads a request head from the beginning of `buf`. Returns the request and its length in bytes,
/// or `None` while it is incomplete. `scheme` applies to requests with a target without one. After
/// `None`, call it again with the same bytes and more.
///
/// An HTTP/1.0 request in origin form without `Host` has an empty authority.
pub fn parse_request(
    buf: &[u8],
    scheme: Scheme,
    limits: &Limits,
) -> Result<Option<(Request, usize)>, BadRequest> {
    // RFC 9112 section 2.2: one empty line before a request line is ignored.
    let skipped = if buf.starts_with(b"\r\n") { 2 } else { 0 };
    let buf = &buf[skipped..];
    if buf == b"\r" && skipped == 0 {
        return Ok(None);
    }
    check_method_bytes(buf)?;
    let lines = match split(buf, Sender::Client, limits) {
        Ok(Some(lines)) => lines,
        Ok(None) => return Ok(None),
        Err(HeadEnd::LineEnd) => return Err(BadHead::LineEnd.into()),
        Err(HeadEnd::HeadTooLarge) => return Err(BadHead::TooLarge.into()),
        Err(HeadEnd::TooManyLines) => return Err(BadHead::TooManyFields.into()),
        Err(HeadEnd::StartLineTooLong) => return Err(BadRequest::TargetTooLong),
    };
    let request = parse_lines(&lines, scheme, limits)?;
    Ok(Some((request, skipped + lines.len)))
}

/// Rejects input early that is no HTTP at all, such as a TLS handshake.
fn check_method_bytes(buf: &[u8]) -> Result<(), BadRequest> {
    match buf.iter().take(MAX_METHOD + 1).position(|&b| !is_token(b)) {
        Some(end) if end > 0 && buf[end] == b' ' => Ok(()),
        None if buf.len() <= MAX_METHOD => Ok(()),
        _ => Err(BadRequest::Method),
    }
}

fn parse_lines(lines: &Lines<'_>, scheme: Scheme, limits: &Limits) -> Result<Request, BadRequest> {
    if lines.start.contains(&b'\r') {
        return Err(BadHead::LineEnd.into());
    }
    let mut parts = lines.start.splitn(3, |&b| b == b' ');
    let (Some(method), Some(target), Some(version)) = (parts.next(), parts.next(), parts.next())
    else {
        return Err(BadRequest::Version);
    };
    let method = Method::parse(method).ok_or(BadRequest::Method)?;
    let version = parse_version(version).map_err(|bad| match bad {
        BadVersion::Unsupported => BadRequest::UnsupportedVersion,
        BadVersion::Malformed => BadRequest::Version,
    })?;
    let target = encoded_target(target).ok_or(BadRequest::Target)?;
    let target = parse_target(&method, &target)?;
    let mut sorted = lines.sort(Sender::Client, version, limits)?;
    let authority = authority(&target, &sorted, version)?;
    let framing = framing(&method, &mut sorted)?;
    let expect = version == Version::Http11 && sorted.fields.has_token("expect", "100-continue");
    Ok(Request {
        form: target.form,
        version,
        framing,
        keep_alive: sorted.connection.is_persistent(version),
        upgrade: sorted.upgrade,
        expect_continue: expect && !matches!(framing, Framing::None | Framing::Length(0)),
        head: RequestHead {
            method,
            scheme: target.scheme.unwrap_or(scheme),
            authority,
            path: target.path,
            protocol: None,
            fields: sorted.fields,
        },
    })
}

/// Returns the place that the request goes to. `Host` is ignored beside an absolute target (RFC
/// 9112 section 3.2.2), and the next recipient gets the host of the target. A CONNECT whose `Host`
/// names another place was made to be understood in two ways.
fn authority(target: &Target<'_>, sorted: &Sorted, version: Version) -> Result<String, BadRequest> {
    if sorted.host_repeated {
        return Err(BadRequest::HostRepeated);
    }
    let host = match &sorted.host {
        Some(value) if !value.is_empty() => {
            let value = without_empty_port(value);
            Some(Authority::parse(value).ok_or(BadRequest::Authority)?)
        }
        _ if version == Version::Http11 => return Err(BadRequest::HostMissing),
        _ => None,
    };
    let Some(named) = target.authority else {
        let text = without_empty_port(sorted.host.as_deref().unwrap_or_default());
        return String::from_utf8(text.to_vec()).map_err(|_| BadRequest::Authority);
    };
    if target.form == Form::Authority
        && let Some(host) = host
        // Clients leave the port out of the Host of a CONNECT, whatever it is: the tunnel goes
        // where the target says.
        && !named.is_same(&host, named.port.unwrap_or_default())
    {
        return Err(BadRequest::HostConflict);
    }
    Ok(target.authority_text.to_owned())
}

/// Returns the framing of a request body (RFC 9112 section 6.3). CONNECT has no body (RFC 9110
/// section 9.3.6): the bytes after its head belong to the tunnel. A head that announces a body is
/// therefore ambiguous.
fn framing(method: &Method, sorted: &mut Sorted) -> Result<Framing, BadHead> {
    if *method == Method::Connect {
        sorted.fields.remove("content-length");
        return match (sorted.chunked, sorted.length) {
            (false, None | Some(0)) => Ok(Framing::None),
            (true, _) => Err(BadHead::TransferEncoding),
            _ => Err(BadHead::ContentLength),
        };
    }
    Ok(match sorted.length {
        _ if sorted.chunked => Framing::Chunked,
        Some(length) => Framing::Length(length),
        None => Framing::None,
    })
}
