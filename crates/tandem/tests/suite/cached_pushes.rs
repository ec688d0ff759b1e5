//! Pushes from the gateway's cache, end to end: the load of a page by a second user needs no
//! origin.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use tandem::config::gateway::CacheOption;
use tandem::runtime::Running;

use crate::harness::{
    Client, Gate, PATIENCE, Pair, Scene, block_on, client_options, request, start_client,
};

/// Fields that a browser sends with the request for a page. They tell the gateway its site.
const TYPED: &str = "Sec-Fetch-Site: none\r\n";

/// The fields of a browser that opens a page, besides those of [`TYPED`].
const NAVIGATION: &str = "Accept: text/html\r\nSec-Fetch-Dest: document\r\n\
    Sec-Fetch-Mode: navigate\r\nUpgrade-Insecure-Requests: 1\r\n";

/// Two users of one gateway with a shared cache, and an origin that records its requests.
struct Users {
    origin: Scene,
    told: mpsc::Receiver<String>,
    /// The origin answers validations once this gate is open.
    validations: Arc<Gate>,
    pair: Pair,
    second: Option<Running>,
    second_address: std::net::SocketAddr,
}

impl Users {
    /// Starts both. `control` is the caching field of the page.
    fn start(control: &'static str) -> Self {
        let users = Self::start_without_validations(control);
        users.validations.open();
        users
    }

    /// Starts both. The origin does not answer validations yet.
    fn start_without_validations(control: &'static str) -> Self {
        let (tell, told) = mpsc::channel();
        let validations = Arc::new(Gate::default());
        let gate = Arc::clone(&validations);
        let origin = Scene::new(move |_, mut client| {
            while let Some(asked) = client.request() {
                let path = asked.line.split(' ').nth(1).unwrap().to_owned();
                let validates = asked.field("if-none-match").is_some();
                let (fields, body) = match &*path {
                    "/page" => (
                        format!("Cache-Control: {control}\r\nContent-Type: text/html\r\n"),
                        "<link rel=stylesheet href=a.css><script src=b.js></script>",
                    ),
                    "/a.css" => (stored_for_long("text/css"), "a{}"),
                    _ => (stored_for_long("text/javascript"), "b()"),
                };
                tell.send(path).unwrap();
                if validates {
                    gate.wait();
                }
                let length = body.len();
                client.send(match validates {
                    true => format!("HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n{fields}\r\n"),
                    false => format!(
                        "HTTP/1.1 200 OK\r\nETag: \"1\"\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
                    ),
                });
            }
        });
        let pair = Pair::with(
            "h2",
            |gateway| {
                gateway.hold_out = Some(0.0);
                gateway.cache = Some(CacheOption::Shared);
                gateway.cache_users = Some(1);
            },
            |client| client.cache_status = Some(true),
        );
        let mut options = client_options(&format!("h2+tcp://{}", pair.gateway));
        options.cache_status = Some(true);
        let (second, second_address, _) = start_client(options);
        Self {
            origin,
            told,
            validations,
            pair,
            second: Some(second),
            second_address,
        }
    }

    fn get(&self, client: &mut Client, path: &str, fields: &str) -> (Vec<u8>, Option<String>) {
        client.send(request("GET", &self.origin.url(path), fields));
        let answer = client.answer("GET");
        assert_eq!(answer.status, 200, "{path}");
        let status = answer.field("cache-status").map(str::to_owned);
        (answer.body, status)
    }

    /// Loads the page with its resources. Returns the number of resources that were pushed whole
    /// before their requests.
    fn load(&self, client: &mut Client) {
        self.get(client, "/page", TYPED);
        for (path, body) in [("/a.css", "a{}"), ("/b.js", "b()")] {
            assert_eq!(self.get(client, path, &self.referer()).0, body.as_bytes());
        }
    }

    fn referer(&self) -> String {
        format!("Referer: {}\r\n", self.origin.url("/page"))
    }

    /// Waits for this number of requests at the origin.
    fn wait_for(&self, count: usize) -> Vec<String> {
        let next = || self.told.recv_timeout(PATIENCE).unwrap();
        let mut paths: Vec<_> = (0..count).map(|_| next()).collect();
        paths.sort();
        paths
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        if let Some(second) = self.second.take() {
            block_on(second.drain(Duration::ZERO));
        }
    }
}

fn stored_for_long(kind: &str) -> String {
    format!("Cache-Control: max-age=3600\r\nContent-Type: {kind}\r\n")
}

#[test]
fn push_from_the_cache_serves_no_reload() {
    for demand in ["max-age=0", "min-fresh=3700"] {
        let users = Users::start("max-age=3600");
        users.load(&mut users.pair.connect());
        assert_eq!(users.wait_for(3), ["/a.css", "/b.js", "/page"]);
        let mut second = Client::to(users.second_address);
        users.get(&mut second, "/page", TYPED);
        let fields = format!("{}Cache-Control: {demand}\r\n", users.referer());
        users.get(&mut second, "/a.css", &fields);
        assert_eq!(users.wait_for(1), ["/a.css"], "{demand}");
        users.get(&mut second, "/b.js", &users.referer());
        assert_eq!(users.told.try_recv().ok(), None, "{demand}");
    }
}

#[test]
fn second_load_causes_no_origin_request() {
    let users = Users::start("max-age=3600");
    users.load(&mut users.pair.connect());
    assert_eq!(users.wait_for(3), ["/a.css", "/b.js", "/page"]);
    let mut second = Client::to(users.second_address);
    users.load(&mut second);
    assert!(users.told.try_recv().is_err(), "a request to the origin");
}

#[test]
fn push_from_the_cache_asks_no_origin() {
    let users = Users::start("max-age=3600");
    users.load(&mut users.pair.connect());
    users.wait_for(3);
    let mut second = Client::to(users.second_address);
    users.get(&mut second, "/page", TYPED);
    // A request that the gateway answers after both pushes shows that they have arrived.
    let (_, status) = users.get(&mut second, "/b.js", &users.referer());
    assert!(
        status.is_some_and(|status| status.contains("pushed")),
        "the resource came as a push"
    );
    assert!(users.told.try_recv().is_err(), "a request to the origin");
}

#[test]
fn unused_push_serves_the_next_user() {
    let users = Users::start("max-age=3600");
    users.get(&mut users.pair.connect(), "/page", TYPED);
    assert_eq!(users.wait_for(3), ["/a.css", "/b.js", "/page"]);
    let mut second = Client::to(users.second_address);
    for (path, body) in [("/a.css", "a{}"), ("/b.js", "b()")] {
        assert_eq!(
            users.get(&mut second, path, &users.referer()).0,
            body.as_bytes()
        );
    }
    assert!(users.told.try_recv().is_err(), "a request to the origin");
}

#[test]
fn stale_page_is_validated_alone() {
    let users = Users::start("max-age=0");
    users.load(&mut users.pair.connect());
    assert_eq!(users.wait_for(3), ["/a.css", "/b.js", "/page"]);
    users.load(&mut Client::to(users.second_address));
    assert_eq!(users.wait_for(1), ["/page"]);
    assert!(users.told.try_recv().is_err(), "a fresh resource");
}

/// A change of the page does not concern its fresh resources, so they need not wait for it.
#[test]
fn fresh_resources_precede_a_validated_page() {
    let users = Users::start_without_validations("max-age=0");
    users.load(&mut users.pair.connect());
    assert_eq!(users.wait_for(3), ["/a.css", "/b.js", "/page"]);
    let (mut page, mut other) = (
        Client::to(users.second_address),
        Client::to(users.second_address),
    );
    let fields = format!("{TYPED}{NAVIGATION}");
    page.send(request("GET", &users.origin.url("/page"), &fields));
    assert_eq!(users.wait_for(1), ["/page"], "the validation");
    for (path, body) in [("/a.css", "a{}"), ("/b.js", "b()")] {
        let (found, status) = users.get(&mut other, path, &users.referer());
        assert_eq!(found, body.as_bytes());
        assert!(
            status.as_ref().is_some_and(|it| it.contains("pushed")),
            "{path}: {status:?}"
        );
    }
    users.validations.open();
    assert_eq!(page.answer("GET").status, 200);
    assert!(users.told.try_recv().is_err(), "a fresh resource");
}
