//! The counters of a client around the load of one page.

use serde::Serialize;

use crate::tornet::client::counter;

/// The counters of a client during the load of one page. Without a gateway, an early request counts
/// as a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pushes {
    /// Visits of other users that the gateway had seen before.
    pub visits_before: usize,
    /// Pushes that arrived, or early requests.
    pub received: u64,
    /// Pushes that were complete when the browser requested them.
    pub used: u64,
    /// Pushes that were still arriving when the browser requested them.
    pub late: u64,
    /// Bytes of their bodies.
    pub bytes_received: u64,
    /// Bytes of those that answered a request.
    pub bytes_used: u64,
    /// Bytes of bodies that the browser got, pushed or not.
    pub body_bytes: u64,
}

impl Pushes {
    /// From a client's counters before and after.
    pub(super) fn between(before: &str, after: &str, visits_before: usize) -> Self {
        let total = |name: &str| {
            let name = format!("tandem_{name}_total");
            counter(after, &name).saturating_sub(counter(before, &name))
        };
        // A client without a gateway makes the requests itself, and some promises end without one.
        let requests = total("push_requests");
        let received = match requests {
            0 => total("pushes_received"),
            _ => requests,
        };
        Self {
            visits_before,
            received,
            used: total("pushes_used"),
            late: total("pushes_late"),
            bytes_received: total("push_bytes_received"),
            bytes_used: total("push_bytes_used"),
            body_bytes: total("body_bytes_down"),
        }
    }

    /// Returns the number of those that no request took.
    pub const fn unused(self) -> u64 {
        self.received
            .saturating_sub(self.used.saturating_add(self.late))
    }

    /// Returns the bytes of unrequested bodies.
    pub const fn wasted(self) -> u64 {
        self.bytes_received.saturating_sub(self.bytes_used)
    }

    /// Their share of all bytes of bodies that came.
    pub fn waste(self) -> f64 {
        let all = self.body_bytes + self.wasted();
        if all == 0 {
            0.0
        } else {
            self.wasted() as f64 / all as f64
        }
    }
}

/// Returns the counters that have grown, with the differences, a line for each.
pub(super) fn changed_counters(before: &str, after: &str) -> String {
    let names = after.lines().filter_map(|line| line.split_once(' '));
    let names = names
        .map(|(name, _)| name)
        .filter(|name| name.ends_with("_total"));
    let grown = |name: &str| counter(after, name).saturating_sub(counter(before, name));
    names
        .map(|name| (name, grown(name)))
        .filter(|(_, grown)| *grown > 0)
        .map(|(name, grown)| format!("{name} {grown}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grown_counters_are_listed() {
        let before = "# TYPE a_total counter\na_total 3\nb_total 1\nc 1\n";
        let after = "# TYPE a_total counter\na_total 5\nb_total 1\nc 9\nd_total 2\n";
        assert_eq!(changed_counters(before, after), "a_total 2\nd_total 2\n");
    }

    #[test]
    fn waste_is_a_share_of_all_that_came() {
        let text = "tandem_push_bytes_received_total 900\ntandem_push_bytes_used_total 800\n\
                    tandem_body_bytes_down_total 1900\n";
        let pushes = Pushes::between("tandem_push_bytes_used_total 0\n", text, 4);
        assert_eq!((pushes.wasted(), pushes.visits_before), (100, 4));
        assert!((pushes.waste() - 0.05).abs() < 1e-12);
        let pushes = Pushes {
            received: 9,
            used: 4,
            late: 3,
            ..pushes
        };
        assert_eq!(pushes.unused(), 2);
        let early = "tandem_pushes_received_total 9\ntandem_push_requests_total 7\n";
        assert_eq!(Pushes::between("", early, 0).received, 7);
        assert_eq!(Pushes::between(text, text, 4).waste(), 0.0);
    }
}
