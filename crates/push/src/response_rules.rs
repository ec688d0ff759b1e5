//! The responses that a gateway may push and a client may keep for a moment.

use std::time::Duration;

use tandem_http::ResponseHead;
use tandem_http::cache::{CacheRules, Receipt, ResponsePolicy, vary};
use tandem_http::message::media_type_essence;
use tandem_preload::{Kind, Need, is_script_type, resolve};

/// Returns whether a response with this status may be pushed. Redirects may, and so may a status
/// that caches store without an explicit lifetime (RFC 9110 section 15.1).
pub const fn is_pushable_status(status: u16) -> bool {
    matches!(status, 200 | 203 | 204 | 300..=303 | 307 | 308 | 404 | 410)
}

/// Returns whether a gateway may send a response that the browser has not asked for. Such a
/// response is complete, may be stored for a moment, and does not depend on the user.
pub fn may_be_pushed(head: &ResponseHead) -> bool {
    is_pushable_status(head.status)
        && !ResponsePolicy::of(head).forbids_storage()
        && !depends_on_user(head)
}

/// Returns whether a response that no cache may keep may still serve the request that it was
/// promised for. Such a response does not depend on the user. Either only `no-store` forbids its
/// storage (RFC 9111 section 5.2.2.5), or it is an error, and a second request would burden a
/// failing origin. It serves only a request that waits already, or that the browser makes at once
/// after a redirect.
pub fn may_be_handed_over(head: &ResponseHead) -> bool {
    let mut policy = ResponsePolicy::of(head);
    let is_no_store = std::mem::take(&mut policy.control.no_store);
    let is_whole = matches!(head.status, 200 | 204) && is_no_store;
    (is_whole || is_error_of_resource(head.status))
        && !policy.forbids_storage()
        && !depends_on_user(head)
}

/// Returns whether a response is for the user of a request, or acts on the user's data. Early
/// responses do neither.
pub(crate) fn depends_on_user(head: &ResponseHead) -> bool {
    vary::depends_on(&head.fields, "cookie")
        || vary::depends_on(&head.fields, "authorization")
        || head.fields.contains("clear-site-data")
}

/// Returns whether a response is the same for every user: its origin lets shared caches keep it,
/// and it sets no cookie.
pub(crate) fn is_for_everyone(head: &ResponseHead) -> bool {
    let policy = ResponsePolicy::of(head);
    let control = &policy.control;
    (control.public || control.s_maxage.is_some())
        && !control.private
        && !policy.forbids_storage()
        && !head.fields.contains("set-cookie")
        && !vary::depends_on(&head.fields, "cookie")
}

/// Returns whether a status is an error that every request for the resource would meet. The others
/// depend on the user, on the connection or on fields of the request (RFC 9110 sections 15.5 and
/// 15.6, RFC 6585, RFC 8470).
const fn is_error_of_resource(status: u16) -> bool {
    matches!(status, 400..600)
        && !matches!(
            status,
            401 | 407 | 408 | 412 | 416 | 417 | 421 | 425 | 426 | 428 | 431 | 511
        )
}

/// Returns whether a response is a style sheet, script, image or font.
pub(crate) fn is_part_of_page(head: &ResponseHead) -> bool {
    let essence = media_type_essence(head.fields.get("content-type").unwrap_or_default());
    let essence = std::str::from_utf8(essence).unwrap_or_default();
    let essence = essence.to_ascii_lowercase();
    let is_font = || essence.starts_with("font/") || essence.starts_with("application/font-");
    essence == "text/css" || essence.starts_with("image/") || is_font() || is_script_type(&essence)
}

/// The use that a browser's cache can make of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// The cache may use it again without a request.
    Fresh,
    /// The cache may use it again after a request that validates it.
    Validate,
    /// The cache cannot use it again.
    Never,
}

/// Returns the use that a browser's cache can make of a response (RFC 9111 sections 4.2 and 4.3,
/// with heuristic lifetimes). The fields of a 304 are those of the stored response. `unix_time` is
/// the time of its arrival in seconds since 1970, UTC.
pub fn browser_reuse(head: &ResponseHead, unix_time: u64) -> Reuse {
    let policy = stored_policy(head);
    let freshness = policy.freshness(CacheRules::BROWSER, Receipt::at(unix_time));
    if policy.forbids_storage() {
        Reuse::Never
    } else if freshness.is_fresh(Duration::ZERO) && !policy.needs_validation() {
        Reuse::Fresh
    } else if policy.has_validator {
        Reuse::Validate
    } else {
        Reuse::Never
    }
}

/// The copy of a response that a browser's cache can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptCopy {
    /// The time up to which the cache uses it without a request, in seconds since 1970, UTC.
    pub(crate) until: u64,
    /// True if the cache can validate it.
    pub(crate) has_validator: bool,
}

impl KeptCopy {
    /// A copy that must be validated before each use.
    pub(crate) const OLD: Self = Self {
        until: 0,
        has_validator: true,
    };

    /// Returns the copy of a response that arrives at `unix_time`; `None` if no cache can use one.
    pub(crate) fn of(head: &ResponseHead, unix_time: u64) -> Option<Self> {
        let policy = stored_policy(head);
        let has_validator = policy.has_validator;
        match browser_reuse(head, unix_time) {
            Reuse::Never => None,
            Reuse::Validate => Some(Self {
                until: 0,
                has_validator,
            }),
            Reuse::Fresh => {
                let freshness = policy.freshness(CacheRules::BROWSER, Receipt::at(unix_time));
                let rest = freshness.remaining(Duration::ZERO).unwrap_or_default();
                Some(Self {
                    until: unix_time.saturating_add(rest.as_secs()),
                    has_validator,
                })
            }
        }
    }

    /// Returns the use of the copy at a time.
    pub(crate) const fn reuse(self, unix_time: u64) -> Reuse {
        if unix_time < self.until {
            Reuse::Fresh
        } else if self.has_validator {
            Reuse::Validate
        } else {
            Reuse::Never
        }
    }
}

/// The time for which a browser's cache uses its copy of a resource without a validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyLifetime {
    /// The lifetime of a new response. A copy that is older needs a validation.
    pub whole: Duration,
    /// The part of the lifetime that remained when the response arrived. A copy that needs a
    /// validation is at least that old.
    pub rest: Duration,
}

/// Returns the lifetime of copies of a response; `None` if a cache can never validate one, or if a
/// 304 does not name the lifetime. `unix_time` is the time of its arrival in seconds since 1970.
pub(crate) fn copy_lifetime(head: &ResponseHead, unix_time: u64) -> Option<CopyLifetime> {
    let policy = stored_policy(head);
    let is_named = policy.control.max_age.is_some() || head.fields.contains("expires");
    if policy.forbids_storage() || !policy.has_validator {
        return None;
    }
    if policy.needs_validation() {
        return Some(CopyLifetime {
            whole: Duration::ZERO,
            rest: Duration::ZERO,
        });
    }
    if head.status == 304 && !is_named {
        return None;
    }
    let freshness = policy.freshness(CacheRules::BROWSER, Receipt::at(unix_time));
    let rest = freshness.remaining(Duration::ZERO).unwrap_or_default();
    // A response that arrives stale needs a validation at once.
    let whole = match rest.is_zero() {
        true => Duration::ZERO,
        false => freshness.lifetime.unwrap_or_default(),
    };
    Some(CopyLifetime { whole, rest })
}

/// Returns the policy of a response, or of the stored response that a 304 confirms.
pub(crate) fn stored_policy(head: &ResponseHead) -> ResponsePolicy {
    let mut policy = ResponsePolicy::of(head);
    if policy.status == 304 {
        policy.status = 200;
    }
    policy
}

/// Returns the target of a redirect, as a resource that the page needs. If the redirect sets a
/// cookie, the target may expect that cookie, and may accept only one request (a login, for
/// example). The caller must know the cookies then.
pub fn redirect_target(url: &str, head: &ResponseHead) -> Option<Need> {
    if !is_redirect(head) {
        return None;
    }
    let location = String::from_utf8_lossy(head.fields.get("location")?);
    Some(Need {
        url: resolve(url, &location)?,
        kind: Kind::Document,
        urgency: 0,
        anonymous: false,
        by_cors: false,
        referrer: None,
        via: None,
        frame: None,
        has_nonce: false,
    })
}

/// Returns whether a response is a redirect to another URL.
pub(crate) const fn is_redirect(head: &ResponseHead) -> bool {
    matches!(head.status, 301 | 302 | 303 | 307 | 308)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(status: u16, fields: &[(&str, &str)]) -> ResponseHead {
        ResponseHead {
            status,
            fields: fields.iter().copied().collect(),
        }
    }

    #[test]
    fn pushed_response_must_not_depend_on_the_user() {
        for fields in [
            &[][..],
            &[("vary", "Accept-Encoding")],
            &[("cache-control", "private, no-cache")],
        ] {
            assert!(may_be_pushed(&head(200, fields)), "{fields:?}");
        }
        for fields in [
            ("vary", "*"),
            ("vary", "Accept, Cookie"),
            ("vary", "authorization"),
            ("cache-control", "no-store"),
            ("clear-site-data", "\"cache\""),
        ] {
            assert!(!may_be_pushed(&head(200, &[fields])), "{fields:?}");
        }
        assert!(!may_be_pushed(&head(206, &[])));
    }

    #[test]
    fn only_no_store_may_be_handed_over() {
        let no_store = ("cache-control", "private, no-cache, no-store");
        assert!(may_be_handed_over(&head(200, &[no_store])));
        for fields in [
            &[][..],
            &[no_store, ("vary", "*")],
            &[no_store, ("vary", "Cookie")],
            &[no_store, ("vary", "Authorization")],
            &[no_store, ("clear-site-data", "\"cookies\"")],
        ] {
            assert!(!may_be_handed_over(&head(200, fields)), "{fields:?}");
        }
        for status in [206, 302] {
            assert!(!may_be_handed_over(&head(status, &[no_store])), "{status}");
        }
        // The field means nothing beside 200 (RFC 9110 section 14.4).
        let range = ("content-range", "bytes 0-1/2");
        assert!(may_be_handed_over(&head(200, &[no_store, range])));
    }

    #[test]
    fn error_of_a_resource_may_be_handed_over() {
        for status in [400, 403, 404, 410, 429, 451, 500, 502, 503, 504] {
            assert!(may_be_handed_over(&head(status, &[])), "{status}");
            let vary = [("vary", "Cookie")];
            assert!(!may_be_handed_over(&head(status, &vary)), "{status}");
        }
        for status in [401, 407, 408, 412, 416, 421, 425, 426, 511, 600] {
            assert!(!may_be_handed_over(&head(status, &[])), "{status}");
        }
    }

    #[test]
    fn browser_reuse_follows_the_rules_of_caches() {
        let old = ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT");
        let tag = ("etag", "\"1\"");
        let control = |value| ("cache-control", value);
        for (fields, expected) in [
            (&[][..], Reuse::Never),
            (&[control("max-age=600")], Reuse::Fresh),
            (&[control("Max-Age=\"600\"")], Reuse::Fresh),
            (
                &[("expires", "Fri, 01 Jan 2100 00:00:00 GMT")],
                Reuse::Fresh,
            ),
            (&[old], Reuse::Fresh),
            (&[tag], Reuse::Validate),
            (&[tag, control("max-age=600, no-cache")], Reuse::Validate),
            (&[old, control("max-age=0")], Reuse::Validate),
            (&[control("max-age=\"0\"")], Reuse::Never),
            (&[control("s-maxage=600")], Reuse::Never),
            (&[control("no-store, max-age=600"), tag], Reuse::Never),
            (&[("expires", "0")], Reuse::Never),
            (
                &[("expires", "Thu, 01 Jan 1970 00:00:00 GMT")],
                Reuse::Never,
            ),
            (&[("last-modified", "once")], Reuse::Never),
        ] {
            let reuse = browser_reuse(&head(200, fields), 1_700_000_000);
            assert_eq!(reuse, expected, "{fields:?}");
        }
    }

    #[test]
    fn kept_copy_is_of_use_until_its_end() {
        let now = 1_700_000_000;
        let tag = ("etag", "\"1\"");
        let control = |value| ("cache-control", value);
        for (fields, first, later) in [
            (&[][..], Reuse::Never, Reuse::Never),
            (&[tag], Reuse::Validate, Reuse::Validate),
            (&[control("max-age=60")], Reuse::Fresh, Reuse::Never),
            (&[control("max-age=60"), tag], Reuse::Fresh, Reuse::Validate),
            (&[control("no-store"), tag], Reuse::Never, Reuse::Never),
        ] {
            let copy = KeptCopy::of(&head(200, fields), now);
            let reuse = |time| copy.map_or(Reuse::Never, |copy| copy.reuse(time));
            assert_eq!((reuse(now), reuse(now + 59)), (first, first), "{fields:?}");
            assert_eq!(reuse(now + 60), later, "{fields:?}");
        }
    }

    #[test]
    fn copy_needs_a_validation_after_its_lifetime() {
        let secs = Duration::from_secs;
        let of = |status, fields: &[_]| {
            let lifetime = copy_lifetime(&head(status, fields), 1_700_000_000)?;
            Some((lifetime.whole, lifetime.rest))
        };
        let tag = ("etag", "\"1\"");
        let control = |value| ("cache-control", value);
        let minute = Some((secs(60), secs(60)));
        let stale = Some((secs(0), secs(0)));
        for (fields, of_whole, of_304) in [
            (&[tag, control("max-age=60")][..], minute, minute),
            (
                &[tag, control("max-age=60"), ("age", "20")],
                Some((secs(60), secs(40))),
                Some((secs(60), secs(40))),
            ),
            (&[tag, control("max-age=60"), ("age", "60")], stale, stale),
            (&[tag, control("no-cache")], stale, stale),
            (&[tag, ("expires", "0")], stale, stale),
            (&[tag], stale, None),
            (&[control("max-age=60")], None, None),
            (&[tag, control("no-store, max-age=60")], None, None),
        ] {
            assert_eq!(of(200, fields), of_whole, "{fields:?}");
            assert_eq!(of(304, fields), of_304, "{fields:?}");
        }
    }

    #[test]
    fn redirect_leads_where_location_says() {
        let of = |status, fields: &[_]| redirect_target("http://h/a/b", &head(status, fields));
        for status in [301, 302, 303, 307, 308] {
            let target = of(status, &[("location", "c")]).unwrap();
            assert_eq!(target.url, "http://h/a/c", "{status}");
            assert_eq!((target.kind, target.urgency), (Kind::Document, 0));
        }
        for status in [200, 300, 304, 305, 306] {
            assert_eq!(of(status, &[("location", "c")]), None, "{status}");
        }
        assert_eq!(of(302, &[]), None);
        assert_eq!(of(302, &[("location", "mailto:a")]), None);
    }

    #[test]
    fn pushable_status_is_cacheable_or_redirect() {
        for status in [200, 203, 204, 300, 301, 302, 303, 307, 308, 404, 410] {
            assert!(is_pushable_status(status), "{status}");
        }
        for status in [100, 201, 205, 206, 299, 304, 306, 309, 400, 401, 403, 500] {
            assert!(!is_pushable_status(status), "{status}");
        }
    }
}
