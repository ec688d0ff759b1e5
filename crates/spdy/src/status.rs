//! Numbers of RST_STREAM and GOAWAY, and the words of [`Reason`] that they stand for. Draft
//! sections 2.6.3 and 2.6.6.

use tandem_http::Reason;

use crate::Version;

/// A rule was broken.
pub const PROTOCOL_ERROR: u32 = 1;
/// A frame for a stream that is not there.
pub const INVALID_STREAM: u32 = 2;
/// Not processed at all: may be sent again.
pub const REFUSED_STREAM: u32 = 3;
/// The version of SPDY is not ours.
pub const UNSUPPORTED_VERSION: u32 = 4;
/// No longer wanted.
pub const CANCEL: u32 = 5;
/// Not the peer's fault.
pub const INTERNAL_ERROR: u32 = 6;
/// More was sent than the window allows.
pub const FLOW_CONTROL_ERROR: u32 = 7;
/// A second SYN_REPLY.
pub const STREAM_IN_USE: u32 = 8;
/// A frame after the sender's last.
pub const STREAM_ALREADY_CLOSED: u32 = 9;
/// A control frame is larger than we take.
pub const FRAME_TOO_LARGE: u32 = 11;

/// GOAWAY: everything is well.
pub const GOAWAY_OK: u32 = 0;

/// The number of a reason in RST_STREAM.
pub const fn rst_status(reason: Reason) -> u32 {
    match reason {
        Reason::Protocol
        | Reason::Compression
        | Reason::SettingsTimeout
        | Reason::InadequateSecurity => PROTOCOL_ERROR,
        Reason::Internal | Reason::Connect | Reason::Http11Required => INTERNAL_ERROR,
        Reason::FlowControl => FLOW_CONTROL_ERROR,
        Reason::StreamClosed => STREAM_ALREADY_CLOSED,
        Reason::FrameSize => FRAME_TOO_LARGE,
        Reason::Refused => REFUSED_STREAM,
        Reason::NoError | Reason::Cancel | Reason::EnhanceYourCalm => CANCEL,
        Reason::Other(number) => {
            if number >= PROTOCOL_ERROR && number <= FRAME_TOO_LARGE {
                number
            } else {
                INTERNAL_ERROR
            }
        }
    }
}

/// The reason that a number of RST_STREAM stands for.
pub const fn rst_reason(status: u32) -> Reason {
    match status {
        PROTOCOL_ERROR => Reason::Protocol,
        REFUSED_STREAM => Reason::Refused,
        CANCEL => Reason::Cancel,
        INTERNAL_ERROR => Reason::Internal,
        FLOW_CONTROL_ERROR => Reason::FlowControl,
        STREAM_ALREADY_CLOSED => Reason::StreamClosed,
        FRAME_TOO_LARGE => Reason::FrameSize,
        other => Reason::Other(other),
    }
}

/// The number of a reason in GOAWAY. Draft 3 prints 11 for an internal error, which draft 3.1
/// corrects to 2. Draft 3.1 ends the session "with FLOW_CONTROL_ERROR" without giving a number: we
/// take that of RST_STREAM.
pub const fn goaway_status(reason: Reason, version: Version) -> u32 {
    match reason {
        Reason::NoError | Reason::Cancel | Reason::Refused => GOAWAY_OK,
        Reason::Internal | Reason::Connect => match version {
            Version::V3 => 11,
            Version::V31 => 2,
        },
        Reason::FlowControl => FLOW_CONTROL_ERROR,
        _ => PROTOCOL_ERROR,
    }
}

/// The reason that a number of GOAWAY stands for, whoever sends it.
pub const fn goaway_reason(status: u32) -> Reason {
    match status {
        GOAWAY_OK => Reason::NoError,
        PROTOCOL_ERROR => Reason::Protocol,
        2 | 11 => Reason::Internal,
        FLOW_CONTROL_ERROR => Reason::FlowControl,
        other => Reason::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        for status in 1..=11 {
            assert_eq!(rst_status(rst_reason(status)), status);
        }
        assert_eq!(rst_status(Reason::Other(0)), INTERNAL_ERROR);
    }

    #[test]
    fn internal_error_differs_by_version() {
        assert_eq!(goaway_status(Reason::Internal, Version::V3), 11);
        assert_eq!(goaway_status(Reason::Internal, Version::V31), 2);
        assert_eq!(goaway_reason(11), goaway_reason(2));
    }
}
