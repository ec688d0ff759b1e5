//! Counters of the process, written in Prometheus' text format (version 0.0.4). They hold numbers
//! only, and labels of a closed set, never names.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A counter or gauge.
#[derive(Debug, Default)]
pub struct Metric(AtomicU64);

impl Metric {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds to the value.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Subtracts from the value of a gauge.
    pub fn sub(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    /// Sets the value of a gauge.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Returns the present value.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of the same name, distinguished by the value of a label.
#[derive(Debug)]
pub struct Family<const N: usize> {
    values: [&'static str; N],
    counters: [Metric; N],
}

impl<const N: usize> Family<N> {
    const fn new(values: [&'static str; N]) -> Self {
        Self {
            values,
            counters: [const { Metric::new() }; N],
        }
    }

    /// Adds one to the counter with this label value. Other values are ignored.
    pub fn add(&self, value: &str) {
        if let Some(at) = self.values.iter().position(|known| *known == value) {
            self.counters[at].add(1);
        }
    }

    fn render(&self, text: &mut String, name: &str, label: &str, help: &str) {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter");
        for (value, counter) in self.values.iter().zip(&self.counters) {
            let _ = writeln!(text, "{name}{{{label}=\"{value}\"}} {}", counter.value());
        }
    }
}

/// The upper bounds of the histogram's buckets, in milliseconds.
const BOUNDS: [u64; 12] = [
    5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000,
];

/// A histogram of times.
#[derive(Debug)]
pub struct Histogram {
    /// The number of times in each bucket up to its bound, and at last of the longer ones.
    buckets: [Metric; BOUNDS.len() + 1],
    sum_us: Metric,
}

impl Histogram {
    const fn new() -> Self {
        Self {
            buckets: [const { Metric::new() }; BOUNDS.len() + 1],
            sum_us: Metric::new(),
        }
    }

    /// Adds a time.
    pub fn observe(&self, time: Duration) {
        let bucket = BOUNDS
            .iter()
            .position(|bound| time <= Duration::from_millis(*bound))
            .unwrap_or(BOUNDS.len());
        self.buckets[bucket].add(1);
        self.sum_us
            .add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    fn render(&self, text: &mut String, name: &str, help: &str) {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram");
        let mut count = 0;
        for (at, bucket) in self.buckets.iter().enumerate() {
            count += bucket.value();
            let bound = BOUNDS
                .get(at)
                .map_or_else(|| "+Inf".into(), |bound| (*bound as f64 / 1e3).to_string());
            let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {count}");
        }
        let sum = self.sum_us.value() as f64 / 1e6;
        let _ = writeln!(text, "{name}_sum {sum}\n{name}_count {count}");
    }
}

/// The responses by class of their status code.
pub static RESPONSES: Family<5> = Family::new(["1xx", "2xx", "3xx", "4xx", "5xx"]);

/// The failed exchanges by the side at fault.
pub static FAILURES: Family<5> = Family::new(["client", "gateway", "via", "origin", "proxy"]);

/// The breaks of downloads by their result. After the first one, the rest arrives. A response is
/// refused if it is not the rest, and unsuitable if its rest could not be requested.
pub static DOWNLOADS: Family<4> = Family::new(["continued", "refused", "failed", "unsuitable"]);

/// The time from a request to the end of its response. Tunnels are not counted.
pub static EXCHANGE_TIME: Histogram = Histogram::new();

impl Metrics {
    /// Writes all metrics in Prometheus' text format.
    pub fn render(&self) -> String {
        let mut text = format!(
            "# HELP tandem_build_info The version of this program.\n\
             # TYPE tandem_build_info gauge\n\
             tandem_build_info{{version=\"{}\"}} 1\n",
            env!("CARGO_PKG_VERSION")
        );
        self.render_counters(&mut text);
        let help = "Responses by class of their status code.";
        RESPONSES.render(&mut text, "tandem_responses_total", "class", help);
        let help = "Requests that failed, by the side at fault.";
        FAILURES.render(&mut text, "tandem_failures_total", "side", help);
        let help = "Client: downloads that broke off, by the result of the request for the rest.";
        DOWNLOADS.render(&mut text, "tandem_downloads_broken_total", "result", help);
        let help = "Time from a request to the end of its response, without tunnels.";
        EXCHANGE_TIME.render(&mut text, "tandem_exchange_seconds", help);
        text
    }
}

macro_rules! metrics {
    ($($name:ident $kind:literal $help:literal;)*) => {
        /// The metrics of the process, without families and histograms.
        #[derive(Debug)]
        #[expect(missing_docs, reason = "each is described by its help text")]
        pub struct Metrics { $(pub $name: Metric,)* }

        /// The metrics of the process.
        pub static METRICS: Metrics = Metrics { $($name: Metric::new(),)* };

        impl Metrics {
            /// Returns the values by name.
            pub fn values(&self) -> BTreeMap<String, u64> {
                BTreeMap::from([$((stringify!($name).to_owned(), self.$name.value()),)*])
            }

            fn render_counters(&self, text: &mut String) {
                $(render(text, stringify!($name), $kind, $help, self.$name.value());)*
            }
        }
    };
}

/// The ends of names that tell a unit, those of the base unit, and its parts in the latter.
/// Prometheus wants base units.
const UNITS: [(&str, &str, u64); 3] = [
    ("_ms", "_seconds", 1000),
    ("_us", "_seconds", 1_000_000),
    ("_ms_squared", "_seconds_squared", 1_000_000),
];

/// Writes a metric in Prometheus' text format.
fn render(text: &mut String, name: &str, kind: &str, help: &str, value: u64) {
    let unit = UNITS
        .iter()
        .find_map(|(end, base, parts)| Some((name.strip_suffix(end)?, *base, *parts)));
    let (name, base, parts) = unit.unwrap_or((name, "", 1));
    let end = if kind == "counter" { "_total" } else { "" };
    let name = format!("tandem_{name}{base}{end}");
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    let _ = match parts {
        1 => writeln!(text, "{name} {value}"),
        parts => writeln!(text, "{name} {}", value as f64 / parts as f64),
    };
}

metrics! {
    connections "counter" "Connections accepted.";
    connections_open "gauge" "Connections open now.";
    connections_refused "counter" "Connections refused because too many were open.";
    admin_connections_refused "counter"
        "Connections to the metrics and the dashboard refused because too many were open.";
    accept_failures "counter" "Failures to accept a connection, as without free descriptors.";
    connections_evicted "counter" "Connections closed so that another could be admitted.";
    connections_expired "counter"
        "Connections closed because they sent no admitted request in time.";
    exchanges "counter" "Requests received.";
    exchanges_open "gauge" "Requests under way.";
    exchanges_failed "counter"
        "Requests that this proxy answered with an error, or could not answer to the end.";
    exchanges_aborted "counter" "Requests whose client left before the response began.";
    requests_malformed "counter" "Requests of HTTP/1.1 refused by the listener as malformed.";
    exchanges_cancelled "counter" "Gateway: lasting exchanges ended above max-lasting-exchanges.";
    exchanges_given_up "counter"
        "Exchanges ended because unread data filled the memory of a connection.";
    exchanges_retried "counter"
        "Requests sent again. They had not been processed, or could be processed twice.";
    exchanges_moved "counter" "Requests sent again over TCP, since UDP delivered nothing.";
    download_bytes_saved "counter"
        "Client: bytes of downloads that broke off which were not sent again.";
    body_bytes_down "counter" "Bytes of response bodies passed on to clients.";
    sessions_opened "counter" "Sessions opened to the gateway.";
    sessions_failed "counter" "Sessions that could not be opened.";
    sessions_lost "counter" "Sessions that delivered nothing and were replaced.";
    sessions_evicted "counter" "Idle sessions closed for another isolation key.";
    sessions_resumed "counter"
        "Speeds of earlier sessions that tokens brought and the transport was offered.";
    ways_failed "counter" "Ways to a gateway that did not work on their network.";
    ways_broken "counter" "Ways to a gateway that fell silent under way.";
    ways_throttled "counter" "Ways to a gateway that brought far less than TCP on their network.";
    ways_compared "counter" "Comparisons of a slow way over UDP with TCP.";
    measured_bytes "counter" "Gateway: filler bytes for comparisons of two ways.";
    ways_recovered "counter" "Ways to a gateway that work again after a failure.";
    discoveries_tried "counter" "Gateways announced by sites that were tried.";
    discoveries_up "counter" "Gateways announced by sites that answered.";
    discoveries_failed "counter" "Gateways announced by sites that failed while in use.";
    discovered_exchanges "counter" "Requests sent to gateways announced by sites.";
    announcements_refused "counter" "Announcements of gateways that were ignored, as they broke a rule.";
    early_data_accepted "counter" "Client: sessions whose gateway accepted early data.";
    early_data_rejected "counter"
        "Client: sessions whose gateway rejected early data, which was sent again.";
    early_requests "counter" "Requests that arrived before the end of a handshake.";
    early_requests_repeated "counter"
        "Early requests that an origin refused (425), repeated after the handshake.";
    sessions_rotated "counter" "Sessions replaced because of their age.";
    origin_connections "counter" "Connections opened to origins.";
    origin_reused "counter" "Requests sent on a reused connection to an origin.";
    origin_pipelined "counter" "Requests sent to an origin before the response to an earlier one.";
    udp_flows "counter" "Tunnels of UDP datagrams opened.";
    destinations_refused "counter" "Destinations refused by policy.";
    unauthorized "counter" "Requests refused because they showed no valid access token.";
    relay_refusals "counter"
        "Relay: requests that the next hop refused, since it does not admit the relay.";
    warm_up_bytes "counter"
        "Gateway: filler bytes sent to open the congestion windows of new sessions.";
    warm_up_bytes_received "counter"
        "Gateway: filler bytes of clients, which open their own congestion windows.";
    pushes_promised "counter" "Gateway: resources offered as pushes.";
    push_requests "counter" "Gateway: requests for pushes. A promise can end without one.";
    push_bytes_sent "counter" "Gateway: bytes of bodies fetched for pushes.";
    pages_pushed "counter"
        "Gateway: pages that were not held out, so that their resources could be pushed.";
    pages_returning "counter"
        "Gateway: pages with promises without bodies for a returning browser.";
    pages_held_out "counter" "Gateway: pages sent without pushes, for comparison.";
    pushes_received "counter" "Client: pushes received.";
    push_bytes_received "counter" "Client: bytes of the bodies of pushes.";
    pushes_used "counter" "Pushes that were complete when their resource was requested.";
    pushes_late "counter" "Pushes whose resource was requested while they were under way.";
    pushes_wasted "counter" "Pushes that were not requested in time, or that could not be kept.";
    pushes_cancelled "counter" "Pushes that failed, were refused, or did not match the request.";
    pushes_validated "counter" "Pushes whose head answered a conditional request with 304.";
    pushes_withheld "counter"
        "Gateway: promises without a body, because the browser showed no need of it.";
    pushes_repeated "counter"
        "Gateway: requests that crossed a promise, and got the response of its push.";
    next_pages_promised "counter"
        "Gateway: documents promised because they may follow a page; pushes_promised omits them.";
    next_pages_used "counter" "Gateway: those that the browser asked for.";
    next_page_bytes_wasted "counter"
        "Gateway: bytes of the bodies of those that it did not ask for.";
    preflights_answered "counter"
        "Client: preflights of scripts that an earlier permission answered.";
    push_bytes_used "counter" "Client: bytes of pushed bodies that served a request.";
    push_bytes_wasted "counter" "Bytes of pushed bodies that served no request.";
    origin_extra_requests "counter"
        "Gateway: requests to origins for pushes that served no request.";
    round_trips_saved "counter" "Client: requests that did not have to cross the slow path.";
    loads_pushed "counter" "Client: completed page loads with push.";
    loads_pushed_ms "counter" "Client: time of page loads with push.";
    loads_pushed_ms_squared "counter"
        "Client: sum of the squared times of page loads with push.";
    loads_held_out "counter" "Client: completed page loads without push, for comparison.";
    loads_held_out_ms "counter" "Client: time of page loads without push.";
    loads_held_out_ms_squared "counter"
        "Client: sum of the squared times of page loads without push.";
    cache_hits "counter" "Gateway: requests answered from the cache.";
    cache_misses "counter" "Gateway: requests that the cache passed on to origins.";
    cache_validations "counter" "Gateway: stored responses that their origins confirmed by 304.";
    cache_collapsed "counter" "Gateway: requests that waited for another one of the same URL.";
    cache_bytes "counter" "Gateway: bytes of bodies sent from the cache.";
    cache_evicted "counter" "Gateway: resources evicted from the cache for others.";
    cache_disk_up "gauge" "Gateway: 1 while the disk of --cache-dir is in use.";
    cache_disk_bytes "gauge" "Gateway: bytes of the files in --cache-dir.";
    cache_disk_hits "counter" "Gateway: requests answered with a response from the disk.";
    cache_disk_late "counter"
        "Gateway: requests that did not wait longer for a response from the disk.";
    cache_disk_written "counter" "Gateway: responses written to the disk.";
    cache_disk_damaged "counter"
        "Gateway: files of responses that were deleted because they had been changed.";
    cache_disk_errors "counter" "Gateway: errors after which the disk was not used any more.";
    fleet_engine_up "gauge" "Gateway: 1 while the engine of --share responds.";
    fleet_engine_failures "counter" "Gateway: connections to the engine of --share that failed.";
    fleet_records_sent "counter" "Gateway: records appended to the log of the fleet.";
    fleet_records_received "counter" "Gateway: records of other gateways of the fleet accepted.";
    fleet_records_refused "counter"
        "Gateway: records of the fleet ignored as forged, malformed or outside their time.";
    fleet_gateways "gauge"
        "Gateway: other gateways of the fleet that shared records within a day.";
    fleet_responses_lent "counter" "Gateway: responses put into the engine for other gateways.";
    fleet_lent_bytes "gauge" "Gateway: bytes of responses in the engine for other gateways.";
    fleet_lookups "counter" "Gateway: requests that asked the fleet for a response.";
    fleet_lookups_hit "counter" "Gateway: requests answered with a response of the fleet.";
    fleet_lookups_late "counter"
        "Gateway: requests that went to the origin because the fleet had not answered in time.";
    fleet_invalidations_lost "gauge"
        "Gateway: invalidations that the fleet did not hear of because too many waited.";
    fleet_gains_lost "gauge"
        "Gateway: page loads whose statistics were not shared because too many waited.";
    coding_bytes_before "counter" "Bytes of bodies compressed between the proxies, before that.";
    coding_bytes_after "counter" "Bytes of these bodies on the path, compressed.";
    dtls_associations "gauge" "Associations of the transport dtls that are open or in a handshake.";
    dtls_datagrams_sent "counter" "Datagrams sent by the transport dtls.";
    dtls_datagrams_received "counter" "Datagrams that reached an association of dtls.";
    dtls_datagrams_dropped "counter"
        "Gateway: datagrams without a cookie or association, or beyond a queue.";
    dtls_tokens_accepted "counter"
        "Gateway: associations of dtls that began with an address token, which saves a round trip.";
    submissions_accepted "counter" "Gateway: submissions stored for delivery.";
    submissions_refused "counter"
        "Gateway: submissions refused with a problem, without requests for a challenge.";
    submissions_answered "counter" "Gateway: submissions that the server has answered.";
    submissions_failed_attempts "counter"
        "Gateway: attempts at delivery that failed and are repeated later.";
    submissions_given_up "counter"
        "Gateway: submissions that the server did not take in time, or that are damaged.";
    submissions_waiting "gauge" "Gateway: stored submissions without an answer.";
    submissions_over_quota "counter"
        "Gateway: submissions refused because the client has used its rights.";
    submissions_over_memory "counter" "Gateway: submissions refused for lack of memory.";
    submissions_over_store "counter" "Gateway: submissions refused because the store was full.";
    submissions_collected "gauge" "Gateway: submissions that wait for the end of their batch.";
    submissions_oldest_seconds "gauge"
        "Gateway: age of the oldest submission without an answer.";
    submission_store "gauge" "Gateway: 1 if it has a store of submissions.";
    submission_commits "counter" "Gateway: submissions with which the store has dealt.";
    submission_commit_failures "counter" "Gateway: submissions that the store failed to store.";
    submission_commit_us "counter" "Gateway: time that the store needed for them.";
    tokens_spent_latest "gauge" "Gateway: spent tokens of the latest epoch.";
    tokens_spent_before "gauge" "Gateway: spent tokens of the epoch before the latest one.";
    submission_batches "counter" "Gateway: batches of unlinkable submissions delivered together.";
    submission_batch_members "counter" "Gateway: submissions in all of these batches.";
    submission_batch_size "gauge"
        "Gateway: submissions in the last batch, the set in which each of them hides.";
    submission_batches_small "counter"
        "Gateway: batches below submit-batch-min, which were delivered after the longest wait.";
    tokens_issued "counter" "Issuer: tokens signed for accounts.";
    token_requests_refused "counter" "Issuer: token requests refused with a problem document.";
    token_requests_over_quota "counter"
        "Issuer: token requests refused because the account has all its tokens.";
    issuer_accounts "gauge" "Issuer: accounts that may get tokens.";
    tokens_issued_epoch "gauge" "Issuer: tokens that all accounts have got in the present epoch.";
    submissions_stored_bytes "gauge"
        "Gateway: bytes of the stored submissions and answers, compared with submit-max-stored.";
    https_opened "counter" "Client: HTTPS connections of listed hosts that were opened.";
    https_spliced "counter"
        "Client: HTTPS connections of listed hosts that were passed on unopened.";
    fallbacks "counter" "Requests sent without the gateway because the user asked for it.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_prometheus_text() {
        let text = METRICS.render();
        assert!(
            text.contains("# TYPE tandem_connections_total counter\ntandem_connections_total ")
        );
        assert!(text.contains("tandem_build_info{version=\""));
        assert!(
            text.lines()
                .all(|line| line.starts_with('#') || line.split(' ').count() == 2)
        );
    }

    #[test]
    fn metrics_have_base_units() {
        let text = METRICS.render();
        let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let mut words = names.flat_map(|name| name.split(['_', ' ']));
        assert_eq!(words.find(|word| matches!(*word, "ms" | "us")), None);
        let mut text = String::new();
        for name in ["loads_ms", "loads_ms_squared", "commit_us", "bytes"] {
            render(&mut text, name, "counter", "Help.", 1_500_000);
        }
        let values: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "tandem_loads_seconds_total 1500",
            "tandem_loads_seconds_squared_total 1.5",
            "tandem_commit_seconds_total 1.5",
            "tandem_bytes_total 1500000",
        ];
        assert_eq!(values, expected);
    }

    #[test]
    fn histograms_count_up_to_each_bound() {
        let histogram = Histogram::new();
        for ms in [5, 6, 40_000] {
            histogram.observe(Duration::from_millis(ms));
        }
        let mut text = String::new();
        histogram.render(&mut text, "t", "Times.");
        assert!(text.contains("t_bucket{le=\"0.005\"} 1\nt_bucket{le=\"0.01\"} 2\n"));
        assert!(text.contains("t_bucket{le=\"30\"} 2\nt_bucket{le=\"+Inf\"} 3\n"));
        assert!(text.ends_with("t_sum 40.011\nt_count 3\n"), "{text}");
    }

    #[test]
    fn families_count_their_own_labels_only() {
        let family = Family::new(["a", "b"]);
        family.add("b");
        family.add("c");
        let mut text = String::new();
        family.render(&mut text, "t", "l", "Letters.");
        assert!(text.ends_with("t{l=\"a\"} 0\nt{l=\"b\"} 1\n"), "{text}");
    }
}
