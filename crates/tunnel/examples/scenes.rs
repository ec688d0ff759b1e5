//! Measures bulk flows and short transfers over emulated links, in virtual time:
//!
//! ```sh
//! cargo run --release -p tandem-tunnel --example scenes -- [bbr|cubic] [SCENE]
//! ```
//!
//! The figures of a scene are means of three runs that begin at other times of its trace.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

use std::env;
use std::time::Duration;

use bytes::Bytes;
use tandem_link::loss::Loss;
use tandem_link::rate::{Rate, Trace};
use tandem_link::{Link, LinkConfig};
use tandem_tunnel::{Algorithm, Config, Event, Read, Side, StreamId, Tunnel};

const MS: Duration = Duration::from_millis(1);
const LTE: &str = include_str!("../../../experiments/traces/lte-down.steps");
/// The bytes of IP and UDP headers, and of the record of DTLS.
const OVERHEAD: usize = 28 + 29;
/// Rates of waves, one of them whose low rate is an eighth.
const WAVES: &str = "2s 4mbit\n2s 16mbit";
const STEEP: &str = "1s 2mbit\n1s 16mbit";
const STEP: &str = "5s 20mbit\n55s 2mbit";
const GROWTH: &str = "3s 4mbit\n57s 16mbit";

/// A link and its senders.
#[derive(Clone, Copy)]
struct Scene {
    name: &'static str,
    rtt: u32,
    /// A rate, or the text of a trace.
    rate: &'static str,
    queue: &'static str,
    /// A disturbance of the link and its description.
    line: (&'static str, &'static str),
    /// The time before the measurement, and its length, in seconds.
    times: (u32, u32),
    flows: Flows,
    /// True if the runs begin at other times of the trace.
    shifts: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flows {
    One,
    /// A second flow begins after 3 s.
    Two,
    /// A flow of CUBIC begins after 3 s.
    BesideCubic,
}

const PLAIN: Scene = Scene {
    name: "20 Mbit/s",
    rtt: 60,
    rate: "20mbit",
    queue: "64",
    line: ("", ""),
    times: (4, 12),
    flows: Flows::One,
    shifts: true,
};

const fn plain(queue: &'static str) -> Scene {
    Scene { queue, ..PLAIN }
}

const fn trace(name: &'static str, rate: &'static str, queue: &'static str) -> Scene {
    Scene {
        name,
        rate,
        queue,
        times: (4, 40),
        ..PLAIN
    }
}

/// A scene whose runs differ in nothing but the seed.
const fn once(
    name: &'static str,
    rate: &'static str,
    queue: &'static str,
    times: (u32, u32),
) -> Scene {
    Scene {
        times,
        shifts: false,
        ..trace(name, rate, queue)
    }
}

const fn line(
    name: &'static str,
    (rate, rtt): (&'static str, u32),
    queue: &'static str,
    line: (&'static str, &'static str),
) -> Scene {
    Scene {
        name,
        rtt,
        rate,
        queue,
        line,
        times: (6, 14),
        ..PLAIN
    }
}

const fn flows(name: &'static str, queue: &'static str, flows: Flows) -> Scene {
    Scene {
        name,
        queue,
        times: (6, 24),
        flows,
        ..PLAIN
    }
}

const SCENES: &[Scene] = &[
    plain("8"),
    plain("17"),
    plain("64"),
    plain("200"),
    once("start of 3 s", "20mbit", "17", (0, 3)),
    once("start of 3 s", "20mbit", "200", (0, 3)),
    trace("waves 4, 16", WAVES, "17"),
    trace("waves 4, 16", WAVES, "64"),
    trace("waves 4, 16", WAVES, "200"),
    trace("waves 2, 16", STEEP, "17"),
    trace("waves 2, 16", STEEP, "64"),
    once("step 20 to 2", STEP, "17", (5, 3)),
    once("step 20 to 2", STEP, "64", (5, 3)),
    once("step 20 to 2", STEP, "200", (5, 3)),
    once("growth 4 to 16", GROWTH, "17", (3, 2)),
    once("growth 4 to 16", GROWTH, "64", (3, 2)),
    once("growth 4 to 16", GROWTH, "200", (3, 2)),
    line("1 % loss", ("20mbit", 60), "64", ("loss", "1%")),
    line("2 % loss", ("20mbit", 60), "64", ("loss", "2%")),
    line("2 % loss", ("20mbit", 60), "17", ("loss", "2%")),
    line("5 % loss", ("20mbit", 60), "64", ("loss", "5%")),
    line("1 %, 100 Mbit/s", ("100mbit", 100), "833", ("loss", "1%")),
    line("1 %, 400 ms", ("100mbit", 400), "3333", ("loss", "1%")),
    line("2 %, 600 ms", ("20mbit", 600), "1000", ("loss", "2%")),
    line(
        "bursts",
        ("20mbit", 30),
        "50",
        ("loss", "ge:0.5%,20%,0,40%"),
    ),
    line("bursts", ("20mbit", 60), "64", ("loss", "ge:1%,20%,0,80%")),
    line("jitter", ("20mbit", 60), "200", ("jitter", "exp:20ms")),
    line(
        "reordering",
        ("20mbit", 60),
        "200",
        ("jitter", "exp:5ms,reorder"),
    ),
    line(
        "gaps",
        ("50mbit", 40),
        "200",
        ("gaps", "1s:100ms-500ms:500ms"),
    ),
    trace("LTE", LTE, "17"),
    trace("LTE", LTE, "64"),
    trace("LTE", LTE, "512"),
    flows("two flows", "17", Flows::Two),
    flows("two flows", "64", Flows::Two),
    flows("two flows", "200", Flows::Two),
    flows("beside CUBIC", "17", Flows::BesideCubic),
    flows("beside CUBIC", "64", Flows::BesideCubic),
    flows("beside CUBIC", "200", Flows::BesideCubic),
];

impl Scene {
    fn link(&self) -> LinkConfig {
        let rate = match self.rate.contains(' ') {
            true => Rate::Trace(Trace::parse(self.rate).expect("a trace").into()),
            false => self.rate.parse().expect("a rate"),
        };
        let mut link = LinkConfig {
            delay: self.rtt / 2 * MS,
            rate,
            queue: self.queue.parse().expect("a queue"),
            ..LinkConfig::default()
        };
        match self.line {
            ("loss", loss) => link.loss = loss.parse().expect("a loss"),
            ("jitter", jitter) => link.jitter = Some(jitter.parse().expect("a jitter")),
            ("gaps", gaps) => link.gaps = Some(gaps.parse().expect("gaps")),
            _ => {}
        }
        link
    }

    /// Runs the scene.
    fn run(&self, algorithm: Algorithm, run: u32) -> Figures {
        let shift = if self.shifts {
            run * 1370 * MS
        } else {
            Duration::ZERO
        };
        let mut senders = vec![(algorithm, shift)];
        match self.flows {
            Flows::One => {}
            Flows::Two => senders.push((algorithm, shift + 3000 * MS)),
            Flows::BesideCubic => senders.push((Algorithm::Cubic, shift + 3000 * MS)),
        }
        let mut path = Path::new(&senders, &self.link(), u64::from(run), shift);
        let (before, length) = self.times;
        path.run(shift + before * 1000 * MS);
        let (received, dropped) = (path.received(), path.dropped());
        path.waits.clear();
        path.run(shift + (before + length) * 1000 * MS);
        let rate = |(now, then): (u64, u64)| (now - then) as f64 * 8e-6 / f64::from(length);
        let rates: Vec<f64> = path
            .received()
            .into_iter()
            .zip(received)
            .map(rate)
            .collect();
        let now = path.dropped();
        let (dropped, entered) = (now.0 - dropped.0, now.1 - dropped.1);
        path.waits.sort_unstable();
        let wait = |share: f64| {
            let index = (path.waits.len() as f64 * share) as usize;
            path.waits
                .get(index)
                .map_or(0.0, |wait| wait.as_secs_f64() * 1e3)
        };
        let sum: f64 = rates.iter().sum();
        let compared = match self.flows {
            Flows::BesideCubic => rates[0],
            Flows::One | Flows::Two => rates.iter().fold(f64::MAX, |least, rate| least.min(*rate)),
        };
        Figures([
            sum,
            100.0 * dropped as f64 / entered.max(1) as f64,
            wait(0.5),
            wait(0.95),
            compared / sum.max(1e-9),
        ])
    }
}

/// Goodput in Mbit/s, lost packets in percent, two quantiles of the queue in ms, and the share of
/// the slower flow, or of the one beside CUBIC.
#[derive(Clone, Copy, Default)]
struct Figures([f64; 5]);

/// A sender, its receiver, and the stream between them.
struct Flow {
    sender: Tunnel,
    receiver: Tunnel,
    /// The time at which it begins.
    begin: Duration,
    stream: Option<StreamId>,
    received: u64,
}

impl Flow {
    fn read(&mut self, now: Duration) {
        while let Some(event) = self.receiver.poll_event() {
            let Event::Readable(id) = event else { continue };
            while let Ok(Read::Data(data)) = self.receiver.read(now, id, 64 << 10) {
                self.received += data.len() as u64;
            }
        }
        while self.sender.poll_event().is_some() {}
    }
}

struct Path {
    now: Duration,
    flows: Vec<Flow>,
    up: Link,
    down: Link,
    /// The times that delivered packets have waited for the link.
    waits: Vec<Duration>,
}

/// Returns the mean and the longest time in seconds that a transfer takes, from sixty places of the
/// trace of LTE.
fn transfers(algorithm: Algorithm, queue: &'static str, bytes: u64) -> (f64, f64) {
    let (mut sum, mut longest) = (0.0, 0.0_f64);
    let link = Scene {
        queue,
        rate: LTE,
        ..PLAIN
    }
    .link();
    for place in 0..60 {
        let begun = place * 500 * MS;
        let mut path = Path::new(&[(algorithm, begun)], &link, 1, begun);
        let flow = &mut path.flows[0];
        for tunnel in [&mut flow.sender, &mut flow.receiver] {
            tunnel.note_handshake(2 * link.delay);
        }
        let stream = flow.sender.open(begun).expect("an open tunnel");
        let mut data = Bytes::from(vec![7; bytes as usize]);
        flow.sender
            .write(stream, &mut data)
            .expect("an open stream");
        flow.sender.finish(stream).expect("an open stream");
        while path.flows[0].received < bytes && path.step(begun + 60_000 * MS) {}
        let time = (path.now - begun).as_secs_f64();
        (sum, longest) = (sum + time, longest.max(time));
    }
    (sum / 60.0, longest)
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let algorithm = match arguments.first().map(String::as_str) {
        Some("cubic") => Algorithm::Cubic,
        _ => Algorithm::Bbr,
    };
    let wanted = arguments.get(1).map_or("", String::as_str);
    println!("| scene | queue | Mbit/s | lost, % | queue p50, ms | p95, ms | share |");
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for scene in SCENES.iter().filter(|scene| scene.name.contains(wanted)) {
        let mut mean = [0.0; 5];
        for run in 0..3 {
            let Figures(figures) = scene.run(algorithm, run);
            mean.iter_mut()
                .zip(figures)
                .for_each(|(mean, figure)| *mean += figure / 3.0);
        }
        let [rate, lost, median, late, share] = mean;
        let (name, queue) = (scene.name, scene.queue);
        println!(
            "| {name} | {queue} | {rate:.2} | {lost:.2} | {median:.1} | {late:.1} | {share:.2} |"
        );
    }
    if "transfers".contains(wanted) {
        for (queue, bytes) in [
            ("512", 300_000),
            ("512", 1_000_000),
            ("64", 1_000_000),
            ("17", 1_000_000),
        ] {
            let (mean, longest) = transfers(algorithm, queue, bytes);
            println!(
                "| {} kB on LTE | {queue} | {mean:.3} s | {longest:.3} s |",
                bytes / 1000
            );
        }
    }
}

impl Path {
    fn new(senders: &[(Algorithm, Duration)], link: &LinkConfig, seed: u64, now: Duration) -> Self {
        let flow = |&(algorithm, begin): &(Algorithm, Duration)| {
            let config = Config {
                algorithm,
                ..Config::default()
            };
            Flow {
                sender: Tunnel::new(Side::Client, config.clone(), now),
                receiver: Tunnel::new(Side::Server, config, now),
                begin,
                stream: None,
                received: 0,
            }
        };
        let back = LinkConfig {
            loss: Loss::Never,
            rate: "20mbit".parse().expect("a rate"),
            ..link.clone()
        };
        Self {
            now,
            flows: senders.iter().map(flow).collect(),
            up: Link::new(link.clone(), seed).expect("a valid link"),
            down: Link::new(back, seed + 1000).expect("a valid link"),
            waits: Vec::new(),
        }
    }

    fn received(&self) -> Vec<u64> {
        self.flows.iter().map(|flow| flow.received).collect()
    }

    /// Returns the packets that the link has dropped, and those that entered it.
    fn dropped(&self) -> (u64, u64) {
        let stats = self.up.stats();
        let dropped = stats.lost.packets + stats.overflowed.packets + stats.managed.packets;
        (dropped, stats.received.packets)
    }

    /// Runs until this time. A flow writes from its beginning on.
    fn run(&mut self, until: Duration) {
        while self.now < until {
            for flow in &mut self.flows {
                if self.now < flow.begin {
                    continue;
                }
                let now = self.now;
                let open = |sender: &mut Tunnel| sender.open(now).expect("an open tunnel");
                let stream = *flow.stream.get_or_insert_with(|| open(&mut flow.sender));
                let mut data = Bytes::from_static(&[7; 1 << 20]);
                flow.sender
                    .write(stream, &mut data)
                    .expect("an open stream");
            }
            let next = (self.now + 20 * MS).min(until);
            while self.step(next) {}
        }
    }

    /// Advances to the next event, at most to `until`. Returns false if that is reached.
    fn step(&mut self, until: Duration) -> bool {
        let mut datagram = Vec::new();
        for (index, flow) in self.flows.iter_mut().enumerate() {
            for (tunnel, link) in [
                (&mut flow.sender, &mut self.up),
                (&mut flow.receiver, &mut self.down),
            ] {
                while tunnel.poll_output(self.now, &mut datagram) {
                    if datagram.len() + OVERHEAD > 1500 {
                        continue;
                    }
                    let mut packet = vec![index as u8; OVERHEAD];
                    packet[1..9].copy_from_slice(&(self.now.as_nanos() as u64).to_be_bytes());
                    packet.extend_from_slice(&datagram);
                    link.ingress(self.now, packet);
                }
            }
        }
        let timers = |flow: &Flow| [flow.sender.poll_timeout(), flow.receiver.poll_timeout()];
        let timers = self.flows.iter().flat_map(timers);
        let links = [self.up.next_due(), self.down.next_due()];
        let next = timers.chain(links).flatten().min().unwrap_or(until);
        let is_over = next >= until;
        self.now = next.max(self.now).min(until);
        self.deliver();
        !is_over
    }

    fn deliver(&mut self) {
        let Self {
            now,
            flows,
            up,
            down,
            waits,
        } = self;
        let propagation = up.config().delay;
        while let Some((due, packet)) = up.pop_due(*now) {
            let (head, datagram) = packet.split_at(OVERHEAD);
            let entered = head[1..9].try_into().map_or(0, u64::from_be_bytes);
            waits.push(due - Duration::from_nanos(entered) - propagation);
            let receiver = &mut flows[usize::from(head[0])].receiver;
            receiver
                .handle_input(*now, datagram, false)
                .expect("a datagram of the sender");
        }
        while let Some((_, packet)) = down.pop_due(*now) {
            let (head, datagram) = packet.split_at(OVERHEAD);
            let sender = &mut flows[usize::from(head[0])].sender;
            sender
                .handle_input(*now, datagram, false)
                .expect("a datagram of the receiver");
        }
        for flow in flows {
            flow.sender.handle_timeout(*now);
            flow.receiver.handle_timeout(*now);
            flow.read(*now);
        }
    }
}
