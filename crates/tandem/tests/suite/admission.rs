//! Tests of admission: a gateway serves only authorised clients.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{HandshakeKind, ServerConfig, ServerConnection};
use tandem_http::{Priority, RequestHead, Scheme};

use crate::certificates::Certificates;
use crate::harness::{Client, PATIENCE, Pair, Scene, gateway_options, start_gateway};
use crate::limits::Peer;

pub(crate) fn secret(name: &str, text: &str) -> PathBuf {
    let file = std::env::temp_dir().join(format!("tandem-test-{}-{name}", std::process::id()));
    std::fs::File::create(&file)
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    file
}

#[test]
fn token_admits_client_and_is_not_forwarded() {
    let origin = Scene::new(|_, mut client| {
        while let Some(asked) = client.request() {
            assert!(asked.field("proxy-authorization").is_none());
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let (right, wrong) = (
        secret("right", "correct-horse-battery-staple\n"),
        secret("wrong", "incorrect-horse-battery\n"),
    );
    for (session, token, status) in [
        ("h2", Some(&right), 200),
        ("h2", Some(&wrong), 407),
        ("h2", None, 407),
        ("spdy3.1", Some(&right), 200),
        ("spdy3.1", None, 407),
    ] {
        let pair = Pair::with(
            session,
            |gateway| {
                gateway.open = None;
                gateway.auth = vec![format!("token-file={}", right.display())];
            },
            |client| client.token_file = token.map(|file| file.display().to_string()),
        );
        let mut client = pair.connect();
        for _ in 0..3 {
            assert_eq!(
                client.get(&origin.url("/")).status,
                status,
                "{session} {token:?}"
            );
        }
    }
    std::fs::remove_file(right).unwrap();
    std::fs::remove_file(wrong).unwrap();
}

#[test]
fn gateway_uses_http_2_with_origin_by_alpn() {
    let certificates = Certificates::new("origin");
    let behind = Scene::new(|_, mut client| {
        while let Some(asked) = client.request() {
            let length = asked
                .field("content-length")
                .map_or(0, |n| n.parse().unwrap());
            let body = client.read_exact(length);
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"
            ));
            client.send(body);
        }
    });
    for protocol in ["h2", "http"] {
        // A gateway in reverse mode serves as an origin over TLS.
        let mut origin = crate::harness::gateway_options();
        origin.listen = vec![crate::harness::endpoint(&format!(
            "{protocol}+tls://127.0.0.1:0?{}",
            certificates.identity()
        ))];
        origin.mode = Some(
            format!("reverse=http://{}", behind.address)
                .parse()
                .unwrap(),
        );
        origin.allow_host = vec!["*".parse().unwrap()];
        let (_origin, address) = crate::harness::start_gateway(origin);
        for (ca, status) in [(Some(certificates.path("ca.pem")), 200), (None, 502)] {
            let pair = Pair::with(
                "h2",
                |gateway| {
                    gateway.mode = Some(format!("reverse=https://{address}").parse().unwrap());
                    gateway.allow_host = vec!["site.example".parse().unwrap()];
                    gateway.origin_ca = ca;
                },
                |_| {},
            );
            let mut client = pair.connect();
            for size in [0, 5, 300_000] {
                client.send(crate::harness::request(
                    "POST",
                    "http://site.example/",
                    &format!("Content-Length: {size}\r\n"),
                ));
                client.send(vec![b'z'; size]);
                let answer = client.answer("POST");
                assert_eq!(answer.status, status, "{protocol}");
                assert!(status != 200 || answer.body == vec![b'z'; size]);
                if status != 200 {
                    break;
                }
            }
        }
    }
}

#[test]
fn tls_session_verifies_both_certificates() {
    let certificates = Certificates::new("tls");
    let path = |name: &str| certificates.path(name);
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let (ca, cert, key) = (path("ca.pem"), path("client.pem"), path("client.key"));
    for session in ["h2", "spdy3.1"] {
        for (query, name, status) in [
            (format!("&ca={ca}&cert={cert}&key={key}"), "gw.example", 200),
            (format!("&ca={ca}"), "gw.example", 502),
            (
                format!("&ca={ca}&cert={cert}&key={key}"),
                "other.example",
                502,
            ),
            (format!("&cert={cert}&key={key}"), "gw.example", 502),
        ] {
            let mut gateway = crate::harness::gateway_options();
            gateway.listen = vec![crate::harness::endpoint(&format!(
                "{session}+tls://127.0.0.1:0?cert={}&key={}",
                path("gateway.pem"),
                path("gateway.key")
            ))];
            gateway.open = None;
            gateway.auth = vec![format!("client-ca={ca}")];
            let (_gateway, address) = crate::harness::start_gateway(gateway);
            let options = crate::harness::client_options(&format!(
                "{session}+tls://{name}:{}?ip=127.0.0.1{query}",
                address.port()
            ));
            let (_client, http, _) = crate::harness::start_client(options);
            let answer = crate::harness::Client::to(http).get(&origin.url("/"));
            assert_eq!(answer.status, status, "{session} {name} {query}");
        }
    }
}

#[test]
fn reverse_gateway_refuses_unknown_hosts() {
    let origin = Scene::new(|_, mut client| {
        while let Some(asked) = client.request() {
            let host = asked.field("host").unwrap();
            assert!(!host.contains("other"), "{host} came through");
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{host}",
                host.len()
            ));
        }
    });
    let own = origin.address.to_string();
    let (onion, other_onion) = (
        format!("{}.onion", "a".repeat(56)),
        format!("other{}.onion", "b".repeat(51)),
    );
    for (session, named, hosts) in [
        // The first case is an onion service's default configuration, the second one names its
        // hosts.
        (
            "h2",
            vec![],
            vec![
                (own.as_str(), 200),
                (&onion, 200),
                ("other.example", 421),
                ("other.onion.example", 421),
            ],
        ),
        (
            "h2",
            vec![onion.as_str()],
            vec![
                (&own, 200),
                (&onion, 200),
                (&other_onion, 421),
                ("other.example", 421),
            ],
        ),
        (
            "spdy3.1",
            vec!["*.site.example", "SITE.example"],
            vec![("Site.Example", 200), ("a.b.site.example", 200)],
        ),
        (
            "h2",
            vec!["*.site.example"],
            vec![
                ("site.example:8080", 421),
                ("othersite.example", 421),
                (&onion, 421),
            ],
        ),
        (
            "http",
            vec!["*"],
            vec![("any.example", 200), ("x.example:99", 200)],
        ),
    ] {
        let mode = |gateway: &mut tandem::config::GatewayOptions| {
            gateway.mode = Some(
                format!("reverse=http://{}", origin.address)
                    .parse()
                    .unwrap(),
            );
            gateway.allow_host = named.iter().map(|name| name.parse().unwrap()).collect();
        };
        if session == "http" {
            let mut gateway = crate::harness::gateway_options();
            gateway.listen = vec![crate::harness::endpoint("http://127.0.0.1:0")];
            mode(&mut gateway);
            let (_gateway, address) = crate::harness::start_gateway(gateway);
            for (host, status) in hosts {
                let mut client = crate::harness::Client::to(address);
                client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
                assert_eq!(client.answer("GET").status, status, "{host}");
            }
            continue;
        }
        let pair = Pair::with(session, mode, |_| {});
        for (host, status) in hosts {
            let answer = pair.connect().get(&format!("http://{host}/"));
            assert_eq!(answer.status, status, "{session} {named:?} {host}");
            let body = String::from_utf8(answer.body).unwrap();
            let wanted = if status == 200 {
                host.to_ascii_lowercase()
            } else {
                "allow-host".into()
            };
            assert!(
                body.to_ascii_lowercase().contains(&wanted),
                "{host}: {body}"
            );
        }
    }
}

/// Starts an origin over TLS that closes each connection after one response, and sends whether the
/// TLS session was resumed.
fn closing_origin(certificates: &Certificates) -> (SocketAddr, Receiver<HandshakeKind>) {
    let chain = CertificateDer::pem_file_iter(certificates.path("gateway.pem")).unwrap();
    let chain = chain.collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(certificates.path("gateway.key")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (kinds, seen) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut tls = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = rustls::Stream::new(&mut tls, &mut stream);
            let mut buffer = [0; 4096];
            if stream.read(&mut buffer).is_err() {
                continue;
            }
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
            stream.write_all(answer).unwrap();
            let kind = stream.conn.handshake_kind().unwrap();
            stream.conn.send_close_notify();
            let _ = stream.flush();
            if kinds.send(kind).is_err() {
                return;
            }
        }
    });
    (address, seen)
}

/// Tickets would tell an origin that two users come from one client.
#[test]
fn forward_gateway_resumes_no_session_with_an_origin() {
    let certificates = Certificates::new("tickets");
    for is_reverse in [false, true] {
        let (origin, seen) = closing_origin(&certificates);
        let mut options = gateway_options();
        options.origin_ca = Some(certificates.path("ca.pem"));
        if is_reverse {
            options.mode = Some(format!("reverse=https://{origin}").parse().unwrap());
            options.allow_host = vec!["site.example".parse().unwrap()];
        }
        let (_running, gateway) = start_gateway(options);
        let head = match is_reverse {
            true => RequestHead::get(Scheme::Http, "site.example", "/"),
            false => RequestHead::get(Scheme::Https, origin.to_string(), "/"),
        };
        let mut kinds = Vec::new();
        for _ in 0..3 {
            let mut client = Peer::to(gateway, "h2");
            client.core.open(&head, true, Priority::default()).unwrap();
            client.wait_for_response();
            kinds.push(seen.recv_timeout(PATIENCE).unwrap());
        }
        let are_resumed = kinds.contains(&HandshakeKind::Resumed);
        assert_eq!(are_resumed, is_reverse, "{kinds:?}");
    }
}

#[test]
fn status_407_of_an_origin_is_no_refusal() {
    let origin = Scene::answering(
        "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"work\"\r\n\
         Proxy-Status: gateway; error=http_request_denied\r\nContent-Length: 0\r\n\r\n",
    );
    let behind = Scene::answering("tunnel");
    for session in crate::pairs::SESSIONS {
        let pair = Pair::with(session, |_| {}, |_| {});
        for _ in 0..2 {
            let answer = pair.connect().get(&origin.url("/"));
            assert_eq!(answer.status, 502, "{session}");
            assert_eq!(answer.field("proxy-authenticate"), None, "{session}");
            let said = answer.field("proxy-status").unwrap();
            assert!(said.contains("http_protocol_error"), "{session}: {said}");
        }
        let mut tunnel = Client::to(pair.socks);
        assert_eq!(
            tunnel.socks(&behind.address.to_string(), None),
            0,
            "{session}"
        );
    }
}
