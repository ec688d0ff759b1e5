//! The field with hashes of the request for which a push was fetched.
//!
//! A promise of SPDY carries no request fields, so the client could not tell otherwise whether the
//! response fits the browser's request. The field holds 32-bit hashes of the fields on which
//! responses commonly depend, not the values. The client compares them with the hashes of its own
//! request. A short value can be guessed from its hash.

use tandem_http::Fields;

use super::url_hash::fnv1a;
use crate::browser_fields::{INHERITED_FIELDS, REQUESTED_WITH, is_hint};

/// The name of the field in the head of a push. It never leaves the pair of proxies.
pub const ASKED_FIELD: &str = "tandem-asked";

/// The name of the field in the head of a push with the metadata (`Sec-Fetch-*`) of its request.
/// The promises of some sessions do not have them.
pub const ASKED_AS_FIELD: &str = "tandem-asked-as";

/// The length of the field's value: five numbers of eight hexadecimal digits. The client hints are
/// a sixth number, if there are any.
const VALUE_LEN: usize = 40;
const VALUE_LEN_WITH_HINTS: usize = 48;

/// Hashes of the fields of a request on which responses commonly depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHashes {
    cookie: u32,
    /// All of [`INHERITED_FIELDS`], and `X-Requested-With` if the request has it. A push serves
    /// only requests with the same values. Without `X-Requested-With`, the number is that of
    /// earlier versions of the program.
    inherited: u32,
    accept: u32,
    /// The origin in `Origin`.
    origin: u32,
    /// The origin of the URL in `Referer`.
    referrer: u32,
    /// The client hints for which origins ask; 0 if there are none.
    hints: u32,
}

impl RequestHashes {
    /// Returns a number that the requests of one browser share, as far as their fields show. Those
    /// with `X-Requested-With` have another one.
    pub const fn browser(self) -> u32 {
        self.inherited
    }

    /// Computes the hashes of a request's fields.
    pub fn of(fields: &Fields) -> Self {
        let hash = |names: &[&str]| {
            let values = names
                .iter()
                .map(|name| fields.get(name).unwrap_or_default());
            fnv1a(values.flat_map(|value| value.iter().copied().chain([b'\n'])))
        };
        Self {
            cookie: hash(&["cookie"]),
            inherited: match fields.contains(REQUESTED_WITH) {
                false => hash(&INHERITED_FIELDS),
                true => hash(&with_mark()),
            },
            accept: hash(&["accept"]),
            origin: origin_hash(fields.get("origin").unwrap_or_default()),
            referrer: origin_hash(fields.get("referer").unwrap_or_default()),
            hints: hints_hash(fields),
        }
    }

    /// Returns the value of the field.
    pub fn encode(self) -> String {
        let Self {
            cookie,
            inherited,
            accept,
            origin,
            referrer,
            hints,
        } = self;
        let mut value =
            format!("{cookie:08x}{inherited:08x}{accept:08x}{origin:08x}{referrer:08x}");
        if hints != 0 {
            value.push_str(&format!("{hints:08x}"));
        }
        value
    }

    /// Reads the value of the field; `None` if it is not five or six numbers.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let number = |at: usize| {
            value
                .get(at..at + 8)?
                .iter()
                .try_fold(0, |number: u32, digit| {
                    Some(number << 4 | char::from(*digit).to_digit(16)?)
                })
        };
        let hashes = Self {
            cookie: number(0)?,
            inherited: number(8)?,
            accept: number(16)?,
            origin: number(24)?,
            referrer: number(32)?,
            hints: match value.len() {
                VALUE_LEN => 0,
                // Hints never have the hash zero.
                VALUE_LEN_WITH_HINTS => number(40).filter(|hints| *hints != 0)?,
                _ => return None,
            },
        };
        Some(hashes)
    }

    /// Returns whether `Origin` agrees: both requests name the same origin, or each names `target`
    /// or none. `target` is the origin of the URL.
    pub fn has_same_origin(self, other: Self, target: &str) -> bool {
        let target = origin_hash(target.as_bytes());
        let cross_origin = |origin: u32| {
            if origin == target {
                origin_hash(b"")
            } else {
                origin
            }
        };
        cross_origin(self.origin) == cross_origin(other.origin)
    }

    /// Returns whether both requests had the same origin in `Origin`, or none.
    pub const fn names_same_origin(self, other: Self) -> bool {
        self.origin == other.origin
    }

    /// Returns whether the response to this request may serve `other` as far as `Referer` decides.
    /// Both must name the same origin, or this one must name `target`, the origin of the URL. This
    /// one may also name a page if `other` names none, but not the reverse: origins answer links of
    /// their own pages in another way, and some refuse an image to requests that name no page.
    pub fn fits_referrer(self, other: Self, target: &str) -> bool {
        let target = origin_hash(target.as_bytes());
        match (self.names_page(), other.names_page()) {
            (true, true) => [target, other.referrer].contains(&self.referrer),
            (false, true) => false,
            (_, false) => true,
        }
    }

    /// Returns whether the request has a `Referer`.
    pub fn names_page(self) -> bool {
        self.referrer != origin_hash(b"")
    }

    /// Returns whether the page that caused the request is of `target`, an origin.
    pub fn has_referrer_of(self, target: &str) -> bool {
        self.referrer == origin_hash(target.as_bytes())
    }

    /// Returns whether both requests had the same values in all of [`INHERITED_FIELDS`], in
    /// `X-Requested-With` and in all client hints.
    pub const fn has_same_inherited(self, other: Self) -> bool {
        self.inherited == other.inherited && self.hints == other.hints
    }

    /// Returns the hash of the request's cookies.
    pub const fn cookie(self) -> u32 {
        self.cookie
    }

    /// Returns whether the request had cookies.
    pub fn has_cookies(self) -> bool {
        self.cookie != fnv1a([b'\n'].into_iter())
    }

    /// Returns whether both requests had the same cookies.
    pub const fn has_same_cookie(self, other: Self) -> bool {
        self.cookie == other.cookie
    }

    /// Returns whether both requests had the same value in the field `name`, in lower case; `None`
    /// if the hashes do not cover that field.
    pub fn has_same_field(self, name: &[u8], other: Self) -> Option<bool> {
        if with_mark()
            .iter()
            .any(|inherited| inherited.as_bytes() == name)
        {
            return Some(self.inherited == other.inherited);
        }
        match name {
            b"accept" => Some(self.accept == other.accept),
            b"cookie" => Some(self.cookie == other.cookie),
            _ if is_hint(name) => Some(self.hints == other.hints),
            _ => None,
        }
    }
}

/// Returns the names of the fields that must be equal for every response.
fn with_mark() -> [&'static str; INHERITED_FIELDS.len() + 1] {
    let mut names = [REQUESTED_WITH; INHERITED_FIELDS.len() + 1];
    names[..INHERITED_FIELDS.len()].copy_from_slice(&INHERITED_FIELDS);
    names
}

/// Hashes the client hints of a request, in any order.
fn hints_hash(fields: &Fields) -> u32 {
    let hints = fields.iter().filter(|field| is_hint(field.name));
    let mut hints: Vec<_> = hints.map(|field| (field.name, field.value)).collect();
    if hints.is_empty() {
        return 0;
    }
    hints.sort_unstable();
    let lines = hints.into_iter().flat_map(|(name, value)| [name, value]);
    let bytes = lines.flat_map(|line| line.iter().copied().chain([b'\n']));
    fnv1a(bytes).max(1)
}

/// Hashes the scheme-less origin of a URL: host and port.
fn origin_hash(url: &[u8]) -> u32 {
    let from = url
        .windows(3)
        .position(|part| part == b"://")
        .map_or(0, |at| at + 3);
    let length = url[from..]
        .iter()
        .position(|byte| matches!(byte, b'/' | b'?' | b'#'));
    let until = length.map_or(url.len(), |length| from + length);
    fnv1a(url[from..until].iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(fields: &[(&str, &str)]) -> RequestHashes {
        RequestHashes::of(&fields.iter().copied().collect())
    }

    #[test]
    fn hashes_tell_equal_fields_from_others() {
        let one = of(&[("user-agent", "a"), ("cookie", "c"), ("accept", "x")]);
        let other = of(&[("user-agent", "b"), ("cookie", "c"), ("accept", "y")]);
        assert!(one.has_same_cookie(other) && !one.has_same_inherited(other));
        assert!(one.has_same_inherited(one));
        let page = of(&[("referer", "http://h/page")]);
        assert!(page.has_referrer_of("http://h") && !page.has_referrer_of("http://g"));
        assert!(!one.has_same_cookie(of(&[("user-agent", "a"), ("accept", "x")])));
        assert!(one.has_cookies() && !page.has_cookies());
        assert_eq!(one.has_same_field(b"accept-encoding", other), Some(false));
        assert_eq!(one.has_same_field(b"user-agent", one), Some(true));
        assert_eq!(one.has_same_field(b"accept", other), Some(false));
        assert_eq!(one.has_same_field(b"cookie", other), Some(true));
        assert_eq!(one.has_same_field(b"x-kind", other), None);
    }

    #[test]
    fn hashes_cover_each_inherited_field() {
        for name in INHERITED_FIELDS {
            let (with, without) = (of(&[(name, "1")]), of(&[]));
            assert_eq!(with.has_same_field(name.as_bytes(), without), Some(false));
        }
        assert_ne!(
            of(&[("dnt", "1")]),
            of(&[("sec-gpc", "1")]),
            "the place of a value counts"
        );
    }

    #[test]
    fn hashes_cover_the_mark_of_script_libraries() {
        let (marked, other, none) = (
            of(&[(REQUESTED_WITH, "a")]),
            of(&[(REQUESTED_WITH, "b")]),
            of(&[]),
        );
        for hashes in [other, none] {
            assert!(marked.has_same_inherited(marked) && !marked.has_same_inherited(hashes));
            let name = REQUESTED_WITH.as_bytes();
            assert_eq!(marked.has_same_field(name, hashes), Some(false));
        }
        assert!(none.has_same_inherited(of(&[("accept", "application/json")])));
    }

    #[test]
    fn hashes_cover_client_hints() {
        let (one, other) = (("dpr", "1"), ("sec-ch-ua-model", "x"));
        let both = of(&[one, other]);
        assert!(both.has_same_inherited(of(&[other, one])));
        for changed in [of(&[one]), of(&[]), of(&[one, ("sec-ch-ua-model", "y")])] {
            assert!(!both.has_same_inherited(changed) && !changed.has_same_inherited(both));
            assert_eq!(both.has_same_field(b"dpr", changed), Some(false));
            assert_eq!(both.browser(), changed.browser());
        }
        let value = both.encode();
        assert_eq!(value.len(), VALUE_LEN_WITH_HINTS);
        assert_eq!(RequestHashes::parse(value.as_bytes()), Some(both));
        let zero = format!("{}00000000", &value[..VALUE_LEN]);
        assert_eq!(RequestHashes::parse(zero.as_bytes()), None);
    }

    #[test]
    fn hashes_are_read_as_written() {
        let hashes = of(&[("cookie", "c"), ("origin", "http://o"), ("accept", "a")]);
        assert_eq!(
            RequestHashes::parse(hashes.encode().as_bytes()),
            Some(hashes)
        );
        let value = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(
            RequestHashes::parse(value.as_bytes()).map(RequestHashes::encode),
            Some(value.to_owned())
        );
        let long = format!("{value}0");
        for bad in ["", "0123", &value[1..], &long, &value.replace('0', "g")] {
            assert_eq!(RequestHashes::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn same_origin_by_cors_or_neither_cross_origin() {
        let target = "http://h";
        let none = of(&[]);
        let here = of(&[("origin", "http://here")]);
        let there = of(&[("origin", "http://there")]);
        assert!(here.has_same_origin(here, target));
        assert!(!here.has_same_origin(there, target));
        assert!(!here.has_same_origin(none, target));
        assert!(!none.has_same_origin(here, target));
        let own = of(&[("origin", target)]);
        assert!(own.has_same_origin(none, target) && own.names_same_origin(own));
        assert!(!own.names_same_origin(none) && !here.names_same_origin(there));
    }

    #[test]
    fn referrer_of_the_target_fits_each_page() {
        let target = "http://h";
        let none = of(&[]);
        let page = |url: &str| of(&[("referer", url)]);
        let (here, there) = (page("http://here/a?b"), page("http://there/"));
        assert!(here.fits_referrer(page("http://here/"), target));
        assert!(here.fits_referrer(page("http://here?q"), target));
        assert!(!here.fits_referrer(there, target));
        assert!(here.fits_referrer(none, target));
        assert!(
            !none.fits_referrer(here, target),
            "origins may answer requests that name no page with another image"
        );
        let own = page("http://h/page");
        assert!(own.fits_referrer(none, target) && none.fits_referrer(none, target));
        assert!(
            !none.fits_referrer(own, target),
            "origins answer the links of their own pages in another way"
        );
        assert!(own.names_page() && !none.names_page());
        assert!(page("http://h/x.css").fits_referrer(here, target));
        assert!(
            !here.fits_referrer(page("http://h/x.css"), target),
            "a page of the target must not get the response that another page caused"
        );
    }
}
