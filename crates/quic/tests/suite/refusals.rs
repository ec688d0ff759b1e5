//! Configurations and peers that the transport refuses.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::certificates::Certificates;
use crate::harness::{
    Client, Gate, PATIENCE, Scene, block_on, client_options, endpoint, gateway_options, request,
};
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
fn client_leaves_out_datagrams_behind_a_proxy() {
    let ways = "h3+quic://gw.example:443,h2+tls://gw.example:443";
    let mut options = client_options(ways);
    options.via = Some("socks5://127.0.0.1:9050".parse().unwrap());
    let config = options.typed_with(&transports()).unwrap();
    let used: Vec<_> = config.all_gateways().collect();
    assert_eq!(used.len(), 1);
    assert_eq!(used[0].endpoint.transport, "tls");
    let warning = config
        .warnings()
        .into_iter()
        .find(|it| it.contains("is not used"));
    let warning = warning.expect("a warning");
    assert!(warning.starts_with("h3+quic://gw.example:443: this way"));
    assert!(warning.contains("--via carries only TCP"), "{warning}");
    let all = config.destinations();
    assert!(!all[0].1.contains("quic"), "{all:?}");
}

#[test]
fn client_takes_ways_from_flags_files_and_routes() {
    let ways = "h3+quic://192.0.2.1:443,h2+tls://192.0.2.1:443";
    let config = client_options(ways).typed_with(&transports()).unwrap();
    let kinds = config
        .all_gateways()
        .map(|it| (it.is_alternative, it.is_datagrams));
    assert_eq!(kinds.collect::<Vec<_>>(), [(false, true), (true, false)]);
    let (_, way) = &config.destinations()[0];
    let expected = "gateway h3+quic://192.0.2.1:443 or h2+tls://192.0.2.1:443";
    assert_eq!(way, expected);
    let mut routed = client_options("h2+tls://192.0.2.9:443");
    routed.route = vec![format!("a.example={ways}").parse().unwrap()];
    assert_eq!(routed.route[0].to_string(), format!("a.example={ways}"));
    let config = routed.typed_with(&transports()).unwrap();
    assert_eq!(config.routes[0].gateways.len(), 2);
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

/// The sockets of its connections get no datagrams of other clients, which must not wait for it.
#[test]
fn draining_gateway_refuses_new_connections() {
    let certificates = Certificates::new("quic-draining");
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    let (client, http) = start_client(&certificates, address, |_| {});
    let (other, other_http) = start_client(&certificates, address, |_| {});
    let (tell, told) = mpsc::channel();
    let gate = Arc::new(Gate::default());
    let held = Arc::clone(&gate);
    let origin = Scene::new(move |_, mut origin| {
        if origin.request().is_some() {
            tell.send(()).unwrap();
            held.wait();
            origin.send(OK);
        }
    });
    let mut slow = Client::to(http);
    slow.send(request("GET", &origin.url("/slow"), ""));
    told.recv_timeout(PATIENCE).unwrap();
    let draining = std::thread::spawn(move || block_on(gateway.drain(10 * PATIENCE)));
    let begun = Instant::now();
    loop {
        let (status, text) = get(other_http);
        if status == 502 && text.contains("connection refused") {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{status}: {text}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!draining.is_finished());
    gate.open();
    assert_eq!(slow.answer("GET").body, b"ok");
    draining.join().unwrap();
    stop([client, other]);
}
