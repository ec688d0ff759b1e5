//! Offers: windows for streams that the gateway will open, over 400 ms in virtual time.

use std::time::Duration;

use bytes::Bytes;
use tandem_link::LinkConfig;
use tandem_tunnel::wire::{Data, Segment, Segments, StreamSegment};
use tandem_tunnel::{Config, Event, InputError, Side, StreamId, Tunnel};

use crate::path::{MS, Path, pattern};

const ROUND_TRIP: Duration = Duration::from_millis(400);
/// The bytes that a stream without an offer may send before its first acknowledgement.
const CREDIT: u64 = 16 << 10;
/// The streams of a gateway, and the bytes on each.
const PUSHES: usize = 30;
const PUSH: usize = 200 << 10;
/// The bytes of an offer, which stands last in its datagram.
const OFFER: usize = 7;

fn client_config() -> Config {
    Config {
        offered_streams: 64,
        ..Config::default()
    }
}

/// A gateway offers no windows, since a client that is not known could fill them.
fn gateway_config() -> Config {
    Config {
        first_window: 0,
        ..Config::default()
    }
}

fn client(config: Config) -> Tunnel {
    let mut tunnel = Tunnel::new(Side::Client, config, Duration::ZERO);
    tunnel.note_handshake(ROUND_TRIP);
    tunnel
}

fn gateway() -> Tunnel {
    let mut tunnel = Tunnel::new(Side::Server, gateway_config(), Duration::ZERO);
    tunnel.note_handshake(ROUND_TRIP);
    tunnel
}

/// Returns the next datagram of an end, which has something to send.
fn datagram(tunnel: &mut Tunnel, now: Duration) -> Vec<u8> {
    let mut datagram = Vec::new();
    assert!(tunnel.poll_output(now, &mut datagram), "nothing to send");
    datagram
}

/// Returns a datagram of the client with a new request.
fn request(client: &mut Tunnel, now: Duration) -> Vec<u8> {
    let id = client.open(now).expect("an open tunnel");
    let written = client.write(id, &mut Bytes::from_static(b"request"));
    assert_eq!(written, Ok(7));
    datagram(client, now)
}

/// Returns the window and the index of the offer in a datagram.
fn offer(datagram: &[u8]) -> Option<(u16, u32)> {
    let segments = Segments::new(datagram).map(|segment| segment.expect("its own segment"));
    let segments: Vec<_> = segments.collect();
    let is_offer = |segment: &Segment<'_>| matches!(segment, Segment::Offer { .. });
    let place = segments.iter().position(is_offer)?;
    assert_eq!(place + 1, segments.len(), "an offer is last");
    match segments[place] {
        Segment::Offer { window, below } => Some((window, below)),
        _ => None,
    }
}

fn feed_offer(tunnel: &mut Tunnel, window: u16, below: u32) {
    let mut datagram = Vec::new();
    Segment::Offer { window, below }.encode(&mut datagram);
    tunnel.handle_input(MS, &datagram, false).expect("valid");
}

/// Makes the peer of a tunnel send a segment of a stream.
fn feed(tunnel: &mut Tunnel, segment: StreamSegment<'_>) {
    let mut datagram = Vec::new();
    Segment::Stream(segment).encode(&mut datagram);
    tunnel.handle_input(MS, &datagram, false).expect("valid");
}

/// Returns a segment with which a gateway opens the stream of an index.
fn opening(index: u32) -> StreamSegment<'static> {
    StreamSegment {
        stream: index << 1 | 1,
        data: Some(Data {
            offset: 0,
            payload: b"pushed",
            fin: false,
        }),
        ..StreamSegment::default()
    }
}

fn push(gateway: &mut Tunnel, now: Duration) -> StreamId {
    let id = gateway.open(now).expect("an open tunnel");
    let written = gateway.write(id, &mut Bytes::from(vec![7; PUSH]));
    assert_eq!(written, Ok(PUSH));
    id
}

/// Returns the bytes of data that the gateway sends within a round trip without an answer.
fn flight(gateway: &mut Tunnel, from: Duration) -> u64 {
    let mut bytes = 0;
    let mut datagram = Vec::new();
    for ms in 0..ROUND_TRIP.as_millis() as u32 {
        while gateway.poll_output(from + ms * MS, &mut datagram) {
            for segment in Segments::new(&datagram) {
                if let Ok(Segment::Stream(StreamSegment { data, .. })) = segment {
                    bytes += data.map_or(0, |data| data.payload.len() as u64);
                }
            }
        }
    }
    bytes
}

/// Returns the round trips from a request until its client has the pushes that it causes. The path
/// has shown its rate before. Streams begin with
/// `initial_credit` bytes.
fn round_trips_of_pushes(offered_streams: u32, initial_credit: u64) -> f64 {
    let link = LinkConfig {
        delay: ROUND_TRIP / 2,
        rate: "60mbit".parse().expect("a rate"),
        ..LinkConfig::default()
    };
    let gateway_config = Config {
        initial_credit,
        ..gateway_config()
    };
    let mut path = Path::new(&gateway_config, &link, 1);
    path.client.tunnel = client(Config {
        offered_streams,
        initial_credit,
        ..client_config()
    });
    path.client.counts_only = true;
    let first = path.upload(b"a large file");
    path.run_while(ROUND_TRIP, |path| !path.server.has(Event::Opened(first)));
    let mut left = Bytes::from(vec![7; 24 << 20]);
    while path.client.bytes_read.get(&first) != Some(&(24 << 20)) {
        let written = path.server.tunnel.write(first, &mut left);
        written.expect("an open stream");
        path.run_for(10 * MS);
    }
    let from = path.now;
    let page = path.upload(b"a page");
    path.run_while(ROUND_TRIP, |path| !path.server.has(Event::Opened(page)));
    let pushes: Vec<_> = (0..PUSHES)
        .map(|_| {
            let id = push(&mut path.server.tunnel, path.now);
            path.server.tunnel.finish(id).expect("an open stream");
            id
        })
        .collect();
    path.run_while(Duration::from_secs(20), |path| {
        let has_all = |id| path.client.bytes_read.get(id) == Some(&(PUSH as u64));
        !pushes.iter().all(has_all)
    });
    (path.now - from).as_secs_f64() / ROUND_TRIP.as_secs_f64()
}

#[test]
fn offered_windows_save_a_round_trip_of_pushes() {
    let without = round_trips_of_pushes(0, CREDIT);
    let with = round_trips_of_pushes(64, CREDIT);
    let known = round_trips_of_pushes(0, 256 << 10);
    println!("{without:.2} round trips without offers, {with:.2} with, {known:.2} at best");
    assert!(with < without - 0.7, "{with:.2} and {without:.2}");
    assert!(with < known + 0.1, "{with:.2} and {known:.2}");
}

#[test]
fn first_datagrams_of_a_client_offer_windows() {
    let mut client = client(client_config());
    assert!(!client.poll_output(MS, &mut Vec::new()), "an offer alone");
    for _ in 0..2 {
        assert_eq!(offer(&request(&mut client, MS)), Some((256, 64)));
    }
    assert_eq!(offer(&request(&mut client, MS)), None);
    assert_eq!(client.memory(), 64 * (240 << 10) + 3 * (256 << 10) + 3 * 7);
}

#[test]
fn offer_fits_a_full_datagram() {
    let mut client = client(client_config());
    let id = client.open(MS).expect("open");
    let written = client.write(id, &mut Bytes::from(vec![7; 5000]));
    assert_eq!(written, Ok(5000));
    let datagram = datagram(&mut client, MS);
    assert!(offer(&datagram).is_some());
    assert_eq!(datagram.len(), client.datagram_size());
}

#[test]
fn first_offer_counts_streams_that_are_open() {
    let mut client = client(client_config());
    for index in 0..20 {
        feed(&mut client, opening(index));
    }
    assert_eq!(offer(&request(&mut client, MS)), Some((256, 84)));
}

#[test]
fn refused_stream_gives_its_offered_window_back() {
    let mut client = client(client_config());
    request(&mut client, MS);
    let before = client.memory();
    for index in 0..15 {
        let reset = StreamSegment {
            data: None,
            reset: Some(1),
            ..opening(index)
        };
        feed(&mut client, reset);
        assert_eq!(client.memory(), before - u64::from(index + 1) * (240 << 10));
    }
}

#[test]
fn gateway_uses_the_offer_before_an_acknowledgement() {
    let mut gateway = gateway();
    push(&mut gateway, MS);
    assert_eq!(flight(&mut gateway, MS), CREDIT, "no offer");
    let mut gateway = self::gateway();
    let request = request(&mut client(client_config()), MS);
    gateway.handle_input(MS, &request, false).expect("valid");
    push(&mut gateway, MS);
    // The first flight of 32 packets is the bound.
    assert!(flight(&mut gateway, MS) > 2 * CREDIT);
}

#[test]
fn each_copy_of_an_offer_suffices() {
    for lost in 0..4 {
        let (mut client, mut gateway) = (client(client_config()), gateway());
        // The later copies leave a round trip after the one before.
        let times = [0, 0, 1, 2].map(|round| MS + round * ROUND_TRIP);
        let datagrams = times.map(|now| request(&mut client, now));
        gateway
            .handle_input(times[lost], &datagrams[lost], false)
            .expect("valid");
        push(&mut gateway, times[lost]);
        assert!(flight(&mut gateway, times[lost]) > 2 * CREDIT, "{lost}");
    }
}

#[test]
fn offer_opens_streams_that_wait_for_a_window() {
    let mut gateway = gateway();
    for _ in 0..2 {
        push(&mut gateway, MS);
    }
    assert_eq!(flight(&mut gateway, MS), 2 * CREDIT);
    // It concerns the second stream only if its index does.
    feed_offer(&mut gateway, 17, 1);
    assert_eq!(flight(&mut gateway, MS), 1 << 10);
    feed_offer(&mut gateway, 17, 2);
    assert_eq!(flight(&mut gateway, MS), 1 << 10);
}

#[test]
fn offer_leaves_streams_of_its_sender_alone() {
    let mut gateway = gateway();
    let asked = StreamSegment {
        stream: 2,
        ..opening(0)
    };
    feed(&mut gateway, asked);
    let Some(Event::Opened(id)) = gateway.poll_event() else {
        panic!("no stream");
    };
    let written = gateway.write(id, &mut Bytes::from(vec![7; PUSH]));
    assert_eq!(written, Ok(PUSH));
    feed_offer(&mut gateway, 17, 9);
    assert_eq!(flight(&mut gateway, MS), CREDIT);
}

#[test]
fn repeated_and_reordered_offers_say_nothing_new() {
    let mut gateway = gateway();
    for below in [2, 1, 2, 0, 1] {
        feed_offer(&mut gateway, 17, below);
    }
    let sent = [17 << 10, 17 << 10, CREDIT, 0].map(|expected| {
        push(&mut gateway, MS);
        (flight(&mut gateway, MS), expected)
    });
    // The first flight of 32 packets ends within the third stream.
    assert!(sent[..2].iter().all(|(sent, expected)| sent == expected));
    assert!(sent[2].0 < CREDIT);
}

#[test]
fn offers_follow_the_streams_that_open() {
    let mut client = client(client_config());
    for _ in 0..4 {
        request(&mut client, MS);
    }
    let open = |client: &mut Tunnel, index: u32| {
        feed(client, opening(index));
        self::datagram(client, MS)
    };
    let before = client.memory();
    for index in 0..15 {
        assert_eq!(offer(&open(&mut client, index)), None, "{index}");
    }
    // They take the reserved windows over.
    assert_eq!(client.memory(), before + 15 * CREDIT);
    assert_eq!(offer(&open(&mut client, 15)), Some((256, 80)));
    assert_eq!(client.memory(), before + 16 * (256 << 10));
    // Streams that were not offered count as well, and they get the window.
    assert_eq!(offer(&open(&mut client, 200)), Some((256, 80)));
    for index in 16..32 {
        open(&mut client, index);
    }
    let last = (0..4).find_map(|_| offer(&request(&mut client, 2 * ROUND_TRIP)));
    assert_eq!(last, Some((256, 96)));
}

#[test]
fn client_offers_no_more_than_its_pool_holds() {
    for (memory, streams) in [(1 << 20, 0), (8 << 20, 8), (64 << 20, 64)] {
        let config = Config {
            memory,
            ..client_config()
        };
        let mut client = client(config);
        let offered = offer(&request(&mut client, MS)).map_or(0, |(_, below)| below);
        assert_eq!(offered, streams, "of {memory} bytes");
        // Data to send take the rest of the pool.
        let id = client.open(MS).expect("open");
        while client.write(id, &mut Bytes::from(vec![7; 1 << 20])) != Ok(0) {}
        // All of it arrives, and the application reads none of it.
        for index in 0..streams {
            for kib in 0..256u32 {
                let data = Data {
                    offset: kib << 10,
                    payload: &[7; 1 << 10],
                    fin: false,
                };
                let segment = StreamSegment {
                    data: Some(data),
                    ..opening(index)
                };
                feed(&mut client, segment);
            }
        }
        let most = memory + (u64::from(streams) + 3) * CREDIT;
        assert!(client.memory() <= most, "{} of {most}", client.memory());
        // A pool that is short of memory offers no more.
        if memory < 64 << 20 {
            let later = (0..6).filter_map(|_| offer(&request(&mut client, 9 * ROUND_TRIP)));
            assert!(later.map(|(_, below)| below).all(|below| below == streams));
        }
    }
}

/// Downloads beside a page have such windows on a path of 20 Mbit/s.
#[test]
fn offers_leave_the_first_windows_of_requests_alone() {
    let mut client = client(client_config());
    request(&mut client, MS);
    for _ in 0..4 {
        let id = client.open(MS).expect("open");
        let written = client.write(id, &mut Bytes::from(vec![7; 4 << 20]));
        assert_eq!(written, Ok(4 << 20));
    }
    for _ in 0..10 {
        let before = client.memory();
        client.open(MS).expect("open");
        assert_eq!(client.memory() - before, 256 << 10);
    }
}

#[test]
fn gateway_that_gets_an_absurd_offer_keeps_its_bounds() {
    let config = Config {
        memory: 1 << 20,
        ..gateway_config()
    };
    let mut gateway = Tunnel::new(Side::Server, config, Duration::ZERO);
    gateway.note_handshake(ROUND_TRIP);
    let ids: Vec<_> = (0..20).map(|_| gateway.open(MS).expect("open")).collect();
    feed_offer(&mut gateway, u16::MAX, u32::MAX);
    feed_offer(&mut gateway, 0, u32::MAX);
    feed_offer(&mut gateway, u16::MAX, 0);
    for id in ids {
        let written = gateway.write(id, &mut Bytes::from(vec![7; 1 << 20]));
        written.expect("an open stream");
    }
    assert!(gateway.memory() <= (1 << 20) + 40 * CREDIT);
    // The first flight is not larger than without the offer.
    let sent = flight(&mut gateway, MS);
    assert!((30 << 10..40 << 10).contains(&sent), "{sent}");
    assert_eq!(gateway.closed(), None);
}

/// A gateway that does not know offers reads the rest of the datagram.
#[test]
fn older_gateway_reads_datagrams_with_offers() {
    let (mut client, mut gateway) = (client(client_config()), gateway());
    for index in 0..2 {
        let mut datagram = request(&mut client, MS);
        assert!(offer(&datagram).is_some());
        let kind = datagram.len() - OFFER;
        // An unknown kind, as the offer is to it.
        datagram[kind] = 0x8f;
        let result = gateway.handle_input(MS, &datagram, false);
        assert!(matches!(result, Err(InputError::Wire(_))), "{result:?}");
        assert_eq!(gateway.open_streams(), index + 1);
    }
    assert_eq!(gateway.closed(), None);
    push(&mut gateway, MS);
    assert_eq!(flight(&mut gateway, MS), CREDIT);
}

/// A client that tells its windows with the first acknowledgement gets the same bytes.
#[test]
fn pushes_arrive_with_and_without_offers() {
    for offered_streams in [0, 3, 64] {
        let link = LinkConfig {
            delay: ROUND_TRIP / 2,
            loss: tandem_link::loss::Loss::Independent(0.02),
            ..LinkConfig::default()
        };
        let mut path = Path::new(&gateway_config(), &link, 3);
        path.client.tunnel = client(Config {
            offered_streams,
            ..client_config()
        });
        path.upload(b"a page");
        let data = pattern(60_000, 1);
        let pushes: Vec<_> = (0..PUSHES)
            .map(|_| {
                let id = path.server.tunnel.open(path.now).expect("open");
                let mut left = Bytes::from(data.clone());
                path.server.tunnel.write(id, &mut left).expect("open");
                path.server.tunnel.finish(id).expect("open");
                id
            })
            .collect();
        path.run_while(Duration::from_secs(60), |path| {
            let has_end = |id| path.client.received.get(id).is_some_and(|it| it.1);
            !pushes.iter().all(has_end)
        });
        assert!(pushes.iter().all(|id| path.client.received[id].0 == data));
    }
}
