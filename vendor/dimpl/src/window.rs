/// The records behind the newest one that a window covers. RFC 9147 section 4.5.1 asks for at least
/// 64; a fast path that reorders needs far more.
const SIZE: u64 = 4096;
const WORDS: usize = (SIZE / 64) as usize;

/// Sliding replay window for DTLS record sequence numbers.
///
/// Maintains the latest accepted sequence number and a ring of bits, one for each of the last
/// [`SIZE`] sequence numbers, to reject duplicates and old records.
///
/// Each epoch should have its own `ReplayWindow` instance. The caller is
/// responsible for routing records to the correct per-epoch window.
#[derive(Debug)]
pub struct ReplayWindow {
    max_seq: u64,
    seen: [u64; WORDS],
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self {
            max_seq: 0,
            seen: [0; WORDS],
        }
    }
}

/// Returns the word and the bit of a sequence number.
fn place(seqno: u64) -> (usize, u64) {
    let index = seqno % SIZE;
    ((index / 64) as usize, 1 << (index % 64))
}

impl ReplayWindow {
    pub fn new() -> Self {
        Self::default()
    }

    /// Check if the given sequence number is acceptable (not a replay, not too old).
    /// Read-only: does not modify the window state.
    pub fn check(&self, seqno: u64) -> bool {
        if seqno > self.max_seq {
            return true;
        }
        if self.max_seq - seqno >= SIZE {
            return false; // too old
        }
        let (word, bit) = place(seqno);
        self.seen[word] & bit == 0 // false if duplicate
    }

    /// Update the window state to record that `seqno` has been received.
    /// Must only be called after the record has been authenticated (decrypted successfully).
    pub fn update(&mut self, seqno: u64) {
        if seqno > self.max_seq {
            if seqno - self.max_seq >= SIZE {
                self.seen = [0; WORDS];
            } else {
                // These numbers enter the window, in the places of those that leave it.
                for entering in self.max_seq + 1..=seqno {
                    let (word, bit) = place(entering);
                    self.seen[word] &= !bit;
                }
            }
            self.max_seq = seqno;
        } else if self.max_seq - seqno >= SIZE {
            return;
        }
        let (word, bit) = place(seqno);
        self.seen[word] |= bit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Helper: check and update in one step (simulates authenticated record).
    fn check_and_update(w: &mut ReplayWindow, seqno: u64) -> bool {
        if w.check(seqno) {
            w.update(seqno);
            true
        } else {
            false
        }
    }

    #[test]
    fn accepts_fresh_and_rejects_duplicate() {
        let mut w = ReplayWindow::new();
        assert!(check_and_update(&mut w, 1));
        assert!(!check_and_update(&mut w, 1)); // duplicate
        assert!(check_and_update(&mut w, 2)); // next fresh
    }

    #[test]
    fn accepts_out_of_order_within_window() {
        let mut w = ReplayWindow::new();
        assert!(check_and_update(&mut w, 10)); // establish max=10
        assert!(check_and_update(&mut w, 8)); // unseen within 64
        assert!(!check_and_update(&mut w, 8)); // duplicate now
        assert!(check_and_update(&mut w, 9)); // unseen within 64
    }

    #[test]
    fn rejects_too_old() {
        let mut w = ReplayWindow::new();
        assert!(check_and_update(&mut w, SIZE + 36));
        // offset = SIZE -> too old
        assert!(!check_and_update(&mut w, 36));
        // offset = SIZE - 1 -> allowed once
        assert!(check_and_update(&mut w, 37));
        assert!(!check_and_update(&mut w, 37));
    }

    #[test]
    fn handles_large_jump_and_window_shift() {
        let mut w = ReplayWindow::new();
        assert!(check_and_update(&mut w, 1));
        // Large forward jump clears the window entirely
        assert!(check_and_update(&mut w, SIZE + 16));
        // Within window of new max and unseen
        assert!(check_and_update(&mut w, SIZE + 15));
        // Too old relative to new max
        assert!(!check_and_update(&mut w, 15));
    }

    #[test]
    fn large_jump_does_not_leave_stale_bits() {
        let mut w = ReplayWindow::new();
        assert!(check_and_update(&mut w, 0));
        // The jump exceeds the window. It must be fully cleared so no stale bits from seq 0 remain.
        assert!(check_and_update(&mut w, 3 * SIZE + 1));
        // This number has the place of seq 0 and was never seen, so it must be accepted.
        assert!(check_and_update(&mut w, 3 * SIZE));
        assert!(!check_and_update(&mut w, 3 * SIZE));
    }

    #[test]
    fn numbers_that_enter_have_no_bits_of_those_that_leave() {
        let mut w = ReplayWindow::new();
        for seqno in 0..2 * SIZE {
            assert!(check_and_update(&mut w, seqno));
        }
        // Every other number of the next round is skipped, and arrives late.
        for seqno in (2 * SIZE..3 * SIZE).step_by(2) {
            assert!(check_and_update(&mut w, seqno));
        }
        for seqno in (2 * SIZE + 1..3 * SIZE - 1).step_by(2) {
            assert!(check_and_update(&mut w, seqno));
            assert!(!check_and_update(&mut w, seqno) && !check_and_update(&mut w, seqno - 1));
        }
    }

    #[test]
    fn check_does_not_modify_window() {
        let mut w = ReplayWindow::new();
        w.update(10);
        // check alone should not change state
        assert!(w.check(11));
        assert!(w.check(11)); // still acceptable because update was never called
        w.update(11);
        assert!(!w.check(11)); // now it's a duplicate
    }

    #[test]
    fn failed_auth_does_not_advance_window() {
        let mut w = ReplayWindow::new();
        w.update(5);
        // Simulate receiving seq 200 that passes check but fails authentication
        assert!(w.check(200));
        // Do NOT call update (authentication failed)
        // Legitimate packet at seq 6 should still be accepted
        assert!(w.check(6));
        w.update(6);
    }
}
