//! The reports of one session, and the companion that carries them.
//!
//! The companion is opened with the request for a page, or when the gateway says that it pushes. It
//! ends after the session has been silent for a while, so that an idle session sends nothing.

use std::time::{Duration, Instant};

use crate::wire::{Fate, Report};

/// The time for which reports are gathered.
const GATHER: Duration = Duration::from_millis(250);

/// The silence after which a companion ends: no other exchange, and no report.
const QUIET: Duration = Duration::from_secs(15);

/// The largest number of bytes of reports that wait for a companion. Later reports are dropped. The
/// gateway then gives held pushes up after some seconds.
const MAX_WAITING: usize = 64 << 10;

/// The next step of a companion's body.
#[derive(Debug, PartialEq, Eq)]
pub enum ReportStep {
    /// Send these reports.
    Send(Vec<u8>),
    /// The queue sends no report before this time, unless [`ReportQueue::is_urgent`] becomes true.
    Wait(Instant),
    /// End the body.
    Finish,
}

/// The companion of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CompanionState {
    /// No companion is open.
    Closed,
    /// A companion is open.
    Open {
        next_step: Instant,
        quiet_since: Instant,
    },
    /// The body has ended at this time; the response may go on.
    Finished(Instant),
    /// The gateway does not support companions.
    Refused,
}

/// The reports that wait to be sent.
#[derive(Debug)]
pub struct ReportQueue {
    waiting: Vec<u8>,
    is_urgent: bool,
    companion: CompanionState,
}

impl ReportQueue {
    /// Creates a queue that begins with encoded reports on earlier sessions.
    pub const fn new(digest: Vec<u8>) -> Self {
        Self {
            waiting: digest,
            is_urgent: false,
            companion: CompanionState::Closed,
        }
    }

    /// Adds the outcome of a push. A late outcome is urgent, because some protocols cannot raise a
    /// push by themselves. After a validation the gateway must not send the body.
    ///
    /// `cookies` is the hash of the cookies of the request that takes the push, unless they are
    /// known to fit.
    pub fn push(&mut self, fate: Fate, url: u32, cookies: Option<u32>) {
        if self.waiting.len() < MAX_WAITING {
            let report = match cookies {
                Some(cookies) => Report::Claimed { fate, url, cookies },
                None => Report::Became(fate, url),
            };
            report.encode(&mut self.waiting);
        }
        self.is_urgent |= matches!(fate, Fate::Late | Fate::Validated);
    }

    /// Makes the waiting reports urgent.
    pub const fn hurry(&mut self) {
        self.is_urgent = true;
    }

    /// Returns whether a report must be sent at once.
    pub const fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    /// Decides whether a companion is to be opened now: none is open, and the gateway refused none.
    pub fn open_companion(&mut self, now: Instant) -> bool {
        if self.companion != CompanionState::Closed {
            return false;
        }
        self.companion = CompanionState::Open {
            next_step: now,
            quiet_since: now,
        };
        true
    }

    /// Handles the end of the companion's exchange. If `was_accepted` is true, the gateway answered
    /// it as a companion, and another may be opened.
    pub fn on_companion_end(&mut self, was_accepted: bool) {
        self.companion = match was_accepted {
            true => CompanionState::Closed,
            false => CompanionState::Refused,
        };
    }

    /// Decides the next step of the companion's body. `is_busy` is true if the session has other
    /// exchanges, and `is_over` if it has ended.
    pub fn step(&mut self, now: Instant, is_busy: bool, is_over: bool) -> ReportStep {
        let CompanionState::Open {
            next_step,
            quiet_since,
        } = self.companion
        else {
            return ReportStep::Finish;
        };
        if now < next_step && !self.is_urgent && !is_over {
            return ReportStep::Wait(next_step);
        }
        self.is_urgent = false;
        let waiting = std::mem::take(&mut self.waiting);
        let is_quiet = !is_busy && waiting.is_empty();
        let quiet_since = if is_quiet { quiet_since } else { now };
        let next_step = now + GATHER;
        if is_over || now.saturating_duration_since(quiet_since) >= QUIET {
            self.companion = CompanionState::Finished(now);
        } else {
            self.companion = CompanionState::Open {
                next_step,
                quiet_since,
            };
        }
        match (waiting.is_empty(), self.companion) {
            (false, _) => ReportStep::Send(waiting),
            (true, CompanionState::Finished(_)) => ReportStep::Finish,
            (true, _) => ReportStep::Wait(next_step),
        }
    }

    /// Returns whether the gateway should have ended its response by now, since the body ended long
    /// ago.
    pub fn is_response_overdue(&self, now: Instant) -> bool {
        matches!(self.companion, CompanionState::Finished(at)
            if now.saturating_duration_since(at) >= QUIET)
    }

    /// Returns the time after which the caller checks [`ReportQueue::is_response_overdue`].
    pub const fn response_timeout() -> Duration {
        QUIET
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ReportReader;

    fn read(bytes: &[u8]) -> Vec<Report> {
        let mut read = Vec::new();
        ReportReader::default().read(bytes, |report| read.push(report));
        read
    }

    #[test]
    fn companion_opens_once_until_it_ended() {
        let now = Instant::now();
        let mut queue = ReportQueue::new(Vec::new());
        assert!(queue.open_companion(now) && !queue.open_companion(now));
        queue.on_companion_end(true);
        assert!(queue.open_companion(now));
        queue.on_companion_end(false);
        assert!(!queue.open_companion(now), "the gateway knows none");
    }

    #[test]
    fn reports_are_gathered_unless_urgent() {
        let start = Instant::now();
        let mut queue = ReportQueue::new(vec![16, 0, 0, 0, 9]);
        queue.open_companion(start);
        assert_eq!(
            queue.step(start, true, false),
            ReportStep::Send(vec![16, 0, 0, 0, 9])
        );
        queue.push(Fate::Used, 1, None);
        queue.push(Fate::Wasted, 2, None);
        let due = start + GATHER;
        let early = start + Duration::from_millis(1);
        assert_eq!(queue.step(early, true, false), ReportStep::Wait(due));
        let ReportStep::Send(sent) = queue.step(due, true, false) else {
            panic!("nothing was sent");
        };
        let expected = [(Fate::Used, 1), (Fate::Wasted, 2)];
        assert_eq!(
            read(&sent),
            expected.map(|(fate, url)| Report::Became(fate, url))
        );
        queue.push(Fate::Late, 3, None);
        assert!(queue.is_urgent());
        let ReportStep::Send(sent) = queue.step(due, true, false) else {
            panic!("nothing was sent");
        };
        assert_eq!(read(&sent), [Report::Became(Fate::Late, 3)]);
        assert!(!queue.is_urgent());
        queue.push(Fate::Used, 4, None);
        queue.hurry();
        assert!(matches!(queue.step(due, true, false), ReportStep::Send(_)));
    }

    #[test]
    fn companion_finishes_after_a_silence() {
        let start = Instant::now();
        let mut queue = ReportQueue::new(Vec::new());
        queue.open_companion(start);
        let mut now = start;
        let mut steps = 0;
        while let ReportStep::Wait(until) = queue.step(now, steps < 4, false) {
            now = until;
            steps += 1;
        }
        // The session was busy for the first four steps.
        assert_eq!(now - start, QUIET + 3 * GATHER);
        assert_eq!(queue.step(now, true, false), ReportStep::Finish);
        let timeout = ReportQueue::response_timeout();
        let nearly = now + timeout - Duration::from_millis(1);
        assert!(!queue.is_response_overdue(nearly) && queue.is_response_overdue(now + timeout));
    }

    #[test]
    fn queue_sends_waiting_reports_at_session_end() {
        let start = Instant::now();
        let mut queue = ReportQueue::new(Vec::new());
        queue.open_companion(start);
        queue.step(start, true, false);
        queue.push(Fate::Wasted, 1, None);
        assert!(matches!(queue.step(start, true, true), ReportStep::Send(_)));
        assert_eq!(queue.step(start, true, true), ReportStep::Finish);
    }

    #[test]
    fn queue_is_bounded_without_a_companion() {
        let mut queue = ReportQueue::new(vec![0; MAX_WAITING % 5]);
        for url in 0..1_000_000 {
            queue.push(Fate::Wasted, url, None);
        }
        assert_eq!(queue.waiting.len(), MAX_WAITING);
        assert!(!queue.is_urgent());
        queue.push(Fate::Validated, 0, None);
        queue.push(Fate::Used, 0, None);
        assert!(
            queue.is_urgent(),
            "the outcomes count, though they are dropped"
        );
    }
}
