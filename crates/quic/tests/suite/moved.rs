//! Early data for a gateway that has moved to another address.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tandem::transport::names::Names;

use crate::certificates::Certificates;
use crate::early::{short_lived, wait_for_end};
use crate::harness::{Client, Scene, client_options, endpoint, gateway_options, request, running};
use crate::provided::{OK, stop};
use crate::transports;

/// A dial gives each address two seconds, and the machine may be busy. A handshake without an
/// answer lasts 30 s.
const SOON: Duration = Duration::from_secs(15);

/// A client that returns, and its listeners.
struct Returning {
    http: SocketAddr,
    socks: SocketAddr,
    origin: Scene,
}

impl Returning {
    fn ask(&self, method: &str) -> u16 {
        let mut browser = Client::to(self.http);
        browser.send(request(
            method,
            &self.origin.url("/"),
            "Content-Length: 0\r\n",
        ));
        browser.answer(method).status
    }

    /// Returns the reply to a SOCKS client. It comes once a gateway has answered.
    fn tunnel(&self) -> u8 {
        let target = self.origin.address.to_string();
        Client::to(self.socks).socks(&target, None)
    }
}

/// Runs `ask` while the gateway is at another address. Nothing answers at the old one.
fn move_gateway(name: &str, ask: impl FnOnce(&Returning)) {
    let certificates = Certificates::new(&format!("quic-{name}"));
    let start = |address: &str, port: u16| {
        let identity = certificates.identity();
        let listen = endpoint(&format!("h3+quic://{address}:{port}?{identity}"));
        let mut options = gateway_options();
        options.listen = vec![listen.clone()];
        let (gateway, address) = running(options.typed_with(&transports()).unwrap(), &listen);
        (gateway, address.port())
    };
    let (gateway, port) = start("127.0.0.1", 0);
    let ca = certificates.path("ca.pem");
    let way = format!("h3+quic://gw.example:{port}?ca={ca}&resolve=system");
    let record = Arc::new(Mutex::new(IpAddr::from([127, 0, 0, 1])));
    let listen = ["http://127.0.0.1:0", "socks5://127.0.0.1:0"].map(endpoint);
    let mut options = client_options(&way);
    options.listen = listen.to_vec();
    short_lived(&mut options);
    let mut config = options.typed_with(&transports()).unwrap();
    let known = Arc::clone(&record);
    let names = Names::new(move |_| {
        // The dial beside the silent session begins with the old address.
        std::thread::sleep(Duration::from_millis(500));
        Ok(vec![(*known.lock().unwrap(), 0).into()])
    });
    config.gateways[0].addresses = Some(names.addresses("gw.example", port));
    let (client, http) = running(config, &listen[0]);
    let returning = Returning {
        http,
        socks: client.address(&listen[1]).unwrap(),
        origin: Scene::answering(OK),
    };
    assert_eq!(returning.ask("GET"), 200);
    wait_for_end(&gateway);
    stop([gateway]);
    let _silent = UdpSocket::bind(("127.0.0.1", port)).unwrap();
    let (gateway, _) = start("127.0.0.2", port);
    let begun = Instant::now();
    *record.lock().unwrap() = [127, 0, 0, 2].into();
    ask(&returning);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    stop([client, gateway]);
}

#[test]
fn requests_with_early_data_find_a_moved_gateway() {
    move_gateway("moved-requests", |client| {
        std::thread::scope(|scope| {
            let both = ["GET", "POST"].map(|method| scope.spawn(move || client.ask(method)));
            for status in both {
                assert_eq!(status.join().unwrap(), 200);
            }
        });
    });
}

#[test]
fn tunnel_finds_a_moved_gateway_beside_early_data() {
    move_gateway("moved-tunnel", |client| assert_eq!(client.tunnel(), 0));
}
