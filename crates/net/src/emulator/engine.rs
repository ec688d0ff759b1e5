//! The emulator's thread: moves packets between TUN devices and the router, by the clock.
//!
//! The engine is one thread with real-time priority where the system allows it: then packets are
//! handed over within about 0.1 ms of the time they are due, on a busy machine too.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tandem_link::{Count, Histogram};

use super::capture::Capture;
use super::port::Port;
use super::relay::Doorkeeper;
use super::report::{self, PortReport, Snapshot};
use super::router::{Arrival, NodeId, Router};
use super::{EmulatorError, sys};

/// Packets read from one device before others get their turn.
const READS_PER_TURN: usize = 32;

/// Largest packet a device may hand over.
const LARGEST_PACKET: usize = 65_536;

/// The update interval of the published counters.
const PUBLISH_EVERY: Duration = Duration::from_millis(100);

/// Priority among real-time threads: low, but above everything ordinary.
const PRIORITY: i32 = 10;

/// The settings of the emulator.
#[derive(Debug, Default)]
pub struct Options {
    /// Keep to ordinary priority.
    pub no_realtime: bool,
    /// The hosts that have their packets written to files.
    pub captures: Vec<(NodeId, Capture)>,
    /// The host that stands for the network outside, and the doorkeeper that serves it.
    pub relayed: Option<(NodeId, Doorkeeper)>,
}

/// A running emulator; stops when dropped.
#[derive(Debug)]
pub struct Emulator {
    published: Arc<Mutex<Snapshot>>,
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<(Snapshot, io::Result<()>)>>,
    warning: Option<String>,
}

impl Emulator {
    /// Starts the thread. `ports` are the devices of the router's hosts.
    pub fn start(
        router: Router,
        ports: Vec<(NodeId, Port)>,
        options: Options,
    ) -> Result<Self, EmulatorError> {
        let (stop_reader, stop) = io::pipe().map_err(EmulatorError::of("make a pipe"))?;
        let published = Arc::new(Mutex::new(Snapshot::default()));
        let mut engine = Engine::new(router, ports, published.clone());
        engine.captures = options.captures;
        engine.relayed = options.relayed;
        let (ready, started) = std::sync::mpsc::channel();
        let run = move || {
            let warning = if options.no_realtime {
                Ok(())
            } else {
                sys::use_realtime(PRIORITY)
            }
            .err();
            let realtime = warning.is_none() && !options.no_realtime;
            let _ = sys::use_exact_timers();
            let _ = ready.send(warning);
            engine.run(stop_reader, realtime)
        };
        let spawned = thread::Builder::new().name("emulator".into()).spawn(run);
        let thread = Some(spawned.map_err(EmulatorError::of("start the emulator's thread"))?);
        let refused = started.recv().ok().flatten();
        let warning = refused.map(|error| {
            format!(
                "no real-time priority ({error}): packets may be late on a busy machine; see ulimit -r or CAP_SYS_NICE"
            )
        });
        Ok(Self {
            published,
            stop: Some(stop),
            thread,
            warning,
        })
    }

    /// Returns a warning for the user if the emulator cannot work as it should.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Counters as they were at most a tenth of a second ago.
    pub fn snapshot(&self) -> Snapshot {
        self.watch().snapshot()
    }

    /// A view of the counters that can be given away.
    pub fn watch(&self) -> Watch {
        Watch(self.published.clone())
    }

    /// Stops and returns the last counters; an error if the network or a capture failed on the way.
    pub fn stop(mut self) -> (Snapshot, io::Result<()>) {
        drop(self.stop.take());
        let joined = self.thread.take().map(JoinHandle::join);
        match joined {
            Some(Ok(result)) => result,
            _ => (
                self.snapshot(),
                Err(io::Error::other("the emulator's thread panicked")),
            ),
        }
    }
}

/// A view of a running emulator's counters.
#[derive(Clone, Debug)]
pub struct Watch(Arc<Mutex<Snapshot>>);

impl Watch {
    /// Counters as they were at most a tenth of a second ago.
    pub fn snapshot(&self) -> Snapshot {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Traffic of one device.
#[derive(Debug, Default)]
struct Counters {
    sent: Count,
    received: Count,
    first_sent: Option<Duration>,
    last_received: Option<Duration>,
    refused: u64,
}

struct Engine {
    router: Router,
    ports: Vec<(NodeId, Port, Counters)>,
    captures: Vec<(NodeId, Capture)>,
    relayed: Option<(NodeId, Doorkeeper)>,
    /// Port of each host, by node number.
    port_of: Vec<Option<usize>>,
    lateness: Histogram,
    start: Instant,
    realtime: bool,
    published: Arc<Mutex<Snapshot>>,
    buffer: Box<[u8]>,
}

impl Engine {
    fn new(router: Router, ports: Vec<(NodeId, Port)>, published: Arc<Mutex<Snapshot>>) -> Self {
        let nodes = ports.iter().map(|(node, _)| node + 1).max().unwrap_or(0);
        let mut port_of = vec![None; nodes];
        ports
            .iter()
            .enumerate()
            .for_each(|(index, (node, _))| port_of[*node] = Some(index));
        let ports = ports
            .into_iter()
            .map(|(node, port)| (node, port, Counters::default()))
            .collect();
        Self {
            router,
            ports,
            captures: Vec::new(),
            relayed: None,
            port_of,
            lateness: Histogram::default(),
            start: Instant::now(),
            realtime: false,
            published,
            buffer: vec![0; LARGEST_PACKET].into(),
        }
    }

    fn run(mut self, stop: PipeReader, realtime: bool) -> (Snapshot, io::Result<()>) {
        self.realtime = realtime;
        let result = self.turn_until(&stop);
        let mut snapshot = self.snapshot();
        for (report, (_, port, _)) in snapshot.ports.iter_mut().zip(&mut self.ports) {
            report.dropped_before = port.dropped();
        }
        let captured = self
            .captures
            .into_iter()
            .map(|(_, capture)| capture.finish())
            .fold(Ok(()), Result::and);
        (snapshot, result.and(captured))
    }

    /// Runs one turn: delivers packets that are due, waits for packets or the next due time, and
    /// reads.
    fn turn_until(&mut self, stop: &PipeReader) -> io::Result<()> {
        let mut ready = Vec::new();
        let mut publish_at = Duration::ZERO;
        loop {
            self.deliver();
            let now = self.now();
            if now >= publish_at {
                self.publish();
                publish_at = now + PUBLISH_EVERY;
            }
            let wake = self
                .router
                .next_due()
                .map_or(publish_at, |due| due.min(publish_at));
            let mut files: Vec<_> = self
                .ports
                .iter()
                .map(|(_, port, _)| port.tun.as_fd())
                .collect();
            files.push(stop.as_fd());
            sys::wait_readable(&files, Some(wake.saturating_sub(self.now())), &mut ready)?;
            if ready.pop() == Some(true) {
                return Ok(());
            }
            for (index, _) in ready.iter().enumerate().filter(|(_, readable)| **readable) {
                self.read(index)?;
            }
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn read(&mut self, index: usize) -> io::Result<()> {
        for _ in 0..READS_PER_TURN {
            let (node, port, counters) = &mut self.ports[index];
            let len = match port.tun.read(&mut self.buffer) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let packet = &self.buffer[..len];
            let now = self.start.elapsed();
            counters.sent.add(len);
            counters.first_sent.get_or_insert(now);
            capture(&mut self.captures, *node, packet);
            self.router.ingress(now, *node, packet.to_vec());
        }
        Ok(())
    }

    fn deliver(&mut self) {
        while let Some(Arrival { host, due, packet }) = self.router.pop_due(self.now()) {
            let Some(index) = self.port_of.get(host).copied().flatten() else {
                continue;
            };
            let now = self.now();
            self.lateness.record(now.saturating_sub(due));
            let (node, port, counters) = &mut self.ports[index];
            counters.received.add(packet.len());
            counters.last_received = Some(now);
            capture(&mut self.captures, *node, &packet);
            let admitted = match &mut self.relayed {
                Some((relayed, doorkeeper)) if relayed == node => doorkeeper.admit(&packet),
                _ => true,
            };
            counters.refused += u64::from(admitted && port.tun.write(&packet).is_err());
        }
    }

    /// Publishes the counters without waiting for a reader of lower priority: counters that cannot
    /// be published now are published next time.
    fn publish(&mut self) {
        let snapshot = self.snapshot();
        if let Ok(mut published) = self.published.try_lock() {
            *published = snapshot;
        }
    }

    fn snapshot(&self) -> Snapshot {
        let router = &self.router;
        let port = |(node, _, counters): &(NodeId, Port, Counters)| PortReport {
            host: router.name(*node).into(),
            sent: counters.sent.into(),
            received: counters.received.into(),
            first_sent_s: counters.first_sent.map(|t| t.as_secs_f64()),
            last_received_s: counters.last_received.map(|t| t.as_secs_f64()),
            refused: counters.refused,
            // Asking for it takes the kernel's lock on all devices: too long to wait for, but at
            // the end.
            dropped_before: 0,
        };
        Snapshot {
            time_s: self.start.elapsed().as_secs_f64(),
            realtime: self.realtime,
            links: report::links(router),
            ports: self.ports.iter().map(port).collect(),
            unroutable: router.unroutable(),
            lateness: (&self.lateness).into(),
        }
    }
}

fn capture(captures: &mut [(NodeId, Capture)], node: NodeId, packet: &[u8]) {
    captures
        .iter_mut()
        .filter(|(host, _)| *host == node)
        .for_each(|(_, capture)| capture.record(packet));
}
