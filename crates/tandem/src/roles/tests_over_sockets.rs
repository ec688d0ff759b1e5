//! Tests of sessions over sockets: how much a session leaves to the kernel. Sessions and transports
//! do not know each other, so the roles test both together.

use std::rc::Rc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use socket2::SockRef;
use tandem_http::{
    ByteMux, MuxConfig, Priority, RequestHead, ResponseHead, Role, Scheme, SendBuf, h2,
};
use tandem_spdy::Version;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::carrier::Carrier;
use crate::exchange::{Exchange, Peer, Reply};
use crate::role_name::RoleName;
use crate::session::mux::{Multiplexed, MuxSession};
use crate::session::{Drain, Serve};
use crate::transport::tcp::{self, SocketOptions};

/// The size of the response, of which both kernels hold a small part.
const LONG: usize = 4 << 20;

/// Returns both ends of a connection, of which the second receives little before it reads.
async fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let far = TcpSocket::new_v4().expect("a socket");
    far.set_recv_buffer_size(64 << 10).expect("an option");
    let far = far.connect(listener.local_addr().expect("bound"));
    let far = far.await.expect("connects");
    (listener.accept().await.expect("accepts").0, far)
}

/// Linux appends to its last buffer of up to 64 KiB without a look at the limit.
#[tokio::test(flavor = "current_thread")]
async fn session_leaves_few_unsent_bytes_to_the_kernel() {
    for protocol in [Multiplexed::H2, Multiplexed::Spdy(Version::V31)] {
        let local = tokio::task::LocalSet::new();
        let most = local.run_until(most_unsent(protocol, &[])).await;
        // The heads of frames are not counted.
        let limit = SocketOptions::default().notsent_lowat + 1024;
        assert!((1..limit).contains(&most), "{protocol:?}: {most}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn session_leaves_few_unsent_bytes_if_a_path_slows() {
    let slow = [64 << 10; 12];
    let reads = [&[1 << 20], &slow[..]].concat();
    let local = tokio::task::LocalSet::new();
    let most = local.run_until(most_unsent(Multiplexed::H2, &reads)).await;
    let limit = SocketOptions::default().notsent_lowat + 1024;
    assert!((1..limit).contains(&most), "{most}");
}

/// Returns the most unsent bytes of a server that sends a long response to a client. The client
/// does the `reads`, one in 50 ms, before the bytes are counted, and none later.
async fn most_unsent(protocol: Multiplexed, reads: &[usize]) -> u32 {
    let (near, mut far) = connected().await;
    SocketOptions::default().apply(&near);
    let watched = SockRef::from(&near).try_clone().expect("a descriptor");
    let watched = TcpStream::from_std(watched.into()).expect("a socket");
    let config = |role| MuxConfig {
        stream_window: 2 * LONG as u32,
        session_window: 4 * LONG as u32,
        ..MuxConfig::new(role)
    };
    let session = MuxSession::new(protocol, config(Role::Server), RoleName::Gateway);
    let stage =
        Rc::new(|_: Exchange| Reply::ready(ResponseHead::new(200), Bytes::from(vec![0; LONG])));
    let carrier = Carrier::Bytes(tcp::path(near));
    let serving = session.serve(carrier, Peer::none(), stage, Drain::new());
    let serving = tokio::task::spawn_local(serving);
    let config = config(Role::Client);
    let mut client: Box<dyn ByteMux> = match protocol {
        Multiplexed::Spdy(version) => {
            let config = tandem_spdy::Config::new(config, version);
            Box::new(tandem_spdy::Connection::new(config))
        }
        _ => Box::new(h2::Connection::new(config)),
    };
    let head = RequestHead::get(Scheme::Http, "site.example", "/");
    let mut out = SendBuf::new();
    let opened = client.open(&head, true, Priority::default());
    opened.expect("room for a stream");
    while client.wants_output() {
        client.poll_output(&mut out, usize::MAX);
    }
    let request = out.copy_to_bytes(out.remaining());
    far.write_all(&request).await.expect("room");
    for count in reads {
        far.read_exact(&mut vec![0; *count]).await.expect("gets it");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (mut most, mut full) = (0, 0);
    // The limit holds at each moment. A longer look finds more of the moments.
    while full < 50 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let unsent = tcp::unsent(&watched).expect("Linux tells");
        most = most.max(unsent);
        full += u32::from(unsent > 0);
    }
    serving.abort();
    most
}
