//! A session that waits for room while its peer moves to another address.

use std::future::poll_fn;
use std::net::UdpSocket;

use quinn::Endpoint;
use tandem::carrier::Streams as _;
use tandem::error::Side;
use tokio::task::LocalSet;

use super::*;
use crate::carrier::QuicCarrier;

/// The time in which a scene ends.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for room until the peer has moved during a wait. The old controller lives on, as quinn may
/// keep it, and so wakes nobody. Nothing else runs between the awaits.
async fn wait_for_room_while_the_client_moves() {
    let (client_config, server_config) = configs(Algorithm::Bbr);
    let any = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    let server = Endpoint::server(server_config, any).expect("an endpoint");
    let client = Endpoint::client(any).expect("an endpoint");
    let to = server.local_addr().expect("an address");
    let connecting = client.connect_with(client_config, to, "localhost");
    let accepted = async { server.accept().await.expect("a client").await };
    let (client_end, server_end) = tokio::join!(connecting.expect("a start"), accepted);
    let _client_end = client_end.expect("a connection");
    let connection = server_end.expect("a connection");
    let carried = QuicCarrier::new(connection.clone(), b"h3", Side::Client, None, ());
    loop {
        // An acknowledgement on the old path ends a wait, so few should be under way.
        tokio::time::sleep(100 * MS).await;
        let before = connection.remote_address();
        let old = Resuming::of(&connection).expect("our controller");
        old.accept(1 << 30);
        let mut is_first = true;
        let moved = UdpSocket::bind(any).expect("a socket");
        client.rebind(moved).expect("another address");
        poll_fn(|cx| {
            let room = carried.poll_room(cx);
            assert!(!std::mem::take(&mut is_first) || room.is_pending());
            room
        })
        .await;
        if connection.remote_address() != before {
            return;
        }
    }
}

#[test]
fn session_gets_room_after_its_peer_has_moved() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        // The end of the timeout would wake the session if both were one task.
        let waits = tokio::task::spawn_local(wait_for_room_while_the_client_moves());
        let over = tokio::time::timeout(PATIENCE, waits).await;
        let result = over.expect("the session waits for a path that its peer has left");
        result.expect("no panic");
    });
}
