//! The first segments of streams. They tell the peer the window, which it learns nowhere else until
//! half of the window has been read.

use std::time::Duration;

use bytes::Bytes;
use tandem_tunnel::wire::{Ack, Data, Segment, Segments};
use tandem_tunnel::{Config, Side, StreamId, Tunnel};

use crate::path::MS;

/// Returns all datagrams that an end has to send.
fn datagrams(tunnel: &mut Tunnel, now: Duration) -> Vec<Vec<u8>> {
    let mut datagram = Vec::new();
    let mut all = Vec::new();
    while tunnel.poll_output(now, &mut datagram) {
        all.push(datagram.clone());
    }
    all
}

/// Returns the window in the first segment for a stream. That segment has the stream's first data.
fn first_window(datagrams: &[Vec<u8>], id: StreamId) -> Option<u16> {
    let segments = datagrams
        .iter()
        .flat_map(|datagram| Segments::new(datagram));
    let mut of_stream = segments.filter_map(|segment| match segment.expect("its own segment") {
        Segment::Stream(segment) if segment.stream == id.get() => {
            Some((segment.data.map(|data: Data<'_>| data.offset), segment.ack))
        }
        _ => None,
    });
    let (offset, ack): (_, Option<Ack>) = of_stream.next().expect("a segment of the stream");
    assert_eq!(offset, Some(0), "nothing precedes the data that opens it");
    ack.map(|ack| ack.window)
}

fn open(tunnel: &mut Tunnel, bytes: usize) -> StreamId {
    let id = tunnel.open(Duration::ZERO).expect("an open tunnel");
    let mut data = Bytes::from(vec![7; bytes]);
    tunnel.write(id, &mut data).expect("an open stream");
    id
}

#[test]
fn first_segment_waits_for_room_for_its_window() {
    for first in 1000..1450 {
        let mut tunnel = Tunnel::new(Side::Client, Config::default(), Duration::ZERO);
        let ids = [first, 500].map(|bytes| open(&mut tunnel, bytes));
        let sent = datagrams(&mut tunnel, Duration::ZERO);
        for id in ids {
            assert_eq!(first_window(&sent, id), Some(256), "after {first} bytes");
        }
    }
}

/// Wide windows of a few streams leave the usual ones to the others.
#[test]
fn own_streams_begin_wide_while_few_are_open() {
    let config = Config {
        own_window: 1 << 20,
        ..Config::default()
    };
    let mut tunnel = Tunnel::new(Side::Client, config, Duration::ZERO);
    let windows: Vec<u16> = (0..94)
        .map(|_| {
            let id = open(&mut tunnel, 1);
            first_window(&datagrams(&mut tunnel, Duration::ZERO), id).expect("a window")
        })
        .collect();
    assert!((1000..=1024).contains(&windows[0]), "{}", windows[0]);
    assert!(windows.is_sorted_by(|before, after| before >= after));
    assert!(windows[5] > 700 && windows[20] > 256, "{windows:?}");
    assert_eq!(windows[90], 256);
}

#[test]
fn repeated_first_segment_tells_the_window_again() {
    let mut tunnel = Tunnel::new(Side::Client, Config::default(), Duration::ZERO);
    let id = open(&mut tunnel, 100);
    let lost = datagrams(&mut tunnel, Duration::ZERO);
    assert_eq!(first_window(&lost, id), Some(256));
    let mut repeated = Vec::new();
    for _ in 0..100 {
        let now = tunnel.poll_timeout().expect("a timeout");
        tunnel.handle_timeout(now);
        repeated = datagrams(&mut tunnel, now);
        if !repeated.is_empty() {
            break;
        }
    }
    assert_eq!(first_window(&repeated, id), Some(256));
}

#[test]
fn window_does_not_precede_its_stream() {
    let config = Config {
        memory: 1 << 20,
        ..Config::default()
    };
    let mut tunnel = Tunnel::new(Side::Client, config.clone(), Duration::ZERO);
    let mut peer = Tunnel::new(Side::Server, config, Duration::ZERO);
    open(&mut tunnel, 200_000);
    // The first window is full, so that the next stream waits, and it gets less than it writes.
    let first = datagrams(&mut tunnel, Duration::ZERO);
    let waiting = open(&mut tunnel, 1 << 20);
    assert!(datagrams(&mut tunnel, Duration::ZERO).is_empty());
    for datagram in first {
        peer.handle_input(50 * MS, &datagram, false).expect("valid");
    }
    let mut sent = Vec::new();
    for datagram in datagrams(&mut peer, 50 * MS) {
        tunnel
            .handle_input(100 * MS, &datagram, false)
            .expect("valid");
        sent.extend(datagrams(&mut tunnel, 100 * MS));
    }
    assert!(first_window(&sent, waiting).is_some_and(|window| window > 16));
}
