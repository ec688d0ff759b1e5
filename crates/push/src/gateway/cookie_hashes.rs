//! The cookies of a visit as hashes. They tell whether the next visit may be by the same browser.

use std::hash::{DefaultHasher, Hash, Hasher};

use tandem_http::RequestHead;

use crate::cookies::cookies_of;

/// The largest number of cookies that are remembered for a visit.
const MAX_COOKIES: usize = 64;

/// The hashes of the names and values of cookies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CookieHashes(Vec<u64>);

impl CookieHashes {
    /// Returns the cookies of a request.
    pub(super) fn of(request: &RequestHead) -> Self {
        Self::of_field(&cookies_of(&request.fields))
    }

    /// Returns the cookies of a `Cookie` field.
    pub(super) fn of_field(field: &[u8]) -> Self {
        let pairs = field.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let hash = |pair: &[u8]| {
            let mut hasher = DefaultHasher::new();
            pair.hash(&mut hasher);
            hasher.finish()
        };
        let pairs = pairs.filter(|pair| !pair.is_empty());
        Self(pairs.take(MAX_COOKIES).map(hash).collect())
    }

    /// Adds other cookies.
    pub(super) fn add(&mut self, other: Self) {
        let new = other.0.into_iter();
        let new: Vec<_> = new.filter(|cookie| !self.0.contains(cookie)).collect();
        let room = MAX_COOKIES.saturating_sub(self.0.len());
        self.0.extend(new.into_iter().take(room));
    }

    /// Returns whether a visit with the cookies of `next` may follow one with these. It may if one
    /// of them is left, or if there was none: the site sets the first cookies.
    pub(super) fn may_precede(&self, next: &Self) -> bool {
        self.0.is_empty() || self.0.iter().any(|cookie| next.0.contains(cookie))
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    fn cookies(fields: &[&str]) -> CookieHashes {
        let fields = fields.iter().map(|value| ("cookie", *value));
        CookieHashes::of(&RequestHead {
            fields: fields.collect(),
            ..RequestHead::get(Scheme::Https, "a.test", "/")
        })
    }

    #[test]
    fn visits_of_one_browser_share_a_cookie() {
        for (before, after, expected) in [
            (&[][..], &[][..], true),
            (&[], &["a=1"], true),
            (&["a=1; b=2"], &["b=2;c=3"], true),
            (&["a=1", "b=2"], &["c=3; b=2 "], true),
            (&["a=1"], &[], false),
            (&["a=1"], &["a=2; b=1"], false),
        ] {
            let may_precede = cookies(before).may_precede(&cookies(after));
            assert_eq!(may_precede, expected, "{before:?} {after:?}");
        }
    }

    #[test]
    fn cookies_of_a_visit_are_bounded() {
        let many: String = (0..1000).map(|number| format!("{number}=1;")).collect();
        assert_eq!(cookies(&[&many]).0.len(), MAX_COOKIES);
        assert_eq!(cookies(&["; ;"]), CookieHashes::default());
        let mut few = cookies(&["a=1"]);
        few.add(cookies(&["a=1; b=1"]));
        assert_eq!(few, cookies(&["a=1; b=1"]));
        few.add(cookies(&[&many]));
        assert_eq!(few.0.len(), MAX_COOKIES);
    }
}
