//! Tunnels whose ends stop reading: the other tunnels of the session go on, and the stopped ones
//! end with their connections.

use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::time::Duration;

use tandem::config::units::{Rate, Size, Span};
use tandem::config::{ClientOptions, GatewayOptions};

use crate::harness::{
    Client, Gate, Pair, Scene, client_options, gateway_options, start_client, start_gateway,
    start_relay, wait_for,
};
use crate::tunnel_scenes::{echo, endless, open_tunnel, tunnel};
use tandem::transport::registry::Transports;

/// The number of tunnels that are not read. With full windows they fill the memory of a session.
/// A budget this small guarantees room for no more of them (`threshold` in `tandem-http`).
const STOPPED: usize = 8;
/// The same for tunnels that clients of a relay share.
const STOPPED_SHARED: usize = 16;
/// The memory of a session in bytes, and a path whose window is about half of it.
const BUDGET: Size = Size(1 << 20);
const RATE: Rate = Rate(6_000_000);
const RTT: Span = Span(Duration::from_millis(400));

fn small_gateway(options: &mut GatewayOptions) {
    options.receive_budget = Some(BUDGET);
    (options.path_rate, options.path_rtt) = (Some(RATE), Some(RTT));
}

fn small_client(options: &mut ClientOptions) {
    options.receive_budget = Some(BUDGET);
    (options.path_rate, options.path_rtt) = (Some(RATE), Some(RTT));
}

/// Returns an origin that reads nothing until the gate opens.
fn deaf(gate: &Arc<Gate>) -> Scene {
    let gate = Arc::clone(gate);
    Scene::new(move |_, client| {
        gate.wait();
        drop(client);
    })
}

/// Opens a gate at the end of a scene, also of one that fails.
struct Opened(Arc<Gate>);

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Sends on all tunnels until none of them takes a byte for a while. Only SPDY/3, which has no
/// window of the session, may give a tunnel up.
fn fill(tunnels: &mut [Client], session: &str) -> usize {
    let mut sent = 0;
    for tunnel in &mut *tunnels {
        tunnel.stream.get_ref().set_nonblocking(true).unwrap();
    }
    let mut pauses = 0;
    while pauses < 50 {
        let before = sent;
        for tunnel in &mut *tunnels {
            match tunnel.stream.get_mut().write(&[7; 64 << 10]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => assert_eq!(session, "spdy3", "{error}"),
            }
        }
        pauses = if sent > before { 0 } else { pauses + 1 };
        std::thread::sleep(Duration::from_millis(10));
    }
    sent
}

/// Uses a new tunnel and an old one.
fn check(pair: &Pair, old: &mut Client, echo: &Scene) {
    tunnel(pair.http, echo);
    let bytes = "x".repeat(40_000);
    old.send(&bytes);
    assert_eq!(old.read_exact(bytes.len()), bytes.as_bytes());
}

#[test]
fn tunnels_that_are_not_read_stop_no_others() {
    for session in ["h2", "h3", "spdy3.1", "spdy3"] {
        println!("{session}");
        let ((full, told), echo) = (endless(0), echo());
        let pair = Pair::with(session, small_gateway, small_client);
        let mut old = tunnel(pair.http, &echo);
        check(&pair, &mut old, &echo);
        let unread: Vec<_> = (0..STOPPED)
            .map(|_| open_tunnel(pair.http, &full))
            .collect();
        wait_for(&told, STOPPED);
        check(&pair, &mut old, &echo);
        drop(unread);
        check(&pair, &mut old, &echo);
    }
}

#[test]
fn tunnels_stuck_at_the_origin_stop_no_others() {
    for session in ["h2", "h3", "spdy3.1", "spdy3"] {
        println!("{session}");
        let gate = Arc::new(Gate::default());
        let _opened = Opened(Arc::clone(&gate));
        let (deaf, echo) = (deaf(&gate), echo());
        let pair = Pair::with(session, small_gateway, small_client);
        let mut old = tunnel(pair.http, &echo);
        check(&pair, &mut old, &echo);
        let mut stuck: Vec<_> = (0..STOPPED)
            .map(|_| open_tunnel(pair.http, &deaf))
            .collect();
        assert!(fill(&mut stuck, session) > BUDGET.0 as usize, "{session}");
        check(&pair, &mut old, &echo);
        drop(stuck);
        check(&pair, &mut old, &echo);
    }
}

/// Two clients of a relay cannot stop the shared tunnels of a third, in either direction.
#[test]
fn stuck_shared_tunnels_stop_no_others() {
    let gate = Arc::new(Gate::default());
    let _opened = Opened(Arc::clone(&gate));
    let (deaf, echo) = (deaf(&gate), echo());
    let mut options = gateway_options();
    small_gateway(&mut options);
    let (_gateway, address) = start_gateway(options);
    let next = format!("h2+tcp://{address}");
    let listen = "h2+tcp://127.0.0.1:0";
    let (_relay, relayed) = start_relay(listen, &next, &Transports::default(), |relay| {
        relay.share_tunnels = Some(true);
        relay.receive_budget = Some(BUDGET);
        (relay.path_rate, relay.path_rtt) = (Some(RATE), Some(RTT));
    });
    let clients = [(); 3].map(|()| start_client(client_options(&format!("h2+tcp://{relayed}"))));
    let http = clients.each_ref().map(|(_, http, _)| *http);
    let mut old = tunnel(http[2], &echo);
    let of_two = (0..STOPPED_SHARED).map(|number| http[number % 2]);
    let mut stuck: Vec<_> = of_two.map(|http| open_tunnel(http, &deaf)).collect();
    assert!(fill(&mut stuck, "h2") > BUDGET.0 as usize);
    old.send("pong");
    assert_eq!(old.read_exact(4), b"pong");
    tunnel(http[2], &echo);
    drop(stuck);
}
