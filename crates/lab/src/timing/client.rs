//! The timing client: the three phases of a run, and the samples taken in them.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::TimingError;
use super::connect::open;
use super::report::{Sample, TimingReport};
use super::wire::{self, Blocks, Mode, PAIR, STAMP};
use tandem_web::loader::Via;

/// Time that stamps under way get at the end.
const GRACE: Duration = Duration::from_secs(10);

const SECOND: Duration = Duration::from_secs(1);

/// The direction of bulk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the server to the client.
    Down,
    /// From the client to the server.
    Up,
}

/// When bulk begins to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmUp {
    /// Once its rate is steady (see [`is_steady`]), but no later than after so long.
    Steady(Duration),
    /// After so long.
    For(Duration),
}

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct TimingPlan {
    /// The server's `host:port`.
    pub server: String,
    /// The way there.
    pub via: Via,
    /// Bulk streams; 0 for stamps alone.
    pub streams: usize,
    /// The direction of the stamps.
    pub direction: Direction,
    /// Time between two stamps on the kept connection.
    pub interval: Duration,
    /// Time between two stamps with a connection of their own; `None` for none.
    pub fresh: Option<Duration>,
    /// Stamps without bulk.
    pub base: Duration,
    /// Bulk before anything counts.
    pub warm_up: WarmUp,
    /// The duration of the measured phase.
    pub time: Duration,
}

/// The phases of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TimingPhase {
    /// Stamps alone.
    Base,
    /// Bulk that is not steady yet.
    WarmUp,
    /// The measured phase.
    Measured,
}

impl TimingPhase {
    /// Returns the text form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::WarmUp => "warm-up",
            Self::Measured => "measured",
        }
    }
}

/// Bulk of one second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bulk {
    pub(super) phase: TimingPhase,
    /// Megabits per second.
    pub(super) mbit: f64,
    /// Mean age of blocks as they arrived, in milliseconds.
    pub(super) age: Option<f64>,
}

/// Returns true if a rate is steady: the mean of the last three seconds is within a tenth of that
/// of the three before.
pub fn is_steady(rates: &[f64]) -> bool {
    let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
    let Some((rest, last)) = rates.split_last_chunk::<3>() else {
        return false;
    };
    let Some((_, before)) = rest.split_last_chunk::<3>() else {
        return false;
    };
    let (last, before) = (mean(last), mean(before));
    before > 0.0 && (last / before - 1.0).abs() <= 0.1
}

/// Measures; `say` is told of every second. Within a `LocalSet`.
pub async fn run(
    plan: &TimingPlan,
    mut say: impl FnMut(&str),
) -> Result<TimingReport, TimingError> {
    let notes = Rc::new(Notes::new());
    let mut stamps = JoinSet::new();
    let (kept, clock) = greet(plan, Mode::Echo).await?;
    let same_clock = clock == wire::clock();
    notes.begin();
    notes.senders.set(1 + u32::from(plan.fresh.is_some()));
    let (read, write) = kept;
    stamps.spawn_local(hear(read, Rc::clone(&notes), same_clock));
    stamps.spawn_local(speak(write, Rc::clone(&notes), plan.interval));
    if let Some(every) = plan.fresh {
        stamps.spawn_local(knock(plan.clone(), Rc::clone(&notes), every));
    }
    let (bulk, steady) = phases(plan, &notes, &mut say).await?;
    notes.end.set(Some(SECOND * bulk.len() as u32));
    let end = Instant::now() + GRACE;
    while notes.is_waiting() && Instant::now() < end && notes.failed.borrow().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    notes.check()?;
    let now = notes.elapsed();
    TimingReport::new(
        plan,
        same_clock,
        steady,
        &bulk,
        &notes.kept.borrow(),
        &notes.fresh.borrow(),
        now,
    )
}

/// The seconds of all phases, and whether the rate was steady when it began to count.
async fn phases(
    plan: &TimingPlan,
    notes: &Rc<Notes>,
    say: &mut impl FnMut(&str),
) -> Result<(Vec<Bulk>, Option<bool>), TimingError> {
    let mut streams = JoinSet::new();
    let mut seconds: Vec<Bulk> = Vec::new();
    let (base, time) = (whole(plan.base), whole(plan.time).max(1));
    let mut phase = if base > 0 {
        TimingPhase::Base
    } else {
        TimingPhase::WarmUp
    };
    let (mut left, mut steady, mut last) = (base, None, Instant::now());
    loop {
        if phase != TimingPhase::Base && streams.is_empty() && plan.streams > 0 {
            (0..plan.streams)
                .for_each(|_| drop(streams.spawn_local(bulk(plan.clone(), Rc::clone(notes)))));
        }
        if phase == TimingPhase::WarmUp {
            let warm: Vec<f64> = seconds
                .iter()
                .filter(|s| s.phase == TimingPhase::WarmUp)
                .map(|second| second.mbit)
                .collect();
            let (over, is_steady) = match plan.warm_up {
                _ if plan.streams == 0 => (true, None),
                WarmUp::For(limit) => (warm.len() as u64 >= whole(limit), None),
                WarmUp::Steady(limit) => (
                    is_steady(&warm) || warm.len() as u64 >= whole(limit),
                    Some(is_steady(&warm)),
                ),
            };
            if over {
                (phase, left, steady) = (TimingPhase::Measured, time, is_steady);
            }
        }
        tokio::time::sleep_until(notes.start() + SECOND * (seconds.len() as u32 + 1)).await;
        notes.check()?;
        let now = Instant::now();
        let second = notes.take_bulk(phase, now - last);
        last = now;
        seconds.push(second);
        say(&format!(
            "{:>4} s  {:<8}  {:>9.3} Mbit/s  {}",
            seconds.len(),
            phase.as_str(),
            second.mbit,
            notes.last(seconds.len())
        ));
        left = left.saturating_sub(1);
        match phase {
            TimingPhase::Base if left == 0 => phase = TimingPhase::WarmUp,
            TimingPhase::Measured if left == 0 => return Ok((seconds, steady)),
            _ => {}
        }
    }
}

/// Whole seconds, upwards.
fn whole(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// The samples of a run so far.
pub(super) struct Notes {
    /// The beginning: moment and wall clock.
    begun: Cell<(Instant, u64)>,
    kept: RefCell<Vec<Sample>>,
    fresh: RefCell<Vec<Sample>>,
    bytes: Cell<u64>,
    /// Sum of the ages of blocks in milliseconds, and their number.
    ages: Cell<(f64, u32)>,
    failed: RefCell<Option<TimingError>>,
    /// Stamps that are due from then on are no longer sent.
    end: Cell<Option<Duration>>,
    /// Tasks that may still send stamps.
    senders: Cell<u32>,
}

impl Notes {
    fn new() -> Self {
        Self {
            begun: Cell::new((Instant::now(), wire::now())),
            kept: RefCell::default(),
            fresh: RefCell::default(),
            bytes: Cell::new(0),
            ages: Cell::default(),
            failed: RefCell::default(),
            end: Cell::new(None),
            senders: Cell::new(0),
        }
    }

    fn begin(&self) {
        self.begun.set((Instant::now(), wire::now()));
    }

    fn start(&self) -> Instant {
        self.begun.get().0
    }

    /// Since the beginning, in milliseconds.
    fn elapsed(&self) -> f64 {
        ms(self.start().elapsed())
    }

    /// The stamp of a moment.
    fn stamp(&self, due: Duration) -> u64 {
        self.begun.get().1 + due.as_nanos() as u64
    }

    /// Milliseconds from the beginning to a stamp of any clock.
    fn since_begin(&self, stamp: u64) -> f64 {
        (i128::from(stamp) - i128::from(self.begun.get().1)) as f64 / 1e6
    }

    fn fail(&self, error: TimingError) {
        self.failed.borrow_mut().get_or_insert(error);
    }

    fn check(&self) -> Result<(), TimingError> {
        self.failed.borrow_mut().take().map_or(Ok(()), Err)
    }

    /// Waits until a stamp is due; false once none is any more. Those that are late are sent all
    /// the same: they count from the moment at which they were due.
    async fn is_due(&self, due: Duration) -> bool {
        tokio::time::sleep_until(self.start() + due).await;
        let goes_on = self.end.get().is_none_or(|end| due < end);
        if !goes_on {
            self.senders.set(self.senders.get() - 1);
        }
        goes_on
    }

    fn is_waiting(&self) -> bool {
        let waits =
            |samples: &RefCell<Vec<Sample>>| samples.borrow().iter().any(Sample::is_waiting);
        self.senders.get() > 0 || waits(&self.kept) || waits(&self.fresh)
    }

    fn take_bulk(&self, phase: TimingPhase, time: Duration) -> Bulk {
        let (sum, count) = self.ages.take();
        let mbit = self.bytes.take() as f64 * 8.0 / 1e6 / time.as_secs_f64();
        Bulk {
            phase,
            mbit,
            age: (count > 0).then(|| sum / f64::from(count)),
        }
    }

    fn arrived(&self, bytes: u64) {
        self.bytes.set(self.bytes.get() + bytes);
    }

    fn aged(&self, ms: f64) {
        let (sum, count) = self.ages.get();
        self.ages.set((sum + ms, count + 1));
    }

    /// Describes the stamps of the last full second, for display.
    fn last(&self, seconds: usize) -> String {
        let (from, to) = ((seconds - 1) as f64 * 1e3, seconds as f64 * 1e3);
        let kept = self.kept.borrow();
        let of_second = kept
            .iter()
            .filter(|sample| (from..to).contains(&sample.due));
        let answered: Vec<f64> = of_second.filter_map(|sample| sample.whole).collect();
        if answered.is_empty() {
            return "no stamp came back".to_owned();
        }
        let mean = answered.iter().sum::<f64>() / answered.len() as f64;
        format!("{} stamps, {mean:.1} ms", answered.len())
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

type Halves = (BufReader<OwnedReadHalf>, OwnedWriteHalf);

/// Opens a connection and sends its mode; returns it with the name of the server's clock.
async fn greet(plan: &TimingPlan, mode: Mode) -> Result<(Halves, String), TimingError> {
    let stream = open(&plan.via, &plan.server).await?;
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::with_capacity(256 << 10, read);
    write
        .write_all(mode.request().as_bytes())
        .await
        .map_err(TimingError::broken("the server's connection"))?;
    let clock = answer(&mut read).await?;
    Ok(((read, write), clock))
}

async fn answer(read: &mut BufReader<OwnedReadHalf>) -> Result<String, TimingError> {
    let line = tokio::time::timeout(super::connect::LIMIT, wire::read_line(read)).await;
    let line = line.map_err(|_| TimingError::Server("does not answer".to_owned()))?;
    wire::of_reply(&line.map_err(TimingError::broken("the server's answer"))?)
        .map_err(TimingError::Server)
}

/// Sends stamps at their times on the kept connection.
async fn speak(mut write: OwnedWriteHalf, notes: Rc<Notes>, every: Duration) {
    for number in 0.. {
        let due = every * number;
        if !notes.is_due(due).await {
            // The connection stays open for the answers.
            return std::future::pending().await;
        }
        notes.kept.borrow_mut().push(Sample::due(ms(due)));
        if let Err(source) = write.write_all(&notes.stamp(due).to_be_bytes()).await {
            return notes.fail(TimingError::Broken {
                what: "the stamps' connection",
                source,
            });
        }
    }
}

/// Hears them come back, in order.
async fn hear(mut read: BufReader<OwnedReadHalf>, notes: Rc<Notes>, same_clock: bool) {
    let mut pair = [0; PAIR];
    for number in 0.. {
        if let Err(source) = read.read_exact(&mut pair).await {
            return notes.fail(TimingError::Broken {
                what: "the stamps' connection",
                source,
            });
        }
        let now = notes.elapsed();
        let [stamp, theirs] = numbers(&pair);
        let mut kept = notes.kept.borrow_mut();
        let Some(sample) = kept
            .get_mut(number)
            .filter(|sample| (notes.since_begin(stamp) - sample.due).abs() < 1e-3)
        else {
            drop(kept);
            return notes.fail(TimingError::Server(
                "sent back a stamp that it was not given".to_owned(),
            ));
        };
        sample.whole = Some(now - sample.due);
        if same_clock {
            let there = notes.since_begin(theirs);
            (sample.up, sample.down) = (Some(there - sample.due), Some(now - there));
        }
    }
}

fn numbers(pair: &[u8; PAIR]) -> [u64; 2] {
    let mut numbers = [0; 2];
    for (number, bytes) in numbers.iter_mut().zip(pair.chunks_exact(STAMP)) {
        *number = bytes
            .iter()
            .fold(0, |number, byte| (number << 8) | u64::from(*byte));
    }
    numbers
}

/// Sends single stamps at their times, each on a separate connection.
async fn knock(plan: TimingPlan, notes: Rc<Notes>, every: Duration) {
    let mut knocks = JoinSet::new();
    for number in 0.. {
        let due = every * number;
        while knocks.try_join_next().is_some() {}
        if !notes.is_due(due).await {
            while knocks.join_next().await.is_some() {}
            return;
        }
        notes.fresh.borrow_mut().push(Sample::due(ms(due)));
        let (plan, notes) = (plan.clone(), Rc::clone(&notes));
        knocks.spawn_local(async move {
            let result = one_knock(&plan, &notes, due).await;
            let sample = &mut notes.fresh.borrow_mut()[number as usize];
            match result {
                Ok(connected) => {
                    (sample.connect, sample.whole) = (
                        Some(connected - sample.due),
                        Some(notes.elapsed() - sample.due),
                    )
                }
                Err(_) => sample.failed = true,
            }
        });
    }
}

/// The time at which the connection was open.
async fn one_knock(plan: &TimingPlan, notes: &Notes, due: Duration) -> Result<f64, TimingError> {
    let stream: TcpStream = open(&plan.via, &plan.server).await?;
    let connected = notes.elapsed();
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let flight = [
        Mode::Echo.request().as_bytes(),
        &notes.stamp(due).to_be_bytes(),
    ]
    .concat();
    let broken = || TimingError::broken("a stamp's connection");
    write.write_all(&flight).await.map_err(broken())?;
    answer(&mut read).await?;
    read.read_exact(&mut [0; PAIR]).await.map_err(broken())?;
    Ok(connected)
}

/// Runs a bulk stream for its lifetime.
async fn bulk(plan: TimingPlan, notes: Rc<Notes>) {
    let mode = if plan.direction == Direction::Down {
        Mode::Download
    } else {
        Mode::Upload
    };
    let result = match greet(&plan, mode).await {
        Err(error) => Err(error),
        Ok(((read, write), clock)) => {
            let same_clock = clock == wire::clock();
            // The half that is not used stays open: it ends with the stream.
            let result = match plan.direction {
                Direction::Down => (download(read, &notes, same_clock).await, drop(write)).0,
                Direction::Up => upload(read, write, &notes, same_clock).await,
            };
            result.map_err(TimingError::broken("a bulk stream"))
        }
    };
    if let Err(error) = result {
        notes.fail(error);
    }
}

async fn download(
    mut read: BufReader<OwnedReadHalf>,
    notes: &Notes,
    same_clock: bool,
) -> io::Result<()> {
    let (mut blocks, mut buffer) = (Blocks::default(), vec![0; 256 << 10]);
    loop {
        let count = read.read(&mut buffer).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        notes.arrived(count as u64);
        if same_clock {
            blocks.take(&buffer[..count], |stamp| {
                notes.aged(wire::now().saturating_sub(stamp) as f64 / 1e6)
            });
        }
    }
}

async fn upload(
    read: BufReader<OwnedReadHalf>,
    write: OwnedWriteHalf,
    notes: &Notes,
    same_clock: bool,
) -> io::Result<()> {
    tokio::select! {
        result = send_blocks(write) => result,
        result = hear_reports(read, notes, same_clock) => result,
    }
}

async fn send_blocks(mut write: OwnedWriteHalf) -> io::Result<()> {
    let mut block = wire::new_block();
    loop {
        block[..STAMP].copy_from_slice(&wire::now().to_be_bytes());
        write.write_all(&block).await?;
    }
}

/// Counts arrived bytes by the server's reports, since sent bytes may be in a queue.
async fn hear_reports(
    mut read: BufReader<OwnedReadHalf>,
    notes: &Notes,
    same_clock: bool,
) -> io::Result<()> {
    let (mut pair, mut known) = ([0; PAIR], 0);
    loop {
        read.read_exact(&mut pair).await?;
        let [total, age] = numbers(&pair);
        notes.arrived(total.saturating_sub(known));
        if same_clock && total > known {
            notes.aged(age as f64 / 1e6);
        }
        known = total.max(known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_is_three_seconds_like_the_three_before() {
        assert!(!is_steady(&[]) && !is_steady(&[8.0; 5]));
        assert!(is_steady(&[8.0; 6]));
        assert!(is_steady(&[0.0, 1.0, 8.0, 8.0, 7.0, 7.5, 8.0, 8.0]));
        assert!(!is_steady(&[1.0, 2.0, 4.0, 6.0, 7.0, 8.0]));
        assert!(!is_steady(&[0.0; 6]), "nothing is not steady");
    }

    #[test]
    fn seconds_are_counted_upwards() {
        assert_eq!(
            [0, 1, 999, 1000, 1001].map(|ms| whole(Duration::from_millis(ms))),
            [0, 1, 1, 1, 2]
        );
    }

    #[test]
    fn numbers_are_read_as_they_are_written() {
        let mut pair = [0; PAIR];
        pair[..STAMP].copy_from_slice(&u64::MAX.to_be_bytes());
        pair[STAMP..].copy_from_slice(&1_792_000_000_123_456_789_u64.to_be_bytes());
        assert_eq!(numbers(&pair), [u64::MAX, 1_792_000_000_123_456_789]);
    }
}
