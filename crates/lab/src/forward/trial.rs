//! The measurement of one chain: downloads on all circuits but the last one, which sends a stamp at
//! fixed times and measures the time to the reply.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use super::chain::{CLIENT, Chain, SERVER};
use super::file::{ForwardCell, ForwardSetup, ForwardStudy};
use crate::experiment::ExperimentError;

/// The bytes of a stamp and of its reply.
const STAMP: usize = 64;
const REPLY: usize = 512;
/// The time between two stamps.
const INTERVAL: Duration = Duration::from_millis(100);
/// The polling interval for the memory of the relays.
const LOOK: Duration = Duration::from_millis(20);
/// The time for the replies to the last stamps.
const LAST_REPLY: Duration = Duration::from_secs(3);
/// The data of downloads.
static DATA: [u8; 64 << 10] = [7; 64 << 10];

/// The figures of a measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ForwardFigures {
    /// The rate of all downloads in Mbit/s.
    pub mbit: f64,
    /// The round trips of stamps that were sent in the measured time, in order of their length.
    pub delays: Vec<Duration>,
    /// Bytes on the links towards the client for each byte of a download and hop.
    pub carried: f64,
    /// The most bytes that the relays held for downloads.
    pub held: u64,
}

impl ForwardFigures {
    /// Returns a quantile of the delays in milliseconds.
    pub fn delay(&self, quantile: f64) -> f64 {
        let last = self.delays.len().saturating_sub(1) as f64;
        let at = (last * quantile).round() as usize;
        let delay = self.delays.get(at).copied().unwrap_or_default();
        delay.as_secs_f64() * 1e3
    }
}

/// The programs at both ends.
struct ForwardPrograms {
    chain: Chain,
    downloads: usize,
    /// The bytes of downloads that have arrived.
    received: u64,
    /// True for each download that the server has begun.
    begun: Vec<bool>,
    /// The bytes of stamps at the server without a reply, and of replies at the client.
    stamps: usize,
    replies: usize,
    /// The times of stamps without a reply at the client.
    sent: VecDeque<Duration>,
    /// The times of stamps and their round trips.
    delays: Vec<(Duration, Duration)>,
    /// True after the last stamp.
    has_stamped: bool,
}

impl ForwardPrograms {
    fn run_until(&mut self, until: Duration) {
        let mut look = self.chain.now;
        let mut stamp = self.chain.now;
        while self.chain.now < until {
            if self.chain.now >= look {
                self.chain.note_held();
                look += LOOK;
            }
            if self.chain.now >= stamp {
                if !self.has_stamped {
                    self.send_stamp();
                }
                stamp += INTERVAL;
            }
            self.serve();
            self.chain.step(until.min(look).min(stamp));
            self.receive();
        }
    }

    fn send_stamp(&mut self) {
        let mut data = Bytes::from_static(&DATA[..STAMP]);
        self.chain.write(CLIENT, self.downloads, &mut data);
        self.sent.push_back(self.chain.now);
    }

    /// Lets the server write to all downloads, and reply to stamps.
    fn serve(&mut self) {
        for circuit in 0..self.downloads {
            self.begun[circuit] |= self.chain.read(SERVER, circuit).is_some();
            while self.begun[circuit] {
                let mut data = Bytes::from_static(&DATA);
                self.chain.write(SERVER, circuit, &mut data);
                if !data.is_empty() {
                    break;
                }
            }
        }
        while let Some(data) = self.chain.read(SERVER, self.downloads) {
            self.stamps += data.len();
        }
        while self.stamps >= STAMP {
            self.stamps -= STAMP;
            let mut reply = Bytes::from_static(&DATA[..REPLY]);
            self.chain.write(SERVER, self.downloads, &mut reply);
        }
    }

    /// Lets the client read all circuits.
    fn receive(&mut self) {
        for circuit in 0..self.downloads {
            while let Some(data) = self.chain.read(CLIENT, circuit) {
                self.received += data.len() as u64;
            }
        }
        while let Some(data) = self.chain.read(CLIENT, self.downloads) {
            self.replies += data.len();
        }
        while self.replies >= REPLY {
            self.replies -= REPLY;
            if let Some(sent) = self.sent.pop_front() {
                self.delays.push((sent, self.chain.now - sent));
            }
        }
    }
}

/// Measures a set-up in a cell.
///
/// # Errors
/// Fails if a property of a link is not valid.
pub fn run(
    study: &ForwardStudy,
    setup: &ForwardSetup,
    cell: &ForwardCell,
    seed: u64,
) -> Result<ForwardFigures, ExperimentError> {
    let [warm_up, measured] = study.times()?;
    let hops = study.links(cell)?;
    let circuits = study.circuits + 1;
    let chain = Chain::new(setup.termination, &setup.config(), &hops, circuits, seed)?;
    let mut programs = ForwardPrograms {
        chain,
        downloads: study.circuits,
        received: 0,
        begun: vec![false; study.circuits],
        stamps: 0,
        replies: 0,
        sent: VecDeque::new(),
        delays: Vec::new(),
        has_stamped: false,
    };
    for circuit in 0..study.circuits {
        let mut request = Bytes::from_static(&DATA[..STAMP]);
        programs.chain.write(CLIENT, circuit, &mut request);
    }
    programs.run_until(warm_up);
    programs.chain.most_held = 0;
    let before = (programs.received, programs.chain.carried());
    programs.run_until(warm_up + measured);
    let received = programs.received - before.0;
    let carried = programs.chain.carried() - before.1;
    let held = programs.chain.most_held;
    programs.has_stamped = true;
    programs.run_until(warm_up + measured + LAST_REPLY);
    // Stamps without a reply count with their wait.
    let end = programs.chain.now;
    let waiting = programs.sent.iter().map(|sent| (*sent, end - *sent));
    let all = programs.delays.iter().copied().chain(waiting);
    let mut delays: Vec<Duration> = all
        .filter(|(sent, _)| *sent >= warm_up)
        .map(|(_, delay)| delay)
        .collect();
    delays.sort_unstable();
    Ok(ForwardFigures {
        mbit: received as f64 * 8e-6 / measured.as_secs_f64(),
        delays,
        carried: carried as f64 / received.max(1) as f64 / study.hops as f64,
        held,
    })
}
