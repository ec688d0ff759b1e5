//! Counters of the process, written in Prometheus' text format (version 0.0.4). They hold numbers
//! only, never names.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// One number.
#[derive(Debug, Default)]
pub struct Metric(AtomicU64);

impl Metric {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Counts up.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts down; for those that show a state.
    pub fn sub(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    /// The number now.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! metrics {
    ($($name:ident $kind:literal $help:literal;)*) => {
        /// All counters.
        #[derive(Debug)]
        #[expect(missing_docs, reason = "each is described by its help text")]
        pub struct Metrics { $(pub $name: Metric,)* }

        /// The process's counters.
        pub static METRICS: Metrics = Metrics { $($name: Metric::new(),)* };

        impl Metrics {
            /// The values of all counters by name.
            pub fn values(&self) -> BTreeMap<String, u64> {
                BTreeMap::from([$((stringify!($name).to_owned(), self.$name.value()),)*])
            }

            /// All of them as text.
            pub fn render(&self) -> String {
                let mut text = String::new();
                $({
                    let name = if $kind == "counter" { concat!("tandem_", stringify!($name), "_total") } else { concat!("tandem_", stringify!($name)) };
                    // Writing to a string cannot fail.
                    let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {}\n{name} {}", $help, $kind, self.$name.value());
                })*
                text
            }
        }
    };
}

metrics! {
    connections "counter" "Connections accepted.";
    connections_open "gauge" "Connections open now.";
    connections_refused "counter" "Connections refused because too many were open.";
    exchanges "counter" "Requests taken in.";
    exchanges_open "gauge" "Requests under way.";
    exchanges_failed "counter" "Requests that ended with an error of the proxy's own.";
    exchanges_retried "counter" "Requests sent again because they surely had not been processed, or safely could be.";
    body_bytes_down "counter" "Bytes of response bodies passed on.";
    sessions_opened "counter" "Sessions opened to the gateway.";
    sessions_failed "counter" "Sessions that could not be opened.";
    sessions_lost "counter" "Sessions that gave no sign of life after a rest, and were replaced.";
    sessions_rotated "counter" "Sessions replaced because of their age.";
    origin_connections "counter" "Connections opened to origins.";
    origin_reused "counter" "Requests sent on a kept connection to an origin.";
    destinations_refused "counter" "Destinations refused by policy.";
    unauthorized "counter" "Requests refused for want of an access token.";
    warm_up_bytes "counter" "Gateway: bytes of nothing sent to open the congestion windows of new sessions.";
    pushes_promised "counter" "Gateway: resources that it offered to push.";
    push_bytes_sent "counter" "Gateway: bytes of bodies that were fetched to be pushed.";
    pages_pushed "counter" "Gateway: pages sent with what they need.";
    pages_held_out "counter" "Gateway: pages sent without, to see what difference it makes.";
    pushes_received "counter" "Client: pushes that arrived.";
    push_bytes_received "counter" "Client: bytes of their bodies.";
    pushes_used "counter" "Pushes that were there when they were asked for.";
    pushes_late "counter" "Pushes that were asked for while they were under way.";
    pushes_wasted "counter" "Pushes that nobody asked for in time, or that could not be kept.";
    pushes_cancelled "counter" "Pushes that broke off, were refused, or did not fit what was asked for.";
    push_bytes_used "counter" "Client: bytes of bodies that answered a request.";
    push_bytes_wasted "counter" "Client: bytes of bodies that did not.";
    round_trips_saved "counter" "Client: requests that did not have to cross the slow path.";
    loads_pushed "counter" "Client: page loads with push that were timed to their end.";
    loads_pushed_ms "counter" "Client: their milliseconds in all.";
    loads_pushed_ms_squared "counter" "Client: the sum of the squares of their milliseconds.";
    loads_held_out "counter" "Client: page loads without push, for comparison.";
    loads_held_out_ms "counter" "Client: their milliseconds in all.";
    loads_held_out_ms_squared "counter" "Client: the sum of the squares of their milliseconds.";
    fallbacks "counter" "Requests sent without the gateway because the user asked for it.";
}

#[cfg(test)]
mod tests {
    #[test]
    fn is_prometheus_text() {
        let text = super::METRICS.render();
        assert!(
            text.contains("# TYPE tandem_connections_total counter\ntandem_connections_total ")
        );
        assert!(
            text.lines()
                .all(|line| line.starts_with('#') || line.split(' ').count() == 2)
        );
    }
}
