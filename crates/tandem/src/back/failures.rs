//! A memory of tunnels that failed after the browser had received a successful response. The next
//! attempt waits for the gateway's response and shows the reason.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::exchange::Isolation;

/// The time for which a failure is remembered.
const MEMORY: Duration = Duration::from_secs(60);

/// The largest number of remembered failures. The oldest is forgotten first.
const MAX_FAILURES: usize = 256;

/// The failures by isolation key and authority.
#[derive(Debug, Default)]
pub(super) struct Failures(RefCell<HashMap<(Isolation, String), Instant>>);

impl Failures {
    pub(super) fn note(&self, isolation: &Isolation, authority: &str) {
        let now = Instant::now();
        let mut failures = self.0.borrow_mut();
        failures.retain(|_, at| now - *at < MEMORY);
        if failures.len() >= MAX_FAILURES {
            let oldest = failures.iter().min_by_key(|(_, at)| **at);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                failures.remove(&oldest);
            }
        }
        failures.insert((isolation.clone(), authority.to_owned()), now);
    }

    pub(super) fn contains(&self, isolation: &Isolation, authority: &str) -> bool {
        let failures = self.0.borrow();
        if failures.is_empty() {
            return false;
        }
        failures
            .get(&(isolation.clone(), authority.to_owned()))
            .is_some_and(|at| at.elapsed() < MEMORY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_bounded_and_isolated() {
        let failures = Failures::default();
        let (none, other) = (Isolation::none(), Isolation::new(b"a", b"b"));
        for number in 0..2 * MAX_FAILURES {
            failures.note(&none, &format!("site{number}.example:443"));
        }
        assert_eq!(failures.0.borrow().len(), MAX_FAILURES);
        let last = format!("site{}.example:443", 2 * MAX_FAILURES - 1);
        assert!(failures.contains(&none, &last));
        assert!(!failures.contains(&other, &last));
        assert!(!failures.contains(&none, "site0.example:443"));
    }
}
