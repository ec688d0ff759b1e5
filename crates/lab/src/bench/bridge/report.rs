//! The figures of a measurement, and their table.

use std::fmt::Write as _;

use serde::Serialize;
use tandem_net::stats::Summary;

use super::super::{BenchError, ratios};
use super::programs::{BridgeLoad, BridgeTimes, Peer, Version};
use super::{BridgeCell, BridgePlan, RunningProxy};

/// Table 5.2 of the study: milliseconds to connect, for a request and to the first byte, with 100
/// requests of 10 clients.
const PUBLISHED: [(Version, Version, [f64; 3]); 4] = [
    (Version::H2, Version::H2, [17.80, 68.34, 339.38]),
    (Version::H2, Version::Http1, [13.33, 87.15, 537.44]),
    (Version::Http1, Version::H2, [14.84, 115.65, 114.65]),
    (Version::Http1, Version::Http1, [18.09, 168.49, 167.53]),
];

/// The results of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct BridgeReport {
    /// The round-trip time between proxy and origin in milliseconds; 0 on loopback.
    pub rtt_ms: f64,
    /// The rows of all loads.
    pub rows: Vec<BridgeRow>,
}

/// A proxy with a pair of protocols, under one load. All times are in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct BridgeRow {
    /// The load.
    pub load: BridgeLoad,
    /// The proxy.
    pub proxy: Peer,
    /// The protocol of its clients.
    pub front: Version,
    /// The protocol of its origin.
    pub back: Version,
    /// The time until a connection stands.
    pub connect: Summary,
    /// The time of a request.
    pub request: Summary,
    /// The time to the first byte.
    pub first_byte: Summary,
    /// The time of the run.
    pub total: Summary,
    /// Our times by others in the same pass.
    pub against: Vec<Against>,
}

/// Our times by those of another row, from the ratios of all passes.
#[derive(Clone, Debug, Serialize)]
pub struct Against {
    /// The name of the other row.
    pub other: String,
    /// The ratios of the times to the first byte.
    pub first_byte: Summary,
    /// The ratios of the times of the runs.
    pub total: Summary,
}

/// Computes the figures.
pub(super) fn of(plan: &BridgePlan, running: &[RunningProxy]) -> Result<BridgeReport, BenchError> {
    let mut rows = Vec::new();
    for (at, load) in plan.loads.iter().enumerate() {
        for one in running {
            rows.push(row(at, *load, one, running)?);
        }
    }
    let rtt = plan.rtt.unwrap_or_default();
    Ok(BridgeReport {
        rtt_ms: rtt.as_secs_f64() * 1e3,
        rows,
    })
}

fn row(
    at: usize,
    load: BridgeLoad,
    one: &RunningProxy,
    all: &[RunningProxy],
) -> Result<BridgeRow, BenchError> {
    let summary = |of: fn(&BridgeTimes) -> f64| {
        let values: Vec<f64> = one.times[at].iter().map(of).collect();
        Summary::of(&values).ok_or_else(|| BenchError::Value("no passes".into()))
    };
    let against = all
        .iter()
        .filter(|other| is_compared(one.cell, other.cell))
        .filter_map(|other| against(at, one, other));
    Ok(BridgeRow {
        load,
        proxy: one.cell.peer,
        front: one.cell.front,
        back: one.cell.back,
        connect: summary(|times| times.connect)?,
        request: summary(|times| times.request)?,
        first_byte: summary(|times| times.first_byte)?,
        total: summary(|times| times.total)?,
        against: against.collect(),
    })
}

/// Returns true if our row is compared with another: ours with HTTP/1.1 on both sides, and those of
/// peers with the same protocols.
fn is_compared(own: BridgeCell, other: BridgeCell) -> bool {
    let is_baseline = other.front == Version::Http1 && other.back == Version::Http1;
    let is_peer = other.peer != Peer::Tandem;
    let has_same_protocols = (own.front, own.back) == (other.front, other.back);
    own.peer == Peer::Tandem
        && own != other
        && if is_peer {
            has_same_protocols
        } else {
            is_baseline
        }
}

fn against(at: usize, one: &RunningProxy, other: &RunningProxy) -> Option<Against> {
    let ratio = |of: fn(&BridgeTimes) -> f64| {
        let values =
            |running: &RunningProxy| running.times[at].iter().map(of).collect::<Vec<f64>>();
        ratios(&values(one), &values(other))
    };
    Some(Against {
        other: other.cell.name(),
        first_byte: ratio(|times| times.first_byte)?,
        total: ratio(|times| times.total)?,
    })
}

impl BridgeReport {
    /// Formats the results as text.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let mut load = None;
        for row in &self.rows {
            if load != Some(row.load) {
                load = Some(row.load);
                let BridgeLoad { requests, clients } = row.load;
                let rtt = self.rtt_ms;
                let _ = writeln!(
                    out,
                    "{requests} requests, {clients} clients, {rtt} ms to the origin; milliseconds"
                );
            }
            let (front, back) = (row.front.name(), row.back.name());
            let [connect, request, first, total] =
                [&row.connect, &row.request, &row.first_byte, &row.total].map(|it| it.median);
            let _ = writeln!(
                out,
                "  {front:>5}/{back:<5} {:<7} connect {connect:8.2}, request {request:8.2}, \
                 first byte {first:8.2}, total {total:8.2}",
                row.proxy.name()
            );
            for against in &row.against {
                let _ = writeln!(
                    out,
                    "      by {:<20} first byte {}, total {}",
                    against.other,
                    range(&against.first_byte),
                    range(&against.total)
                );
            }
        }
        out.push_str("the table of the study (100 requests, 10 clients)\n");
        for (front, back, [connect, request, first]) in PUBLISHED {
            let (front, back) = (front.name(), back.name());
            let _ = writeln!(
                out,
                "  {front:>5}/{back:<5}         connect {connect:8.2}, request {request:8.2}, \
                 first byte {first:8.2}"
            );
        }
        out
    }
}

fn range(ratio: &Summary) -> String {
    format!("{:.2} [{:.2}..{:.2}]", ratio.median, ratio.min, ratio.max)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn our_rows_are_compared_with_http1_and_with_peers() {
        let times = |total| BridgeTimes {
            connect: 1.0,
            request: 2.0,
            first_byte: 3.0,
            total,
        };
        let cell = |peer, front| BridgeCell {
            peer,
            front,
            back: Version::Http1,
        };
        let running = |cell, totals: [f64; 3]| RunningProxy {
            cell,
            address: ([127, 0, 0, 1], 1).into(),
            times: vec![totals.map(times).to_vec()],
        };
        let load: BridgeLoad = "100x10".parse().expect("a load");
        let plan = BridgePlan {
            tandem: PathBuf::new(),
            loads: vec![load],
            passes: 3,
            peers: vec![Peer::Nginx],
            rtt: None,
        };
        let report = of(
            &plan,
            &[
                running(cell(Peer::Tandem, Version::Http1), [2.0, 10.0, 20.0]),
                running(cell(Peer::Tandem, Version::H2), [1.0, 9.0, 10.0]),
                running(cell(Peer::Nginx, Version::H2), [2.0, 9.0, 5.0]),
            ],
        );
        let report = report.expect("all rows have passes");
        let of = |row: usize| -> Vec<_> {
            let against = report.rows[row].against.iter();
            against
                .map(|it| (it.other.as_str(), it.total.median))
                .collect()
        };
        assert_eq!(of(0), []);
        assert_eq!(
            of(1),
            [("tandem-http1-http1", 0.5), ("nginx-h2-http1", 1.0)]
        );
        assert_eq!(of(2), []);
        let table = report.table();
        assert!(
            table.contains("by tandem-http1-http1   first byte 1.00 [1.00..1.00]"),
            "{table}"
        );
        assert!(table.contains("537.44"), "{table}");
    }
}
