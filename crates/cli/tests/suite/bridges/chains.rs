//! Bridges behind bridges.

use tandem::config::bridge::BridgeMode;
use tandem::exchange::Body;
use tandem_http::{RequestHead, Scheme};
use tokio::task::LocalSet;

use super::ends::{Visitor, bridge, read, server};
use crate::harness::block_on;

/// Each proxy on the way adds its member to `Proxy-Status` (RFC 9209 section 2).
#[test]
fn chain_of_bridges_keeps_the_inner_reason() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    for protocol in ["http", "h2+tcp", "spdy3.1"] {
        let (_inner, next) = bridge(protocol, |options| {
            options.allow_dest = vec!["127.0.0.0/8".parse().unwrap()];
        });
        let (_outer, entry) = bridge(protocol, |options| {
            options.mode = Some(BridgeMode::Proxy(server(protocol, next)));
        });
        block_on(LocalSet::new().run_until(async {
            let visitor = Visitor::new(protocol, entry, true);
            let request = RequestHead::get(Scheme::Http, address.to_string(), "/");
            let answer = read(visitor.send(request, Body::empty())).await;
            assert_eq!(answer.status, 502, "{protocol}");
            let members = answer.fields.get_all("proxy-status");
            let members: Vec<_> = members.map(String::from_utf8_lossy).collect();
            let [inner, outer] = &members[..] else {
                panic!("{protocol}: {members:?}")
            };
            assert!(
                inner.starts_with("bridge; error=connection_refused;"),
                "{inner}"
            );
            assert_eq!(outer, "bridge", "{protocol}");
        }));
    }
}
