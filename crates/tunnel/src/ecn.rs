//! The decision whether datagrams carry the codepoint of ECN-capable senders (RFC 3168, section 5).
//!
//! Routers mark such datagrams in place of dropping others. Some old systems drop all datagrams
//! with the codepoint, so a path must show first that it passes them (RFC 9000, section 13.4.2).
//! The route below a path may change to such a system, so repeated timeouts end its use too.

/// The state of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ecn {
    /// No segment with the codepoint has been acknowledged.
    #[default]
    Trying,
    /// The path passes the codepoint.
    Works,
    /// The path may drop datagrams with the codepoint.
    Off,
}

impl Ecn {
    /// Returns true if datagrams with data carry the codepoint.
    pub(crate) const fn is_on(self) -> bool {
        !matches!(self, Self::Off)
    }

    /// Notes that a segment of this path arrived.
    pub(crate) const fn on_arrived(&mut self) {
        if matches!(self, Self::Trying) {
            *self = Self::Works;
        }
    }

    /// Notes a retransmission timeout. The codepoint may be the reason before the first
    /// acknowledgement, and also after several timeouts in a row (`repeated`).
    pub(crate) const fn on_timeout(&mut self, repeated: bool) {
        if repeated || matches!(self, Self::Trying) {
            *self = Self::Off;
        }
    }
}
