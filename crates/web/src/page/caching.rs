//! The caching fields of a page's responses, and the state of a browser's cache that kept them.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tandem_http::cache::{CacheRules, Receipt, ResponsePolicy};
use tandem_http::{Fields, RequestHead, ResponseHead};

use super::{ResourceKind, Site};

/// The age of every resource: the heuristic lifetime is a tenth of it.
const UNCHANGED: Duration = Duration::from_secs(73 * 3600 + 1800);
/// The `Cache-Control` of pages that were not recorded.
const WEEK: &str = "public, max-age=604800";
/// Longest `Cache-Control` that is taken from a recording.
const LONGEST: usize = 300;

/// A browser's cache, which may give a response without a known lifetime a heuristic one.
const BROWSER: CacheRules = CacheRules {
    shared: false,
    heuristics: true,
};

/// The caching fields of a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caching {
    /// `Cache-Control`; `None` for a response without the field.
    pub control: Option<String>,
    /// The response has `ETag` and `Last-Modified`.
    pub validators: bool,
}

/// The copy of a response in a browser's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// No copy, or one that cannot be used.
    Absent,
    /// A copy that the origin must validate.
    Stale,
    /// A copy that needs no request.
    Fresh,
}

impl Default for Caching {
    fn default() -> Self {
        Self {
            control: Some(WEEK.into()),
            validators: true,
        }
    }
}

impl Caching {
    /// Reads the fields of a recorded response. Where the recording has no fields, documents must
    /// be validated, as on most sites.
    pub(super) fn recorded(fields: &[(String, String)], kind: ResourceKind) -> Self {
        if fields.is_empty() {
            return match kind {
                ResourceKind::Html => Self {
                    control: Some("no-cache".into()),
                    validators: true,
                },
                _ => Self::default(),
            };
        }
        let all = |name: &str| {
            let named = fields
                .iter()
                .filter(|(own, _)| own.eq_ignore_ascii_case(name));
            named.map(|(_, value)| value.as_str()).collect::<Vec<_>>()
        };
        let control = all("cache-control").join(", ");
        Self {
            control: is_value(&control).then_some(control),
            validators: !all("etag").is_empty() || !all("last-modified").is_empty(),
        }
    }

    /// Returns true if the fields can be sent.
    pub(super) fn is_valid(&self) -> bool {
        self.control.as_deref().is_none_or(is_value)
    }
}

fn is_value(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= LONGEST
        && text.bytes().all(|b| b == b' ' || b.is_ascii_graphic())
}

/// Returns a time as the value of a field. Proxies compare it with their clocks, so a response has
/// the present date. All dates have the same length.
pub(crate) fn date(time: SystemTime) -> String {
    httpdate::fmt_http_date(time)
}

impl Site {
    /// Returns the caching fields of a resource in a response that is made at `now`.
    pub(crate) fn caching_fields(&self, index: usize, now: SystemTime) -> Fields {
        let caching = &self.page().resources[index].caching;
        let mut fields = Fields::new();
        if caching.validators {
            fields.push("last-modified", date(now - UNCHANGED));
            fields.push("etag", &self.asset(index).etag);
        }
        if let Some(control) = &caching.control {
            fields.push("cache-control", control);
        }
        fields
    }

    /// Returns the state of a browser's copy of a resource after `age` in its cache.
    pub(crate) fn kept(&self, index: usize, age: Duration) -> Kept {
        let resource = &self.page().resources[index];
        let mut head = ResponseHead::new(resource.status);
        // Only the difference of the dates counts.
        let now = SystemTime::UNIX_EPOCH + 2 * UNCHANGED;
        head.fields = self.caching_fields(index, now);
        head.fields.push("date", date(now));
        let policy = ResponsePolicy::of(&head);
        let request = RequestHead::get(self.scheme(), self.authority(index), &resource.path);
        if !policy.is_storable(&request, BROWSER) {
            return Kept::Absent;
        }
        let freshness = policy.freshness(BROWSER, Receipt::default());
        if freshness.is_fresh(age) && !policy.needs_validation() {
            Kept::Fresh
        } else if policy.has_validator && resource.status == 200 {
            Kept::Stale
        } else {
            Kept::Absent
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Page;
    use super::*;

    fn site(control: Option<&str>, validators: bool) -> Site {
        let mut page = Page::gallery(1, 2000);
        page.resources[1].caching = Caching {
            control: control.map(str::to_owned),
            validators,
        };
        Site::new(page, &["site.test"]).expect("a valid page")
    }

    #[test]
    fn kept_copies_follow_the_caching_rules() {
        let hour = Duration::from_secs(3600);
        for (control, validators, age, kept) in [
            (Some("max-age=7200"), true, hour, Kept::Fresh),
            (Some("max-age=60"), true, hour, Kept::Stale),
            (Some("max-age=60"), false, hour, Kept::Absent),
            (Some("no-cache, max-age=7200"), true, hour, Kept::Stale),
            (Some("no-store"), true, hour, Kept::Absent),
            (Some("private, max-age=7200"), true, hour, Kept::Fresh),
            // A tenth of the three days since the modification.
            (None, true, hour, Kept::Fresh),
            (None, true, 24 * hour, Kept::Stale),
            (None, false, hour, Kept::Absent),
        ] {
            let found = site(control, validators).kept(1, age);
            assert_eq!(found, kept, "{control:?}, validators: {validators}");
        }
    }

    #[test]
    fn recorded_fields_are_joined_and_checked() {
        let fields = |fields: &[(&str, &str)]| {
            let fields: Vec<_> = fields
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            Caching::recorded(&fields, ResourceKind::Image)
        };
        let both = fields(&[("Cache-Control", "public"), ("cache-control", "max-age=9")]);
        assert_eq!(both.control.as_deref(), Some("public, max-age=9"));
        assert!(!both.validators);
        let bad = fields(&[("cache-control", "max-age=9\r\nx: y"), ("ETag", "\"1\"")]);
        assert_eq!((bad.control, bad.validators), (None, true));
        let document = Caching::recorded(&[], ResourceKind::Html);
        assert_eq!(document.control.as_deref(), Some("no-cache"));
    }
}
