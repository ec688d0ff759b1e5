//! Processes that drain: they accept nothing, hold no address, and end what is under way.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::certificates::Certificates;
use crate::harness::{
    Client, Gate, PATIENCE, Scene, client_options, gateway_options, request, start_client,
    start_gateway,
};
use crate::messages::nowhere;
use crate::process::{Process, file};

/// Returns an origin whose response for `/slow` waits for the gate. It tells such requests.
pub(crate) fn origin() -> (Scene, Arc<Gate>, mpsc::Receiver<()>) {
    let (tell, told) = mpsc::channel();
    let gate = Arc::new(Gate::default());
    let held = Arc::clone(&gate);
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            if asked.line.contains("/slow") {
                tell.send(()).unwrap();
                held.wait();
            }
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    (origin, gate, told)
}

/// Waits until connections to an address are refused.
fn wait_until_refused(address: SocketAddr) {
    let begun = Instant::now();
    loop {
        let connected = TcpStream::connect_timeout(&address, Duration::from_secs(1));
        if connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{address} is still open");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn next_process_begins_while_the_first_drains() {
    let (origin, gate, told) = origin();
    let [listen, metrics, admin] = [(); 3].map(|()| nowhere());
    let control = std::env::temp_dir().join(format!("tandem-drain-{}", std::process::id()));
    let text = format!(
        "[gateway]\nlisten = [\"h2+tcp://{listen}\"]\nopen = true\ndrain-timeout = \"10m\"\n\
         allow-dest = [\"127.0.0.0/8\"]\nmetrics = \"{metrics}\"\nadmin = \"{admin}\"\n\
         control = \"{}\"\n",
        control.display()
    );
    let path = file("drain.toml", &text);
    let start = || Process::start(&["gateway", "-c", path.to_str().unwrap()]);
    let mut old = start();
    let (_client, http, _) = start_client(client_options(&format!("h2+tcp://{listen}")));
    let mut slow = Client::to(http);
    slow.send(request("GET", &origin.url("/slow"), ""));
    told.recv_timeout(PATIENCE).unwrap();
    old.signal("TERM");
    for address in [listen, metrics, admin] {
        wait_until_refused(address);
    }
    let next = start();
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
    let mut scrape = Client::to(metrics);
    scrape.send(format!("GET /metrics HTTP/1.1\r\nHost: {metrics}\r\n\r\n"));
    assert_eq!(scrape.answer("GET").status, 200);
    assert!(old.child.try_wait().unwrap().is_none(), "it still drains");
    gate.open();
    assert_eq!(slow.answer("GET").body, b"ok");
    assert!(old.child.wait().unwrap().success());
    assert!(control.exists(), "it is the socket of the next process");
    next.stop();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn next_process_takes_udp_addresses_of_a_drain() {
    let certificates = Certificates::new("drain-udp");
    for scheme in ["h3+quic", "h3+dtls"] {
        let (origin, gate, told) = origin();
        let start = |port: u16| {
            let identity = certificates.identity();
            let listen = format!("{scheme}://127.0.0.1:{port}?{identity}");
            let more = ["--open", "--allow-dest", "127.0.0.0/8"];
            let limit = ["--drain-timeout", "10m"];
            Process::start(&[&["gateway", "--listen", &listen][..], &more, &limit].concat())
        };
        let mut old = start(0);
        let ca = certificates.path("ca.pem");
        let way = format!("{scheme}://{}?ca={ca}", old.address);
        let listen = ["client", "--listen", "http://127.0.0.1:0"];
        let client = Process::start(&[&listen[..], &["--gateway", &way]].concat());
        let mut slow = Client::to(client.address);
        slow.send(request("GET", &origin.url("/slow"), ""));
        told.recv_timeout(PATIENCE).unwrap();
        old.signal("TERM");
        old.wait_for("draining");
        let begun = Instant::now();
        let is_taken = || UdpSocket::bind(old.address).is_err();
        assert!(is_taken(), "no other program may have the address");
        let next = loop {
            let next = std::panic::catch_unwind(|| start(old.address.port()));
            match next {
                Ok(next) => break next,
                Err(_) => assert!(begun.elapsed() < PATIENCE, "the address is still taken"),
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let get = |http| Client::to(http).get(&origin.url("/")).body;
        assert_eq!(get(client.address), b"ok");
        assert!(old.child.try_wait().unwrap().is_none(), "it still drains");
        gate.open();
        assert_eq!(slow.answer("GET").body, b"ok");
        assert!(old.child.wait().unwrap().success());
        assert_eq!(get(client.address), b"ok");
        client.stop();
        next.stop();
    }
}

#[test]
fn requests_leave_a_gateway_that_drains() {
    let (origin, gate, told) = origin();
    let listen = ["--listen", "h2+tcp://127.0.0.1:0", "--open"];
    let more = ["--allow-dest", "127.0.0.0/8", "--drain-timeout", "10m"];
    let mut first = Process::start(&[&["gateway"][..], &listen, &more].concat());
    let (_second, second) = start_gateway(gateway_options());
    let mut options = client_options(&format!("h2+tcp://{}", first.address));
    let other = format!("h2+tcp://{second}");
    options.gateway.push(other.parse().unwrap());
    let (_client, http, _) = start_client(options);
    let mut slow = Client::to(http);
    slow.send(request("GET", &origin.url("/slow"), ""));
    told.recv_timeout(PATIENCE).unwrap();
    first.signal("TERM");
    wait_until_refused(first.address);
    let got = Client::to(http).get(&origin.url("/"));
    assert_eq!((got.status, &got.body[..]), (200, &b"ok"[..]));
    assert!(first.child.try_wait().unwrap().is_none(), "it still drains");
    gate.open();
    assert_eq!(slow.answer("GET").body, b"ok");
    assert!(first.child.wait().unwrap().success());
}
