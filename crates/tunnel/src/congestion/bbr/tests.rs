//! Tests of BBR by single acknowledgements.

use super::super::DeliveryRate;
use super::*;

const MS: Duration = Duration::from_millis(1);
const SEGMENT: u64 = 1000;

fn ack(now: Duration, rate: u64, in_flight: u64) -> AckSample {
    AckSample {
        now,
        acked: 10 * SEGMENT,
        in_flight,
        rtt: Some(100 * MS),
        min_rtt: 100 * MS,
        smoothed_rtt: 100 * MS,
        rate: Some(DeliveryRate {
            bytes_per_second: rate,
            app_limited: false,
        }),
        round_start: true,
        after_idle: false,
        window_limited: true,
        round_limited: true,
    }
}

/// Rounds at a steady rate of 1 MB/s.
fn cruising() -> Bbr {
    let mut bbr = Bbr::new(10 * SEGMENT, SEGMENT);
    for round in 1..=10 {
        bbr.on_ack(&ack(100 * MS * round, 1_000_000, 90 * SEGMENT));
    }
    bbr
}

#[test]
fn bbr_doubles_the_initial_window_if_little_is_sent() {
    let mut bbr = Bbr::new(10 * SEGMENT, SEGMENT);
    for round in 1..=8 {
        let mut sample = ack(100 * MS * round, 20_000, 0);
        sample.acked = 2 * SEGMENT;
        sample.window_limited = false;
        sample.rate = Some(DeliveryRate {
            bytes_per_second: 20_000,
            app_limited: true,
        });
        bbr.on_ack(&sample);
        let expected = (10 + 2 * u64::from(round)).min(20) * SEGMENT;
        assert_eq!((bbr.window(), bbr.unpaced_window()), (expected, expected));
    }
}

#[test]
fn bbr_leaves_startup_when_bandwidth_stays() {
    let bbr = cruising();
    assert!(
        bbr.is_full && matches!(bbr.state, State::Cruise { .. }),
        "{bbr:?}"
    );
    // Twice 1 MB/s x 100 ms, and two segments.
    assert_eq!(bbr.product(1.0), 100_000);
    assert!(bbr.window() <= 202_000);
}

#[test]
fn bbr_keeps_its_rate_under_random_loss() {
    let mut bbr = cruising();
    let rate = bbr.bandwidth();
    for round in 11..40 {
        bbr.on_congestion();
        bbr.on_lost(200);
        bbr.on_ack(&ack(100 * MS * round, 1_000_000, 90 * SEGMENT));
    }
    assert_eq!((bbr.bandwidth(), bbr.bound), (rate, None));
}

#[test]
fn bbr_lowers_its_bound_under_heavy_loss_and_recovers() {
    let mut bbr = cruising();
    bbr.on_congestion();
    bbr.on_lost(20 * SEGMENT);
    bbr.on_ack(&ack(1100 * MS, 1_000_000, 90 * SEGMENT));
    let bound = bbr.bound.expect("a bound after a fifth was lost");
    assert!(bbr.window() <= bound);
    for round in 12..20 {
        bbr.on_ack(&ack(100 * MS * round, 1_000_000, 90 * SEGMENT));
    }
    assert_eq!(bbr.bound, None);
}

#[test]
fn bbr_takes_a_mark_for_congestion() {
    let mut bbr = cruising();
    bbr.on_mark();
    bbr.on_ack(&ack(1100 * MS, 1_000_000, 130 * SEGMENT));
    assert_eq!(
        bbr.bound,
        Some(100_000),
        "the product of rate and round trip"
    );
    bbr.on_ack(&ack(1200 * MS, 1_000_000, 100 * SEGMENT));
    assert_eq!(bbr.bound, Some(125_000), "a round without a mark raises it");
    let mut starting = Bbr::new(10 * SEGMENT, SEGMENT);
    starting.on_mark();
    starting.on_ack(&ack(100 * MS, 100_000, 10 * SEGMENT));
    assert!(starting.is_full, "{starting:?}");
}

#[test]
fn bbr_drains_and_starts_up_after_a_retreat() {
    let mut bbr = cruising();
    let (window, threshold) = (25 * SEGMENT, 70 * SEGMENT);
    bbr.reduce(Reduced { window, threshold });
    assert_eq!((bbr.window(), bbr.state), (window, State::Drain));
    // The rate of the window over the round trip, and not the measured one.
    assert_eq!(bbr.bandwidth(), 250_000);
    let mut sample = ack(1100 * MS, 0, 60 * SEGMENT);
    sample.rate = None;
    bbr.on_ack(&sample);
    assert_eq!(bbr.state, State::Drain, "more than the window is in flight");
    sample.in_flight = 20 * SEGMENT;
    bbr.on_ack(&sample);
    assert_eq!(bbr.state, State::Startup);
    for round in 12..17 {
        let rate = bbr.window() * 10;
        bbr.on_ack(&ack(100 * MS * round, rate, bbr.window()));
        assert!(bbr.window() <= threshold, "{bbr:?}");
    }
    assert_eq!((bbr.window(), bbr.bandwidth()), (threshold, 700_000));
}

#[test]
fn bbr_measures_the_round_trip_with_little_in_flight() {
    let mut bbr = cruising();
    let mut low = u64::MAX;
    for round in 11..120u32 {
        let mut sample = ack(100 * MS * round, 1_000_000, bbr.window().min(90 * SEGMENT));
        sample.rtt = Some(120 * MS);
        bbr.on_ack(&sample);
        low = low.min(bbr.window());
    }
    assert!(low <= 60 * SEGMENT, "{low}");
}

#[test]
fn bbr_measures_no_round_trip_after_an_idle_time() {
    let mut bbr = cruising();
    let window = bbr.window();
    let mut sample = ack(30_000 * MS, 1_000_000, 50 * SEGMENT);
    sample.after_idle = true;
    bbr.on_ack(&sample);
    sample = ack(30_010 * MS, 1_000_000, 90 * SEGMENT);
    sample.rtt = Some(120 * MS);
    bbr.on_ack(&sample);
    assert!(!matches!(bbr.state, State::ProbeRtt { .. }), "{bbr:?}");
    assert!(bbr.window() >= window);
}

/// Lets the path deliver what BBR sends, up to `rate` bytes per second, for a number of rounds.
/// Returns the pacing gain in each of them, in percent.
fn gains(bbr: &mut Bbr, first: u32, rounds: u32, rate: u64, queue: Duration) -> Vec<u64> {
    let mut gains = Vec::new();
    for round in first..first + rounds {
        let paced = bbr.pacing_rate().expect("a rate");
        gains.push(paced * 100 / bbr.bandwidth());
        let mut sample = ack(101 * MS * round, paced.min(rate), 90 * SEGMENT);
        sample.rtt = sample.rtt.map(|rtt| rtt + queue);
        bbr.on_ack(&sample);
    }
    gains
}

#[test]
fn bbr_repeats_a_probe_that_finds_bandwidth() {
    let mut bbr = cruising();
    let before = bbr.bandwidth();
    let gains = gains(&mut bbr, 11, 16, 4 * before, Duration::ZERO);
    let probes = gains.iter().filter(|gain| **gain > 100).count();
    assert!(probes >= 4, "{gains:?}");
    assert!(bbr.bandwidth() >= 2 * before, "{}", bbr.bandwidth());
}

#[test]
fn bbr_probes_once_in_a_cycle_at_a_constant_rate() {
    let mut bbr = cruising();
    let rate = bbr.bandwidth();
    let gains = gains(&mut bbr, 11, 24, rate, Duration::ZERO);
    assert_eq!(gains.iter().filter(|gain| **gain > 100).count(), 3);
    assert!(gains.iter().all(|gain| *gain <= 123), "{gains:?}");
}

#[test]
fn bbr_repeats_no_probe_into_a_queue() {
    let mut bbr = cruising();
    let rate = 4 * bbr.bandwidth();
    let gains = gains(&mut bbr, 11, 12, rate, 40 * MS);
    assert!(gains.iter().all(|gain| *gain <= 123), "{gains:?}");
}

/// Returns the window after two rounds with this rate of delivery and this queue.
fn window_after(rate: u64, queue: Duration, app_limited: bool) -> u64 {
    let mut bbr = cruising();
    for round in 11..=12 {
        let mut sample = ack(100 * MS * round, rate, 90 * SEGMENT);
        sample.acked = 100 * SEGMENT;
        sample.rtt = sample.rtt.map(|rtt| rtt + queue);
        sample.rate = sample.rate.map(|rate| DeliveryRate {
            app_limited,
            ..rate
        });
        bbr.on_ack(&sample);
    }
    bbr.window()
}

#[test]
fn bbr_lowers_its_window_once_a_rate_has_fallen() {
    assert_eq!(window_after(300_000, 60 * MS, false), 127_000);
    let full = 202_000;
    assert_eq!(
        window_after(300_000, Duration::ZERO, false),
        full,
        "no queue"
    );
    assert_eq!(window_after(900_000, 60 * MS, false), full, "others' queue");
    assert_eq!(
        window_after(300_000, 60 * MS, true),
        full,
        "little was sent"
    );
}
