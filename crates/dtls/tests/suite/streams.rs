//! The streams of an association as a carrier, without a session.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use tandem::carrier::{
    Carrier, CarrierStream, Code, Direction, SendStream, StreamReset, StreamStopped, Streams,
};
use tandem::exchange::Isolation;
use tandem::renewal::Renewals;
use tandem::transport::Target;
use tandem::transport::registry::{
    DialContext, Dials as _, ListenContext, Listens as _, Protocol, Socket,
};
use tandem::transport::tcp::Tcp;
use tandem_dtls::DtlsProvider;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::certificates::Certificates;
use crate::harness::{PATIENCE, endpoint};

/// Connects two carriers over loopback.
async fn connect(certificates: &Certificates) -> (Rc<dyn Streams>, Rc<dyn Streams>) {
    let (identity, ca) = (certificates.identity(), certificates.path("ca.pem"));
    let (provider, renewals) = (DtlsProvider::default(), Renewals::default());
    let context = ListenContext::new(256, PATIENCE, &renewals);
    let listen = endpoint(&format!("http+dtls://127.0.0.1:0?{identity}"));
    let listening = provider.listening(&listen, context).unwrap();
    let socket = Socket::bind(Protocol::Udp, "127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let mut listener = listening.listen(socket).unwrap();
    let context = DialContext {
        streams: Rc::new(Tcp::default()),
        congestion: String::new(),
        stream_window: u32::MAX,
        early_data: false,
        may_move: true,
        timeout: PATIENCE,
        renewals: renewals.clone(),
    };
    let gateway = endpoint(&format!("http+dtls://{address}?ca={ca}"));
    let dialling = provider.dialling(&gateway, context).unwrap();
    let target = Target::new("127.0.0.1".into(), address.port());
    let accepted = tokio::task::spawn_local(async move {
        let incoming = poll_fn(|cx| listener.poll_accept(cx)).await.unwrap();
        incoming.carrier.await.unwrap()
    });
    let near = dialling.carrier(&target, &Isolation::default()).await;
    let far = accepted.await.unwrap();
    let streams = |carrier: Carrier| carrier.into_streams().unwrap();
    (streams(near.unwrap()), streams(far))
}

fn run(name: &str, scene: impl AsyncFnOnce(Rc<dyn Streams>, Rc<dyn Streams>)) {
    let certificates = Certificates::new(name);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let scene = async {
        let (near, far) = connect(&certificates).await;
        scene(near, far).await;
    };
    let in_time = async { tokio::time::timeout(PATIENCE, scene).await };
    let ended = tokio::task::LocalSet::new().block_on(&runtime, in_time);
    ended.expect("the scene makes progress");
}

async fn open(streams: &Rc<dyn Streams>, direction: Direction) -> CarrierStream {
    poll_fn(|cx| streams.poll_open(direction, cx))
        .await
        .unwrap()
}

async fn accept(streams: &Rc<dyn Streams>) -> CarrierStream {
    let accepted = poll_fn(|cx| streams.poll_accept(cx)).await;
    accepted.unwrap().expect("a stream")
}

#[test]
fn carrier_has_streams_of_both_kinds() {
    run("dtls-kinds", async |near, far| {
        for (opener, peer) in [(&near, &far), (&far, &near)] {
            let stream = open(opener, Direction::Unidirectional).await;
            assert!(stream.receive.is_none());
            let mut send = stream.send.unwrap();
            send.write_all(&[7; 100_000]).await.unwrap();
            send.shutdown().await.unwrap();
            drop(send);
            let arrived = accept(peer).await;
            assert!(arrived.send.is_none() && arrived.id == stream.id);
            let mut all = Vec::new();
            arrived
                .receive
                .unwrap()
                .read_to_end(&mut all)
                .await
                .unwrap();
            assert!(all == [7; 100_000]);

            let mut both = open(opener, Direction::Bidirectional).await;
            let send = both.send.as_mut().unwrap();
            send.write_all(b"asked").await.unwrap();
            send.shutdown().await.unwrap();
            let mut arrived = accept(peer).await;
            let mut text = String::new();
            let receive = arrived.receive.as_mut().unwrap();
            receive.read_to_string(&mut text).await.unwrap();
            assert_eq!(text, "asked");
            let send = arrived.send.as_mut().unwrap();
            send.write_all(b"answered").await.unwrap();
            send.shutdown().await.unwrap();
            text.clear();
            let receive = both.receive.as_mut().unwrap();
            receive.read_to_string(&mut text).await.unwrap();
            assert_eq!(text, "answered");
        }
    });
}

#[test]
fn one_way_stream_can_be_stopped_and_reset() {
    run("dtls-one-way", async |near, far| {
        let mut stopped = open(&near, Direction::Unidirectional).await.send.unwrap();
        stopped.write_all(b"first").await.unwrap();
        let mut receive = accept(&far).await.receive.unwrap();
        receive.stop(Code(7));
        let code = poll_fn(|cx| stopped.poll_stopped(cx)).await;
        assert_eq!(code, Some(Code(7)));
        let error = stopped.write_all(b"more").await.unwrap_err();
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        assert_eq!(inner, Some(&StreamStopped(Code(7))));

        let mut broken = open(&near, Direction::Unidirectional).await.send.unwrap();
        broken.write_all(b"half").await.unwrap();
        let mut receive = accept(&far).await.receive.unwrap();
        broken.reset(Code(9));
        let error = receive.read_to_end(&mut Vec::new()).await.unwrap_err();
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        assert_eq!(inner, Some(&StreamReset(Code(9))));
    });
}

async fn acknowledged(send: &mut dyn SendStream) {
    while send.has_unacknowledged() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A stream that is accepted after its reset has the code, and others follow.
#[test]
fn reset_before_a_stream_is_accepted_is_not_lost() {
    run("dtls-early-reset", async |near, far| {
        let mut broken = open(&near, Direction::Bidirectional).await.send.unwrap();
        broken.write_all(b"half").await.unwrap();
        acknowledged(&mut *broken).await;
        broken.reset(Code(9));
        let mut next = open(&near, Direction::Bidirectional).await.send.unwrap();
        next.write_all(b"next").await.unwrap();
        acknowledged(&mut *next).await;
        let mut accepted = accept(&far).await;
        let code = poll_fn(|cx| accepted.send.as_mut().unwrap().poll_stopped(cx)).await;
        assert_eq!(code, Some(Code(9)));
        let mut receive = accepted.receive.unwrap();
        let error = receive.read_to_end(&mut Vec::new()).await.unwrap_err();
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        assert_eq!(inner, Some(&StreamReset(Code(9))));
        let mut text = [0; 4];
        let mut accepted = accept(&far).await;
        let receive = accepted.receive.as_mut().unwrap();
        receive.read_exact(&mut text).await.unwrap();
        assert_eq!(&text, b"next");
    });
}

#[test]
fn many_one_way_streams_come_and_go() {
    run("dtls-many", async |near, far| {
        // More than may be open at once: each is released when both ends are done with it.
        for round in 0..3000_u32 {
            let mut send = open(&near, Direction::Unidirectional).await.send.unwrap();
            send.write_all(&round.to_be_bytes()).await.unwrap();
            send.shutdown().await.unwrap();
            drop(send);
            let mut receive = accept(&far).await.receive.unwrap();
            assert_eq!(receive.read_u32().await.unwrap(), round);
            assert_eq!(receive.read(&mut [0]).await.unwrap(), 0);
        }
    });
}
