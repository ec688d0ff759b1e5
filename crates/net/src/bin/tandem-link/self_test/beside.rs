//! `self-test --beside SHELL`: throughput and delay through other programs that run a command
//! behind an emulated link, in alternation with this one. Everything is measured out here; the
//! command that they run is this program's other end.
//!
//! ```text
//!   here: listener, datagrams        SHELL's link        shell-end, run by SHELL
//!   bulk:   ◀── SECRET u, blocks ────────────────────────  as many as fit, each way
//!           ──▶ blocks ──────────────────────────────────  after SECRET d
//!           ◀── SECRET c, its own processor time ────────
//!   probe:  ◀── datagrams with the time they were sent ──  about one a millisecond, alone or beside 100 Mbit/s
//! ```

mod end;

use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::str::FromStr as _;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use clap::{Args, ValueEnum};
use socket2::SockRef;
use tandem_net::emulator::sys::{self, ChildSetup};
use tandem_net::output;
use tandem_net::stats::{Summary, percentile};

use super::{Failure, PROBE_PRIORITY, Row};
pub(crate) use end::run_end;

/// The one-way delay of the cases that have a delay.
const DELAY_MS: u32 = 20;

/// Between two probes: not in step with any clock that ticks in milliseconds.
const GAP: Duration = Duration::from_micros(1037);

/// The interval between two full packets at 100 Mbit/s.
const BULK_GAP: Duration = Duration::from_micros(120);

/// Stands for the delay in a shell's command.
const PLACE: &str = "{ms}";

/// The time allowed for a run of a shell, in addition to the time asked for.
const LIMIT: Duration = Duration::from_secs(60);

/// Datagrams under way get this long.
const LAST: Duration = Duration::from_secs(1);

const BLOCK: usize = 1 << 18;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Task {
    /// A stream at full speed, in each direction.
    Bulk,
    /// Datagrams.
    Probe,
    /// Datagrams beside others.
    ProbeBeside,
}

/// The programs to compare, and the duration.
#[derive(Debug, Args)]
pub(crate) struct CompareArguments {
    /// Measure throughput and delay of another program of this kind beside this one, in
    /// alternation: how it begins, a command to follow, such as 'mm-delay {ms}' or 'mm-link up
    /// down'; {ms} stands for the delay (repeatable)
    #[arg(long, value_name = "SHELL", help_heading = "Beside other programs")]
    pub(super) beside: Vec<String>,
    /// Turns that each gets
    #[arg(long, default_value_t = 3, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1000), help_heading = "Beside other programs")]
    turns: u16,
    /// Time for each part of a turn
    #[arg(long, default_value = "3s", value_name = "TIME", value_parser = tandem_link::text::duration, help_heading = "Beside other programs")]
    time: Duration,
}

/// The arguments of the end inside the shell.
#[derive(Debug, Args)]
pub(crate) struct EndArguments {
    #[arg(value_enum)]
    task: Task,
    /// The port on which this side listens, for streams or datagrams.
    port: u16,
    /// The port for datagrams that are not read.
    sink: u16,
    secret: u64,
    /// Milliseconds.
    time: u64,
}

impl EndArguments {
    const fn new(task: Task, port: u16, sink: u16, secret: u64, time: Duration) -> Self {
        Self {
            task,
            port,
            sink,
            secret,
            time: time.as_millis() as u64,
        }
    }

    fn to_arguments(&self) -> Vec<String> {
        let task = self
            .task
            .to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default();
        let numbers = [
            u64::from(self.port),
            u64::from(self.sink),
            self.secret,
            self.time,
        ];
        std::iter::once(task)
            .chain(numbers.iter().map(u64::to_string))
            .collect()
    }
}

/// A program and its measured figures.
struct Shell {
    /// The name in the table.
    name: String,
    line: String,
    figures: Vec<(String, &'static str, Vec<f64>)>,
}

impl Shell {
    fn new(name: &str, line: String) -> Self {
        Self {
            name: name.to_owned(),
            line,
            figures: Vec::new(),
        }
    }

    fn add(&mut self, what: String, unit: &'static str, value: f64) {
        match self.figures.iter_mut().find(|(own, ..)| *own == what) {
            Some((.., values)) => values.push(value),
            None => self.figures.push((what, unit, vec![value])),
        }
    }

    /// Returns the rows: the median of each figure, and the spread over the turns.
    fn rows(&self) -> impl Iterator<Item = Row> {
        self.figures.iter().filter_map(|(what, unit, values)| {
            let all = Summary::of(values)?;
            Some(Row {
                shell: Some(self.name.clone()),
                what: what.clone(),
                wanted: format!("{} turns: {:.3}–{:.3}", all.count, all.min, all.max),
                measured: format!("{:.3} {unit}", all.median),
                value: all.median,
                limit: None,
                pass: true,
            })
        })
    }
}

/// Measures this program and others.
pub(super) fn compare(arguments: &CompareArguments) -> Result<Vec<Row>, Failure> {
    let CompareArguments {
        beside,
        turns,
        time,
    } = arguments;
    let mut rows = Vec::new();
    let own = std::env::current_exe()?;
    for other in beside {
        let delayed = other.contains(PLACE);
        let option = if delayed {
            format!("--delay {PLACE}ms ")
        } else {
            String::new()
        };
        let quoted = own.display().to_string().replace('\'', "'\\''");
        let ours = Shell::new(
            &format!("tandem-link {option}--"),
            format!("'{quoted}' --quiet {option}--"),
        );
        // The other program comes first, since it may not work.
        let mut shells = [Shell::new(other, other.clone()), ours];
        for turn in 1..=*turns {
            for shell in &mut shells {
                output::note(format_args!(
                    "measuring {}, turn {turn} of {turns} …\n",
                    shell.name
                ));
                take_turn(shell, delayed, *time)?;
            }
        }
        rows.extend(shells.iter().rev().flat_map(Shell::rows));
    }
    Ok(rows)
}

fn take_turn(shell: &mut Shell, delayed: bool, time: Duration) -> Result<(), Failure> {
    let delays: &[u32] = if delayed { &[0, DELAY_MS] } else { &[0] };
    for ms in delays {
        let place = if delayed {
            format!(" at {ms} ms")
        } else {
            String::new()
        };
        let Throughput {
            out,
            back,
            processor,
        } = bulk(&shell.line, *ms, time)?;
        shell.add(format!("TCP out{place}"), "Gbit/s", out);
        shell.add(format!("TCP back{place}"), "Gbit/s", back);
        shell.add(format!("its processor time{place}"), "s/Gbit", processor);
    }
    let due = if delayed { DELAY_MS } else { 0 };
    for (task, beside) in [(Task::Probe, ""), (Task::ProbeBeside, " beside 100 Mbit/s")] {
        let delays = probe(&shell.line, due, task, time)?;
        let lost = 1.0 - delays.len() as f64 / f64::from(count(time, GAP));
        let errors: Vec<f64> = delays
            .iter()
            .map(|delay| (delay - f64::from(due)).abs())
            .collect();
        let what = if delayed { "delay error" } else { "delay" };
        for percent in [50.0, 99.0] {
            let value = percentile(&errors, percent)
                .ok_or_else(|| format!("{}: no datagram came", shell.name))?;
            shell.add(format!("{what}{beside}, p{percent}"), "ms", value);
        }
        shell.add(format!("datagrams lost{beside}"), "%", lost * 100.0);
    }
    Ok(())
}

/// Returns the number of datagrams in a time.
fn count(time: Duration, gap: Duration) -> u32 {
    (time.as_nanos() / gap.as_nanos()).clamp(1, 1 << 30) as u32
}

struct Throughput {
    /// The throughput from the command, in gigabits per second.
    out: f64,
    /// The throughput to the command.
    back: f64,
    /// Seconds of processor time for a gigabit, of all of the shell but the command.
    processor: f64,
}

fn bulk(line: &str, ms: u32, time: Duration) -> Result<Throughput, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    listener.set_nonblocking(true)?;
    let secret = secret();
    let before = processor_time()?.1;
    let mut running = {
        let told = EndArguments::new(Task::Bulk, listener.local_addr()?.port(), 0, secret, time);
        Running::start(line, ms, &told)?
    };
    let (mut out, mut back, mut own) = (None, None, None);
    while running.goes_on()? {
        let Ok((mut stream, _)) = listener.accept() else {
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        match greeting(&mut stream, secret) {
            Ok(b'u') => out = Some(receive(&mut stream)?),
            Ok(b'd') => back = Some(send(&mut stream, time)?),
            Ok(b'c') => own = Some(read_number(&mut stream)?),
            // The connection came from another process that has found the port.
            Ok(_) | Err(_) => {}
        }
    }
    let (Some(out), Some(back), Some(own)) = (out, back, own) else {
        return Err(running.failure());
    };
    // The processor time of the shell and its command is known once both have ended.
    let all = processor_time()?.1 - before;
    let processor = (all - own).max(0.0) / (out.bits + back.bits) * 1e9;
    Ok(Throughput {
        out: out.rate(),
        back: back.rate(),
        processor,
    })
}

/// Measures one-way delays in milliseconds.
fn probe(line: &str, ms: u32, task: Task, time: Duration) -> Result<Vec<f64>, Failure> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let sink = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    SockRef::from(&socket).set_recv_buffer_size(8 << 20)?;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    let secret = secret();
    let ports = (socket.local_addr()?.port(), sink.local_addr()?.port());
    let mut running = Running::start(
        line,
        ms,
        &EndArguments::new(task, ports.0, ports.1, secret, time),
    )?;
    let (due, limit) = (count(time, GAP) as usize, time + LIMIT);
    let listening = thread::spawn(move || {
        let _ = sys::use_realtime(PROBE_PRIORITY);
        let (mut delays, mut heard, mut datagram) = (Vec::new(), Instant::now(), [0; 2000]);
        while delays.len() < due && heard.elapsed() < if delays.is_empty() { limit } else { LAST } {
            let Ok(16..) = socket.recv(&mut datagram) else {
                continue;
            };
            let now = stamp();
            let field = |at: usize| {
                datagram[at..at + 8]
                    .iter()
                    .fold(0u64, |n, byte| n << 8 | u64::from(*byte))
            };
            if field(0) == secret {
                delays.push((i128::from(now) - i128::from(field(8))) as f64 / 1e6);
                heard = Instant::now();
            }
        }
        delays
    });
    while running.goes_on()? {
        thread::sleep(Duration::from_millis(20));
    }
    if !running.succeeded() {
        return Err(running.failure());
    }
    Ok(listening.join().map_err(|_| "a thread panicked")?)
}

/// A shell with the command in it; ended at the latest when this goes.
struct Running {
    child: Child,
    line: String,
    until: Instant,
    ended: bool,
    success: bool,
}

impl Running {
    fn start(line: &str, ms: u32, told: &EndArguments) -> Result<Self, Failure> {
        let line = line.replace(PLACE, &ms.to_string());
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(format!("exec {line} \"$@\""))
            .arg("sh")
            .arg(std::env::current_exe()?)
            .arg("shell-end");
        command.args(told.to_arguments());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        sys::prepare(
            &mut command,
            ChildSetup {
                own_session: true,
                ..ChildSetup::default()
            },
        );
        let child = command.spawn()?;
        let until = Instant::now() + LIMIT + 4 * Duration::from_millis(told.time);
        Ok(Self {
            child,
            line,
            until,
            ended: false,
            success: false,
        })
    }

    /// Returns true if the process has not ended yet. A process that does not end in time is an
    /// error.
    fn goes_on(&mut self) -> Result<bool, Failure> {
        if let Some(status) = self.child.try_wait()? {
            (self.ended, self.success) = (true, status.success());
        }
        if !self.ended && Instant::now() > self.until {
            return Err(format!("{}: does not end", self.line).into());
        }
        Ok(!self.ended)
    }

    fn succeeded(&self) -> bool {
        self.success
    }

    fn failure(&self) -> Failure {
        format!("{}: ended before everything was measured", self.line).into()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            let _ = sys::kill_group(self.child.id(), libc::SIGTERM);
            let _ = self.child.wait();
        }
    }
}

/// Returns a random number that tells the end inside from other processes that find the port.
fn secret() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// Reads the purpose of a connection.
fn greeting(stream: &mut TcpStream, secret: u64) -> io::Result<u8> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.set_write_timeout(Some(Duration::from_secs(10)))?;
    let mut greeting = [0; 9];
    stream.read_exact(&mut greeting)?;
    let [own @ .., kind] = greeting;
    if u64::from_be_bytes(own) == secret {
        Ok(kind)
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

struct Carried {
    bits: f64,
    time: Duration,
}

impl Carried {
    /// In gigabits per second.
    fn rate(&self) -> f64 {
        self.bits / self.time.as_secs_f64() / 1e9
    }
}

fn receive(stream: &mut TcpStream) -> io::Result<Carried> {
    let (start, mut buffer, mut bytes) = (Instant::now(), vec![0; BLOCK], 0);
    loop {
        match stream.read(&mut buffer)? {
            0 => {
                return Ok(Carried {
                    bits: bytes as f64 * 8.0,
                    time: start.elapsed(),
                });
            }
            len => bytes += len,
        }
    }
}

/// Until the other end has all of it.
fn send(stream: &mut TcpStream, time: Duration) -> io::Result<Carried> {
    let (start, block, mut bytes) = (Instant::now(), vec![0; BLOCK], 0);
    while start.elapsed() < time {
        bytes += stream.write(&block)?;
    }
    stream.shutdown(Shutdown::Write)?;
    stream.read_to_end(&mut Vec::new())?;
    Ok(Carried {
        bits: bytes as f64 * 8.0,
        time: start.elapsed(),
    })
}

fn read_number(stream: &mut TcpStream) -> io::Result<f64> {
    let mut number = [0; 8];
    stream.read_exact(&mut number)?;
    Ok(f64::from_be_bytes(number))
}

/// Seconds of processor time: of this process, and of its children that have ended, with theirs.
fn processor_time() -> io::Result<(f64, f64)> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    processor_time_of(&stat)
        .ok_or_else(|| io::Error::other("/proc/self/stat has no processor times"))
}

fn processor_time_of(stat: &str) -> Option<(f64, f64)> {
    // Hundredths of a second, whatever the kernel's own clock (proc(5)).
    const TICKS: f64 = 100.0;
    // The name may contain any character; field 3 follows it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    Some((
        (field(14)? + field(15)?) / TICKS,
        (field(16)? + field(17)?) / TICKS,
    ))
}

/// Returns the address of the host outside the shell: the one that this program's or mahimahi's
/// environment names, or else the default gateway.
fn host_around() -> Result<IpAddr, Failure> {
    let named = ["MAHIMAHI_BASE", "TANDEM_LINK_PEER"].map(|name| std::env::var(name).ok());
    if let Some(address) = named
        .into_iter()
        .flatten()
        .find_map(|text| IpAddr::from_str(&text).ok())
    {
        return Ok(address);
    }
    let routes = std::fs::read_to_string("/proc/net/route")?;
    default_gateway(&routes)
        .map(IpAddr::V4)
        .ok_or_else(|| "there is no default route inside the shell".into())
}

/// From the kernel's table: destination and gateway in hexadecimal, as this machine keeps
/// addresses.
fn default_gateway(routes: &str) -> Option<Ipv4Addr> {
    let mut defaults = routes
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let default = defaults.find(|fields| fields.get(1) == Some(&"00000000"))?;
    let gateway = u32::from_str_radix(default.get(2)?, 16)
        .ok()
        .filter(|gateway| *gateway != 0)?;
    Some(Ipv4Addr::from(gateway.to_ne_bytes()))
}

/// Returns the time since 1970 in nanoseconds, by the clock that all processes of this machine
/// share.
fn stamp() -> u64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_host_around() {
        let head = "Iface\tDestination\tGateway \tFlags\n";
        let gateway = u32::from_ne_bytes([10, 0, 0, 1]);
        let table =
            format!("{head}eth0\t0A00000A\t00000000\t0001\neth0\t00000000\t{gateway:08X}\t0003\n");
        assert_eq!(default_gateway(&table), Some(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(default_gateway(head), None);
        assert_eq!(
            default_gateway(&format!("{head}tun0\t00000000\t00000000\t0001\n")),
            None
        );
        assert_eq!(default_gateway("nonsense\n\n1 00000000 zz"), None);
    }

    #[test]
    fn reads_processor_times() {
        let stat = "7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 150 50 30 10 20 0 1 0";
        assert_eq!(processor_time_of(stat), Some((2.0, 0.4)));
        assert_eq!(processor_time_of("7 (a) S 1 7"), None);
        processor_time().expect("procfs");
    }

    #[test]
    fn figures_of_turns_are_kept_together() {
        let mut shell = Shell::new("x", "x".into());
        for value in [2.0, 1.0, 4.0] {
            shell.add("TCP".into(), "Gbit/s", value);
        }
        let row = shell.rows().next().expect("one");
        assert_eq!(
            (row.value, row.wanted.as_str(), row.limit),
            (2.0, "3 turns: 1.000–4.000", None)
        );
    }
}
