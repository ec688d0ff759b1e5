//! Configurations and peers that the transport refuses.

use crate::certificates::Certificates;
use crate::harness::{Client, Scene, client_options, endpoint, gateway_options};
use crate::provided::{OK, get, listener, start_client, start_client_of, start_gateway, stop};
use crate::transports;

/// Returns the error of a client's gateway.
fn refused(gateway: &str, via: Option<&str>) -> String {
    let mut options = client_options(gateway);
    options.via = via.map(|via| via.parse().unwrap());
    options.typed_with(&transports()).unwrap_err().to_string()
}

#[test]
fn client_refuses_datagrams_through_a_proxy() {
    for via in ["socks5://127.0.0.1:9050", "tor://127.0.0.1:9051"] {
        let error = refused("h3+quic://192.0.2.1:443", Some(via));
        assert!(error.contains("--via carries only TCP"), "{error}");
    }
}

#[test]
fn endpoints_name_the_session_that_fits() {
    let error = refused("h2+quic://192.0.2.1:443", None);
    assert!(error.contains("its session is h3+quic"), "{error}");
    let error = refused("h3+tls://192.0.2.1:443", None);
    assert!(error.contains("use h3+quic"), "{error}");
    let error = refused("h3+quic://192.0.2.1:443?congestion=reno", None);
    assert!(error.contains("cubic or bbr"), "{error}");
    let error = refused("h3+quic://gw.example:443", None);
    assert!(error.contains("resolves no names"), "{error}");
    let mut options = gateway_options();
    options.listen = vec![endpoint("h3+quic://127.0.0.1:0")];
    let error = options.typed_with(&transports()).unwrap_err().to_string();
    assert!(error.contains("quic needs ?cert=FILE&key=FILE"), "{error}");
}

#[test]
fn client_refuses_a_gateway_with_another_certificate() {
    let (own, other) = (
        Certificates::new("quic-own"),
        Certificates::new("quic-other"),
    );
    let (gateway, address) = start_gateway(&own, 0, |_| {});
    let (client, http) = start_client(&other, address, |_| {});
    let (status, text) = get(http);
    assert!(status >= 500 && text.contains("peer certificate"), "{text}");
    stop([client, gateway]);
}

#[test]
fn pair_works_with_either_congestion_control() {
    let certificates = Certificates::new("quic-congestion");
    let (gateway, address) = start_gateway(&certificates, 0, |options| {
        let listen = listener(&certificates, 0);
        options.listen = vec![endpoint(&format!("{listen}&congestion=bbr"))];
    });
    let ca = certificates.path("ca.pem");
    let origin = Scene::answering(OK);
    for name in ["bbr", "cubic"] {
        let endpoint = format!("h3+quic://{address}?ca={ca}&congestion={name}");
        let (client, http) = start_client_of(&endpoint, |_| {});
        assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
        stop([client]);
    }
    stop([gateway]);
}
