//! Batches: the gateway delivers the submissions of several clients together and in random order.
//!
//! A batch ends when it has `size` submissions, or when `wait` has passed since its first one. Each
//! submission is stored with the end of its batch as the time of its delivery. A crash thus neither
//! loses nor hastens it. The store delivers those with one time in the order of their random
//! identifiers.

use crate::store::Millis;
use crate::submission::SubmissionId;

/// The batch that collects submissions at present.
#[derive(Debug)]
pub struct Batch {
    size: usize,
    wait: Millis,
    open: Option<Open>,
    /// The size of the last batch that time has ended.
    ended: Option<usize>,
}

#[derive(Debug)]
struct Open {
    end: Millis,
    members: Vec<SubmissionId>,
}

/// The decision about a stored submission.
#[derive(Debug, PartialEq, Eq)]
pub enum Joined {
    /// The submission waits for the end of its batch, which is its time of delivery.
    Waits,
    /// Its batch has ended meanwhile. The submission belongs to the next one, which ends then.
    Moved(Millis),
    /// The batch is full. Its submissions are due now.
    Full(Vec<SubmissionId>),
}

impl Batch {
    /// Collects up to `size` submissions, at least one, for `wait` milliseconds.
    pub fn new(size: usize, wait: Millis) -> Self {
        Self {
            size: size.max(1),
            wait: wait.max(0),
            open: None,
            ended: None,
        }
    }

    /// Returns the end of the present batch, and begins one if there is none.
    pub fn end(&mut self, now: Millis) -> Millis {
        self.handle_timeout(now);
        let end = now.saturating_add(self.wait);
        let open = self.open.get_or_insert_with(|| Open {
            end,
            members: Vec::new(),
        });
        // The clock may have been set back.
        open.end = open.end.min(end);
        open.end
    }

    /// Adds a submission that is stored with `due` as its time of delivery.
    pub fn join(&mut self, id: SubmissionId, due: Millis, now: Millis) -> Joined {
        if due <= now {
            return Joined::Waits;
        }
        let end = self.end(now);
        let size = self.size;
        let members = self.open.as_mut().map(|open| &mut open.members);
        let members = members.map(|members| {
            members.push(id);
            (members.len() >= size).then(|| std::mem::take(members))
        });
        match members.flatten() {
            Some(members) => {
                self.open = None;
                Joined::Full(members)
            }
            None if due == end => Joined::Waits,
            None => Joined::Moved(end),
        }
    }

    /// Ends a batch whose time has passed.
    pub fn handle_timeout(&mut self, now: Millis) {
        if let Some(open) = self.open.take_if(|open| open.end <= now)
            && !open.members.is_empty()
        {
            self.ended = Some(open.members.len());
        }
    }

    /// Returns the number of submissions in the last batch that time has ended, once.
    pub fn poll_ended(&mut self) -> Option<usize> {
        self.ended.take()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(number: u8) -> SubmissionId {
        SubmissionId([number; 16])
    }

    #[test]
    fn batch_ends_with_its_last_member() {
        let mut batch = Batch::new(2, 100);
        assert_eq!(batch.end(0), 100);
        assert_eq!(batch.join(id(1), 100, 10), Joined::Waits);
        assert_eq!(batch.end(50), 100);
        assert_eq!(batch.join(id(2), 100, 60), Joined::Full(vec![id(1), id(2)]));
        assert_eq!(batch.end(70), 170);
    }

    #[test]
    fn batch_ends_with_its_time() {
        let mut batch = Batch::new(9, 100);
        assert_eq!(batch.end(0), 100);
        assert_eq!(batch.join(id(1), 100, 0), Joined::Waits);
        assert_eq!(batch.poll_ended(), None);
        assert_eq!(batch.end(100), 200);
        assert_eq!((batch.poll_ended(), batch.poll_ended()), (Some(1), None));
    }

    #[test]
    fn late_submissions_move_to_the_next_batch() {
        let mut batch = Batch::new(1, 100);
        let (first, second) = (batch.end(0), batch.end(1));
        assert_eq!((first, second), (100, 100));
        assert_eq!(batch.join(id(1), first, 2), Joined::Full(vec![id(1)]));
        // The batch of the second one is full. A batch of one releases it at once.
        assert_eq!(batch.join(id(2), second, 3), Joined::Full(vec![id(2)]));
        let mut batch = Batch::new(2, 100);
        let due = batch.end(0);
        batch.join(id(1), due, 0);
        batch.join(id(2), due, 0);
        assert_eq!(batch.join(id(3), due, 50), Joined::Moved(150));
        assert_eq!(batch.join(id(4), due, 120), Joined::Waits);
    }

    proptest! {
        #[test]
        fn batches_never_exceed_their_size(
            size in 1_usize..6, steps in proptest::collection::vec((0_i64..80, any::<bool>()), 1..50)
        ) {
            let (mut batch, mut now) = (Batch::new(size, 100), 0);
            let mut due = 100;
            for (number, (step, renews)) in steps.into_iter().enumerate() {
                now += step;
                if renews {
                    due = batch.end(now);
                    prop_assert!(due > now && due <= now + 100);
                }
                match batch.join(id(number as u8), due, now) {
                    Joined::Full(members) => prop_assert_eq!(members.len(), size),
                    Joined::Moved(end) => prop_assert!(end > now && end != due),
                    Joined::Waits => {}
                }
                if let Some(ended) = batch.poll_ended() {
                    prop_assert!(ended < size);
                }
            }
        }
    }
}
