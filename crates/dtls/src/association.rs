//! A DTLS association with its tunnel, without sockets or clocks: datagrams and times go in,
//! datagrams come out.
//!
//! ```text
//!  datagram ─▶ [`crate::envelope`] ─▶ DTLS (RFC 9147, by dimpl) ─▶ tunnel ─▶ streams
//! ```
//!
//! The gateway follows a client to a new address only after the client has answered a challenge
//! that was sent there, as in RFC 9000, section 8.2. Until then it sends to the old address. The
//! same holds if the client's datagrams arrive at another of the gateway's addresses.

mod begin;
mod returning;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

pub use dimpl::DtlsCertificate;
use dimpl::{Dtls, Output};
use ring::rand::{SecureRandom, SystemRandom};
use tandem_tunnel::{Closed, Config as TunnelConfig, Side, Tunnel};
use thiserror::Error;

use crate::certificates::refusal_code;
use crate::ends::Ends;
use crate::envelope::{AssociationId, DATA_HEADER, Envelope, Tail, tail};
use crate::settings::SCRATCH;
pub use crate::settings::Settings;
use crate::waits::Waits;
use crate::wrap::Wrap;

pub use returning::Issue;

/// The bytes that a record of DTLS 1.3 adds to its content at most.
const RECORD: usize = 24;
/// The bytes that envelope and record add to a datagram of the tunnel.
pub const OVERHEAD: usize = DATA_HEADER + RECORD;
/// The challenges, responses and tokens that wait at most.
const MAX_REPLIES: usize = 8;
/// The ends of datagrams that a client remembers.
const MAX_TAILS: usize = 64;
/// The time until a hello is repeated for the first time.
const HELLO_AGAIN: Duration = Duration::from_millis(500);
/// The first bytes of the messages that validate a new address, and of that with a token. No
/// segment begins with them.
const CHALLENGE: u8 = 0x90;
const RESPONSE: u8 = 0x91;
const NEW_TOKEN: u8 = 0x92;

/// Checks the certificates of the peer, which follow each other. Returns true if they prove the
/// identity of the peer, and false if the peer may be anonymous.
pub type Verify = Box<dyn Fn(&[u8]) -> Result<bool, rustls::Error>>;

/// The reason for which an association has ended.
#[derive(Clone, Debug, Error)]
pub enum AssociationError {
    /// The certificate of the peer is not accepted.
    #[error("the certificate is not accepted: {0}")]
    Certificate(rustls::Error),
    /// DTLS has failed.
    #[error("DTLS has failed: {0}")]
    Dtls(String),
    /// The gateway does not know the association, because it was restarted.
    #[error("the gateway does not know the association; it was restarted")]
    Unknown,
    /// The tunnel has ended.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// An end of an association.
pub struct Association {
    start: Instant,
    dtls: Dtls,
    dtls_timeout: Option<Instant>,
    tunnel: Tunnel,
    config: TunnelConfig,
    side: Side,
    verify: Option<Verify>,
    waits: Waits,
    /// True if the peer has proved its identity with a certificate.
    has_peer_certificate: bool,
    /// The reason for which the gateway does not accept the client's certificate.
    refused: Option<rustls::Error>,
    connected: bool,
    ended: Option<AssociationError>,
    wrap: Wrap,
    /// The settings and identity of a client, while another cookie may be needed.
    begin: Option<Box<begin::Begin>>,
    /// The ends of the path to the peer.
    ends: Ends,
    /// The ends of a new path to the client, and the bytes that the client has to repeat.
    candidate: Option<(Ends, [u8; 8])>,
    /// The ends of the last datagrams of a client, which prove that a datagram was read.
    tails: VecDeque<Tail>,
    /// Challenges, responses and tokens to send.
    replies: VecDeque<(Ends, Vec<u8>)>,
    returning: returning::Returning,
    /// Envelopes to send before those of the tunnel.
    out: VecDeque<(Ends, Vec<u8>)>,
    scratch: Rc<RefCell<Vec<u8>>>,
    plain: Vec<u8>,
    /// True if routers may mark the last datagram.
    permits_marks: bool,
    /// True if the last datagram probes the path's size.
    is_path_probe: bool,
}

/// The circumstances of a datagram that has arrived.
#[derive(Clone, Copy)]
struct Arrival {
    now: Instant,
    from: Ends,
    /// True if a router has marked it (RFC 3168).
    marked: bool,
}

impl std::fmt::Debug for Association {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Association")
            .field("side", &self.side)
            .field("connected", &self.connected)
            .finish_non_exhaustive()
    }
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .expect("the system has random numbers");
    bytes
}

impl Association {
    /// Begins an association with the gateway at `remote`. `verify` checks its certificate, and no
    /// data is sent before that. `identity` is shown if the gateway requests a certificate.
    pub fn connect(
        settings: &Settings,
        identity: DtlsCertificate,
        remote: SocketAddr,
        verify: Verify,
        now: Instant,
    ) -> Self {
        let wrap = Wrap::Hello {
            nonce: random(),
            due: now,
            wait: HELLO_AGAIN,
        };
        let mut association = Self::new(settings, identity, Side::Client, remote.into(), wrap, now);
        association.verify = Some(verify);
        association
    }

    /// Begins the gateway's end for the client at `ends.peer`, which has shown a cookie or a token.
    /// `verify` checks its certificate, if the settings request one.
    pub fn accept(
        settings: &Settings,
        identity: DtlsCertificate,
        verify: Option<Verify>,
        id: AssociationId,
        ends: Ends,
        now: Instant,
    ) -> Self {
        let wrap = Wrap::Data(id);
        let mut association = Self::new(settings, identity, Side::Server, ends, wrap, now);
        association.verify = verify;
        association
    }

    fn new(
        settings: &Settings,
        certificate: DtlsCertificate,
        side: Side,
        ends: Ends,
        wrap: Wrap,
        now: Instant,
    ) -> Self {
        let repeats = &settings.repeats;
        let dtls = match &wrap {
            Wrap::Data(id) => repeats.of_gateway(id.is_of_token()),
            _ => repeats.of_client(None),
        };
        let dtls = begin::dtls(dtls, certificate.clone(), side, now);
        let begin = (side == Side::Client).then(|| {
            Box::new(begin::Begin {
                repeats: repeats.clone(),
                identity: certificate,
                round_trip: None,
            })
        });
        let config = settings.tunnel.clone();
        Self {
            start: now,
            dtls,
            dtls_timeout: None,
            tunnel: Tunnel::new(side, config.clone(), Duration::ZERO),
            config,
            side,
            verify: None,
            waits: Waits::default(),
            has_peer_certificate: false,
            refused: None,
            connected: false,
            ended: None,
            wrap,
            begin,
            ends,
            candidate: None,
            tails: VecDeque::new(),
            replies: VecDeque::new(),
            returning: returning::Returning::default(),
            out: VecDeque::new(),
            scratch: Rc::clone(&settings.scratch),
            plain: Vec::new(),
            permits_marks: false,
            is_path_probe: false,
        }
    }

    fn since_start(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.start)
    }

    /// Returns true once the handshake is over.
    pub const fn is_connected(&self) -> bool {
        self.connected
    }

    /// Returns true if the peer has proved its identity with a certificate.
    pub const fn has_peer_certificate(&self) -> bool {
        self.has_peer_certificate
    }

    /// Returns the reason for which the gateway does not accept the client's certificate, if any.
    pub const fn refused(&self) -> Option<&rustls::Error> {
        self.refused.as_ref()
    }

    /// Returns the reason of the end, if the association has ended.
    pub fn ended(&self) -> Option<&AssociationError> {
        self.ended.as_ref()
    }

    /// Returns the address of the peer.
    pub const fn remote(&self) -> SocketAddr {
        self.ends.peer
    }

    /// Returns the end that this is.
    pub const fn side(&self) -> Side {
        self.side
    }

    /// Returns the tunnel, which is in use once the association is connected.
    pub const fn tunnel(&mut self) -> &mut Tunnel {
        &mut self.tunnel
    }

    /// Returns the time since which the peer owes an answer, once the handshake is over.
    pub fn unanswered_since(&self) -> Option<Instant> {
        let since = self.tunnel.unanswered_since().filter(|_| self.connected);
        since.map(|at| self.start + at)
    }

    /// Returns `now` as the tunnel measures it.
    pub fn tunnel_time(&self, now: Instant) -> Duration {
        self.since_start(now)
    }

    /// Ends the association. The next datagrams tell the peer.
    pub fn close(&mut self, code: u32) {
        if self.ended.is_none() {
            self.tunnel.close(code);
        }
    }

    fn fail(&mut self, error: AssociationError) {
        if self.ended.is_none() {
            self.ended = Some(error);
            self.dtls_timeout = None;
        }
    }

    /// Takes a datagram that came from `from`. `marked` tells that it has a congestion mark
    /// (RFC 3168). A datagram that is not authentic changes nothing once the handshake is over.
    pub fn handle_datagram(&mut self, now: Instant, from: Ends, datagram: &[u8], marked: bool) {
        if self.ended.is_some() {
            return;
        }
        let records = match (Envelope::decode(datagram), &self.wrap) {
            (Ok(Envelope::Unknown { tail }), Wrap::Data(_)) => {
                // Only the gateway and systems on the path have seen the end of a datagram.
                if from.peer == self.ends.peer && self.tails.contains(&tail) {
                    self.fail(AssociationError::Unknown);
                }
                return;
            }
            (Ok(Envelope::Retry { nonce, id, cookie }), _) => {
                if from.peer == self.ends.peer && self.wrap.take_retry(nonce, id, cookie) {
                    self.send_first_flight(Arrival { now, from, marked });
                }
                return;
            }
            (Ok(Envelope::Data { id, records }), Wrap::Initial { id: own, .. }) if id == *own => {
                self.wrap = Wrap::Data(id);
                self.begin = None;
                records
            }
            (Ok(Envelope::Data { id, records }), Wrap::Data(own)) if id == *own => records,
            (Ok(Envelope::Initial { records, .. }), Wrap::Data(_))
                if self.side == Side::Server && !self.connected =>
            {
                records
            }
            _ => return,
        };
        // Only the gateway follows its peer to another address, and only after the handshake.
        let may_move = self.side == Side::Server && self.connected;
        if from.peer != self.ends.peer && !may_move {
            return;
        }
        let arrival = Arrival { now, from, marked };
        self.with_dtls(arrival, |dtls| {
            dtls.handle_timeout(now)?;
            dtls.handle_packet(records)
        });
    }

    /// Runs a call of DTLS, and acts on its output.
    fn with_dtls(
        &mut self,
        arrival: Arrival,
        call: impl FnOnce(&mut Dtls) -> Result<(), dimpl::Error>,
    ) {
        if let Err(error) = call(&mut self.dtls) {
            // An alert for the peer may be waiting.
            self.drain(arrival);
            return self.fail(AssociationError::Dtls(error.to_string()));
        }
        self.drain(arrival);
    }

    fn drain(&mut self, arrival: Arrival) {
        let scratch = Rc::clone(&self.scratch);
        let mut buf = scratch.borrow_mut();
        loop {
            match self.dtls.poll_output(&mut buf) {
                Output::Packet(records) => {
                    let to = self.ends;
                    self.wrap.enqueue(&mut self.out, to, records);
                    self.waits.on_packet(arrival.now);
                }
                Output::BufferTooSmall { needed } => buf.resize(needed.max(SCRATCH), 0),
                Output::Timeout(at) => {
                    self.dtls_timeout = Some(at);
                    break;
                }
                Output::Connected if self.verify.is_some() => {
                    let missing = rustls::Error::NoCertificatesPresented;
                    self.fail(AssociationError::Certificate(missing));
                }
                Output::Connected => {
                    let at = self.since_start(arrival.now);
                    self.tunnel = Tunnel::new(self.side, self.config.clone(), at);
                    if let Some(round_trip) = self.waits.round_trip(arrival.now) {
                        self.tunnel.note_handshake(round_trip);
                    }
                    self.connected = true;
                    // The client has ended its handshake already, so the tunnel tells it.
                    match &self.refused {
                        Some(error) => self.tunnel.close(refusal_code(error)),
                        None => self.issue_token(arrival.now),
                    }
                }
                Output::PeerCert(certificates) => self.on_certificates(certificates),
                Output::ApplicationData(data) => self.on_data(arrival, data),
                Output::CloseNotify => {
                    let closed = self.tunnel.closed().unwrap_or(Closed::Peer(0));
                    self.fail(closed.into());
                }
                _ => {}
            }
            if self.ended.is_some() {
                break;
            }
        }
    }

    fn on_certificates(&mut self, certificates: &[u8]) {
        let Some(verify) = self.verify.take() else {
            return;
        };
        match verify(certificates) {
            Ok(proved) => self.has_peer_certificate = proved,
            Err(error) if self.side == Side::Server => self.refused = Some(error),
            Err(error) => self.fail(AssociationError::Certificate(error)),
        }
    }

    /// Takes the authentic content of a record.
    fn on_data(&mut self, arrival: Arrival, data: &[u8]) {
        let Arrival { now, from, marked } = arrival;
        if !self.connected {
            return;
        }
        match data.first() {
            Some(&CHALLENGE) => {
                let mut response = data.to_vec();
                response[0] = RESPONSE;
                response.truncate(9);
                self.reply(from, response);
            }
            Some(&RESPONSE) => self.on_response(now, from, &data[1..]),
            Some(&NEW_TOKEN) => self.on_token(&data[1..]),
            _ => {
                self.validate(from);
                self.repeat_token(now);
                let at = self.since_start(now);
                if let Err(error) = self.tunnel.handle_input(at, data, marked) {
                    tracing::debug!(%error, "a datagram of the tunnel is not valid");
                }
            }
        }
    }

    /// Sends a challenge on a path that the client did not use before.
    fn validate(&mut self, from: Ends) {
        if from == self.ends {
            return;
        }
        let bytes = match self.candidate {
            Some((candidate, bytes)) if candidate == from => bytes,
            _ => random(),
        };
        self.candidate = Some((from, bytes));
        let mut challenge = vec![CHALLENGE];
        challenge.extend_from_slice(&bytes);
        self.reply(from, challenge);
    }

    fn reply(&mut self, to: Ends, content: Vec<u8>) {
        if self.replies.len() < MAX_REPLIES {
            self.replies.push_back((to, content));
        }
    }

    fn on_response(&mut self, now: Instant, from: Ends, response: &[u8]) {
        if self
            .candidate
            .is_some_and(|(ends, bytes)| ends == from && bytes == response)
        {
            self.candidate = None;
            self.ends = from;
            let at = self.since_start(now);
            self.tunnel.path_changed(at);
            self.issue_token(now);
        }
    }

    /// Appends the datagram with content of the application to `out`. Returns false if there is
    /// none.
    fn send_record(&mut self, to: Ends, content: &[u8], out: &mut Vec<u8>) -> bool {
        if let Err(error) = self.dtls.send_application_data(content) {
            self.fail(AssociationError::Dtls(error.to_string()));
            return false;
        }
        let scratch = Rc::clone(&self.scratch);
        let mut buf = scratch.borrow_mut();
        let before = out.len();
        loop {
            match self.dtls.poll_output(&mut buf) {
                Output::Packet(records) if out.len() == before => {
                    self.wrap.append(records, out);
                }
                Output::Packet(records) => self.wrap.enqueue(&mut self.out, to, records),
                Output::BufferTooSmall { needed } => buf.resize(needed.max(SCRATCH), 0),
                // Input is taken in `drain` only, so no other output is due.
                _ => return out.len() > before,
            }
        }
    }

    /// Returns true if the last datagram of [`Self::poll_output`] should carry the codepoint
    /// ECT(0), which permits routers to mark it (RFC 3168).
    pub const fn permits_marks(&self) -> bool {
        self.permits_marks
    }

    /// Returns true if the last datagram of [`Self::poll_output`] may be too large for the path,
    /// since it probes for its size.
    pub const fn is_path_probe(&self) -> bool {
        self.is_path_probe
    }

    fn pop_output(&mut self, out: &mut Vec<u8>) -> Option<Ends> {
        let (to, datagram) = self.out.pop_front()?;
        out.extend_from_slice(&datagram);
        Some(to)
    }

    /// Appends the next datagram to `out`, and returns its ends, or `None` if there is none now.
    pub fn poll_output(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<Ends> {
        (self.permits_marks, self.is_path_probe) = (false, false);
        if let Some(to) = self.pop_output(out) {
            return Some(to);
        }
        if let Wrap::Hello { nonce, due, wait } = &mut self.wrap {
            if self.ended.is_some() || *due > now {
                return None;
            }
            *due = now + *wait;
            *wait = (*wait * 2).min(Duration::from_secs(4));
            self.waits.on_packet(now);
            Envelope::Hello { nonce: *nonce }.append(out);
            return Some(self.ends);
        }
        if !self.connected || self.ended.is_some() {
            return None;
        }
        if let Some((to, content)) = self.replies.pop_front() {
            return self.send_record(to, &content, out).then_some(to);
        }
        let at = self.since_start(now);
        let mut plain = std::mem::take(&mut self.plain);
        let (any, begin) = (self.tunnel.poll_output(at, &mut plain), out.len());
        let sent = any && self.send_record(self.ends, &plain, out);
        self.plain = plain;
        if !any && let Some(closed) = self.tunnel.closed() {
            if self.dtls.close().is_ok() {
                let from = self.ends;
                let marked = false;
                self.drain(Arrival { now, from, marked });
            }
            self.fail(closed.into());
        }
        if !sent {
            return self.pop_output(out);
        }
        self.permits_marks = self.tunnel.permits_marks();
        self.is_path_probe = self.tunnel.is_path_probe();
        if self.side == Side::Client
            && let Some(tail) = tail(&out[begin..])
        {
            self.tails.truncate(MAX_TAILS - 1);
            self.tails.push_front(tail);
        }
        Some(self.ends)
    }

    /// Returns the time at which [`Self::handle_timeout`] must be called, if any.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.ended.is_some() {
            return None;
        }
        if let Wrap::Hello { due, .. } = &self.wrap {
            return Some(*due);
        }
        let tunnel = self.connected.then(|| self.tunnel.poll_timeout()).flatten();
        let tunnel = tunnel.map(|at| self.start + at);
        self.dtls_timeout.into_iter().chain(tunnel).min()
    }

    /// Acts on the times that have come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.ended.is_some() || matches!(self.wrap, Wrap::Hello { .. }) {
            return;
        }
        if self.dtls_timeout.is_some_and(|at| at <= now) {
            let from = self.ends;
            let marked = false;
            self.with_dtls(Arrival { now, from, marked }, |dtls| {
                dtls.handle_timeout(now)
            });
        }
        if self.connected {
            let at = self.since_start(now);
            self.tunnel.handle_timeout(at);
        }
    }
}
