//! The scene of all tests: two tunnels, a link in each direction, and a clock that jumps from event
//! to event.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tandem_link::{Link, LinkConfig};
use tandem_tunnel::{Config, Event, Read, Side, StreamId, Tunnel};

pub(crate) const MS: Duration = Duration::from_millis(1);

/// A single end with its received data.
pub(crate) struct End {
    pub(crate) tunnel: Tunnel,
    /// Bytes read from each stream, and whether its end was read.
    pub(crate) received: BTreeMap<StreamId, (Vec<u8>, bool)>,
    pub(crate) events: Vec<Event>,
    /// True if only the counts of read bytes are kept.
    pub(crate) counts_only: bool,
    pub(crate) bytes_read: BTreeMap<StreamId, u64>,
    /// True while the test reads no data.
    pub(crate) is_paused: bool,
}

impl End {
    fn new(side: Side, config: Config) -> Self {
        Self {
            tunnel: Tunnel::new(side, config, Duration::ZERO),
            received: BTreeMap::new(),
            events: Vec::new(),
            counts_only: false,
            bytes_read: BTreeMap::new(),
            is_paused: false,
        }
    }

    /// Reads everything that is there.
    fn read_all(&mut self, now: Duration) {
        if self.is_paused {
            return;
        }
        while let Some(event) = self.tunnel.poll_event() {
            self.events.push(event);
            if let Event::Readable(id) = event {
                self.read(now, id);
            }
        }
    }

    pub(crate) fn read(&mut self, now: Duration, id: StreamId) {
        loop {
            match self.tunnel.read(now, id, 64 << 10) {
                Ok(Read::Data(data)) => {
                    *self.bytes_read.entry(id).or_default() += data.len() as u64;
                    if !self.counts_only {
                        self.received
                            .entry(id)
                            .or_default()
                            .0
                            .extend_from_slice(&data);
                    }
                }
                Ok(Read::End) => {
                    self.received.entry(id).or_default().1 = true;
                    return;
                }
                Ok(Read::Blocked) | Err(_) => return,
            }
        }
    }

    pub(crate) fn has(&self, event: Event) -> bool {
        self.events.contains(&event)
    }
}

/// Two ends and the path between them.
pub(crate) struct Path {
    pub(crate) now: Duration,
    pub(crate) client: End,
    pub(crate) server: End,
    up: Link,
    down: Link,
    /// Datagrams larger than this vanish.
    pub(crate) mtu: usize,
    /// True while the link drops every datagram.
    pub(crate) is_cut: bool,
    /// After this many datagrams of the client, one is lost.
    pub(crate) lose_after: Option<u64>,
    /// Every n-th datagram arrives with a congestion mark; 0: none.
    pub(crate) mark_every: u64,
    /// True while the link drops datagrams that permit congestion marks.
    pub(crate) drops_ect: bool,
    /// The datagrams that permitted congestion marks.
    pub(crate) permitting: u64,
    datagrams: u64,
}

/// The bytes of the checksum by which the carrier drops damaged datagrams, as DTLS does.
const CHECKSUM: usize = 4;

fn checksum(datagram: &[u8]) -> [u8; CHECKSUM] {
    let sum = datagram.iter().fold(0x811c_9dc5u32, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    });
    sum.to_be_bytes()
}

impl Path {
    pub(crate) fn new(config: &Config, link: &LinkConfig, seed: u64) -> Self {
        let way = |seed| Link::new(link.clone(), seed).expect("a valid link");
        Self {
            now: Duration::ZERO,
            client: End::new(Side::Client, config.clone()),
            server: End::new(Side::Server, config.clone()),
            up: way(seed),
            down: way(seed + 1000),
            mtu: 1500,
            is_cut: false,
            lose_after: None,
            mark_every: 0,
            drops_ect: false,
            permitting: 0,
            datagrams: 0,
        }
    }

    /// Replaces the links of both directions. Datagrams on their way are lost.
    pub(crate) fn change_links(&mut self, link: &LinkConfig) {
        let way = |seed| Link::new(link.clone(), seed).expect("a valid link");
        (self.up, self.down) = (way(7), way(1007));
    }

    /// Sends the waiting datagrams of both ends.
    pub(crate) fn flush(&mut self) {
        let mut datagram = Vec::new();
        let Self {
            client,
            server,
            up,
            down,
            drops_ect,
            permitting,
            lose_after,
            ..
        } = self;
        for (end, link, is_client) in [(client, up, true), (server, down, false)] {
            while end.tunnel.poll_output(self.now, &mut datagram) {
                assert!(datagram.len() <= 1472, "{}", datagram.len());
                let fits = datagram.len() <= end.tunnel.datagram_size();
                assert!(fits || end.tunnel.is_path_probe());
                let permits = end.tunnel.permits_marks();
                *permitting += u64::from(permits);
                let is_lost = is_client && *lose_after == Some(0);
                if is_client {
                    *lose_after = lose_after.and_then(|left| left.checked_sub(1));
                }
                let is_dropped = is_lost || (*drops_ect && permits);
                if datagram.len() <= self.mtu && !self.is_cut && !is_dropped {
                    let mut packet = datagram.clone();
                    packet.extend_from_slice(&checksum(&datagram));
                    link.ingress(self.now, packet);
                }
            }
        }
    }

    fn deliver(&mut self) {
        let Self {
            client,
            server,
            up,
            down,
            ..
        } = self;
        for (end, link) in [(server, up), (client, down)] {
            while let Some((_, packet)) = link.pop_due(self.now) {
                let (datagram, sum) = packet.split_at(packet.len() - CHECKSUM);
                if checksum(datagram) != sum {
                    continue;
                }
                self.datagrams += 1;
                let marked = self.mark_every > 0 && self.datagrams.is_multiple_of(self.mark_every);
                end.tunnel
                    .handle_input(self.now, datagram, marked)
                    .expect("what the other end wrote");
            }
            end.read_all(self.now);
        }
    }

    /// Advances to the next thing that happens, at most to `until`; false if that is reached.
    pub(crate) fn step(&mut self, until: Duration) -> bool {
        self.flush();
        let timers = [&self.client, &self.server].map(|end| end.tunnel.poll_timeout());
        let links = [self.up.next_due(), self.down.next_due()];
        let next = timers.into_iter().chain(links).flatten().min();
        let next = next.unwrap_or(until).max(self.now).min(until);
        let is_over = next >= until;
        self.now = next;
        self.deliver();
        self.client.tunnel.handle_timeout(self.now);
        self.server.tunnel.handle_timeout(self.now);
        self.client.read_all(self.now);
        self.server.read_all(self.now);
        !is_over
    }

    pub(crate) fn run_until(&mut self, until: Duration) {
        let mut idle = 0;
        let mut last = self.now;
        while self.step(until) {
            idle = if self.now == last { idle + 1 } else { 0 };
            last = self.now;
            assert!(idle < 100_000, "the tunnels spin at {:?}", self.now);
        }
        self.flush();
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    /// Runs until the condition holds; panics if it does not within `most`.
    pub(crate) fn run_while(&mut self, most: Duration, mut goes_on: impl FnMut(&Self) -> bool) {
        let until = self.now + most;
        while goes_on(self) {
            assert!(
                self.step(until),
                "not within {most:?}: {:?}",
                self.client.tunnel.stats()
            );
        }
    }

    /// Opens a stream at the client, writes everything and finishes it, as far as the buffer takes
    /// it.
    pub(crate) fn upload(&mut self, data: &[u8]) -> StreamId {
        let id = self.client.tunnel.open(self.now).expect("an open tunnel");
        let mut data = Bytes::copy_from_slice(data);
        self.client
            .tunnel
            .write(id, &mut data)
            .expect("an open stream");
        assert!(data.is_empty(), "the buffer takes it whole");
        self.client.tunnel.finish(id).expect("an open stream");
        id
    }

    /// Uploads data, the datagram of which with this number is lost. Returns the time until all
    /// have arrived.
    pub(crate) fn upload_with_loss(&mut self, data: &[u8], number: u64) -> Duration {
        let begun = self.now;
        self.lose_after = Some(number);
        let id = self.upload(data);
        self.run_while(Duration::from_secs(5), |path| {
            !path.server.received.get(&id).is_some_and(|(_, end)| *end)
        });
        assert_eq!(self.lose_after, None, "a datagram was lost");
        assert!(self.server.received[&id].0 == data);
        self.now - begun
    }
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}
