//! Tunnels of several clients of a relay that share a session over the transport of this suite.

use tandem::config::units::Size;

use super::tunnel_scenes::{echo, endless, open_tunnel, tunnel};
use crate::certificates::Certificates;
use crate::harness::{start_relay, wait_for};
use crate::provided::{start_client_of, start_gateway, stop};
use crate::{NAME, SCHEME, transports};

#[test]
fn unread_tunnels_fill_a_part_of_a_session() {
    let certificates = Certificates::new(&format!("{NAME}-shared"));
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    let next = format!("{SCHEME}://{address}?ca={}", certificates.path("ca.pem"));
    let listen = "h2+tcp://127.0.0.1:0";
    let (relay, relayed) = start_relay(listen, &next, &transports(), |relay| {
        relay.share_tunnels = Some(true);
        relay.receive_budget = Some(Size(1 << 20));
    });
    let clients = [(); 2].map(|()| start_client_of(&format!("h2+tcp://{relayed}"), |_| {}));
    let ((full, told), echo) = (endless(0), echo());
    let unread: Vec<_> = (0..8).map(|_| open_tunnel(clients[0].1, &full)).collect();
    wait_for(&told, unread.len());
    let mut other = tunnel(clients[1].1, &echo);
    other.send("pong");
    assert_eq!(other.read_exact(4), b"pong");
    drop((unread, other));
    let clients = clients.into_iter().map(|(client, _)| client);
    stop(clients.chain([relay, gateway]));
}
