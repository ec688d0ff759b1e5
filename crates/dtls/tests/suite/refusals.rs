//! Configurations and peers that the transport refuses.

use crate::certificates::Certificates;
use crate::harness::{Client, Scene, client_options, endpoint, gateway_options};
use crate::provided::{OK, get, start_client, start_gateway, stop};
use crate::transports;

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
    assert!(
        error.contains("its session is h3+dtls or http+dtls"),
        "{error}"
    );
    let mut options = client_options("h2+tls://192.0.2.1:443");
    options.gateway = vec![endpoint("http+tls://192.0.2.1:443").into()];
    let error = options.typed_with(&transports()).unwrap_err().to_string();
    assert!(error.contains("or http over dtls"), "{error}");
    let mut options = gateway_options();
    options.listen = vec![endpoint("http+dtls://127.0.0.1:0")];
    let error = options.typed_with(&transports()).unwrap_err().to_string();
    assert!(error.contains("dtls needs ?cert=FILE&key=FILE"), "{error}");
}

#[test]
fn endpoints_name_the_possible_couplings() {
    let expected = "coupling= may be all or stream";
    let options = client_options("http+dtls://192.0.2.1:443?coupling=none");
    let error = options.typed_with(&transports()).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
    let mut options = gateway_options();
    options.listen = vec![endpoint("http+dtls://127.0.0.1:0?cert=a&key=b&coupling=")];
    let error = options.typed_with(&transports()).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn client_refuses_a_gateway_with_another_certificate() {
    let (own, other) = (
        Certificates::new("dtls-own"),
        Certificates::new("dtls-other"),
    );
    let (gateway, address) = start_gateway(&own, 0, |_| {});
    let (client, http) = start_client(&other, address, |_| {});
    let (status, text) = get(http);
    assert!(status >= 500 && text.contains("certificate"), "{text}");
    stop([client, gateway]);
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
    let origin = Scene::answering(OK);
    for (token, admitted) in [(None, false), (Some(wrong), false), (Some(right), true)] {
        let (client, http) = start_client(&certificates, address, |options| {
            options.token_file = token;
        });
        for _ in 0..2 {
            let answer = Client::to(http).get(&origin.url("/"));
            assert_eq!(answer.status == 200, admitted, "{}", answer.status);
        }
        stop([client]);
    }
    stop([gateway]);
}
