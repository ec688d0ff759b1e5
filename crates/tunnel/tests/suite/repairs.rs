//! The time until a lost datagram is repaired, in virtual time.

use std::time::Duration;

use tandem_link::LinkConfig;
use tandem_tunnel::{Algorithm, Config};

use crate::path::{MS, Path, pattern};

const ROUND_TRIP: Duration = Duration::from_millis(400);

fn link() -> LinkConfig {
    LinkConfig {
        delay: ROUND_TRIP / 2,
        rate: "20mbit".parse().expect("a rate"),
        ..LinkConfig::default()
    }
}

fn config() -> Config {
    Config {
        algorithm: Algorithm::Bbr,
        ..Config::default()
    }
}

fn path() -> Path {
    Path::new(&config(), &link(), 1)
}

/// Half a round trip brings the later datagrams, half of one their acknowledgement, and half of one
/// the repair. The rest is the time of the paced datagrams. A reordering window would add 100 ms.
const MOST: Duration = Duration::from_millis(600 + 50);

/// Sends eight datagrams, the third of which is lost.
fn assert_repair_is_fast(path: &mut Path) {
    let took = path.upload_with_loss(&pattern(8 * 1180, 2), 2);
    assert!(took <= MOST, "{took:?}");
}

#[test]
fn repair_takes_one_round_trip() {
    let mut path = path();
    path.upload(&pattern(60_000, 1));
    path.run_for(5 * ROUND_TRIP);
    assert_repair_is_fast(&mut path);
}

/// The acknowledgements of several streams seem to be no reordering.
#[test]
fn repair_does_not_wait_after_many_streams() {
    let mut path = path();
    for round in 0..20 {
        for stream in 0..6 {
            path.upload(&pattern(300 + 700 * ((round + stream) % 6), 1));
            path.run_for(3 * MS);
        }
        path.run_for(ROUND_TRIP / 2);
    }
    path.run_for(5 * ROUND_TRIP);
    assert_repair_is_fast(&mut path);
}

/// Nor do those of a stream that has losses, which are not delayed as those of the others are.
#[test]
fn repair_does_not_wait_after_losses() {
    let mut path = path();
    for round in 0..10 {
        path.lose_after = Some(round);
        for stream in 0..4 {
            path.upload(&pattern(900 + 1100 * stream, 1));
            path.run_for(3 * MS);
        }
        path.run_for(4 * ROUND_TRIP);
    }
    assert_repair_is_fast(&mut path);
}

/// Returns the spurious losses of eight streams of 64 KiB, over a path that loses 1 % both ways.
fn spurious_losses(seed: u64) -> u64 {
    let link = LinkConfig {
        loss: "1%".parse().expect("a loss"),
        ..link()
    };
    let mut path = Path::new(&config(), &link, seed);
    path.server.counts_only = true;
    let data = pattern(64 << 10, 1);
    let streams: Vec<_> = (0..8).map(|_| path.upload(&data)).collect();
    path.run_while(Duration::from_secs(60), |path| {
        let arrived = |id| path.server.bytes_read.get(id) == Some(&(64 << 10));
        !streams.iter().all(arrived)
    });
    path.client.tunnel.stats().spurious
}

/// A lost acknowledgement is repeated by the next one. Without this, 20 paths had 1,320 spurious
/// losses, since one segment that was repeated too early made all before it seem lost.
#[test]
fn lost_acknowledgements_cause_no_spurious_losses() {
    let spurious: u64 = (0..20).map(spurious_losses).sum();
    assert!(spurious <= 4, "{spurious}");
}

/// Acknowledgements that are lost in a row, with their repetitions, look like reordering for some
/// round trips.
#[test]
fn lost_acknowledgements_delay_repairs_for_a_while() {
    let mut path = path();
    let late = |path: &mut Path| path.upload_with_loss(&pattern(8 * 1180, 2), 2) > MOST;
    for turn in 0..4 {
        for stream in 0..4 {
            path.upload(&pattern(900 + 1100 * stream, 1));
            path.run_for(3 * MS);
        }
        path.run_for(ROUND_TRIP / 2 + turn * MS);
        path.change_links(&LinkConfig {
            loss: "100%".parse().expect("a loss"),
            ..link()
        });
        path.run_for(6 * MS);
        path.change_links(&link());
        path.run_for(4 * ROUND_TRIP);
    }
    assert!(late(&mut path), "the acknowledgements were lost");
    for _ in 0..20 {
        path.upload(&pattern(3000, 1));
        path.run_for(3 * ROUND_TRIP);
    }
    assert!(!late(&mut path));
}

/// With a lost datagram, the acknowledgements of several streams are missing. The first copy of a
/// segment that is repeated then is acknowledged soon, which shows nothing about other segments.
#[test]
fn lost_acknowledgement_repeats_few_segments() {
    let mut path = path();
    path.client.counts_only = true;
    let streams = [(); 8].map(|()| path.upload(b"GET"));
    path.run_for(2 * ROUND_TRIP);
    let response = pattern(400_000, 1);
    for id in streams {
        let mut data = response.clone().into();
        let written = path.server.tunnel.write(id, &mut data);
        written.expect("an open stream");
    }
    for _ in 0..20 {
        path.run_for(ROUND_TRIP / 4);
        path.lose_after = Some(3);
    }
    let stats = path.server.tunnel.stats();
    assert!(stats.spurious <= 10, "{stats:?}");
    path.run_for(10 * ROUND_TRIP);
    let came = streams.map(|id| path.client.bytes_read.get(&id).copied());
    assert_eq!(came, [Some(400_000); 8]);
}

/// After a silence, the acknowledgement of a repeated segment comes early because the route has
/// become shorter. All before the segment are repeated at once, not by a tail loss probe each.
#[test]
fn tail_is_repaired_on_a_shorter_route() {
    let mut path = path();
    let id = path.upload(&pattern(1_000_000, 1));
    path.run_while(Duration::from_secs(20), |path| {
        let came = path.server.received.get(&id).map(|(data, _)| data.len());
        came.unwrap_or_default() < 980_000
    });
    let begun = path.now;
    path.change_links(&LinkConfig {
        delay: ROUND_TRIP / 8,
        ..link()
    });
    path.run_while(Duration::from_secs(20), |path| !path.server.received[&id].1);
    let took = path.now - begun;
    // A tail loss probe leaves after two round trips.
    assert!(took <= 3 * ROUND_TRIP, "{took:?}");
}
