//! Configurations and peers that the transport refuses.

use std::time::Duration;

use crate::certificates::Certificates;
use crate::harness::{Client, Scene, block_on, client_options, endpoint, gateway_options};
use crate::pair::{start_client, start_gateway, transports};

#[test]
fn client_refuses_datagrams_through_a_proxy() {
    let mut options = client_options("http+dtls://192.0.2.1:443");
    options.via = Some("socks5://127.0.0.1:9050".parse().unwrap());
    let error = options.typed_with(&transports()).unwrap_err().to_string();
    assert!(error.contains("--via carries only TCP"), "{error}");
}

#[test]
fn endpoints_need_the_session_of_many_streams() {
    let options = client_options("h2+dtls://192.0.2.1:443");
    let error = options.typed_with(&transports()).unwrap_err().to_string();
    assert!(error.contains("its session is http+dtls"), "{error}");
    let options = client_options("http+tls://192.0.2.1:443");
    let error = options.typed_with(&transports()).unwrap_err().to_string();
    assert!(error.contains("or http over dtls"), "{error}");
    let mut options = gateway_options();
    options.listen = vec![endpoint("http+dtls://127.0.0.1:0")];
    let error = options.typed_with(&transports()).unwrap_err().to_string();
    assert!(error.contains("dtls needs ?cert=FILE&key=FILE"), "{error}");
}

#[test]
fn client_refuses_a_gateway_with_another_certificate() {
    let (own, other) = (
        Certificates::new("dtls-own"),
        Certificates::new("dtls-other"),
    );
    let (gateway, address) = start_gateway(&own, 0, |_| {});
    let (client, http) = start_client(&other, address, |_| {});
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let answer = Client::to(http).get(&origin.url("/"));
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(
        answer.status >= 500 && text.contains("certificate"),
        "{text}"
    );
    for running in [client, gateway] {
        block_on(running.drain(Duration::ZERO));
    }
}

#[test]
fn gateway_admits_by_token_only() {
    let certificates = Certificates::new("dtls-token");
    let file = |name: &str, token: &str| {
        let path = certificates.path(name);
        std::fs::write(&path, token).unwrap();
        path
    };
    let right = file("right", "a-token-of-many-characters\n");
    let wrong = file("wrong", "another-token-of-many-characters\n");
    let (gateway, address) = start_gateway(&certificates, 0, |options| {
        options.open = None;
        options.auth = vec![format!("token-file={right}")];
    });
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    for (token, admitted) in [(None, false), (Some(wrong), false), (Some(right), true)] {
        let (client, http) = start_client(&certificates, address, |options| {
            options.token_file = token;
        });
        for _ in 0..2 {
            let answer = Client::to(http).get(&origin.url("/"));
            assert_eq!(answer.status == 200, admitted, "{}", answer.status);
        }
        block_on(client.drain(Duration::ZERO));
    }
    block_on(gateway.drain(Duration::ZERO));
}

#[test]
fn session_without_gateway_fails_at_once() {
    let certificates = Certificates::new("dtls-nobody");
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let (client, http) = start_client(&certificates, address, |_| {});
    let answer = Client::to(http).get("http://127.0.0.1:1/");
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(answer.status >= 500 && text.contains("refused"), "{text}");
    block_on(client.drain(Duration::ZERO));
}
