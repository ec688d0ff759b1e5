//! Frames on a stream (RFC 9114 section 7, RFC 9218 section 7.2).

use super::code::{Code, Fault};
use super::varint::{self, Partial};

pub(super) const DATA: u64 = 0x00;
pub(super) const HEADERS: u64 = 0x01;
pub(super) const CANCEL_PUSH: u64 = 0x03;
pub(super) const SETTINGS: u64 = 0x04;
pub(super) const PUSH_PROMISE: u64 = 0x05;
pub(super) const GOAWAY: u64 = 0x07;
pub(super) const MAX_PUSH_ID: u64 = 0x0d;
/// The last frame of a message that breaks off, with the code of the error as its payload. It is
/// ours, and only ends that announce it ([`super::settings`]) get it. A reset in its place would
/// let the carrier discard the content before it (RFC 9000 section 3.2).
pub(super) const BROKEN: u64 = 0x3462_726b;
/// The first of the types that have no meaning.
pub(super) const RESERVED: u64 = 0x21;
/// PRIORITY_UPDATE of a request.
pub(super) const PRIORITY_REQUEST: u64 = 0xf0700;
/// PRIORITY_UPDATE of a push.
pub(super) const PRIORITY_PUSH: u64 = 0xf0701;

/// The largest payload of a frame on the control stream, in bytes.
const MAX_CONTROL: u64 = 16 << 10;

/// The largest payload of a frame that holds one number, in bytes.
const MAX_NUMBER: u64 = 8;

/// Returns true if only the control stream has such frames.
pub(super) const fn is_control(kind: u64) -> bool {
    matches!(
        kind,
        CANCEL_PUSH | SETTINGS | GOAWAY | MAX_PUSH_ID | PRIORITY_REQUEST | PRIORITY_PUSH
    )
}

/// Returns true if the type is one of HTTP/2 that HTTP/3 forbids (RFC 9114 section 7.2.8).
pub(super) const fn is_forbidden(kind: u64) -> bool {
    matches!(kind, 0x02 | 0x06 | 0x08 | 0x09)
}

/// A part of a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// A frame begins.
    Begin {
        /// The type of the frame.
        kind: u64,
        /// The bytes of its payload.
        len: u64,
    },
    /// Bytes of a DATA frame.
    Data(&'a [u8]),
    /// The whole payload of a frame of another known type.
    Payload(u64, Vec<u8>),
}

/// Cuts the bytes of a stream into frames.
#[derive(Debug, Default)]
pub(super) struct FrameReader {
    number: Partial,
    state: FrameState,
}

#[derive(Debug, Default)]
enum FrameState {
    #[default]
    Kind,
    Length(u64),
    Data(u64),
    Gather {
        kind: u64,
        left: u64,
        payload: Vec<u8>,
    },
    Skip(u64),
}

impl FrameReader {
    /// Returns true if no frame has begun.
    pub(super) const fn is_between_frames(&self) -> bool {
        matches!(self.state, FrameState::Kind) && self.number.is_empty()
    }

    /// Returns the bytes of a frame that has not arrived whole.
    pub(super) const fn gathered(&self) -> usize {
        match &self.state {
            FrameState::Gather { payload, .. } => payload.len(),
            _ => 0,
        }
    }

    /// Returns the next part of a frame, or `None` if more input is needed. `max_section` limits
    /// the bytes of HEADERS and PUSH_PROMISE.
    pub(super) fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
        max_section: usize,
    ) -> Result<Option<Piece<'a>>, Fault> {
        loop {
            match &mut self.state {
                FrameState::Kind => match self.number.take(input) {
                    None => return Ok(None),
                    Some(kind) => self.state = FrameState::Length(kind),
                },
                FrameState::Length(kind) => {
                    let kind = *kind;
                    let Some(len) = self.number.take(input) else {
                        return Ok(None);
                    };
                    self.state = begin(kind, len, max_section)?;
                    return Ok(Some(Piece::Begin { kind, len }));
                }
                FrameState::Data(0) | FrameState::Skip(0) => self.state = FrameState::Kind,
                FrameState::Data(left) => {
                    let data = split(input, left);
                    return Ok((!data.is_empty()).then_some(Piece::Data(data)));
                }
                FrameState::Skip(left) => {
                    if split(input, left).is_empty() {
                        return Ok(None);
                    }
                }
                FrameState::Gather {
                    kind,
                    left,
                    payload,
                } => {
                    payload.extend_from_slice(split(input, left));
                    if *left > 0 {
                        return Ok(None);
                    }
                    let piece = Piece::Payload(*kind, std::mem::take(payload));
                    self.state = FrameState::Kind;
                    return Ok(Some(piece));
                }
            }
        }
    }
}

fn begin(kind: u64, len: u64, max_section: usize) -> Result<FrameState, Fault> {
    let limit = match kind {
        DATA => return Ok(FrameState::Data(len)),
        HEADERS | PUSH_PROMISE => max_section as u64,
        BROKEN => MAX_NUMBER,
        _ if is_control(kind) => MAX_CONTROL,
        _ => return Ok(FrameState::Skip(len)),
    };
    if len > limit {
        return Err(Fault::new(Code::EXCESSIVE_LOAD, "a frame over our limit"));
    }
    Ok(FrameState::Gather {
        kind,
        left: len,
        payload: Vec::new(),
    })
}

/// Takes at most `left` bytes from the front of `input`.
fn split<'a>(input: &mut &'a [u8], left: &mut u64) -> &'a [u8] {
    let count = input
        .len()
        .min(usize::try_from(*left).unwrap_or(usize::MAX));
    let (taken, rest) = input.split_at(count);
    *input = rest;
    *left -= count as u64;
    taken
}

/// Appends the type and length of a frame.
pub(super) fn put_head(out: &mut Vec<u8>, kind: u64, len: usize) {
    varint::put(out, kind);
    varint::put(out, len as u64);
}

/// Appends a frame whose payload is one number.
pub(super) fn put_number(out: &mut Vec<u8>, kind: u64, number: u64) {
    let mut payload = Vec::with_capacity(8);
    varint::put(&mut payload, number);
    put_head(out, kind, payload.len());
    out.extend_from_slice(&payload);
}

/// Appends PRIORITY_UPDATE for a request or a push.
pub(super) fn put_priority(out: &mut Vec<u8>, kind: u64, element: u64, urgency: u8) {
    let mut payload = Vec::with_capacity(12);
    varint::put(&mut payload, element);
    payload.extend_from_slice(&[b'u', b'=', b'0' + urgency.min(7)]);
    put_head(out, kind, payload.len());
    out.extend_from_slice(&payload);
}

/// Reads a payload that is one number.
pub(super) fn number(mut payload: &[u8]) -> Result<u64, Fault> {
    match varint::take(&mut payload) {
        Some(number) if payload.is_empty() => Ok(number),
        _ => Err(Fault::new(
            Code::FRAME_ERROR,
            "a frame of one number has another length",
        )),
    }
}
