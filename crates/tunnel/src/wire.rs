//! The segments of a datagram: a compressed TCP header, as in section 6.4.2 of the thesis that [the
//! crate](crate) cites.
//!
//! A datagram holds one segment after another, in network byte order. A stream segment carries
//! data, an acknowledgement, a reset, or several of them:
//!
//! ```text
//!  0        8        16                               48
//!  | flags  | blocks | stream id                      |
//!  DATA or FIN:  | offset, low 32 bits | length (16) |
//!  RESET:        | code (32) |
//!  ACK:          | offset, low 32 bits | window in KiB (16) | duplicates (16) | blocks x (32, 32) |
//!  DATA or FIN:  | payload |
//! ```
//!
//! Other segments concern the tunnel: path probes and their replies, the close, the count of
//! datagrams that arrived with a congestion mark (RFC 3168), and offers.
//!
//! An offer gives a window to streams that the peer opens, before their first segments:
//!
//! ```text
//!  0        8                  24                              56
//!  | 0x84   | window in KiB    | index of the first stream beyond the offer |
//! ```
//!
//! It concerns each stream that the receiver of the offer opens, if the stream's index is lower.
//! The index is the stream's number without its last bit. Such a stream may send so much at once,
//! and not the first credit only. All offers of an end have one window, and a lower index than
//! before says nothing new. Offers can thus be lost, repeated and reordered.
//!
//! A reader ends a datagram at a segment of an unknown kind, acts on the segments before it, and
//! goes on with the next datagram. A kind that older peers do not know, as the offer, therefore
//! stands last in its datagram.
//!
//! Offsets are 64 bits wide at both ends. The wire carries the low 32 bits, and [`expand`] restores
//! the rest from the offset that the receiver expects (RFC 793, section 3.3, without the wrap).

use thiserror::Error;

/// The most selective-acknowledgement blocks in one segment.
pub const MAX_BLOCKS: usize = 8;

const DATA: u8 = 0x01;
const FIN: u8 = 0x02;
const RESET: u8 = 0x04;
const ACK: u8 = 0x08;
const RESET_ACK: u8 = 0x10;
const STREAM_FLAGS: u8 = DATA | FIN | RESET | ACK | RESET_ACK;

const PROBE: u8 = 0x80;
const PROBE_REPLY: u8 = 0x81;
const CLOSE: u8 = 0x82;
const MARKS: u8 = 0x83;
const OFFER: u8 = 0x84;

/// Bytes of a stream segment before its optional parts.
pub(crate) const STREAM_HEADER: usize = 6;
/// Bytes that data adds to a segment, beside the payload.
pub(crate) const DATA_HEADER: usize = 6;
/// Bytes that an acknowledgement without blocks adds to a segment.
pub(crate) const ACK_HEADER: usize = 8;
/// Bytes of one selective-acknowledgement block.
pub(crate) const BLOCK: usize = 8;
/// Bytes of a probe without padding.
pub(crate) const PROBE_HEADER: usize = 7;
/// Bytes of an offer.
pub(crate) const OFFER_LEN: usize = 7;

/// The error of a datagram that is no sequence of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// The datagram ends inside a segment.
    #[error("the datagram ends inside a segment")]
    Truncated,
    /// The first byte of a segment names no known kind, or contradictory parts.
    #[error("a segment has unknown or contradictory flags: {0:#04x}")]
    Flags(u8),
    /// A segment has too many acknowledgement blocks, or blocks without an acknowledgement.
    #[error("a segment has {0} acknowledgement blocks where at most {MAX_BLOCKS} are possible")]
    Blocks(u8),
}

/// Data of a stream and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data<'a> {
    /// The low 32 bits of the offset of the first byte.
    pub offset: u32,
    /// The bytes; empty in a window probe, and in an end without data.
    pub payload: &'a [u8],
    /// Indicates whether the stream ends after these bytes.
    pub fin: bool,
}

/// An acknowledgement of one direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The low 32 bits of the offset before which everything arrived. The end of a stream counts as
    /// one byte.
    pub offset: u32,
    /// The bytes after `offset` that the receiver accepts, in KiB.
    pub window: u16,
    /// The count of segments that brought nothing new, modulo 2^16. It replaces D-SACK (RFC 2883).
    pub duplicates: u16,
    /// The ranges beyond `offset` that arrived, as low 32 bits of start and end.
    pub blocks: [(u32, u32); MAX_BLOCKS],
    /// The number of valid entries of `blocks`.
    pub block_count: u8,
}

impl Ack {
    /// Returns the valid blocks.
    pub fn blocks(&self) -> &[(u32, u32)] {
        &self.blocks[..usize::from(self.block_count).min(MAX_BLOCKS)]
    }
}

/// A segment of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamSegment<'a> {
    /// The stream's number: even numbers are opened by the client, odd ones by the server.
    pub stream: u32,
    /// Data, or the end of the stream.
    pub data: Option<Data<'a>>,
    /// An acknowledgement.
    pub ack: Option<Ack>,
    /// The stream is aborted in both directions, with this code of the application.
    pub reset: Option<u32>,
    /// A reset arrived and need not be repeated.
    pub reset_ack: bool,
}

/// A single segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment<'a> {
    /// A segment of a stream.
    Stream(StreamSegment<'a>),
    /// A request for a reply, padded to the size of datagram that is probed.
    Probe {
        /// The number that the reply repeats.
        id: u32,
        /// The bytes of padding.
        padding: u16,
    },
    /// The reply to a probe.
    ProbeReply {
        /// The number of the probe.
        id: u32,
    },
    /// The end of the tunnel.
    Close {
        /// The code of the application.
        code: u32,
    },
    /// The number of datagrams that arrived with a congestion mark, modulo 2^32.
    Marks {
        /// The count.
        count: u32,
    },
    /// A window for streams that the receiver of this segment opens. It stands last in a datagram.
    Offer {
        /// The bytes that such a stream may send before its first acknowledgement, in KiB.
        window: u16,
        /// The index of the first stream without this window.
        below: u32,
    },
}

impl Segment<'_> {
    /// Appends the segment to a datagram.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Stream(ref segment) => segment.encode(out),
            Self::Probe { id, padding } => {
                out.push(PROBE);
                out.extend_from_slice(&id.to_be_bytes());
                out.extend_from_slice(&padding.to_be_bytes());
                out.resize(out.len() + usize::from(padding), 0);
            }
            Self::ProbeReply { id } => tagged(out, PROBE_REPLY, id),
            Self::Close { code } => tagged(out, CLOSE, code),
            Self::Marks { count } => tagged(out, MARKS, count),
            Self::Offer { window, below } => {
                out.push(OFFER);
                out.extend_from_slice(&window.to_be_bytes());
                out.extend_from_slice(&below.to_be_bytes());
            }
        }
    }
}

fn tagged(out: &mut Vec<u8>, kind: u8, value: u32) {
    out.push(kind);
    out.extend_from_slice(&value.to_be_bytes());
}

impl StreamSegment<'_> {
    /// Returns the size of the encoded segment in bytes.
    pub fn encoded_len(&self) -> usize {
        let data = self.data.map_or(0, |data| DATA_HEADER + data.payload.len());
        let ack = self
            .ack
            .map_or(0, |ack| ACK_HEADER + ack.blocks().len() * BLOCK);
        STREAM_HEADER + data + ack + self.reset.map_or(0, |_| 4)
    }

    fn flags(&self) -> u8 {
        let data = self
            .data
            .map_or(0, |data| if data.fin { DATA | FIN } else { DATA });
        data | self.reset.map_or(0, |_| RESET)
            | self.ack.map_or(0, |_| ACK)
            | if self.reset_ack { RESET_ACK } else { 0 }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let blocks = self.ack.as_ref().map_or(&[][..], Ack::blocks);
        out.push(self.flags());
        out.push(blocks.len() as u8);
        out.extend_from_slice(&self.stream.to_be_bytes());
        if let Some(data) = self.data {
            out.extend_from_slice(&data.offset.to_be_bytes());
            out.extend_from_slice(&(data.payload.len() as u16).to_be_bytes());
        }
        if let Some(code) = self.reset {
            out.extend_from_slice(&code.to_be_bytes());
        }
        if let Some(ack) = self.ack {
            out.extend_from_slice(&ack.offset.to_be_bytes());
            out.extend_from_slice(&ack.window.to_be_bytes());
            out.extend_from_slice(&ack.duplicates.to_be_bytes());
            for (start, end) in blocks {
                out.extend_from_slice(&start.to_be_bytes());
                out.extend_from_slice(&end.to_be_bytes());
            }
        }
        if let Some(data) = self.data {
            out.extend_from_slice(data.payload);
        }
    }
}

/// The segments of one datagram, in order. The iterator ends after the first error.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    rest: &'a [u8],
}

impl<'a> Segments<'a> {
    /// Reads a datagram.
    pub const fn new(datagram: &'a [u8]) -> Self {
        Self { rest: datagram }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_be_bytes)
    }

    fn segment(&mut self) -> Result<Segment<'a>, WireError> {
        let [kind] = self.array()?;
        Ok(match kind {
            PROBE => {
                let (id, padding) = (self.u32()?, self.u16()?);
                self.take(usize::from(padding))?;
                Segment::Probe { id, padding }
            }
            PROBE_REPLY => Segment::ProbeReply { id: self.u32()? },
            CLOSE => Segment::Close { code: self.u32()? },
            MARKS => Segment::Marks { count: self.u32()? },
            OFFER => Segment::Offer {
                window: self.u16()?,
                below: self.u32()?,
            },
            flags if flags & !STREAM_FLAGS == 0 && flags & (DATA | FIN) != FIN => {
                Segment::Stream(self.stream(flags)?)
            }
            flags => return Err(WireError::Flags(flags)),
        })
    }

    fn stream(&mut self, flags: u8) -> Result<StreamSegment<'a>, WireError> {
        let [blocks] = self.array()?;
        if usize::from(blocks) > MAX_BLOCKS || (blocks > 0 && flags & ACK == 0) {
            return Err(WireError::Blocks(blocks));
        }
        let mut segment = StreamSegment {
            stream: self.u32()?,
            reset_ack: flags & RESET_ACK != 0,
            ..StreamSegment::default()
        };
        let data = match flags & DATA {
            0 => None,
            _ => Some((self.u32()?, self.u16()?)),
        };
        if flags & RESET != 0 {
            segment.reset = Some(self.u32()?);
        }
        if flags & ACK != 0 {
            segment.ack = Some(self.ack(blocks)?);
        }
        if let Some((offset, len)) = data {
            segment.data = Some(Data {
                offset,
                payload: self.take(usize::from(len))?,
                fin: flags & FIN != 0,
            });
        }
        Ok(segment)
    }

    fn ack(&mut self, block_count: u8) -> Result<Ack, WireError> {
        let mut ack = Ack {
            offset: self.u32()?,
            window: self.u16()?,
            duplicates: self.u16()?,
            blocks: [(0, 0); MAX_BLOCKS],
            block_count,
        };
        for block in &mut ack.blocks[..usize::from(block_count)] {
            *block = (self.u32()?, self.u32()?);
        }
        Ok(ack)
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = Result<Segment<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let segment = self.segment();
        if segment.is_err() {
            self.rest = &[];
        }
        Some(segment)
    }
}

/// Returns the 64-bit offset nearest to `near` whose low 32 bits are `low`.
pub fn expand(near: u64, low: u32) -> u64 {
    const SPAN: u64 = 1 << 32;
    let candidate = (near & !(SPAN - 1)) | u64::from(low);
    if candidate > near && candidate - near > SPAN / 2 && candidate >= SPAN {
        candidate - SPAN
    } else if near > candidate && near - candidate > SPAN / 2 {
        candidate.saturating_add(SPAN)
    } else {
        candidate
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn expand_picks_the_nearest_offset() {
        assert_eq!(expand(0, 5), 5);
        assert_eq!(expand(10, u32::MAX), u64::from(u32::MAX));
        assert_eq!(expand(1 << 32, u32::MAX), (1 << 32) - 1);
        assert_eq!(expand((1 << 32) - 1, 3), (1 << 32) + 3);
        assert_eq!(expand((7 << 32) + 9, 9), (7 << 32) + 9);
        assert_eq!(
            expand(u64::MAX, 0),
            u64::MAX,
            "saturates at the end of the space"
        );
    }

    #[test]
    fn encoded_segment_layout_is_fixed() {
        let mut out = Vec::new();
        let ack = Ack {
            offset: 0x0102_0304,
            window: 0x0506,
            duplicates: 7,
            blocks: [(9, 10); MAX_BLOCKS],
            block_count: 1,
        };
        let segment = StreamSegment {
            stream: 0x0a0b_0c0d,
            data: Some(Data {
                offset: 0x1112_1314,
                payload: b"ab",
                fin: true,
            }),
            ack: Some(ack),
            ..StreamSegment::default()
        };
        Segment::Stream(segment).encode(&mut out);
        let expected = [
            &[0x0b, 1, 0x0a, 0x0b, 0x0c, 0x0d][..],
            &[0x11, 0x12, 0x13, 0x14, 0, 2],
            &[1, 2, 3, 4, 5, 6, 0, 7, 0, 0, 0, 9, 0, 0, 0, 10],
            b"ab",
        ]
        .concat();
        assert_eq!(out, expected);
        assert_eq!(segment.encoded_len(), expected.len());
    }

    #[test]
    fn encoded_offer_layout_is_fixed() {
        let mut out = Vec::new();
        let (window, below) = (0x0102, 0x0a0b_0c0d);
        Segment::Offer { window, below }.encode(&mut out);
        assert_eq!(out, [0x84, 1, 2, 0x0a, 0x0b, 0x0c, 0x0d]);
        assert_eq!(out.len(), OFFER_LEN);
    }

    #[test]
    fn segment_reader_refuses_bad_segments() {
        let read = |bytes: &[u8]| Segments::new(bytes).collect::<Result<Vec<_>, _>>().err();
        assert_eq!(read(&[0x40]), Some(WireError::Flags(0x40)));
        assert_eq!(
            read(&[0x02]),
            Some(WireError::Flags(0x02)),
            "FIN without DATA"
        );
        assert_eq!(read(&[ACK, 9, 0, 0, 0, 1]), Some(WireError::Blocks(9)));
        assert_eq!(read(&[DATA, 1, 0, 0, 0, 1]), Some(WireError::Blocks(1)));
        assert_eq!(read(&[PROBE, 0, 0, 0, 1, 0, 9]), Some(WireError::Truncated));
        assert_eq!(
            read(&[DATA, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 3, 1]),
            Some(WireError::Truncated)
        );
    }

    /// Stream, data with offset and end, reset code, and whether there are acknowledgements.
    type Parts = (u32, Option<(u32, Vec<u8>, bool)>, Option<u32>, bool);

    fn segments() -> impl Strategy<Value = Parts> {
        (
            any::<u32>(),
            prop::option::of((
                any::<u32>(),
                prop::collection::vec(any::<u8>(), 0..40),
                any::<bool>(),
            )),
            prop::option::of(any::<u32>()),
            any::<bool>(),
        )
    }

    proptest! {
        #[test]
        fn segments_decode_as_encoded(all in prop::collection::vec(segments(), 1..6), ack in any::<u32>()) {
            let mut out = Vec::new();
            let mut sent = Vec::new();
            for (stream, data, reset, reset_ack) in &all {
                let segment = Segment::Stream(StreamSegment {
                    stream: *stream,
                    data: data.as_ref().map(|(offset, payload, fin)| Data {
                        offset: *offset, payload, fin: *fin,
                    }),
                    ack: reset_ack.then_some(Ack {
                        offset: ack, window: 3, duplicates: 4, blocks: [(0, 0); MAX_BLOCKS], block_count: 0,
                    }),
                    reset: *reset,
                    reset_ack: *reset_ack,
                });
                segment.encode(&mut out);
                sent.push(segment);
            }
            let offer = Segment::Offer { window: ack as u16, below: ack };
            let probe = Segment::Probe { id: ack, padding: 9 };
            for segment in [probe, Segment::Close { code: 1 }, offer] {
                segment.encode(&mut out);
                sent.push(segment);
            }
            let read: Vec<_> = Segments::new(&out).collect::<Result<_, _>>().expect("own writing");
            prop_assert_eq!(read, sent);
        }

        #[test]
        fn segment_reader_takes_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut again = Vec::new();
            let mut errors = 0;
            for segment in Segments::new(&bytes) {
                match segment {
                    Ok(segment) => segment.encode(&mut again),
                    Err(_) => errors += 1,
                }
            }
            prop_assert!(errors <= 1 && again.len() <= bytes.len());
        }

        #[test]
        fn expand_inverts_truncation(near in 0u64..1 << 48, distance in -(1i64 << 30)..1 << 30) {
            let offset = near.saturating_add_signed(distance);
            prop_assert_eq!(expand(near, offset as u32), offset);
        }
    }
}
