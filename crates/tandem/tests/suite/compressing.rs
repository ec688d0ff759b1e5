//! Compression between the two proxies, end to end: the browser gets each byte and field as the
//! origin sent it, and fewer bytes cross the path.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use flate2::write::GzEncoder;
use tandem::config::compress::BodyCompression;
use tandem::runtime::Running;

use crate::harness::{
    Client, Gate, Pair, Scene, Way, block_on, client_options, endpoint, gateway_options, request,
    start_client, start_gateway, wait_for,
};
use crate::pairs::{CARRYING, carrying_pair};

/// Returns text of about 36 kB, of which no two lines are equal.
fn text() -> String {
    let line = |n: usize| format!("<li class=\"entry\"><a href=\"/item/{n}\">Item {n}</a></li>\n");
    (0..600).map(line).collect()
}

/// The fields of a page without anything personal.
const PAGE: &str = "Content-Type: text/html\r\nETag: \"1\"\r\nVary: Accept-Encoding\r\n";

/// Returns a response with the text as its body.
fn page(fields: &str) -> String {
    let text = text();
    let length = text.len();
    format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {length}\r\n\r\n{text}")
}

/// A pair, with a count of the bytes on the path to the client.
struct Counted {
    http: SocketAddr,
    way: Way,
    running: Vec<Running>,
}

impl Counted {
    fn start(session: &str, at_gateway: BodyCompression, at_client: BodyCompression) -> Self {
        let mut options = gateway_options();
        options.listen = vec![endpoint(&format!("{session}+tcp://127.0.0.1:0"))];
        options.compress = Some(at_gateway);
        let (gateway, address) = start_gateway(options);
        let way = Way::to(address);
        let mut options = client_options(&format!("{session}+tcp://{}", way.address));
        options.compress = Some(at_client);
        // The warm-up would count as well.
        options.warm_up = Some("0B".parse().unwrap());
        let (client, http, _) = start_client(options);
        Self {
            http,
            way,
            running: vec![client, gateway],
        }
    }

    /// Requests the page of an origin. Returns the number of bytes that crossed the path for it.
    fn cost(&self, origin: &Scene, fields: &str) -> usize {
        let before = self.way.down();
        let mut client = Client::to(self.http);
        client.send(request("GET", &origin.url("/"), fields));
        assert_eq!(client.answer("GET").body, text().as_bytes());
        self.way.down() - before
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        for running in self.running.drain(..) {
            block_on(running.drain(Duration::ZERO));
        }
    }
}

#[test]
fn body_and_fields_are_those_of_the_origin() {
    let origin = Scene::answering(page(PAGE));
    let chunked = Scene::answering(format!(
        "HTTP/1.1 200 OK\r\n{PAGE}Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
         {:x}\r\n{}\r\n0\r\nX-Sum: 7\r\n\r\n",
        text().len(),
        text()
    ));
    for session in CARRYING {
        let pair = carrying_pair(session);
        let answer = pair.connect().get(&origin.url("/"));
        assert!(answer.body == text().as_bytes(), "{session}");
        let length = text().len().to_string();
        assert_eq!(answer.field("content-length"), Some(&*length), "{session}");
        assert_eq!(answer.all("vary"), ["Accept-Encoding"], "{session}");
        assert_eq!(answer.field("etag"), Some("\"1\""), "{session}");
        let own = |(name, _): &&(String, String)| name.starts_with("tandem");
        assert_eq!(answer.fields.iter().find(own), None, "{session}");
        let mut client = pair.connect();
        client.send(request("GET", &chunked.url("/"), "TE: trailers\r\n"));
        let answer = client.answer("GET");
        assert!(answer.body == text().as_bytes(), "{session}");
        assert_eq!(answer.trailers, [("X-Sum".into(), "7".into())], "{session}");
    }
}

#[test]
fn text_crosses_the_path_compressed() {
    let origin = Scene::answering(page(PAGE));
    for session in ["h2", "spdy3", "spdy3.1"] {
        let pair = Counted::start(session, BodyCompression::Auto, BodyCompression::Auto);
        let cost = pair.cost(&origin, "");
        assert!(cost * 5 < text().len(), "{session}: {cost}");
    }
}

/// Returns the text with another line in its middle.
fn version(number: usize) -> String {
    text().replace("Item 300<", &format!("Item {number}<"))
}

/// Returns an origin whose page is another version for each request.
fn changing() -> Scene {
    let count = AtomicUsize::new(0);
    Scene::new(move |_, mut client| {
        while client.request().is_some() {
            let text = version(count.fetch_add(1, Ordering::Relaxed));
            let length = text.len();
            client.send(format!(
                "HTTP/1.1 200 OK\r\n{PAGE}Content-Length: {length}\r\n\r\n{text}"
            ));
        }
    })
}

const OWN_PAGE: &str = "Referer: http://own.example/\r\n";

#[test]
fn only_the_difference_to_a_version_travels() {
    for session in ["h2", "spdy3.1"] {
        let origin = changing();
        let pair = Counted::start(session, BodyCompression::Auto, BodyCompression::Auto);
        let mut client = Client::to(pair.http);
        let mut costs = Vec::new();
        let other_page = "Referer: http://other.example/\r\n";
        let other_key = format!("{OWN_PAGE}Proxy-Authorization: Key other\r\n");
        let fields = [OWN_PAGE, OWN_PAGE, OWN_PAGE, other_page, &other_key, ""];
        for (number, fields) in fields.into_iter().enumerate() {
            let before = pair.way.down();
            client.send(request("GET", &origin.url("/"), fields));
            let answer = client.answer("GET");
            assert!(
                answer.body == version(number).as_bytes(),
                "{session}: {number}"
            );
            let own = |(name, _): &&(String, String)| name.starts_with("tandem");
            assert_eq!(answer.fields.iter().find(own), None, "{session}");
            assert_eq!(answer.all("vary"), ["Accept-Encoding"], "{session}");
            costs.push(pair.way.down() - before);
        }
        let [first, second, third, others @ ..] = &costs[..] else {
            panic!("six versions");
        };
        assert!(second.max(third) * 4 < *first, "{session}: {costs:?}");
        // A page of another site, another isolation key and an unknown page have no version of it.
        assert!(
            others.iter().all(|cost| cost * 2 > *first),
            "{session}: {costs:?}"
        );
    }
}

#[test]
fn versions_replaced_meanwhile_decode() {
    let (arrive, arrived) = mpsc::channel();
    let gates = [Arc::new(Gate::default()), Arc::new(Gate::default())];
    let opened = gates.clone();
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let name = asked.field("x-number").unwrap().to_owned();
            let number: usize = name.parse().unwrap();
            arrive.send(name).unwrap();
            if let Some(gate) = opened.get(number.wrapping_sub(1)) {
                gate.wait();
            }
            let text = version(number);
            let length = text.len();
            client.send(format!(
                "HTTP/1.1 200 OK\r\n{PAGE}Content-Length: {length}\r\n\r\n{text}"
            ));
        }
    });
    let pair = Counted::start("h2", BodyCompression::Auto, BodyCompression::Auto);
    let ask = |number: usize| {
        let mut client = Client::to(pair.http);
        let fields = format!("{OWN_PAGE}X-Number: {number}\r\n");
        client.send(request("GET", &origin.url("/"), &fields));
        assert_eq!(wait_for(&arrived, 1), [number.to_string()]);
        client
    };
    assert!(ask(0).answer("GET").body == version(0).as_bytes());
    // Both name the first version. One replaces it before the other arrives.
    let (mut one, mut other) = (ask(1), ask(2));
    gates[1].open();
    assert!(other.answer("GET").body == version(2).as_bytes());
    gates[0].open();
    assert!(one.answer("GET").body == version(1).as_bytes());
    assert!(ask(3).answer("GET").body == version(3).as_bytes());
}

/// Returns a member of gzip.
fn member(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// Returns a response with a body that has gzip.
fn zipped(fields: &str, body: &str) -> Vec<u8> {
    sending_gzip(fields, &member(body))
}

/// Returns a response with gzip as its body.
fn sending_gzip(fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\n{fields}Content-Encoding: gzip\r\nAccept-Ranges: bytes\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Returns an origin whose page has gzip, and is another version for each request.
fn zipping(fields: &'static str) -> Scene {
    let count = AtomicUsize::new(0);
    Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let text = version(count.fetch_add(1, Ordering::Relaxed));
            if asked.line.starts_with("HEAD") {
                let answer = zipped(fields, &text);
                let end = answer.windows(4).position(|it| it == b"\r\n\r\n").unwrap();
                client.send(&answer[..end + 4]);
            } else {
                client.send(zipped(fields, &text));
            }
        }
    })
}

const ACCEPTS_GZIP: &str = "Accept-Encoding: gzip, deflate\r\nReferer: http://own.example/\r\n";

#[test]
fn gzip_crosses_the_path_as_a_difference() {
    for session in ["h2", "spdy3.1"] {
        let origin = zipping(PAGE);
        let pair = Counted::start(session, BodyCompression::Auto, BodyCompression::Auto);
        let mut client = Client::to(pair.http);
        let mut costs = Vec::new();
        for number in 0..3 {
            let before = pair.way.down();
            client.send(request("GET", &origin.url("/"), ACCEPTS_GZIP));
            let answer = client.answer("GET");
            assert!(
                answer.body == version(number).as_bytes(),
                "{session}: {number}"
            );
            assert_eq!(answer.field("content-encoding"), None, "{session}");
            assert_eq!(answer.field("accept-ranges"), None, "{session}");
            assert_eq!(answer.field("etag"), Some("W/\"1\""), "{session}");
            assert_eq!(answer.all("vary"), ["Accept-Encoding"], "{session}");
            costs.push(pair.way.down() - before);
        }
        assert!(
            costs[1].max(costs[2]) * 4 < costs[0],
            "{session}: {costs:?}"
        );
        // The other methods and a condition tell the same tag.
        client.send(request("HEAD", &origin.url("/"), ACCEPTS_GZIP));
        let answer = client.answer("HEAD");
        assert_eq!(answer.field("etag"), Some("W/\"1\""), "{session}");
        assert_eq!(answer.field("content-encoding"), None, "{session}");
        assert_eq!(answer.field("content-length"), None, "{session}");
        let origin = Scene::answering("HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n");
        let condition = format!("{ACCEPTS_GZIP}If-None-Match: W/\"1\"\r\n");
        client.send(request("GET", &origin.url("/"), &condition));
        let answer = client.answer("GET");
        assert_eq!(
            (answer.status, answer.field("etag")),
            (304, Some("W/\"1\"")),
            "{session}"
        );
    }
}

#[test]
fn gzip_stays_where_a_side_forbids_a_change() {
    use BodyCompression::{Auto, Exact};
    const UNCHANGED: &str = "Content-Type: text/html\r\nETag: \"1\"\r\n\
        Cache-Control: no-transform\r\n";
    const DIGEST: &str = "Content-Type: text/html\r\nETag: \"1\"\r\n\
        Content-Digest: sha-256=:AAAA:\r\n";
    for (gateway, client, fields, more) in [
        (Exact, Auto, PAGE, ""),
        (Auto, Exact, PAGE, ""),
        (Auto, Auto, UNCHANGED, ""),
        (Auto, Auto, DIGEST, ""),
        (Auto, Auto, PAGE, "Cache-Control: no-transform\r\n"),
        (Auto, Auto, PAGE, "Accept-Encoding: identity;q=0\r\n"),
        (Auto, Auto, PAGE, "Cookie: a=b\r\n"),
    ] {
        let origin = zipping(fields);
        let pair = Counted::start("h2", gateway, client);
        let mut client = Client::to(pair.http);
        client.send(request(
            "GET",
            &origin.url("/"),
            &format!("{ACCEPTS_GZIP}{more}"),
        ));
        let answer = client.answer("GET");
        let sent = zipped(fields, &version(0));
        assert!(
            sent.ends_with(&answer.body) && answer.body.len() > 1000,
            "{fields} {more}"
        );
        assert_eq!(
            answer.field("content-encoding"),
            Some("gzip"),
            "{fields} {more}"
        );
        assert_eq!(answer.field("etag"), Some("\"1\""), "{fields} {more}");
    }
}

/// Checks that the browser gets this text, if the origin sends these bytes as gzip.
fn check_recoded(gzip: &[u8], text: &str) {
    let origin = Scene::answering(sending_gzip(PAGE, gzip));
    let pair = Pair::start();
    let mut client = pair.connect();
    client.send(request("GET", &origin.url("/"), ACCEPTS_GZIP));
    let answer = client.answer("GET");
    assert_eq!(answer.field("content-encoding"), None);
    assert!(answer.body == text.as_bytes());
}

#[test]
fn gzip_of_several_members_arrives_whole() {
    let (first, second) = (version(1), version(2));
    let body = [member(&first), member(&second)].concat();
    check_recoded(&body, &[first, second].concat());
}

#[test]
fn gzip_without_its_footer_arrives_whole() {
    let mut coded = member(&text());
    coded.truncate(coded.len() - 8);
    check_recoded(&coded, &text());
    check_recoded(&[&coded[..], b"adlr"].concat(), &text());
}

#[test]
fn damaged_gzip_never_looks_complete() {
    let whole = zipped(PAGE, &version(0));
    let head = whole.windows(4).position(|it| it == b"\r\n\r\n").unwrap() + 4;
    // The header, and the kind of the first block.
    for at in [head, head + 10] {
        let mut damaged = whole.clone();
        damaged[at] = 0xff;
        let origin = Scene::new(move |_, mut client| {
            client.request();
            client.send(&damaged);
        });
        let pair = Pair::start();
        let mut client = pair.connect();
        client.send(request("GET", &origin.url("/"), ACCEPTS_GZIP));
        let answer = client.try_answer("GET");
        assert!(
            answer.is_err() || answer.is_ok_and(|it| it.status == 502),
            "{at}"
        );
    }
}

#[test]
fn either_end_can_do_without() {
    let origin = Scene::answering(page(PAGE));
    for (gateway, client) in [
        (BodyCompression::Off, BodyCompression::Auto),
        (BodyCompression::Auto, BodyCompression::Off),
    ] {
        let pair = Counted::start("h2", gateway, client);
        assert!(pair.cost(&origin, "") > text().len());
    }
}

#[test]
fn personal_text_crosses_the_path_as_it_is() {
    let pair = Counted::start("h2", BodyCompression::Auto, BodyCompression::Auto);
    let public = Scene::answering(page(PAGE));
    assert!(pair.cost(&public, "Cookie: a=b\r\n") > text().len());
    assert!(pair.cost(&public, "Authorization: Basic eDp5\r\n") > text().len());
    for field in ["Set-Cookie: a=b", "Cache-Control: private", "Vary: Cookie"] {
        let personal = Scene::answering(page(&format!("{PAGE}{field}\r\n")));
        assert!(pair.cost(&personal, "") > text().len(), "{field}");
    }
}

#[test]
fn pushed_text_is_compressed() {
    let (tell, told) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            client.send(match &*path {
                "/page" => "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\
                    Link: </a.css>; rel=preload; as=style\r\n\r\npage"
                    .to_owned(),
                _ => page("Content-Type: text/css\r\nCache-Control: max-age=60\r\n"),
            });
            tell.send(path).unwrap();
        }
    });
    for session in ["h2", "spdy3.1"] {
        let pair = Counted::start(session, BodyCompression::Auto, BodyCompression::Auto);
        let mut client = Client::to(pair.http);
        client.get(&origin.url("/page"));
        assert_eq!(wait_for(&told, 2), ["/a.css", "/page"], "{session}");
        let sheet = client.get(&origin.url("/a.css"));
        assert!(sheet.body == text().as_bytes(), "{session}");
        assert!(
            told.try_recv().is_err(),
            "{session}: a request to the origin"
        );
        let cost = pair.way.down();
        assert!(cost * 4 < text().len(), "{session}: {cost}");
    }
}

#[test]
fn streaming_page_is_not_delayed() {
    let seen = Arc::new(Gate::default());
    let is_seen = Arc::clone(&seen);
    let origin = Scene::new(move |_, mut client| {
        client.request();
        client.send(format!(
            "HTTP/1.1 200 OK\r\n{PAGE}Transfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n"
        ));
        is_seen.wait();
        client.send("4\r\nlast\r\n0\r\n\r\n");
    });
    let pair = Pair::start();
    let mut client = pair.connect();
    client.send(request("GET", &origin.url("/"), ""));
    client.head().unwrap();
    assert_eq!(client.read_exact(10), b"5\r\nfirst\r\n");
    seen.open();
    assert_eq!(client.read_exact(14), b"4\r\nlast\r\n0\r\n\r\n");
}

#[test]
fn truncated_text_never_looks_complete() {
    let mut cut = page(PAGE);
    cut.truncate(cut.len() - 10);
    let origin = Scene::new(move |_, mut client| {
        client.request();
        client.send(&cut);
    });
    let pair = Pair::start();
    let mut client = pair.connect();
    client.send(request("GET", &origin.url("/"), ""));
    assert!(client.try_answer("GET").is_err());
}
