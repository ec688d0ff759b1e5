//! `tandem-link self-test`: sends real packets through real links of this machine, and compares the
//! results with the settings. [`beside`] sends the same packets through other programs of this
//! kind.

pub(crate) mod beside;

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use socket2::SockRef;
use tandem_link::LinkConfig;
use tandem_link::delay::{Jitter, Shape};
use tandem_link::loss::Loss;
use tandem_link::queue::QueueLimits;
use tandem_link::rate::Rate;
use tandem_net::emulator::network::{Setup, TwoHosts};
use tandem_net::emulator::{Emulator, sys};
use tandem_net::netns::Netns;
use tandem_net::output;
use tandem_net::stats::percentile;

use crate::rootless;

type Failure = Box<dyn Error>;

const SENDER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const RECEIVER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);

/// UDP payload of a full packet.
const FULL: usize = 1472;

/// Priority of the probes' threads: below the emulator's, above everything ordinary.
const PROBE_PRIORITY: i32 = 5;

/// Kolmogorov's statistic that a true distribution exceeds once in a thousand times.
const KOLMOGOROV: f64 = 1.95;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Only these tests: machine, delay, rate, loss, jitter, throughput, beside
    #[arg(long, value_name = "TEST", value_delimiter = ',', value_parser = ["machine", "delay", "rate", "loss", "jitter", "throughput", "beside"])]
    only: Vec<String>,
    #[command(flatten)]
    compare: beside::CompareArguments,
}

/// A measured figure.
#[derive(Debug, Serialize)]
struct Row {
    /// The program that it is of, where several are compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    shell: Option<String>,
    what: String,
    wanted: String,
    measured: String,
    value: f64,
    /// The limit of the deviation, or `None` if there is no reference.
    limit: Option<f64>,
    pass: bool,
}

impl Row {
    /// A figure that must not exceed its limit.
    fn at_most(
        what: impl Into<String>,
        wanted: impl Into<String>,
        value: f64,
        limit: f64,
        unit: &str,
    ) -> Self {
        let measured = format!("{value:.3} {unit}");
        Self {
            shell: None,
            what: what.into(),
            wanted: wanted.into(),
            measured,
            value,
            limit: Some(limit),
            pass: value <= limit,
        }
    }
}

/// Runs all tests; the exit code says whether all passed.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    // Other shells have privileges of their own, and run as whoever called this.
    let compared = beside::compare(&arguments.compare)?;
    rootless::become_administrator()?;
    type Test = fn() -> Result<Vec<Row>, Failure>;
    let tests: [(&str, Test); 6] = [
        ("machine", machine),
        ("delay", delays),
        ("rate", rates),
        ("loss", losses),
        ("jitter", jitters),
        ("throughput", throughput),
    ];
    let mut rows = Vec::new();
    let chosen =
        |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name);
    for (name, test) in tests.into_iter().filter(|(name, _)| chosen(name)) {
        output::note(format_args!("testing {name} …\n"));
        rows.extend(test()?);
    }
    rows.extend(compared);
    if arguments.json {
        output::print(serde_json::to_string_pretty(&rows)?)?;
    } else {
        output::print(table(&rows))?;
    }
    Ok(if rows.iter().all(|row| row.pass) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// For people: a line each, those of a compared program under its name.
fn table(rows: &[Row]) -> String {
    let mut out = String::new();
    let mut shell = &None;
    for row in rows {
        if row.shell != *shell {
            shell = &row.shell;
            out += &format!("{}\n", shell.as_deref().unwrap_or_default());
        }
        let word = if row.limit.is_none() {
            ""
        } else if row.pass {
            "ok"
        } else {
            "FAIL"
        };
        let wanted = if row.limit.is_some() { "wanted: " } else { "" };
        out += &format!(
            "{word:<4} {:<66} {:>13}   {wanted}{}\n",
            row.what, row.measured, row.wanted
        );
    }
    out
}

/// Two namespaces with a link between them.
struct Pair {
    from: Netns,
    to: Netns,
    emulator: Emulator,
}

impl Pair {
    fn new(there: LinkConfig) -> Result<Self, Failure> {
        let back = LinkConfig {
            delay: there.delay,
            ..LinkConfig::default()
        };
        let hosts = TwoHosts::set_up([RECEIVER, SENDER], [there, back], 1, &Setup::default())?;
        let TwoHosts {
            near: to,
            far: from,
            emulator,
        } = hosts;
        Ok(Self { from, to, emulator })
    }

    /// Sends `count` datagrams, one each `gap`; returns number, one-way delay in seconds and
    /// arrival of each that came.
    fn probe(
        &self,
        port: u16,
        count: u32,
        gap: Duration,
        size: usize,
    ) -> Result<Vec<Arrival>, Failure> {
        let receiver = self.to.run(|| UdpSocket::bind((RECEIVER, port)))?;
        let sender = self.from.run(|| UdpSocket::bind((SENDER, port)))?;
        SockRef::from(&receiver).set_recv_buffer_size(8 << 20)?;
        receiver.set_read_timeout(Some(Duration::from_secs(1)))?;
        let start = Instant::now();
        let sending =
            thread::spawn(move || send(&sender, (RECEIVER, port).into(), start, count, gap, size));
        let receiving = thread::spawn(move || receive(&receiver, start, count));
        let sent = sending.join().map_err(|_| "the sender panicked")?;
        let arrivals = receiving.join().map_err(|_| "the receiver panicked")?;
        sent?;
        Ok(arrivals)
    }
}

struct Arrival {
    number: u32,
    delay: f64,
    at: Duration,
}

fn send(
    socket: &UdpSocket,
    to: SocketAddr,
    start: Instant,
    count: u32,
    gap: Duration,
    size: usize,
) -> std::io::Result<()> {
    // Without real-time priority the figures are worse, and say so.
    let _ = sys::use_realtime(PROBE_PRIORITY);
    let _ = sys::use_exact_timers();
    let mut datagram = vec![0; size.max(12)];
    for number in 0..count {
        let wait = (gap * number).saturating_sub(start.elapsed());
        if !wait.is_zero() {
            thread::sleep(wait);
        }
        datagram[..4].copy_from_slice(&number.to_be_bytes());
        datagram[4..12].copy_from_slice(&(start.elapsed().as_nanos() as u64).to_be_bytes());
        socket.send_to(&datagram, to)?;
    }
    Ok(())
}

/// Receives until all have come, or none for a second.
fn receive(socket: &UdpSocket, start: Instant, count: u32) -> Vec<Arrival> {
    let _ = sys::use_realtime(PROBE_PRIORITY);
    let mut arrivals = Vec::with_capacity(count as usize);
    let mut datagram = [0; 2000];
    while arrivals.len() < count as usize && socket.recv(&mut datagram).is_ok() {
        let at = start.elapsed();
        let field = |from: usize, to: usize| {
            datagram[from..to]
                .iter()
                .fold(0u64, |n, b| n << 8 | u64::from(*b))
        };
        let delay = at.as_secs_f64() - field(4, 12) as f64 / 1e9;
        arrivals.push(Arrival {
            number: field(0, 4) as u32,
            delay,
            at,
        });
    }
    arrivals
}

/// Times that a case may be tried: on a virtual machine, the host takes the processor away for
/// milliseconds now and then.
const ATTEMPTS: u32 = 3;

/// Probes of one case, one each millisecond: long enough that a single pause of the machine is not
/// a hundredth of it.
const PROBES: u32 = 5000;

/// Packets of 100 Mbit/s in the same time.
const BULK: u32 = PROBES * 25 / 3;

/// Measures how late a thread without any work wakes up: the delay that the machine adds before the
/// emulator does anything.
fn machine() -> Result<Vec<Row>, Failure> {
    let nap = Duration::from_millis(1);
    let napping = thread::spawn(move || {
        let _ = sys::use_realtime(PROBE_PRIORITY);
        let _ = sys::use_exact_timers();
        let late = |start: Instant| (start.elapsed().saturating_sub(nap)).as_secs_f64() * 1e3;
        let mut times = Vec::new();
        for _ in 0..2000 {
            let start = Instant::now();
            thread::sleep(nap);
            times.push(late(start));
        }
        times
    });
    let times = napping.join().map_err(|_| "a thread panicked")?;
    let value = percentile(&times, 99.0).unwrap_or(f64::INFINITY);
    let worst = times.iter().copied().fold(0.0, f64::max);
    let what = format!("this machine wakes threads late (at most {worst:.1} ms): p99");
    Ok(vec![Row::at_most(
        what,
        "at most 0.3 ms, or the machine is too busy",
        value,
        0.3,
        "ms",
    )])
}

fn delays() -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for (ms, bulk) in [
        (5, false),
        (50, false),
        (200, false),
        (400, false),
        (50, true),
        (400, true),
    ] {
        for attempt in 1..=ATTEMPTS {
            let measured = delay(ms, bulk, attempt)?;
            if attempt == ATTEMPTS || measured.iter().all(|row| row.pass) {
                rows.extend(measured);
                break;
            }
        }
    }
    Ok(rows)
}

fn delay(ms: u64, bulk: bool, attempt: u32) -> Result<Vec<Row>, Failure> {
    let pair = Pair::new(delayed(ms))?;
    let arrivals = thread::scope(|scope| {
        // 100 Mbit/s of full packets beside the probes.
        let beside = bulk.then(|| {
            scope.spawn(|| {
                pair.probe(9001, BULK, Duration::from_micros(120), FULL)
                    .is_ok()
            })
        });
        let arrivals = pair.probe(9000, PROBES, Duration::from_millis(1), 100);
        beside.map(|thread| thread.join().ok());
        arrivals
    })?;
    let beside = if bulk { " beside 100 Mbit/s" } else { "" };
    let again = if attempt > 1 {
        format!(" (attempt {attempt})")
    } else {
        String::new()
    };
    Ok(delay_rows(
        &format!("delay {ms} ms{beside}{again}"),
        ms,
        &arrivals,
        &pair.emulator,
    ))
}

fn delayed(ms: u64) -> LinkConfig {
    LinkConfig {
        delay: Duration::from_millis(ms),
        ..LinkConfig::default()
    }
}

fn delay_rows(what: &str, ms: u64, arrivals: &[Arrival], emulator: &Emulator) -> Vec<Row> {
    let errors: Vec<f64> = arrivals
        .iter()
        .map(|arrival| (arrival.delay * 1e3 - ms as f64).abs())
        .collect();
    let row = |percent: f64, limit: f64| {
        let value = percentile(&errors, percent).unwrap_or(f64::INFINITY);
        Row::at_most(
            format!("{what}: error at p{percent}"),
            format!("at most {limit} ms"),
            value,
            limit,
            "ms",
        )
    };
    let late = emulator.snapshot().lateness;
    let own = Row::at_most(
        format!("{what}: emulator late at p99"),
        "at most 0.3 ms",
        late.p99_ms,
        0.3,
        "ms",
    );
    vec![row(50.0, 0.2), row(99.0, 0.3), own]
}

fn rates() -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for mbit in [1, 8, 20, 100] {
        let queue = QueueLimits {
            packets: Some(50),
            bytes: None,
            codel: None,
        };
        let rate = Rate::Constant(mbit * 1_000_000);
        let pair = Pair::new(LinkConfig {
            rate,
            queue,
            ..LinkConfig::default()
        })?;
        // A quarter more than fits, for two seconds.
        let packet_time = Duration::from_nanos(12_000_000 / mbit);
        let count = (Duration::from_secs(2).as_nanos() / (packet_time.as_nanos() * 4 / 5)) as u32;
        let arrivals = pair.probe(9000, count, packet_time * 4 / 5, FULL)?;
        let span = arrivals
            .last()
            .zip(arrivals.first())
            .map_or(0.0, |(b, a)| (b.at - a.at).as_secs_f64());
        let measured = (arrivals.len().saturating_sub(1) * 1500 * 8) as f64 / span / 1e6;
        let error = (measured / mbit as f64 - 1.0).abs() * 100.0;
        rows.push(Row::at_most(
            format!("rate {mbit} Mbit/s: {measured:.3}"),
            "error at most 1 %",
            error,
            1.0,
            "%",
        ));
    }
    Ok(rows)
}

fn losses() -> Result<Vec<Row>, Failure> {
    const COUNT: u32 = 40_000;
    let bursts = Loss::GilbertElliott {
        worsen: 0.01,
        recover: 0.25,
        good: 0.0,
        bad: 1.0,
    };
    let cases = [
        ("1 %", Loss::Independent(0.01)),
        ("bursts ge:1%,25%", bursts),
        ("every:50", Loss::EveryNth(50)),
        ("exp:0.5%", Loss::ExponentialGaps(0.005)),
    ];
    let mut rows = Vec::new();
    for (name, loss) in cases {
        let pair = Pair::new(LinkConfig {
            loss,
            ..LinkConfig::default()
        })?;
        let arrivals = pair.probe(9000, COUNT, Duration::from_micros(60), 100)?;
        let share = 1.0 - arrivals.len() as f64 / f64::from(COUNT);
        // Variance of a sum of runs: bursts of mean length L count as fewer, larger events.
        let run = if matches!(loss, Loss::GilbertElliott { .. }) {
            7.0
        } else {
            1.0
        };
        let deviation = (loss.expected() * run / f64::from(COUNT)).sqrt();
        let off = (share - loss.expected()).abs() / deviation;
        let what = format!(
            "loss {name}: {:.3} % (expected {:.3})",
            share * 100.0,
            loss.expected() * 100.0
        );
        rows.push(Row::at_most(
            what,
            "within 3.3 standard deviations",
            off,
            3.3,
            "sd",
        ));
        let dropped = pair
            .emulator
            .stop()
            .0
            .ports
            .iter()
            .map(|port| port.dropped_before + port.refused)
            .sum::<u64>();
        rows.push(Row::at_most(
            format!("loss {name}: packets lost elsewhere"),
            "none",
            dropped as f64,
            0.0,
            "",
        ));
    }
    Ok(rows)
}

fn jitters() -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for (name, shape) in [
        ("exp:5ms,reorder", Shape::Exponential),
        ("normal:5ms,reorder", Shape::Normal),
    ] {
        let jitter = Some(Jitter {
            shape,
            scale: Duration::from_millis(5),
            reorder: true,
        });
        let pair = Pair::new(LinkConfig {
            jitter,
            ..delayed(50)
        })?;
        let arrivals = pair.probe(9000, 3000, Duration::from_millis(1), 100)?;
        let inversions = arrivals
            .windows(2)
            .filter(|pair| pair[1].number < pair[0].number)
            .count();
        let sample: Vec<f64> = arrivals
            .iter()
            .map(|arrival| (arrival.delay - 0.05) / 0.005)
            .collect();
        let d = kolmogorov_smirnov(
            sample,
            if shape == Shape::Normal {
                normal
            } else {
                exponential
            },
        );
        let what = format!("jitter {name} ({inversions} inversions)");
        rows.push(Row::at_most(
            what,
            format!("Kolmogorov-Smirnov below {KOLMOGOROV}"),
            d,
            KOLMOGOROV,
            "",
        ));
    }
    Ok(rows)
}

fn exponential(x: f64) -> f64 {
    if x < 0.0 { 0.0 } else { 1.0 - (-x).exp() }
}

/// The normal distribution by its series around 0, which converges fast enough within six
/// deviations.
fn normal(x: f64) -> f64 {
    let x = x.clamp(-6.0, 6.0);
    let (mut term, mut sum) = (x, x);
    for n in 1..100 {
        term *= -x * x / 2.0 / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    0.5 + sum / (2.0 * std::f64::consts::PI).sqrt()
}

fn kolmogorov_smirnov(mut sample: Vec<f64>, distribution: fn(f64) -> f64) -> f64 {
    sample.sort_by(f64::total_cmp);
    let n = sample.len() as f64;
    let distance = |(i, x): (usize, &f64)| {
        let p = distribution(*x);
        (p - i as f64 / n).abs().max((p - (i + 1) as f64 / n).abs())
    };
    sample.iter().enumerate().map(distance).fold(0.0, f64::max) * n.sqrt()
}

/// Runs one TCP connection at full speed, and measures its throughput and round trip.
fn throughput() -> Result<Vec<Row>, Failure> {
    let pair = Pair::new(LinkConfig::default())?;
    let (rate, _) = bulk(&pair)?;
    let gbit = rate / 1e9;
    let row = Row {
        shell: None,
        what: "TCP through the emulator".into(),
        wanted: "at least 1 Gbit/s (release build)".into(),
        measured: format!("{gbit:.3} Gbit/s"),
        value: gbit,
        limit: Some(1.0),
        pass: gbit >= 1.0,
    };
    let (_, handshake) = bulk(&Pair::new(delayed(50))?)?;
    let error = (handshake.as_secs_f64() * 1e3 - 100.0).abs();
    Ok(vec![
        row,
        Row::at_most(
            "TCP handshake at 100 ms: error",
            "at most 0.6 ms",
            error,
            0.6,
            "ms",
        ),
    ])
}

/// Bits per second of payload over two seconds, and the time of the handshake.
fn bulk(pair: &Pair) -> Result<(f64, Duration), Failure> {
    const SPAN: Duration = Duration::from_secs(2);
    let listener = pair.to.run(|| TcpListener::bind((RECEIVER, 9000)))?;
    let receiving = thread::spawn(move || -> std::io::Result<f64> {
        let (mut stream, _) = listener.accept()?;
        let mut buffer = vec![0; 1 << 18];
        let (start, mut bytes) = (Instant::now(), 0);
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(bytes as f64 * 8.0 / start.elapsed().as_secs_f64()),
                len => bytes += len,
            }
        }
    });
    let start = Instant::now();
    let mut stream = pair.from.run(|| TcpStream::connect((RECEIVER, 9000)))?;
    let handshake = start.elapsed();
    let block = vec![0; 1 << 18];
    while start.elapsed() < SPAN {
        stream.write_all(&block)?;
    }
    drop(stream);
    let rate = receiving.join().map_err(|_| "the receiver panicked")??;
    Ok((rate, handshake))
}
