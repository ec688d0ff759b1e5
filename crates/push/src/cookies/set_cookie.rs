//! A `Set-Cookie` field as browsers read it (RFC 6265bis sections 5.6 and 5.7).
//!
//! Browsers differ in some cases, for example in `SameSite=None` without `Secure`. Such a field is
//! unknown. `HttpOnly` and the other values of `SameSite` decide nothing here: the requests are
//! those of a page for resources of its site.

use tandem_http::Scheme;
use tandem_http::cache::unix_seconds;

use super::{Change, CookieScope, Domain, is_in_domain};
use crate::site::{is_address, is_public_suffix, may_be_trusted};

/// The length in bytes of a name with its value above which browsers ignore a cookie.
const MAX_LENGTH: usize = 4096;

/// The length in bytes of the value of an attribute above which browsers ignore the attribute.
const MAX_ATTRIBUTE: usize = 1024;

/// The URL of the response that sets a cookie.
pub(super) struct Setter<'a> {
    pub(super) scheme: Scheme,
    /// The host in lower case.
    pub(super) host: &'a str,
    /// The path without the query.
    pub(super) path: &'a str,
}

/// The meaning of a field.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SetCookie {
    Change(Change),
    /// Browsers ignore the field.
    Ignored,
    /// Browsers differ, or the field has an unusual form.
    Unknown,
}

/// The attributes of a cookie. The last one of a name counts.
#[derive(Default)]
struct Attributes<'a> {
    domain: &'a [u8],
    path: &'a [u8],
    is_secure: bool,
    /// True if a cookie without `Secure` is refused by some browsers.
    needs_secure: bool,
    /// True if requests from other sites do not carry the cookie.
    is_strict: bool,
    /// True if requests that other sites cause lack the cookie, as far as `SameSite` tells.
    is_of_same_site: Option<bool>,
    max_age: Option<bool>,
    expires: Option<&'a [u8]>,
}

/// Reads a field of the response to a request for `setter`.
pub(super) fn read(field: &[u8], setter: &Setter<'_>, unix_time: u64) -> SetCookie {
    let mut parts = field.split(|byte| *byte == b';');
    let pair = parts.next().and_then(split);
    let Some((name, value)) = pair.filter(|(name, value)| is_plain(field, name, value)) else {
        return SetCookie::Unknown;
    };
    let attributes = Attributes::of(parts);
    let is_tls = setter.scheme == Scheme::Https;
    if attributes.is_secure && !is_tls {
        return match may_be_trusted(setter.host) {
            true => SetCookie::Unknown,
            false => SetCookie::Ignored,
        };
    }
    if attributes.needs_secure && !attributes.is_secure {
        return SetCookie::Unknown;
    }
    let lower = name.to_ascii_lowercase();
    let has = |prefix: &[u8]| lower.starts_with(prefix);
    // A new prefix, which not all browsers know.
    if has(b"__http-") || has(b"__host-http-") {
        return SetCookie::Unknown;
    }
    let is_whole_host = attributes.domain.is_empty() && attributes.path == b"/";
    let is_guarded = has(b"__secure-") || has(b"__host-");
    if (is_guarded && !attributes.is_secure) || (has(b"__host-") && !is_whole_host) {
        return SetCookie::Ignored;
    }
    let is_kept = match (attributes.max_age, attributes.expires.map(date)) {
        (Some(has_time), _) => has_time,
        (None, Some(Some(date))) => date > unix_time,
        (None, Some(None)) => return SetCookie::Unknown,
        (None, None) => true,
    };
    let Some(path) = path_of(attributes.path, setter.path) else {
        return SetCookie::Unknown;
    };
    match domain_of(attributes.domain, setter.host) {
        Ok(Some(domain)) => SetCookie::Change(Change {
            name: name.to_vec(),
            value: is_kept.then(|| value.to_vec()),
            scope: CookieScope {
                domain,
                path: path.to_owned(),
                is_secure: attributes.is_secure,
            },
        }),
        Ok(None) => SetCookie::Ignored,
        Err(UnusualDomain) => SetCookie::Unknown,
    }
}

/// Returns whether a field asks for `SameSite=Strict`.
pub(super) fn is_strict(field: &[u8]) -> bool {
    Attributes::of(field.split(|byte| *byte == b';').skip(1)).is_strict
}

/// Returns whether requests that other sites cause lack the cookie of a field. Returns `None` if
/// the default of the browser decides.
pub(super) fn is_of_same_site(field: &[u8]) -> Option<bool> {
    Attributes::of(field.split(|byte| *byte == b';').skip(1)).is_of_same_site
}

fn same_site(value: &[u8]) -> Option<bool> {
    match value.to_ascii_lowercase().as_slice() {
        b"strict" | b"lax" => Some(true),
        b"none" => Some(false),
        _ => None,
    }
}

impl<'a> Attributes<'a> {
    fn of(parts: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut found = Self::default();
        for part in parts {
            let (name, value) = split(part).unwrap_or_else(|| (part.trim_ascii(), b""));
            if value.len() > MAX_ATTRIBUTE {
                continue;
            }
            match name.to_ascii_lowercase().as_slice() {
                b"domain" => found.domain = value,
                b"path" => found.path = value,
                b"secure" => found.is_secure = true,
                b"samesite" => {
                    found.needs_secure |= value.eq_ignore_ascii_case(b"none");
                    found.is_of_same_site = same_site(value);
                    found.is_strict |= value.eq_ignore_ascii_case(b"strict");
                }
                b"partitioned" => found.needs_secure = true,
                b"max-age" => found.max_age = has_time(value).or(found.max_age),
                b"expires" => found.expires = Some(value),
                _ => {}
            }
        }
        found
    }
}

/// Returns whether name and value have a form that all browsers read alike.
fn is_plain(field: &[u8], name: &[u8], value: &[u8]) -> bool {
    let is_visible = |byte: &u8| byte.is_ascii() && !byte.is_ascii_control();
    !name.is_empty() && name.len() + value.len() <= MAX_LENGTH && field.iter().all(is_visible)
}

/// Returns the path of a cookie: that of the attribute, or else the default path of the response
/// (RFC 6265bis section 5.1.4). Returns `None` for a path that browsers may normalise.
fn path_of<'a>(attribute: &'a [u8], response: &'a str) -> Option<&'a str> {
    let is_normal = |byte: &u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(byte);
    if attribute.starts_with(b"/") {
        let path = std::str::from_utf8(attribute).ok()?;
        return (attribute.iter().all(is_normal) && !path.contains("/.")).then_some(path);
    }
    match response.rfind('/') {
        Some(at) if at > 0 => Some(&response[..at]),
        _ => Some("/"),
    }
}

/// A domain that browsers may read in different ways.
struct UnusualDomain;

/// Returns the hosts of a cookie; `None` if the host may not set a cookie for the domain.
fn domain_of(attribute: &[u8], host: &str) -> Result<Option<Domain>, UnusualDomain> {
    let named = attribute.strip_prefix(b".").unwrap_or(attribute);
    let named = std::str::from_utf8(named).map_err(|_| UnusualDomain)?;
    let named = named.to_ascii_lowercase();
    if named.starts_with('.') || named.ends_with('.') || host.ends_with('.') {
        return Err(UnusualDomain);
    }
    let is_own_only = is_address(host) || is_public_suffix(&named);
    Ok(if named.is_empty() || (named == host && is_own_only) {
        Some(Domain::Host(host.to_owned()))
    } else if !is_own_only && is_in_domain(host, &named) {
        Some(Domain::Below(named))
    } else {
        None
    })
}

/// Splits a name from its value.
fn split(pair: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = pair.iter().position(|byte| *byte == b'=')?;
    Some((pair[..at].trim_ascii(), pair[at + 1..].trim_ascii()))
}

/// Returns whether a `Max-Age` is positive; `None` if it is invalid, and ignored.
fn has_time(value: &[u8]) -> Option<bool> {
    let digits = value.strip_prefix(b"-").unwrap_or(value);
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let is_positive = digits.len() == value.len() && digits.iter().any(|digit| *digit != b'0');
    is_number.then_some(is_positive)
}

/// Returns the time of an `Expires`. Many servers write it with hyphens and a long year.
fn date(value: &[u8]) -> Option<u64> {
    unix_seconds(value).or_else(|| {
        let mut spaced = value.to_vec();
        for byte in spaced.iter_mut().filter(|byte| **byte == b'-') {
            *byte = b' ';
        }
        unix_seconds(&spaced)
    })
}
