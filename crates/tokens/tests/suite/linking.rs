//! The joined logs of an issuer and a gateway do not link: 10,000 simulated submissions in virtual
//! time, and the best guess of an observer that has both logs.
//!
//! The issuer logs the account and the blinded token of each request. The gateway logs each token
//! and the time, in the order of delivery. The observer knows the times of issues, and that each
//! account spends its token some time after it got it.

use std::collections::HashMap;

use tandem_submit::batch::{self, Batch};
use tandem_submit::store::Lease;
use tandem_submit::submission::SubmissionId;

/// The number of submissions.
const SUBMISSIONS: usize = 10_000;

/// The size of a batch.
const BATCH: usize = 20;

/// The time for which a batch waits, in milliseconds.
const WAIT: i64 = 3_600_000;

fn member(id: SubmissionId) -> Lease {
    let end = batch::due(0, WAIT);
    Lease { id, end }
}

/// A generator of random numbers with a fixed seed (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn id(&mut self) -> SubmissionId {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.next().to_be_bytes());
        id[8..].copy_from_slice(&self.next().to_be_bytes());
        SubmissionId(id)
    }
}

/// Sends submissions of one account each, a second apart, and returns the accounts in the order of
/// delivery, batch by batch. Account `n` gets its token at second `n`, and spends it at once: this
/// is the worst case, in which the observer knows the order of arrival.
fn deliver(random: &mut Random) -> Vec<Vec<usize>> {
    let mut batch = Batch::new(BATCH, WAIT);
    let mut accounts = HashMap::new();
    let mut delivered = Vec::new();
    for account in 0..SUBMISSIONS {
        let now = account as i64 * 1000;
        let id = random.id();
        accounts.insert(id, account);
        batch.join(member(id), now);
        if let Some(mut members) = batch.poll_ended() {
            // The store orders the submissions of one time by their identifiers.
            members.sort();
            delivered.push(members.iter().map(|it| accounts[&it.id]).collect());
        }
    }
    delivered
}

#[test]
fn joined_logs_link_no_better_than_chance() {
    let mut random = Random(0x5eed);
    let delivered = deliver(&mut random);
    assert_eq!(delivered.len(), SUBMISSIONS / BATCH);
    // The observer knows the accounts of each batch, and guesses that the order is kept, that it is
    // reversed, or that the n-th account has a certain place.
    let guesses: [fn(usize) -> usize; 3] = [
        |place| place,
        |place| BATCH - 1 - place,
        |place| (place * 7 + 3) % BATCH,
    ];
    let chance = 1.0 / BATCH as f64;
    let noise = 3.0 * (chance * (1.0 - chance) / SUBMISSIONS as f64).sqrt();
    for guess in guesses {
        let mut right = 0;
        for batch in &delivered {
            let mut arrived = batch.clone();
            arrived.sort_unstable();
            let hits = batch.iter().enumerate();
            right += hits
                .filter(|(place, account)| arrived[guess(*place)] == **account)
                .count();
        }
        let rate = right as f64 / SUBMISSIONS as f64;
        assert!(
            (rate - chance).abs() <= noise,
            "{rate} of {chance} ± {noise}"
        );
    }
}

#[test]
fn delivery_in_order_of_arrival_would_link() {
    // The same observer succeeds without the random order, so the test above can fail.
    let mut batch = Batch::new(BATCH, WAIT);
    let mut random = Random(0x5eed);
    let mut right = 0;
    let mut arrived = Vec::new();
    for account in 0..SUBMISSIONS {
        let now = account as i64 * 1000;
        let id = random.id();
        arrived.push(id);
        batch.join(member(id), now);
        if let Some(members) = batch.poll_ended() {
            right += members
                .iter()
                .zip(&arrived)
                .filter(|(one, other)| one.id == **other)
                .count();
            arrived.clear();
        }
    }
    assert_eq!(right, SUBMISSIONS);
}
