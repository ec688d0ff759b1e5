//! What the two ends of the pair tell each other about pushes, beside the pushes themselves.
//!
//! ```text
//!  gateway ──▶ client   `tandem-push: pushed | held-out` in the head of a page: what was done for it
//!  client ──▶ gateway   POST http://push.tandem.invalid/, the session's companion: its body reports what became of each
//!                       push, its answer stays open and carries those whose page is over already (RFC 9113 section 8.4
//!                       and SPDY alike let a push belong only to an open stream that the client began)
//! ```
//!
//! A gateway that is another program finds no such origin, and is asked once in a session. A report
//! is five bytes: what became of the push, and a hash of its URL. It tells the gateway no more than
//! it would have seen without push. Where the user allows it (`--push-digest`), the body begins
//! with what the browser got on earlier sessions and can use still.

use tandem_http::{Fields, Method, RequestHead, Scheme};

/// Name of the field; it never leaves the pair.
pub const FIELD: &str = "tandem-push";

/// The companion's authority: a name that no origin can have (RFC 6761 section 6.4).
const AUTHORITY: &str = "push.tandem.invalid";

/// The request that opens a companion.
pub fn request() -> RequestHead {
    RequestHead {
        method: Method::Post,
        ..RequestHead::get(Scheme::Http, AUTHORITY, "/")
    }
}

/// Names below it are the pair's own.
const RESERVED: &str = "tandem.invalid";

/// Whether an authority is one of the pair's own, with any port: no page is to reach it.
pub fn is_reserved(authority: &str) -> bool {
    let host = authority
        .rsplit_once(':')
        .map_or(authority, |(host, _)| host)
        .trim_end_matches('.');
    let Some(at) = host.len().checked_sub(RESERVED.len()) else {
        return false;
    };
    host.is_char_boundary(at)
        && host[at..].eq_ignore_ascii_case(RESERVED)
        && (at == 0 || host.as_bytes()[at - 1] == b'.')
}

/// Field in the head of a push: what it was asked with. SPDY promises carry no request fields, so
/// the client could not tell otherwise what its answer may depend on. It never leaves the pair.
pub const ASKED_FIELD: &str = "tandem-asked";

/// Fields of a page's request that its pushes repeat, because the browser would send the same
/// again.
pub const INHERITED: [&str; 5] = [
    "user-agent",
    "accept-encoding",
    "accept-language",
    "dnt",
    "sec-gpc",
];

/// What a request was asked with, as far as answers commonly depend on it, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    cookie: u32,
    inherited: u32,
    accept: u32,
    origin: u32,
    /// Of the page that asks, its origin.
    page: u32,
}

/// Digits of it as a field's value.
const ASKED_DIGITS: usize = 40;

impl Asked {
    /// That of a request's fields.
    pub fn of(fields: &Fields) -> Self {
        let number = |names: &[&str]| {
            let values = names
                .iter()
                .map(|name| fields.get(name).unwrap_or_default());
            fnv(values.flat_map(|value| value.iter().copied().chain([b'\n'])))
        };
        Self {
            cookie: number(&["cookie"]),
            inherited: number(&INHERITED),
            accept: number(&["accept"]),
            origin: of_origin(fields.get("origin").unwrap_or_default()),
            page: of_origin(fields.get("referer").unwrap_or_default()),
        }
    }

    /// As the field's value.
    pub fn write(self) -> String {
        let Self {
            cookie,
            inherited,
            accept,
            origin,
            page,
        } = self;
        format!("{cookie:08x}{inherited:08x}{accept:08x}{origin:08x}{page:08x}")
    }

    /// From the field's value.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let number = |at: usize| {
            let digits = value.get(at..at + 8)?;
            digits.iter().try_fold(0, |number: u32, digit| {
                Some(number << 4 | char::from(*digit).to_digit(16)?)
            })
        };
        let asked = Self {
            cookie: number(0)?,
            inherited: number(8)?,
            accept: number(16)?,
            origin: number(24)?,
            page: number(32)?,
        };
        Some(asked).filter(|_| value.len() == ASKED_DIGITS)
    }

    /// Whether both were asked by CORS from the same origin, or neither by another than `own`, the
    /// origin that was asked.
    pub fn has_origin_of(self, other: Self, own: &str) -> bool {
        let own = of_origin(own.as_bytes());
        let foreign = |origin: u32| {
            if origin == own {
                of_origin(b"")
            } else {
                origin
            }
        };
        foreign(self.origin) == foreign(other.origin)
    }

    /// Whether what this asked for one page answers what `other` asks for another: what one site's
    /// page had fetched from `own`, another origin, by leave to link or its own, is not what a page
    /// of that origin's would get. Who does not say is any.
    pub fn is_of_same_page(self, other: Self, own: &str) -> bool {
        let nobody = of_origin(b"");
        [self.page, other.page].contains(&nobody)
            || [of_origin(own.as_bytes()), other.page].contains(&self.page)
    }

    /// Whether both had the same cookie.
    pub const fn has_cookie_of(self, other: Self) -> bool {
        self.cookie == other.cookie
    }

    /// Whether the field `name` was the same in both; `None` where it takes the fields themselves
    /// to tell.
    pub fn is_alike_in(self, name: &[u8], other: Self) -> Option<bool> {
        if INHERITED
            .iter()
            .any(|inherited| inherited.as_bytes() == name)
        {
            return Some(self.inherited == other.inherited);
        }
        match name {
            b"accept" => Some(self.accept == other.accept),
            b"cookie" => Some(self.cookie == other.cookie),
            _ => None,
        }
    }
}

/// The origin that a request is for, as browsers write it.
pub fn origin_of(request: &RequestHead) -> String {
    format!("{}://{}", request.scheme.as_str(), request.authority)
}

/// Number of the scheme and authority of a URL.
fn of_origin(url: &[u8]) -> u32 {
    let from = url
        .windows(3)
        .position(|part| part == b"://")
        .map_or(0, |at| at + 3);
    let length = url[from..]
        .iter()
        .position(|byte| matches!(byte, b'/' | b'?' | b'#'));
    fnv(url[..length.map_or(url.len(), |length| from + length)]
        .iter()
        .copied())
}

/// Whether a request opens a companion.
pub fn is_companion(request: &RequestHead) -> bool {
    request.authority == AUTHORITY && request.method == Method::Post
}

/// Whether a browser asks for something to show by itself (Fetch standard, section 4.1).
pub fn asks_for_page(request: &RequestHead) -> bool {
    match request.fields.get("sec-fetch-dest") {
        Some(destination) => destination == b"document",
        None => request
            .fields
            .get("accept")
            .is_some_and(|accept| accept.starts_with(b"text/html")),
    }
}

/// Whether a request says no more than what browsers say by themselves. Its answer may depend on
/// anything else, whatever `Vary` says: on what a script or a tool adds.
pub fn is_plain(fields: &Fields) -> bool {
    const BY_THEMSELVES: [&str; 21] = [
        "accept",
        "accept-charset",
        "accept-encoding",
        "accept-language",
        "cache-control",
        "cookie",
        "dnt",
        "if-modified-since",
        "if-none-match",
        "intervention",
        "origin",
        "pragma",
        "priority",
        "purpose",
        "referer",
        "save-data",
        "te",
        "upgrade-insecure-requests",
        "user-agent",
        "via",
        "x-moz",
    ];
    fields.iter().all(|field| {
        field.name.starts_with(b"sec-")
            || BY_THEMSELVES
                .iter()
                .any(|name| name.as_bytes() == field.name)
    })
}

/// Whether who asks so wants one form of something that may have others, as scripts do that want
/// data. Firefox is as particular about fonts, of which there is one form.
pub fn is_particular(accept: &[u8]) -> bool {
    let is = |prefix: &[u8]| accept.starts_with(prefix);
    (is(b"application/") && !is(b"application/font-"))
        || (is(b"text/") && !is(b"text/css") && !is(b"text/html"))
}

/// Whether the status of an answer lets it be pushed and kept a moment: what caches may keep
/// unasked (RFC 9110 section 15.1), and redirects.
pub const fn is_pushable(status: u16) -> bool {
    matches!(status, 200 | 203 | 204 | 300..=303 | 307 | 308 | 404 | 410)
}

/// What was done for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// What it needs is pushed.
    Pushed,
    /// Nothing is, to see what difference it makes.
    HeldOut,
}

impl Treatment {
    /// As the field's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pushed => "pushed",
            Self::HeldOut => "held-out",
        }
    }

    /// From the field's value.
    pub fn parse(value: &[u8]) -> Option<Self> {
        [Self::Pushed, Self::HeldOut]
            .into_iter()
            .find(|treatment| treatment.as_str().as_bytes() == value)
    }
}

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was there when it was asked for.
    Used,
    /// It was asked for while it was under way.
    Late,
    /// Nobody asked for it.
    Wasted,
    /// The client did not take it, or could not use it.
    Cancelled,
}

const FATES: [Fate; 4] = [Fate::Used, Fate::Late, Fate::Wasted, Fate::Cancelled];

/// What a client says in its companion's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// What became of a push.
    Became(Fate, u32),
    /// The browser was given this before, on another session, and can use it still.
    Holds(u32),
}

/// Bytes of a report.
const REPORT: usize = 5;

/// First byte of one that is about no push.
const HOLDS: u8 = 16;

/// Appends a report to a companion's body.
pub fn write_report(fate: Fate, url: u32, out: &mut Vec<u8>) {
    out.push(fate as u8);
    out.extend_from_slice(&url.to_be_bytes());
}

/// Appends what the browser holds.
pub fn write_holds(url: u32, out: &mut Vec<u8>) {
    out.push(HOLDS);
    out.extend_from_slice(&url.to_be_bytes());
}

/// Reads reports from a body that is cut anywhere.
#[derive(Debug, Default)]
pub struct Reports {
    rest: Vec<u8>,
}

impl Reports {
    /// Takes in more of the body and gives what it says to `each`. What is no report is passed
    /// over.
    pub fn read(&mut self, bytes: &[u8], mut each: impl FnMut(Said)) {
        self.rest.extend_from_slice(bytes);
        let whole = self.rest.len() / REPORT * REPORT;
        for report in self.rest[..whole].chunks_exact(REPORT) {
            let &[kind, a, b, c, d] = report else {
                continue;
            };
            let url = u32::from_be_bytes([a, b, c, d]);
            match FATES.get(usize::from(kind)) {
                Some(fate) => each(Said::Became(*fate, url)),
                None if kind == HOLDS => each(Said::Holds(url)),
                None => {}
            }
        }
        self.rest.drain(..whole);
    }
}

/// Number of a URL within a session (FNV-1a, 32 bits): what collides is reported wrongly, which
/// harms only a count.
pub fn url_hash(request: &RequestHead) -> u32 {
    let authority = request
        .authority
        .bytes()
        .map(|byte| byte.to_ascii_lowercase());
    fnv(request
        .scheme
        .as_str()
        .bytes()
        .chain(authority)
        .chain(request.path.bytes()))
}

fn fnv(bytes: impl Iterator<Item = u8>) -> u32 {
    bytes.fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn reports_arrive_however_they_are_cut(
            reports in proptest::collection::vec((0usize..5, proptest::num::u32::ANY), 0..20),
            cut in 1usize..9,
        ) {
            let mut body = Vec::new();
            for &(fate, url) in &reports {
                match FATES.get(fate) {
                    Some(fate) => write_report(*fate, url, &mut body),
                    None => write_holds(url, &mut body),
                }
            }
            let (mut reader, mut read) = (Reports::default(), Vec::new());
            for piece in body.chunks(cut) {
                reader.read(piece, |said| match said {
                    Said::Became(fate, url) => read.push((fate as usize, url)),
                    Said::Holds(url) => read.push((4, url)),
                });
            }
            proptest::prop_assert_eq!(read, reports);
        }

        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>) {
            let mut reader = Reports::default();
            reader.read(&bytes, |_| {});
            proptest::prop_assert!(reader.rest.len() < REPORT);
        }
    }

    #[test]
    fn what_was_asked_with_is_told_in_numbers() {
        let fields = |agent: &str, cookie: &str| {
            Fields::from_iter([("user-agent", agent), ("cookie", cookie)])
        };
        let (one, other) = (Asked::of(&fields("a", "c")), Asked::of(&fields("b", "c")));
        assert_eq!(Asked::parse(one.write().as_bytes()), Some(one));
        assert!(one.has_cookie_of(other) && !one.has_cookie_of(Asked::of(&fields("a", ""))));
        assert_eq!(one.is_alike_in(b"accept-encoding", other), Some(false));
        assert_eq!(one.is_alike_in(b"accept", other), Some(true));
        assert_eq!(one.is_alike_in(b"x-kind", other), None);
        let long = one.write() + "0";
        for bad in [
            "",
            "0123",
            "0123456789abcdef0123456z",
            &long[1..40],
            &long,
            &long.replace(&long[..1], "g"),
        ] {
            assert_eq!(Asked::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn whose_page_asks_and_by_cors_is_told_in_numbers() {
        let of = |fields: &[(&str, &str)]| Asked::of(&fields.iter().copied().collect());
        let (own, nobody) = ("http://h", of(&[]));
        let (here, there) = (
            of(&[("origin", "http://here")]),
            of(&[("origin", "http://there")]),
        );
        assert!(
            here.has_origin_of(here, own)
                && !here.has_origin_of(there, own)
                && !here.has_origin_of(nobody, own)
        );
        assert!(of(&[("origin", own)]).has_origin_of(nobody, own));
        let page = |url: &str| of(&[("referer", url)]);
        let (here, there) = (page("http://here/a?b"), page("http://there/"));
        assert!(
            here.is_of_same_page(page("http://here/"), own) && !here.is_of_same_page(there, own)
        );
        assert!(here.is_of_same_page(nobody, own) && nobody.is_of_same_page(here, own));
        assert!(
            page("http://h/x.css").is_of_same_page(here, own),
            "what the origin's own page had"
        );
        assert!(
            !here.is_of_same_page(page("http://h/x.css"), own),
            "not the other way about"
        );
    }

    #[test]
    fn a_companion_is_told_from_requests() {
        assert!(is_companion(&request()));
        assert!(!is_companion(&RequestHead::get(
            Scheme::Http,
            AUTHORITY,
            "/"
        )));
        for own in [
            AUTHORITY,
            "Push.Tandem.Invalid.:80",
            "tandem.invalid",
            "warm-up.tandem.invalid:8080",
        ] {
            assert!(is_reserved(own), "{own}");
        }
        for other in [
            "xtandem.invalid",
            "tandem.invalid.example",
            "invalid",
            "",
            "\u{e9}andem.invalid",
        ] {
            assert!(!is_reserved(other), "{other}");
        }
        assert_eq!(Treatment::parse(b"held-out"), Some(Treatment::HeldOut));
        assert_eq!(Treatment::parse(b"both"), None);
    }
}
