//! The model of one direction: loss, duplication and damage, then queue, rate and gaps, then delay.
//!
//! Three functions drive it by the caller's clock: [`Link::ingress`], [`Link::next_due`] and
//! [`Link::pop_due`]. Each event between two calls happens at its own virtual time, not at the time
//! of the call.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use crate::config::{ConfigError, LinkConfig};
use crate::damage;
use crate::delay::Delay;
use crate::gaps::Schedule;
use crate::loss::Losses;
use crate::queue::Queue;
use crate::random::{Purpose, Random};
use crate::rate::Server;
use crate::stats::Stats;

/// Most bytes on the line at once: more than 1 Gbit/s for two seconds.
const LINE_LIMIT: usize = 256 << 20;

/// A model of one direction of a link.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    seed: u64,
    arrivals: u64,
    attacked: u64,
    losses: Losses,
    delay: Delay,
    server: Option<Server>,
    gaps: Option<Schedule>,
    queue: Queue<Numbered>,
    sending: Option<(Numbered, Duration)>,
    line: Line,
    stats: Stats,
}

/// A packet and its number among all arrivals, which determines its fate.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Numbered {
    number: u64,
    bytes: Vec<u8>,
}

impl Link {
    /// An idle link; the seed decides every packet's fate.
    pub fn new(config: LinkConfig, seed: u64) -> Result<Self, ConfigError> {
        config.check()?;
        let delay = Delay::new(config.delay, config.jitter, seed);
        Ok(Self {
            losses: Losses::new(config.loss, seed),
            server: Server::new(&config.rate),
            gaps: config.gaps.map(|gaps| Schedule::new(gaps, seed)),
            queue: Queue::new(config.queue),
            line: Line::new(delay.reorders()),
            delay,
            config,
            seed,
            arrivals: 0,
            attacked: 0,
            sending: None,
            stats: Stats::default(),
        })
    }

    /// A packet enters.
    pub fn ingress(&mut self, now: Duration, mut packet: Vec<u8>) {
        self.advance(now);
        let number = self.arrivals;
        self.arrivals += 1;
        self.stats.received.add(packet.len());
        if self.losses.takes(number) {
            self.stats.lost.add(packet.len());
            return;
        }
        if self.config.duplicate > 0.0
            && self
                .random(Purpose::Duplicate, number)
                .chance(self.config.duplicate)
        {
            self.stats.duplicated.add(packet.len());
            self.enqueue(
                now,
                Numbered {
                    number,
                    bytes: packet.clone(),
                },
            );
        }
        self.damage(number, &mut packet);
        self.enqueue(
            now,
            Numbered {
                number,
                bytes: packet,
            },
        );
    }

    /// When something happens next: call [`Self::pop_due`] then.
    pub fn next_due(&self) -> Option<Duration> {
        let sent = self.sending.as_ref().map(|(_, done)| *done);
        [sent, self.line.next_due()].into_iter().flatten().min()
    }

    /// A packet that has arrived at the other end by `now`, with the time it arrived; `None` when
    /// there are no more.
    pub fn pop_due(&mut self, now: Duration) -> Option<(Duration, Vec<u8>)> {
        self.advance(now);
        let (due, packet) = self.line.pop(now)?;
        self.stats.delivered.add(packet.len());
        Some((due, packet))
    }

    /// Counters since the beginning.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Packets and bytes that wait for the rate.
    pub fn queued(&self) -> (usize, usize) {
        (self.queue.packets(), self.queue.bytes())
    }

    /// Returns the configuration of this link.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    fn random(&self, purpose: Purpose, number: u64) -> Random {
        Random::of(self.seed, purpose, number)
    }

    fn damage(&mut self, number: u64, packet: &mut [u8]) {
        let mut random = self.random(Purpose::Corrupt, number);
        if random.chance(self.config.corrupt) {
            damage::corrupt(packet, &mut random);
            self.stats.corrupted.add(packet.len());
        }
        let Some(reset) = self.config.reset else {
            return;
        };
        let to_port = damage::tcp_destination(packet)
            .is_some_and(|port| reset.port == 0 || reset.port == port);
        self.attacked += u64::from(to_port);
        if to_port
            && self.attacked > reset.after
            && self
                .random(Purpose::Reset, number)
                .chance(reset.probability)
        {
            damage::set_rst(packet);
            self.stats.reset.add(packet.len());
        }
    }

    fn enqueue(&mut self, now: Duration, packet: Numbered) {
        let len = packet.bytes.len();
        if self.server.is_none() {
            self.launch(self.open_at(now), packet);
        } else if self.sending.is_none() {
            self.stats.queue_delay.record(Duration::ZERO);
            self.send(now, packet);
        } else if self.queue.push(now, packet, len).is_err() {
            self.stats.overflowed.add(len);
        } else {
            self.stats.queue_peak = self.stats.queue_peak.max(self.queue.packets());
        }
    }

    /// Lets the server catch up with the clock: each packet is sent when the one before it was
    /// done.
    fn advance(&mut self, now: Duration) {
        while let Some((packet, done)) = self.sending.take_if(|(_, done)| *done <= now) {
            self.launch(done, packet);
            let managed = &mut self.stats.managed;
            if let Some(next) = self.queue.pop(done, |dropped| managed.add(dropped.len)) {
                self.stats
                    .queue_delay
                    .record(done.saturating_sub(next.since));
                self.send(done, next.item);
            }
        }
    }

    fn send(&mut self, start: Duration, packet: Numbered) {
        let start = self.open_at(start);
        if let Some(server) = &mut self.server {
            let done = server.serve(start, packet.bytes.len());
            let gaps = self.gaps.as_ref();
            let done = gaps.map_or(done, |gaps| gaps.stretch(start, done));
            self.sending = Some((packet, done));
        }
    }

    /// Returns the earliest time from `at` on at which a packet may leave.
    fn open_at(&self, at: Duration) -> Duration {
        self.gaps.as_ref().map_or(at, |gaps| gaps.open_at(at))
    }

    fn launch(&mut self, at: Duration, packet: Numbered) {
        let len = packet.bytes.len();
        if self.line.bytes + len > LINE_LIMIT {
            self.stats.overflowed.add(len);
        } else {
            self.line
                .push(at + self.delay.of(packet.number, at), packet);
        }
    }
}

/// Packets on their way, in order of arrival.
#[derive(Debug)]
struct Line {
    bytes: usize,
    order: Order,
}

#[derive(Debug)]
enum Order {
    Sent(VecDeque<(Duration, Vec<u8>)>),
    Arriving(BinaryHeap<Reverse<(Duration, Numbered)>>),
}

impl Line {
    fn new(reorders: bool) -> Self {
        let order = if reorders {
            Order::Arriving(BinaryHeap::new())
        } else {
            Order::Sent(VecDeque::new())
        };
        Self { bytes: 0, order }
    }

    fn push(&mut self, due: Duration, packet: Numbered) {
        self.bytes += packet.bytes.len();
        match &mut self.order {
            Order::Arriving(heap) => heap.push(Reverse((due, packet))),
            Order::Sent(queue) => {
                let due = queue.back().map_or(due, |(last, _)| due.max(*last));
                queue.push_back((due, packet.bytes));
            }
        }
    }

    fn next_due(&self) -> Option<Duration> {
        match &self.order {
            Order::Sent(queue) => queue.front().map(|(due, _)| *due),
            Order::Arriving(heap) => heap.peek().map(|Reverse((due, _))| *due),
        }
    }

    fn pop(&mut self, now: Duration) -> Option<(Duration, Vec<u8>)> {
        if self.next_due()? > now {
            return None;
        }
        let (due, bytes) = match &mut self.order {
            Order::Sent(queue) => queue.pop_front()?,
            Order::Arriving(heap) => heap
                .pop()
                .map(|Reverse((due, packet))| (due, packet.bytes))?,
        };
        self.bytes -= bytes.len();
        Some((due, bytes))
    }
}
