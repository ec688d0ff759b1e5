//! A budget for frames that cost work and move no data (RFC 9113 section 10.5), for both ends of a
//! session of HTTP/2, HTTP/3 or SPDY.
//!
//! A session core charges each such frame, credits useful work and asks [`FloodBudget::check`]
//! after each frame. The budget consists of two balances:
//!
//! ```text
//!   time, completed exchanges ──▶ reserve ◀─ resets, refusals, faults, frames of dead streams,
//!                                    ▲       heads beyond their limit, large pushed heads
//!                                    │ once `earned` is empty
//!   data, completed exchanges ──▶ earned ◀─ PING, SETTINGS, WINDOW_UPDATE, empty DATA, pushes, …
//! ```
//!
//! Data never pays for a stream that the peer abandons or makes us abandon. Otherwise the body of a
//! request would buy its reset, as in CVE-2023-44487 (rapid reset) and CVE-2025-8671
//! (MadeYouReset). Data pays for WINDOW_UPDATE and PING because receivers send those in proportion
//! to it.
//!
//! DATA with content is never charged, however short. A byte of content costs its sender ten bytes,
//! and an origin that writes single bytes would otherwise end a session that others use.

use std::time::{Duration, Instant};

use crate::{Reason, SessionError};

/// The cost of a frame that moves no data, in bytes of data that pay for it.
const FRAME: u64 = 1024;
/// The cost of a DATA frame of at least [`FRAME`] bytes on a stream that we have reset. A path of
/// 5 MiB holds 4,032 frames of 1,300 bytes when a large download is cancelled, and all of them
/// must pass.
const LATE_DATA: u64 = FRAME / 3;
/// The cost of a shorter DATA frame on a stream that we have reset.
const LATE_SHORT_DATA: u64 = FRAME / 2;
/// The number of inflated bytes, beyond the limit of a head, that cost as much as one byte that
/// pays. With a limit of 64 KiB, a head of 80 KiB costs one frame more, and one of 1 MiB 60 more.
const EXCESS: u64 = 16;
/// The cost of the end of a push. The content of the push earns as much and more, unless it is very
/// short. A page with 1,315 pushed validators costs a third of the reserve.
const PUSH: u64 = FRAME * 3 / 8;
/// The bytes of a pushed head that cost nothing. Each further [`EXCESS`] bytes cost one: 27 MiB of
/// heads end a session. Header compression turns a few bytes of wire into heads of 64 KiB.
const ORDINARY_HEAD: usize = 4 << 10;
/// The size of the reserve. A browser that leaves a page with 1,300 images resets as many streams
/// at once; three frames of a request for each unit stay below 5,000.
const RESERVE: u64 = 1536 * FRAME;
/// The number of frames in the part of the reserve that a second restores.
pub const RESTORED_PER_SECOND: u64 = 64;
/// The part of the reserve that a second restores.
const RESERVE_PER_SECOND: u64 = RESTORED_PER_SECOND * FRAME;
/// The part of the reserve that a completed exchange restores: one reset for two exchanges.
const RESERVE_PER_EXCHANGE: u64 = FRAME / 2;
/// The largest earned balance. A window of 8 MiB is returned in pieces of 4 KiB while the reserve
/// covers the rest; a flood after a long transfer stays below 5,000 frames.
const EARNED: u64 = 2560 * FRAME;
/// The amount that a completed exchange earns.
const EARNED_PER_EXCHANGE: u64 = 8 * FRAME;
/// The largest number of answers (PING and SETTINGS acknowledgements, RST_STREAM) that wait for
/// the peer to read them.
const MAX_UNSENT: u32 = 1024;
/// The smallest stream window, in bytes, of a receiver. Its credit does not use the sender's
/// budget.
///
/// Both cores return at least a sixteenth of a window at a time, and a WINDOW_UPDATE costs 1,024
/// bytes of sent data. Through smaller windows a session can send only as much as the reserve pays
/// for. A longer transfer ends it with [`Reason::EnhanceYourCalm`], like the data dribble of
/// CVE-2019-9511.
pub const LEAST_WINDOW: u32 = 16 * FRAME as u32;
/// The shortest time for which the reserve is restored.
const TICK: Duration = Duration::from_millis(100);
/// The longest time for which the reserve is restored in one step.
const LONG: Duration = Duration::from_secs(3600);

/// The flood budget of one session. The header of this module explains its rules.
///
/// ```
/// use tandem_http::flood::FloodBudget;
///
/// let mut budget = FloodBudget::new();
/// budget.charge_reset();
/// assert!(budget.check().is_ok());
/// ```
#[derive(Clone, Debug)]
pub struct FloodBudget {
    reserve: u64,
    earned: u64,
    /// The time up to which the reserve has been restored.
    restored: Option<Instant>,
    unsent: u32,
    flaw: Option<&'static str>,
}

impl FloodBudget {
    /// Creates a budget with a full reserve and nothing earned.
    pub const fn new() -> Self {
        Self {
            reserve: RESERVE,
            earned: 0,
            restored: None,
            unsent: 0,
            flaw: None,
        }
    }

    /// Restores the part of the reserve that the time since the last call allows.
    pub fn advance(&mut self, now: Instant) {
        let since = *self.restored.get_or_insert(now);
        let passed = now.saturating_duration_since(since);
        if passed >= TICK {
            let millis = passed.min(LONG).as_millis() as u64;
            self.restored = Some(now);
            self.restore(millis * RESERVE_PER_SECOND / 1000);
        }
    }

    /// Credits `bytes` of content that arrived on a live stream.
    pub fn credit_received(&mut self, bytes: usize) {
        self.earned = self.earned.saturating_add(bytes as u64).min(EARNED);
    }

    /// Credits `bytes` of content that were sent. They count twice because the peer returns them
    /// twice, to the window of the stream and to that of the session.
    pub fn credit_sent(&mut self, bytes: usize) {
        self.credit_received(bytes.saturating_mul(2));
    }

    /// Credits an exchange that a client began and that ran to its end.
    pub fn credit_exchange(&mut self) {
        self.earned = (self.earned + EARNED_PER_EXCHANGE).min(EARNED);
        self.restore(RESERVE_PER_EXCHANGE);
    }

    /// Charges a frame that moves no data on a session or on a live stream.
    pub fn charge_idle(&mut self) {
        self.spend_earned(FRAME);
    }

    /// Charges the end of a push, for which its content pays. A push without content costs its
    /// sender only the bytes of two compressed heads.
    pub fn charge_push(&mut self) {
        self.spend_earned(PUSH);
    }

    /// Charges the size in bytes of a promise or of the head of a pushed response, if it is larger
    /// than an ordinary one.
    pub fn charge_pushed_head(&mut self, bytes: usize) {
        self.charge_excess(bytes.saturating_sub(ORDINARY_HEAD));
    }

    /// Charges a stream that the peer resets, that we refuse, or that a fault of the peer makes us
    /// reset; and a frame with a header block on a stream that we have reset.
    pub fn charge_reset(&mut self) {
        self.spend(FRAME);
    }

    /// Charges a DATA frame with `len` bytes of payload on a stream that we have reset.
    pub fn charge_late_data(&mut self, len: usize) {
        self.spend(if len as u64 >= FRAME {
            LATE_DATA
        } else {
            LATE_SHORT_DATA
        });
    }

    /// Charges the bytes of a head that were inflated beyond its limit. They are not kept, but must
    /// be inflated, since later heads refer to them.
    pub fn charge_excess(&mut self, bytes: usize) {
        self.spend(bytes as u64 / EXCESS);
    }

    /// Counts a frame of ours that answers one of the peer and waits to be sent.
    pub fn count_answer(&mut self) {
        self.unsent = self.unsent.saturating_add(1);
        if self.unsent > MAX_UNSENT {
            self.flaw
                .get_or_insert("answers to the peer's frames are not read");
        }
    }

    /// Notes that all answers have been handed to the transport.
    pub const fn answers_sent(&mut self) {
        self.unsent = 0;
    }

    /// Returns an error with [`Reason::EnhanceYourCalm`] once a bound has been passed.
    ///
    /// # Errors
    ///
    /// The session must end: the peer sent more than the budget allows, or reads no answers.
    pub fn check(&self) -> Result<(), SessionError> {
        match self.flaw {
            None => Ok(()),
            Some(detail) => Err(SessionError {
                reason: Reason::EnhanceYourCalm,
                detail,
            }),
        }
    }

    fn restore(&mut self, amount: u64) {
        self.reserve = self.reserve.saturating_add(amount).min(RESERVE);
    }

    /// Spends what data has earned, and then from the reserve.
    fn spend_earned(&mut self, cost: u64) {
        let earned = self.earned.min(cost);
        self.earned -= earned;
        self.spend(cost - earned);
    }

    fn spend(&mut self, cost: u64) {
        match self.reserve.checked_sub(cost) {
            Some(left) => self.reserve = left,
            None => {
                self.flaw.get_or_insert("too many frames that move no data");
            }
        }
    }
}

impl Default for FloodBudget {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Counts the calls of `charge` that a copy of `budget` allows.
    fn allowed(budget: &FloodBudget, charge: fn(&mut FloodBudget)) -> u64 {
        let mut budget = budget.clone();
        let mut count = 0;
        loop {
            charge(&mut budget);
            if budget.check().is_err() || count == 5000 {
                return count;
            }
            count += 1;
        }
    }

    #[test]
    fn every_flood_stays_below_5000_frames() {
        let fresh = FloodBudget::new();
        let mut rich = FloodBudget::new();
        rich.credit_received(usize::MAX);
        // A request with a body and its reset are three frames.
        assert_eq!(3 * allowed(&rich, FloodBudget::charge_reset), 4608);
        assert_eq!(allowed(&fresh, FloodBudget::charge_idle), 1536);
        assert_eq!(allowed(&rich, FloodBudget::charge_idle), 4096);
        assert!(allowed(&rich, |budget| budget.charge_late_data(1)) < 5000);
        assert!(allowed(&rich, |budget| budget.charge_late_data(16_384)) < 5000);
    }

    #[test]
    fn excess_of_heads_is_charged_by_its_size() {
        let fresh = FloodBudget::new();
        assert_eq!(allowed(&fresh, |budget| budget.charge_excess(0)), 5000);
        assert_eq!(
            allowed(&fresh, |budget| budget.charge_excess(16 << 10)),
            1536
        );
        assert_eq!(
            allowed(&fresh, |budget| budget.charge_excess(960 << 10)),
            25
        );
    }

    #[test]
    fn pushes_and_their_large_heads_are_charged() {
        let fresh = FloodBudget::new();
        assert_eq!(allowed(&fresh, FloodBudget::charge_push), 4096);
        assert_eq!(
            allowed(&fresh, |budget| budget.charge_pushed_head(4096)),
            5000
        );
        let large = |budget: &mut FloodBudget| budget.charge_pushed_head(64 << 10);
        assert_eq!(allowed(&fresh, large), 409);
        // The content of a push pays for its end, and not for large heads.
        let with_content = |budget: &mut FloodBudget| {
            budget.credit_received(640);
            budget.charge_push();
        };
        assert_eq!(allowed(&fresh, with_content), 5000);
        let mut rich = FloodBudget::new();
        rich.credit_received(usize::MAX);
        assert_eq!(allowed(&rich, large), 409);
    }

    #[test]
    fn data_pays_for_idle_frames_only() {
        let mut budget = FloodBudget::new();
        budget.credit_received(3000);
        assert_eq!(allowed(&budget, FloodBudget::charge_reset), 1536);
        assert_eq!(allowed(&budget, FloodBudget::charge_idle), 1538);
        let late = |budget: &mut FloodBudget| budget.charge_late_data(5);
        assert_eq!(allowed(&budget, late), 3072);
    }

    #[test]
    fn two_exchanges_pay_for_a_reset() {
        let mut budget = FloodBudget::new();
        for _ in 0..1536 {
            budget.charge_reset();
        }
        budget.credit_exchange();
        assert_eq!(allowed(&budget, FloodBudget::charge_reset), 0);
        budget.credit_exchange();
        assert_eq!(allowed(&budget, FloodBudget::charge_reset), 1);
        assert_eq!(allowed(&budget, FloodBudget::charge_idle), 17);
    }

    #[test]
    fn time_restores_the_reserve() {
        let start = Instant::now();
        let mut budget = FloodBudget::new();
        budget.advance(start);
        for _ in 0..1536 {
            budget.charge_idle();
        }
        budget.advance(start + Duration::from_secs(2));
        assert_eq!(allowed(&budget, FloodBudget::charge_reset), 128);
        budget.advance(start + Duration::from_secs(1_000_000));
        assert_eq!(allowed(&budget, FloodBudget::charge_reset), 1536);
    }

    #[test]
    fn unsent_answers_are_bounded() {
        let mut budget = FloodBudget::new();
        for _ in 0..MAX_UNSENT {
            budget.count_answer();
        }
        assert_eq!(budget.check(), Ok(()));
        budget.answers_sent();
        budget.count_answer();
        assert_eq!(budget.check(), Ok(()));
        for _ in 0..MAX_UNSENT {
            budget.count_answer();
        }
        assert!(budget.check().is_err());
    }

    proptest! {
        /// Whatever the order of events, resets are bounded by the reserve, time and exchanges.
        #[test]
        fn resets_are_bounded_by_time_and_exchanges(
            steps in prop::collection::vec((0u8..5, 0u64..3000), 1..400),
        ) {
            let start = Instant::now();
            let (mut budget, mut millis) = (FloodBudget::new(), 0);
            let (mut resets, mut exchanges) = (0, 0);
            budget.advance(start);
            for (step, amount) in steps {
                match step {
                    0 => millis += amount,
                    1 => budget.credit_sent(amount as usize * 1000),
                    2 => {
                        exchanges += 1;
                        budget.credit_exchange();
                    }
                    3 => budget.charge_idle(),
                    _ => {
                        for _ in 0..amount {
                            budget.charge_reset();
                            if budget.check().is_err() {
                                return Ok(());
                            }
                            resets += 1;
                        }
                    }
                }
                budget.advance(start + Duration::from_millis(millis));
                prop_assert!(resets <= 1536 + millis * 64 / 1000 + exchanges / 2 + 1);
            }
        }
    }
}
