//! Tests of the origin over real sockets: its responses to each protocol and client.

use tandem_http::h1::{Decoder, Framing, Limits, Response, parse_response};
use tandem_http::{Fields, Method, Scheme};
use tandem_web::origin::{Origin, Protocols, Running};
use tandem_web::page::{Page, Site};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

async fn start() -> Running {
    serve(Page::gallery(3, 40_000)).await
}

async fn serve(page: Page) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound").to_string();
    let site = Site::new(page, &[address]).expect("valid");
    Origin::new(site).spawn(listener).expect("bound")
}

struct Client {
    stream: TcpStream,
    input: Vec<u8>,
}

struct Answer {
    response: Response,
    body: Vec<u8>,
    trailers: Option<Fields>,
    /// The body ended as its framing says.
    whole: bool,
}

impl Answer {
    fn field(&self, name: &str) -> &str {
        self.response
            .head
            .fields
            .get(name)
            .map_or("", |v| std::str::from_utf8(v).expect("text"))
    }
}

impl Client {
    async fn open(origin: &Running) -> Self {
        Self {
            stream: TcpStream::connect(origin.address).await.expect("listening"),
            input: Vec::new(),
        }
    }

    async fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.expect("open");
    }

    async fn more(&mut self) -> usize {
        self.stream
            .read_buf(&mut self.input)
            .await
            .expect("no reset")
    }

    async fn head(&mut self, method: &Method) -> Response {
        loop {
            if let Some((response, used)) =
                parse_response(&self.input, method, &Limits::default()).expect("valid")
            {
                self.input.drain(..used);
                return response;
            }
            assert_ne!(self.more().await, 0, "an answer");
        }
    }

    async fn answer(&mut self, method: &Method) -> Answer {
        let response = self.head(method).await;
        let mut decoder = Decoder::new(response.framing);
        let mut body = Vec::new();
        let mut whole = true;
        while !decoder.is_done() {
            if self.input.is_empty() && self.more().await == 0 {
                whole = decoder.finish().is_ok();
                break;
            }
            let decoded = decoder.decode(&self.input).expect("valid");
            body.extend_from_slice(&self.input[decoded.data]);
            self.input.drain(..decoded.consumed);
        }
        Answer {
            response,
            body,
            trailers: decoder.trailers(),
            whole,
        }
    }

    async fn ask(&mut self, method: Method, path: &str, fields: &str) -> Answer {
        self.send(&format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"
        ))
        .await;
        self.answer(&method).await
    }
}

#[tokio::test]
async fn resources() {
    let origin = start().await;
    let mut client = Client::open(&origin).await;
    let site = origin.origin.site().clone();
    for (index, resource) in site.page().resources.iter().enumerate() {
        let answer = client.ask(Method::Get, &resource.path, "").await;
        assert_eq!(
            (answer.response.head.status, &answer.body[..]),
            (200, &site.asset(index).body[..])
        );
        assert!(answer.field("content-type").starts_with(&resource.mime));
        assert_eq!(answer.field("etag"), site.asset(index).etag);
    }
    let head = client.ask(Method::Head, "/images/0000.png", "").await;
    assert_eq!(
        (
            head.response.head.status,
            head.field("content-length"),
            head.body.len()
        ),
        (200, "40000", 0)
    );
    assert_eq!(
        client
            .ask(Method::Get, "/none", "")
            .await
            .response
            .head
            .status,
        404
    );
    let refused = client.ask(Method::Delete, "/", "").await;
    assert_eq!(
        (refused.response.head.status, refused.field("allow")),
        (405, "GET, HEAD, OPTIONS, POST")
    );
    assert_eq!(
        client
            .ask(Method::Options, "*", "")
            .await
            .response
            .head
            .status,
        204
    );
    assert_eq!(
        client
            .ask(Method::Options, "/", "")
            .await
            .response
            .head
            .status,
        204
    );
    let counts = origin.origin.counts();
    assert_eq!(
        (counts.connections, counts.requests, counts.refused),
        (1, 9, 0)
    );
}

#[tokio::test]
async fn cookies_are_set_for_requests_without_them() {
    let mut page = Page::gallery(1, 700);
    page.resources[0].cookies = vec!["sid=x; Path=/".into(), "lang=en".into()];
    let running = serve(page).await;
    let mut client = Client::open(&running).await;
    for (sent, set) in [
        ("", &["sid=x-0; Path=/", "lang=en-1"][..]),
        ("Cookie: sid=x-0; lang=en-1\r\n", &[]),
        ("Cookie: xsid=1; lang=de\r\n", &["sid=x-2; Path=/"]),
    ] {
        let answer = client.ask(Method::Get, "/", sent).await;
        let fields = answer.response.head.fields.get_all("set-cookie");
        let fields: Vec<_> = fields.map(String::from_utf8_lossy).collect();
        assert_eq!(fields, set, "{sent}");
    }
}

#[tokio::test]
async fn conditions_and_ranges() {
    let origin = start().await;
    let mut client = Client::open(&origin).await;
    let body = origin.origin.site().asset(1).body.clone();
    let etag = origin.origin.site().asset(1).etag.clone();
    let path = "/images/0000.png";
    for tags in [etag.clone(), format!("\"x\", W/{etag}"), "*".into()] {
        let answer = client
            .ask(Method::Get, path, &format!("If-None-Match: {tags}\r\n"))
            .await;
        assert_eq!(
            (answer.response.head.status, answer.field("etag")),
            (304, &etag[..])
        );
    }
    assert_eq!(
        client
            .ask(Method::Get, path, "If-None-Match: \"x\"\r\n")
            .await
            .response
            .head
            .status,
        200
    );
    let part = client
        .ask(Method::Get, path, "Range: bytes=100-199\r\n")
        .await;
    assert_eq!(
        (part.response.head.status, part.field("content-range")),
        (206, "bytes 100-199/40000")
    );
    assert_eq!(part.body, body[100..200]);
    let tail = client
        .ask(
            Method::Get,
            path,
            &format!("Range: bytes=-5\r\nIf-Range: {etag}\r\n"),
        )
        .await;
    assert_eq!(tail.body, body[body.len() - 5..]);
    let stale = client
        .ask(Method::Get, path, "Range: bytes=-5\r\nIf-Range: \"x\"\r\n")
        .await;
    assert_eq!(
        (stale.response.head.status, stale.body.len()),
        (200, 40_000)
    );
    let outside = client
        .ask(Method::Get, path, "Range: bytes=40000-\r\n")
        .await;
    assert_eq!(
        (outside.response.head.status, outside.field("content-range")),
        (416, "bytes */40000")
    );
}

#[tokio::test]
async fn parameters() {
    let origin = start().await;
    let body = origin.origin.site().asset(2).body.clone();
    let path = "/images/0001.png";
    let mut client = Client::open(&origin).await;
    let chunked = client
        .ask(
            Method::Get,
            &format!("{path}?framing=chunked&status=503"),
            "",
        )
        .await;
    assert_eq!(
        (chunked.response.head.status, chunked.response.framing),
        (503, Framing::Chunked)
    );
    assert_eq!(chunked.body, body);
    assert_eq!(
        client
            .ask(Method::Get, &format!("{path}?status=204"), "")
            .await
            .response
            .head
            .status,
        204
    );
    assert_eq!(
        client
            .ask(Method::Get, &format!("{path}?other=1"), "")
            .await
            .response
            .head
            .status,
        404
    );
    assert_eq!(
        client
            .ask(Method::Get, &format!("{path}?status=99"), "")
            .await
            .response
            .head
            .status,
        404
    );
    let bytes = client.ask(Method::Get, "/bytes/200000", "").await;
    assert_eq!(bytes.body.len(), 200_000);
    let open = client
        .ask(Method::Get, &format!("{path}?framing=close"), "")
        .await;
    assert_eq!(
        (open.response.framing, open.whole),
        (Framing::UntilClose, true)
    );
    assert_eq!(open.body, body);
    for query in ["cut=1000", "cut=1000&framing=chunked"] {
        let mut client = Client::open(&origin).await;
        let cut = client
            .ask(Method::Get, &format!("{path}?{query}"), "")
            .await;
        assert_eq!((cut.whole, &cut.body[..]), (false, &body[..1000]));
    }
}

#[tokio::test]
async fn delays() {
    let origin = start().await;
    let mut late = Client::open(&origin).await;
    late.send("GET /?delay=600000 HTTP/1.1\r\nHost: a\r\n\r\n")
        .await;
    while origin.origin.counts().requests == 0 {
        tokio::task::yield_now().await;
    }
    let mut soon = Client::open(&origin).await;
    assert_eq!(
        soon.ask(Method::Get, "/?delay=1", "")
            .await
            .response
            .head
            .status,
        200
    );
    let nothing = late
        .stream
        .try_read(&mut [0; 1])
        .expect_err("still waiting");
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn echo_and_sink() {
    let origin = start().await;
    let mut client = Client::open(&origin).await;
    client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Type: a/b\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    let head = client.head(&Method::Post).await;
    assert_eq!(
        (head.head.status, head.framing),
        (200, Framing::Chunked),
        "before the body ends"
    );
    client.send("5\r\nhello\r\n").await;
    while !client.input.ends_with(b"hello\r\n") {
        assert_ne!(client.more().await, 0, "given back at once");
    }
    client.send("1\r\n!\r\n0\r\nX-Sum: 9\r\n\r\n").await;
    let mut decoder = Decoder::new(head.framing);
    let mut body = Vec::new();
    while !decoder.is_done() {
        if client.input.is_empty() {
            assert_ne!(client.more().await, 0);
        }
        let decoded = decoder.decode(&client.input).expect("valid");
        body.extend_from_slice(&client.input[decoded.data]);
        client.input.drain(..decoded.consumed);
    }
    assert_eq!(body, b"hello!");
    assert_eq!(
        decoder.trailers().expect("given back").get("x-sum"),
        Some(&b"9"[..])
    );

    client.send("POST /sink HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 100000\r\n\r\n").await;
    assert_eq!(client.head(&Method::Post).await.head.status, 100);
    client.send(&"x".repeat(100_000)).await;
    assert_eq!(
        client.answer(&Method::Post).await.body,
        b"{\"bytes\":100000}\n"
    );
    let empty = client
        .ask(Method::Post, "/echo", "Content-Length: 0\r\n")
        .await;
    assert_eq!(
        (empty.response.head.status, empty.body.len(), empty.trailers),
        (200, 0, None)
    );
}

#[tokio::test]
async fn pipelines_and_ends() {
    let origin = start().await;
    let mut client = Client::open(&origin).await;
    let one = "GET /images/0002.png HTTP/1.1\r\nHost: a\r\n\r\n";
    client.send(&one.repeat(20)).await;
    for _ in 0..20 {
        assert_eq!(
            client.answer(&Method::Get).await.body,
            origin.origin.site().asset(3).body
        );
    }
    client
        .send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .await;
    assert!(!client.answer(&Method::Get).await.response.keep_alive);
    assert_eq!(client.more().await, 0);
    let mut old = Client::open(&origin).await;
    old.send("GET / HTTP/1.0\r\n\r\n").await;
    let answer = old.answer(&Method::Get).await;
    assert_eq!(
        (answer.response.head.status, answer.response.keep_alive),
        (200, false)
    );
    let mut bad = Client::open(&origin).await;
    bad.send("GET / HTTP/1.1\r\n\r\n").await;
    assert_eq!(bad.answer(&Method::Get).await.response.head.status, 400);
    assert_eq!(bad.more().await, 0);
    let mut bad = Client::open(&origin).await;
    bad.send("POST /sink HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx")
        .await;
    assert_eq!(bad.answer(&Method::Post).await.response.head.status, 400);
    assert_eq!(origin.origin.counts().refused, 2);
}

/// With the task go its connections.
#[tokio::test]
async fn stops_when_dropped() {
    let origin = start().await;
    let mut client = Client::open(&origin).await;
    client.ask(Method::Get, "/", "").await;
    drop(origin);
    let mut rest = Vec::new();
    assert_eq!(
        client.stream.read_to_end(&mut rest).await.map_or(0, |n| n),
        0
    );
}

/// Runs curl and returns its standard output.
async fn curl(arguments: &[&str]) -> Vec<u8> {
    let command = tokio::process::Command::new("curl")
        .arg("-sSk")
        .args(arguments)
        .output()
        .await;
    let output = command.expect("curl is needed for this test: apt-get install curl");
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

/// HTTP/2 as another client speaks it, after TLS and at once, has the same answers.
#[tokio::test]
async fn another_client_over_h2() {
    let plain = start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound").to_string();
    let site = Site::with_scheme(Page::gallery(3, 40_000), Scheme::Https, &[address.as_str()])
        .expect("valid");
    let secure = Origin::secure(site.clone(), Protocols::Both)
        .expect("a certificate")
        .spawn(listener)
        .expect("bound");
    let version = "\n%{http_version} %{http_code} %{size_download}";
    for (base, flag) in [
        (format!("https://{}", secure.address), "--http2"),
        (
            format!("http://{}", plain.address),
            "--http2-prior-knowledge",
        ),
    ] {
        let url = |path: &str| format!("{base}{path}");
        let body = curl(&[flag, &url("/")]).await;
        assert!(body.starts_with(b"<!DOCTYPE html>") && body.len() == 40_000);
        let said = |text: Vec<u8>| {
            String::from_utf8(text)
                .expect("text")
                .rsplit('\n')
                .next()
                .expect("a line")
                .to_owned()
        };
        let ask = async |arguments: &[&str]| {
            said(curl(&[&[flag, "-w", version], arguments].concat()).await)
        };
        assert_eq!(
            ask(&["-o", "/dev/null", &url("/images/0001.png")]).await,
            "2 200 40000"
        );
        assert_eq!(
            ask(&["-o", "/dev/null", &url("/bytes/3000000")]).await,
            "2 200 3000000"
        );
        assert_eq!(
            ask(&[
                "-o",
                "/dev/null",
                &url("/bytes/70000?framing=chunked&delay=30")
            ])
            .await,
            "2 200 70000"
        );
        assert_eq!(
            ask(&["-o", "/dev/null", &url("/?status=503")]).await,
            "2 503 40000"
        );
        assert_eq!(ask(&["-I", &url("/")]).await, "2 200 0");
        assert_eq!(
            ask(&["-r", "10-19", "-o", "/dev/null", &url("/")]).await,
            "2 206 10"
        );
        assert_eq!(
            ask(&["-o", "/dev/null", &url("/nothing")]).await,
            "2 404 17"
        );
        let large = "x".repeat(300_000);
        assert_eq!(
            curl(&[flag, "-d", &large[..100_000], &url("/sink")]).await,
            b"{\"bytes\":100000}\n"
        );
        assert_eq!(
            curl(&[flag, "-d", &large[..100_000], &url("/echo")]).await,
            &large.as_bytes()[..100_000]
        );
        let cut = tokio::process::Command::new("curl")
            .args(["-sSk", flag, &url("/bytes/50000?cut=100")])
            .output()
            .await;
        let cut = cut.expect("curl");
        // Curl may not write the data that came together with the reset.
        assert!(!cut.status.success() && cut.stdout.len() <= 100);
    }
    assert_eq!(
        secure.origin.counts().requests,
        plain.origin.counts().requests
    );
    // Clients without HTTP/2 get the same TLS.
    let old = curl(&[
        "--http1.1",
        "-w",
        version,
        "-o",
        "/dev/null",
        &format!("https://{}/", secure.address),
    ])
    .await;
    assert_eq!(
        String::from_utf8(old).expect("text").trim(),
        "1.1 200 40000"
    );
}

/// Bytes that are neither protocol, and a session that breaks the rules: the origin ends it and
/// serves on.
#[tokio::test]
async fn bad_sessions() {
    let origin = start().await;
    for bad in [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00"[..],
        b"PRI * HTTP/2.0\r\n\r\nXX",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(origin.address).await.expect("listening");
        stream.write_all(bad).await.expect("open");
        let mut answer = Vec::new();
        // Whatever it says, it says no more after it.
        let _ = stream.read_to_end(&mut answer).await;
    }
    let mut client = Client::open(&origin).await;
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(client.answer(&Method::Get).await.response.head.status, 200);
}

#[tokio::test]
async fn root_leads_to_a_page_of_another_path() {
    let origin = serve(Page::demo().expect("the page of the demo")).await;
    let site = origin.origin.site().clone();
    let path = site.page().resources[0].path.clone();
    assert_ne!(path, "/");
    let mut client = Client::open(&origin).await;
    let root = client.ask(Method::Get, "/", "").await;
    assert_eq!(
        (root.response.head.status, root.field("location")),
        (302, path.as_str())
    );
    let page = client.ask(Method::Get, &path, "").await;
    assert_eq!(page.response.head.status, 200);
}
