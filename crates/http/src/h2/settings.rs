//! SETTINGS: the parameters of each end (RFC 9113 section 6.5, RFC 8441 section 3, RFC 9218 section
//! 2.1).

use super::flow::{DEFAULT_WINDOW, MAX_WINDOW};
use super::frame::{self, MAX_PAYLOAD, protocol};
use crate::{MuxConfig, Reason, Role, SessionError};

const HEADER_TABLE_SIZE: u16 = 0x1;
const ENABLE_PUSH: u16 = 0x2;
const MAX_CONCURRENT_STREAMS: u16 = 0x3;
const INITIAL_WINDOW_SIZE: u16 = 0x4;
const MAX_FRAME_SIZE: u16 = 0x5;
const MAX_HEADER_LIST_SIZE: u16 = 0x6;
const ENABLE_CONNECT_PROTOCOL: u16 = 0x8;
const NO_RFC7540_PRIORITIES: u16 = 0x9;

/// The streams that a client opens before it knows the peer's limit: the minimum that RFC 9113
/// section 6.5.2 recommends to servers.
const UNKNOWN_MAX_STREAMS: u32 = 100;

/// The peer's limits.
#[derive(Debug)]
pub(super) struct PeerSettings {
    /// True if the peer's first SETTINGS arrived.
    pub(super) known: bool,
    pub(super) header_table_size: usize,
    pub(super) enable_push: bool,
    pub(super) max_streams: u32,
    pub(super) initial_window: u32,
    pub(super) max_header_list: usize,
    pub(super) extended_connect: bool,
}

impl PeerSettings {
    /// Returns the values that hold until the peer's SETTINGS arrive.
    pub(super) const fn new() -> Self {
        Self {
            known: false,
            header_table_size: crate::hpack::DEFAULT_TABLE_SIZE,
            enable_push: true,
            max_streams: UNKNOWN_MAX_STREAMS,
            initial_window: DEFAULT_WINDOW,
            max_header_list: usize::MAX,
            extended_connect: false,
        }
    }

    /// Takes over the values of a SETTINGS payload, in order (RFC 9113 section 6.5.3).
    pub(super) fn apply(&mut self, payload: &[u8], from: Role) -> Result<(), SessionError> {
        let (entries, []) = payload.as_chunks::<6>() else {
            return Err(frame::frame_size(
                "SETTINGS of a length not divisible by six",
            ));
        };
        if !self.known {
            self.known = true;
            self.max_streams = u32::MAX;
        }
        for &[n1, n0, v3, v2, v1, v0] in entries {
            self.set(
                u16::from_be_bytes([n1, n0]),
                u32::from_be_bytes([v3, v2, v1, v0]),
                from,
            )?;
        }
        Ok(())
    }

    fn set(&mut self, name: u16, value: u32, from: Role) -> Result<(), SessionError> {
        match name {
            HEADER_TABLE_SIZE => self.header_table_size = value as usize,
            ENABLE_PUSH => {
                self.enable_push = boolean(value)?;
                if from == Role::Server && self.enable_push {
                    return Err(protocol("a server cannot enable push"));
                }
            }
            MAX_CONCURRENT_STREAMS => self.max_streams = value,
            INITIAL_WINDOW_SIZE if i64::from(value) > MAX_WINDOW => {
                return Err(SessionError {
                    reason: Reason::FlowControl,
                    detail: "initial window over 2^31-1",
                });
            }
            INITIAL_WINDOW_SIZE => self.initial_window = value,
            MAX_FRAME_SIZE if !(MAX_PAYLOAD as u32..1 << 24).contains(&value) => {
                return Err(protocol("maximum frame size out of range"));
            }
            MAX_HEADER_LIST_SIZE => self.max_header_list = value as usize,
            ENABLE_CONNECT_PROTOCOL => {
                let enabled = boolean(value)?;
                if self.extended_connect && !enabled {
                    return Err(protocol("extended CONNECT taken back"));
                }
                self.extended_connect = enabled;
            }
            NO_RFC7540_PRIORITIES => {
                boolean(value)?;
            }
            _ => {}
        }
        Ok(())
    }
}

fn boolean(value: u32) -> Result<bool, SessionError> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(protocol("a setting of 0 or 1 has another value")),
    }
}

/// Returns the initial window of our first SETTINGS, in bytes.
pub(super) fn initial_window(config: &MuxConfig) -> u32 {
    match config.widens_streams {
        true => config.stream_window.min(DEFAULT_WINDOW),
        false => config.stream_window.min(MAX_WINDOW as u32),
    }
}

/// Appends SETTINGS that change the initial window.
pub(super) fn put_window(out: &mut Vec<u8>, window: u32) {
    frame::put_settings(out, &[(INITIAL_WINDOW_SIZE, window)]);
}

/// Appends our first SETTINGS.
pub(super) fn put_own(out: &mut Vec<u8>, config: &MuxConfig) {
    let mut entries = Vec::with_capacity(6);
    entries.push((NO_RFC7540_PRIORITIES, 1));
    entries.push((INITIAL_WINDOW_SIZE, initial_window(config)));
    entries.push((
        MAX_HEADER_LIST_SIZE,
        u32::try_from(config.max_header_list).unwrap_or(u32::MAX),
    ));
    match config.role {
        Role::Client if !config.push => entries.push((ENABLE_PUSH, 0)),
        Role::Client | Role::Server => entries.push((MAX_CONCURRENT_STREAMS, config.max_streams)),
    }
    if config.role == Role::Server && config.extended_connect {
        entries.push((ENABLE_CONNECT_PROTOCOL, 1));
    }
    frame::put_settings(out, &entries);
}
