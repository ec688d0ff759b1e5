//! Requests for filler data. A client requests them to open the congestion window of a new session
//! before it is needed, or to compare two ways to a gateway. It sends filler data of its own, so
//! that many requests of a page can leave at once. [`crate::middle::warm_up`] is the gateway's
//! side.

use std::time::Duration;

use tandem_http::{Method, RequestHead, Scheme};

/// The request's authority: a name that no origin can have, as [`tandem_push::wire::is_reserved`]
/// says.
const AUTHORITY: &str = "warm-up.tandem.invalid";

/// Bytes that a gateway sends on a session at most.
pub const MOST: u64 = 4 << 20;

/// The beginning of the path of a request that compares two ways.
const MEASURE: &str = "/measure/";
/// Bytes that a gateway sends on a session at most, for comparisons.
pub const MOST_MEASURED: u64 = 16 << 20;

/// Filler bytes for one part of a message.
pub static FILLER: [u8; 16 << 10] = [0; 16 << 10];

/// Returns a request for this number of bytes.
pub fn request(bytes: u64) -> RequestHead {
    RequestHead::get(Scheme::Http, AUTHORITY, format!("/{bytes}"))
}

/// Returns a request for this number of bytes, which compares two ways. An older gateway sends no
/// filler data for it.
pub fn measuring(bytes: u64) -> RequestHead {
    RequestHead::get(Scheme::Http, AUTHORITY, format!("{MEASURE}{bytes}"))
}

/// Returns the filler bytes that a request for a comparison asks for, or `None` for another
/// request.
pub fn measured(request: &RequestHead) -> Option<u64> {
    asked(request)?;
    request.path.strip_prefix(MEASURE)?.parse().ok()
}

/// Returns the filler bytes that a request asks for, or `None` for another request.
pub fn asked(request: &RequestHead) -> Option<u64> {
    let own = request.authority == AUTHORITY && request.method == Method::Get;
    own.then(|| {
        request
            .path
            .trim_start_matches('/')
            .parse()
            .unwrap_or(0)
            .min(MOST)
    })
}

/// The number of filler bytes that a client requests on a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// A fixed number of bytes.
    Bytes(u64),
    /// The bytes that a path of `RATE` carries in one round trip, between `SHORT` and `LONG`.
    OfPath,
}

/// The rate in bytes per second that a session reaches by [`Amount::OfPath`].
const RATE: u64 = 2560 << 10;
/// The bounds of [`Amount::OfPath`] in bytes: the amount for round trips of up to 100 ms, and of
/// 400 ms or more.
const SHORT: u64 = 256 << 10;
const LONG: u64 = 1 << 20;
/// The bytes that the client receives for each byte that it sends. The requests of a page are much
/// shorter than its responses.
const UPLINK_SHARE: u64 = 8;
/// The most bytes that the client sends: about 45 packets.
const UPLINK_MOST: u64 = 64 << 10;
/// The bytes of the first round: half of the initial window of a new connection (RFC 6928).
const FIRST_ROUND: u64 = 8 << 10;

/// The gaps of a round that lost packets may explain.
const STALLS: usize = 2;
/// The time that a round is taken for at least.
const SHORTEST_TIME: Duration = Duration::from_micros(1);

/// The most bytes of one stream in a round. Over DTLS, the window of a new stream may have only
/// 256 KiB, which is less than a long path carries.
const STREAM: u64 = 128 << 10;

/// Returns the bytes of each stream of a round: at least one stream, and equal parts.
pub fn parts(bytes: u64) -> impl Iterator<Item = u64> {
    let streams = bytes.div_ceil(STREAM).max(1);
    (0..streams).map(move |number| bytes / streams + u64::from(number < bytes % streams))
}

impl Amount {
    /// Returns true if the client wants no filler bytes at all.
    pub fn is_none(self) -> bool {
        self == Self::Bytes(0)
    }

    /// Returns the number of bytes for a path whose shortest round trip is known, or not yet.
    fn bytes(self, round_trip: Option<Duration>) -> u64 {
        match (self, round_trip) {
            (Self::Bytes(bytes), _) => bytes,
            (Self::OfPath, None) => SHORT,
            (Self::OfPath, Some(time)) => {
                let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                (RATE.saturating_mul(millis) / 1000).clamp(SHORT, LONG)
            }
        }
    }
}

/// The arrivals of filler bytes in one round. Times count from its begin.
#[derive(Clone, Copy, Debug)]
pub struct Arrivals {
    /// The time by which the first bytes should arrive, if that is known.
    first_due: Option<Duration>,
    last: Option<Duration>,
    /// The longest gaps, in falling order.
    gaps: [Duration; STALLS + 1],
}

impl Arrivals {
    /// Notes that bytes arrived.
    pub fn note(&mut self, at: Duration) {
        let due = self.last.or(self.first_due).unwrap_or(at);
        let gap = at.saturating_sub(due);
        if let Some(index) = self.gaps.iter().position(|longer| *longer < gap) {
            self.gaps[index..].rotate_right(1);
            self.gaps[index] = gap;
        }
        self.last = Some(at);
    }

    /// Returns the time in stalls: long gaps, as far as they exceed the usual one by more than half
    /// of the shortest round. A slow path brings each record of TLS after a long gap, and these are
    /// equal.
    ///
    /// A stall counts for at most one such round. On a full path, the repair of a packet arrives
    /// behind all data of the round, and the gap is as long as their way through the queue.
    fn stalled(&self, shortest: Duration) -> Duration {
        let usual = self.gaps[STALLS];
        let excess = self.gaps.iter().map(|gap| *gap - usual);
        let stalls = excess.filter(|excess| *excess > shortest / 2);
        stalls.map(|excess| excess.min(shortest)).sum()
    }
}

/// The direction in which filler bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// To the client.
    Down,
    /// To the gateway.
    Up,
}

/// The rounds in which filler bytes travel in one direction. Each round is twice as long as the
/// last, as the congestion window doubles. It is smaller than the window, so that a concurrent
/// request finds room.
#[derive(Clone, Debug)]
pub struct Rounds {
    amount: Amount,
    direction: Direction,
    spent: u64,
    round: u64,
    shortest: Option<Duration>,
    /// The bytes and the time of the last round.
    last: Option<(u64, Duration)>,
}

impl Rounds {
    /// Creates the rounds that bring an amount.
    pub const fn new(amount: Amount) -> Self {
        Self {
            amount,
            direction: Direction::Down,
            spent: 0,
            round: FIRST_ROUND,
            shortest: None,
            last: None,
        }
    }

    /// Returns the rounds in which the client then sends filler bytes. The shortest round is known.
    #[must_use]
    pub const fn uplink(&self) -> Self {
        Self {
            direction: Direction::Up,
            shortest: self.shortest,
            ..Self::new(self.amount)
        }
    }

    /// Returns the bytes of the next round. Returns `None` after the last one.
    pub fn next_bytes(&self) -> Option<u64> {
        let requested = self.amount.bytes(self.shortest);
        let all = match self.direction {
            Direction::Down => requested,
            Direction::Up => (requested / UPLINK_SHARE).min(UPLINK_MOST),
        };
        let left = all.saturating_sub(self.spent);
        (left > 0).then(|| self.round.min(left))
    }

    /// Returns a record of the arrivals in the next round.
    pub const fn arrivals(&self) -> Arrivals {
        Arrivals {
            first_due: self.shortest,
            last: None,
            gaps: [Duration::ZERO; STALLS + 1],
        }
    }

    /// Notes that a round of `bytes` has come in full. Returns false if the path has no more
    /// capacity: the round took twice the time of the shortest one, and was hardly faster than the
    /// last one. A sender that paces its packets spreads a round too, but its rate doubles with
    /// each round.
    ///
    /// The first round to the gateway waits for no session, so it counts like the later ones.
    ///
    /// Stalls do not count. The data behind a lost packet wait for a round trip, and say nothing
    /// about the capacity.
    pub fn end_round(&mut self, bytes: u64, took: Duration, arrivals: Arrivals) -> bool {
        let stalled = self.shortest.map(|shortest| arrivals.stalled(shortest));
        let flowed = took.saturating_sub(stalled.unwrap_or_default());
        let flowed = flowed.max(SHORTEST_TIME);
        let is_long = self.shortest.is_some_and(|shortest| flowed > 2 * shortest);
        let is_first_up = self.direction == Direction::Up && self.last.is_none();
        if is_long && (is_first_up || !self.is_faster(bytes, flowed)) {
            return false;
        }
        self.last = Some((bytes, flowed));
        if self.spent > 0 {
            // The first round also waited for the session.
            self.shortest = Some(self.shortest.map_or(took, |shortest| shortest.min(took)));
        }
        self.spent += bytes;
        self.round *= 2;
        true
    }

    /// Returns true if the rate of a round is 1.4 times that of the last one. While a sender looks
    /// for the rate of the path, the factor is close to two. A round that takes twice the shortest
    /// time because it fills the path has less than 1.5, and the next one less than 1.34.
    fn is_faster(&self, bytes: u64, took: Duration) -> bool {
        self.last.is_none_or(|(last_bytes, last_took)| {
            let rate = |bytes: u64, took: Duration| bytes as f64 / took.as_secs_f64();
            rate(bytes, took) > 1.4 * rate(last_bytes, last_took)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the filler bytes and the rounds over a path with a round trip in milliseconds and a
    /// rate in bytes per millisecond.
    fn warmed(amount: Amount, round_trip: u64, rate: u64) -> (u64, usize) {
        travelled(Rounds::new(amount), round_trip, rate)
    }

    /// Returns the same for these rounds.
    fn travelled(mut rounds: Rounds, round_trip: u64, rate: u64) -> (u64, usize) {
        let (mut bytes, mut count) = (0, 0);
        while let Some(asked) = rounds.next_bytes() {
            let is_first = count == 0 && rounds.shortest.is_none();
            let dialling = if is_first { 2 * round_trip } else { 0 };
            let took = Duration::from_millis(dialling + round_trip + asked / rate);
            (bytes, count) = (bytes + asked, count + 1);
            if !rounds.end_round(asked, took, rounds.arrivals()) {
                break;
            }
        }
        (bytes, count)
    }

    #[test]
    fn amount_grows_with_the_round_trip() {
        let fast = 1 << 20;
        assert_eq!(warmed(Amount::OfPath, 20, fast), (SHORT, 6));
        assert_eq!(warmed(Amount::OfPath, 100, fast), (SHORT, 6));
        assert_eq!(warmed(Amount::OfPath, 200, fast), (2 * SHORT, 7));
        assert_eq!(warmed(Amount::OfPath, 400, fast), (LONG, 8));
        assert_eq!(warmed(Amount::OfPath, 2000, fast), (LONG, 8));
        assert_eq!(warmed(Amount::Bytes(20_000), 400, fast), (20_000, 2));
        assert_eq!(warmed(Amount::Bytes(0), 400, fast), (0, 0));
    }

    #[test]
    fn uplink_gets_an_eighth_and_at_most_64_kib() {
        let up = |amount, round_trip, rate| {
            let mut down = Rounds::new(amount);
            for _ in 0..2 {
                let took = Duration::from_millis(round_trip);
                down.end_round(1, took, down.arrivals());
            }
            travelled(down.uplink(), round_trip, rate)
        };
        assert_eq!(up(Amount::OfPath, 100, 1 << 20), (32 << 10, 3));
        assert_eq!(up(Amount::OfPath, 400, 1 << 20), (64 << 10, 4));
        assert_eq!(up(Amount::Bytes(20_000), 400, 1 << 20), (2_500, 1));
        assert_eq!(up(Amount::Bytes(0), 400, 1 << 20), (0, 0));
        // 128 kbit/s: the first round takes 0.9 s.
        assert_eq!(up(Amount::OfPath, 400, 16), (8 << 10, 1));
    }

    #[test]
    fn warm_up_goes_on_while_a_paced_sender_gets_faster() {
        // Measured over QUIC at 400 ms: the rounds are long, because the sender paces them.
        let mut rounds = Rounds::new(Amount::OfPath);
        for (bytes, took) in [
            (8, 860),
            (16, 410),
            (32, 550),
            (64, 760),
            (128, 970),
            (256, 1000),
            (512, 1100),
        ] {
            assert_eq!(rounds.next_bytes(), Some(bytes << 10));
            assert!(
                rounds.end_round(bytes << 10, Duration::from_millis(took), rounds.arrivals()),
                "{bytes} KiB"
            );
        }
        assert_eq!(rounds.next_bytes(), Some(8 << 10));
    }

    #[test]
    fn warm_up_goes_on_after_a_lost_packet() {
        let ms = Duration::from_millis;
        let mut rounds = Rounds::new(Amount::OfPath);
        for bytes in [8 << 10, 16 << 10] {
            assert!(rounds.end_round(bytes, ms(110), rounds.arrivals()));
        }
        // Two packets of the third round are lost, and each is repaired in a round trip.
        let mut arrivals = rounds.arrivals();
        for at in [100, 105, 110, 235, 236, 361] {
            arrivals.note(ms(at));
        }
        assert!(
            !rounds
                .clone()
                .end_round(32 << 10, ms(361), rounds.arrivals())
        );
        assert!(rounds.end_round(32 << 10, ms(361), arrivals));
        assert_eq!(rounds.next_bytes(), Some(64 << 10));
        // The first packet of the next round is lost.
        let mut arrivals = rounds.arrivals();
        for at in [235, 240, 245] {
            arrivals.note(ms(at));
        }
        assert!(rounds.end_round(64 << 10, ms(245), arrivals));
        assert_eq!(rounds.next_bytes(), Some(128 << 10));
    }

    #[test]
    fn records_of_a_slow_path_are_no_lost_packets() {
        // A path of 16 bytes a millisecond brings a record of 16 KiB each second.
        let ms = Duration::from_millis;
        let mut rounds = Rounds::new(Amount::OfPath);
        let mut came = 0;
        while let Some(bytes) = rounds.next_bytes() {
            let mut arrivals = rounds.arrivals();
            let records = bytes.div_ceil(16 << 10);
            (1..=records).for_each(|record| arrivals.note(ms(400 + 1024 * record)));
            came += bytes;
            if !rounds.end_round(bytes, ms(400 + bytes / 16), arrivals) {
                break;
            }
        }
        assert_eq!(came, 120 << 10);
    }

    #[test]
    fn full_path_with_lost_packets_ends_the_warm_up() {
        let ms = Duration::from_millis;
        // The first packet of each round is lost. Its repair waits in the queue behind the others,
        // and all bytes arrive at once.
        for (round_trip, rate, most) in [
            (400, 16, 120 << 10),
            (100, 32, 120 << 10),
            (40, 125, 120 << 10),
            (400, 62, 248 << 10),
            (600, 125, 504 << 10),
        ] {
            let mut rounds = Rounds::new(Amount::OfPath);
            let mut came = 0;
            while let Some(bytes) = rounds.next_bytes() {
                let took = ms(round_trip + bytes / rate);
                let mut arrivals = rounds.arrivals();
                (0..bytes.div_ceil(1200)).for_each(|_| arrivals.note(took));
                came += bytes;
                if !rounds.end_round(bytes, took, arrivals) {
                    break;
                }
            }
            assert_eq!(came, most, "{round_trip} ms, {rate} bytes a millisecond");
        }
    }

    #[test]
    fn parts_of_a_round_are_its_bytes_on_several_streams() {
        let parts = |bytes| parts(bytes).collect::<Vec<_>>();
        assert_eq!(parts(0), [0]);
        assert_eq!(parts(FIRST_ROUND), [FIRST_ROUND]);
        assert_eq!(parts(512 << 10), [STREAM; 4]);
        assert_eq!(parts(STREAM + 1), [STREAM / 2 + 1, STREAM / 2]);
    }

    #[test]
    fn full_path_ends_the_warm_up() {
        // 20 Mbit/s carry a round of 512 KiB in less than two round trips of 400 ms.
        assert_eq!(warmed(Amount::OfPath, 400, 2500), (LONG, 8));
        // 1 Mbit/s at 600 ms, and 128 kbit/s at 400 ms.
        assert_eq!(warmed(Amount::OfPath, 600, 125), (248 << 10, 5));
        assert_eq!(warmed(Amount::OfPath, 400, 16), (120 << 10, 4));
    }
}
