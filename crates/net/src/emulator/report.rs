//! A snapshot of an emulated network's counters, which can be printed, logged and written as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tandem_link::{Count, Histogram, Link};

use super::router::Router;

/// State of a whole network at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// Since the start, in seconds.
    pub time_s: f64,
    /// Scheduling class of the emulator's thread.
    pub realtime: bool,
    /// An entry for each direction of each link.
    pub links: Vec<LinkReport>,
    /// An entry for each host.
    pub ports: Vec<PortReport>,
    /// Packets that had no way to go.
    pub unroutable: u64,
    /// How much later than due packets were handed to their host.
    pub lateness: Times,
}

/// The counters of one direction of a link.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LinkReport {
    /// Node that packets come from.
    pub from: String,
    /// Node that packets go to.
    pub to: String,
    /// Came in.
    pub received: Traffic,
    /// Went out.
    pub delivered: Traffic,
    /// Lost by the loss model.
    pub lost: u64,
    /// Found the queue full.
    pub overflowed: u64,
    /// Dropped by CoDel.
    pub managed: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Sent on with a wrong bit.
    pub corrupted: u64,
    /// Sent on as TCP resets.
    pub reset: u64,
    /// Share of packets that never went out.
    pub effective_loss: f64,
    /// Packets waiting now.
    pub queued_packets: usize,
    /// Their bytes.
    pub queued_bytes: usize,
    /// Most packets that ever waited.
    pub queue_peak: usize,
    /// Time that packets waited.
    pub queue_delay: Times,
}

/// A host's interface.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PortReport {
    /// Name of the host.
    pub host: String,
    /// The traffic from the host into the network.
    pub sent: Traffic,
    /// The traffic from the network to the host.
    pub received: Traffic,
    /// Time of the first packet sent, seconds since the start.
    pub first_sent_s: Option<f64>,
    /// Time of the last packet received.
    pub last_received_s: Option<f64>,
    /// Packets that the host's kernel would not take.
    pub refused: u64,
    /// Packets lost in the interface's own queue before the emulator saw them; must be 0 in a sound
    /// measurement. Known only when the emulator has stopped.
    pub dropped_before: u64,
}

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes of IP packet.
    pub bytes: u64,
}

impl From<Count> for Traffic {
    fn from(count: Count) -> Self {
        Self {
            packets: count.packets,
            bytes: count.bytes,
        }
    }
}

/// A distribution of times in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Times {
    /// Values.
    pub count: u64,
    /// Mean.
    pub mean_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Largest.
    pub max_ms: f64,
}

impl From<&Histogram> for Times {
    fn from(histogram: &Histogram) -> Self {
        Self {
            count: histogram.count(),
            mean_ms: ms(histogram.mean()),
            p50_ms: ms(histogram.quantile(0.5)),
            p99_ms: ms(histogram.quantile(0.99)),
            max_ms: ms(histogram.max()),
        }
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Reports of all links of a network.
pub fn links(router: &Router) -> Vec<LinkReport> {
    router
        .edges()
        .iter()
        .map(|edge| link(&edge.link, router.name(edge.from), router.name(edge.to)))
        .collect()
}

fn link(link: &Link, from: &str, to: &str) -> LinkReport {
    let stats = link.stats();
    let (queued_packets, queued_bytes) = link.queued();
    LinkReport {
        from: from.into(),
        to: to.into(),
        received: stats.received.into(),
        delivered: stats.delivered.into(),
        lost: stats.lost.packets,
        overflowed: stats.overflowed.packets,
        managed: stats.managed.packets,
        duplicated: stats.duplicated.packets,
        corrupted: stats.corrupted.packets,
        reset: stats.reset.packets,
        effective_loss: stats.effective_loss(),
        queued_packets,
        queued_bytes,
        queue_peak: stats.queue_peak,
        queue_delay: (&stats.queue_delay).into(),
    }
}

/// First line of a log of [`LinkReport::log_line`]s.
pub const LOG_HEADER: &str = "time_s,from,to,received_packets,received_bytes,delivered_packets,delivered_bytes,lost,overflowed,managed,\
     queued_packets,queued_bytes,queue_delay_mean_ms,effective_loss";

impl LinkReport {
    /// Formats a line of the log: totals so far, and the current queue.
    pub fn log_line(&self, time_s: f64) -> String {
        let Self {
            from,
            to,
            received,
            delivered,
            lost,
            overflowed,
            managed,
            queued_packets,
            queued_bytes,
            ..
        } = self;
        format!(
            "{time_s:.3},{from},{to},{},{},{},{},{lost},{overflowed},{managed},{queued_packets},{queued_bytes},{:.3},{:.6}",
            received.packets,
            received.bytes,
            delivered.packets,
            delivered.bytes,
            self.queue_delay.mean_ms,
            self.effective_loss
        )
    }
}

impl Snapshot {
    /// The report of a host's interface.
    pub fn port(&self, host: &str) -> Option<&PortReport> {
        self.ports.iter().find(|port| port.host == host)
    }

    /// A few lines for people.
    pub fn summary(&self) -> String {
        let mut out = String::new();
        for link in self.links.iter().filter(|link| link.received.packets > 0) {
            let mut row = format!(
                "{:>8} > {:<8} {:>8} packets {:>11} bytes, {:.2} % dropped",
                link.from,
                link.to,
                link.delivered.packets,
                link.delivered.bytes,
                link.effective_loss * 100.0
            );
            if link.queue_delay.count > 0 {
                let delay = link.queue_delay;
                let _ = write!(
                    row,
                    ", queue delay {:.1} ms (p99 {:.1}, peak {})",
                    delay.mean_ms, delay.p99_ms, link.queue_peak
                );
            }
            out.push_str(&row);
            out.push('\n');
        }
        let late = self.lateness;
        let class = if self.realtime {
            "real-time"
        } else {
            "ordinary"
        };
        let _ = writeln!(
            out,
            "lateness p50 {:.3} ms, p99 {:.3} ms, max {:.3} ms ({class} priority)",
            late.p50_ms, late.p99_ms, late.max_ms
        );
        if let Some(trouble) = self.trouble() {
            let _ = writeln!(out, "caution: {trouble}");
        }
        out
    }

    /// Why measurements made on this network should not be believed, if there is a reason.
    pub fn trouble(&self) -> Option<String> {
        let dropped: u64 = self
            .ports
            .iter()
            .map(|port| port.dropped_before + port.refused)
            .sum();
        if dropped > 0 {
            return Some(format!(
                "{dropped} packets were lost between kernel and emulator"
            ));
        }
        let late = self.lateness.p99_ms;
        (self.lateness.count >= 100 && late > 0.5).then(|| {
            format!(
                "packets were late by {late:.2} ms at p99 (limit 0.5 ms): the machine is too busy"
            )
        })
    }
}
