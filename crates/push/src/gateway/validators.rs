//! The validators of the responses that the session has brought (RFC 9110 section 8.8).
//!
//! A check of an old copy is a conditional request if the validator of the copy is known. An origin
//! that has another version then sends it in its response, and needs no second request. Without a
//! validator the check is a HEAD request.
//!
//! A validator can name a browser as a cookie does, and windows with different cookies may use one
//! session. A request therefore carries a validator only if it has the cookies of the request whose
//! response had that validator. Without cookies, the request for the page must have named the
//! validator that the page had last: the same window has then requested the page before.
//!
//! A redirect or the response to a form may change the cookies of a site, as a login does. The next
//! user often gets other versions. Copies from before are then not checked until the browser has
//! requested them again.

use std::collections::HashMap;

use tandem_http::cache::validation::validates_copy;
use tandem_http::{RequestHead, ResponseHead};

use crate::response_rules::may_be_pushed;
use crate::site::site_of;
use crate::url::{authority, request_url};
use crate::wire::RequestHashes;

/// The largest number of URLs whose validators are known. A full table is cleared.
const MAX_VALIDATORS: usize = 512;

/// The largest length in bytes of all URLs and validators together.
const MAX_TOTAL: usize = 64 << 10;

/// The length in bytes of the longest URL and validator together.
const MAX_LENGTH: usize = 512;

/// The validators in the order in which a request names them, with their conditions.
const CONDITIONS: [(&str, &str); 2] = [
    ("etag", "if-none-match"),
    ("last-modified", "if-modified-since"),
];

/// A field that makes a request conditional.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) name: &'static str,
    pub(super) value: Box<[u8]>,
}

impl Condition {
    /// Returns the condition that a copy of a response allows.
    fn of(head: &ResponseHead) -> Option<Self> {
        CONDITIONS.iter().find_map(|(validator, name)| {
            let value = head.fields.get(validator)?.into();
            Some(Self { name, value })
        })
    }

    /// Returns whether a request has the condition.
    fn is_in(&self, request: &RequestHead) -> bool {
        let value = request.fields.get(self.name);
        value.is_some_and(|value| is_same(value, &self.value))
    }
}

/// Returns whether two validators name one version. A proxy that codes a body weakens its tag.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    opaque_tag(one) == opaque_tag(other)
}

/// Returns an entity tag without the mark of weak ones (RFC 9110 section 8.8.3.2).
fn opaque_tag(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// Adds the validator to a 304 that lacks it, and returns whether a response has the validator that
/// the condition of a request names.
pub(super) fn confirm(request: &RequestHead, head: &mut ResponseHead) -> bool {
    let named = CONDITIONS.iter().find_map(|(validator, name)| {
        let value = request.fields.get(name)?;
        Some((validator, value))
    });
    let Some((validator, value)) = named else {
        return false;
    };
    if head.status == 304 && !head.fields.contains(validator) {
        head.fields.push(validator, value);
    }
    let own = head.fields.get(validator);
    own.is_some_and(|own| is_same(own, value))
}

/// The last response of a URL.
struct Known {
    url: Box<str>,
    /// The hashes of the fields of its request.
    asked: RequestHashes,
    condition: Condition,
    /// True if a check with the condition was of no use, and the browser has named no validator
    /// since.
    is_barred: bool,
    /// True if the user has probably changed since the response.
    is_former: bool,
}

impl Known {
    /// Returns the length in bytes of the URL and the validator together.
    fn length(&self) -> usize {
        self.url.len() + self.condition.value.len()
    }
}

/// The validators of a session, by the hashes of URLs.
#[derive(Default)]
pub(super) struct Validators {
    tables: Option<Box<Tables>>,
}

#[derive(Default)]
struct Tables {
    known: HashMap<u32, Known>,
    /// The length in bytes of all URLs and validators together.
    length: usize,
    /// The URL hash of the last page whose request has named the validator of the page.
    returning: Option<u32>,
}

impl Validators {
    /// Notes the response to a request for a URL with this hash. `is_of_browser` is true for the
    /// browser's own request.
    pub(super) fn note(
        &mut self,
        hash: u32,
        request: &RequestHead,
        head: &ResponseHead,
        is_of_browser: bool,
    ) {
        let is_named = is_of_browser && validates_copy(&request.fields);
        if head.status == 304 {
            let known = self.get_mut(hash);
            if let Some(known) = known.filter(|known| is_named && known.condition.is_in(request)) {
                known.is_barred = false;
                known.is_former = false;
            }
            return;
        }
        if head.status != 200 {
            return;
        }
        let condition = Condition::of(head).filter(|_| may_be_pushed(head));
        let (Some(condition), Some(url)) = (condition, request_url(request)) else {
            return self.forget(hash);
        };
        let was_barred = self.get_mut(hash).is_some_and(|known| known.is_barred);
        self.forget(hash);
        let known = Known {
            url: url.into(),
            asked: RequestHashes::of(&request.fields),
            condition,
            is_barred: was_barred && !is_named,
            is_former: false,
        };
        let length = known.length();
        if length > MAX_LENGTH {
            return;
        }
        let tables = self.tables.get_or_insert_default();
        if tables.known.len() >= MAX_VALIDATORS || tables.length + length > MAX_TOTAL {
            tables.known.clear();
            tables.length = 0;
        }
        tables.length += length;
        tables.known.insert(hash, known);
    }

    /// Notes the request for a page, before its response.
    pub(super) fn note_page(&mut self, hash: u32, request: &RequestHead) {
        let is_named = self.get_mut(hash).is_some_and(|known| {
            let url = request_url(request);
            known.condition.is_in(request) && url.is_some_and(|url| *url == *known.url)
        });
        if let Some(tables) = &mut self.tables {
            tables.returning = is_named.then_some(hash);
        }
    }

    /// Returns the condition for a request, which a page with this URL hash causes.
    pub(super) fn condition(
        &self,
        hash: u32,
        request: &RequestHead,
        page: u32,
    ) -> Option<&Condition> {
        let tables = self.tables.as_deref()?;
        let known = tables.known.get(&hash).filter(|known| !known.is_barred)?;
        let asked = RequestHashes::of(&request.fields);
        let is_same_browser = known.asked.has_same_inherited(asked)
            && known.asked.has_same_cookie(asked)
            && (asked.has_cookies() || tables.returning == Some(page));
        let is_same_url = request_url(request).is_some_and(|url| *url == *known.url);
        (is_same_browser && is_same_url).then_some(&known.condition)
    }

    /// Notes that a check of a URL was of no use.
    pub(super) fn bar(&mut self, hash: u32) {
        if let Some(known) = self.get_mut(hash) {
            known.is_barred = true;
        }
    }

    /// Notes that the user of a site has probably changed.
    pub(super) fn note_other_user(&mut self, site: &str) {
        let tables = self.tables.iter_mut();
        let known = tables.flat_map(|tables| tables.known.values_mut());
        let of_site = known.filter(|known| site_of(authority(&known.url)) == site);
        of_site.for_each(|known| known.is_former = true);
    }

    /// Returns whether the response of a URL was probably for another user than the next one. Its
    /// copy is then not worth a check.
    pub(super) fn is_of_former_user(&self, hash: u32) -> bool {
        let known = self.tables.as_ref().and_then(|it| it.known.get(&hash));
        known.is_some_and(|known| known.is_former)
    }

    /// Notes that the browser has lost its copies, or is another one. Its requests must name the
    /// validators first.
    pub(super) fn bar_all(&mut self) {
        let tables = self.tables.iter_mut();
        let known = tables.flat_map(|tables| tables.known.values_mut());
        known.for_each(|known| known.is_barred = true);
    }

    fn forget(&mut self, hash: u32) {
        if let Some(tables) = &mut self.tables
            && let Some(known) = tables.known.remove(&hash)
        {
            tables.length -= known.length();
        }
    }

    fn get_mut(&mut self, hash: u32) -> Option<&mut Known> {
        self.tables.as_mut()?.known.get_mut(&hash)
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    const PAGE: u32 = 1;
    const IMAGE: u32 = 2;

    fn request(path: &str, fields: &[(&str, &str)]) -> RequestHead {
        RequestHead {
            fields: fields.iter().copied().collect(),
            ..RequestHead::get(Scheme::Http, "a.test", path)
        }
    }

    fn head(status: u16, fields: &[(&str, &str)]) -> ResponseHead {
        let fields = fields.iter().copied().collect();
        ResponseHead { status, fields }
    }

    fn value(validators: &Validators, asked: &RequestHead) -> Option<String> {
        let condition = validators.condition(IMAGE, asked, PAGE)?;
        let value = String::from_utf8_lossy(&condition.value);
        Some(format!("{}: {value}", condition.name))
    }

    #[test]
    fn condition_needs_the_same_cookies() {
        let (own, other) = (("cookie", "a=1"), ("cookie", "a=2"));
        let mut validators = Validators::default();
        let tag = head(200, &[("etag", "\"1\""), ("last-modified", "x")]);
        validators.note(IMAGE, &request("/i", &[own]), &tag, true);
        let expected = Some("if-none-match: \"1\"".to_owned());
        assert_eq!(value(&validators, &request("/i", &[own])), expected);
        for asked in [
            request("/i", &[other]),
            request("/i", &[]),
            request("/j", &[own]),
            request("/i", &[own, ("user-agent", "other")]),
        ] {
            assert_eq!(value(&validators, &asked), None, "{asked:?}");
        }
        validators.bar_all();
        assert_eq!(value(&validators, &request("/i", &[own])), None);
    }

    #[test]
    fn page_without_cookies_must_name_its_validator() {
        let mut validators = Validators::default();
        let plain = request("/i", &[]);
        let dated = head(200, &[("last-modified", "monday")]);
        validators.note(IMAGE, &plain, &dated, true);
        for (condition, expected) in [
            ("", None),
            ("\"old\"", None),
            ("\"p\"", Some("if-modified-since: monday".to_owned())),
        ] {
            let tag = head(200, &[("etag", "\"p\"")]);
            validators.note(PAGE, &request("/", &[]), &tag, true);
            validators.note_page(PAGE, &request("/", &[("if-none-match", condition)]));
            let newer = head(200, &[("etag", "\"new\"")]);
            validators.note(PAGE, &request("/", &[]), &newer, true);
            assert_eq!(value(&validators, &plain), expected, "{condition}");
        }
    }

    #[test]
    fn useless_condition_waits_for_the_browser() {
        let own = ("cookie", "a=1");
        let (plain, tag) = (request("/i", &[own]), head(200, &[("etag", "\"1\"")]));
        let mut validators = Validators::default();
        validators.note(IMAGE, &plain, &tag, true);
        validators.bar(IMAGE);
        validators.note(IMAGE, &plain, &tag, true);
        assert_eq!(value(&validators, &plain), None);
        let named = request("/i", &[own, ("if-none-match", "\"1\"")]);
        validators.note(IMAGE, &named, &head(304, &[]), false);
        assert_eq!(value(&validators, &plain), None, "it is the gateway's own");
        validators.note(IMAGE, &named, &head(304, &[]), true);
        assert!(value(&validators, &plain).is_some());
    }

    #[test]
    fn response_without_a_validator_ends_the_condition() {
        let plain = request("/i", &[("cookie", "a=1")]);
        let tag = ("etag", "\"1\"");
        for fields in [&[][..], &[tag, ("cache-control", "no-store")]] {
            let mut validators = Validators::default();
            validators.note(IMAGE, &plain, &head(200, &[tag]), true);
            validators.note(IMAGE, &plain, &head(404, &[]), true);
            assert!(value(&validators, &plain).is_some());
            validators.note(IMAGE, &plain, &head(200, fields), true);
            assert_eq!(value(&validators, &plain), None, "{fields:?}");
        }
    }

    #[test]
    fn next_response_ends_that_of_the_former_user() {
        let plain = request("/i", &[("cookie", "a=1")]);
        let tag = head(200, &[("etag", "\"1\"")]);
        let named = request("/i", &[("if-none-match", "\"1\"")]);
        for (asked, next) in [(&plain, &tag), (&named, &head(304, &[]))] {
            let mut validators = Validators::default();
            validators.note(IMAGE, &plain, &tag, true);
            validators.note_other_user("other.test");
            assert!(!validators.is_of_former_user(IMAGE));
            validators.note_other_user("a.test");
            assert!(validators.is_of_former_user(IMAGE));
            validators.note(IMAGE, asked, next, true);
            assert!(!validators.is_of_former_user(IMAGE));
        }
    }

    #[test]
    fn validators_are_bounded() {
        let tag = head(200, &[("etag", "\"1\"")]);
        let mut validators = Validators::default();
        for hash in 0..2 * MAX_VALIDATORS as u32 + 1 {
            validators.note(hash, &request("/i", &[]), &tag, true);
        }
        let count = validators.tables.map(|tables| tables.known.len());
        assert_eq!(count, Some(1));
        let mut validators = Validators::default();
        let path = format!("/{}", "x".repeat(MAX_LENGTH / 2));
        for hash in 0..2 * MAX_VALIDATORS as u32 {
            validators.note(hash % 300, &request(&path, &[]), &tag, true);
            let tables = validators.tables.as_deref().expect("one is known");
            assert!(tables.length <= MAX_TOTAL);
            let length: usize = tables.known.values().map(Known::length).sum();
            assert_eq!(tables.length, length);
        }
        let mut validators = Validators::default();
        let long = "x".repeat(MAX_LENGTH);
        validators.note(
            IMAGE,
            &request("/i", &[]),
            &head(200, &[("etag", &long)]),
            true,
        );
        assert!(validators.tables.is_none());
    }

    #[test]
    fn confirmation_gets_the_validator_of_its_request() {
        let asked = request("/i", &[("if-none-match", "\"1\"")]);
        for (status, fields, expected) in [
            (304, &[][..], true),
            (304, &[("etag", "\"2\"")], false),
            (200, &[("etag", "\"1\"")], true),
            (200, &[], false),
        ] {
            let mut head = head(status, fields);
            assert_eq!(confirm(&asked, &mut head), expected, "{status} {fields:?}");
        }
        assert!(!confirm(&request("/i", &[]), &mut head(304, &[])));
    }
}
