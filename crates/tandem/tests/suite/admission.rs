//! The gateway lets no one in who has no right to.

use std::io::Write;
use std::path::PathBuf;

use crate::harness::{Pair, Scene};

fn secret(name: &str, text: &str) -> PathBuf {
    let file = std::env::temp_dir().join(format!("tandem-test-{}-{name}", std::process::id()));
    std::fs::File::create(&file).unwrap().write_all(text.as_bytes()).unwrap();
    file
}

#[test]
fn a_token_lets_in_and_goes_no_further() {
    let origin = Scene::new(|_, mut client| {
        while let Some(asked) = client.request() {
            assert!(asked.field("proxy-authorization").is_none());
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let (right, wrong) =
        (secret("right", "correct-horse-battery-staple\n"), secret("wrong", "incorrect-horse-battery\n"));
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
            assert_eq!(client.get(&origin.url("/")).status, status, "{session} {token:?}");
        }
    }
    std::fs::remove_file(right).unwrap();
    std::fs::remove_file(wrong).unwrap();
}

#[test]
fn tls_checks_both_ends() {
    let directory = std::env::temp_dir().join(format!("tandem-test-tls-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = |name: &str| directory.join(name).display().to_string();
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut ca = rcgen::CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_certificate = ca.self_signed(&ca_key).unwrap();
    let issuer = rcgen::Issuer::new(ca, ca_key);
    std::fs::write(path("ca.pem"), ca_certificate.pem()).unwrap();
    for name in ["gateway", "client"] {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate =
            rcgen::CertificateParams::new(vec!["gw.example".into()]).unwrap().signed_by(&key, &issuer).unwrap();
        std::fs::write(path(&format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let (ca, cert, key) = (path("ca.pem"), path("client.pem"), path("client.key"));
    for session in ["h2", "spdy3.1"] {
        for (query, name, status) in [
            (format!("&ca={ca}&cert={cert}&key={key}"), "gw.example", 200),
            (format!("&ca={ca}"), "gw.example", 502),
            (format!("&ca={ca}&cert={cert}&key={key}"), "other.example", 502),
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
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn connections_are_bounded() {
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let pair = Pair::with("h2", |_| {}, |client| client.max_connections = Some(3));
    let mut open: Vec<_> = (0..3).map(|_| pair.connect()).collect();
    for client in &mut open {
        assert_eq!(client.get(&origin.url("/")).body, b"ok");
    }
    let mut refused = pair.connect();
    assert!(refused.is_closed());
    drop(open.pop());
    for _ in 0..100 {
        let mut client = pair.connect();
        client.send(crate::harness::request("GET", &origin.url("/"), ""));
        if client.try_answer("GET").is_ok() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("a place that was given back was not given out again");
}
