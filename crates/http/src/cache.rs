//! The rules of HTTP caching (RFC 9111), as decisions without a store, a clock or a socket.
//!
//! Every part of Tandem that stores a response, or reasons about another cache, uses this module:
//!
//! ```text
//!  ResponseHead ──▶ ResponsePolicy ── is_storable(request)   section 3
//!                                  └─ freshness(receipt) ──▶ Freshness   section 4.2
//!  request fields ▶ RequestPolicy ─── reuse(policy, freshness, resident) ──▶ Reuse   section 4
//!                                     vary::selects        section 4.1
//!                                     validation           section 4.3
//!                                     range                RFC 9110 section 14
//!                                     rest                 of a response that broke off
//!                                     invalidates          section 4.4
//! ```
//!
//! Points of time are seconds since 1970 (UTC), lengths of time are
//! [`Duration`](std::time::Duration). Where a response contradicts itself, the strictest reading
//! holds (section 4.2.1).
//!
//! ```
//! use std::time::Duration;
//! use tandem_http::ResponseHead;
//! use tandem_http::cache::{CacheRules, Receipt, ResponsePolicy};
//!
//! let mut head = ResponseHead::new(200);
//! head.fields.push("cache-control", "public, Max-Age=\"600\"");
//! head.fields.push("age", "100");
//! let policy = ResponsePolicy::of(&head);
//! let freshness = policy.freshness(CacheRules::PRIVATE, Receipt::default());
//! assert_eq!(freshness.remaining(Duration::ZERO), Some(Duration::from_secs(500)));
//! ```

mod control;
mod date;
mod encoding;
mod policy;
pub mod range;
pub mod rest;
mod reuse;
mod targeted;
pub mod validation;
pub mod vary;

pub use control::{CacheControl, Staleness};
pub use date::unix_seconds;
pub use encoding::accepts_content_encoding;
pub use policy::{Freshness, Receipt, ResponsePolicy, is_heuristically_cacheable};
pub use reuse::{RequestPolicy, Reuse};

use crate::{Method, RequestHead, ResponseHead, Scheme};

/// The field that marks a response whose framing was repaired
/// ([`h1::Response::is_repaired`](crate::h1::Response::is_repaired)), between the proxies of a
/// pair. Nothing may store such a response or serve another request with it. If an origin writes
/// the field itself, the same holds.
pub const REPAIRED_FIELD: &str = "tandem-repaired";

/// The kind of cache that a decision is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheRules {
    /// Several users share the cache: `private`, `s-maxage` and the rule for `Authorization` hold.
    pub shared: bool,
    /// A response that names no lifetime may have a heuristic one (RFC 9111 section 4.2.2).
    pub heuristics: bool,
}

impl CacheRules {
    /// A cache of a single user, without heuristic lifetimes.
    pub const PRIVATE: Self = Self {
        shared: false,
        heuristics: false,
    };

    /// A browser's cache: one user's, with heuristic lifetimes.
    pub const BROWSER: Self = Self {
        shared: false,
        heuristics: true,
    };

    /// A cache that several users share, with heuristic lifetimes.
    pub const PROXY: Self = Self {
        shared: true,
        heuristics: true,
    };

    /// A cache that several users share, without heuristic lifetimes.
    pub const SHARED: Self = Self {
        shared: true,
        heuristics: false,
    };
}

/// Returns true if a method only reads (RFC 9110 section 9.2.1). A tunnel itself changes no
/// resource.
pub const fn is_safe(method: &Method) -> bool {
    matches!(
        method,
        Method::Get | Method::Head | Method::Options | Method::Trace | Method::Connect
    )
}

/// Returns true if a response with `status` to `method` invalidates stored responses for its target
/// (RFC 9111 section 4.4): the method may change the resource, and the response is no error.
pub const fn invalidates(method: &Method, status: u16) -> bool {
    !is_safe(method) && status >= 200 && status < 400
}

/// The data of an origin that its responses can make clients forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteData {
    /// The responses that caches have stored.
    Cache,
    /// The cookies.
    Cookies,
}

/// Returns true if a response makes clients forget data of its origin (Clear Site Data section
/// 3.1). The field means nothing over plain HTTP, where anyone could have written it.
pub fn clears(data: SiteData, request: &RequestHead, head: &ResponseHead) -> bool {
    let name = match data {
        SiteData::Cache => "\"cache\"",
        SiteData::Cookies => "\"cookies\"",
    };
    let names = |name| head.fields.has_token("clear-site-data", name);
    request.scheme == Scheme::Https && (names(name) || names("\"*\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_over_tls_clears_the_data_that_it_names() {
        for (scheme, value, expected) in [
            (Scheme::Https, "\"cache\"", (true, false)),
            (Scheme::Https, "\"storage\", \"cookies\"", (false, true)),
            (Scheme::Https, "\"*\"", (true, true)),
            (Scheme::Https, "cache, cookies, *", (false, false)),
            (Scheme::Http, "\"*\"", (false, false)),
        ] {
            let request = RequestHead::get(scheme, "a.test", "/");
            let mut head = ResponseHead::new(200);
            head.fields.push("clear-site-data", value);
            let clears = |data| clears(data, &request, &head);
            let cleared = (clears(SiteData::Cache), clears(SiteData::Cookies));
            assert_eq!(cleared, expected, "{scheme:?} {value}");
        }
    }

    #[test]
    fn unsafe_success_invalidates_stored_answers() {
        let other = Method::parse(b"PURGE").unwrap();
        for (method, status, expected) in [
            (&Method::Post, 200, true),
            (&Method::Put, 204, true),
            (&Method::Delete, 303, true),
            (&other, 200, true),
            (&Method::Post, 404, false),
            (&Method::Post, 500, false),
            (&Method::Post, 103, false),
            (&Method::Get, 200, false),
            (&Method::Head, 200, false),
            (&Method::Options, 200, false),
            (&Method::Connect, 200, false),
        ] {
            assert_eq!(invalidates(method, status), expected, "{method} {status}");
        }
    }
}
