//! The preflights of one isolation key: OPTIONS requests that ask an origin whether a script of
//! another origin may send a request (Fetch standard, section 4.8, "CORS-preflight fetch").
//!
//! A browser keeps an answer for `Access-Control-Max-Age`, but for one process and one tab's site
//! at a time. This cache keeps it for the same time (section 4.9, "CORS-preflight cache"). Its key
//! is the origin, the URL, the method, the names of the fields, and the browser's own fields. A
//! repeated answer names the time that is left, so no browser relies on an answer for longer than
//! the origin allowed. A preflight that is under way is joined.
//!
//! No preflight is pushed. A promise must be one of a cacheable request (RFC 9113 section 8.4), and
//! OPTIONS is not. The gateway would also ask an origin for permission in the name of a script that
//! may never run.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use tandem_http::{Fields, Method, RequestHead, ResponseHead, Scheme};

use crate::browser_fields::INHERITED_FIELDS;
use crate::fetch_standard::is_browser_field;

/// The largest number of answers. A cache that is full starts again.
const MAX_RESPONSES: usize = 256;

/// The length in bytes of the longest key.
const MAX_LENGTH: usize = 4096;

/// The length in bytes of the longest answer.
const MAX_ANSWER: usize = 1024;

/// The longest time for which an answer is repeated: the shortest limit of common browsers.
const MAX_AGE: Duration = Duration::from_secs(600);

/// The lifetime of an answer that names none (section 4.8, step 7).
const DEFAULT_AGE: Duration = Duration::from_secs(5);

/// The methods that need no permission (section 2.2.1, "CORS-safelisted method").
const SAFE_METHODS: [&[u8]; 3] = [b"GET", b"HEAD", b"POST"];

const REQUEST_PREFIX: &[u8] = b"access-control-request-";
const REQUEST_METHOD: &str = "access-control-request-method";
const REQUEST_HEADERS: &str = "access-control-request-headers";
const ALLOW_PREFIX: &[u8] = b"access-control-allow-";
const ALLOW_ORIGIN: &str = "access-control-allow-origin";
const ALLOW_METHODS: &str = "access-control-allow-methods";
const ALLOW_HEADERS: &str = "access-control-allow-headers";
/// The fields that ask for access from a public network to a private one. The permission depends on
/// the address of the origin.
const PRIVATE_NETWORK: [&str; 2] = [
    "access-control-request-private-network",
    "access-control-request-local-network",
];

const AGE_FIELD: &str = "access-control-max-age";

/// The parts of a preflight on which its answer depends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PreflightKey {
    scheme: Scheme,
    authority: String,
    path: String,
    origin: Vec<u8>,
    /// The names and values of the fields that ask, and of the browser's own.
    fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl PreflightKey {
    /// Returns the key of a preflight. Returns `None` for other requests, for preflights that no
    /// browser sends, and for those of a reload.
    pub fn of(request: &RequestHead) -> Option<Self> {
        let fields = &request.fields;
        let is_preflight = request.method == Method::Options
            && request.protocol.is_none()
            && request.path.starts_with('/')
            && fields.get_all(REQUEST_METHOD).count() == 1
            && fields.get_all("origin").count() == 1
            && !fields.contains("cache-control")
            && !fields.contains("pragma")
            && !PRIVATE_NETWORK.iter().any(|name| fields.contains(name));
        let asks = |name: &[u8]| name.starts_with(REQUEST_PREFIX);
        let is_known = |name| is_browser_field(name) || asks(name) || name == b"content-length";
        // A preflight has no credentials.
        let is_usual = !fields.contains("cookie")
            && fields.get("content-length").is_none_or(|it| it == b"0")
            && fields.iter().all(|field| is_known(field.name));
        if !is_preflight || !is_usual || fields.text_len() > MAX_LENGTH {
            return None;
        }
        let is_part =
            |name: &[u8]| asks(name) || INHERITED_FIELDS.iter().any(|own| own.as_bytes() == name);
        let mut own: Vec<_> = fields
            .iter()
            .filter(|field| is_part(field.name))
            .map(|field| (field.name.to_vec(), field.value.to_vec()))
            .collect();
        own.sort();
        let key = Self {
            scheme: request.scheme,
            authority: request.authority.to_ascii_lowercase(),
            path: request.path.clone(),
            origin: fields.get("origin")?.to_vec(),
            fields: own,
        };
        (key.path.len() <= MAX_LENGTH).then_some(key)
    }
}

/// The decision about a preflight.
#[derive(Debug, PartialEq, Eq)]
pub enum PreflightStep {
    /// This answer serves the preflight.
    Respond(ResponseHead),
    /// The same preflight is under way. Its end decides.
    Wait,
    /// The caller sends the preflight, and reports its end to [`Preflights::end`].
    Send,
}

/// The preflights of one isolation key.
#[derive(Debug, Default)]
pub struct Preflights {
    responses: HashMap<PreflightKey, Allowed>,
    /// The preflights that are under way.
    sent: HashSet<PreflightKey>,
}

/// An answer that permits a request.
#[derive(Debug)]
struct Allowed {
    fields: Fields,
    arrived: Instant,
    lifetime: Duration,
}

impl Allowed {
    /// Returns the whole seconds that are left of the lifetime.
    fn seconds_left(&self, now: Instant) -> u64 {
        let age = now.saturating_duration_since(self.arrived);
        match age < MAX_AGE {
            true => self.lifetime.saturating_sub(age).as_secs(),
            false => 0,
        }
    }
}

impl Preflights {
    /// Decides about a preflight.
    pub fn begin(&mut self, now: Instant, key: &PreflightKey) -> PreflightStep {
        if let Some(allowed) = self.responses.get(key) {
            let left = allowed.seconds_left(now);
            if left > 0 {
                let mut fields = allowed.fields.clone();
                fields.push(AGE_FIELD, left.to_string());
                let head = ResponseHead {
                    fields,
                    ..ResponseHead::new(204)
                };
                return PreflightStep::Respond(head);
            }
            self.responses.remove(key);
        }
        if self.sent.contains(key) {
            return PreflightStep::Wait;
        }
        if self.sent.len() < MAX_RESPONSES {
            self.sent.insert(key.clone());
        }
        PreflightStep::Send
    }

    /// Notes the end of a preflight that was sent, with its answer if there is one. Those that wait
    /// for it begin again.
    pub fn end(&mut self, now: Instant, key: &PreflightKey, head: Option<&ResponseHead>) {
        self.sent.remove(key);
        let Some(allowed) = head.and_then(|head| allowed(now, key, head)) else {
            return;
        };
        if self.responses.len() >= MAX_RESPONSES {
            self.responses
                .retain(|_, known| known.seconds_left(now) > 0);
        }
        if self.responses.len() >= MAX_RESPONSES {
            self.responses.clear();
        }
        self.responses.insert(key.clone(), allowed);
    }

    /// Notes the answer to another request. If it refuses the request's origin, the permission has
    /// ended (Fetch standard, section 4.3, "HTTP fetch").
    pub fn note_response(&mut self, request: &RequestHead, head: &ResponseHead) {
        let Some(origin) = request.fields.get("origin") else {
            return;
        };
        if self.responses.is_empty() || allows_origin(head, origin) {
            return;
        }
        self.note_failure(request);
    }

    /// Notes that another request has failed. The permission for its URL has ended (section 4.1,
    /// "main fetch").
    pub fn note_failure(&mut self, request: &RequestHead) {
        let Some(origin) = request.fields.get("origin") else {
            return;
        };
        self.responses.retain(|key, _| {
            key.origin != origin
                || key.path != request.path
                || key.scheme != request.scheme
                || !key.authority.eq_ignore_ascii_case(&request.authority)
        });
    }

    /// Returns whether the cache has no answer.
    pub fn is_empty(&self) -> bool {
        self.responses.is_empty()
    }

    /// Drops the answers that have ended. Returns whether the cache is of no more use: it has no
    /// answer, and no preflight is under way.
    pub fn is_idle(&mut self, now: Instant) -> bool {
        self.responses
            .retain(|_, known| known.seconds_left(now) > 0);
        self.responses.is_empty() && self.sent.is_empty()
    }
}

/// Returns the answer to a preflight as far as it permits the request.
fn allowed(now: Instant, key: &PreflightKey, head: &ResponseHead) -> Option<Allowed> {
    let asked = |name: &str| {
        let field = key.fields.iter().find(|(own, _)| own == name.as_bytes());
        field.map_or(&b""[..], |(_, value)| value)
    };
    let method = asked(REQUEST_METHOD);
    let is_method_allowed =
        SAFE_METHODS.contains(&method) || lists(&head.fields, ALLOW_METHODS, method, false);
    let names = elements(asked(REQUEST_HEADERS));
    let are_fields_allowed = names
        .into_iter()
        .all(|name| lists(&head.fields, ALLOW_HEADERS, name, true));
    let is_allowed = (200..=299).contains(&head.status)
        && allows_origin(head, &key.origin)
        && is_method_allowed
        && are_fields_allowed;
    let lifetime = lifetime(&head.fields).filter(|_| is_allowed)?;
    let is_kept = |name: &[u8]| name.starts_with(ALLOW_PREFIX) || name == b"vary";
    let fields: Fields = head
        .fields
        .iter()
        .filter(|field| is_kept(field.name))
        .map(|field| (field.name, field.value))
        .collect();
    (fields.text_len() <= MAX_ANSWER).then_some(Allowed {
        fields,
        arrived: now,
        lifetime,
    })
}

/// Returns whether an answer may be read by an origin (Fetch standard, section 4.10, "CORS check").
fn allows_origin(head: &ResponseHead, origin: &[u8]) -> bool {
    let mut values = head.fields.get_all(ALLOW_ORIGIN);
    let value = values.next();
    values.next().is_none() && value.is_some_and(|value| value == b"*" || value == origin)
}

/// Returns the lifetime of an answer; `None` if it is zero or no number of seconds.
fn lifetime(fields: &Fields) -> Option<Duration> {
    let mut values = fields.get_all(AGE_FIELD);
    let Some(value) = values.next() else {
        return Some(DEFAULT_AGE);
    };
    let text = std::str::from_utf8(value).ok()?.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = text.parse::<u32>().unwrap_or(u32::MAX);
    (is_number && values.next().is_none() && seconds > 0)
        .then(|| Duration::from_secs(seconds.into()))
}

/// Returns the elements of a comma-separated list.
fn elements(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let elements = list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    elements.filter(|element| !element.is_empty())
}

/// Returns whether the lists in a field have an element, or the wildcard.
fn lists(fields: &Fields, name: &str, element: &[u8], ignores_case: bool) -> bool {
    // The wildcard does not cover this field (Fetch standard, section 4.8, step 7).
    let is_covered = !element.eq_ignore_ascii_case(b"authorization");
    let is = |own: &[u8]| {
        (own == b"*" && is_covered)
            || own == element
            || (ignores_case && own.eq_ignore_ascii_case(element))
    };
    fields.get_all(name).flat_map(elements).any(is)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: [(&str, &str); 4] = [
        ("origin", "http://page.test"),
        (REQUEST_METHOD, "PUT"),
        (REQUEST_HEADERS, "content-type,x-kind"),
        ("user-agent", "Browser/1"),
    ];

    const ALLOWED: [(&str, &str); 4] = [
        (ALLOW_ORIGIN, "http://page.test"),
        (ALLOW_METHODS, "GET, PUT"),
        (ALLOW_HEADERS, "X-Kind, Content-Type"),
        (AGE_FIELD, "60"),
    ];

    fn request(method: Method, path: &str, fields: &[(&str, &str)]) -> RequestHead {
        RequestHead {
            method,
            fields: fields.iter().copied().collect(),
            ..RequestHead::get(Scheme::Http, "api.test", path)
        }
    }

    fn key_with(name: &str, value: &str) -> Option<PreflightKey> {
        let mut request = request(Method::Options, "/x", &ASKED);
        request.fields.remove(name);
        request.fields.push(name, value);
        PreflightKey::of(&request)
    }

    fn key(path: &str) -> PreflightKey {
        PreflightKey::of(&request(Method::Options, path, &ASKED)).unwrap()
    }

    fn head(status: u16, fields: &[(&str, &str)]) -> ResponseHead {
        ResponseHead {
            fields: fields.iter().copied().collect(),
            ..ResponseHead::new(status)
        }
    }

    /// Returns the answer fields with one of them changed, or without it.
    fn head_with(name: &str, value: Option<&str>) -> ResponseHead {
        let mut head = head(200, &ALLOWED);
        head.fields.remove(name);
        if let Some(value) = value {
            head.fields.push(name, value);
        }
        head
    }

    const fn secs(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// Returns the lifetime that a repeated answer names, `after` the answer arrived.
    fn repeated(response: &ResponseHead, after: Duration) -> Option<u64> {
        let (mut cache, now, key) = (Preflights::default(), Instant::now(), key("/x"));
        assert_eq!(cache.begin(now, &key), PreflightStep::Send);
        cache.end(now, &key, Some(response));
        age_of(cache.begin(now + after, &key))
    }

    fn age_of(step: PreflightStep) -> Option<u64> {
        let PreflightStep::Respond(head) = step else {
            return None;
        };
        let age = head.fields.get(AGE_FIELD).unwrap();
        std::str::from_utf8(age).unwrap().parse().ok()
    }

    #[test]
    fn answer_is_repeated_with_the_time_that_is_left() {
        let response = head(200, &ALLOWED);
        assert_eq!(repeated(&response, secs(0)), Some(60));
        assert_eq!(repeated(&response, secs(59)), Some(1));
        assert_eq!(repeated(&response, secs(60)), None);
        let day = head_with(AGE_FIELD, Some("86400"));
        assert_eq!(repeated(&day, secs(599)), Some(85_801));
        assert_eq!(repeated(&day, secs(600)), None);
        let silent = head_with(AGE_FIELD, None);
        assert_eq!(repeated(&silent, secs(4)), Some(1));
        assert_eq!(repeated(&silent, secs(5)), None);
    }

    #[test]
    fn repeated_answer_has_the_permissions_alone() {
        let (mut cache, now, key) = (Preflights::default(), Instant::now(), key("/x"));
        let mut response = head(200, &ALLOWED);
        for (name, value) in [
            ("set-cookie", "a=b"),
            ("content-length", "2"),
            ("vary", "Origin"),
        ] {
            response.fields.push(name, value);
        }
        cache.begin(now, &key);
        cache.end(now, &key, Some(&response));
        let PreflightStep::Respond(repeated) = cache.begin(now, &key) else {
            panic!("the response is fresh");
        };
        assert_eq!(repeated.status, 204);
        let names: Vec<_> = repeated.fields.iter().map(|field| field.name).collect();
        let expected = [
            ALLOW_ORIGIN,
            ALLOW_METHODS,
            ALLOW_HEADERS,
            "vary",
            AGE_FIELD,
        ];
        assert_eq!(names, expected.map(str::as_bytes));
    }

    #[test]
    fn refusals_are_not_kept() {
        for refusal in [
            head(403, &ALLOWED),
            head_with(ALLOW_ORIGIN, None),
            head_with(ALLOW_ORIGIN, Some("http://other.test")),
            head_with(ALLOW_METHODS, Some("GET")),
            head_with(ALLOW_METHODS, Some("put")),
            head_with(ALLOW_HEADERS, Some("content-type")),
            head_with(AGE_FIELD, Some("0")),
            head_with(AGE_FIELD, Some("-1")),
            head_with(AGE_FIELD, Some("soon")),
        ] {
            assert_eq!(repeated(&refusal, secs(0)), None, "{refusal:?}");
        }
        for (name, value) in [
            (ALLOW_METHODS, "*"),
            (ALLOW_HEADERS, "*"),
            (ALLOW_ORIGIN, "*"),
        ] {
            let wildcard = head_with(name, Some(value));
            assert_eq!(repeated(&wildcard, secs(0)), Some(60), "{name}");
        }
    }

    #[test]
    fn key_covers_the_parts_on_which_an_answer_depends() {
        for (name, value) in [
            ("origin", "http://other.test"),
            (REQUEST_METHOD, "DELETE"),
            (REQUEST_HEADERS, "content-type"),
            ("user-agent", "Browser/2"),
        ] {
            assert_ne!(key_with(name, value).unwrap(), key("/x"), "{name}");
        }
        assert_ne!(key("/y"), key("/x"));
        let same = key_with("referer", "http://page.test/a").unwrap();
        assert_eq!(same, key("/x"), "browsers do not compare it either");
    }

    #[test]
    fn only_preflights_of_browsers_have_a_key() {
        for (name, value) in [
            ("authorization", "Basic eDp5"),
            ("cookie", "a=b"),
            ("x-token", "1"),
            ("max-forwards", "1"),
            ("access-control-request-private-network", "true"),
            ("cache-control", "no-cache"),
            ("content-length", "5"),
        ] {
            assert_eq!(key_with(name, value), None, "{name}");
        }
        let of = |method, path, fields: &[_]| PreflightKey::of(&request(method, path, fields));
        assert_eq!(of(Method::Get, "/x", &ASKED), None);
        assert_eq!(of(Method::Options, "*", &ASKED), None);
        assert_eq!(of(Method::Options, "/x", &ASKED[..1]), None);
        assert_eq!(of(Method::Options, "/x", &ASKED[1..]), None);
        let long = "x".repeat(MAX_LENGTH);
        assert_eq!(key_with(REQUEST_HEADERS, &long), None);
    }

    #[test]
    fn preflight_under_way_is_joined_until_its_end() {
        let (mut cache, now, key) = (Preflights::default(), Instant::now(), key("/x"));
        assert_eq!(cache.begin(now, &key), PreflightStep::Send);
        assert_eq!(cache.begin(now, &key), PreflightStep::Wait);
        cache.end(now, &key, None);
        assert_eq!(cache.begin(now, &key), PreflightStep::Send, "it was lost");
        assert_eq!(cache.begin(now, &key), PreflightStep::Wait);
        cache.end(now, &key, Some(&head(200, &ALLOWED)));
        assert_eq!(age_of(cache.begin(now + secs(1), &key)), Some(59));
    }

    #[test]
    fn refused_request_ends_the_permission() {
        let now = Instant::now();
        for (path, response, is_kept) in [
            ("/x", head(200, &[]), false),
            (
                "/x",
                head(200, &[(ALLOW_ORIGIN, "http://other.test")]),
                false,
            ),
            ("/x", head(404, &[(ALLOW_ORIGIN, "http://page.test")]), true),
            ("/y", head(200, &[]), true),
        ] {
            let (mut cache, key) = (Preflights::default(), key("/x"));
            cache.begin(now, &key);
            cache.end(now, &key, Some(&head(200, &ALLOWED)));
            let request = request(Method::Put, path, &ASKED[..1]);
            cache.note_response(&request, &response);
            assert_eq!(age_of(cache.begin(now, &key)).is_some(), is_kept, "{path}");
        }
    }

    #[test]
    fn wildcard_permits_no_authorization() {
        let asked = ASKED.map(|(name, value)| match name {
            REQUEST_HEADERS => (name, "authorization"),
            _ => (name, value),
        });
        for (allowed, is_kept) in [("*", false), ("*, Authorization", true)] {
            let (mut cache, now) = (Preflights::default(), Instant::now());
            let key = PreflightKey::of(&request(Method::Options, "/x", &asked)).unwrap();
            cache.begin(now, &key);
            cache.end(now, &key, Some(&head_with(ALLOW_HEADERS, Some(allowed))));
            assert_eq!(
                age_of(cache.begin(now, &key)).is_some(),
                is_kept,
                "{allowed}"
            );
        }
    }

    #[test]
    fn failed_request_ends_the_permission() {
        let (mut cache, now, key) = (Preflights::default(), Instant::now(), key("/x"));
        cache.begin(now, &key);
        cache.end(now, &key, Some(&head(200, &ALLOWED)));
        cache.note_failure(&request(Method::Put, "/y", &ASKED[..1]));
        assert!(!cache.is_empty());
        cache.note_failure(&request(Method::Put, "/x", &ASKED[..1]));
        assert!(cache.is_empty());
    }

    #[test]
    fn cache_is_bounded() {
        let (mut cache, now) = (Preflights::default(), Instant::now());
        assert!(cache.is_empty() && cache.is_idle(now));
        for number in 0..3 * MAX_RESPONSES {
            let key = key(&format!("/{number}"));
            cache.begin(now, &key);
            cache.end(now, &key, Some(&head(200, &ALLOWED)));
            assert!(cache.responses.len() <= MAX_RESPONSES);
        }
        assert!(!cache.is_idle(now + secs(59)) && cache.is_idle(now + secs(60)));
        for number in 0..3 * MAX_RESPONSES {
            cache.begin(now + secs(60), &key(&format!("/{number}")));
        }
        assert_eq!(
            (cache.responses.len(), cache.sent.len()),
            (0, MAX_RESPONSES)
        );
        let long = head_with("access-control-allow-long", Some(&"x".repeat(MAX_ANSWER)));
        assert_eq!(repeated(&long, secs(0)), None);
    }
}
