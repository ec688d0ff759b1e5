//! The memory of associations and streams that wait: all bytes that are allocated for them.

#![expect(unsafe_code, reason = "an allocator is unsafe to implement")]
#![expect(
    clippy::unwrap_used,
    reason = "a scene that cannot be set up has failed"
)]

#[expect(dead_code, reason = "the tests of associations use the rest")]
#[path = "suite/network.rs"]
mod network;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tandem_tunnel::{Read, StreamId};

use network::{Fate, Network};

/// The bytes of an idle association at most.
const TUNNEL: usize = 32 << 10;
/// The bytes of an idle stream at one end at most.
const STREAM: usize = 4 << 10;
/// The streams of the measurement.
const STREAMS: usize = 100;

/// The system's allocator, which counts.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: All calls reach the allocator of the system unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: The caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: The caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// Returns the bytes that `value` has allocated.
fn size_of<T>(value: T) -> usize {
    let before = live();
    drop(value);
    before - live()
}

/// Sends a request on each new stream, and a response. Neither end finishes a stream.
fn exchange(network: &mut Network, count: usize) -> Vec<StreamId> {
    let content = Bytes::from_static(&[7; 500]);
    let ids: Vec<_> = (0..count)
        .map(|_| {
            let now = network.client.tunnel_time(network.now());
            let tunnel = network.client.tunnel();
            let id = tunnel.open(now).unwrap();
            tunnel.write(id, &mut content.clone()).unwrap();
            id
        })
        .collect();
    let mut asked = ids.clone();
    let mut answered = ids.clone();
    let done = network.run(|network| {
        let now = network.now();
        let gateway = network.gateway.as_mut().unwrap();
        let at = gateway.tunnel_time(now);
        asked.retain(|id| match gateway.tunnel().read(at, *id, 1000) {
            Ok(Read::Data(_)) => {
                let written = gateway.tunnel().write(*id, &mut content.clone());
                written.unwrap();
                false
            }
            _ => true,
        });
        let at = network.client.tunnel_time(now);
        let tunnel = network.client.tunnel();
        answered.retain(|id| !matches!(tunnel.read(at, *id, 1000), Ok(Read::Data(_))));
        let gateway = network.gateway.as_mut().unwrap().tunnel();
        answered.is_empty() && ids.iter().all(|id| gateway.unacknowledged(*id) == 0)
    });
    assert!(done, "the exchanges did not end");
    ids
}

#[test]
fn idle_association_and_streams_have_little_memory() {
    let mut network = Network::new(|_, _, _: &[u8]| Fate::Arrives);
    network.connect();
    for id in exchange(&mut network, 1) {
        network.client.tunnel().reset(id, 0).unwrap();
    }
    // A probe of the path takes no longer.
    network.rest();
    let before = live();
    exchange(&mut network, STREAMS);
    network.rest();
    let stream = (live() - before) / (2 * STREAMS);
    println!("an idle stream: {stream} bytes at each end");
    assert!(stream <= STREAM, "an idle stream: {stream} bytes");

    let mut network = Network::new(|_, _, _: &[u8]| Fate::Arrives);
    network.connect();
    for id in exchange(&mut network, 1) {
        network.client.tunnel().reset(id, 0).unwrap();
    }
    network.rest();
    let gateway = size_of(network.gateway.take());
    println!("an idle association: {gateway} bytes");
    assert!(gateway <= TUNNEL, "an idle association: {gateway} bytes");
}
