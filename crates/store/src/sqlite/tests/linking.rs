//! The linking test: an observer has the logs of the issuer and of the gateway, and tries to match
//! 10,000 submissions with their accounts.
//!
//! The issuer's log has the accounts in the order of their token requests. The gateway's log has
//! the deliveries of each batch in their order. In the worst case for the accounts, each of them
//! spends its token at once, so the observer knows the members of each batch and the order of their
//! arrival. It learns from the first half of the batches, with the true matches, how places among
//! the arrivals and places among the deliveries belong together. It then guesses the second half.

use super::*;
use tandem_submit::batch::Rule;
use tandem_submit::submission::{IdempotencyKey, SubmissionId};

const SUBMISSIONS: usize = 10_000;

/// The number of submissions in a batch.
const BATCH: usize = 20;

/// A generator of random numbers with a fixed seed (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> [u8; 8] {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d).to_be_bytes()
    }
}

/// Sends all submissions through a store, and returns the arrivals' places in the order of
/// delivery, batch by batch. The function returns the identifier of a submission.
fn deliver(mut id: impl FnMut(usize) -> SubmissionId) -> Vec<[usize; BATCH]> {
    let directory = Directory::new();
    let store = directory.open();
    let rule = Rule {
        size: BATCH as u64,
        least: BATCH as u64,
        wait: DAY,
        longest: DAY,
    };
    let mut batches = Vec::new();
    for first in (0..SUBMISSIONS).step_by(BATCH) {
        let mut place_of = std::collections::HashMap::new();
        let mut now = 0;
        let admissions = (0..BATCH).map(|place| {
            let (number, id) = (first + place, id(first + place));
            place_of.insert(id, place);
            now = number as Millis * 1000;
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_be_bytes());
            store.admit(NewSubmission {
                id,
                key: IdempotencyKey(key),
                now,
                leased_until: rule.due(now),
                is_collected: true,
                ..new(0)
            })
        });
        let admissions: Vec<_> = admissions.collect();
        for admission in admissions {
            assert!(matches!(wait(admission), Admission::Stored));
        }
        assert_eq!(
            wait(store.release(SERVER.to_owned(), rule, now)),
            BATCH as u64
        );
        // A gateway takes up to 16 submissions at a time.
        let mut order = Vec::new();
        while order.len() < BATCH {
            let claim = Claim {
                limit: 16,
                ..due(now, now + 10 * DAY)
            };
            let claimed = wait(store.claim(claim)).deliveries;
            assert!(!claimed.is_empty());
            order.extend(claimed.iter().map(|delivery| place_of[&delivery.id]));
        }
        batches.push(order.try_into().expect("the batch and no other"));
    }
    batches
}

/// Returns the rate of right guesses about the second half of the batches.
fn guess(batches: &[[usize; BATCH]]) -> f64 {
    let (known, unknown) = batches.split_at(batches.len() / 2);
    let mut seen = [[0; BATCH]; BATCH];
    for batch in known {
        for (delivered, arrived) in batch.iter().enumerate() {
            seen[delivered][*arrived] += 1;
        }
    }
    let likeliest = seen.map(|counts| (0..BATCH).max_by_key(|arrived| counts[*arrived]));
    let right = unknown.iter().flatten().zip(likeliest.iter().cycle());
    let right = right.filter(|(arrived, guess)| Some(**arrived) == **guess);
    right.count() as f64 / (unknown.len() * BATCH) as f64
}

#[test]
fn joined_logs_link_no_better_than_chance() {
    let mut random = Random(0x5eed);
    let rate = guess(&deliver(|_| {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&random.next());
        id[8..].copy_from_slice(&random.next());
        SubmissionId(id)
    }));
    let chance = 1.0 / BATCH as f64;
    let noise = 3.0 * (chance * (1.0 - chance) / (SUBMISSIONS / 2) as f64).sqrt();
    eprintln!("{rate} of the guesses are right, and {chance} ± {noise} by chance");
    assert!((rate - chance).abs() <= noise, "{rate} {chance} {noise}");
}

#[test]
fn delivery_in_order_of_arrival_would_link() {
    // Identifiers that grow with the time would keep the order, so the test above can fail.
    let rate = guess(&deliver(|number| {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        SubmissionId(id)
    }));
    assert!(rate > 0.99, "{rate}");
}
