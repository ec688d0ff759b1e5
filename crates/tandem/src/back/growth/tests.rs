//! Tests of the growth of limits, in virtual time.

use super::*;

/// An origin that answers after a round trip, and sends at most `rate` bytes per second.
struct Origin {
    round_trip: f64,
    rate: f64,
    size: u64,
}

/// Requests resources over as many connections as the limit permits, in virtual time. Returns
/// the state, the greatest limit and the seconds.
fn load(origin: &Origin, resources: usize, most: usize) -> (Growth, usize, f64) {
    let start = Instant::now();
    let mut growth = Growth::new(start, most, Pace::Doubling);
    growth.note_wait(start);
    let (mut clock, mut link_free, mut begun, mut greatest) = (0.0, 0.0, 0, FLOOR);
    let mut under_way: VecDeque<f64> = VecDeque::new();
    let mut connections = 0;
    for done in 0..resources {
        while under_way.len() < growth.limit() && begun < resources {
            // A new connection costs a round trip more than a kept one.
            let is_new = under_way.len() >= connections;
            connections = connections.max(under_way.len() + 1);
            let trips = if is_new { 2.0 } else { 1.0 };
            let first_byte = clock + trips * origin.round_trip;
            link_free = f64::max(link_free, first_byte) + origin.size as f64 / origin.rate;
            under_way.push_back(link_free);
            begun += 1;
        }
        under_way.make_contiguous().sort_by(f64::total_cmp);
        clock = under_way.pop_front().expect("a request under way");
        let now = start + Duration::from_secs_f64(clock);
        growth.note_response(now, origin.size, begun < resources && done < resources);
        greatest = greatest.max(growth.limit());
    }
    (growth, greatest, clock)
}

fn doubling(now: Instant) -> Growth {
    Growth::new(now, 32, Pace::Doubling)
}

#[test]
fn limit_grows_on_a_long_round_trip() {
    let far = Origin {
        round_trip: 0.1,
        rate: 10e6,
        size: 2000,
    };
    let (_, greatest, seconds) = load(&far, 1300, 32);
    assert_eq!(greatest, 32);
    let ideal = 1300.0 / 32.0 * far.round_trip;
    assert!(seconds < ideal * 1.2, "{seconds} s, at best {ideal}");
}

#[test]
fn limit_survives_one_slow_round() {
    let start = Instant::now();
    let mut growth = doubling(start);
    growth.note_wait(start);
    let mut now = start;
    for round in 0..6 {
        let limit = growth.limit() as u32;
        let pause = if round == 2 { 400 } else { 100 };
        for _ in 0..limit {
            now += Duration::from_millis(pause) / limit;
            growth.note_response(now, 2000, true);
        }
    }
    assert_eq!(growth.limit(), 32);
}

#[test]
fn deep_connections_carry_twice_the_exchanges() {
    let now = Instant::now();
    let mut growth = doubling(now);
    growth.set_depth(now, 2);
    growth.note_wait(now);
    for _ in 0..FLOOR * 2 {
        growth.note_response(now, 2000, true);
    }
    assert_eq!((growth.limit(), growth.exchanges()), (12, 24));
    growth.hold();
    assert_eq!((growth.limit(), growth.exchanges()), (FLOOR, FLOOR));
}

#[test]
fn each_answer_may_add_a_connection() {
    let now = Instant::now();
    let mut growth = Growth::new(now, 32, Pace::EachAnswer);
    growth.set_depth(now, 2);
    growth.note_wait(now);
    for _ in 0..FLOOR * 2 {
        growth.note_response(now, 2000, true);
    }
    assert_eq!((growth.limit(), growth.exchanges()), (18, 36));
    for _ in 0..36 {
        assert_eq!(growth.limit(), 18, "no two rounds were compared");
        growth.note_response(now, 2000, true);
    }
    for _ in 18..32 {
        growth.note_response(now, 2000, true);
    }
    assert_eq!(growth.limit(), 32, "the largest limit");
    growth.note_refusal(now, Refusal::Connection);
    assert_eq!(growth.limit(), FLOOR);
}

#[test]
fn single_requests_behind_a_proxy_get_connections() {
    let now = Instant::now();
    for (pace, depth, expected) in [
        (Pace::EachAnswer, 2, [10, 18, 18]),
        (Pace::EachAnswer, 1, [8, 12, 18]),
        (Pace::Doubling, 2, [7, 9, 12]),
    ] {
        let mut growth = Growth::new(now, 32, pace);
        growth.set_depth(now, depth);
        growth.note_wait(now);
        assert_eq!(growth.connections(), FLOOR);
        let after = [2, 4, 6].map(|answers| {
            (0..answers).for_each(|_| growth.note_response(now, 2000, true));
            assert!(growth.connections() <= growth.exchanges());
            growth.connections()
        });
        assert_eq!(after, expected, "{pace:?} {depth}");
        growth.hold();
        assert_eq!(growth.connections(), FLOOR);
        growth.release();
        growth.note_refusal(now, Refusal::Connection);
        assert_eq!(growth.connections(), FLOOR);
    }
}

/// Two rounds of the same throughput end the growth, which is bounded until then.
#[test]
fn each_answer_adds_few_connections_on_a_full_link() {
    let start = Instant::now();
    let mut growth = Growth::new(start, 64, Pace::EachAnswer);
    growth.set_depth(start, 2);
    growth.note_wait(start);
    let mut greatest = FLOOR;
    for answer in 0..400 {
        let now = start + Duration::from_millis(20 * answer);
        growth.note_response(now, 2000, true);
        greatest = greatest.max(growth.limit());
    }
    assert_eq!((greatest, growth.limit()), (3 * FLOOR, FLOOR));
}

#[test]
fn refusal_by_a_response_ends_pipelining_for_a_while() {
    let now = Instant::now();
    let mut growth = doubling(now);
    growth.set_depth(now, 2);
    assert_eq!(growth.exchanges(), FLOOR * 2);
    growth.note_refusal(now, Refusal::Response(Duration::ZERO));
    assert_eq!(growth.exchanges(), FLOOR);
    growth.set_depth(now + Duration::from_secs(59), 2);
    assert_eq!(growth.exchanges(), FLOOR);
    growth.set_depth(now + Duration::from_secs(60), 2);
    assert_eq!(growth.exchanges(), FLOOR * 2);
}

#[test]
fn limit_falls_back_on_a_full_link() {
    let full = Origin {
        round_trip: 0.02,
        rate: 100e3,
        size: 20_000,
    };
    let (growth, greatest, _) = load(&full, 400, 32);
    assert!(greatest < 32, "{greatest}");
    assert!(growth.limit() <= 12, "{}", growth.limit());
}

#[test]
fn limit_stays_without_waiting_requests() {
    let now = Instant::now();
    let mut growth = doubling(now);
    for second in 0..50 {
        growth.note_response(now + Duration::from_secs(second), 5000, false);
    }
    assert_eq!(growth.limit(), FLOOR);
}

fn grown(now: Instant) -> Growth {
    let mut growth = doubling(now);
    growth.note_wait(now);
    for _ in 0..26 {
        growth.note_response(now, 5000, true);
    }
    assert_eq!(growth.limit(), 32);
    growth
}

#[test]
fn refusal_lowers_the_limit_at_once() {
    let now = Instant::now();
    let mut growth = grown(now);
    growth.note_refusal(now, Refusal::Connection);
    assert_eq!(growth.limit(), FLOOR);
    let at = |seconds| now + Duration::from_secs(seconds);
    for second in 0..59 {
        growth.note_response(at(second), 5000, true);
    }
    assert_eq!(growth.limit(), FLOOR, "growth is paused");
    growth.note_response(at(60), 5000, true);
    assert_eq!(growth.limit(), FLOOR + 1);
    growth.note_refusal(at(61), Refusal::Connection);
    growth.note_response(at(120), 5000, true);
    growth.note_response(at(179), 5000, true);
    assert_eq!(growth.limit(), FLOOR, "the second pause is longer");
    growth.note_response(at(181), 5000, true);
    assert_eq!(growth.limit(), FLOOR + 1);
}

#[test]
fn busy_origin_gets_no_early_requests() {
    let now = Instant::now();
    let at = |seconds| now + Duration::from_secs(seconds);
    let mut growth = grown(now);
    growth.note_refusal(now, Refusal::Connection);
    assert!(
        !growth.refuses_early(now),
        "a broken connection says little"
    );
    let mut growth = grown(now);
    growth.note_refusal(now, Refusal::Response(Duration::ZERO));
    assert!(growth.refuses_early(at(59)) && !growth.refuses_early(at(60)));
    growth.note_refusal(at(60), Refusal::Response(Duration::from_secs(300)));
    assert!(growth.refuses_early(at(359)) && !growth.refuses_early(at(360)));
    growth.note_refusal(at(360), Refusal::Response(Duration::MAX));
    assert!(!growth.refuses_early(at(360) + LONGEST_PAUSE));
}

#[test]
fn limit_is_forgotten_after_a_long_silence() {
    let now = Instant::now();
    let mut growth = grown(now);
    assert!(!growth.is_forgettable(now));
    let later = now + FORGET_AFTER;
    assert!(growth.is_forgettable(later));
    growth.note_wait(later);
    assert_eq!(growth.limit(), FLOOR);
    growth.note_refusal(later, Refusal::Connection);
    assert!(!growth.is_forgettable(later + Duration::from_secs(59)));
}

#[test]
fn unrepeatable_request_holds_the_limit() {
    let now = Instant::now();
    let mut growth = grown(now);
    growth.hold();
    growth.hold();
    growth.release();
    assert_eq!(growth.limit(), FLOOR);
    growth.note_response(now, 5000, true);
    growth.release();
    assert_eq!(growth.limit(), 32);
}

#[test]
fn ended_requests_end_in_the_order_of_their_times() {
    let now = Instant::now();
    let mut growth = Growth::new(now, 32, Pace::Doubling);
    let [short, long] = RESPONSE_TIMES;
    for time in [long, short] {
        growth.note_head(time);
        growth.note_abandoned(now);
    }
    assert_eq!(growth.abandoned_until(now, 0), Some(now + long));
    assert_eq!(growth.abandoned_until(now, 1), Some(now + short));
    assert_eq!(growth.abandoned_until(now + short, 1), None);
    growth.note_abandoned(now + long);
    assert_eq!(growth.abandoned.len(), 1, "two are forgotten");
}

#[test]
fn floor_is_the_least_limit() {
    let growth = Growth::new(Instant::now(), 1, Pace::EachAnswer);
    assert_eq!(growth.limit(), FLOOR);
}
