//! Tunnels that begin with the speed of an earlier one, in virtual time.

use std::time::Duration;

use bytes::Bytes;
use tandem_link::LinkConfig;
use tandem_link::queue::QueueLimits;
use tandem_resume::{Outcome, SavedSpeed};
use tandem_tunnel::{Algorithm, Config, StreamId};

use crate::path::{MS, Path};

/// The round trip of the path.
const ROUND: Duration = Duration::from_millis(600);

/// A link with this round trip, and a queue of one bandwidth-delay product.
fn link(kbit: u64, round_trip: Duration) -> LinkConfig {
    LinkConfig {
        delay: round_trip / 2,
        rate: format!("{kbit}kbit").parse().expect("a rate"),
        queue: QueueLimits {
            packets: Some((kbit as usize * round_trip.as_millis() as usize / 8).div_ceil(1500)),
            ..QueueLimits::default()
        },
        ..LinkConfig::default()
    }
}

/// A download that always has something to send.
struct Download {
    path: Path,
    stream: StreamId,
}

impl Download {
    fn begin(algorithm: Algorithm, link: &LinkConfig, saved: Option<SavedSpeed>) -> Self {
        let config = Config {
            algorithm,
            // The window of the receiver does not limit the sender.
            initial_credit: 8 << 20,
            send_buffer: 8 << 20,
            ..Config::default()
        };
        let mut path = Path::new(&config, link, 1);
        path.client.counts_only = true;
        if let Some(saved) = saved {
            path.server.tunnel.resume(path.now, saved);
        }
        let stream = path.server.tunnel.open(path.now).expect("open");
        Self { path, stream }
    }

    fn received(&self) -> u64 {
        let bytes = self.path.client.bytes_read.get(&self.stream);
        bytes.copied().unwrap_or(0)
    }

    /// Runs for `time`. Returns the bytes that arrived.
    fn run(&mut self, time: Duration) -> u64 {
        let (until, before) = (self.path.now + time, self.received());
        while self.path.now < until {
            let mut data = Bytes::from_static(&[7; 1 << 20]);
            let tunnel = &mut self.path.server.tunnel;
            tunnel.write(self.stream, &mut data).expect("open");
            self.path.run_until(until.min(self.path.now + 20 * MS));
        }
        self.received() - before
    }

    /// Returns the number of round trips before the one that carries 0.7 of the rate.
    fn rounds_to_fill(&mut self, kbit: u64) -> u32 {
        let full = kbit * ROUND.as_millis() as u64 / 8;
        // The first half of a round trip brings no data.
        self.run(ROUND / 2);
        (0..40)
            .find(|_| self.run(ROUND) * 10 >= full * 7)
            .expect("the path is filled")
    }
}

/// The speed of the link with 20 Mbit/s, without the headers.
const SAVED: SavedSpeed = SavedSpeed {
    rate: 2_400_000,
    round_trip: ROUND,
};

#[test]
fn tunnel_learns_rate_and_round_trip() {
    let mut first = Download::begin(Algorithm::Bbr, &link(20_000, ROUND), None);
    first.run(20 * ROUND);
    let speed = first.path.server.tunnel.speed().expect("a speed");
    assert!((2_200_000..2_600_000).contains(&speed.rate), "{speed:?}");
    let round_trips = ROUND..ROUND + 20 * MS;
    assert!(round_trips.contains(&speed.round_trip), "{speed:?}");
}

#[test]
fn resume_fills_a_long_path_in_two_round_trips() {
    for algorithm in [Algorithm::Cubic, Algorithm::Bbr] {
        let link = link(20_000, ROUND);
        let cold = Download::begin(algorithm, &link, None).rounds_to_fill(20_000);
        let mut resumed = Download::begin(algorithm, &link, Some(SAVED));
        let warm = resumed.rounds_to_fill(20_000);
        // The first round trip carries the initial window, and measures the path.
        assert!(warm <= 2 && cold >= 5, "{algorithm:?}: {warm} and {cold}");
        assert_eq!(resumed.path.server.tunnel.stats().lost, 0);
    }
}

#[test]
fn resumed_window_grows_after_a_message_and_a_pause() {
    for algorithm in [Algorithm::Cubic, Algorithm::Bbr] {
        let mut download = Download::begin(algorithm, &link(60_000, ROUND), None);
        let (now, tunnel) = (download.path.now, &mut download.path.server.tunnel);
        tunnel.note_handshake(ROUND);
        let saved = SavedSpeed {
            rate: 7_200_000,
            round_trip: ROUND,
        };
        tunnel.resume(now, saved).expect("a trial");
        let mut message = Bytes::from_static(&[7; 300]);
        tunnel.write(download.stream, &mut message).expect("open");
        download.path.run_for(2 * ROUND);
        download.run(ROUND / 2);
        let [first, second] = [(); 2].map(|()| download.run(ROUND));
        assert!(first > 2_000_000, "{algorithm:?}: {first}");
        assert!(second * 2 > first * 3, "{algorithm:?}: {first}, {second}");
    }
}

/// The round trip of the handshake admits the saved speed, as over QUIC.
#[test]
fn handshake_saves_resume_a_round_trip() {
    for algorithm in [Algorithm::Cubic, Algorithm::Bbr] {
        let mut resumed = Download::begin(algorithm, &link(20_000, ROUND), None);
        let (now, tunnel) = (resumed.path.now, &mut resumed.path.server.tunnel);
        tunnel.note_handshake(ROUND);
        tunnel.resume(now, SAVED).expect("a trial");
        let warm = resumed.rounds_to_fill(20_000);
        assert!(warm <= 1, "{algorithm:?}: {warm}");
        assert_eq!(resumed.path.server.tunnel.stats().lost, 0);
    }
}

#[test]
fn cold_tunnel_doubles_its_window_each_round_trip() {
    for algorithm in [Algorithm::Cubic, Algorithm::Bbr] {
        let mut cold = Download::begin(algorithm, &link(20_000, ROUND), None);
        let received = cold.run(ROUND / 2 + 6 * ROUND);
        // Ten segments, and twice as many in each further round trip.
        let doubled = 10 * 1200 * ((1 << 6) - 1);
        assert!(received * 10 > doubled * 6, "{algorithm:?}: {received}");
    }
}

#[test]
fn resume_on_a_tenth_of_the_rate_retreats() {
    for algorithm in [Algorithm::Cubic, Algorithm::Bbr] {
        let narrow = link(2_000, ROUND);
        let mut cold = Download::begin(algorithm, &narrow, None);
        let mut resumed = Download::begin(algorithm, &narrow, Some(SAVED));
        let (began, begun) = (cold.run(12 * ROUND), resumed.run(12 * ROUND));
        let lost = |download: &Download| download.path.server.tunnel.stats().lost;
        // At most the unvalidated packets are lost beside those of a cold start.
        let most = lost(&cold) + SAVED.window() / 2 / 1200;
        assert!(lost(&resumed) <= most, "{} of {most}", lost(&resumed));
        assert!(begun * 10 >= began * 8, "{begun} and {began} bytes first");
        let (before, after) = (cold.run(20 * ROUND), resumed.run(20 * ROUND));
        // Beyond the rate of the path there is data that waited for a lost segment.
        let before = before.min(SAVED.rate / 10 * (20 * ROUND).as_secs());
        assert!(after * 10 >= before * 9, "{after} and {before} bytes later");
        let speed = resumed.path.server.tunnel.speed().expect("a speed");
        assert!(speed.rate < 300_000, "{speed:?}");
    }
}

#[test]
fn resume_with_another_round_trip_changes_nothing() {
    let near = link(20_000, 100 * MS);
    let stats = [None, Some(SAVED)].map(|saved| {
        let mut download = Download::begin(Algorithm::Cubic, &near, saved);
        let received = download.run(20 * ROUND);
        (received, download.path.server.tunnel.stats())
    });
    assert_eq!(stats[0], stats[1]);
}

/// Cuts the path while the end of the jump leaves. The first acknowledgement behind the jump shows
/// the loss.
#[test]
fn tail_loss_of_the_jump_retreats() {
    for algorithm in [Algorithm::Cubic, Algorithm::Bbr] {
        let mut download = Download::begin(algorithm, &link(20_000, ROUND), None);
        let now = download.path.now;
        let trial = download.path.server.tunnel.resume(now, SAVED);
        let trial = trial.expect("a trial");
        // The initial window takes a round trip. The jump leaves for 0.8 of the next one.
        download.run(ROUND + ROUND * 3 / 5);
        download.path.is_cut = true;
        download.run(ROUND / 2);
        download.path.is_cut = false;
        assert_eq!(trial.outcome(), Outcome::Pending);
        let begun = download.path.server.tunnel.stats().lost;
        while download.path.server.tunnel.stats().lost == begun {
            download.run(20 * MS);
        }
        assert_eq!(trial.outcome(), Outcome::Failed, "{algorithm:?}");
    }
}
