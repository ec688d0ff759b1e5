//! Gateways with a name that has no address at the start, or another one later (`resolve=system`).

use std::time::Duration;

use tandem::config::RelayOptions;
use tandem::runtime::Running;
use tandem::transport::names::Names;
use tandem::transport::registry::Transports;

use crate::harness::{
    Client, PATIENCE, Scene, block_on, client_options, endpoint, gateway_options, running,
    start_client, start_gateway,
};
use crate::name_record::{Record, start_client_by_name};
use crate::patience::until;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn problems(of: &Running) -> String {
    of.services().journal().problems().join("; ")
}

#[test]
fn client_starts_before_the_name_of_its_gateway_is_known() {
    let (_gateway, address) = start_gateway(gateway_options());
    let gateway = format!("h2+tcp://gw.example:{}?resolve=system", address.port());
    let record = Record::default();
    let (client, http) = start_client_by_name(&gateway, &record, &Transports::default());
    let origin = Scene::answering(OK);
    until("the client tells of the name", || {
        problems(&client).contains("cannot be looked up yet: no such name")
    });
    let answer = Client::to(http).get(&origin.url("/"));
    assert_eq!(answer.status, 502);
    let reason = answer.field("proxy-status").unwrap();
    assert!(reason.contains("error=dns_error"), "{reason}");
    record.set(&["127.0.0.1"]);
    until("the client finds its gateway", || {
        Client::to(http).get(&origin.url("/")).status == 200
    });
    assert_eq!(problems(&client), "");
}

#[test]
fn silent_resolver_does_not_delay_the_end_of_a_client() {
    let listen = endpoint("http://127.0.0.1:0");
    let mut options = client_options("h2+tcp://gw.example:9980?resolve=system");
    options.listen = vec![listen.clone()];
    let mut config = options.typed().unwrap();
    let (answer, wait) = std::sync::mpsc::channel::<()>();
    let (asked, is_asked) = std::sync::mpsc::channel();
    let wait = std::sync::Mutex::new(wait);
    let names = Names::new(move |host| {
        asked.send(host.to_owned()).unwrap();
        // It ends with the sender.
        let _ = wait.lock().unwrap().recv();
        Ok(Vec::new())
    });
    config.gateways[0].addresses = Some(names.addresses("gw.example", 9980));
    let (client, http) = running(config, &listen);
    assert_eq!(is_asked.recv_timeout(PATIENCE).unwrap(), "gw.example");
    // The thread of the client serves other requests meanwhile.
    let page = Client::to(http).get(&format!("http://{http}/proxy.pac"));
    assert_eq!(page.status, 200);
    block_on(client.drain(Duration::ZERO));
    drop(answer);
}

#[test]
fn new_session_uses_the_new_address_of_the_name() {
    let (first, address) = start_gateway(gateway_options());
    let mut options = gateway_options();
    options.listen = vec![endpoint(&format!("h2+tcp://127.0.0.2:{}", address.port()))];
    let (second, _) = start_gateway(options);
    let sessions = |of: &Running| block_on(of.status().snapshot()).sessions.len();
    let gateway = format!("h2+tcp://gw.example:{}?resolve=system", address.port());
    let record = Record::default();
    record.set(&["127.0.0.1"]);
    let (_client, http) = start_client_by_name(&gateway, &record, &Transports::default());
    let origin = Scene::answering(OK);
    assert_eq!(Client::to(http).get(&origin.url("/")).status, 200);
    record.set(&["127.0.0.2"]);
    assert_eq!(Client::to(http).get(&origin.url("/")).status, 200);
    assert_eq!(sessions(&first), 1, "the open session stays");
    assert_eq!(sessions(&second), 0);
    block_on(first.drain(Duration::ZERO));
    until("the client finds the new address", || {
        Client::to(http).get(&origin.url("/")).status == 200
    });
    assert_eq!(sessions(&second), 1);
}

#[test]
fn relay_starts_before_the_name_of_its_next_hop_is_known() {
    let (_gateway, address) = start_gateway(gateway_options());
    let listen = endpoint("h2+tcp://127.0.0.1:0");
    let options = RelayOptions {
        listen: vec![listen.clone()],
        gateway: vec![endpoint(&format!(
            "h2+tcp://gw.example:{}?resolve=system",
            address.port()
        ))],
        open: Some(true),
        workers: Some(2),
        ..RelayOptions::default()
    };
    let mut config = options.typed_with(&Transports::default()).unwrap();
    let record = Record::default();
    record.serve(&mut config.gateways);
    let (_relay, relay) = running(config, &listen);
    let (_client, http, _) = start_client(client_options(&format!("h2+tcp://{relay}")));
    let origin = Scene::answering(OK);
    assert_eq!(Client::to(http).get(&origin.url("/")).status, 502);
    record.set(&["127.0.0.1"]);
    until("the relay finds its next hop", || {
        Client::to(http).get(&origin.url("/")).status == 200
    });
}
