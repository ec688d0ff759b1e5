//! Connections over TCP that deliver nothing and report nothing, as after a move of the machine to
//! another network.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use socket2::{SockFilter, SockRef};
use tandem::runtime::Running;

use crate::file_origin::{FileOrigin, FileRules, start_of};
use crate::harness::{
    Client, Scene, block_on, client_options, endpoint, gateway_options, request, start_client,
    start_gateway,
};
use crate::tunnel_scenes::{echo, tunnel};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// The time within which exchanges leave such a connection. The session itself would give it up
/// after 50 s.
pub(crate) const NOTICE: Duration = Duration::from_secs(20);

/// A filter of packets that drops each one (BPF: return 0 bytes).
const DROP_ALL: SockFilter = SockFilter::new(0x06, 0, 0, 0);

/// A path to a gateway, whose connections can be cut: the kernel acknowledges nothing then.
pub(crate) struct Cut {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    /// The present connections.
    near: Arc<Mutex<Vec<NearEnd>>>,
}

/// The end of a connection towards the client, and whether the connection is cut.
type NearEnd = (TcpStream, Arc<AtomicBool>);

impl Cut {
    pub(crate) fn to(gateway: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let this = Self {
            address: listener.local_addr().unwrap(),
            connections: Arc::default(),
            near: Arc::default(),
        };
        let (connections, all) = (Arc::clone(&this.connections), Arc::clone(&this.near));
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (near, far) = (near.unwrap(), TcpStream::connect(gateway).unwrap());
                connections.fetch_add(1, Ordering::SeqCst);
                let is_cut = Arc::<AtomicBool>::default();
                let clones = (near.try_clone().unwrap(), far.try_clone().unwrap());
                all.lock()
                    .unwrap()
                    .push((near.try_clone().unwrap(), Arc::clone(&is_cut)));
                let up = Arc::default();
                std::thread::spawn(move || pass(near, far, &up));
                std::thread::spawn(move || pass(clones.1, clones.0, &is_cut));
            }
        });
        this
    }

    /// Lets the present connections deliver nothing.
    pub(crate) fn cut(&self) {
        for (near, is_cut) in &*self.near.lock().unwrap() {
            is_cut.store(true, Ordering::SeqCst);
            SockRef::from(near).attach_filter(&[DROP_ALL]).unwrap();
        }
    }

    /// Lets them deliver again.
    fn mend(&self) {
        for (near, is_cut) in &*self.near.lock().unwrap() {
            SockRef::from(near).detach_filter().unwrap();
            is_cut.store(false, Ordering::SeqCst);
        }
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// Copies bytes until the end of a connection, and drops them while it is cut.
fn pass(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool) {
    let mut buf = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buf) {
        if !is_cut.load(Ordering::SeqCst) && to.write_all(&buf[..count]).is_err() {
            return;
        }
    }
}

/// Starts a pair with such a path.
fn start(session: &str) -> (Cut, [Running; 2], SocketAddr) {
    let mut options = gateway_options();
    options.listen = vec![endpoint(&format!("{session}+tcp://127.0.0.1:0"))];
    let (gateway, address) = start_gateway(options);
    let path = Cut::to(address);
    let options = client_options(&format!("{session}+tcp://{}", path.address));
    let (client, http, _) = start_client(options);
    (path, [client, gateway], http)
}

fn stop(pair: [Running; 2]) {
    for running in pair {
        block_on(running.drain(Duration::ZERO));
    }
}

#[test]
fn request_leaves_a_lost_connection() {
    for session in ["h2", "spdy3.1"] {
        let (path, pair, http) = start(session);
        let origin = Scene::answering(OK);
        assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
        assert_eq!(path.connections(), 1);
        path.cut();
        let begun = Instant::now();
        assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
        println!("{session}: the answer came after {:?}", begun.elapsed());
        assert!(begun.elapsed() < NOTICE, "{:?}", begun.elapsed());
        assert_eq!(path.connections(), 2);
        stop(pair);
    }
}

#[test]
fn download_leaves_a_lost_connection() {
    let (path, pair, http) = start("h2");
    let origin = FileOrigin::start(FileRules::default());
    let mut browser = origin.begin(http);
    let half = origin.file().len() / 2;
    assert_eq!(origin.range(), None);
    path.cut();
    let begun = Instant::now();
    assert!(browser.read_exact(half) == origin.file()[half..]);
    println!("the rest came after {:?}", begun.elapsed());
    assert!(begun.elapsed() < NOTICE, "{:?}", begun.elapsed());
    assert!(start_of(origin.range()) >= half);
    stop(pair);
}

/// A tunnel cannot move. Its program connects again once it has ended.
#[test]
fn tunnel_ends_with_a_lost_connection() {
    let (path, pair, http) = start("h2");
    let echo = echo();
    let mut first = tunnel(http, &echo);
    path.cut();
    first.send("lost");
    let begun = Instant::now();
    assert!(first.is_closed());
    println!("the tunnel ended after {:?}", begun.elapsed());
    assert!(begun.elapsed() < NOTICE, "{:?}", begun.elapsed());
    tunnel(http, &echo);
    assert_eq!(path.connections(), 2);
    stop(pair);
}

#[test]
fn request_stays_after_half_a_second_of_silence() {
    let (path, pair, http) = start("h2");
    let origin = Scene::answering(OK);
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
    path.cut();
    let mut browser = Client::to(http);
    browser.send(request("GET", &origin.url("/"), ""));
    // The kernel repeats the request after 0.6 and 1.4 seconds, before the verdict.
    std::thread::sleep(Duration::from_millis(500));
    path.mend();
    assert_eq!(browser.answer("GET").body, b"ok");
    assert_eq!(path.connections(), 1);
    stop(pair);
}

/// A tunnel and a download stay on a session of the former gateway. Its connection is cut then.
#[test]
fn reload_ends_dials_beside_a_former_session() {
    let (gateway, address) = start_gateway(gateway_options());
    let [former, next] = [(); 2].map(|()| Cut::to(address));
    let options = |way: &Cut| client_options(&format!("h2+tcp://{}", way.address));
    let (mut client, http, _) = start_client(options(&former));
    let (origin, echo) = (
        FileOrigin::start(FileRules::default()),
        Scene::new(|_, mut client| {
            let sent = client.read_exact(2);
            client.send(sent);
            client.request_ends();
        }),
    );
    let mut browser = origin.begin(http);
    assert_eq!(origin.range(), None);
    let (mut tunnel, to) = (Client::to(http), echo.address);
    tunnel.send(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n"));
    assert_eq!(tunnel.head().unwrap().status, 200);
    tunnel.send("hi");
    assert_eq!(tunnel.read_exact(2), b"hi");
    let before = former.connections();
    block_on(client.reload(Arc::new(options(&next).typed().unwrap()))).unwrap();
    former.cut();
    tunnel.send("on");
    let begun = Instant::now();
    let half = origin.file().len() / 2;
    assert!(browser.read_exact(half) == origin.file()[half..]);
    println!("the rest came after {:?}", begun.elapsed());
    assert!(begun.elapsed() < NOTICE, "{:?}", begun.elapsed());
    // The tunnel waits for its path. A dial beside it would have come with the verdict.
    std::thread::sleep(Duration::from_secs(5).saturating_sub(begun.elapsed()));
    assert_eq!(former.connections(), before);
    assert!(next.connections() > 0);
    stop([client, gateway]);
}
