//! Scenes that hold for each transport that another crate provides.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use socket2::SockRef;
use tandem::runtime::Running;

use crate::certificates::Certificates;
use crate::harness::{Client, PATIENCE, Scene, gateway_options, request};
use crate::provided::{OK, get, start_client, start_client_of, start_gateway, start_pair, stop};
use crate::{NAME, SCHEME};

/// Returns certificates in a directory that this transport's suite alone uses.
fn certificates(name: &str) -> Certificates {
    Certificates::new(&format!("{NAME}-{name}"))
}

/// Starts a client that shows a certificate from the directory of `shown`.
fn client_with(
    certificates: &Certificates,
    shown: &Certificates,
    gateway: SocketAddr,
) -> (Running, SocketAddr) {
    let (cert, key) = (shown.path("client.pem"), shown.path("client.key"));
    let ca = certificates.path("ca.pem");
    let endpoint = format!("{SCHEME}://{gateway}?ca={ca}&cert={cert}&key={key}");
    start_client_of(&endpoint, |_| {})
}

#[test]
fn gateway_admits_by_certificate() {
    let (certificates, others) = (certificates("certified"), certificates("foreign"));
    let ca = certificates.path("ca.pem");
    let (gateway, address) = start_gateway(&certificates, 0, |options| {
        options.open = None;
        options.auth = vec![format!("client-ca={ca}")];
    });
    let (right, http) = client_with(&certificates, &certificates, address);
    assert_eq!(get(http), (200, "ok".into()));
    let (wrong, http) = client_with(&certificates, &others, address);
    let (status, text) = get(http);
    assert!(status >= 500 && text.contains("client-ca names"), "{text}");
    let (none, http) = start_client(&certificates, address, |_| {});
    let (status, text) = get(http);
    assert!(
        status >= 500 && text.contains("wants a client certificate: add ?cert=FILE&amp;key=FILE"),
        "{text}"
    );
    stop([right, wrong, none, gateway]);
}

#[test]
fn gateway_admits_by_certificate_or_token() {
    let certificates = certificates("either");
    let (ca, file) = (certificates.path("ca.pem"), certificates.path("token"));
    std::fs::write(&file, "a-token-of-many-characters\n").unwrap();
    let (gateway, address) = start_gateway(&certificates, 0, |options| {
        options.open = None;
        options.auth = vec![format!("client-ca={ca}"), format!("token-file={file}")];
    });
    let (certified, http) = client_with(&certificates, &certificates, address);
    assert_eq!(get(http), (200, "ok".into()));
    let (with_token, http) = start_client(&certificates, address, |options| {
        options.token_file = Some(file.clone());
    });
    assert_eq!(get(http), (200, "ok".into()));
    let (neither, http) = start_client(&certificates, address, |_| {});
    assert_eq!(get(http).0, 407);
    stop([certified, with_token, neither, gateway]);
}

#[test]
fn client_without_a_gateway_fails_at_once() {
    let certificates = certificates("nobody");
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let (client, http) = start_client(&certificates, address, |_| {});
    let answer = Client::to(http).get("http://127.0.0.1:1/");
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(answer.status >= 500 && text.contains("refused"), "{text}");
    stop([client]);
}

#[test]
fn listener_shares_its_port_with_tcp() {
    let certificates = certificates("port");
    let (tcp, address) = crate::harness::start_gateway(gateway_options());
    let (udp, same) = start_gateway(&certificates, address.port(), |_| {});
    assert_eq!(address, same);
    let (client, http) = start_client(&certificates, same, |_| {});
    let origin = Scene::answering(OK);
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
    stop([client, tcp, udp]);
}

#[test]
fn cancelled_request_reaches_the_origin() {
    let pair = start_pair(&certificates("cancelled"), |_| {}, |_| {});
    let (told, ended) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        if client.request().is_some() {
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nfirst");
            told.send(client.request_ends()).unwrap();
        }
    });
    let mut browser = pair.connect();
    browser.send(request("GET", &origin.url("/"), ""));
    assert_eq!(browser.head().unwrap().status, 200);
    // A browser that only ends its side may still read the response.
    let stream = SockRef::from(browser.stream.get_ref());
    stream.set_linger(Some(Duration::ZERO)).unwrap();
    drop(browser);
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(true));
}
