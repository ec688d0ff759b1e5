//! A translator of addresses (NAT) between a client and a gateway.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A translator of addresses between a client and its gateway, which takes a new port for the
/// client when it is told to, loses some datagrams and repeats others.
pub(crate) struct Translator {
    pub(crate) address: SocketAddr,
    /// The gateway to which the next outer socket leads.
    pub(crate) gateway: Arc<Mutex<SocketAddr>>,
    pub(crate) rebind: Arc<AtomicBool>,
    /// The IP address of the next outer socket.
    pub(crate) outer_ip: Arc<Mutex<IpAddr>>,
    /// The addresses that the client has had for the gateway.
    pub(crate) outer_sockets: Arc<AtomicUsize>,
    /// True while the datagrams of the gateway wait.
    pub(crate) hold: Arc<AtomicBool>,
    /// True while the datagrams of both ends are lost.
    pub(crate) lose: Arc<AtomicBool>,
    /// True once a datagram of another socket of the client was lost.
    pub(crate) lost_new_client: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

impl Translator {
    pub(crate) fn to(gateway: SocketAddr) -> Self {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        let this = Self {
            address: near.local_addr().unwrap(),
            gateway: Arc::new(Mutex::new(gateway)),
            rebind: Arc::default(),
            outer_ip: Arc::new(Mutex::new(Ipv4Addr::LOCALHOST.into())),
            outer_sockets: Arc::default(),
            hold: Arc::default(),
            lose: Arc::default(),
            lost_new_client: Arc::default(),
            stop: Arc::default(),
        };
        let (rebind, stop) = (Arc::clone(&this.rebind), Arc::clone(&this.stop));
        let outer_sockets = Arc::clone(&this.outer_sockets);
        let (next, hold) = (Arc::clone(&this.gateway), Arc::clone(&this.hold));
        let outer_ip = Arc::clone(&this.outer_ip);
        let (lose, lost_new_client) = (Arc::clone(&this.lose), Arc::clone(&this.lost_new_client));
        std::thread::spawn(move || {
            let ip = || *outer_ip.lock().unwrap();
            let mut far = outer((ip(), gateway), &near, None, [&hold, &lose, &stop]);
            let mut buf = [0; 2048];
            let (mut count, mut client) = (0_u32, None);
            while !stop.load(Ordering::SeqCst) {
                let Ok((size, from)) = near.recv_from(&mut buf) else {
                    continue;
                };
                if lose.load(Ordering::SeqCst) {
                    let is_new = client != Some(from);
                    lost_new_client.fetch_or(is_new, Ordering::SeqCst);
                    continue;
                }
                if rebind.swap(false, Ordering::SeqCst) || client != Some(from) {
                    client = Some(from);
                    let to = *next.lock().unwrap();
                    far = outer((ip(), to), &near, Some(from), [&hold, &lose, &stop]);
                    outer_sockets.fetch_add(1, Ordering::SeqCst);
                }
                count += 1;
                if count > 20 && count.is_multiple_of(40) {
                    continue;
                }
                let _ = far.send(&buf[..size]);
                if count.is_multiple_of(13) {
                    let _ = far.send(&buf[..size]);
                }
            }
        });
        this
    }
}

/// Creates the outer socket of an IP address, and passes its datagrams to the client.
fn outer(
    (ip, gateway): (IpAddr, SocketAddr),
    near: &UdpSocket,
    client: Option<SocketAddr>,
    [hold, lose, stop]: [&Arc<AtomicBool>; 3],
) -> UdpSocket {
    let far = UdpSocket::bind((ip, 0)).unwrap();
    far.connect(gateway).unwrap();
    far.set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    if let Some(client) = client {
        let (far, near) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        let [hold, lose, stop] = [hold, lose, stop].map(Arc::clone);
        std::thread::spawn(move || {
            let mut buf = [0; 2048];
            while !stop.load(Ordering::SeqCst) {
                if hold.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                } else if let Ok(size) = far.recv(&mut buf)
                    && !lose.load(Ordering::SeqCst)
                {
                    let _ = near.send_to(&buf[..size], client);
                }
            }
        });
    }
    far
}

impl Drop for Translator {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}
