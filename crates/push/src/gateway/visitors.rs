//! The sites that the browser of a session may have visited before, and the signs of such visits.
//!
//! A new session knows nothing about the browser's cache. The first page of a site gives signs,
//! the strongest first:
//!
//! | sign | visit |
//! |---|---|
//! | a conditional request for something that this session did not bring | returning |
//! | cookies in the request, or a referrer of the same site | returning |
//! | the response sets a cookie, and the request had none | first |
//! | a cache could have kept the page with a validator, and the request has no condition | first |
//! | none of these | unknown |
//!
//! The bodies of a first visit are sent at once. On all other visits they wait for claims of
//! resources that a cache can keep. Each claim releases more bodies than the last, and a few claims
//! release all (see `claims`). A page of an unknown visit is treated as that of a returning
//! visitor, unless the browser's cache was empty when the session began. Waiting costs a first
//! visit one round trip, and a body that a cache holds costs its whole length. The bodies that
//! nearly all visits transfer are therefore sent at once, if the browser has not shown an earlier
//! visit.

use std::collections::HashMap;
use std::time::Duration;

use tandem_http::cache::{ResponsePolicy, validation};
use tandem_http::{RequestHead, ResponseHead};

use super::claims::{Claims, KnownSince, Trust};
use crate::fetch_standard::is_navigation;
use crate::site::{is_same_site, site_of};
use crate::url;

/// The largest number of sites that are remembered. A full table is cleared.
const MAX_SITES: usize = 1024;

/// The visit to a site, as far as signs tell.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Visit {
    First,
    /// The browser may have been there, and has made these claims since.
    Unknown(Claims),
    /// The browser has been there, and has made these claims since.
    Returning(Claims),
}

impl Visit {
    fn unknown() -> Self {
        Self::Unknown(Claims::default())
    }
}

/// The sites of a session.
#[derive(Default)]
pub(super) struct Visitors {
    sites: HashMap<String, Visit>,
    /// The least age of the copies that the browser has of a site's resources, unless this session
    /// brought or confirmed them.
    ages: HashMap<String, Duration>,
}

impl Visitors {
    /// Returns the trust in a site's next page, whose oldest resource has this age. The first page
    /// of a site decides by its signs.
    pub(super) fn trust(
        &mut self,
        site: String,
        oldest: KnownSince,
        is_first_visit: impl FnOnce() -> bool,
    ) -> Trust {
        if self.sites.len() >= MAX_SITES && !self.sites.contains_key(&site) {
            self.sites.clear();
        }
        let visit = self.sites.entry(site).or_insert_with(Visit::unknown);
        if *visit == Visit::unknown() && is_first_visit() {
            *visit = Visit::First;
        }
        match visit {
            Visit::First => Trust::Full,
            Visit::Unknown(claims) | Visit::Returning(claims) => Trust::after(claims, oldest),
        }
    }

    /// Records that the browser has visited a site before this session.
    pub(super) fn note_return(&mut self, site: String) {
        if self.sites.len() < MAX_SITES || self.sites.contains_key(&site) {
            self.sites.insert(site, Visit::Returning(Claims::default()));
        }
    }

    /// Returns whether the browser has shown that it visited a site before this session.
    pub(super) fn has_returned(&self, site: &str) -> bool {
        matches!(self.sites.get(site), Some(Visit::Returning(_)))
    }

    /// Records that the browser's copies of a site's resources have at least this age. Returns
    /// whether that is more than was known.
    pub(super) fn note_age(&mut self, site: &str, age: Duration) -> bool {
        if self.ages.get(site).is_some_and(|known| *known >= age) {
            return false;
        }
        if self.ages.len() >= MAX_SITES {
            self.ages.clear();
        }
        self.ages.insert(site.to_owned(), age);
        true
    }

    /// Returns the least age of the browser's copies of a site's resources, if it is known.
    pub(super) fn age(&self, site: &str) -> Option<Duration> {
        self.ages.get(site).copied()
    }

    /// Forgets the ages of copies, because the browser has lost its cache.
    pub(super) fn forget_ages(&mut self) {
        self.ages.clear();
    }

    /// Records that the browser is at a site for the first time, unless an earlier sign shows a
    /// return.
    pub(super) fn note_first_visit(&mut self, site: String) {
        if self.sites.len() < MAX_SITES {
            let visit = self.sites.entry(site).or_insert(Visit::First);
            if matches!(visit, Visit::Unknown(_)) {
                *visit = Visit::First;
            }
        }
    }

    /// Counts a claim at a site of a resource of this age. Returns the trust in the page after it,
    /// whose oldest resource is of the age `oldest`.
    pub(super) fn note_claim(
        &mut self,
        site: &str,
        claimed: KnownSince,
        oldest: KnownSince,
    ) -> Trust {
        match self.sites.get_mut(site) {
            None | Some(Visit::First) => Trust::Full,
            Some(Visit::Unknown(claims) | Visit::Returning(claims)) => {
                claims.add(claimed);
                Trust::after(claims, oldest)
            }
        }
    }
}

/// Returns the site that a request visits. For a page it is the site of the target, and for a part
/// of a page that of the referrer.
pub(super) fn visited_site(request: &RequestHead) -> String {
    match referring_authority(request) {
        Some(referrer) if !is_navigation(request) => site_of(referrer),
        _ => site_of(&request.authority),
    }
}

/// Returns the authority that the `Referer` of a request names.
pub(super) fn referring_authority(request: &RequestHead) -> Option<&str> {
    let referrer = std::str::from_utf8(request.fields.get("referer")?).ok()?;
    Some(url::authority(referrer)).filter(|authority| !authority.is_empty())
}

/// Returns whether the response gives the browser its first cookie of the site.
pub(super) fn gets_first_cookie(request: &RequestHead, head: &ResponseHead) -> bool {
    !shows_return(request) && head.fields.contains("set-cookie")
}

/// Returns whether the response to a page's request shows a first visit.
pub(super) fn is_first_visit(request: &RequestHead, head: &ResponseHead) -> bool {
    let policy = ResponsePolicy::of(head);
    let would_validate = policy.has_validator && !policy.forbids_storage();
    gets_first_cookie(request, head) || (has_no_sign(request) && would_validate)
}

/// Returns true if a request shows no earlier visit to its site.
pub(super) fn has_no_sign(request: &RequestHead) -> bool {
    !shows_return(request) && !validation::is_conditional(&request.fields)
}

/// Returns whether a request shows an earlier visit to its site.
fn shows_return(request: &RequestHead) -> bool {
    request.fields.contains("cookie") || comes_from_site(request)
}

/// Returns whether a page of the same site led to a request.
pub(super) fn comes_from_site(request: &RequestHead) -> bool {
    referring_authority(request).is_some_and(|referrer| is_same_site(referrer, &request.authority))
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::super::claims::ENOUGH_CLAIMS;
    use super::*;

    fn request(fields: &[(&str, &str)]) -> RequestHead {
        RequestHead {
            fields: fields.iter().copied().collect(),
            ..RequestHead::get(Scheme::Http, "www.a.test:81", "/")
        }
    }

    /// Returns the trust in the first page of a site.
    fn trust(visitors: &mut Visitors, site: &str, is_first_visit: bool) -> Trust {
        visitors.trust(site.to_owned(), KnownSince::at(0), || is_first_visit)
    }

    /// No body is sent before a claim.
    fn none() -> Trust {
        Trust::After(Claims::default())
    }

    fn is_first(asked: &[(&str, &str)], answered: &[(&str, &str)]) -> bool {
        let head = ResponseHead {
            status: 200,
            fields: answered.iter().copied().collect(),
        };
        is_first_visit(&request(asked), &head)
    }

    #[test]
    fn first_visit_shows_in_cookies_and_validators() {
        let sets = ("set-cookie", "a=b");
        let tag = ("etag", "\"1\"");
        assert!(is_first(&[], &[sets]));
        assert!(is_first(&[], &[tag]));
        assert!(is_first(
            &[],
            &[("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT")]
        ));
        assert!(is_first(&[("referer", "http://b.test/")], &[sets]));
        assert!(!is_first(&[], &[]), "unknown");
        assert!(
            !is_first(&[], &[tag, ("cache-control", "no-store")]),
            "unknown"
        );
        assert!(!is_first(&[("if-none-match", "\"0\"")], &[tag]));
        assert!(!is_first(&[("cookie", "a=b")], &[sets, tag]));
        assert!(!is_first(&[("referer", "http://a.test/x")], &[sets, tag]));
    }

    #[test]
    fn claims_make_a_page_trusted() {
        let mut visitors = Visitors::default();
        let (old, new) = (KnownSince::at(0), KnownSince::at(1_000_000));
        let mut claims = Claims::default();
        assert_eq!(trust(&mut visitors, "a.test", false), none());
        for number in 1..=ENOUGH_CLAIMS {
            claims.add(new);
            let of_old = Trust::After(claims.clone());
            let of_new = match number {
                ENOUGH_CLAIMS => Trust::Full,
                _ => of_old.clone(),
            };
            assert_eq!(visitors.note_claim("a.test", new, old), of_old);
            let next = visitors.trust("a.test".to_owned(), new, || panic!("claims decide"));
            assert_eq!(next, of_new, "the next page");
        }
        let other = visitors.note_claim("b.test", new, old);
        assert_eq!(other, Trust::Full, "it was never held");
    }

    #[test]
    fn age_of_copies_rises_only() {
        let mut visitors = Visitors::default();
        let secs = Duration::from_secs;
        assert_eq!(visitors.age("a.test"), None);
        assert!(visitors.note_age("a.test", secs(0)));
        assert!(visitors.note_age("a.test", secs(60)));
        assert!(!visitors.note_age("a.test", secs(60)) && !visitors.note_age("a.test", secs(9)));
        assert_eq!(visitors.age("a.test"), Some(secs(60)));
        assert_eq!(visitors.age("b.test"), None);
        for number in 1..2 * MAX_SITES {
            visitors.note_age(&format!("{number}.test"), secs(1));
            assert!(visitors.ages.len() <= MAX_SITES);
        }
        assert_eq!(visitors.ages.len(), MAX_SITES);
        visitors.forget_ages();
        assert!(visitors.ages.is_empty());
    }

    #[test]
    fn conditional_request_outweighs_other_signs() {
        let mut visitors = Visitors::default();
        let site = || "a.test".to_owned();
        assert_eq!(trust(&mut visitors, "a.test", true), Trust::Full);
        visitors.note_return(site());
        visitors.note_first_visit(site());
        assert_eq!(trust(&mut visitors, "a.test", true), none());
        let other = || "b.test".to_owned();
        assert_eq!(trust(&mut visitors, "b.test", false), none());
        visitors.note_first_visit(other());
        assert_eq!(trust(&mut visitors, "b.test", false), Trust::Full);
    }

    #[test]
    fn visited_site_is_that_of_the_referrer() {
        assert_eq!(visited_site(&request(&[])), "a.test");
        let of_page = request(&[("referer", "http://shop.b.test/x")]);
        assert_eq!(visited_site(&of_page), "b.test");
        assert_eq!(
            visited_site(&request(&[("referer", "about:blank")])),
            "a.test"
        );
        let link = [("referer", "http://b.test/"), ("accept", "text/html")];
        assert_eq!(visited_site(&request(&link)), "a.test");
    }

    #[test]
    fn visitors_remember_a_bounded_number_of_sites() {
        let mut visitors = Visitors::default();
        for number in 0..3 * MAX_SITES {
            trust(&mut visitors, &format!("{number}.test"), true);
            visitors.note_return(format!("r{number}.test"));
            visitors.note_first_visit(format!("f{number}.test"));
            assert!(visitors.sites.len() <= MAX_SITES);
        }
        assert!(visitors.sites.len() > 3, "a full table starts again");
    }

    #[test]
    fn full_table_remembers_the_sites_that_it_has() {
        let mut visitors = Visitors::default();
        let name = |number: usize| format!("{number}.test");
        for number in 0..MAX_SITES {
            trust(&mut visitors, &name(number), true);
        }
        assert_eq!(trust(&mut visitors, &name(0), false), Trust::Full);
        visitors.note_return(name(0));
        visitors.note_return("other.test".to_owned());
        assert_eq!(trust(&mut visitors, &name(0), true), none());
        assert_eq!(trust(&mut visitors, &name(1), false), Trust::Full);
    }
}
