//! Two associations and the network between them, in virtual time.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use dimpl::DtlsCertificate;
use tandem_dtls::association::{Association, OVERHEAD, Settings, Verify};
use tandem_dtls::cookie::Cookies;
use tandem_dtls::ends::Ends;
use tandem_dtls::envelope::{AssociationId, Envelope, Nonce, tail};
use tandem_dtls::token::{AddressToken, Tokens, UsedTokens};
use tandem_tunnel::{Config, Read, StreamId};

/// The time that a datagram travels.
pub(crate) const DELAY: Duration = Duration::from_millis(20);

/// The direction of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
}

/// The network's decision about one datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Arrives,
    Lost,
    /// Arrives, and again after this time.
    Repeated(Duration),
    /// Arrives this much later.
    Late(Duration),
    /// Arrives with these bytes.
    As(Vec<u8>),
    /// Arrives with a congestion mark.
    Marked,
}

/// A datagram on its way.
struct Packet {
    direction: Direction,
    from: SocketAddr,
    bytes: Vec<u8>,
    marked: bool,
}

pub(crate) type Decide = Box<dyn FnMut(Direction, usize, &[u8]) -> Fate>;

/// Both ends. The gateway's end exists once a cookie or a token was shown.
pub(crate) struct Network {
    start: Instant,
    now: Instant,
    settings: Settings,
    identity: DtlsCertificate,
    cookies: Cookies,
    tokens: Rc<Tokens>,
    used: UsedTokens,
    /// False if the gateway knows no tokens, like one of an earlier version.
    pub(crate) has_tokens: bool,
    pub(crate) client: Association,
    pub(crate) gateway: Option<Association>,
    pub(crate) client_address: SocketAddr,
    gateway_address: SocketAddr,
    /// The IP address at which the gateway gets the client's datagrams.
    pub(crate) gateway_ip: Option<IpAddr>,
    decide: Decide,
    counts: [usize; 2],
    on_the_way: BTreeMap<(Instant, u64), Packet>,
    next: u64,
    /// The datagrams that the gateway sent to an address that the client does not have, or from
    /// another one than that to which the client sends.
    pub(crate) astray: usize,
    /// The cookies that the gateway has sent.
    pub(crate) retries: usize,
}

pub(crate) fn settings() -> Settings {
    let tunnel = Config {
        max_datagram: 1452 - OVERHEAD,
        idle_timeout: Duration::from_secs(50),
        ..Config::default()
    };
    Settings::new(tunnel, Duration::from_secs(30), false).unwrap()
}

pub(crate) fn identity() -> DtlsCertificate {
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["gw.example".to_owned()];
    let certificate = rcgen::CertificateParams::new(names)
        .unwrap()
        .self_signed(&key)
        .unwrap();
    DtlsCertificate {
        certificate: certificate.der().to_vec(),
        private_key: key.serialize_der(),
    }
}

impl Network {
    pub(crate) fn new(decide: impl FnMut(Direction, usize, &[u8]) -> Fate + 'static) -> Self {
        Self::verified(decide, Box::new(|_| Ok(true)))
    }

    pub(crate) fn verified(
        decide: impl FnMut(Direction, usize, &[u8]) -> Fate + 'static,
        verify: Verify,
    ) -> Self {
        let start = Instant::now();
        let gateway_address = "192.0.2.1:443".parse().unwrap();
        let settings = settings();
        Self {
            start,
            now: start,
            client: Association::connect(&settings, identity(), gateway_address, verify, start),
            settings,
            identity: identity(),
            cookies: Cookies::new(&[1; 32]),
            tokens: Rc::new(Tokens::new(&[1; 32])),
            used: UsedTokens::default(),
            has_tokens: true,
            gateway: None,
            client_address: "192.0.2.2:1000".parse().unwrap(),
            gateway_address,
            gateway_ip: None,
            decide: Box::new(decide),
            counts: [0; 2],
            on_the_way: BTreeMap::new(),
            next: 0,
            astray: 0,
            retries: 0,
        }
    }

    fn put(&mut self, at: Instant, direction: Direction, from: SocketAddr, bytes: Vec<u8>) {
        self.next += 1;
        let packet = Packet {
            direction,
            from,
            bytes,
            marked: false,
        };
        self.on_the_way.insert((at, self.next), packet);
    }

    fn travel(&mut self, direction: Direction, from: SocketAddr, datagram: Vec<u8>) {
        let count = &mut self.counts[usize::from(direction == Direction::Down)];
        *count += 1;
        let fate = (self.decide)(direction, *count, &datagram);
        let at = self.now + DELAY;
        match fate {
            Fate::Arrives => self.put(at, direction, from, datagram),
            Fate::Lost => {}
            Fate::Repeated(later) => {
                self.put(at, direction, from, datagram.clone());
                self.put(at + later, direction, from, datagram);
            }
            Fate::Late(later) => self.put(at + later, direction, from, datagram),
            Fate::As(bytes) => self.put(at, direction, from, bytes),
            Fate::Marked => {
                self.put(at, direction, from, datagram);
                if let Some(put) = self.on_the_way.get_mut(&(at, self.next)) {
                    put.marked = true;
                }
            }
        }
    }

    /// Brings a datagram to the gateway now, from any address.
    pub(crate) fn inject(&mut self, from: SocketAddr, datagram: &[u8]) {
        self.arrive(Direction::Up, from, datagram, false);
    }

    fn arrive(&mut self, direction: Direction, from: SocketAddr, datagram: &[u8], marked: bool) {
        if direction == Direction::Down {
            return self
                .client
                .handle_datagram(self.now, from.into(), datagram, marked);
        }
        let elapsed = self.now.duration_since(self.start);
        match Envelope::decode(datagram) {
            Ok(Envelope::Hello { nonce }) => self.retry(from, nonce),
            Ok(Envelope::Initial { nonce, cookie, .. }) if self.gateway.is_none() => {
                let id = self.cookies.check(elapsed, from, &nonce, &cookie);
                let token = self.tokens.check(elapsed, from.ip(), &nonce, &cookie);
                let token = token.filter(|token| self.has_tokens && self.used.spend(token));
                if let Some(id) = id.or_else(|| token.map(|token| token.id)) {
                    self.accept(id, from);
                    self.arrive(direction, from, datagram, marked);
                } else {
                    self.retry(from, nonce);
                }
            }
            Ok(Envelope::Data { .. }) if self.gateway.is_none() => {
                if let Some(tail) = tail(datagram) {
                    let mut reply = Vec::new();
                    Envelope::Unknown { tail }.encode(&mut reply);
                    let own = self.gateway_address;
                    self.travel(Direction::Down, own, reply);
                }
            }
            _ => {
                let ends = self.at_gateway(from);
                if let Some(gateway) = &mut self.gateway {
                    gateway.handle_datagram(self.now, ends, datagram, marked);
                }
            }
        }
    }

    /// Sends a cookie to the client.
    fn retry(&mut self, from: SocketAddr, nonce: Nonce) {
        let elapsed = self.now.duration_since(self.start);
        let (id, cookie) = self.cookies.make(elapsed, from, &nonce);
        self.retries += 1;
        let mut reply = Vec::new();
        Envelope::Retry { nonce, id, cookie }.encode(&mut reply);
        let own = self.gateway_address;
        self.travel(Direction::Down, own, reply);
    }

    /// Replaces the gateway by another process, which has other cookies and no associations.
    pub(crate) fn restart_gateway(&mut self, secret: u8) {
        self.cookies = Cookies::new(&[secret; 32]);
        self.tokens = Rc::new(Tokens::new(&[secret; 32]));
        self.gateway = None;
    }

    /// Begins another association, with a token if there is one.
    pub(crate) fn begin_again(&mut self, token: Option<&AddressToken>) {
        let verify = Box::new(|_: &[u8]| Ok(true));
        let (settings, now, gateway) = (&self.settings, self.now, self.gateway_address);
        self.client = Association::connect(settings, identity(), gateway, verify, now);
        self.gateway = None;
        if let Some(token) = token {
            self.client.show(token, now);
        }
    }

    /// Returns the ends of the way on which the datagrams of an address reach the gateway.
    fn at_gateway(&self, peer: SocketAddr) -> Ends {
        Ends {
            peer,
            own: self.gateway_ip,
        }
    }

    fn accept(&mut self, id: AssociationId, from: SocketAddr) {
        let identity = self.identity.clone();
        let (settings, now, ends) = (&self.settings, self.now, self.at_gateway(from));
        let mut gateway = Association::accept(settings, identity, None, id, ends, now);
        if self.has_tokens {
            let (tokens, elapsed) = (Rc::clone(&self.tokens), now.duration_since(self.start));
            gateway.issue_tokens(Box::new(move |address| Some(tokens.make(elapsed, address))));
        }
        self.gateway = Some(gateway);
    }

    fn send(&mut self) {
        let mut out = Vec::new();
        while self.client.poll_output(self.now, &mut out).is_some() {
            let from = self.client_address;
            self.travel(Direction::Up, from, std::mem::take(&mut out));
        }
        loop {
            let Some(gateway) = &mut self.gateway else {
                return;
            };
            let Some(to) = gateway.poll_output(self.now, &mut out) else {
                return;
            };
            if to == self.at_gateway(self.client_address) {
                let own = self.gateway_address;
                self.travel(Direction::Down, own, std::mem::take(&mut out));
            } else {
                out.clear();
                self.astray += 1;
            }
        }
    }

    /// Runs until `done` holds, or nothing is left to do, or ten more minutes have passed. Returns
    /// whether `done` holds.
    pub(crate) fn run(&mut self, done: impl FnMut(&mut Self) -> bool) -> bool {
        self.run_before(self.now + Duration::from_secs(600), done)
    }

    /// Runs until `done` holds, or nothing is left to do before `limit`.
    fn run_before(&mut self, limit: Instant, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        for _ in 0..2_000_000 {
            self.send();
            if done(self) {
                return true;
            }
            let arrival = self.on_the_way.keys().next().map(|(at, _)| *at);
            let gateway = self.gateway.as_ref().and_then(Association::poll_timeout);
            let next = [arrival, self.client.poll_timeout(), gateway];
            let Some(next) = next.into_iter().flatten().min() else {
                return false;
            };
            if next > limit {
                return false;
            }
            self.now = self.now.max(next);
            while let Some(entry) = self.on_the_way.first_entry()
                && entry.key().0 <= self.now
            {
                let packet = entry.remove();
                self.arrive(packet.direction, packet.from, &packet.bytes, packet.marked);
            }
            self.client.handle_timeout(self.now);
            if let Some(gateway) = &mut self.gateway {
                gateway.handle_timeout(self.now);
            }
        }
        panic!("the ends send without making progress");
    }

    /// Lets everything happen that is due within this time.
    pub(crate) fn rest_for(&mut self, time: Duration) {
        self.run_before(self.now + time, |_| false);
    }

    /// Returns the number of datagrams that the gateway has sent.
    pub(crate) fn sent_by_gateway(&self) -> usize {
        self.counts[1]
    }

    /// Lets time pass in which neither end does anything.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// Returns the time of the network.
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// Lets everything happen that is due within five seconds.
    pub(crate) fn rest(&mut self) {
        self.rest_for(Duration::from_secs(5));
    }

    pub(crate) fn is_connected(&self) -> bool {
        let gateway = self.gateway.as_ref();
        self.client.is_connected() && gateway.is_some_and(Association::is_connected)
    }

    pub(crate) fn connect(&mut self) {
        assert!(self.run(|network| network.is_connected()), "no handshake");
    }

    /// Writes bytes on a new stream of the client and ends it.
    pub(crate) fn write(&mut self, content: &Bytes) -> StreamId {
        let at = self.client.tunnel_time(self.now);
        let tunnel = self.client.tunnel();
        let id = tunnel.open(at).unwrap();
        let mut rest = content.clone();
        tunnel.write(id, &mut rest).unwrap();
        assert!(rest.is_empty(), "the buffer holds the test's content");
        tunnel.finish(id).unwrap();
        id
    }

    /// Reads the stream at the gateway until its end, and checks that it is `content`.
    pub(crate) fn expect(&mut self, id: StreamId, content: &Bytes) {
        let mut read = Vec::new();
        let whole = self.run(|network| {
            let Some(gateway) = &mut network.gateway else {
                return false;
            };
            let at = gateway.tunnel_time(network.now);
            loop {
                match gateway.tunnel().read(at, id, usize::MAX) {
                    Ok(Read::Data(data)) => read.extend_from_slice(&data),
                    Ok(Read::End) => return true,
                    Ok(Read::Blocked) | Err(_) => return false,
                }
            }
        });
        assert!(whole, "the stream did not end; {} bytes came", read.len());
        assert!(read == content[..], "the bytes differ");
    }
}
