//! The payloads of the PING frames that a session sends. They differ, so that a recording of the
//! path shows the reason for each.

/// Probes the other end while an exchange waits and no input arrives.
pub(super) const DURING_EXCHANGE: u32 = 0x7a9d;

/// Probes a session that was idle, or a path that delivers no datagrams.
pub(super) const AFTER_SILENCE: u32 = 0x7a9e;

/// Asks for an answer before other requests use a session, or after a move to another network.
pub(super) const QUESTION: u32 = 0x7a9f;
