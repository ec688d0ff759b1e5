//! A memory of tunnels that failed after the browser had received a successful response. The next
//! attempt waits for the gateway's response and shows the reason.

use std::time::Duration;

use crate::exchange::Isolation;
use crate::expiring::ExpiringSet;

/// The time for which a failure is remembered.
const MEMORY: Duration = Duration::from_secs(60);

/// The largest number of remembered failures.
const MAX_FAILURES: usize = 256;

/// The failures by isolation key and authority.
#[derive(Debug, Default)]
pub(super) struct Failures(ExpiringSet<(Isolation, String), MAX_FAILURES>);

impl Failures {
    pub(super) fn note(&self, isolation: &Isolation, authority: &str) {
        self.0
            .insert((isolation.clone(), authority.to_owned()), MEMORY);
    }

    pub(super) fn contains(&self, isolation: &Isolation, authority: &str) -> bool {
        self.0
            .contains(|| (isolation.clone(), authority.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_belong_to_one_isolation_key() {
        let failures = Failures::default();
        let (none, other) = (Isolation::none(), Isolation::new(b"a", b"b"));
        failures.note(&none, "site.example:443");
        assert!(failures.contains(&none, "site.example:443"));
        assert!(!failures.contains(&other, "site.example:443"));
        assert!(!failures.contains(&none, "other.example:443"));
    }
}
