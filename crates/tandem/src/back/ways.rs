//! The policy that chooses among several ways to one gateway: pure, with time as an argument.
//!
//! ```text
//!  order(now) ─▶ first: UDP, or the way over UDP that won the last race on this network
//!             └▶ others: TCP, after 300 ms or two round trips (as in RFC 8305)
//!  succeeded · failed · throttled ─▶ the record of the network
//! ```
//!
//! The winner of a race stays first for ten minutes. A better way may have lost by chance, such as
//! by one datagram, so it then begins the next race again. Open sessions stay as they are.
//!
//! A way over UDP that failed is suspended for a minute, and twice as long after each further
//! failure. The next request then tries it beside TCP. On a network that throttles UDP
//! ([`throttling`](crate::back::throttling)), all ways over UDP are suspended, for five minutes at
//! first. Such a way works, so only another comparison ends its suspension. The records are in
//! memory only.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The least time after which the other ways are tried too.
pub(crate) const STAGGER: Duration = Duration::from_millis(300);
/// The longest time after which the other ways are tried too.
const LONGEST_STAGGER: Duration = Duration::from_secs(2);
/// The first and the longest suspension of a way that failed.
const FIRST_SUSPENSION: Duration = Duration::from_secs(60);
const LONGEST_SUSPENSION: Duration = Duration::from_secs(3600);
/// The time for which the winner of a race goes before better ways.
const WINNER_MEMORY: Duration = Duration::from_secs(600);
/// The first suspension of ways that are throttled.
const FIRST_THROTTLED_SUSPENSION: Duration = Duration::from_secs(300);
/// The time after such a suspension for which another one is twice as long.
const THROTTLED_MEMORY: Duration = Duration::from_secs(3600);
/// The shortest and the longest time between comparisons of a slow way with TCP.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// The number of networks that are remembered.
const MAX_NETWORKS: usize = 16;

/// The identity of a network: this machine's address towards the gateway, if it is known.
pub(crate) type Network = Option<IpAddr>;

/// The ways to try for a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    /// The way to try first.
    pub(crate) first: usize,
    /// The ways to try after `stagger`, or once the first one fails.
    pub(crate) others: Vec<usize>,
    /// The wait before the other ways.
    pub(crate) stagger: Duration,
    /// A way that was suspended. It is tried beside the others, and no request waits for it.
    pub(crate) retried: Option<usize>,
}

/// The failure of a way.
#[derive(Clone, Copy, Debug)]
struct WayFailure {
    until: Instant,
    suspension: Duration,
    /// True once the way was tried again.
    retried: bool,
    /// True if the way works, and brings far less than TCP.
    throttled: bool,
}

/// The knowledge about one network.
#[derive(Debug, Default)]
struct NetworkRecord {
    failures: HashMap<usize, WayFailure>,
    /// The way that won the last race, and the time of that.
    best: Option<(usize, Instant)>,
    round_trip: Duration,
    used: Option<Instant>,
    /// The end and the length of the last suspension of throttled ways.
    throttled: Option<(Instant, Duration)>,
    /// The time of the next comparison of a way at the earliest, and the pause before it.
    comparisons: HashMap<usize, (Instant, Duration)>,
}

/// The ways to one gateway, by their numbers from the best to the last one.
#[derive(Debug)]
pub(crate) struct Ways {
    /// True for each way over datagrams, which some networks drop.
    datagrams: Vec<bool>,
    networks: HashMap<Network, NetworkRecord>,
}

impl Ways {
    /// Creates the policy for ways of these kinds. There is at least one.
    pub(crate) fn new(datagrams: Vec<bool>) -> Self {
        Self {
            datagrams,
            networks: HashMap::new(),
        }
    }

    fn record(&mut self, network: Network, now: Instant) -> &mut NetworkRecord {
        if !self.networks.contains_key(&network) && self.networks.len() >= MAX_NETWORKS {
            let oldest = self.networks.iter().min_by_key(|(_, record)| record.used);
            if let Some(oldest) = oldest.map(|(network, _)| *network) {
                self.networks.remove(&oldest);
            }
        }
        let record = self.networks.entry(network).or_default();
        record.used = Some(now);
        record
    }

    /// Returns the ways to try for a session on a network.
    pub(crate) fn order(&mut self, network: Network, now: Instant) -> Order {
        let stagger = self.stagger(network);
        let mut others = self.usable(network, now);
        let first = others.remove(0);
        let all = 0..self.datagrams.len();
        let record = self.record(network, now);
        let may_be_retried = |way: &usize| {
            let failure = record.failures.get(way);
            failure.is_some_and(|failure| now >= failure.until)
        };
        let retried = all
            .into_iter()
            .find(|way| may_be_retried(way) && *way != first);
        if let Some(failure) = retried.and_then(|way| record.failures.get_mut(&way)) {
            // Only one request tries the way.
            (failure.until, failure.retried) = (now + failure.suspension, true);
        }
        Order {
            first,
            others,
            stagger,
            retried,
        }
    }

    /// Returns the ways that requests use on a network, from the first one to the last. There is at
    /// least one.
    pub(crate) fn usable(&self, network: Network, now: Instant) -> Vec<usize> {
        let all = 0..self.datagrams.len();
        let works = |way: &usize| !self.has_failed(network, *way);
        let mut usable: Vec<usize> = all.clone().filter(works).collect();
        if usable.is_empty() {
            usable = all.collect();
        }
        let best = self.networks.get(&network).and_then(|record| record.best);
        let best = best.filter(|(_, won)| now < *won + WINNER_MEMORY);
        // A way over datagrams that never failed here stays before TCP, which may only be faster.
        let best = best.filter(|(best, _)| self.datagrams[*best] && self.datagrams[usable[0]]);
        let at = best.and_then(|(best, _)| usable.iter().position(|way| *way == best));
        if let Some(at) = at {
            usable[..=at].rotate_right(1);
        }
        usable
    }

    /// Returns the time for an answer of the way that is tried first.
    pub(crate) fn stagger(&self, network: Network) -> Duration {
        let record = self.networks.get(&network);
        let round_trip = record.map_or(Duration::ZERO, |record| record.round_trip);
        (2 * round_trip).clamp(STAGGER, LONGEST_STAGGER)
    }

    /// Notes that a session by this way works, whose first response took `round_trip`. A way over
    /// datagrams replaces TCP. It does not replace another one that works, unless that one won its
    /// race long ago.
    pub(crate) fn succeeded(
        &mut self,
        network: Network,
        way: usize,
        round_trip: Option<Duration>,
        now: Instant,
    ) {
        let is_better = |best: usize, won: Instant| {
            self.datagrams[way] && (!self.datagrams[best] || now >= won + WINNER_MEMORY)
        };
        let best = self.networks.get(&network).and_then(|record| record.best);
        let replaces =
            best.is_none_or(|(best, won)| is_better(best, won) || self.has_failed(network, best));
        let record = self.record(network, now);
        record.failures.remove(&way);
        if replaces {
            record.best = Some((way, now));
        }
        record.round_trip = round_trip.unwrap_or(record.round_trip);
    }

    /// Notes that a way does not work, and returns the time for which it is suspended.
    pub(crate) fn failed(&mut self, network: Network, way: usize, now: Instant) -> Duration {
        let record = self.record(network, now);
        record.best = record.best.filter(|(best, _)| *best != way);
        let before = record.failures.get(&way);
        let throttled = before.is_some_and(|before| before.throttled);
        let suspension = match before {
            None => FIRST_SUSPENSION,
            Some(before) if before.retried => (2 * before.suspension).min(LONGEST_SUSPENSION),
            // Several sessions by the way were opened before the first one failed.
            Some(before) => return before.until.saturating_duration_since(now),
        };
        let failure = WayFailure {
            until: now + suspension,
            suspension,
            retried: false,
            throttled,
        };
        record.failures.insert(way, failure);
        suspension
    }

    /// Returns true if a slow way may be compared with TCP now. The answer counts as a comparison.
    /// Each one doubles the time before the next one.
    pub(crate) fn may_compare(&mut self, network: Network, way: usize, now: Instant) -> bool {
        let comparisons = &mut self.record(network, now).comparisons;
        let pause = match comparisons.get(&way) {
            None => FIRST_PAUSE,
            Some((next, _)) if now < *next => return false,
            Some((_, pause)) => (2 * *pause).min(LONGEST_PAUSE),
        };
        comparisons.insert(way, (now + pause, pause));
        true
    }

    /// Notes that the network throttles datagrams, and returns the time for which all ways over
    /// them are suspended.
    pub(crate) fn throttled(&mut self, network: Network, now: Instant) -> Duration {
        let all = 0..self.datagrams.len();
        let ways: Vec<usize> = all.filter(|way| self.datagrams[*way]).collect();
        let record = self.record(network, now);
        let suspension = match record.throttled {
            Some((until, suspension)) if now < until + THROTTLED_MEMORY => {
                (2 * suspension).min(LONGEST_SUSPENSION)
            }
            _ => FIRST_THROTTLED_SUSPENSION,
        };
        record.throttled = Some((now + suspension, suspension));
        record.comparisons.clear();
        record.best = record.best.filter(|(best, _)| !ways.contains(best));
        for way in ways {
            let failure = WayFailure {
                until: now + suspension,
                suspension,
                retried: false,
                throttled: true,
            };
            record.failures.insert(way, failure);
        }
        suspension
    }

    /// Returns true if the way is throttled on this network, as far as is known.
    pub(crate) fn is_throttled(&self, network: Network, way: usize) -> bool {
        let record = self.networks.get(&network);
        let failure = record.and_then(|record| record.failures.get(&way));
        failure.is_some_and(|failure| failure.throttled)
    }

    /// Returns true if the way failed on this network and has not worked since.
    pub(crate) fn has_failed(&self, network: Network, way: usize) -> bool {
        let record = self.networks.get(&network);
        record.is_some_and(|record| record.failures.contains_key(&way))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: Network = Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)));
    const TRAIN: Network = Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2)));
    const QUIC: usize = 0;
    const DTLS: usize = 1;
    const TLS: usize = 2;

    fn ways() -> (Ways, Instant) {
        (Ways::new(vec![true, true, false]), Instant::now())
    }

    #[test]
    fn first_session_tries_udp_before_tcp() {
        let (mut ways, now) = ways();
        let order = ways.order(HOME, now);
        assert_eq!((order.first, &order.others[..]), (QUIC, &[DTLS, TLS][..]));
        assert_eq!((order.stagger, order.retried), (STAGGER, None));
    }

    #[test]
    fn stagger_is_two_round_trips_within_bounds() {
        let (mut ways, now) = ways();
        for (round_trip, stagger) in [(100, 300), (400, 800), (9000, 2000)] {
            let round_trip = Some(Duration::from_millis(round_trip));
            ways.succeeded(HOME, QUIC, round_trip, now);
            let expected = Duration::from_millis(stagger);
            assert_eq!(ways.order(HOME, now).stagger, expected);
        }
    }

    #[test]
    fn way_that_worked_goes_first_on_its_network() {
        let (mut ways, now) = ways();
        ways.succeeded(HOME, DTLS, None, now);
        assert_eq!(ways.order(HOME, now).first, DTLS);
        assert_eq!(ways.order(TRAIN, now).first, QUIC);
    }

    #[test]
    fn way_that_lost_the_race_does_not_replace_the_winner() {
        let (mut ways, now) = ways();
        ways.succeeded(HOME, QUIC, None, now);
        ways.succeeded(HOME, DTLS, None, now);
        ways.succeeded(HOME, TLS, None, now);
        assert_eq!(ways.order(HOME, now).first, QUIC);
        // The other way may also have won, and a failure gives it up.
        ways.succeeded(TRAIN, TLS, None, now);
        ways.succeeded(TRAIN, DTLS, None, now);
        ways.succeeded(TRAIN, QUIC, None, now);
        assert_eq!(ways.order(TRAIN, now).first, DTLS);
        ways.failed(TRAIN, DTLS, now);
        ways.succeeded(TRAIN, QUIC, None, now);
        assert_eq!(ways.order(TRAIN, now).first, QUIC);
    }

    #[test]
    fn winner_of_an_old_race_goes_behind_a_better_way() {
        let (mut ways, begun) = ways();
        ways.succeeded(HOME, DTLS, None, begun);
        // Sessions of other keys do not prolong the memory.
        for minute in 1..10 {
            let now = begun + Duration::from_secs(60 * minute);
            assert_eq!(ways.order(HOME, now).first, DTLS);
            ways.succeeded(HOME, DTLS, None, now);
        }
        let later = begun + WINNER_MEMORY;
        assert_eq!(ways.order(HOME, later).first, QUIC);
        // It loses again, and its late answer changes nothing.
        ways.succeeded(HOME, TLS, None, later);
        ways.succeeded(HOME, DTLS, None, later);
        ways.succeeded(HOME, QUIC, None, later);
        assert_eq!(ways.order(HOME, later).first, DTLS);
        let later = later + WINNER_MEMORY;
        ways.succeeded(HOME, QUIC, None, later);
        ways.succeeded(HOME, DTLS, None, later);
        assert_eq!(ways.order(HOME, later).first, QUIC);
    }

    #[test]
    fn blocked_udp_rests_and_is_tried_beside_tcp() {
        let (mut ways, now) = ways();
        ways.succeeded(HOME, TLS, None, now);
        assert_eq!(ways.order(HOME, now).first, QUIC, "TCP was only faster");
        ways.failed(HOME, QUIC, now);
        assert_eq!(ways.order(HOME, now).first, DTLS);
        ways.failed(HOME, DTLS, now);
        let order = ways.order(HOME, now);
        assert_eq!(
            (order.first, order.others.len(), order.retried),
            (TLS, 0, None)
        );
        let later = now + FIRST_SUSPENSION;
        let order = ways.order(HOME, later);
        assert_eq!((order.first, order.retried), (TLS, Some(QUIC)));
        assert_eq!(ways.order(HOME, later).retried, Some(DTLS));
        assert_eq!(ways.order(HOME, later).retried, None, "each is tried once");
        ways.succeeded(HOME, QUIC, None, later);
        assert_eq!(ways.order(HOME, later).first, QUIC);
    }

    #[test]
    fn rest_doubles_with_each_failure_up_to_an_hour() {
        let (mut ways, mut now) = ways();
        let mut suspensions = Vec::new();
        for _ in 0..8 {
            let suspension = ways.failed(HOME, QUIC, now);
            assert_eq!(ways.failed(HOME, QUIC, now), suspension, "another session");
            now += suspension;
            assert_eq!(ways.order(HOME, now).retried, Some(QUIC));
            suspensions.push(suspension.as_secs());
        }
        assert_eq!(suspensions, [60, 120, 240, 480, 960, 1920, 3600, 3600]);
        ways.succeeded(HOME, QUIC, None, now);
        assert_eq!(ways.failed(HOME, QUIC, now), FIRST_SUSPENSION);
    }

    #[test]
    fn throttled_network_suspends_all_ways_over_udp() {
        let (mut ways, now) = ways();
        ways.succeeded(HOME, QUIC, None, now);
        assert_eq!(ways.throttled(HOME, now), FIRST_THROTTLED_SUSPENSION);
        let order = ways.order(HOME, now);
        assert_eq!((order.first, order.others.len()), (TLS, 0));
        assert!(ways.is_throttled(HOME, DTLS) && !ways.is_throttled(HOME, TLS));
        assert_eq!(ways.order(TRAIN, now).first, QUIC, "another network");
        let later = now + FIRST_THROTTLED_SUSPENSION;
        let order = ways.order(HOME, later);
        assert_eq!((order.first, order.retried), (TLS, Some(QUIC)));
        assert!(ways.is_throttled(HOME, QUIC), "until it was compared");
        ways.succeeded(HOME, QUIC, None, later);
        assert_eq!(ways.order(HOME, later).first, QUIC);
    }

    #[test]
    fn rest_of_throttled_ways_doubles_within_an_hour() {
        let (mut ways, mut now) = ways();
        let mut suspensions = Vec::new();
        for _ in 0..6 {
            suspensions.push(ways.throttled(HOME, now).as_secs());
            now += *suspensions
                .last()
                .map(|suspension| Duration::from_secs(*suspension))
                .as_ref()
                .unwrap();
            assert_eq!(ways.order(HOME, now).retried, Some(QUIC));
            // The way passes the comparison, and is throttled soon after.
            ways.succeeded(HOME, QUIC, None, now);
            now += Duration::from_secs(10);
        }
        assert_eq!(suspensions, [300, 600, 1200, 2400, 3600, 3600]);
        now += LONGEST_SUSPENSION + THROTTLED_MEMORY;
        assert_eq!(ways.throttled(HOME, now), FIRST_THROTTLED_SUSPENSION);
    }

    #[test]
    fn tcp_that_fails_makes_throttled_udp_the_last_resort() {
        let (mut ways, now) = ways();
        ways.throttled(HOME, now);
        ways.failed(HOME, TLS, now);
        assert_eq!(ways.order(HOME, now).first, QUIC);
        // It does not answer either, and still needs a comparison.
        ways.failed(HOME, QUIC, now);
        assert!(ways.is_throttled(HOME, QUIC));
    }

    #[test]
    fn slow_way_is_compared_ever_more_seldom() {
        let (mut ways, begun) = ways();
        let seconds = 0..6 * 3600;
        let compared = seconds
            .filter(|second| ways.may_compare(HOME, QUIC, begun + Duration::from_secs(*second)));
        let compared: Vec<u64> = compared.collect();
        assert_eq!(compared[..5], [0, 60, 180, 420, 900]);
        assert!(compared.len() < 15, "{compared:?}");
    }

    #[test]
    fn pause_between_comparisons_is_of_one_way() {
        let now = Instant::now();
        let mut ways = Ways::new(vec![true, true, false]);
        assert!(ways.may_compare(HOME, 0, now) && !ways.may_compare(HOME, 0, now));
        // The way has fallen silent meanwhile, and the next one is as slow.
        ways.failed(HOME, 0, now);
        assert!(ways.may_compare(HOME, 1, now) && !ways.may_compare(HOME, 1, now));
    }

    #[test]
    fn ways_over_udp_only_are_all_tried_again() {
        let now = Instant::now();
        let mut ways = Ways::new(vec![true, true]);
        ways.failed(HOME, 0, now);
        ways.failed(HOME, 1, now);
        let order = ways.order(HOME, now);
        assert_eq!((order.first, &order.others[..]), (0, &[1][..]));
    }

    #[test]
    fn oldest_network_is_forgotten() {
        let (mut ways, now) = ways();
        for number in 0..=MAX_NETWORKS as u8 {
            let network = Some(IpAddr::from([10, 0, 0, number]));
            let at = now + Duration::from_secs(u64::from(number));
            ways.failed(network, QUIC, at);
        }
        assert_eq!(ways.networks.len(), MAX_NETWORKS);
        assert!(!ways.has_failed(Some(IpAddr::from([10, 0, 0, 0])), QUIC));
        assert!(ways.has_failed(Some(IpAddr::from([10, 0, 0, 1])), QUIC));
    }
}
