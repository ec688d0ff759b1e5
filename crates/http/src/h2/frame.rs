//! Frames on the wire: the nine bytes before each and the fixed payloads (RFC 9113 sections 4.1 and
//! 6).

use crate::{Reason, SessionError};

/// Bytes of a frame head.
pub(super) const HEAD_LEN: usize = 9;
/// The largest payload that we take and send: the smallest that everybody must take (RFC 9113
/// section 4.2).
pub(super) const MAX_PAYLOAD: usize = 16_384;
/// The client's first bytes (RFC 9113 section 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types (RFC 9113 section 6, RFC 9218 section 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Data,
    Headers,
    Priority,
    RstStream,
    Settings,
    PushPromise,
    Ping,
    GoAway,
    WindowUpdate,
    Continuation,
    PriorityUpdate,
    /// Ignored (RFC 9113 section 4.1).
    Unknown,
}

impl Kind {
    const fn from_byte(byte: u8) -> Self {
        match byte {
            0x0 => Self::Data,
            0x1 => Self::Headers,
            0x2 => Self::Priority,
            0x3 => Self::RstStream,
            0x4 => Self::Settings,
            0x5 => Self::PushPromise,
            0x6 => Self::Ping,
            0x7 => Self::GoAway,
            0x8 => Self::WindowUpdate,
            0x9 => Self::Continuation,
            0x10 => Self::PriorityUpdate,
            _ => Self::Unknown,
        }
    }

    const fn byte(self) -> u8 {
        match self {
            Self::Data => 0x0,
            Self::Headers => 0x1,
            Self::Priority => 0x2,
            Self::RstStream => 0x3,
            Self::Settings => 0x4,
            Self::PushPromise => 0x5,
            Self::Ping => 0x6,
            Self::GoAway => 0x7,
            Self::WindowUpdate => 0x8,
            Self::Continuation => 0x9,
            Self::PriorityUpdate => 0x10,
            Self::Unknown => 0xff,
        }
    }
}

/// Flag bits; the same bit means different things in different frames.
pub(super) mod flag {
    pub(in crate::h2) const NONE: u8 = 0;
    pub(in crate::h2) const END_STREAM: u8 = 0x1;
    pub(in crate::h2) const ACK: u8 = 0x1;
    pub(in crate::h2) const END_HEADERS: u8 = 0x4;
    pub(in crate::h2) const PADDED: u8 = 0x8;
    pub(in crate::h2) const PRIORITY: u8 = 0x20;
}

/// The head of a frame (RFC 9113 section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Bytes of payload.
    pub(super) len: usize,
    pub(super) kind: Kind,
    pub(super) flags: u8,
    /// Stream, 0 for the session.
    pub(super) id: u32,
}

impl Head {
    pub(super) const fn new(kind: Kind, flags: u8, id: u32, len: usize) -> Self {
        Self {
            len,
            kind,
            flags,
            id,
        }
    }

    pub(super) const fn parse(bytes: &[u8; HEAD_LEN]) -> Self {
        let [l2, l1, l0, kind, flags, i3, i2, i1, i0] = *bytes;
        Self {
            len: u32::from_be_bytes([0, l2, l1, l0]) as usize,
            kind: Kind::from_byte(kind),
            flags,
            id: u32::from_be_bytes([i3, i2, i1, i0]) & 0x7fff_ffff,
        }
    }

    pub(super) const fn encode(self) -> [u8; HEAD_LEN] {
        let [_, l2, l1, l0] = (self.len as u32).to_be_bytes();
        let [i3, i2, i1, i0] = self.id.to_be_bytes();
        [l2, l1, l0, self.kind.byte(), self.flags, i3, i2, i1, i0]
    }

    pub(super) const fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Appends a whole frame with a fixed payload.
fn put(out: &mut Vec<u8>, kind: Kind, flags: u8, id: u32, payload: &[u8]) {
    out.extend_from_slice(&Head::new(kind, flags, id, payload.len()).encode());
    out.extend_from_slice(payload);
}

pub(super) fn put_settings(out: &mut Vec<u8>, entries: &[(u16, u32)]) {
    out.extend_from_slice(&Head::new(Kind::Settings, flag::NONE, 0, entries.len() * 6).encode());
    for (name, value) in entries {
        out.extend_from_slice(&name.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

pub(super) fn put_settings_ack(out: &mut Vec<u8>) {
    put(out, Kind::Settings, flag::ACK, 0, &[]);
}

pub(super) fn put_reset(out: &mut Vec<u8>, id: u32, reason: Reason) {
    put(
        out,
        Kind::RstStream,
        flag::NONE,
        id,
        &code(reason).to_be_bytes(),
    );
}

pub(super) fn put_window_update(out: &mut Vec<u8>, id: u32, increment: u32) {
    put(
        out,
        Kind::WindowUpdate,
        flag::NONE,
        id,
        &increment.to_be_bytes(),
    );
}

pub(super) fn put_ping(out: &mut Vec<u8>, flags: u8, payload: [u8; 8]) {
    put(out, Kind::Ping, flags, 0, &payload);
}

pub(super) fn put_go_away(out: &mut Vec<u8>, last: u32, reason: Reason, detail: &str) {
    out.extend_from_slice(&Head::new(Kind::GoAway, flag::NONE, 0, 8 + detail.len()).encode());
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&code(reason).to_be_bytes());
    out.extend_from_slice(detail.as_bytes());
}

/// RFC 9218 section 7.1: the stream it is about stands in the payload.
pub(super) fn put_priority_update(out: &mut Vec<u8>, id: u32, urgency: u8) {
    out.extend_from_slice(&Head::new(Kind::PriorityUpdate, flag::NONE, 0, 7).encode());
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(&[b'u', b'=', b'0' + urgency]);
}

/// Appends a header block as HEADERS or PUSH_PROMISE, which begin with `lead` bytes of their own,
/// and CONTINUATION frames as needed (RFC 9113 section 6.10). `write` appends the block.
pub(super) fn put_block(
    out: &mut Vec<u8>,
    kind: Kind,
    flags: u8,
    id: u32,
    lead: &[u8],
    write: impl FnOnce(&mut Vec<u8>),
) {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD_LEN]);
    out.extend_from_slice(lead);
    write(out);
    let len = out.len() - start - HEAD_LEN;
    if len <= MAX_PAYLOAD {
        let head = Head::new(kind, flags | flag::END_HEADERS, id, len);
        out[start..start + HEAD_LEN].copy_from_slice(&head.encode());
        return;
    }
    let block = out.split_off(start + HEAD_LEN);
    out.truncate(start);
    let mut chunks = block.chunks(MAX_PAYLOAD).peekable();
    let (mut kind, mut flags) = (kind, flags);
    while let Some(chunk) = chunks.next() {
        let end = if chunks.peek().is_none() {
            flag::END_HEADERS
        } else {
            flag::NONE
        };
        put(out, kind, flags | end, id, chunk);
        (kind, flags) = (Kind::Continuation, flag::NONE);
    }
}

/// Returns a payload without its padding (RFC 9113 section 6.1).
pub(super) fn unpad(head: Head, payload: &[u8]) -> Result<&[u8], SessionError> {
    if !head.has(flag::PADDED) {
        return Ok(payload);
    }
    let (&pad, rest) = payload
        .split_first()
        .ok_or_else(|| frame_size("no room for the pad length"))?;
    let len = rest
        .len()
        .checked_sub(usize::from(pad))
        .ok_or_else(|| protocol("padding longer than the frame"))?;
    Ok(&rest[..len])
}

/// The payload as an array of exactly `N` bytes.
pub(super) fn exact<const N: usize>(payload: &[u8]) -> Result<[u8; N], SessionError> {
    payload
        .try_into()
        .map_err(|_| frame_size("a fixed frame of another length"))
}

/// Splits a number without its reserved bit off the payload.
pub(super) fn split_u31(payload: &[u8]) -> Result<(u32, &[u8]), SessionError> {
    let (number, rest) = payload
        .split_first_chunk()
        .ok_or_else(|| frame_size("payload cut short"))?;
    Ok((u32::from_be_bytes(*number) & 0x7fff_ffff, rest))
}

pub(super) const fn protocol(detail: &'static str) -> SessionError {
    SessionError {
        reason: Reason::Protocol,
        detail,
    }
}

pub(super) const fn frame_size(detail: &'static str) -> SessionError {
    SessionError {
        reason: Reason::FrameSize,
        detail,
    }
}

/// Error code of a reason (RFC 9113 section 7).
pub(super) const fn code(reason: Reason) -> u32 {
    match reason {
        Reason::NoError => 0x0,
        Reason::Protocol => 0x1,
        Reason::Internal => 0x2,
        Reason::FlowControl => 0x3,
        Reason::SettingsTimeout => 0x4,
        Reason::StreamClosed => 0x5,
        Reason::FrameSize => 0x6,
        Reason::Refused => 0x7,
        Reason::Cancel => 0x8,
        Reason::Compression => 0x9,
        Reason::Connect => 0xa,
        Reason::EnhanceYourCalm => 0xb,
        Reason::InadequateSecurity => 0xc,
        Reason::Http11Required => 0xd,
        Reason::Other(code) => code,
    }
}

/// Reason of an error code.
pub(super) const fn reason(code: u32) -> Reason {
    match code {
        0x0 => Reason::NoError,
        0x1 => Reason::Protocol,
        0x2 => Reason::Internal,
        0x3 => Reason::FlowControl,
        0x4 => Reason::SettingsTimeout,
        0x5 => Reason::StreamClosed,
        0x6 => Reason::FrameSize,
        0x7 => Reason::Refused,
        0x8 => Reason::Cancel,
        0x9 => Reason::Compression,
        0xa => Reason::Connect,
        0xb => Reason::EnhanceYourCalm,
        0xc => Reason::InadequateSecurity,
        0xd => Reason::Http11Required,
        other => Reason::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_codes_round_trip() {
        for byte in 0..=0x11u8 {
            let wire = [0x01, 0x02, 0x03, byte, 0x25, 0x80, 0, 0, 7];
            let head = Head::parse(&wire);
            assert_eq!(
                (head.len, head.flags, head.id),
                (0x01_02_03, 0x25, 7),
                "the reserved bit is ignored"
            );
            if head.kind != Kind::Unknown {
                assert_eq!(Head::parse(&head.encode()), head);
            }
            assert_eq!(code(reason(u32::from(byte))), u32::from(byte));
        }
    }

    #[test]
    fn long_blocks_are_continued() {
        let mut out = Vec::new();
        put_block(&mut out, Kind::Headers, flag::END_STREAM, 5, &[], |out| {
            out.extend([7; MAX_PAYLOAD * 2 + 1])
        });
        let mut frames = Vec::new();
        let mut rest = &out[..];
        while let Some((head, after)) = rest.split_first_chunk::<HEAD_LEN>() {
            let head = Head::parse(head);
            assert!(after[..head.len].iter().all(|&b| b == 7));
            rest = &after[head.len..];
            frames.push((head.kind, head.flags, head.id, head.len));
        }
        let expected = [
            (Kind::Headers, flag::END_STREAM, 5, MAX_PAYLOAD),
            (Kind::Continuation, flag::NONE, 5, MAX_PAYLOAD),
            (Kind::Continuation, flag::END_HEADERS, 5, 1),
        ];
        assert_eq!(frames, expected);
    }

    #[test]
    fn padding_is_taken_off() {
        let head = Head::new(Kind::Headers, flag::PADDED, 1, 4);
        assert_eq!(unpad(head, &[2, 9, 0, 0]), Ok(&[9][..]));
        assert!(unpad(head, &[4, 9, 0, 0]).is_err());
        assert!(unpad(head, &[]).is_err());
    }
}
