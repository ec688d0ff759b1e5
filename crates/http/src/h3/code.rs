//! Error codes (RFC 9114 section 8.1, RFC 9204 section 6).

use crate::{Reason, SessionError};

/// The code of an error of a stream or of the whole session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(pub u64);

#[expect(missing_docs, reason = "the names are those of RFC 9114 and RFC 9204")]
impl Code {
    /// The code of RFC 9297.
    pub const DATAGRAM_ERROR: Self = Self(0x33);
    pub const NO_ERROR: Self = Self(0x100);
    pub const GENERAL_PROTOCOL_ERROR: Self = Self(0x101);
    pub const INTERNAL_ERROR: Self = Self(0x102);
    pub const STREAM_CREATION_ERROR: Self = Self(0x103);
    pub const CLOSED_CRITICAL_STREAM: Self = Self(0x104);
    pub const FRAME_UNEXPECTED: Self = Self(0x105);
    pub const FRAME_ERROR: Self = Self(0x106);
    pub const EXCESSIVE_LOAD: Self = Self(0x107);
    pub const ID_ERROR: Self = Self(0x108);
    pub const SETTINGS_ERROR: Self = Self(0x109);
    pub const MISSING_SETTINGS: Self = Self(0x10a);
    pub const REQUEST_REJECTED: Self = Self(0x10b);
    pub const REQUEST_CANCELLED: Self = Self(0x10c);
    pub const REQUEST_INCOMPLETE: Self = Self(0x10d);
    pub const MESSAGE_ERROR: Self = Self(0x10e);
    pub const CONNECT_ERROR: Self = Self(0x10f);
    pub const VERSION_FALLBACK: Self = Self(0x110);
    pub const QPACK_DECOMPRESSION_FAILED: Self = Self(0x200);
    pub const QPACK_ENCODER_STREAM_ERROR: Self = Self(0x201);
    pub const QPACK_DECODER_STREAM_ERROR: Self = Self(0x202);

    /// Returns the reason that the other session protocols share.
    pub fn reason(self) -> Reason {
        match self {
            Self::NO_ERROR => Reason::NoError,
            Self::INTERNAL_ERROR => Reason::Internal,
            Self::FRAME_ERROR => Reason::FrameSize,
            Self::EXCESSIVE_LOAD => Reason::EnhanceYourCalm,
            Self::REQUEST_REJECTED => Reason::Refused,
            Self::REQUEST_CANCELLED => Reason::Cancel,
            Self::CONNECT_ERROR => Reason::Connect,
            Self::VERSION_FALLBACK => Reason::Http11Required,
            Self(0x200..=0x202) => Reason::Compression,
            Self::DATAGRAM_ERROR | Self(0x101..=0x110) => Reason::Protocol,
            Self(other) => Reason::Other(u32::try_from(other).unwrap_or(u32::MAX)),
        }
    }

    /// Returns the code of a stream that ends for this reason.
    pub(super) fn of_stream(reason: Reason) -> Self {
        match reason {
            Reason::NoError => Self::NO_ERROR,
            Reason::Protocol => Self::MESSAGE_ERROR,
            Reason::Refused => Self::REQUEST_REJECTED,
            Reason::Cancel | Reason::StreamClosed => Self::REQUEST_CANCELLED,
            Reason::Connect => Self::CONNECT_ERROR,
            Reason::EnhanceYourCalm => Self::EXCESSIVE_LOAD,
            Reason::Http11Required => Self::VERSION_FALLBACK,
            Reason::Compression => Self::QPACK_DECOMPRESSION_FAILED,
            Reason::FrameSize => Self::FRAME_ERROR,
            Reason::Internal => Self::INTERNAL_ERROR,
            Reason::FlowControl | Reason::SettingsTimeout | Reason::InadequateSecurity => {
                Self::GENERAL_PROTOCOL_ERROR
            }
            Reason::Other(code) => Self(code.into()),
        }
    }
}

/// An error after which the session must end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub(super) code: Code,
    pub(super) detail: &'static str,
}

impl Fault {
    pub(super) const fn new(code: Code, detail: &'static str) -> Self {
        Self { code, detail }
    }
}

impl From<Fault> for SessionError {
    fn from(fault: Fault) -> Self {
        Self {
            reason: fault.code.reason(),
            detail: fault.detail,
        }
    }
}

impl From<SessionError> for Fault {
    fn from(error: SessionError) -> Self {
        Self::new(Code::of_stream(error.reason), error.detail)
    }
}
