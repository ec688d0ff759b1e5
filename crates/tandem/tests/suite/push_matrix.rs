//! Tests that a pushed response serves only requests for which it is correct. Two browsers behind
//! one client differ in one field of a request at a time. The origin selects its responses by those
//! fields without `Vary`, as nginx does with `gzip on`.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex};

use tandem::config::GatewayOptions;
use tandem::config::gateway::CacheOption;

use crate::harness::{Asked, Client, PATIENCE, Pair, Scene, request};
use crate::pairs::PUSHING;

/// The fields of the browser that loads the pages.
const BASE: [(&str, &str); 5] = [
    (
        "user-agent",
        "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    ),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", "de"),
    ("cookie", "who=anna"),
    ("accept", "image/avif,image/webp,*/*"),
];

/// The session that may deliver a response before a push that left earlier. The client passes a
/// condition on until it has the head of the push.
const UNORDERED: &str = "h3";

/// The condition that the tag of `/a` fulfils.
const CONDITION: &str = "If-None-Match: \"a\"\r\n";

/// A difference to [`BASE`]: a field with its value, or `None` for a request without it.
const DIFFERENCES: [(&str, Option<&str>); 37] = [
    ("accept", Some("application/json")),
    ("accept", Some("text/html,application/xhtml+xml")),
    ("accept-encoding", None),
    ("accept-encoding", Some("")),
    ("accept-encoding", Some("br")),
    ("accept-encoding", Some("gzip;q=0")),
    ("accept-encoding", Some("identity")),
    ("accept-language", None),
    ("accept-language", Some("fr")),
    ("authorization", Some("Basic eA==")),
    ("cache-control", Some("no-cache")),
    ("cache-control", Some("No-Store")),
    ("cookie", None),
    ("cookie", Some("who=bert")),
    ("cookie", Some("who=anna; more=1")),
    ("dnt", Some("1")),
    ("if-match", Some("\"1\"")),
    ("if-range", Some("\"1\"")),
    ("if-unmodified-since", Some("Sun, 06 Nov 1994 08:49:37 GMT")),
    ("last-event-id", Some("1")),
    ("origin", Some("http://elsewhere.test")),
    ("range", Some("bytes=0-0")),
    ("save-data", Some("on")),
    ("sec-ch-ua", Some("\"Chromium\";v=\"140\"")),
    ("sec-ch-ua-mobile", Some("?1")),
    ("sec-ch-ua-platform", Some("\"Android\"")),
    ("sec-ch-viewport-width", Some("320")),
    ("sec-fetch-mode", Some("navigate")),
    ("sec-fetch-mode", Some("websocket")),
    ("sec-fetch-site", Some("cross-site")),
    ("sec-gpc", Some("1")),
    ("service-worker", Some("script")),
    ("user-agent", None),
    ("user-agent", Some("curl/8.5.0")),
    ("x-forwarded-for", Some("192.0.2.1")),
    ("x-requested-with", Some("XMLHttpRequest")),
    ("x-unknown", Some("1")),
];

/// The fields of one request.
type FieldList = Vec<(String, String)>;

/// The requests for each path, in order.
#[derive(Default)]
struct Log {
    requests: Mutex<HashMap<String, Vec<FieldList>>>,
    /// The paths with a response that has left the origin.
    answered: Mutex<HashSet<String>>,
    changed: Condvar,
}

impl Log {
    /// Records a request, and returns its number among those for the path.
    fn note(&self, path: &str, asked: Asked) -> usize {
        let mut requests = self.requests.lock().unwrap();
        let of_path = requests.entry(path.to_owned()).or_default();
        of_path.push(asked.fields);
        of_path.len() - 1
    }

    /// Records that a response to a path has left.
    fn note_response(&self, path: String) {
        self.answered.lock().unwrap().insert(path);
        self.changed.notify_all();
    }

    /// Waits until a response to a path has left.
    fn wait_for(&self, path: &str) {
        let answered = self.answered.lock().unwrap();
        let wait = self
            .changed
            .wait_timeout_while(answered, PATIENCE, |answered| !answered.contains(path));
        assert!(!wait.unwrap().1.timed_out(), "{path} was never asked for");
    }

    fn field(&self, path: &str, number: usize, name: &str) -> Option<String> {
        let requests = self.requests.lock().unwrap();
        let fields = &requests[path][number];
        let found = fields
            .iter()
            .find(|(field, _)| field.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.clone())
    }
}

/// Starts an origin. Its page `/page?N` names `/a?N` and `/z?N`. The body of `/a?N` is the number
/// of its request; the responses to `/z?N` and `/y?N` come after it.
fn origin() -> (Scene, Arc<Log>) {
    let log = Arc::new(Log::default());
    let noted = Arc::clone(&log);
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let (kind, query) = path.split_once('?').unwrap();
            let coded = asked
                .field("accept-encoding")
                .is_some_and(|codings| codings.contains("gzip"));
            let (fields, body) = match kind {
                "/page" => {
                    let link = format!(
                        "Link: </a?{query}>; rel=preload; as=image, </z?{query}>; rel=preload; as=image\r\nContent-Type: text/html\r\n"
                    );
                    noted.note(&path, asked);
                    (link, String::new())
                }
                "/a" => {
                    let coding = if coded {
                        "Content-Encoding: gzip\r\n"
                    } else {
                        ""
                    };
                    (
                        format!("{coding}Cache-Control: max-age=600\r\nETag: \"a\"\r\n"),
                        noted.note(&path, asked).to_string(),
                    )
                }
                _ => {
                    noted.wait_for(&format!("/a?{query}"));
                    (String::new(), "z".to_owned())
                }
            };
            client.send(format!(
                "HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n{body}",
                body.len()
            ));
            noted.note_response(path);
        }
    });
    (scene, log)
}

/// Returns the fields of a request as text: [`BASE`] with a difference, as the page at `referer`
/// causes it.
fn fields(difference: Option<(&str, Option<&str>)>, referer: &str) -> String {
    let mut fields = BASE.to_vec();
    fields.push(("referer", referer));
    if let Some((name, value)) = difference {
        fields.retain(|(field, _)| *field != name);
        fields.extend(value.map(|value| (name, value)));
    }
    let lines = fields
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"));
    lines.collect()
}

/// Requests `url`; returns the number of the origin request that the response belongs to, and its
/// content coding.
fn ask(client: &mut Client, url: &str, fields: &str) -> (usize, bool) {
    client.send(request("GET", url, fields));
    let answer = client.answer("GET");
    assert_eq!(answer.status, 200, "{url}");
    let number = String::from_utf8(answer.body.clone()).unwrap();
    (
        number.parse().unwrap(),
        answer.field("content-encoding").is_some(),
    )
}

fn load_page(client: &mut Client, origin: &Scene, case: usize) -> String {
    let page = origin.url(&format!("/page?{case}"));
    client.send(request("GET", &page, &fields(None, &page)));
    assert_eq!(client.answer("GET").status, 200);
    // The response to /z leaves the origin after the one to /a. The gateway may send it first if
    // both arrive at once. The response to /y, which is no push, arrives a round trip later.
    for path in ["/z", "/y"] {
        let url = origin.url(&format!("{path}?{case}"));
        client.send(request("GET", &url, &fields(None, &page)));
        assert_eq!(client.answer("GET").body, b"z");
    }
    page
}

#[test]
fn pushed_response_serves_only_matching_requests() {
    for session in PUSHING {
        let (origin, log) = origin();
        // A cache may answer some of the requests, since the browsers send the same other fields.
        let options = |gateway: &mut GatewayOptions| {
            gateway.hold_out = Some(0.0);
            gateway.cache = Some(CacheOption::Off);
        };
        let pair = Pair::with(session, options, |_| {});
        let (mut browser, mut other) = (pair.connect(), pair.connect());
        let conditions = ["", CONDITION].into_iter();
        let cases = conditions.flat_map(|condition| DIFFERENCES.map(|of| (condition, of)));
        for (case, (condition, (name, value))) in cases.enumerate() {
            let page = load_page(&mut browser, &origin, case);
            let path = format!("/a?{case}");
            let asked = fields(Some((name, value)), &page) + condition;
            let (number, is_coded) = ask(&mut other, &origin.url(&path), &asked);
            let context = format!("{session}: {name}: {value:?} {condition}");
            assert_ne!(number, 0, "{context}: the push answered");
            let seen = log.field(&path, number, name);
            if name != "sec-fetch-mode" || value != Some("websocket") {
                assert_eq!(
                    seen.as_deref(),
                    value,
                    "{context}: another request's answer"
                );
            }
            let accepts = log.field(&path, number, "accept-encoding");
            assert_eq!(
                is_coded,
                accepts.is_some_and(|codings| codings.contains("gzip")),
                "{context}"
            );
        }
    }
}

#[test]
fn pushed_response_serves_equivalent_requests() {
    // These fields do not select another response.
    let harmless = [
        None,
        Some(("if-none-match", Some("\"0\""))),
        Some(("priority", Some("u=5"))),
        Some(("referer", None)),
        // A response that a page of the origin caused is also valid for pages of other sites.
        Some(("referer", Some("http://elsewhere.test/"))),
        Some(("sec-fetch-dest", Some("image"))),
        Some(("sec-fetch-mode", Some("no-cors"))),
        Some(("sec-fetch-site", Some("same-origin"))),
        Some(("sec-purpose", Some("prefetch"))),
    ];
    for session in PUSHING {
        let (origin, _log) = origin();
        let pair = Pair::with(session, |gateway| gateway.hold_out = Some(0.0), |_| {});
        let (mut browser, mut other) = (pair.connect(), pair.connect());
        for (case, difference) in harmless.into_iter().enumerate() {
            if session == UNORDERED && difference.is_some_and(|(name, _)| name == "if-none-match") {
                continue;
            }
            let page = load_page(&mut browser, &origin, case);
            let asked = fields(difference, &page);
            let url = origin.url(&format!("/a?{case}"));
            assert_eq!(
                ask(&mut other, &url, &asked),
                (0, true),
                "{session}: {difference:?}"
            );
        }
    }
}

#[test]
fn pushed_head_answers_the_condition_of_its_browser() {
    for session in PUSHING.into_iter().filter(|session| *session != UNORDERED) {
        let (origin, log) = origin();
        let pair = Pair::with(session, |gateway| gateway.hold_out = Some(0.0), |_| {});
        let mut browser = pair.connect();
        let page = load_page(&mut browser, &origin, 0);
        let asked = fields(None, &page) + CONDITION;
        browser.send(request("GET", &origin.url("/a?0"), &asked));
        let answer = browser.answer("GET");
        assert_eq!((answer.status, answer.body.as_slice()), (304, &b""[..]));
        assert_eq!(answer.field("etag"), Some("\"a\""), "{session}");
        assert_eq!(answer.field("content-encoding"), None);
        let other = format!("{asked}Proxy-Authorization: Key other\r\n");
        load_page(&mut browser, &origin, 1);
        let (number, _) = ask(&mut pair.connect(), &origin.url("/a?1"), &other);
        assert_eq!(number, 1, "{session}: another key has no part in the push");
        let asked = log.requests.lock().unwrap()["/a?0"].len();
        assert_eq!(asked, 1, "{session}: the push alone");
    }
}
