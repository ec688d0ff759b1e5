//! The credentials of clients: certificates and tokens.

use std::net::SocketAddr;

use tandem::runtime::Running;

use crate::certificates::Certificates;
use crate::harness::{Client, Scene};
use crate::pairs::{start_client, start_client_of, start_gateway, stop};

/// Returns the status and the body of a request through the client at `http`.
fn get(http: SocketAddr) -> (u16, String) {
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let answer = Client::to(http).get(&origin.url("/"));
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    (answer.status, body)
}

/// Starts a client that shows a certificate from the directory of `shown`.
fn client_with(
    certificates: &Certificates,
    shown: &Certificates,
    gateway: SocketAddr,
) -> (Running, SocketAddr) {
    let (cert, key) = (shown.path("client.pem"), shown.path("client.key"));
    let ca = certificates.path("ca.pem");
    let endpoint = format!("h3+quic://{gateway}?ca={ca}&cert={cert}&key={key}");
    start_client_of(&endpoint, |_| {})
}

#[test]
fn gateway_admits_by_certificate() {
    let certificates = Certificates::new("quic-certified");
    let others = Certificates::new("quic-foreign");
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
    let certificates = Certificates::new("quic-either");
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
