//! Ends of streams and of tunnels, shut windows, other paths, and peers that break the protocol.

use std::time::Duration;

use bytes::Bytes;
use tandem_link::LinkConfig;
use tandem_link::delay::{Jitter, Shape};
use tandem_link::loss::Loss;
use tandem_tunnel::wire::{Ack, Data, MAX_BLOCKS, Segment, Segments, StreamSegment};
use tandem_tunnel::{
    Closed, Config, Event, FORGOTTEN, InputError, REFUSED, Read, Side, StreamError, Tunnel,
};

use crate::path::{MS, Path, pattern};

fn link(delay: u32) -> LinkConfig {
    LinkConfig {
        delay: MS * delay,
        ..LinkConfig::default()
    }
}

#[test]
fn stream_carries_data_in_its_first_datagram() {
    let mut path = Path::new(&Config::default(), &link(50), 1);
    let id = path.upload(b"request");
    path.run_for(50 * MS);
    assert_eq!(path.server.received[&id], (b"request".to_vec(), true));
    let mut answer = Bytes::from_static(b"answer");
    path.server
        .tunnel
        .write(id, &mut answer)
        .expect("the other half is open");
    path.server.tunnel.finish(id).expect("open");
    path.run_for(50 * MS);
    assert_eq!(path.client.received[&id], (b"answer".to_vec(), true));
    path.run_for(Duration::from_secs(1));
    assert_eq!(
        (
            path.client.tunnel.open_streams(),
            path.server.tunnel.open_streams()
        ),
        (0, 0)
    );
    assert_eq!(
        (path.client.tunnel.memory(), path.server.tunnel.memory()),
        (0, 0)
    );
}

#[test]
fn reset_reaches_the_peer_in_spite_of_losses() {
    let mut link = link(20);
    link.loss = Loss::Independent(0.3);
    for seed in 0..20 {
        let mut path = Path::new(&Config::default(), &link, seed);
        let id = path.upload(&pattern(30_000, 1));
        path.run_for(100 * MS);
        if path.client.tunnel.reset(id, 9).is_err() {
            continue;
        }
        assert_eq!(path.client.tunnel.reset(id, 9), Err(StreamError::Unknown));
        path.run_for(Duration::from_secs(60));
        assert_eq!(path.client.tunnel.open_streams(), 0, "seed {seed}");
        assert_eq!(path.server.tunnel.open_streams(), 0, "seed {seed}");
        let opened = path.server.has(Event::Opened(id));
        assert_eq!(opened, path.server.has(Event::Reset(id, 9)), "seed {seed}");
    }
}

/// Data that arrives after the reset is answered, and the answer is not.
#[test]
fn ends_fall_silent_after_resets_and_reordering() {
    let mut link = link(20);
    link.jitter = Some(Jitter {
        shape: Shape::Exponential,
        scale: 15 * MS,
        reorder: true,
    });
    let mut path = Path::new(&Config::default(), &link, 1);
    for round in 0..40 {
        let id = path.upload(&pattern(200_000, round));
        path.run_for(150 * MS);
        let _ = path.client.tunnel.reset(id, 9);
        if round % 2 == 0 {
            let _ = path.server.tunnel.reset(id, 9);
        }
    }
    path.run_for(Duration::from_secs(10));
    let sent =
        |path: &Path| [&path.client, &path.server].map(|end| end.tunnel.stats().datagrams_sent);
    let before = sent(&path);
    path.run_for(Duration::from_secs(30));
    assert_eq!(sent(&path), before);
}

#[test]
fn slow_reader_holds_the_sender_and_is_probed() {
    let mut link = link(20);
    link.loss = Loss::Independent(0.1);
    let mut path = Path::new(&Config::default(), &link, 3);
    path.server.is_paused = true;
    let data = pattern(600_000, 2);
    let id = path.upload(&data);
    path.run_for(Duration::from_secs(90));
    let (held, most) = (path.server.tunnel.memory(), Config::default().first_window);
    assert!(held <= most, "more than the first window: {held}");
    path.server.is_paused = false;
    path.run_for(Duration::from_secs(60));
    assert!(path.server.received[&id] == (data, true));
}

#[test]
fn probe_is_answered_beside_a_shut_window() {
    let mut path = Path::new(&Config::default(), &link(20), 1);
    path.server.is_paused = true;
    path.upload(&pattern(600_000, 2));
    path.run_for(Duration::from_secs(20));
    let before = path.client.tunnel.stats();
    for _ in 0..3 {
        path.client.tunnel.probe();
        path.run_for(45 * MS);
    }
    let after = path.client.tunnel.stats();
    let sent = after.datagrams_sent - before.datagrams_sent;
    let received = after.datagrams_received - before.datagrams_received;
    assert_eq!((sent, received), (3, 3));
}

#[test]
fn tunnel_memory_is_bounded_over_all_streams() {
    let config = Config {
        memory: 256 << 10,
        ..Config::default()
    };
    let mut path = Path::new(&config, &link(20), 3);
    path.server.counts_only = true;
    let ids: Vec<_> = (0..8)
        .map(|_| path.client.tunnel.open(path.now).expect("open"))
        .collect();
    let mut left: Vec<_> = ids
        .iter()
        .map(|id| (*id, Bytes::from(vec![5; 600_000])))
        .collect();
    let most = config.memory + 8 * 2 * config.initial_credit;
    while !left.is_empty() {
        for (id, data) in &mut left {
            path.client.tunnel.write(*id, data).expect("an open stream");
        }
        left.retain(|(_, data)| !data.is_empty());
        path.run_for(10 * MS);
        assert!(path.client.tunnel.memory() <= most && path.server.tunnel.memory() <= most);
        assert!(
            path.now < Duration::from_secs(100),
            "memory is shared, and nobody starves"
        );
    }
    path.run_for(Duration::from_secs(5));
    assert!(ids.iter().all(|id| path.server.bytes_read[id] == 600_000));
}

#[test]
fn tunnel_goes_on_after_its_address_changed() {
    let mut path = Path::new(&Config::default(), &link(40), 1);
    let data = pattern(2_000_000, 4);
    let id = path.upload(&data);
    path.run_for(300 * MS);
    path.is_cut = true;
    path.run_for(Duration::from_secs(3));
    path.is_cut = false;
    path.client.tunnel.path_changed(path.now);
    let before = path.now;
    path.run_while(Duration::from_secs(20), |path| {
        !path.client.has(Event::Finished(id))
    });
    assert!(path.server.received[&id] == (data, true));
    assert!(
        path.now - before < Duration::from_secs(5),
        "no timer is waited for"
    );
}

/// Returns a fast path whose round trip is known, and a function that sends a segment and returns
/// the round trip a second later.
fn measured_path() -> (Path, impl Fn(&mut Path) -> Duration) {
    let mut path = Path::new(&Config::default(), &link(20), 1);
    let id = path.client.tunnel.open(path.now).expect("an open tunnel");
    let send = move |path: &mut Path| {
        let mut data = Bytes::from_static(&[7; 100]);
        let written = path.client.tunnel.write(id, &mut data);
        written.expect("an open stream");
        path.run_for(Duration::from_secs(1));
        path.client.tunnel.rtt().expect("a sample")
    };
    assert!((0..5).all(|_| send(&mut path) < 100 * MS));
    (path, send)
}

/// Each segment is repeated before its first copy is acknowledged, so no acknowledgement tells the
/// round trip (Karn's algorithm).
#[test]
fn tunnel_measures_a_path_that_has_become_slower() {
    let (mut path, send) = measured_path();
    path.change_links(&link(300));
    let measured: Vec<_> = (0..30).map(|_| send(&mut path)).collect();
    assert!(measured[29] > 500 * MS, "{measured:?}");
    let before = path.client.tunnel.stats();
    assert!((0..10).all(|_| send(&mut path) > 500 * MS));
    let after = path.client.tunnel.stats();
    assert_eq!(
        (after.timeouts, after.tail_probes),
        (before.timeouts, before.tail_probes)
    );
}

/// A reply takes longer than the time after which a probe is repeated.
#[test]
fn tunnel_measures_a_path_that_has_become_much_slower() {
    let (mut path, send) = measured_path();
    path.change_links(&link(1500));
    let measured: Vec<_> = (0..60).map(|_| send(&mut path)).collect();
    assert!(measured[59] > 2000 * MS, "{measured:?}");
}

#[test]
fn tunnel_survives_a_black_hole_for_full_datagrams() {
    let mut path = Path::new(&Config::default(), &link(20), 1);
    let warm = path.upload(&pattern(400_000, 1));
    path.run_while(Duration::from_secs(20), |path| {
        !path.client.has(Event::Finished(warm))
    });
    assert!(
        path.client.tunnel.datagram_size() >= 1436,
        "{}",
        path.client.tunnel.datagram_size()
    );
    path.mtu = 1300;
    let data = pattern(400_000, 2);
    let id = path.upload(&data);
    path.run_while(Duration::from_secs(30), |path| {
        !path.client.has(Event::Finished(id))
    });
    assert!(path.server.received[&id] == (data, true));
    assert!((1200..=1300).contains(&path.client.tunnel.datagram_size()));
}

#[test]
fn silent_peer_ends_the_tunnel() {
    let config = Config {
        idle_timeout: Duration::from_secs(30),
        ..Config::default()
    };
    let mut path = Path::new(&config, &link(20), 1);
    path.upload(b"x");
    path.run_for(Duration::from_secs(1));
    path.is_cut = true;
    path.run_for(Duration::from_secs(31));
    assert!(path.client.has(Event::Closed(Closed::TimedOut)));
    assert_eq!(
        path.client.tunnel.open(path.now),
        Err(StreamError::Closed(Closed::TimedOut))
    );
    assert_eq!(path.client.tunnel.poll_timeout(), None);
}

#[test]
fn keep_alive_holds_an_idle_tunnel() {
    let config = Config {
        idle_timeout: Duration::from_secs(30),
        keep_alive: Some(Duration::from_secs(12)),
        ..Config::default()
    };
    let mut path = Path::new(&config, &link(20), 1);
    path.run_for(Duration::from_secs(600));
    assert_eq!(
        (path.client.tunnel.closed(), path.server.tunnel.closed()),
        (None, None)
    );
    let sent = path.client.tunnel.stats().datagrams_sent;
    assert!(sent <= 120, "{sent}");
    assert_eq!(
        path.client.tunnel.rtt(),
        Some(40 * MS),
        "probes measure the round trip"
    );
}

#[test]
fn close_reaches_the_peer() {
    let mut path = Path::new(&Config::default(), &link(20), 1);
    path.upload(b"x");
    path.run_for(100 * MS);
    path.client.tunnel.close(4);
    path.run_for(100 * MS);
    assert!(path.server.has(Event::Closed(Closed::Peer(4))));
    assert_eq!(path.client.tunnel.closed(), Some(Closed::Local));
}

#[test]
fn streams_beyond_the_bound_are_refused() {
    let config = Config {
        max_streams: 2,
        ..Config::default()
    };
    let mut path = Path::new(&config, &link(20), 1);
    let ids: Vec<_> = (0..3)
        .map(|_| {
            let id = path.client.tunnel.open(path.now).expect("open");
            path.client
                .tunnel
                .write(id, &mut Bytes::from_static(b"x"))
                .expect("open");
            id
        })
        .collect();
    path.run_for(Duration::from_secs(1));
    assert!(path.client.has(Event::Reset(ids[2], REFUSED)));
    assert!(path.server.has(Event::Refused(ids[2])));
    assert_eq!(path.server.tunnel.open_streams(), 2);
}

#[test]
fn congestion_marks_slow_the_sender_without_losses() {
    let config = Config::default();
    let link = LinkConfig {
        delay: 20 * MS,
        rate: "20mbit".parse().expect("a rate"),
        ..LinkConfig::default()
    };
    let rate = |mark_every| {
        let mut path = Path::new(&config, &link, 1);
        path.mark_every = mark_every;
        path.server.counts_only = true;
        let id = path.upload(&vec![1; 4 << 20]);
        path.run_for(Duration::from_secs(2));
        assert_eq!(path.client.tunnel.stats().lost, 0);
        path.server.bytes_read[&id]
    };
    assert!(rate(20) * 2 < rate(0));
}

/// The loss of a tail shows in no acknowledgement, so that a timer must act (RFC 8985, section 7).
#[test]
fn lost_tail_is_repaired_by_the_probe() {
    let mut path = Path::new(&Config::default(), &link(50), 1);
    // The round trip is known, and the window takes all three datagrams.
    path.upload(&pattern(20_000, 1));
    path.run_for(Duration::from_secs(1));
    let before = path.client.tunnel.stats();
    let took = path.upload_with_loss(&pattern(3 * 1200, 2), 2);
    let after = path.client.tunnel.stats();
    assert_eq!(after.tail_probes, before.tail_probes + 1);
    assert_eq!(after.timeouts, before.timeouts);
    // An acknowledgement restarts the timer after a round trip. The probe leaves after two more and
    // the time for which an acknowledgement may wait, and needs half of one.
    assert!(took <= 400 * MS, "{took:?}");
}

#[test]
fn tunnel_forbids_marks_on_a_path_that_drops_ect() {
    let data = pattern(200_000, 1);
    let mut path = Path::new(&Config::default(), &link(20), 1);
    path.drops_ect = true;
    let id = path.upload(&data);
    path.run_while(Duration::from_secs(10), |path| {
        !path.server.received.get(&id).is_some_and(|(_, end)| *end)
    });
    assert!(path.server.received[&id].0 == data);
    assert!(path.client.tunnel.stats().timeouts > 0);
    // A path that has passed them may lose datagrams for any other reason, at first.
    path.drops_ect = false;
    let now = path.now;
    path.client.tunnel.path_changed(now);
    path.upload(b"arrives");
    path.run_for(Duration::from_secs(1));
    let before = path.permitting;
    let timeouts = path.client.tunnel.stats().timeouts;
    path.is_cut = true;
    path.upload(b"is lost at first");
    path.run_for(Duration::from_secs(20));
    assert!(path.client.tunnel.stats().timeouts > timeouts + 2);
    // The segment, the probe of the tail and that after the first timeout.
    assert_eq!(path.permitting, before + 3);
}

#[test]
fn tunnel_forbids_marks_once_its_route_drops_ect() {
    let data = pattern(200_000, 1);
    let mut path = Path::new(&Config::default(), &link(20), 1);
    path.upload(&data);
    path.run_for(Duration::from_secs(2));
    assert!(path.permitting > 0);
    path.drops_ect = true;
    let id = path.upload(&data);
    path.run_while(Duration::from_secs(20), |path| {
        !path.server.received.get(&id).is_some_and(|(_, end)| *end)
    });
    assert!(path.server.received[&id].0 == data);
}

/// An end that has opened one stream and sent `len` bytes.
fn lone(len: usize) -> Tunnel {
    let mut tunnel = Tunnel::new(Side::Client, Config::default(), Duration::ZERO);
    let id = tunnel.open(Duration::ZERO).expect("open");
    tunnel
        .write(id, &mut Bytes::from(vec![1; len]))
        .expect("open");
    let mut out = Vec::new();
    while tunnel.poll_output(Duration::ZERO, &mut out) {}
    tunnel
}

fn feed(tunnel: &mut Tunnel, segment: StreamSegment<'_>) -> Result<(), InputError> {
    let mut datagram = Vec::new();
    Segment::Stream(segment).encode(&mut datagram);
    tunnel.handle_input(MS, &datagram, false)
}

#[test]
fn broken_protocol_ends_the_tunnel() {
    let ack = Ack {
        offset: 5000,
        window: 100,
        duplicates: 0,
        blocks: [(0, 0); MAX_BLOCKS],
        block_count: 0,
    };
    let data = |offset| {
        Some(Data {
            offset,
            payload: b"xy",
            fin: false,
        })
    };
    let segment = StreamSegment::default();
    let broken = [
        (
            "an ack of unsent data",
            StreamSegment {
                ack: Some(ack),
                ..segment
            },
        ),
        (
            "data beyond the window",
            StreamSegment {
                data: data(1 << 20),
                ..segment
            },
        ),
        (
            "our stream, never opened",
            StreamSegment {
                stream: 8,
                data: data(0),
                ..segment
            },
        ),
        (
            "a number far ahead",
            StreamSegment {
                stream: u32::MAX,
                data: data(0),
                ..segment
            },
        ),
    ];
    for (name, segment) in broken {
        let mut tunnel = lone(1000);
        let result = feed(&mut tunnel, segment);
        assert!(
            matches!(result, Err(InputError::Violation(_))),
            "{name}: {result:?}"
        );
        assert_eq!(tunnel.closed(), Some(Closed::Violation), "{name}");
        let mut out = Vec::new();
        assert!(tunnel.poll_output(MS, &mut out), "{name}: the peer is told");
        assert!(!tunnel.poll_output(MS, &mut out), "{name}");
    }
}

/// A peer that has forgotten a stream had everything of it, or had reset it.
#[test]
fn stream_that_the_peer_forgot_is_read_to_its_end() {
    for has_end in [true, false] {
        let mut tunnel = Tunnel::new(Side::Client, Config::default(), Duration::ZERO);
        let id = tunnel.open(Duration::ZERO).expect("open");
        let mut data = Bytes::from_static(b"request");
        tunnel.write(id, &mut data).expect("open");
        tunnel.finish(id).expect("open");
        tunnel.poll_output(Duration::ZERO, &mut Vec::new());
        let answer = StreamSegment {
            data: Some(Data {
                offset: 0,
                payload: b"answer",
                fin: has_end,
            }),
            ..StreamSegment::default()
        };
        feed(&mut tunnel, answer).expect("valid");
        let forgotten = StreamSegment {
            reset: Some(FORGOTTEN),
            reset_ack: true,
            ..StreamSegment::default()
        };
        feed(&mut tunnel, forgotten).expect("valid");
        let events: Vec<_> = std::iter::from_fn(|| tunnel.poll_event()).collect();
        if has_end {
            assert_eq!(events, [Event::Readable(id), Event::Finished(id)]);
            let data = tunnel.read(MS, id, 100);
            assert_eq!(data, Ok(Read::Data(Bytes::from_static(b"answer"))));
            assert_eq!(tunnel.read(MS, id, 100), Ok(Read::End));
        } else {
            assert_eq!(events, [Event::Readable(id), Event::Reset(id, FORGOTTEN)]);
        }
        tunnel.poll_output(MS, &mut Vec::new());
        assert_eq!((tunnel.open_streams(), tunnel.memory()), (0, 0));
    }
}

#[test]
fn segment_of_a_forgotten_stream_gets_a_reset() {
    let mut tunnel = lone(100);
    for stream in 0..600 {
        let reset = StreamSegment {
            stream: 2 * stream + 1,
            reset: Some(3),
            ..StreamSegment::default()
        };
        feed(&mut tunnel, reset).expect("valid");
    }
    let mut out = Vec::new();
    while tunnel.poll_output(MS, &mut out) {}
    let again = StreamSegment {
        stream: 1,
        data: Some(Data {
            offset: 0,
            payload: b"late",
            fin: true,
        }),
        ..StreamSegment::default()
    };
    feed(&mut tunnel, again).expect("valid");
    tunnel.poll_output(MS, &mut out);
    let answered = Segments::new(&out).any(|segment| {
        let Ok(Segment::Stream(segment)) = segment else {
            return false;
        };
        (segment.stream, segment.reset) == (1, Some(FORGOTTEN))
    });
    assert!(answered);
}

#[test]
fn finished_stream_refuses_writes() {
    let mut tunnel = Tunnel::new(Side::Client, Config::default(), Duration::ZERO);
    let id = tunnel.open(Duration::ZERO).expect("open");
    tunnel.finish(id).expect("open");
    let written = tunnel.write(id, &mut Bytes::from_static(b"x"));
    assert_eq!(written, Err(StreamError::Finished));
    assert_eq!(tunnel.read(MS, id, 10), Ok(Read::Blocked));
}

/// A receiver that pauses between the data and their end finds the end later, although its own
/// half was acknowledged long ago.
#[test]
fn stream_lasts_until_its_end_was_read() {
    let mut path = Path::new(&Config::default(), &link(20), 1);
    path.server.is_paused = true;
    let id = path.upload(b"pushed");
    path.run_for(50 * MS);
    let data = path.server.tunnel.read(path.now, id, 100);
    assert_eq!(data, Ok(Read::Data(Bytes::from_static(b"pushed"))));
    path.server.tunnel.finish(id).expect("an open half");
    path.run_for(Duration::from_secs(1));
    assert_eq!(path.server.tunnel.read(path.now, id, 100), Ok(Read::End));
    path.run_for(Duration::from_secs(1));
    let open = [&path.client, &path.server].map(|end| end.tunnel.open_streams());
    assert_eq!(open, [0, 0]);
}
