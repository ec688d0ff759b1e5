//! Attacks on a gateway by UDP datagrams, beside an honest download over the same listener.
//!
//! Quiet times and attacks alternate, and the download must keep nine tenths of its rate. The
//! attacker uses many addresses of loopback as forged sources: it acts on no reply, unless the
//! attack says so.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use super::pair::{AttackedPair, PathView};

/// The addresses of the attacker.
const SOURCES: u8 = 16;
/// The time between two bursts of an attack.
const TICK: Duration = Duration::from_millis(1);
/// The part of a second whose datagrams may leave at once.
const BURSTS: u32 = 200;
/// The quiet times and attacks of one run together.
const PHASES: u32 = 6;
/// The shortest time of most runs, in which figures mean something.
const SHORTEST: Duration = Duration::from_secs(3);
/// The size of forged datagrams.
const FULL: usize = 1200;

/// The kinds of datagrams of the transport `dtls`, before the id of an association.
const HELLO: u8 = 1;
const RETRY: u8 = 2;
const INITIAL: u8 = 3;

/// A kind of attack.
#[derive(Clone, Copy, Debug)]
pub struct DatagramAttack {
    /// The name on the command line.
    pub name: &'static str,
    /// The session and transport of the listener.
    pub way: &'static str,
    /// Bytes of memory that the gateway may need for it.
    pub memory: u64,
    /// Datagrams per second.
    pub rate: u32,
    /// The shortest time of a run, of which the attacks take half.
    pub shortest: Duration,
    /// The bytes that the gateway may send for each byte of the attacker. A validated address has
    /// no such bound.
    pub amplification: Option<u64>,
    /// Sends the datagram with this number.
    turn: fn(&mut Attacker, u64) -> io::Result<()>,
    /// Acts on a reply to a source of the attacker.
    reply: fn(&mut Attacker, usize, &[u8]) -> io::Result<()>,
}

const MIB: u64 = 1 << 20;

/// All attacks by datagrams.
pub const ALL: &[DatagramAttack] = &[
    DatagramAttack {
        name: "dtls-hello",
        way: "h3+dtls",
        memory: 24 * MIB,
        rate: 20_000,
        shortest: SHORTEST,
        amplification: Some(3),
        turn: Attacker::forge_beginning,
        reply: Attacker::ignore,
    },
    DatagramAttack {
        name: "dtls-half-open",
        way: "h3+dtls",
        memory: 256 * MIB,
        // 10,000 in the shortest run.
        rate: 2_000,
        shortest: Duration::from_secs(10),
        amplification: None,
        turn: Attacker::hello,
        reply: Attacker::begin,
    },
    DatagramAttack {
        name: "dtls-forged-id",
        way: "h3+dtls",
        memory: 24 * MIB,
        rate: 20_000,
        shortest: SHORTEST,
        amplification: Some(3),
        turn: Attacker::forge_records,
        reply: Attacker::ignore,
    },
    DatagramAttack {
        name: "dtls-replay",
        way: "h3+dtls",
        memory: 24 * MIB,
        rate: 10_000,
        shortest: SHORTEST,
        amplification: Some(3),
        turn: Attacker::replay,
        reply: Attacker::ignore,
    },
    DatagramAttack {
        name: "quic-initial",
        way: "h3+quic",
        memory: 64 * MIB,
        rate: 5_000,
        shortest: SHORTEST,
        amplification: Some(3),
        turn: Attacker::quic_initial,
        reply: Attacker::ignore,
    },
];

/// The result of an attack.
#[derive(Clone, Copy, Debug, Default)]
pub struct DatagramOutcome {
    /// Datagrams of the attacker.
    pub sent: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The bytes of the gateway to the attacker's addresses.
    pub replied: u64,
    /// The processor time of the gateway in the attacks, beyond that of quiet times.
    pub cpu: Duration,
    /// The rate of the download in the attacks, by that in the quiet times.
    pub goodput: f64,
}

impl DatagramAttack {
    /// Runs quiet times and attacks in alternation. `cpu` returns the processor time of the
    /// gateway. The rate of the attack is fixed, so that its threads need little of the machine.
    pub fn run(
        &self,
        pair: &AttackedPair,
        time: Duration,
        cpu: impl Fn() -> Duration,
    ) -> io::Result<DatagramOutcome> {
        let mut attacker = Attacker::new(pair)?;
        let phase = time.max(self.shortest) / PHASES;
        let (mut rates, mut used) = ([0.0; 2], [Duration::ZERO; 2]);
        for number in 0..PHASES {
            let attacks = (number % 2) as usize;
            let before = cpu();
            let (rate, done) = pair.goodput(|| {
                if attacks == 0 {
                    thread::sleep(phase);
                    return Ok(());
                }
                self.flood(&mut attacker, phase)
            });
            done?;
            rates[attacks] += rate;
            used[attacks] += cpu().saturating_sub(before);
        }
        Ok(DatagramOutcome {
            sent: attacker.sent,
            bytes: attacker.bytes,
            replied: attacker.replied,
            cpu: used[1].saturating_sub(used[0]),
            goodput: rates[1] / rates[0],
        })
    }

    fn flood(&self, attacker: &mut Attacker, time: Duration) -> io::Result<()> {
        let (begun, most) = (Instant::now(), u64::from(self.rate / BURSTS));
        let mut done = 0;
        while begun.elapsed() < time {
            let due = (begun.elapsed().as_secs_f64() * f64::from(self.rate)) as u64;
            // What a late attacker has missed beyond that is lost: larger bursts would only fill
            // the kernel's buffers.
            done = done.max(due.saturating_sub(most));
            while done < due {
                let turn = attacker.turns;
                attacker.turns += 1;
                (self.turn)(attacker, turn)?;
                done += 1;
            }
            attacker.take_replies(self.reply)?;
            thread::sleep(TICK);
        }
        Ok(())
    }
}

/// The attacker's sockets, and the datagrams that it has seen on the way.
#[derive(Debug)]
struct Attacker {
    gateway: SocketAddr,
    view: PathView,
    sources: Vec<UdpSocket>,
    /// The first records of the honest client, as each client sends them.
    records: Vec<u8>,
    /// A datagram of the honest client from the beginning of its session.
    first: Vec<u8>,
    seen: Vec<Vec<u8>>,
    turns: u64,
    sent: u64,
    bytes: u64,
    replied: u64,
    random: u64,
}

impl Attacker {
    fn new(pair: &AttackedPair) -> io::Result<Self> {
        let sources: io::Result<Vec<_>> = (0..SOURCES)
            .map(|last| {
                let source = UdpSocket::bind((Ipv4Addr::new(127, 0, 1, last + 1), 0))?;
                source.set_nonblocking(true)?;
                Ok(source)
            })
            .collect();
        let view = pair.forwarder.view()?;
        let first = view.first();
        let initial = first.iter().find(|datagram| datagram[0] == INITIAL);
        let records = initial.map_or_else(Vec::new, |initial| initial[21..].to_vec());
        Ok(Self {
            gateway: pair.gateway,
            sources: sources?,
            records,
            first: first.into_iter().next().unwrap_or_default(),
            seen: view.last(),
            view,
            turns: 0,
            sent: 0,
            bytes: 0,
            replied: 0,
            random: 0x9e37_79b9_7f4a_7c15,
        })
    }

    /// Fills bytes that no reader can tell from random ones.
    fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            *byte = self.random as u8;
        }
    }

    fn note(&mut self, sent: io::Result<usize>) -> io::Result<()> {
        match sent {
            Ok(size) => {
                self.sent += 1;
                self.bytes += size as u64;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Sends from one of the attacker's addresses.
    fn send(&mut self, source: usize, datagram: &[u8]) -> io::Result<()> {
        let source = &self.sources[source % self.sources.len()];
        let sent = source.send_to(datagram, self.gateway);
        self.note(sent)
    }

    /// Sends from the address of the honest client.
    fn send_as_client(&mut self, datagram: &[u8]) -> io::Result<()> {
        let sent = self.view.own.send(datagram);
        self.note(sent)
    }

    fn take_replies(
        &mut self,
        act: fn(&mut Self, usize, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut buf = [0; 4096];
        for source in 0..self.sources.len() {
            while let Ok(size) = self.sources[source].recv(&mut buf) {
                self.replied += size as u64;
                act(self, source, &buf[..size])?;
            }
        }
        Ok(())
    }

    fn ignore(&mut self, _: usize, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    /// Sends a hello.
    fn hello(&mut self, turn: u64) -> io::Result<()> {
        let mut hello = [0; 25];
        hello[0] = HELLO;
        hello[1..9].copy_from_slice(&turn.to_be_bytes());
        self.send(turn as usize, &hello)
    }

    /// Sends a hello, first records with a wrong cookie, or records of an association that does not
    /// exist.
    fn forge_beginning(&mut self, turn: u64) -> io::Result<()> {
        let mut forged = [0; FULL];
        self.fill(&mut forged);
        match turn % 4 {
            0 => forged[0] = INITIAL,
            1 => forged[0] |= 0x80,
            _ => return self.hello(turn),
        }
        self.send(turn as usize, &forged)
    }

    /// Answers a retry with the first records of a handshake, which never goes on.
    fn begin(&mut self, source: usize, reply: &[u8]) -> io::Result<()> {
        if reply.first() != Some(&RETRY) || reply.len() != 25 {
            return Ok(());
        }
        let mut initial = vec![INITIAL];
        initial.extend_from_slice(&reply[1..9]);
        initial.extend_from_slice(&reply[13..25]);
        initial.extend_from_slice(&self.records);
        self.send(source, &initial)
    }

    /// Sends random records with the id of the honest client's association, mostly from other
    /// addresses than the client's.
    fn forge_records(&mut self, turn: u64) -> io::Result<()> {
        let mut forged = [0; FULL];
        self.fill(&mut forged);
        if let Some(id) = self.seen.last().and_then(|seen| seen.get(..5)) {
            // The first byte of the record is that of data too.
            forged[..5].copy_from_slice(id);
        }
        if turn.is_multiple_of(10) {
            self.send_as_client(&forged)
        } else {
            self.send(turn as usize, &forged)
        }
    }

    /// Sends a datagram of the honest client again, whole or in part, from its address or another.
    fn replay(&mut self, turn: u64) -> io::Result<()> {
        if turn.is_multiple_of(1000) {
            self.seen = self.view.last();
        }
        let Some(seen) = self.seen.get(turn as usize % self.seen.len().max(1)) else {
            return Ok(());
        };
        let mut datagram = seen.clone();
        if turn % 3 == 1 {
            datagram.truncate(turn as usize % datagram.len().max(1));
        }
        if turn % 5 < 2 {
            self.send_as_client(&datagram)
        } else {
            self.send(turn as usize, &datagram)
        }
    }

    /// Sends an Initial packet (RFC 9000, section 17.2.2) with a random connection id and content,
    /// or the client's first one.
    fn quic_initial(&mut self, turn: u64) -> io::Result<()> {
        if turn.is_multiple_of(8) {
            let first = self.first.clone();
            return self.send(turn as usize, &first);
        }
        let mut packet = [0; FULL];
        self.fill(&mut packet);
        // A long header of version 1, ids of eight bytes, no token, and the length of the rest.
        packet[0] = 0xc0 | (packet[0] & 0x0f);
        packet[1..6].copy_from_slice(&[0, 0, 0, 1, 8]);
        packet[14] = 8;
        packet[23] = 0;
        let length = 0x4000 | (FULL - 26) as u16;
        packet[24..26].copy_from_slice(&length.to_be_bytes());
        self.send(turn as usize, &packet)
    }
}
