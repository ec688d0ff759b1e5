//! Tests of reloads of the client: the rest of a request that comes after a reload takes no former
//! way.

use std::io::Read as _;
use std::sync::Arc;

use crate::file_origin::{FileOrigin, FileRules, start_of};
use crate::harness::{
    Client, PATIENCE, Scene, Way, block_on, client_options, endpoint, gateway_options,
    start_client, start_gateway,
};
use crate::isolation::socks_proxy;
use crate::routes::route;

#[test]
fn reload_ends_connections_without_a_request() {
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let (_gateway, gateway) = start_gateway(gateway_options());
    let (former, asked_before) = socks_proxy(gateway);
    let (latter, asked_after) = socks_proxy(gateway);
    let mut options = client_options("h2+tcp://gateway.example:9980");
    options.via = Some(format!("socks5://{former}").parse().unwrap());
    options.preconnect = Some(false);
    options.listen = vec![
        endpoint("http://127.0.0.1:0"),
        endpoint("socks5://127.0.0.2:0"),
    ];
    let (mut running, http, socks) = start_client(options.clone());

    let mut kept = Client::to(http);
    assert_eq!(kept.get(&origin.url("/")).body, b"ok");
    let mut begun = Client::to(http);
    assert_eq!(begun.get(&origin.url("/")).body, b"ok");
    asked_before.recv_timeout(PATIENCE).unwrap();
    begun.send("GET http://site.example/ HTTP/1.1\r\nHo");
    let mut greeted = Client::to(socks);
    greeted.send([5, 1, 0]);
    assert_eq!(greeted.read_exact(2), [5, 0]);
    let [mut opened, mut half] = [(); 2].map(|()| {
        let mut client = Client::to(socks);
        assert_eq!(client.socks("site.example:80", None), 0);
        client
    });
    half.send("GET / HTTP/1.1\r\nHo");

    options.via = Some(format!("socks5://{latter}").parse().unwrap());
    block_on(running.reload(Arc::new(options.typed().unwrap()))).unwrap();
    for (client, state) in [
        (&mut kept, "between two requests"),
        (&mut begun, "within a head"),
        (&mut greeted, "within the SOCKS handshake"),
        (&mut opened, "before the first request"),
        (&mut half, "within the first head"),
    ] {
        assert!(client.is_closed(), "{state}");
    }
    assert!(asked_before.try_recv().is_err());
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
    asked_after.recv_timeout(PATIENCE).unwrap();
}

#[test]
fn broken_download_goes_on_by_the_last_configuration() {
    let (_gateway, gateway) = start_gateway(gateway_options());
    let [former, next, last] = [(); 3].map(|()| Way::to(gateway));
    let options = |way: &Way| client_options(&format!("h2+tcp://{}", way.address));
    let (mut running, http, _) = start_client(options(&former));
    let origin = FileOrigin::start(FileRules::default());
    let mut browser = origin.begin(http);
    assert_eq!(origin.range(), None);
    let before = former.connections();
    for way in [&next, &last] {
        block_on(running.reload(Arc::new(options(way).typed().unwrap()))).unwrap();
    }
    former.close();
    let half = origin.file().len() / 2;
    assert!(browser.read_exact(half) == origin.file()[half..]);
    assert!(start_of(origin.range()) >= half);
    assert_eq!(
        former.connections(),
        before,
        "the former way is not dialled"
    );
    assert!(last.connections() > 0);
}

#[test]
fn broken_download_ends_without_its_gateway() {
    let (_gateway, gateway) = start_gateway(gateway_options());
    let way = Way::to(gateway);
    let options = client_options(&format!("h2+tcp://{}", way.address));
    let (mut running, http, _) = start_client(options.clone());
    let origin = FileOrigin::start(FileRules::default());
    let mut browser = origin.begin(http);
    assert_eq!(origin.range(), None);
    let before = way.connections();
    let mut without = options;
    let gateway = format!("h2+tcp://{}", way.address);
    without.route = vec![route("other.example", &gateway)];
    without.gateway = Vec::new();
    block_on(running.reload(Arc::new(without.typed().unwrap()))).unwrap();
    way.close();
    let mut rest = Vec::new();
    browser.stream.read_to_end(&mut rest).unwrap();
    assert!(rest.len() < origin.file().len() / 2);
    assert_eq!(way.connections(), before);
    assert!(origin.is_done(), "no other way was tried");
}
