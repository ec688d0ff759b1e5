//! Any sequence of charges, credits and times leaves a flood budget within its bounds. The reserve,
//! the time and the credited work limit the permitted charges.
#![no_main]

use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use tandem_http::flood::FloodBudget;

fuzz_target!(|steps: &[u8]| {
    let start = Instant::now();
    let mut budget = FloodBudget::new();
    budget.advance(start);
    let (mut millis, mut charged, mut resets, mut earned, mut exchanges) = (0u64, 0, 0, 0, 0);
    for step in steps.chunks_exact(2) {
        let amount = u64::from(step[1]);
        match step[0] % 6 {
            0 => {
                millis += amount * amount;
                budget.advance(start + Duration::from_millis(millis));
            }
            1 => {
                earned += 2 * amount;
                budget.credit_sent(amount as usize * 1024);
            }
            2 => {
                earned += 8;
                exchanges += 1;
                budget.credit_exchange();
            }
            3 => {
                charged += amount;
                (0..amount).for_each(|_| budget.charge_idle());
            }
            4 => {
                charged += amount;
                resets += amount;
                (0..amount).for_each(|_| budget.charge_reset());
            }
            _ => budget.answers_sent(),
        }
        let reserve = 1537 + millis * 64 / 1000 + exchanges / 2;
        if budget.check().is_ok() {
            assert!(resets <= reserve, "{resets} resets");
            assert!(charged <= reserve + earned, "{charged} frames");
        }
    }
    // A session that has ended stays so.
    let ended = budget.check().is_err();
    budget.credit_exchange();
    assert_eq!(budget.check().is_err(), ended);
});
