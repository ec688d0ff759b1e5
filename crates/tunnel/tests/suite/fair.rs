//! Streams of one urgency share the path whatever they have sent before, in virtual time.

use std::time::Duration;

use bytes::Bytes;
use tandem_link::LinkConfig;
use tandem_link::queue::QueueLimits;
use tandem_tunnel::{Config, Event, StreamId};

use crate::path::{MS, Path};

/// A path of 20 Mbit/s and 60 ms with a queue of one product.
fn path() -> Path {
    let link = LinkConfig {
        delay: 30 * MS,
        rate: "20mbit".parse().expect("a rate"),
        queue: QueueLimits {
            packets: Some(100),
            ..QueueLimits::default()
        },
        ..LinkConfig::default()
    };
    let mut path = Path::new(&Config::default(), &link, 1);
    path.server.counts_only = true;
    path
}

fn open(path: &mut Path) -> StreamId {
    path.client.tunnel.open(path.now).expect("an open tunnel")
}

fn write(path: &mut Path, id: StreamId, bytes: usize) -> usize {
    let mut data = Bytes::from(vec![7; bytes]);
    let taken = path.client.tunnel.write(id, &mut data);
    taken.expect("an open stream")
}

fn received(path: &Path, id: StreamId) -> u64 {
    path.server.bytes_read.get(&id).copied().unwrap_or_default()
}

/// Uploads on one stream as fast as the path permits.
fn fill_for(path: &mut Path, id: StreamId, time: Duration) {
    let until = path.now + time;
    while path.now < until {
        write(path, id, 1 << 20);
        path.run_for(20 * MS);
    }
}

/// A call or a video beside a new download.
#[test]
fn old_stream_keeps_its_rate_beside_a_new_one() {
    let mut path = path();
    let old = open(&mut path);
    fill_for(&mut path, old, Duration::from_secs(6));
    path.run_for(Duration::from_secs(3));
    assert!(received(&path, old) > 12 << 20);
    let new = open(&mut path);
    fill_for(&mut path, new, Duration::from_secs(1));
    for second in 0..6 {
        let before = received(&path, old);
        for _ in 0..10 {
            write(&mut path, old, 25_000);
            fill_for(&mut path, new, 100 * MS);
        }
        let rate = received(&path, old) - before;
        assert!(rate > 150_000, "second {second}: {rate} bytes");
    }
    assert!(received(&path, new) > 8 << 20);
}

/// The past counts for a mebibyte only, in both directions.
#[test]
fn old_stream_and_new_one_share_the_path() {
    let mut path = path();
    let old = open(&mut path);
    fill_for(&mut path, old, Duration::from_secs(6));
    let new = open(&mut path);
    let before = received(&path, old);
    let until = path.now + Duration::from_secs(4);
    while path.now < until {
        write(&mut path, old, 1 << 20);
        write(&mut path, new, 1 << 20);
        path.run_for(20 * MS);
    }
    let (old, new) = (received(&path, old) - before, received(&path, new));
    assert!(new >= old, "a new stream goes first: {new} and {old} bytes");
    assert!(new - old < 3 << 20, "{new} and {old} bytes");
}

/// Eight downloads are paused in the browser. More under way needs more memory, but a shut window
/// keeps only bytes that were never sent.
#[test]
fn streams_that_are_not_read_hold_four_mebibytes_each() {
    let mut path = path();
    path.server.is_paused = true;
    let ids = [(); 8].map(|()| open(&mut path));
    for _ in 0..300 {
        for id in ids {
            write(&mut path, id, 1 << 20);
        }
        path.run_for(20 * MS);
    }
    let held = ids.map(|id| path.client.tunnel.unacknowledged(id));
    assert!(held.iter().all(|held| *held <= 4 << 20), "{held:?}");
    // One that is read goes on when it has room again.
    path.server.is_paused = false;
    path.client.events.clear();
    path.run_while(10_000 * MS, |path| {
        !ids.iter().all(|id| path.client.has(Event::Writable(*id)))
    });
}
