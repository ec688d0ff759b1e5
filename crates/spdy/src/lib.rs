//! Sans-IO SPDY/3 and SPDY/3.1: frames, header blocks, streams, flow control, push.

pub mod frame;
pub mod header_block;
pub mod status;
mod deflate;

/// Which draft is spoken. Frames look the same, so this is known from negotiation or configuration only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// SPDY/3.
    V3,
    /// SPDY/3.1: adds flow control of the whole session.
    V31,
}
