//! HTTP datagrams (RFC 9297) in datagrams of the carrier (RFC 9221), in place of DATAGRAM capsules.
//!
//! ```text
//!   send_data: capsules ─▶ Cutter ─┬─ a datagram that fits ─▶ poll_datagram ─▶ carrier
//!                                  └─ all other bytes ─▶ DATA frames
//!   handle_datagram ─▶ between two capsules of its stream ─▶ Event::Data with a capsule
//! ```
//!
//! The user sees capsules only, as over HTTP/2. An intermediary may change one form into the other
//! (RFC 9297 section 3.5). The client's datagrams are capsules until the server has agreed: a
//! datagram that overtakes its request would be lost.

use std::collections::VecDeque;

use bytes::{Buf as _, Bytes, BytesMut};

use super::code::{Code, Fault};
use super::connection::Connection;
use super::settings::put_own;
use super::stream::{CONTROL, Phase, SendingStream, Stream};
use super::varint::{self, Partial};
use crate::connect_udp;
use crate::{Event, RequestHead, SessionError, StreamId};

/// The type of a DATAGRAM capsule.
const CAPSULE: u64 = 0;
/// The length in bytes of the longest head of a capsule.
const MAX_HEAD: usize = 16;
/// The bytes of a stream's datagrams above which the stream takes no more data for the present.
const MOST_UNSENT: usize = 16 << 10;
/// The bytes of datagrams that wait for the response or for the end of a capsule.
const MOST_EARLY: usize = 16 << 10;
/// The bytes that each waiting datagram counts beside its own: empty ones need memory as well.
const OVERHEAD: usize = 64;

/// The datagrams of a session.
#[derive(Debug, Default)]
pub(super) struct Datagrams {
    /// True if this end takes datagrams.
    permitted: bool,
    /// The size in bytes of the largest datagram of the carrier.
    most: usize,
    /// The number of streams with datagrams.
    tunnels: usize,
    /// The streams with unsent datagrams, which send in turn.
    turns: VecDeque<StreamId>,
}

/// The datagrams of one stream, which is a tunnel for them.
#[derive(Debug, Default)]
pub(super) struct Tunnel {
    /// True once the server has agreed to the tunnel.
    agreed: bool,
    cutter: Cutter,
    unsent: VecDeque<Bytes>,
    unsent_bytes: usize,
    position: Position,
    early: VecDeque<Bytes>,
    early_bytes: usize,
}

/// A part of a stream of capsules.
enum CapsulePiece {
    /// The value of a DATAGRAM capsule.
    Datagram(Bytes),
    /// Bytes that stay in the stream.
    Stream(Bytes),
}

/// Takes the datagrams out of a stream of capsules that is cut anywhere.
#[derive(Debug, Default)]
struct Cutter {
    /// The beginning of a capsule whose use is not decided, or that becomes a datagram.
    begun: BytesMut,
    /// The bytes of the present capsule that stay in the stream.
    left: u64,
}

impl Cutter {
    /// Splits the next bytes. Datagrams of at most `most` bytes leave the stream, or none.
    fn cut(&mut self, mut data: Bytes, most: Option<usize>, mut take: impl FnMut(CapsulePiece)) {
        while !data.is_empty() {
            if self.left > 0 {
                let count = (data.len() as u64).min(self.left);
                self.left -= count;
                take(CapsulePiece::Stream(data.split_to(count as usize)));
                continue;
            }
            if capsule(&self.begun).is_none() {
                self.begun.extend_from_slice(&data.split_to(1));
            }
            let Some((kind, length, begin)) = capsule(&self.begun) else {
                continue;
            };
            if kind != CAPSULE || most.is_none_or(|most| length > most as u64) {
                let here = self.begun.len() - begin;
                self.left = length - (here as u64).min(length);
                take(CapsulePiece::Stream(self.begun.split().freeze()));
                continue;
            }
            let end = begin + length as usize;
            let count = (end - self.begun.len()).min(data.len());
            self.begun.extend_from_slice(&data.split_to(count));
            if self.begun.len() == end {
                take(CapsulePiece::Datagram(
                    self.begun.split().freeze().slice(begin..),
                ));
            }
        }
    }
}

/// Returns the type and length of the capsule at the front, and the place at which its value
/// begins.
fn capsule(bytes: &[u8]) -> Option<(u64, u64, usize)> {
    let mut rest = &bytes[..bytes.len().min(MAX_HEAD)];
    let before = rest.len();
    let (kind, length) = (varint::take(&mut rest)?, varint::take(&mut rest)?);
    Some((kind, length, before - rest.len()))
}

/// The position in a stream of capsules.
#[derive(Debug, Default)]
struct Position {
    number: Partial,
    has_type: bool,
    /// The bytes of the present value that are still to come.
    left: u64,
}

impl Position {
    fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let here = (bytes.len() as u64).min(self.left);
            self.left -= here;
            bytes = &bytes[here as usize..];
            let Some(number) = self.number.take(&mut bytes) else {
                return;
            };
            if self.has_type {
                self.left = number;
            }
            self.has_type = !self.has_type;
        }
    }

    const fn is_between_capsules(&self) -> bool {
        self.left == 0 && !self.has_type && self.number.is_empty()
    }
}

impl Stream {
    /// Notes that the server has agreed to a tunnel.
    pub(super) fn agree_to_datagrams(&mut self) {
        if let Some(tunnel) = &mut self.datagrams {
            tunnel.agreed = true;
        }
    }

    /// Notes bytes of the peer's capsules.
    pub(super) fn pass_capsules(&mut self, bytes: &[u8]) {
        if let Some(tunnel) = &mut self.datagrams {
            tunnel.position.pass(bytes);
        }
    }

    /// Returns true if the stream takes no more data until datagrams have left.
    pub(super) fn has_many_datagrams(&self) -> bool {
        let tunnel = self.datagrams.as_ref();
        tunnel.is_some_and(|tunnel| tunnel.unsent_bytes >= MOST_UNSENT)
    }

    /// Returns true if the stream takes data again after it was full, as far as datagrams count.
    pub(super) fn has_few_datagrams(&self) -> bool {
        let tunnel = self.datagrams.as_ref();
        tunnel.is_none_or(|tunnel| tunnel.unsent_bytes < MOST_UNSENT / 2)
    }

    /// Drops the unsent datagrams: none may follow the end of our message.
    pub(super) fn drop_datagrams(&mut self) {
        if let Some(tunnel) = &mut self.datagrams {
            tunnel.unsent.clear();
            tunnel.unsent_bytes = 0;
        }
    }

    /// Queues data. Returns true if the stream has its first unsent datagram now.
    fn queue_capsules(&mut self, data: Bytes, most: Option<usize>, end: bool) -> bool {
        let Some(tunnel) = &mut self.datagrams else {
            self.queue.push(data);
            return false;
        };
        let had_none = tunnel.unsent.is_empty();
        let most = most.filter(|_| tunnel.agreed);
        let Tunnel {
            cutter,
            unsent,
            unsent_bytes,
            ..
        } = &mut **tunnel;
        cutter.cut(data, most, |piece| match piece {
            CapsulePiece::Stream(bytes) => self.queue.push(bytes),
            CapsulePiece::Datagram(value) => {
                *unsent_bytes += value.len() + OVERHEAD;
                unsent.push_back(value);
            }
        });
        let is_first = had_none && !unsent.is_empty();
        if end {
            self.flush_capsules();
        }
        is_first
    }

    /// Queues the beginning of a capsule that was held back: the peer has to see that it is cut.
    pub(super) fn flush_capsules(&mut self) {
        if let Some(tunnel) = &mut self.datagrams
            && !tunnel.cutter.begun.is_empty()
        {
            self.queue.push(tunnel.cutter.begun.split().freeze());
        }
    }
}

impl Connection {
    /// Tells the peer that this end takes datagrams (RFC 9297 section 2.1.1). The carrier has them,
    /// and no output was taken yet.
    pub fn permit_datagrams(&mut self) {
        let control = &mut self.critical[CONTROL];
        if control.asked || self.datagrams.permitted {
            return;
        }
        let mut settings = Vec::new();
        put_own(&mut settings, &self.config, false);
        let rest = control.out.split_off(settings.len());
        control.out.clear();
        put_own(&mut control.out, &self.config, true);
        control.out.extend(rest);
        self.datagrams.permitted = true;
    }

    /// Returns true if streams have datagrams. There are none to send otherwise.
    pub fn has_datagrams(&self) -> bool {
        self.datagrams.tunnels > 0
    }

    /// Sets the size of the largest datagram that the carrier takes now.
    pub fn set_max_datagram(&mut self, bytes: usize) {
        self.datagrams.most = bytes;
    }

    /// Returns the next datagram for the carrier. It may get lost.
    pub fn poll_datagram(&mut self) -> Option<Bytes> {
        loop {
            let id = self.datagrams.turns.pop_front()?;
            let Some(stream) = self.streams.get_mut(&id) else {
                continue;
            };
            let (Some(tunnel), Some(carrier)) = (&mut stream.datagrams, stream.carrier) else {
                continue;
            };
            let Some(value) = tunnel.unsent.pop_front() else {
                continue;
            };
            tunnel.unsent_bytes -= value.len() + OVERHEAD;
            if !tunnel.unsent.is_empty() {
                self.datagrams.turns.push_back(id);
            }
            let mut out = Vec::with_capacity(value.len() + 8);
            varint::put(&mut out, carrier / 4);
            out.extend_from_slice(&value);
            self.tell_room(id);
            return Some(out.into());
        }
    }

    /// Takes a datagram of the carrier.
    ///
    /// # Errors
    ///
    /// As for [`Connection::handle_input`].
    pub fn handle_datagram(&mut self, datagram: Bytes) -> Result<(), SessionError> {
        self.guard(|this| this.datagram(datagram))
    }

    fn datagram(&mut self, mut datagram: Bytes) -> Result<(), Fault> {
        let mut rest = &datagram[..];
        let quarter = varint::take(&mut rest).filter(|quarter| *quarter <= varint::MAX / 4);
        let quarter = quarter.ok_or(Fault::new(
            Code::DATAGRAM_ERROR,
            "a datagram without the number of a request",
        ))?;
        datagram.advance(datagram.len() - rest.len());
        // A datagram may come before its request, or after the end of the stream.
        let Some(&SendingStream::Stream(id)) = self.senders.get(&(quarter * 4)) else {
            return Ok(());
        };
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        if self.datagrams.permitted && !stream.takes_datagrams {
            // RFC 9297 section 2: the request has no semantics of datagrams.
            self.fail_stream(id, Code::DATAGRAM_ERROR);
            return Ok(());
        }
        let is_over = stream.phase == Phase::Ended;
        let Some(tunnel) = stream.datagrams.as_mut().filter(|_| !is_over) else {
            return Ok(());
        };
        let size = datagram.len() + OVERHEAD;
        if tunnel.early_bytes + size <= MOST_EARLY {
            tunnel.early_bytes += size;
            // The carrier's bytes would keep all packets that arrived together.
            tunnel.early.push_back(Bytes::copy_from_slice(&datagram));
        }
        self.deliver_datagrams(id);
        Ok(())
    }

    /// Gives the user the datagrams that have arrived, if they may stand here.
    pub(super) fn deliver_datagrams(&mut self, id: StreamId) {
        loop {
            let is_paused = self.paused;
            let Some(stream) = self.streams.get_mut(&id) else {
                return;
            };
            let Some(tunnel) = &mut stream.datagrams else {
                return;
            };
            if stream.phase != Phase::Content || !tunnel.position.is_between_capsules() {
                return;
            }
            let Some(value) = tunnel.early.pop_front() else {
                return;
            };
            tunnel.early_bytes -= value.len() + OVERHEAD;
            // A user that reads slowly loses datagrams.
            if is_paused || stream.paused {
                continue;
            }
            let mut data = Vec::with_capacity(value.len() + MAX_HEAD);
            varint::put(&mut data, CAPSULE);
            varint::put(&mut data, value.len() as u64);
            data.extend_from_slice(&value);
            self.give(id, data.into());
        }
    }

    /// Hands content to the user.
    pub(super) fn give(&mut self, id: StreamId, data: Bytes) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        self.held += data.len();
        self.receive_window.adapt(self.held, true);
        stream.held += data.len();
        stream.paused |= stream.held >= self.receive_window.current() as usize;
        self.paused |= self.held >= self.config.receive_budget;
        let end = false;
        self.events.push_back(Event::Data { id, data, end });
    }

    /// Returns the state of datagrams for a request, if it has them.
    pub(super) fn tunnel_of(&mut self, head: &RequestHead) -> Option<Box<Tunnel>> {
        let has = self.datagrams.permitted && connect_udp::is_request(head);
        self.datagrams.tunnels += usize::from(has);
        has.then(Box::default)
    }

    /// Notes that the content of a stream consists of no capsules: the tunnel was refused.
    pub(super) fn refuse_tunnel(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.flush_capsules();
        let tunnel = stream.datagrams.take();
        self.end_tunnel(tunnel);
    }

    /// Notes that a stream has no datagrams any more.
    pub(super) fn end_tunnel(&mut self, tunnel: Option<Box<Tunnel>>) {
        self.datagrams.tunnels -= usize::from(tunnel.is_some());
    }

    /// Queues data of a message, as datagrams where both ends take them.
    pub(super) fn queue_content(&mut self, id: StreamId, data: Bytes, end: bool) {
        let both = self.datagrams.permitted && self.peer.datagrams;
        let most = both.then(|| self.datagrams.most.saturating_sub(varint::LONGEST));
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.queue_capsules(data, most, end)
        {
            self.datagrams.turns.push_back(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a capsule.
    fn put(kind: u64, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        varint::put(&mut out, kind);
        varint::put(&mut out, value.len() as u64);
        out.extend(value);
        out
    }

    /// Cuts a wire into pieces of `step` bytes. Returns the rest of the stream, and the datagrams.
    fn cut(wire: &[u8], step: usize, most: Option<usize>) -> (Vec<u8>, Vec<Bytes>) {
        let (mut cutter, mut rest, mut datagrams) = (Cutter::default(), Vec::new(), Vec::new());
        for piece in wire.chunks(step) {
            cutter.cut(Bytes::copy_from_slice(piece), most, |piece| match piece {
                CapsulePiece::Datagram(value) => datagrams.push(value),
                CapsulePiece::Stream(bytes) => rest.extend(bytes),
            });
        }
        rest.extend(cutter.begun);
        (rest, datagrams)
    }

    proptest! {
        /// Datagrams that fit leave the stream, and all other bytes stay as they are.
        #[test]
        fn cutter_takes_datagrams_out(
            capsules in proptest::collection::vec(
                (0u64..3, proptest::collection::vec(any::<u8>(), 0..90)),
                0..12,
            ),
            step in 1usize..120,
            cut_off in 0usize..20,
        ) {
            let fits = |kind: u64, value: &[u8]| kind == CAPSULE && value.len() <= 60;
            let (mut wire, mut rest, mut datagrams) = (Vec::new(), Vec::new(), Vec::new());
            for (kind, value) in &capsules {
                wire.extend(put(*kind, value));
                match fits(*kind, value) {
                    true => datagrams.push(Bytes::copy_from_slice(value)),
                    false => rest.extend(put(*kind, value)),
                }
            }
            prop_assert_eq!(cut(&wire, step, Some(60)), (rest, datagrams));
            let cut_off = &wire[..wire.len().saturating_sub(cut_off)];
            prop_assert_eq!(cut(cut_off, step, None), (cut_off.to_vec(), Vec::new()));
            let mut position = Position::default();
            for piece in wire.chunks(step) {
                position.pass(piece);
            }
            prop_assert!(position.is_between_capsules());
            position.pass(&[0, 2, 9]);
            prop_assert!(!position.is_between_capsules());
        }
    }

    #[test]
    fn cutter_keeps_no_long_capsule() {
        let mut cutter = Cutter::default();
        let mut wire = vec![0];
        varint::put(&mut wire, 1 << 40);
        for _ in 0..10 {
            wire.extend([7; 1000]);
            cutter.cut(Bytes::copy_from_slice(&wire), Some(1200), |_| {});
            assert!(cutter.begun.is_empty());
            wire.clear();
        }
    }
}
