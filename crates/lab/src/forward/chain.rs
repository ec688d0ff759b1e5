//! A chain of tunnels and links in virtual time. A clock jumps from event to event.

use std::time::Duration;

use bytes::Bytes;
use tandem_link::{Link, LinkConfig};
use tandem_tunnel::{Config, Read, Side, StreamId, Tunnel};

use super::file::Termination;
use crate::experiment::ExperimentError;

/// The bytes of the headers of IP, UDP and DTLS before each datagram, and of the identifier of a
/// DTLS connection.
const HEADERS: usize = 20 + 8 + 22 + 4;
/// The bytes that a relay reads at a time.
const CHUNK: usize = 16 << 10;

/// The end of the chain at the client, and the one at the server.
pub const CLIENT: usize = 0;
/// See [`CLIENT`].
pub const SERVER: usize = 1;

/// The links that a datagram passes from one end of a tunnel to the other.
struct HopLinks(Vec<Link>);

impl HopLinks {
    fn send(&mut self, now: Duration, datagram: &[u8]) {
        let mut packet = Vec::with_capacity(datagram.len() + HEADERS);
        packet.extend_from_slice(datagram);
        packet.resize(datagram.len() + HEADERS, 0);
        self.0[0].ingress(now, packet);
    }

    fn next_due(&self) -> Option<Duration> {
        self.0.iter().filter_map(Link::next_due).min()
    }

    /// Forwards packets from link to link. Returns a datagram that has passed the last one.
    fn pop_due(&mut self, now: Duration) -> Option<Vec<u8>> {
        for at in 1..self.0.len() {
            while let Some((arrived, packet)) = self.0[at - 1].pop_due(now) {
                self.0[at].ingress(arrived, packet);
            }
        }
        let (_, mut packet) = self.0.last_mut()?.pop_due(now)?;
        packet.truncate(packet.len() - HEADERS);
        Some(packet)
    }
}

/// A tunnel, and the ways between its ends.
struct Segment {
    /// The end nearer to the client, and the other one.
    ends: [Tunnel; 2],
    /// The ways from each of them.
    ways: [HopLinks; 2],
    /// The streams of the circuits.
    streams: Vec<StreamId>,
}

/// A chain with circuits, each of which is a stream in each tunnel.
pub struct Chain {
    /// The virtual time since the start.
    pub now: Duration,
    segments: Vec<Segment>,
    /// Bytes that a relay has read and not yet written, by circuit and direction.
    held: Vec<Vec<[Bytes; 2]>>,
    /// The most bytes that all relays have held at once.
    pub most_held: u64,
}

impl Chain {
    /// Creates a chain over these hops, and opens its circuits.
    ///
    /// # Errors
    /// Fails if a link's configuration is not valid.
    pub fn new(
        termination: Termination,
        config: &Config,
        hops: &[[LinkConfig; 2]],
        circuits: usize,
        seed: u64,
    ) -> Result<Self, ExperimentError> {
        let hops_of_segment = match termination {
            Termination::Hop => 1,
            Termination::End => hops.len(),
        };
        let numbered: Vec<_> = hops.iter().enumerate().collect();
        let segments = numbered
            .chunks(hops_of_segment)
            .map(|hops| Segment::new(config, hops, circuits, seed))
            .collect::<Result<Vec<_>, _>>()?;
        let relays = segments.len() - 1;
        Ok(Self {
            now: Duration::ZERO,
            segments,
            held: vec![vec![Default::default(); circuits]; relays],
            most_held: 0,
        })
    }

    /// Writes to a circuit at one end of the chain. The bytes that do not fit stay in `data`.
    pub fn write(&mut self, end: usize, circuit: usize, data: &mut Bytes) {
        let at = self.last(end);
        self.segments[at].write(end, circuit, data);
    }

    /// Reads from a circuit at one end of the chain.
    pub fn read(&mut self, end: usize, circuit: usize) -> Option<Bytes> {
        let (at, now) = (self.last(end), self.now);
        self.segments[at].read(now, end, circuit)
    }

    /// Returns the bytes that all links have received in the direction to the client.
    pub fn carried(&self) -> u64 {
        let ways = self.segments.iter().map(|segment| &segment.ways[SERVER]);
        let links = ways.flat_map(|way| &way.0);
        links.map(|link| link.stats().received.bytes).sum()
    }

    /// Advances to the next event, at most to `until`. Returns false if that is reached.
    pub fn step(&mut self, until: Duration) -> bool {
        let mut next = None;
        for segment in &mut self.segments {
            segment.flush(self.now);
            let due = segment.next_due();
            next = [next, due].into_iter().flatten().min();
        }
        let next = next.unwrap_or(until).max(self.now).min(until);
        self.now = next;
        for segment in &mut self.segments {
            segment.advance(next);
        }
        self.relay();
        next < until
    }

    fn last(&self, end: usize) -> usize {
        if end == CLIENT {
            0
        } else {
            self.segments.len() - 1
        }
    }

    /// Lets the relays pass on all bytes that the next hop takes.
    fn relay(&mut self) {
        let now = self.now;
        for (held, pair) in self.held.iter_mut().zip(1..) {
            let (before, after) = self.segments.split_at_mut(pair);
            // The relay has the far end of the segment before it, and the near end of the next.
            let sides = [(&mut before[pair - 1], SERVER), (&mut after[0], CLIENT)];
            let [from_client, from_server] = sides;
            for (circuit, held) in held.iter_mut().enumerate() {
                let [up, down] = held;
                pass(
                    now,
                    circuit,
                    up,
                    (from_client.0, SERVER),
                    (from_server.0, CLIENT),
                );
                pass(
                    now,
                    circuit,
                    down,
                    (from_server.0, CLIENT),
                    (from_client.0, SERVER),
                );
            }
        }
    }

    /// Notes the bytes that relays hold for circuits to the client, sent and unsent.
    pub fn note_held(&mut self) {
        let senders = &self.segments[..self.segments.len() - 1];
        let unacknowledged = senders.iter().flat_map(|segment| {
            let sender = &segment.ends[SERVER];
            segment.streams.iter().map(|id| sender.unacknowledged(*id))
        });
        self.most_held = self.most_held.max(unacknowledged.sum());
    }
}

/// Passes bytes of a circuit on from one segment to another one.
fn pass(
    now: Duration,
    circuit: usize,
    held: &mut Bytes,
    (from, from_end): (&mut Segment, usize),
    (to, to_end): (&mut Segment, usize),
) {
    loop {
        if held.is_empty() {
            match from.read(now, from_end, circuit) {
                Some(data) => *held = data,
                None => return,
            }
        }
        to.write(to_end, circuit, held);
        if !held.is_empty() {
            return;
        }
    }
}

impl Segment {
    fn new(
        config: &Config,
        hops: &[(usize, &[LinkConfig; 2])],
        circuits: usize,
        seed: u64,
    ) -> Result<Self, ExperimentError> {
        let way = |end: usize| {
            let link = |&(hop, directions): &(usize, &[LinkConfig; 2])| {
                // Each link has a seed, whatever tunnels run over it.
                let seed = seed.wrapping_mul(1009) + (2 * hop + end) as u64;
                Link::new(directions[end].clone(), seed)
            };
            let links: Result<Vec<_>, _> = hops.iter().map(link).collect();
            links.map_err(|error| ExperimentError::value("link", error.to_string()))
        };
        // Datagrams from the server pass the hops in the opposite order.
        let mut back = way(SERVER)?;
        back.reverse();
        let ways = [HopLinks(way(CLIENT)?), HopLinks(back)];
        let tunnel = |side| Tunnel::new(side, config.clone(), Duration::ZERO);
        let mut ends = [tunnel(Side::Client), tunnel(Side::Server)];
        let opened = (0..circuits).map(|_| ends[CLIENT].open(Duration::ZERO));
        let streams = opened
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| ExperimentError::value("circuits", error.to_string()))?;
        Ok(Self {
            ends,
            ways,
            streams,
        })
    }

    /// Writes to a stream. A stream that has not arrived at this end takes nothing.
    fn write(&mut self, end: usize, circuit: usize, data: &mut Bytes) {
        let _ = self.ends[end].write(self.streams[circuit], data);
    }

    fn read(&mut self, now: Duration, end: usize, circuit: usize) -> Option<Bytes> {
        match self.ends[end].read(now, self.streams[circuit], CHUNK) {
            Ok(Read::Data(data)) => Some(data),
            Ok(Read::Blocked | Read::End) | Err(_) => None,
        }
    }

    /// Sends the waiting datagrams of both ends.
    fn flush(&mut self, now: Duration) {
        let mut datagram = Vec::new();
        for (end, way) in self.ends.iter_mut().zip(&mut self.ways) {
            while end.poll_output(now, &mut datagram) {
                way.send(now, &datagram);
            }
        }
    }

    fn next_due(&self) -> Option<Duration> {
        let timers = self.ends.iter().filter_map(Tunnel::poll_timeout);
        timers
            .chain(self.ways.iter().filter_map(HopLinks::next_due))
            .min()
    }

    /// Lets everything happen that is due.
    fn advance(&mut self, now: Duration) {
        for (end, way) in self.ends.iter_mut().rev().zip(&mut self.ways) {
            while let Some(datagram) = way.pop_due(now) {
                // A damaged datagram would not pass DTLS.
                let _ = end.handle_input(now, &datagram, false);
            }
        }
        for end in &mut self.ends {
            end.handle_timeout(now);
            while end.poll_event().is_some() {}
        }
    }
}
