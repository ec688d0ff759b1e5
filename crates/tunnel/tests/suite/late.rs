//! A sender that writes only while few bytes are unsent, in virtual time.

use std::time::Duration;

use bytes::Bytes;
use tandem_link::LinkConfig;
use tandem_link::loss::Loss;
use tandem_link::queue::QueueLimits;
use tandem_tunnel::{Algorithm, Config, StreamId};

use crate::path::{MS, Path};

/// The bytes of one write.
const WRITE: u64 = 16 << 10;

/// A link of 20 Mbit/s and 100 ms, with a queue of one product.
fn link(loss: f64) -> LinkConfig {
    LinkConfig {
        delay: 50 * MS,
        rate: "20mbit".parse().expect("a rate"),
        loss: Loss::Independent(loss),
        queue: QueueLimits {
            packets: Some(167),
            ..QueueLimits::default()
        },
        ..LinkConfig::default()
    }
}

/// An upload from a sender that always has more.
struct Upload {
    path: Path,
    stream: StreamId,
    written: u64,
}

impl Upload {
    fn new(algorithm: Algorithm, loss: f64) -> Self {
        let config = Config {
            algorithm,
            ..Config::default()
        };
        let mut path = Path::new(&config, &link(loss), 1);
        path.server.counts_only = true;
        let stream = path.client.tunnel.open(path.now).expect("an open tunnel");
        Self {
            path,
            stream,
            written: 0,
        }
    }

    fn write(&mut self) -> u64 {
        let mut data = Bytes::from_static(&[7; WRITE as usize]);
        let taken = self.path.client.tunnel.write(self.stream, &mut data);
        let taken = taken.expect("an open stream") as u64;
        self.written += taken;
        taken
    }

    /// Runs for some seconds. A late sender writes when the tunnel has room, and after each
    /// datagram. Returns the bytes that arrived.
    fn run(mut self, seconds: u64, is_late: bool) -> u64 {
        let until = Duration::from_secs(seconds);
        while self.path.now < until {
            if is_late {
                self.write_late();
            } else {
                while self.write() > 0 {}
            }
            self.path.step(until);
        }
        self.path.server.bytes_read.values().sum()
    }

    fn write_late(&mut self) {
        let mut sent = None;
        while sent != Some(self.path.client.tunnel.stats().datagrams_sent) {
            sent = Some(self.path.client.tunnel.stats().datagrams_sent);
            while self.path.client.tunnel.has_room() && self.write() > 0 {}
            self.path.flush();
        }
    }
}

#[test]
fn late_sender_keeps_its_rate() {
    for algorithm in [Algorithm::Bbr, Algorithm::Cubic] {
        for loss in [0.0, 0.01] {
            let [early, late] =
                [false, true].map(|is_late| Upload::new(algorithm, loss).run(12, is_late));
            let ratio = late as f64 / early as f64;
            assert!(ratio > 0.97, "{algorithm:?}, loss {loss}: {ratio:.3}");
        }
    }
}

#[test]
fn tunnel_has_no_room_while_much_is_unsent() {
    let mut upload = Upload::new(Algorithm::Bbr, 0.0);
    while upload.path.client.tunnel.has_room() {
        assert_eq!(upload.write(), WRITE);
    }
    assert_eq!(upload.written, WRITE, "the limit of a new path");
    upload.path.run_for(300 * MS);
    assert!(upload.path.client.tunnel.has_room());
}

/// A stream whose peer does not read takes no room from others.
#[test]
fn bytes_beyond_the_window_are_not_unsent() {
    let mut upload = Upload::new(Algorithm::Bbr, 0.0);
    upload.path.server.is_paused = true;
    while upload.write() > 0 {}
    upload.path.run_for(Duration::from_secs(5));
    assert!(upload.path.client.tunnel.unacknowledged(upload.stream) > 2 << 20);
    assert!(upload.path.client.tunnel.has_room());
}
