//! Learned pushes: resources that many users request are pushed to others, and those of a single
//! user are not.

use std::sync::mpsc;
use std::time::Duration;

use crate::harness::{
    Client, PATIENCE, Scene, block_on, client_options, gateway_options, request, start_client,
    start_gateway,
};
use tandem::config::compress::BodyCompression;
use tandem::config::{ClientOptions, GatewayOptions};
use tandem::runtime::Running;
use tandem::services::Services;

/// An origin with a page that does not name its resources. It records the paths of its requests.
pub(crate) fn origin() -> (Scene, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            // A page shows a first visit by setting the browser's first cookie.
            let kind = if path.ends_with("page") || path.ends_with(".html") {
                "text/html\r\nSet-Cookie: first=1; Path=/first"
            } else {
                "text/javascript"
            };
            tell.send(path.clone()).unwrap();
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nCache-Control: max-age=60\r\nContent-Length: {}\r\n\r\n{path}",
                path.len()
            ));
        }
    });
    (scene, told)
}

/// A gateway that stays while clients come and go.
pub(crate) struct Gateway {
    session: &'static str,
    address: std::net::SocketAddr,
    running: Option<Running>,
    /// An origin that no visit uses.
    elsewhere: Scene,
}

impl Gateway {
    fn start(session: &'static str, hold_out: f64) -> Self {
        Self::start_with(session, |options| options.hold_out = Some(hold_out))
    }

    /// Starts a gateway with changed options.
    pub(crate) fn start_with(
        session: &'static str,
        change: impl FnOnce(&mut GatewayOptions),
    ) -> Self {
        let mut options = gateway_options();
        options.listen = vec![crate::harness::endpoint(&format!(
            "{session}+tcp://127.0.0.1:0"
        ))];
        change(&mut options);
        let (running, address) = start_gateway(options);
        Self {
            session,
            address,
            running: Some(running),
            elsewhere: Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        }
    }

    pub(crate) fn services(&self) -> &Services {
        self.running.as_ref().unwrap().services()
    }

    fn client(&self) -> (Running, Client) {
        self.client_with(|_| {})
    }

    /// Starts a client with changed options.
    pub(crate) fn client_with(&self, change: impl FnOnce(&mut ClientOptions)) -> (Running, Client) {
        let gateway = format!("{}+tcp://{}", self.session, self.address);
        let mut options = client_options(&gateway);
        change(&mut options);
        let (running, http, _) = start_client(options);
        (running, Client::to(http))
    }

    /// Requests `paths` with a new client, and calls `look` before the client stops.
    pub(crate) fn visit<T>(
        &self,
        origin: &Scene,
        paths: &[&str],
        look: impl FnOnce(&mut Client) -> T,
    ) -> T {
        let (running, mut client) = self.client();
        let page = origin.url("/page");
        for path in paths {
            let referer = if *path == "/page" {
                String::new()
            } else {
                format!("Referer: {page}\r\n")
            };
            client.send(request(
                "GET",
                &origin.url(path),
                &format!("User-Agent: Mozilla/5.0\r\n{referer}"),
            ));
            assert_eq!(client.answer("GET").body, path.as_bytes());
        }
        let seen = look(&mut client);
        block_on(running.drain(Duration::ZERO));
        seen
    }

    /// Requests `urls` with a new client, each with its page as Referer, and calls `look` before
    /// the client stops.
    fn browse<T>(&self, urls: &[(&str, Option<&str>)], look: impl FnOnce(&mut Client) -> T) -> T {
        let (running, mut client) = self.client();
        for (url, page) in urls {
            let fields = page.map_or_else(
                || "User-Agent: Mozilla/5.0\r\nAccept: text/html\r\n".to_owned(),
                |page| format!("User-Agent: Mozilla/5.0\r\nReferer: {page}\r\n"),
            );
            client.send(request("GET", url, &fields));
            assert!(matches!(client.answer("GET").status, 200 | 302), "{url}");
        }
        let seen = look(&mut client);
        block_on(running.drain(Duration::ZERO));
        seen
    }

    /// Runs sessions that teach the predictor at their end, and forgets their requests.
    pub(crate) fn learn(&self, origin: &Scene, told: &mpsc::Receiver<String>, visits: &[&[&str]]) {
        for paths in visits {
            self.visit(origin, paths, |client| self.wait_for_reports(client));
        }
        told.try_iter().for_each(drop);
    }

    /// Waits until the client's reports have reached the gateway. A busy machine may delay each
    /// thread, so both ends answer something after the reports are due.
    pub(crate) fn wait_for_reports(&self, client: &mut Client) {
        // The client gathers reports for a quarter of a second.
        std::thread::sleep(Duration::from_millis(500));
        let http = client.stream.get_ref().peer_addr().unwrap();
        for _ in 0..2 {
            let page = client.get(&format!("http://{http}/proxy.pac"));
            assert_eq!(page.status, 200);
        }
        // All sessions of the gateway have one thread.
        let (running, mut bystander) = self.client();
        assert_eq!(bystander.get(&self.elsewhere.url("/")).body, b"ok");
        block_on(running.drain(Duration::ZERO));
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            block_on(running.drain(Duration::ZERO));
        }
    }
}

/// Waits for `count` requests at the origin. Returns them, and those that precede a further request
/// of the client.
pub(crate) fn asked(
    client: &mut Client,
    origin: &Scene,
    told: &mpsc::Receiver<String>,
    count: usize,
) -> Vec<String> {
    let next = || told.recv_timeout(PATIENCE).unwrap();
    let mut asked: Vec<_> = (0..count).map(|_| next()).collect();
    client.get(&origin.url("/last"));
    asked.extend(std::iter::from_fn(|| Some(next())).take_while(|path| !path.contains("/last")));
    asked.sort();
    asked
}

pub(crate) const COMMON: &[&str] = &["/page", "/a.js", "/b.js"];

#[test]
fn learned_push_repeats_the_needs_of_several_users() {
    for session in ["h2", "spdy3.1"] {
        let (origin, told) = origin();
        let gateway = Gateway::start(session, 0.0);
        gateway.learn(&origin, &told, &[COMMON; 6]);
        let pushed = gateway.visit(&origin, &["/page"], |it| asked(it, &origin, &told, 3));
        assert_eq!(pushed, ["/a.js", "/b.js", "/page"], "{session}");
        let asked_for = gateway.visit(&origin, COMMON, |it| asked(it, &origin, &told, 3));
        assert_eq!(
            asked_for,
            ["/a.js", "/b.js", "/page"],
            "{session}: each once, pushed or not"
        );
    }
}

#[test]
fn gateway_without_compression_learns_and_pushes() {
    let (origin, told) = origin();
    let gateway = Gateway::start_with("h2", |options| {
        options.hold_out = Some(0.0);
        options.compress = Some(BodyCompression::Off);
    });
    gateway.learn(&origin, &told, &[COMMON; 6]);
    let pushed = gateway.visit(&origin, &["/page"], |it| asked(it, &origin, &told, 3));
    assert_eq!(pushed, ["/a.js", "/b.js", "/page"]);
}

#[test]
fn predictor_hides_the_needs_of_a_single_user() {
    let (origin, told) = origin();
    let gateway = Gateway::start("h2", 0.0);
    let private: &[&str] = &["/page", "/a.js", "/b.js", "/private-of-one.js"];
    gateway.learn(
        &origin,
        &told,
        &[
            COMMON, private, COMMON, COMMON, COMMON, COMMON, COMMON, COMMON, COMMON, COMMON,
        ],
    );
    for _ in 0..2 {
        let seen = gateway.visit(&origin, &["/page"], |it| asked(it, &origin, &told, 3));
        assert_eq!(seen, ["/a.js", "/b.js", "/page"]);
    }
    // The adversary guesses, and counts as one user.
    gateway.learn(&origin, &told, &[private]);
    let seen = gateway.visit(&origin, &["/page"], |it| asked(it, &origin, &told, 3));
    assert_eq!(
        seen,
        ["/a.js", "/b.js", "/page"],
        "two users are not several"
    );
}

#[test]
fn held_out_page_gets_no_learned_push() {
    let (origin, told) = origin();
    let gateway = Gateway::start("h2", 100.0);
    gateway.learn(&origin, &told, &[COMMON; 6]);
    assert_eq!(
        gateway.visit(&origin, &["/page"], |it| asked(it, &origin, &told, 1)),
        ["/page"]
    );
}

/// An origin whose responses must be validated. It records the methods and paths of its requests.
fn validating_origin() -> (Scene, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let mut words = asked.line.split(' ');
            let (method, path) = (words.next().unwrap(), words.next().unwrap());
            tell.send(format!("{method} {path}")).unwrap();
            let is_page = path == "/page";
            let kind = if is_page { "text/html" } else { "image/png" };
            let is_conditional = asked.field("if-none-match").is_some();
            let status = if is_conditional {
                "304 Not Modified"
            } else {
                "200 OK"
            };
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nCache-Control: no-cache\r\nETag: \"1\"\r\n"
            );
            let has_body = method == "GET" && !is_conditional;
            let body = if has_body { path } else { "" };
            let length = match status.starts_with("304") {
                true => String::new(),
                false => format!("Content-Length: {}\r\n", path.len()),
            };
            client.send(format!("{head}{length}\r\n{body}"));
        }
    });
    (scene, told)
}

#[test]
fn client_answers_conditions_with_pushed_heads() {
    const VISIT: &[&str] = &["/page", "/a.png", "/b.png"];
    let (origin, told) = validating_origin();
    let gateway = Gateway::start("h2", 0.0);
    gateway.learn(&origin, &told, &[VISIT; 6]);
    let (running, mut client) = gateway.client();
    let validate = |client: &mut Client, path: &str, fields: &str| {
        let condition = format!("User-Agent: Mozilla/5.0\r\nIf-None-Match: \"1\"\r\n{fields}");
        client.send(request("GET", &origin.url(path), &condition));
        client.answer("GET").status
    };
    let next = || told.recv_timeout(PATIENCE).unwrap();
    assert_eq!(validate(&mut client, "/page", "Accept: text/html\r\n"), 304);
    let mut asked = [next(), next(), next()];
    asked.sort();
    assert_eq!(asked, ["GET /page", "HEAD /a.png", "HEAD /b.png"]);
    let referer = format!("Referer: {}\r\n", origin.url("/page"));
    for path in ["/a.png", "/b.png"] {
        assert_eq!(validate(&mut client, path, &referer), 304, "{path}");
    }
    client.get(&origin.url("/last"));
    assert_eq!(next(), "GET /last", "no other request was made");
    block_on(running.drain(Duration::ZERO));
}

/// Returns the response of 1,000 bytes to a request of a page, or of a resource that the page
/// names.
pub(crate) fn exchange<'a>(
    session: u64,
    url: &'a str,
    page: &'a str,
) -> tandem_predict::Exchange<'a> {
    tandem_predict::Exchange {
        session,
        user: session,
        url,
        get: true,
        status: 200,
        size: 1000,
        referer: (url != page).then_some(page),
        ..tandem_predict::Exchange::default()
    }
}

#[test]
fn predictor_keeps_its_state_in_a_file() {
    let folder = std::env::temp_dir().join(format!("tandem-state-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let state = folder.join("state");
    let learned = || {
        tandem::learned::Learned::new(tandem_predict::AutoConfig::default(), Some(state.clone()))
            .unwrap()
    };
    let all = ["http://h/page.html", "http://h/a.js"];
    let teacher = learned();
    let see = |learned: &tandem::learned::Learned, session: u64| {
        all.map(|url| learned.sending(&exchange(session, url, all[0]), None).len())
    };
    for session in 1..9 {
        see(&teacher, session);
        teacher.session_closed(session);
    }
    teacher.save().unwrap();
    assert_eq!(
        see(&learned(), 100),
        [1, 0],
        "the script is offered with the page"
    );
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn predictor_offers_more_on_a_long_and_wide_path() {
    use tandem_predict::Worth;
    let config = tandem_predict::AutoConfig {
        credit: 6.0,
        ..tandem_predict::AutoConfig::default()
    };
    let learned = tandem::learned::Learned::new(config, None).unwrap();
    let page = "http://h/page.html";
    let see = |session: u64, url: &str, size: u64, worth: Option<Worth>| {
        let exchange = tandem_predict::Exchange {
            size,
            ..exchange(session, url, page)
        };
        learned
            .sending(&exchange, worth)
            .into_iter()
            .map(|candidate| candidate.url.to_string())
            .collect::<Vec<_>>()
    };
    for session in 0..300 {
        see(session, page, 1000, None);
        see(session, "http://h/always.js", 1000, None);
        if session % 3 == 0 {
            see(session, "http://h/sometimes.png", 300_000, None);
        }
        learned.session_closed(session);
    }
    let long_and_wide = Worth::Path {
        round_trip: 0.6,
        rate: 5e6,
    };
    let thin = Worth::Path {
        round_trip: 0.1,
        rate: 20_000.0,
    };
    let with = |session, worth| {
        let mut pushed = see(session, page, 1000, worth);
        pushed.sort();
        pushed
    };
    assert_eq!(
        with(1000, Some(long_and_wide)),
        ["http://h/always.js", "http://h/sometimes.png"]
    );
    assert_eq!(with(1001, Some(thin)), ["http://h/always.js"]);
    assert_eq!(
        with(1002, None),
        ["http://h/always.js"],
        "the worth of one path does not apply to the next"
    );
}

#[test]
fn learned_push_covers_frames_and_their_scripts() {
    let (origin, told) = origin();
    let gateway = Gateway::start("h2", 0.0);
    // No page names any of the resources. There are five frames, each with a script.
    let frames: Vec<_> = (0..5)
        .map(|i| (format!("/frame{i}.html"), format!("/{i}.js")))
        .collect();
    let visit = |all: bool| {
        let (running, mut client) = gateway.client();
        let mut get = |path: &str, referer: Option<&str>, accept: &str| {
            let referer =
                referer.map_or_else(String::new, |of| format!("Referer: {}\r\n", origin.url(of)));
            let fields = format!("User-Agent: Mozilla/5.0\r\nAccept: {accept}\r\n{referer}");
            client.send(request("GET", &origin.url(path), &fields));
            assert_eq!(client.answer("GET").body, path.as_bytes());
        };
        get("/page.html", None, "text/html");
        for (frame, script) in frames.iter().filter(|_| all) {
            get(frame, Some("/page.html"), "text/html");
            get(script, Some(frame), "*/*");
        }
        let seen = if all {
            gateway.wait_for_reports(&mut client);
            told.try_iter().collect()
        } else {
            asked(&mut client, &origin, &told, 11)
        };
        block_on(running.drain(Duration::ZERO));
        seen
    };
    for _ in 0..4 {
        visit(true);
    }
    let mut expected: Vec<_> = frames
        .iter()
        .cloned()
        .flat_map(|(frame, script)| [frame, script])
        .collect();
    expected.push("/page.html".to_owned());
    expected.sort();
    assert_eq!(visit(false), expected);
}

/// An origin that answers `body` to the paths that end in `page`, and records the path and the
/// Referer of each request. `/old` leads over `/older` to `/page`, and is not recorded.
fn teller(name: &'static str, body: String) -> (Scene, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap();
            let target = match path {
                "/old" => Some("/older"),
                "/older" => Some("/page"),
                _ => None,
            };
            if let Some(target) = target {
                client.send(format!(
                    "HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n"
                ));
                continue;
            }
            let from = asked.field("referer").map_or_else(String::new, |url| {
                url.rsplit('/').next().unwrap().to_owned()
            });
            tell.send(format!("{name}{path} {from}")).unwrap();
            let (kind, body) = if path.ends_with("page") {
                ("text/html\r\nSet-Cookie: first=1; Path=/first", &*body)
            } else {
                ("text/javascript", path)
            };
            let length = body.len();
            let fields = "Cache-Control: max-age=60\r\n";
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
            ));
        }
    });
    (scene, told)
}

/// A client that is redirected twice gets the document's resources once, with the request fields
/// that the document would send.
#[test]
fn learned_push_behind_redirects_names_the_document() {
    for session in ["h2", "spdy3.1"] {
        let (site, told) = teller("", String::new());
        let (start, middle, page, script) = (
            site.url("/old"),
            site.url("/older"),
            site.url("/page"),
            site.url("/a.js"),
        );
        let visit = [
            (&*start, None),
            (&*middle, None),
            (&*page, None),
            (&*script, Some(&*page)),
        ];
        let gateway = Gateway::start(session, 0.0);
        for _ in 0..6 {
            gateway.browse(&visit, |client| gateway.wait_for_reports(client));
        }
        told.try_iter().for_each(drop);
        let pushed = gateway.browse(&visit[..1], |it| asked(it, &site, &told, 2));
        assert_eq!(pushed, ["/a.js page", "/page "], "{session}");
        let asked_for = gateway.browse(&visit, |it| asked(it, &site, &told, 2));
        assert_eq!(
            asked_for,
            ["/a.js page", "/page "],
            "{session}: each once, pushed or not"
        );
    }
}

/// A style sheet of another host requests its resources with its own URL as Referer. A push for it
/// uses that Referer too, and serves the request.
#[test]
fn learned_push_of_a_style_sheet_has_its_referrer() {
    for session in ["h2", "spdy3.1"] {
        let (other, told) = teller("", String::new());
        let (site, _told) = teller(
            "",
            format!("<link rel=stylesheet href={}>", other.url("/a.css")),
        );
        let (page, sheet, image) = (site.url("/page"), other.url("/a.css"), other.url("/a.png"));
        let visit = [
            (&*page, None),
            (&*sheet, Some(&*page)),
            (&*image, Some(&*sheet)),
        ];
        let gateway = Gateway::start(session, 0.0);
        for _ in 0..6 {
            gateway.browse(&visit, |client| gateway.wait_for_reports(client));
        }
        told.try_iter().for_each(drop);
        let once = |asked: &[String]| {
            asked
                .iter()
                .map(|line| line.split(' ').next().unwrap().to_owned())
                .collect()
        };
        let pushed: Vec<String> =
            gateway.browse(&visit[..1], |it| once(&asked(it, &other, &told, 2)));
        assert_eq!(pushed, ["/a.css", "/a.png"], "{session}");
        let asked_for: Vec<String> =
            gateway.browse(&visit, |it| once(&asked(it, &other, &told, 2)));
        assert_eq!(
            asked_for,
            ["/a.css", "/a.png"],
            "{session}: each once, pushed or not"
        );
    }
}

/// A resource of another host that only a script requests is pushed after the page has named that
/// host, and not before.
#[test]
fn learned_push_of_another_host_waits_for_the_page() {
    let (other, told_other) = teller("other", String::new());
    let (site, told) = teller(
        "site",
        format!("<script src={}></script>", other.url("/named.js")),
    );
    let (page, named, learned) = (
        site.url("/page"),
        other.url("/named.js"),
        other.url("/learned.js"),
    );
    let visit = [
        (&*page, None),
        (&*named, Some(&*page)),
        (&*learned, Some(&*page)),
    ];
    let gateway = Gateway::start("h2", 0.0);
    for _ in 0..6 {
        gateway.browse(&visit, |client| gateway.wait_for_reports(client));
    }
    told_other.try_iter().for_each(drop);
    assert_ne!(told.try_iter().count(), 0);
    let pushed = gateway.browse(&visit[..1], |it| asked(it, &other, &told_other, 2));
    // The resource's origin differs from the page's, so its Referer holds no more than that
    // (Referrer Policy, the default).
    assert_eq!(pushed, ["other/learned.js ", "other/named.js "]);
}
