//! The phases, step by step.

use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);
const SAVED: SavedSpeed = SavedSpeed {
    rate: 1_000_000,
    round_trip: Duration::from_millis(600),
};
const INITIAL: u64 = 12_000;

/// Returns a sender that has measured this round trip.
fn sender(round_trip: Duration) -> CarefulResume {
    let mut resume = CarefulResume::new(INITIAL);
    resume.on_ack(round_trip, Duration::ZERO, 1200, true);
    resume.judge(round_trip, 0, INITIAL);
    resume
}

/// Returns a sender with `flight` bytes sent after the offer. Their first packet has arrived.
fn after_first_ack(flight: u64) -> CarefulResume {
    let mut resume = sender(600 * MS);
    resume.offer(600 * MS, SAVED, INITIAL);
    resume.on_ack(1200 * MS, 600 * MS, 1200, false);
    assert_eq!(resume.judge(1200 * MS, flight - 1200, INITIAL), None);
    resume
}

/// Returns a sender whose jump lost a packet, when 100 kB of it had arrived.
fn retreating() -> CarefulResume {
    let mut resume = after_first_ack(290_000);
    resume.on_ack(1300 * MS, 700 * MS, 98_800, false);
    assert_eq!(resume.on_congestion(1310 * MS, 650 * MS), Reaction::Absorb);
    resume
}

/// The state of the controller after such a retreat, in which 150 kB have arrived.
const REDUCED: Reduced = Reduced {
    window: 50_000,
    threshold: 105_000,
};

/// Returns a sender that has received the first acknowledgement of a packet behind its jump.
fn passed() -> CarefulResume {
    let mut resume = after_first_ack(290_000);
    resume.on_ack(1900 * MS, 1190 * MS, 200_000, false);
    assert_eq!(resume.judge(1900 * MS, 190_000, INITIAL), None);
    resume.on_ack(1950 * MS, 1300 * MS, 1200, false);
    let restart = resume.judge(1950 * MS, 190_000, INITIAL);
    assert_eq!(restart, Some(Restart::Grow(491_200)));
    resume
}

#[test]
fn offer_permits_half_of_the_saved_window() {
    let mut resume = sender(600 * MS);
    assert_eq!(resume.window(INITIAL), INITIAL);
    resume.offer(600 * MS, SAVED, INITIAL);
    assert_eq!(resume.window(INITIAL), 300_000);
}

#[test]
fn offer_waits_for_a_round_trip() {
    let mut resume = CarefulResume::new(INITIAL);
    resume.offer(Duration::ZERO, SAVED, INITIAL);
    assert_eq!(resume.window(INITIAL), INITIAL);
    resume.on_ack(500 * MS, Duration::ZERO, 1200, false);
    resume.judge(500 * MS, 10_800, INITIAL);
    // The shorter one of the round trips counts.
    assert_eq!(resume.window(INITIAL), 250_000);
}

#[test]
fn offer_after_a_handshake_waits_for_nothing() {
    let mut resume = CarefulResume::new(INITIAL);
    resume.note_round_trip(600 * MS);
    resume.offer(Duration::ZERO, SAVED, INITIAL);
    assert_eq!(resume.window(INITIAL), 300_000);
}

#[test]
fn offer_of_another_round_trip_is_forgotten() {
    for round_trip in [300 * MS, 1201 * MS] {
        let mut resume = sender(round_trip);
        resume.offer(round_trip, SAVED, INITIAL);
        assert_eq!(resume.window(INITIAL), INITIAL);
        assert_ne!(resume.speed(), Some(SAVED));
    }
}

#[test]
fn offer_after_congestion_is_ignored() {
    let mut resume = sender(600 * MS);
    assert_eq!(resume.on_congestion(600 * MS, 300 * MS), Reaction::Pass);
    resume.offer(600 * MS, SAVED, INITIAL);
    assert_eq!(resume.window(INITIAL), INITIAL);
}

#[test]
fn validation_grows_from_the_data_in_flight() {
    let mut resume = after_first_ack(290_000);
    assert_eq!(resume.window(INITIAL), 290_000);
    resume.on_ack(1300 * MS, 700 * MS, 100_000, false);
    assert_eq!(resume.judge(1300 * MS, 290_000, INITIAL), None);
    assert_eq!(resume.window(INITIAL), 390_000);
    resume.on_ack(1900 * MS, 1300 * MS, 10_000, false);
    let restart = resume.judge(1900 * MS, 390_000, INITIAL);
    assert_eq!(restart, Some(Restart::Grow(400_000)));
    assert_eq!(resume.window(400_000), 400_000);
    assert_eq!(resume.speed(), None, "late losses may come to light");
    resume.on_ack(2600 * MS, 2000 * MS, 1200, false);
    resume.judge(2600 * MS, 390_000, 400_000);
    assert_eq!(resume.speed(), Some(SAVED));
}

/// Returns a sender of `flight` bytes and the trial of its speed.
fn tried(flight: u64) -> (CarefulResume, Trial) {
    let mut resume = sender(600 * MS);
    let trial = resume.offer(600 * MS, SAVED, INITIAL).expect("a trial");
    assert_eq!(trial.outcome(), Outcome::Pending);
    resume.on_ack(1200 * MS, 600 * MS, 1200, false);
    resume.judge(1200 * MS, flight - 1200, INITIAL);
    (resume, trial)
}

#[test]
fn trial_is_done_once_everything_has_arrived() {
    let (mut resume, trial) = tried(290_000);
    assert_eq!((trial.outcome(), resume.speed()), (Outcome::Pending, None));
    resume.on_ack(1800 * MS, 1100 * MS, 288_800, true);
    let restart = resume.judge(1800 * MS, 0, INITIAL);
    assert_eq!(restart, Some(Restart::Grow(290_000)));
    assert_eq!(trial.outcome(), Outcome::Done);
    assert_eq!(resume.speed(), Some(SAVED));
}

#[test]
fn trial_fails_with_a_retreat() {
    let (mut resume, trial) = tried(290_000);
    resume.on_congestion(1310 * MS, 650 * MS);
    assert_eq!((trial.outcome(), resume.speed()), (Outcome::Failed, None));
    resume.on_timeout();
    assert_eq!(trial.outcome(), Outcome::Failed);
    assert!(!trial.is_orphaned());
    drop(resume);
    assert!(trial.is_orphaned());
}

#[test]
fn trial_of_a_sender_with_little_data_is_unused() {
    let (mut resume, trial) = tried(5000);
    assert_eq!(trial.outcome(), Outcome::Unused);
    assert_eq!(resume.speed(), Some(SAVED));
    resume.on_ack(2000 * MS, 1400 * MS, 1200, false);
    resume.judge(2000 * MS, 40_000, INITIAL);
    assert_eq!((trial.outcome(), resume.speed()), (Outcome::Pending, None));
}

#[test]
fn unused_window_waits_for_data() {
    let mut resume = after_first_ack(5000);
    assert_eq!(resume.window(INITIAL), 300_000);
    // Data that fills a little more than the controller's window has another round trip.
    resume.on_ack(2000 * MS, 1400 * MS, 1200, false);
    resume.judge(2000 * MS, 20_000, INITIAL);
    assert_eq!(resume.window(INITIAL), 300_000);
    resume.on_ack(2600 * MS, 2000 * MS, 1200, false);
    resume.judge(2600 * MS, 40_000, INITIAL);
    assert_eq!(resume.window(INITIAL), 41_200);
}

#[test]
fn loss_before_the_window_is_used_is_the_controllers() {
    let mut resume = after_first_ack(5000);
    for round in 3..1000 {
        let sent = 600 * MS * (round - 1);
        resume.on_ack(600 * MS * round, sent, 10_000, true);
        assert_eq!(resume.judge(600 * MS * round, 0, INITIAL), None);
    }
    let reaction = resume.on_congestion(600_000 * MS, 599_000 * MS);
    assert_eq!(reaction, Reaction::Pass);
    assert_eq!(resume.window(INITIAL), INITIAL);
}

#[test]
fn retreat_ignores_data_before_the_last_round_trip() {
    let mut resume = after_first_ack(5000);
    for round in 3..1000 {
        let sent = 600 * MS * (round - 1);
        resume.on_ack(600 * MS * round, sent, 10_000, true);
        assert_eq!(resume.judge(600 * MS * round, 0, INITIAL), None);
    }
    let now = 600_000 * MS;
    resume.on_ack(now, now - 600 * MS, 10_000, false);
    assert_eq!(resume.judge(now, 100_000, INITIAL), None);
    let reaction = resume.on_congestion(now, now - 500 * MS);
    assert_eq!(reaction, Reaction::Absorb);
    assert_eq!(resume.window(INITIAL), INITIAL);
}

#[test]
fn unused_window_ends_when_the_round_trip_changes() {
    let mut resume = after_first_ack(5000);
    resume.on_ack(5000 * MS, 3000 * MS, 1200, true);
    resume.judge(5000 * MS, 0, INITIAL);
    assert_eq!(resume.window(INITIAL), INITIAL);
}

#[test]
fn retreat_keeps_half_of_the_bytes_at_its_start() {
    let mut resume = retreating();
    assert_eq!(resume.window(INITIAL), 50_000);
    assert_eq!(resume.speed(), None, "the saved speed is gone");
    assert_eq!(resume.on_congestion(1320 * MS, 800 * MS), Reaction::Absorb);
    resume.on_ack(1400 * MS, 900 * MS, 50_000, false);
    assert_eq!(resume.judge(1400 * MS, 60_000, INITIAL), None);
    assert_eq!(resume.window(INITIAL), 50_000, "a retreat does not grow");
    resume.on_ack(2000 * MS, 1400 * MS, 1200, false);
    let restart = resume.judge(2000 * MS, 40_000, INITIAL);
    assert_eq!(restart, Some(Restart::Reduce(REDUCED)));
    assert_eq!(resume.speed(), None, "a retreat measures nothing");
}

#[test]
fn loss_in_a_retreat_reduces_its_window() {
    let mut resume = retreating();
    resume.on_ack(1400 * MS, 900 * MS, 50_000, false);
    let reaction = resume.on_congestion(2000 * MS, 1400 * MS);
    assert_eq!(reaction, Reaction::Reduce(REDUCED));
}

#[test]
fn retreat_absorbs_losses_that_come_to_light_later() {
    let mut resume = retreating();
    resume.on_ack(2000 * MS, 1400 * MS, 1200, false);
    resume.judge(2000 * MS, 40_000, INITIAL);
    assert_eq!(resume.on_congestion(2000 * MS, 1190 * MS), Reaction::Absorb);
    let mut later = resume.clone();
    assert_eq!(later.on_congestion(2010 * MS, 1410 * MS), Reaction::Pass);
    resume.on_ack(2700 * MS, 2100 * MS, 1200, false);
    resume.judge(2700 * MS, 40_000, INITIAL);
    assert_eq!(resume.on_congestion(2700 * MS, 1190 * MS), Reaction::Pass);
}

#[test]
fn loss_after_validation_is_the_controllers() {
    let mut resume = passed();
    resume.on_ack(1960 * MS, 1310 * MS, 1200, false);
    assert_eq!(resume.judge(1960 * MS, 390_000, 400_000), None);
    let reaction = resume.on_congestion(1960 * MS, 1300 * MS);
    assert_eq!(reaction, Reaction::Pass);
    assert_eq!(resume.window(7), 7);
}

#[test]
fn loss_of_the_last_unvalidated_packets_retreats() {
    // The acknowledgement of a later packet shows it, at once or after three packets.
    for later in [false, true] {
        let mut resume = passed();
        if later {
            resume.on_ack(1960 * MS, 1310 * MS, 1200, false);
            resume.judge(1960 * MS, 390_000, 400_000);
        }
        let reaction = resume.on_congestion(1960 * MS, 1190 * MS);
        assert_eq!(reaction, Reaction::Absorb);
        assert_eq!(resume.window(400_000), 100_600);
        assert_eq!(resume.speed(), None, "the saved speed is gone");
    }
}

#[test]
fn losses_around_the_last_unvalidated_packet_retreat() {
    // The transport reports the last lost packet only, which was sent later.
    let mut resume = passed();
    let reaction = resume.on_congestion(1950 * MS, 1210 * MS);
    assert_eq!(reaction, Reaction::Absorb);
}

#[test]
fn loss_a_round_trip_later_is_the_controllers() {
    let mut resume = passed();
    resume.on_ack(2600 * MS, 2000 * MS, 1200, false);
    resume.judge(2600 * MS, 390_000, 400_000);
    let reaction = resume.on_congestion(2600 * MS, 1190 * MS);
    assert_eq!(reaction, Reaction::Pass);
}

#[test]
fn congestion_mark_in_validation_retreats() {
    let mut resume = after_first_ack(290_000);
    resume.on_ack(1300 * MS, 700 * MS, 98_800, false);
    // A mark is reported with the present time.
    let reaction = resume.on_congestion(1310 * MS, 1310 * MS);
    assert_eq!(reaction, Reaction::Absorb);
    assert_eq!(resume.window(INITIAL), 50_000);
}

#[test]
fn timeout_ends_every_phase() {
    let mut resume = after_first_ack(290_000);
    let reduced = Reduced::new(INITIAL, 0);
    assert_eq!(resume.on_timeout(), Reaction::Reduce(reduced));
    assert_eq!(resume.on_timeout(), Reaction::Pass);
    assert_eq!(resume.window(7), 7);
}

#[test]
fn train_leaves_the_trial_of_a_saved_speed() {
    let mut resume = CarefulResume::new(INITIAL);
    resume.note_round_trip(400 * MS);
    let slow = SavedSpeed {
        rate: 50_000,
        round_trip: 400 * MS,
    };
    assert!(resume.offer(Duration::ZERO, slow, INITIAL).is_none());
    let other = SavedSpeed {
        round_trip: 1600 * MS,
        ..SAVED
    };
    let mut late = CarefulResume::new(INITIAL);
    let trial = late.offer(Duration::ZERO, other, INITIAL).expect("a trial");
    for resume in [&mut resume, &mut late] {
        for packet in 0..12 {
            let now = 400 * MS + MS * packet;
            resume.on_ack(now, Duration::ZERO, 1200, false);
            resume.judge(now, 12_000, INITIAL);
        }
        assert_eq!(resume.window(INITIAL), 4 * INITIAL);
        resume.on_ack(820 * MS, 415 * MS, 1200, false);
        resume.judge(820 * MS, 40_000, INITIAL);
        let reaction = resume.on_congestion(840 * MS, 420 * MS);
        assert_eq!(reaction, Reaction::Pass);
    }
    assert_eq!(trial.outcome(), Outcome::Done, "it was not tried");
}

/// Returns a sender whose ten first packets of 1200 bytes had a round trip of `round_trip`, and
/// arrived `spread` apart. The controller permits `inner` then.
fn with_train(round_trip: Duration, spread: Duration, inner: u64) -> CarefulResume {
    let mut resume = CarefulResume::new(INITIAL);
    for packet in 0..10 {
        let now = round_trip + spread * packet;
        resume.on_ack(now, Duration::ZERO, 1200, false);
        resume.judge(now, 12_000, inner);
    }
    resume
}

#[test]
fn train_permits_half_of_its_window() {
    // The spread is that of 200 kB/s: half of 400 ms has 40 kB.
    assert_eq!(
        with_train(400 * MS, 6 * MS, INITIAL).window(INITIAL),
        40_000
    );
    let narrow = with_train(400 * MS, 24 * MS, INITIAL);
    assert_eq!(narrow.window(INITIAL), INITIAL, "the path has only 20 kB");
    let short = with_train(100 * MS, 6 * MS, INITIAL);
    assert_eq!(short.window(INITIAL), INITIAL);
}

#[test]
fn train_permits_four_windows_at_most() {
    let fast = with_train(400 * MS, MS, INITIAL);
    assert_eq!(fast.window(INITIAL), 4 * INITIAL);
    assert_eq!(fast.window(5 * INITIAL), 5 * INITIAL);
}

#[test]
fn train_counts_once() {
    let mut resume = with_train(400 * MS, 24 * MS, INITIAL);
    for packet in 0..10 {
        let now = 800 * MS + MS * packet;
        resume.on_ack(now, 400 * MS, 1200, false);
        resume.judge(now, 12_000, INITIAL);
    }
    assert_eq!(resume.window(INITIAL), INITIAL);
    assert!(resume.offer(900 * MS, SAVED, INITIAL).is_none());
    assert_eq!(resume.window(INITIAL), INITIAL);
}

#[test]
fn train_before_a_saved_speed_is_not_judged() {
    let mut resume = CarefulResume::new(INITIAL);
    resume.note_round_trip(600 * MS);
    let trial = resume.offer(Duration::ZERO, SAVED, INITIAL);
    assert!(trial.is_some());
    for packet in 0..10 {
        let now = 600 * MS + 24 * MS * packet;
        resume.on_ack(now, Duration::ZERO, 1200, true);
        resume.judge(now, 0, INITIAL);
    }
    assert_eq!(resume.window(INITIAL), 300_000);
}

#[test]
fn train_after_congestion_changes_nothing() {
    let mut resume = CarefulResume::new(INITIAL);
    resume.on_congestion(10 * MS, 5 * MS);
    for packet in 0..10 {
        let now = 400 * MS + MS * packet;
        resume.on_ack(now, Duration::ZERO, 1200, false);
        resume.judge(now, 12_000, INITIAL);
    }
    assert_eq!(resume.window(INITIAL), INITIAL);
}

#[test]
fn losses_behind_a_train_are_the_controllers() {
    let mut resume = with_train(400 * MS, MS, INITIAL);
    resume.on_ack(820 * MS, 415 * MS, 1200, false);
    assert_eq!(resume.judge(820 * MS, 40_000, INITIAL), None);
    resume.on_ack(840 * MS, 430 * MS, 18_800, false);
    assert_eq!(
        resume.window(INITIAL),
        60_000,
        "the path carries the window"
    );
    for is_timeout in [false, true] {
        let mut resume = resume.clone();
        let reaction = match is_timeout {
            true => resume.on_timeout(),
            false => resume.on_congestion(840 * MS, 420 * MS),
        };
        assert_eq!(reaction, Reaction::Pass);
        assert_eq!(resume.window(INITIAL), INITIAL);
    }
}

#[test]
fn offer_of_another_round_trip_leaves_the_train() {
    let mut resume = CarefulResume::new(INITIAL);
    resume.note_round_trip(200 * MS);
    resume.offer(Duration::ZERO, SAVED, INITIAL);
    for packet in 0..10 {
        let now = 200 * MS + MS * packet;
        resume.on_ack(now, Duration::ZERO, 1200, false);
        resume.judge(now, 12_000, INITIAL);
    }
    assert_eq!(resume.window(INITIAL), 4 * INITIAL);
}

#[test]
fn unused_train_ends_when_the_round_trip_changes() {
    let mut resume = with_train(400 * MS, MS, INITIAL);
    resume.on_ack(2000 * MS, 1600 * MS, 1200, true);
    resume.judge(2000 * MS, 0, INITIAL);
    assert_eq!(resume.window(INITIAL), 4 * INITIAL);
    resume.on_ack(4000 * MS, 3000 * MS, 1200, true);
    resume.judge(4000 * MS, 0, INITIAL);
    assert_eq!(resume.window(INITIAL), INITIAL);
}

#[derive(Clone, Debug)]
enum Step {
    Ack(u64, u64, bool),
    Judge(u64),
    Congestion(u64),
    Timeout,
    Offer(u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..2000u64, any::<u64>(), any::<bool>()).prop_map(|(a, b, c)| Step::Ack(a, b, c)),
        any::<u64>().prop_map(Step::Judge),
        (0..2000u64).prop_map(Step::Congestion),
        Just(Step::Timeout),
        (any::<u64>(), 0..5000u64).prop_map(|(rate, rtt)| Step::Offer(rate, rtt)),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Returns the window of a retreat.
fn retreat_of(resume: &CarefulResume) -> Option<u64> {
    let is_retreat = matches!(resume.phase, Phase::Retreat { .. });
    is_retreat.then(|| resume.window(u64::MAX))
}

proptest! {
    #[test]
    fn any_input_keeps_the_window_bounded(steps in steps()) {
        let mut resume = CarefulResume::new(INITIAL);
        for (turn, step) in steps.into_iter().enumerate() {
            let now = Duration::from_secs(2) + MS * turn as u32 * 100;
            let before = |age| now.saturating_sub(MS * age as u32);
            let retreat = retreat_of(&resume);
            match step {
                Step::Ack(age, bytes, limited) => {
                    resume.on_ack(now, before(age), bytes % (1 << 20), limited);
                }
                Step::Judge(flight) => {
                    let restart = resume.judge(now, flight % (1 << 22), INITIAL);
                    match restart {
                        Some(Restart::Grow(window)) => prop_assert!(window >= INITIAL),
                        Some(Restart::Reduce(to)) => {
                            prop_assert_eq!(retreat, Some(to.window));
                            prop_assert!(to.threshold >= to.window);
                        }
                        None => {}
                    }
                }
                Step::Congestion(age) => {
                    resume.on_congestion(now, before(age));
                }
                Step::Timeout => {
                    resume.on_timeout();
                }
                Step::Offer(rate, rtt) => {
                    let round_trip = MS * rtt as u32;
                    resume.offer(now, SavedSpeed { rate, round_trip }, INITIAL);
                    if matches!(resume.phase, Phase::Unvalidated { .. }) {
                        prop_assert!(resume.window(INITIAL) <= MAX_JUMP);
                    }
                }
            }
            if let (Some(before), Some(after)) = (retreat, retreat_of(&resume)) {
                prop_assert_eq!(before, after);
            }
            prop_assert!(resume.window(INITIAL) >= INITIAL);
            prop_assert!(resume.window(INITIAL) <= 200 << 20);
        }
    }
}
