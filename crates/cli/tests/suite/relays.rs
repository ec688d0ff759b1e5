//! Tests of `tandem relay` as its users run it: a chain over the three transports, its files and
//! its signals.

use std::io::Read as _;

use crate::certificates::Certificates;
use crate::harness::{Client, Scene, client_options, request, start_client, wait_for};
use crate::process::{Process, file, run};

/// The size of the large response in bytes.
const LARGE: usize = 1 << 20;

/// An origin with a page that names `/a.css`, and a large resource. It records the paths.
fn origin() -> (Scene, std::sync::mpsc::Receiver<String>) {
    let (tell, told) = std::sync::mpsc::channel();
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let (link, body) = match path.as_str() {
                "/page" => (
                    "Link: </a.css>; rel=preload; as=style\r\n",
                    b"page".to_vec(),
                ),
                "/large" => ("", (0..LARGE).map(|at| (at % 251) as u8).collect()),
                _ => ("", path.clone().into_bytes()),
            };
            tell.send(path).unwrap();
            let length = body.len();
            client.send(format!(
                "HTTP/1.1 200 OK\r\n{link}Content-Length: {length}\r\n\r\n"
            ));
            client.send(body);
        }
    });
    (scene, told)
}

fn gateway(listen: &str) -> Process {
    Process::start(&[
        "gateway",
        "--listen",
        listen,
        "--open",
        "--allow-dest",
        "127.0.0.0/8",
        "--hold-out=0",
        "--workers=1",
    ])
}

fn relay(listen: &str, next: &str) -> Process {
    Process::start(&["relay", "--listen", listen, "--gateway", next, "--open"])
}

#[test]
fn chain_over_quic_and_tls_uses_pushes() {
    let certificates = Certificates::new("relay-quic");
    let (identity, ca) = (certificates.identity(), certificates.path("ca.pem"));
    let gateway = gateway(&format!("h2+tls://127.0.0.1:0?{identity}"));
    let far = relay(
        &format!("h3+quic://127.0.0.1:0?{identity}"),
        &format!("h2+tls://{}?ca={ca}", gateway.address),
    );
    let next = format!("h3+quic://{}?ca={ca}", far.address);
    let near = relay("h2+tcp://127.0.0.1:0", &next);
    let (_client, http, _) = start_client(client_options(&format!("h2+tcp://{}", near.address)));
    let (origin, told) = origin();
    let mut client = Client::to(http);
    assert_eq!(client.get(&origin.url("/page")).body, b"page");
    assert_eq!(wait_for(&told, 2), ["/a.css", "/page"]);
    assert_eq!(client.get(&origin.url("/a.css")).body, b"/a.css");
    assert_eq!(client.get(&origin.url("/large")).body.len(), LARGE);
    assert_eq!(wait_for(&told, 1), ["/large"], "the push was used");
}

#[test]
fn relay_reloads_and_drains_over_dtls() {
    let certificates = Certificates::new("relay-dtls");
    let (identity, ca) = (certificates.identity(), certificates.path("ca.pem"));
    let gateway = gateway(&format!("http+dtls://127.0.0.1:0?{identity}"));
    let text = format!(
        "[relay]\nlisten = [\"h2+tcp://127.0.0.1:0\"]\nopen = true\nlog = \"debug\"\nlog-requests = true\n\
         metrics = \"127.0.0.1:0\"\ngateway = [\"http+dtls://{}?ca={ca}\"]\n",
        gateway.address
    );
    let path = file("relay.toml", &text);
    let path_text = path.to_str().unwrap();
    let (ok, out, error) = run(&["check-config", path_text]);
    assert!(
        ok && out.contains("relay: listens on h2+tcp://127.0.0.1:0"),
        "{out}{error}"
    );
    let mut relay = Process::start(&["relay", "-c", path_text]);
    let at = relay.before.split("metrics on http://").nth(1).unwrap();
    let metrics: std::net::SocketAddr = at.split('/').next().unwrap().parse().unwrap();
    let (_client, http, _) = start_client(client_options(&format!("h2+tcp://{}", relay.address)));
    let (origin, _told) = origin();
    let large = || Client::to(http).get(&origin.url("/large"));
    assert_eq!(large().body.len(), LARGE);
    let mut scrape = Client::to(metrics);
    scrape.send(format!("GET /metrics HTTP/1.1\r\nHost: {metrics}\r\n\r\n"));
    let counters = String::from_utf8(scrape.answer("GET").body).unwrap();
    assert!(counters.contains("\ntandem_exchanges_total "), "{counters}");
    std::fs::write(&path, text.replace("http+dtls", "spdy3+tcp")).unwrap();
    relay.signal("HUP");
    assert!(relay.wait_for("was not reloaded").contains("use h2, h3"));
    assert_eq!(large().status, 200, "the old configuration stays");
    std::fs::write(&path, &text).unwrap();
    relay.signal("HUP");
    relay.wait_for("was reloaded");
    assert_eq!(large().status, 200);

    let mut slow = Client::to(http);
    slow.send(request("GET", &origin.url("/large"), ""));
    assert_eq!(slow.head().unwrap().status, 200);
    relay.signal("TERM");
    assert_eq!(slow.read_exact(LARGE)[LARGE - 1], ((LARGE - 1) % 251) as u8);
    assert!(relay.child.wait().unwrap().success());
    let mut log = String::new();
    relay.rest().read_to_string(&mut log).unwrap();
    assert!(log.contains("request method=GET"), "{log}");
    assert!(!log.contains("/large"), "{log}");
    std::fs::remove_file(path).unwrap();
}
