//! Unread streams of real connections over loopback. The receiver is a gateway.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use quinn::{
    ClientConfig, Connection, Endpoint, SendStream, ServerConfig, TransportConfig, VarInt,
};
use rustls::RootCertStore;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tandem::carrier::{CarrierStream, Code, Streams};
use tandem::error::Side;
use tokio::io::AsyncReadExt;

use super::{ADMITTED, LITTLE, NEWCOMER, STREAM_WINDOW};
use crate::carrier::QuicCarrier;

/// The longest wait for an event; a test that reaches it fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time between two looks.
const PAUSE: Duration = Duration::from_millis(10);
/// The unread streams that fill the window of an admitted client.
const MOST: usize = (ADMITTED.most / STREAM_WINDOW) as usize;

fn configs() -> (ClientConfig, ServerConfig) {
    let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]);
    let own = own.expect("a certificate");
    let der = own.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let mut roots = RootCertStore::empty();
    roots.add(der.clone()).expect("a certificate");
    let client = ClientConfig::with_root_certificates(Arc::new(roots)).expect("a root");
    let server = ServerConfig::with_single_cert(vec![der], key.into());
    let mut server = server.expect("a certificate and its key");
    let mut transport = TransportConfig::default();
    transport
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(NEWCOMER.base));
    server.transport_config(Arc::new(transport));
    (client, server)
}

/// A gateway that has admitted its client, and the client.
struct Ends {
    gateway: QuicCarrier,
    /// The connection of the gateway.
    connection: Connection,
    client: Connection,
    /// The unread streams of the gateway.
    unread: Vec<CarrierStream>,
    /// The streams of the client.
    sending: Vec<SendStream>,
    _endpoints: [Endpoint; 2],
}

impl Ends {
    async fn new() -> Self {
        let (client_config, server_config) = configs();
        let any = "127.0.0.1:0".parse().expect("an address");
        let server = Endpoint::server(server_config, any).expect("a port");
        let client = Endpoint::client(any).expect("a port");
        let address = server.local_addr().expect("bound");
        let connecting = client.connect_with(client_config, address, "localhost");
        let accepting = async { server.accept().await.expect("a client").await };
        let (near, far) = tokio::join!(connecting.expect("a configuration"), accepting);
        let far = far.expect("a connection");
        let gateway = QuicCarrier::new(far.clone(), b"h3", Side::Client, None, ());
        gateway.facts().admitted();
        Self {
            gateway,
            connection: far,
            client: near.expect("a connection"),
            unread: Vec::new(),
            sending: Vec::new(),
            _endpoints: [server, client],
        }
    }

    /// Opens a stream of the client. The gateway accepts it.
    async fn open(&self) -> (SendStream, CarrierStream) {
        let (mut send, _) = self.client.open_bi().await.expect("a stream");
        let first = async {
            // The byte announces the stream.
            send.write_all(&[7]).await.expect("a connection");
        };
        let accepted = poll_fn(|cx| self.gateway.poll_accept(cx));
        let ((), accepted) =
            tokio::time::timeout(PATIENCE, async { tokio::join!(first, accepted) })
                .await
                .expect("a limit");
        (send, accepted.expect("a connection").expect("a stream"))
    }

    /// Fills the window of one more stream that is not read.
    async fn leave_one_unread(&mut self) {
        let (mut send, stream) = self.open().await;
        write(&mut send, STREAM_WINDOW as usize - 1).await;
        self.unread.push(stream);
        self.sending.push(send);
    }
}

/// Looks until the condition is true.
async fn wait_for(mut is_true: impl FnMut() -> bool) {
    let looks = async {
        while !is_true() {
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::time::timeout(PATIENCE, looks)
        .await
        .expect("a limit");
}

/// Sends as much as the other end permits. Returns the count of the bytes.
fn send_for_ever(mut send: SendStream) -> Rc<Cell<usize>> {
    let sent = Rc::<Cell<usize>>::default();
    let count = Rc::clone(&sent);
    tokio::task::spawn_local(async move {
        while let Ok(bytes) = send.write(&[7; 64 << 10]).await {
            count.set(count.get() + bytes);
        }
    });
    sent
}

async fn write(send: &mut SendStream, bytes: usize) {
    let data = vec![7; bytes];
    let written = tokio::time::timeout(PATIENCE, send.write_all(&data)).await;
    written.expect("credit").expect("a connection");
}

fn block_on(scene: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, scene);
}

#[test]
fn unread_uploads_leave_room_up_to_the_bound() {
    block_on(async {
        let mut ends = Ends::new().await;
        for unread in 1..MOST {
            ends.leave_one_unread().await;
            assert!(!ends.gateway.hold_unread(unread), "{unread}");
            let (mut send, mut stream) = ends.open().await;
            // An eighth of the window at most is not announced, and the window is 96 MiB at most.
            write(&mut send, 1 << 20).await;
            let receive = stream.receive.as_mut().expect("both directions");
            let mut data = vec![0; (1 << 20) + 1];
            receive.read_exact(&mut data).await.expect("a connection");
        }
    });
}

#[test]
fn full_window_is_told_and_ends_with_a_stream() {
    block_on(async {
        let mut ends = Ends::new().await;
        for _ in 1..MOST {
            ends.leave_one_unread().await;
            assert!(!ends.gateway.hold_unread(ends.unread.len()));
        }
        let (mut read, mut stream) = ends.open().await;
        write(&mut read, STREAM_WINDOW as usize / 2).await;
        let (waits, _other) = ends.open().await;
        let sent = send_for_ever(waits);
        // The gateway reads far less than the eighth of the window that quinn keeps back.
        let receive = stream.receive.as_mut().expect("both directions");
        let mut piece = vec![0; 2 << 20];
        receive.read_exact(&mut piece).await.expect("a connection");
        let credit = STREAM_WINDOW as usize / 2;
        wait_for(|| {
            let is_over = sent.get() > credit + (1 << 20);
            if !is_over {
                ends.gateway.hold_unread(MOST);
            }
            is_over
        })
        .await;
        wait_for(|| ends.gateway.hold_unread(MOST)).await;
        // The session gives a stream up.
        let given_up = ends.unread.pop().and_then(|stream| stream.receive);
        given_up.expect("both directions").stop(Code(0x107));
        let before = sent.get();
        ends.gateway.hold_unread(MOST - 1);
        wait_for(|| sent.get() > before + (1 << 20)).await;
    });
}

#[test]
fn window_whose_streams_are_read_is_never_full() {
    block_on(async {
        let mut ends = Ends::new().await;
        assert!(!ends.gateway.hold_unread(MOST));
        for _ in 1..MOST {
            ends.leave_one_unread().await;
        }
        // These take all credit. Their own windows have room for that of all reads below.
        let (mut waiting, mut sent) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            let (send, stream) = ends.open().await;
            sent.push(send_for_ever(send));
            waiting.push(stream);
        }
        let all = || sent.iter().map(|sent| sent.get()).sum::<usize>() + sent.len();
        wait_for(|| all() == STREAM_WINDOW as usize).await;
        let reports = || ends.connection.stats().frame_rx.data_blocked;
        let (mut seen, mut piece) = (0, vec![0; LITTLE as usize]);
        for stream in &mut ends.unread {
            wait_for(|| reports() > seen).await;
            seen = reports();
            let receive = stream.receive.as_mut().expect("both directions");
            receive.read_exact(&mut piece).await.expect("a connection");
            assert!(!ends.gateway.hold_unread(1), "{seen}");
        }
    });
}
