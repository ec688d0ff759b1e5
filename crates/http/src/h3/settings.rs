//! SETTINGS: the parameters of each end (RFC 9114 section 7.2.4, RFC 9204 section 5, RFC 9220
//! section 3, RFC 9297 section 2.1.1), and one of our own.

use super::code::{Code, Fault};
use super::{frame, varint};
use crate::{MuxConfig, Role, qpack};

const QPACK_MAX_TABLE_CAPACITY: u64 = 0x01;
const MAX_FIELD_SECTION_SIZE: u64 = 0x06;
const QPACK_BLOCKED_STREAMS: u64 = 0x07;
const ENABLE_CONNECT_PROTOCOL: u64 = 0x08;
const H3_DATAGRAM: u64 = 0x33;
/// Ours: the end that sends it takes the frame [`frame::BROKEN`].
const TAKES_BROKEN: u64 = frame::BROKEN;

/// The most settings of one frame. A frame of 16 KiB could otherwise have 8,192.
const MAX_SETTINGS: usize = 256;

/// The peer's streams that may wait for insertions into our decoder's table.
pub(super) const BLOCKED_STREAMS: usize = 16;

/// The peer's limits.
#[derive(Clone, Debug)]
pub(super) struct PeerSettings {
    /// True if the peer's SETTINGS arrived.
    pub(super) known: bool,
    pub(super) table_capacity: usize,
    pub(super) max_header_list: usize,
    pub(super) extended_connect: bool,
    /// True if the peer takes datagrams.
    pub(super) datagrams: bool,
    /// True if the peer takes [`frame::BROKEN`].
    pub(super) takes_broken: bool,
}

impl PeerSettings {
    /// Returns the values that hold until the peer's SETTINGS arrive.
    pub(super) const fn new() -> Self {
        Self {
            known: false,
            table_capacity: 0,
            max_header_list: usize::MAX,
            extended_connect: false,
            datagrams: false,
            takes_broken: false,
        }
    }

    /// Takes over the values of a SETTINGS payload.
    pub(super) fn apply(&mut self, mut payload: &[u8]) -> Result<(), Fault> {
        self.known = true;
        let mut seen = Vec::new();
        while !payload.is_empty() {
            let (Some(name), Some(value)) =
                (varint::take(&mut payload), varint::take(&mut payload))
            else {
                return Err(Fault::new(Code::FRAME_ERROR, "SETTINGS cut short"));
            };
            if seen.contains(&name) || seen.len() == MAX_SETTINGS {
                return Err(settings("a setting comes twice, or there are too many"));
            }
            seen.push(name);
            self.set(name, value)?;
        }
        Ok(())
    }

    fn set(&mut self, name: u64, value: u64) -> Result<(), Fault> {
        let size = usize::try_from(value).unwrap_or(usize::MAX);
        match name {
            QPACK_MAX_TABLE_CAPACITY => self.table_capacity = size,
            MAX_FIELD_SECTION_SIZE => self.max_header_list = size,
            ENABLE_CONNECT_PROTOCOL | H3_DATAGRAM if value > 1 => {
                return Err(settings("a setting of 0 or 1 has another value"));
            }
            ENABLE_CONNECT_PROTOCOL => self.extended_connect = value == 1,
            H3_DATAGRAM => self.datagrams = value == 1,
            TAKES_BROKEN => self.takes_broken = value == 1,
            0x00 | 0x02..=0x05 => return Err(settings("a setting of HTTP/2")),
            _ => {}
        }
        Ok(())
    }
}

const fn settings(detail: &'static str) -> Fault {
    Fault::new(Code::SETTINGS_ERROR, detail)
}

/// Appends our SETTINGS. `datagrams` tells that this end takes datagrams.
pub(super) fn put_own(out: &mut Vec<u8>, config: &MuxConfig, datagrams: bool) {
    let mut payload = Vec::with_capacity(16);
    let mut put = |name, value: usize| {
        varint::put(&mut payload, name);
        varint::put(&mut payload, (value as u64).min(varint::MAX));
    };
    put(QPACK_MAX_TABLE_CAPACITY, qpack::TABLE_SIZE);
    put(QPACK_BLOCKED_STREAMS, BLOCKED_STREAMS);
    put(MAX_FIELD_SECTION_SIZE, config.max_header_list);
    if config.role == Role::Server && config.extended_connect {
        put(ENABLE_CONNECT_PROTOCOL, 1);
    }
    if datagrams {
        put(H3_DATAGRAM, 1);
    }
    put(TAKES_BROKEN, 1);
    frame::put_head(out, frame::SETTINGS, payload.len());
    out.extend_from_slice(&payload);
}
