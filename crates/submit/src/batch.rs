//! Batches: the gateway delivers the submissions of several clients together and in random order.
//!
//! A batch ends when it has `size` submissions, or when `wait` has passed since its first one. The
//! caller then releases it: the store gives all of them one time, and delivers those of one time in
//! the order of their random identifiers.
//!
//! Each submission is stored with a later time of delivery (see [`due`]). A crash thus neither
//! loses nor hastens it.

use std::collections::VecDeque;

use crate::store::{BATCH_RESERVE, Lease, Millis};

/// The batch that collects submissions at present, and those that have ended.
#[derive(Debug)]
pub struct Batch {
    size: usize,
    wait: Millis,
    open: Option<Open>,
    ended: VecDeque<Vec<Lease>>,
}

#[derive(Debug)]
struct Open {
    end: Millis,
    members: Vec<Lease>,
}

/// Returns the time at which a submission is due that no gateway has released.
pub fn due(arrived: Millis, wait: Millis) -> Millis {
    arrived.saturating_add(wait).saturating_add(BATCH_RESERVE)
}

impl Batch {
    /// Collects up to `size` submissions, at least one, for `wait` milliseconds.
    pub fn new(size: usize, wait: Millis) -> Self {
        Self {
            size: size.max(1),
            wait: wait.max(0),
            open: None,
            ended: VecDeque::new(),
        }
    }

    /// Adds a stored submission to the present batch, and begins one if there is none.
    pub fn join(&mut self, member: Lease, now: Millis) {
        self.handle_timeout(now);
        let end = now.saturating_add(self.wait);
        let open = self.open.get_or_insert_with(|| Open {
            end,
            members: Vec::new(),
        });
        // The clock may have been set back.
        open.end = open.end.min(end);
        open.members.push(member);
        let size = self.size;
        let full = self.open.take_if(|open| open.members.len() >= size);
        self.ended.extend(full.map(|open| open.members));
    }

    /// Ends the batch if its time has passed.
    pub fn handle_timeout(&mut self, now: Millis) {
        let late = self.open.take_if(|open| open.end <= now);
        self.ended.extend(late.map(|open| open.members));
    }

    /// Returns the members of a batch that has ended, once.
    pub fn poll_ended(&mut self) -> Option<Vec<Lease>> {
        self.ended.pop_front()
    }

    /// Takes a batch back after its release has failed.
    pub fn put_back(&mut self, members: Vec<Lease>) {
        self.ended.push_front(members);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::submission::SubmissionId;

    fn member(number: u8) -> Lease {
        Lease {
            id: SubmissionId([number; 16]),
            end: due(0, 100),
        }
    }

    #[test]
    fn batch_ends_with_its_last_member() {
        let mut batch = Batch::new(2, 100);
        batch.join(member(1), 10);
        assert_eq!(batch.poll_ended(), None);
        batch.join(member(2), 60);
        let both = vec![member(1), member(2)];
        assert_eq!(batch.poll_ended(), Some(both.clone()));
        assert_eq!(batch.poll_ended(), None);
        batch.put_back(both.clone());
        assert_eq!(batch.poll_ended(), Some(both));
    }

    #[test]
    fn batch_ends_with_its_time() {
        let mut batch = Batch::new(9, 100);
        batch.join(member(1), 0);
        batch.join(member(2), 50);
        batch.handle_timeout(99);
        assert_eq!(batch.poll_ended(), None);
        batch.join(member(3), 100);
        assert_eq!(batch.poll_ended(), Some(vec![member(1), member(2)]));
        batch.handle_timeout(200);
        assert_eq!(batch.poll_ended(), Some(vec![member(3)]));
    }

    proptest! {
        #[test]
        fn batches_hold_each_member_once_and_in_time(
            size in 1_usize..6, steps in proptest::collection::vec(0_i64..80, 1..50)
        ) {
            let (mut batch, mut now) = (Batch::new(size, 100), 0);
            let (mut joined, mut released) = (Vec::new(), Vec::new());
            for (number, step) in steps.into_iter().enumerate() {
                now += step;
                batch.join(member(number as u8), now);
                joined.push((member(number as u8), now));
                while let Some(members) = batch.poll_ended() {
                    prop_assert!(!members.is_empty() && members.len() <= size);
                    released.extend(members);
                }
                for (member, at) in &joined {
                    prop_assert!(released.contains(member) || now < at + 100);
                }
            }
            batch.handle_timeout(now + 100);
            while let Some(members) = batch.poll_ended() {
                released.extend(members);
            }
            let joined: Vec<_> = joined.into_iter().map(|(member, _)| member).collect();
            prop_assert_eq!(released, joined);
        }
    }
}
