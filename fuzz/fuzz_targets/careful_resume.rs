//! A sender with careful resume under any acknowledgements, losses and offers: its window stays
//! between the initial window and a bound.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tandem_resume::{CarefulResume, Reaction, Restart, SavedSpeed};

const INITIAL: u64 = 12_000;

fuzz_target!(|input: &[u8]| {
    let (mut resume, mut now, mut inner) = (CarefulResume::new(INITIAL), Duration::ZERO, INITIAL);
    let mut acked = 0_u64;
    for step in input.chunks_exact(6) {
        let [kind, wait, age, a, b, c] = *step else {
            return;
        };
        now += Duration::from_millis(u64::from(wait));
        let sent = now.saturating_sub(Duration::from_millis(8 * u64::from(age)));
        let number = u64::from(u32::from_be_bytes([0, a, b, c]));
        match kind % 5 {
            0 => {
                resume.on_ack(now, sent, number, kind >= 128);
                acked += number;
            }
            1 => match resume.judge(now, number, inner) {
                Some(Restart::Grow(window)) => inner = window,
                Some(Restart::Reduce(to)) => inner = to.window,
                None => {}
            },
            2 => {
                if let Reaction::Reduce(to) = resume.on_congestion(now, sent) {
                    assert!(to.threshold >= to.window);
                    inner = to.window;
                }
            }
            3 => {
                resume.on_timeout();
            }
            _ => {
                let round_trip = Duration::from_millis(8 * u64::from(age));
                let rate = number << (kind >> 4);
                resume.offer(now, SavedSpeed { rate, round_trip }, inner);
            }
        }
        assert!(inner >= INITIAL && resume.window(inner) >= INITIAL);
        // A window comes from an offer, from the data in flight, or from the data that arrived.
        assert!(resume.window(inner) <= (4 << 20) + (1 << 24) + 2 * acked + inner);
    }
});
