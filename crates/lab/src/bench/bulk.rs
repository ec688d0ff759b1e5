//! `tandem-lab bench bulk`: the processor time of a byte over each way of the pair, and the rate at
//! which downloads fill this machine.
//!
//! ```text
//!  4 downloads ─▶ client ═══ one session over the way ═══▶ gateway ─▶ origin   (on loopback)
//! ```
//!
//! The processor time is that of client and gateway together, system calls included. The ways
//! alternate, so that disturbances affect each of them.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::steady::{Download, SteadyOrigin};
use super::testbed::{Testbed, free_addresses};
use super::{BenchError, programs, ratios, turns, usage};
use tandem_net::stats::Summary;

/// The downloads at once.
const STREAMS: u64 = 4;
/// The time before anything counts: the windows have opened then.
const SETTLE: Duration = Duration::from_secs(1);

/// A way between the pair: a session over a transport.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct BulkWay(String);

impl FromStr for BulkWay {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Self, BenchError> {
        match text {
            "h3+dtls" | "http+dtls" | "h3+quic" | "h2+tls" | "h2+tcp" => Ok(Self(text.into())),
            _ => Err(BenchError::Value(format!(
                "not a way: {text:?} (h3+dtls, http+dtls, h3+quic, h2+tls or h2+tcp)"
            ))),
        }
    }
}

impl BulkWay {
    fn is_secure(&self) -> bool {
        !self.0.ends_with("+tcp")
    }
}

/// The settings of a measurement.
#[derive(Clone, Debug)]
pub struct BulkPlan {
    /// The program under test.
    pub tandem: PathBuf,
    /// The ways; the first is the baseline.
    pub ways: Vec<BulkWay>,
    /// The rates of all downloads together in bytes per second; `None` is as fast as possible.
    pub rates: Vec<Option<u64>>,
    /// Congestion control of both ends.
    pub congestion: String,
    /// Time that counts in each turn.
    pub time: Duration,
    /// Turns that each way gets at each rate.
    pub passes: usize,
}

/// The results of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct BulkReport {
    /// The processors of this machine.
    pub processors: usize,
    /// For each rate and way.
    pub rows: Vec<BulkRow>,
}

/// The results of a way at a rate.
#[derive(Clone, Debug, Serialize)]
pub struct BulkRow {
    /// The way.
    pub way: BulkWay,
    /// The rate of all downloads in Mbit/s, if they have one.
    pub rate_mbit: Option<f64>,
    /// Bodies that arrived, in Mbit/s.
    pub goodput_mbit: Summary,
    /// The processor time of the client for a byte, in nanoseconds.
    pub client_ns: Summary,
    /// The processor time of the gateway for a byte, in nanoseconds.
    pub gateway_ns: Summary,
    /// The processor time of both, by that of the first way in the same pass.
    pub ratio: Option<Summary>,
}

/// The results of one turn.
#[derive(Clone, Copy, Debug)]
struct BulkTurn {
    goodput_mbit: f64,
    client_ns: f64,
    gateway_ns: f64,
}

/// Runs the measurement; `say` receives progress messages.
///
/// # Errors
/// A program could not be started, or a download failed.
pub fn run(plan: &BulkPlan, say: &mut dyn FnMut(&str)) -> Result<BulkReport, BenchError> {
    let testbed = Testbed::open()?;
    let processors = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut rows = Vec::new();
    for rate in &plan.rates {
        let mut turns_of: Vec<Vec<BulkTurn>> = vec![Vec::new(); plan.ways.len()];
        for pass in 0..plan.passes {
            for at in turns(pass, plan.ways.len()) {
                let way = &plan.ways[at];
                say(&format!(
                    "pass {} of {}: {} {}",
                    pass + 1,
                    plan.passes,
                    way.0,
                    rate.map_or("at full speed".into(), |rate| format!(
                        "at {} Mbit/s",
                        rate * 8 / 1_000_000
                    ))
                ));
                turns_of[at].push(turn(plan, &testbed, way, *rate)?);
                testbed.clear();
            }
        }
        rows.extend(summaries(plan, *rate, &turns_of)?);
    }
    Ok(BulkReport { processors, rows })
}

fn summaries(
    plan: &BulkPlan,
    rate: Option<u64>,
    turns_of: &[Vec<BulkTurn>],
) -> Result<Vec<BulkRow>, BenchError> {
    let column = |turns: &[BulkTurn], of: fn(&BulkTurn) -> f64| -> Vec<f64> {
        turns.iter().map(of).collect()
    };
    let both = |turn: &BulkTurn| turn.client_ns + turn.gateway_ns;
    let summary = |values: Vec<f64>| {
        Summary::of(&values).ok_or_else(|| BenchError::Value("nothing was measured".into()))
    };
    let first = turns_of
        .first()
        .map_or_else(Vec::new, |turns| column(turns, both));
    let rows = plan.ways.iter().zip(turns_of);
    rows.map(|(way, turns)| {
        Ok(BulkRow {
            way: way.clone(),
            rate_mbit: rate.map(|rate| rate as f64 * 8e-6),
            goodput_mbit: summary(column(turns, |turn| turn.goodput_mbit))?,
            client_ns: summary(column(turns, |turn| turn.client_ns))?,
            gateway_ns: summary(column(turns, |turn| turn.gateway_ns))?,
            ratio: ratios(&column(turns, both), &first),
        })
    })
    .collect()
}

fn turn(
    plan: &BulkPlan,
    testbed: &Testbed,
    way: &BulkWay,
    rate: Option<u64>,
) -> Result<BulkTurn, BenchError> {
    let origin = SteadyOrigin::start(rate.map(|rate| rate / STREAMS))
        .map_err(BenchError::system("start an origin"))?;
    let pair = start_pair(plan, testbed, way, origin.address)?;
    let downloads: Result<Vec<_>, _> = (0..STREAMS)
        .map(|_| Download::start(pair.proxy, origin.address))
        .collect();
    let downloads = downloads.map_err(BenchError::system("download through the pair"))?;
    thread::sleep(SETTLE);
    let received = || -> u64 { downloads.iter().map(Download::received).sum() };
    let cpu = || -> Result<[Duration; 2], BenchError> {
        Ok([
            usage::cpu_time(pair.client)?,
            usage::cpu_time(pair.gateway)?,
        ])
    };
    let (before, used, begun) = (received(), cpu()?, Instant::now());
    thread::sleep(plan.time);
    let (after, now, took) = (received(), cpu()?, begun.elapsed());
    let bytes = (after - before).max(1) as f64;
    for download in downloads {
        let ended = download.end();
        ended.map_err(BenchError::system("download through the pair"))?;
    }
    let each = |at: usize| now[at].saturating_sub(used[at]).as_secs_f64() * 1e9 / bytes;
    Ok(BulkTurn {
        goodput_mbit: bytes * 8e-6 / took.as_secs_f64(),
        client_ns: each(0),
        gateway_ns: each(1),
    })
}

/// The pair of one turn.
struct BulkPair {
    proxy: SocketAddr,
    client: u32,
    gateway: u32,
}

/// Starts both proxies. The gateway also listens on TCP, which tells when it is up.
fn start_pair(
    plan: &BulkPlan,
    testbed: &Testbed,
    way: &BulkWay,
    origin: SocketAddr,
) -> Result<BulkPair, BenchError> {
    let [address, proxy, ready] = free_addresses()?;
    let made = rcgen::generate_simple_self_signed(vec![Ipv4Addr::LOCALHOST.to_string()])
        .map_err(|error| BenchError::Value(format!("cannot make a certificate: {error}")))?;
    let cert = testbed.write("gw.pem", made.cert.pem())?;
    let key = testbed.write("gw.key", made.signing_key.serialize_pem())?;
    let (cert, key) = (cert.display(), key.display());
    let (listen, dial) = if way.is_secure() {
        (format!("?cert={cert}&key={key}"), format!("?ca={cert}"))
    } else {
        Default::default()
    };
    let congestion = format!("--congestion={}", plan.congestion);
    let mut gateway = programs::gateway(&plan.tandem, &format!("h2+tcp://{ready}"), origin);
    gateway.args([
        "--listen",
        &format!("{}://{address}{listen}", way.0),
        &congestion,
    ]);
    let gateway = testbed.start_listening("gateway", gateway, ready)?;
    let mut client = Command::new(&plan.tandem);
    client.args(["client", "--listen", &format!("http://{proxy}")]);
    client.args([
        "--gateway",
        &format!("{}://{address}{dial}", way.0),
        &congestion,
    ]);
    let client = testbed.start_listening("client", client, proxy)?;
    Ok(BulkPair {
        proxy,
        client,
        gateway,
    })
}

impl BulkReport {
    /// Returns the report as text.
    pub fn table(&self) -> String {
        let mut out = format!("{STREAMS} downloads, {} processors\n", self.processors);
        for row in &self.rows {
            let rate = row
                .rate_mbit
                .map_or_else(|| "full speed".into(), |rate| format!("{rate:.0} Mbit/s"));
            let (goodput, client, gateway) = (&row.goodput_mbit, &row.client_ns, &row.gateway_ns);
            let _ = write!(
                out,
                "  {:<9} {rate:<10} {:7.1} Mbit/s [{:.1}..{:.1}], ns per byte: client {:.2} \
                 [{:.2}..{:.2}], gateway {:.2} [{:.2}..{:.2}]",
                row.way.0,
                goodput.median,
                goodput.min,
                goodput.max,
                client.median,
                client.min,
                client.max,
                gateway.median,
                gateway.min,
                gateway.max,
            );
            if let (Some(ratio), Some(first)) = (&row.ratio, self.rows.first()) {
                let _ = write!(
                    out,
                    ", both / {} {:.2} [{:.2}..{:.2}]",
                    first.way.0, ratio.median, ratio.min, ratio.max
                );
            }
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_those_of_the_pair() {
        for way in ["h3+dtls", "http+dtls", "h3+quic", "h2+tls", "h2+tcp"] {
            assert_eq!(
                way.parse::<BulkWay>().expect(way).is_secure(),
                way != "h2+tcp"
            );
        }
        assert!("h2+dtls".parse::<BulkWay>().is_err());
    }

    #[test]
    fn rows_compare_with_the_first_way_of_the_same_pass() {
        let turn = |cost| BulkTurn {
            goodput_mbit: 100.0,
            client_ns: cost,
            gateway_ns: 2.0 * cost,
        };
        let plan = BulkPlan {
            tandem: PathBuf::new(),
            ways: ["h3+quic", "h3+dtls"]
                .map(|way| way.parse().expect(way))
                .into(),
            rates: vec![Some(12_500_000)],
            congestion: "bbr".into(),
            time: Duration::from_secs(1),
            passes: 2,
        };
        let turns = [vec![turn(1.0), turn(2.0)], vec![turn(1.5), turn(3.0)]];
        let rows = summaries(&plan, plan.rates[0], &turns).expect("figures");
        let ratio = rows[1].ratio.as_ref().expect("a ratio");
        assert_eq!((rows[1].rate_mbit, ratio.median), (Some(100.0), 1.5));
        let report = BulkReport {
            processors: 2,
            rows,
        };
        assert!(report.table().contains("both / h3+quic 1.50 [1.50..1.50]"));
    }
}
