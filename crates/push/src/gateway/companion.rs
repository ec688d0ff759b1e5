//! The companion of a session, and the promises that wait for one.
//!
//! A promise that is made before the first companion opens, or between two of them, waits for the
//! next. Reports arrive in pieces, and an incomplete one ends with its companion.

use std::collections::VecDeque;

use super::page::{MAX_RESOURCES, Promise};
use crate::wire::{Report, ReportReader};

/// The companion of a session.
#[derive(Default)]
pub(super) struct Companion {
    opening: Opening,
    takes_checks: bool,
    takes_conditional_checks: bool,
    takes_references: bool,
    takes_second_references: bool,
    reader: ReportReader,
    promises: VecDeque<Promise>,
    /// The promises that were added while a companion was open.
    added: u64,
}

/// The presence of a companion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Opening {
    /// The session has had none.
    #[default]
    Never,
    /// A companion is open.
    Open,
    /// The last one has closed.
    Closed,
}

impl Companion {
    /// Creates the record of a session without a companion. If `takes_checks` is true, its client
    /// is known to take promises of HEAD.
    pub(super) fn new(takes_checks: bool) -> Self {
        Self {
            takes_checks,
            ..Self::default()
        }
    }

    /// Opens a companion, unless one is open. Returns whether it was opened.
    pub(super) fn open(&mut self, takes_checks: bool) -> bool {
        if self.is_open() {
            return false;
        }
        self.opening = Opening::Open;
        self.takes_checks = takes_checks;
        self.reader = ReportReader::default();
        true
    }

    /// Closes the companion.
    pub(super) fn close(&mut self) {
        if self.is_open() {
            self.opening = Opening::Closed;
        }
    }

    /// Returns whether a companion is open.
    pub(super) fn is_open(&self) -> bool {
        self.opening == Opening::Open
    }

    /// Returns whether the session has had a companion. Its client then reports.
    pub(super) fn client_reports(&self) -> bool {
        self.opening != Opening::Never
    }

    /// Returns whether the client takes promises of HEAD.
    pub(super) const fn takes_checks(&self) -> bool {
        self.takes_checks
    }

    /// Notes that the client takes promises of conditional requests.
    pub(super) const fn allow_conditional_checks(&mut self) {
        self.takes_conditional_checks = true;
    }

    /// Returns whether the client takes promises of conditional requests.
    pub(super) const fn takes_conditional_checks(&self) -> bool {
        self.takes_conditional_checks
    }

    /// Notes that the client gives a push to a request that is answered with a reference to it.
    pub(super) const fn allow_references(&mut self) {
        self.takes_references = true;
    }

    /// Notes that the client gives one push to several such requests.
    pub(super) const fn allow_second_references(&mut self) {
        self.takes_second_references = true;
    }

    /// Returns whether a request may be answered with a reference to a push.
    pub(super) const fn takes_references(&self) -> bool {
        self.takes_references
    }

    /// Returns whether several requests may be referred to one push.
    pub(super) const fn takes_second_references(&self) -> bool {
        self.takes_second_references
    }

    /// Reads bytes of the companion's body. Returns the reports that they complete.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Vec<Report> {
        let mut reports = Vec::new();
        self.reader.read(bytes, |report| reports.push(report));
        reports
    }

    /// Returns whether another promise may wait.
    pub(super) fn has_room(&self) -> bool {
        self.promises.len() < MAX_RESOURCES
    }

    /// Adds a promise. Returns whether a companion is open that takes it.
    pub(super) fn add(&mut self, promise: Promise) -> bool {
        self.promises.push_back(promise);
        self.added += u64::from(self.is_open());
        self.is_open()
    }

    /// Returns the number of promises that were added while a companion was open.
    pub(super) const fn added(&self) -> u64 {
        self.added
    }

    /// Returns whether promises wait.
    pub(super) fn has_promises(&self) -> bool {
        !self.promises.is_empty()
    }

    /// Takes the promise that has waited for longest.
    pub(super) fn take_promise(&mut self) -> Option<Promise> {
        self.promises.pop_front()
    }

    /// Takes all promises.
    pub(super) fn take_promises(&mut self) -> VecDeque<Promise> {
        std::mem::take(&mut self.promises)
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::{Priority, RequestHead, Scheme};

    use super::super::table::FetchId;
    use super::*;
    use crate::wire::Fate;

    fn promise(number: u64) -> Promise {
        Promise {
            fetch: FetchId::from(number),
            request: RequestHead::get(Scheme::Http, "a.test", "/"),
            priority: Priority(4),
        }
    }

    #[test]
    fn companion_opens_once_at_a_time() {
        let mut companion = Companion::new(true);
        companion.close();
        assert!(!companion.is_open() && !companion.client_reports());
        assert!(companion.takes_checks(), "the client is known");
        assert!(companion.open(false) && !companion.open(true));
        assert!(companion.is_open() && companion.client_reports());
        assert!(!companion.takes_checks(), "the companion says so");
        companion.close();
        assert!(!companion.is_open() && companion.client_reports());
        assert!(companion.open(true) && companion.takes_checks());
    }

    #[test]
    fn promises_wait_for_a_companion_in_order() {
        let mut companion = Companion::default();
        assert!(!companion.add(promise(1)), "none is open");
        assert_eq!(companion.added(), 0);
        assert!(companion.open(false));
        assert!(companion.add(promise(2)));
        assert_eq!(companion.added(), 1);
        companion.close();
        assert!(companion.has_promises());
        let taken = std::iter::from_fn(|| companion.take_promise());
        let taken: Vec<_> = taken.map(|promise| promise.fetch).collect();
        assert_eq!(taken, [FetchId::from(1), FetchId::from(2)]);
        assert!(!companion.has_promises());
    }

    #[test]
    fn waiting_promises_are_bounded() {
        let mut companion = Companion::default();
        let mut count = 0;
        while companion.has_room() {
            companion.add(promise(count));
            count += 1;
        }
        assert_eq!(count, MAX_RESOURCES as u64);
        assert_eq!(companion.take_promises().len(), MAX_RESOURCES);
        assert!(companion.has_room());
    }

    #[test]
    fn incomplete_report_ends_with_its_companion() {
        let mut companion = Companion::default();
        assert!(companion.open(false));
        let mut bytes = Vec::new();
        Report::Became(Fate::Used, 7).encode(&mut bytes);
        let (first, rest) = bytes.split_at(2);
        assert!(companion.read(first).is_empty());
        assert_eq!(companion.read(rest), [Report::Became(Fate::Used, 7)]);
        assert!(companion.read(first).is_empty());
        companion.close();
        assert!(companion.open(false));
        assert_eq!(companion.read(&bytes), [Report::Became(Fate::Used, 7)]);
    }

    #[test]
    fn companion_keeps_both_permissions_for_references() {
        let mut companion = Companion::default();
        assert!(!companion.takes_references() && !companion.takes_second_references());
        companion.allow_references();
        assert!(companion.takes_references() && !companion.takes_second_references());
        companion.allow_second_references();
        assert!(companion.takes_references() && companion.takes_second_references());
    }
}
