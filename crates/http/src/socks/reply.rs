//! Reply codes: RFC 1928 section 6, and those that tor adds for onion services (its proposal 304).

use std::fmt;

/// The reply code of a SOCKS server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The stream is open.
    Succeeded,
    /// General failure.
    GeneralFailure,
    /// Not allowed by the server's rules.
    NotAllowed,
    /// Network unreachable.
    NetworkUnreachable,
    /// Host unreachable; also: the name does not resolve.
    HostUnreachable,
    /// Connection refused.
    ConnectionRefused,
    /// TTL expired; also: timed out.
    TtlExpired,
    /// Command not supported.
    CommandNotSupported,
    /// Address type not supported.
    AddressTypeNotSupported,
    /// X'F0': the onion service's descriptor was not found.
    OnionDescriptorNotFound,
    /// X'F1': the onion service's descriptor is not valid.
    OnionDescriptorInvalid,
    /// X'F2': introduction to the onion service failed.
    OnionIntroductionFailed,
    /// X'F3': rendezvous with the onion service failed.
    OnionRendezvousFailed,
    /// X'F4': the onion service wants client authorization.
    OnionAuthorizationMissing,
    /// X'F5': the onion service refuses the client authorization.
    OnionAuthorizationWrong,
    /// X'F6': not a valid onion address.
    OnionAddressInvalid,
    /// X'F7': introduction to the onion service timed out.
    OnionIntroductionTimedOut,
    /// Any other code.
    Other(u8),
}

/// Every code with a name, and the words for it.
const NAMED: [(Reply, u8, &str); 17] = [
    (Reply::Succeeded, 0x00, "succeeded"),
    (
        Reply::GeneralFailure,
        0x01,
        "general failure of the SOCKS server",
    ),
    (
        Reply::NotAllowed,
        0x02,
        "not allowed by the rules of the SOCKS server",
    ),
    (Reply::NetworkUnreachable, 0x03, "network unreachable"),
    (Reply::HostUnreachable, 0x04, "host unreachable or unknown"),
    (Reply::ConnectionRefused, 0x05, "connection refused"),
    (Reply::TtlExpired, 0x06, "time to live expired or timed out"),
    (Reply::CommandNotSupported, 0x07, "command not supported"),
    (
        Reply::AddressTypeNotSupported,
        0x08,
        "address type not supported",
    ),
    (
        Reply::OnionDescriptorNotFound,
        0xf0,
        "the onion service's descriptor was not found",
    ),
    (
        Reply::OnionDescriptorInvalid,
        0xf1,
        "the onion service's descriptor is not valid",
    ),
    (
        Reply::OnionIntroductionFailed,
        0xf2,
        "introduction to the onion service failed",
    ),
    (
        Reply::OnionRendezvousFailed,
        0xf3,
        "rendezvous with the onion service failed",
    ),
    (
        Reply::OnionAuthorizationMissing,
        0xf4,
        "the onion service wants client authorization",
    ),
    (
        Reply::OnionAuthorizationWrong,
        0xf5,
        "the onion service refuses the client authorization",
    ),
    (
        Reply::OnionAddressInvalid,
        0xf6,
        "not a valid onion address",
    ),
    (
        Reply::OnionIntroductionTimedOut,
        0xf7,
        "introduction to the onion service timed out",
    ),
];

impl Reply {
    /// The code on the wire.
    pub fn code(self) -> u8 {
        match self {
            Self::Other(code) => code,
            named => NAMED
                .iter()
                .find(|entry| entry.0 == named)
                .map_or(0x01, |entry| entry.1),
        }
    }
}

impl From<u8> for Reply {
    fn from(code: u8) -> Self {
        NAMED
            .iter()
            .find(|entry| entry.1 == code)
            .map_or(Self::Other(code), |entry| entry.0)
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMED.iter().find(|entry| entry.0 == *self) {
            Some(entry) => f.write_str(entry.2),
            None => write!(f, "unknown reply code {:#04x}", self.code()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_are_one_to_one() {
        for code in 0..=255 {
            assert_eq!(Reply::from(code).code(), code);
        }
        assert_eq!(Reply::from(0xf4), Reply::OnionAuthorizationMissing);
        assert_eq!(Reply::from(9).to_string(), "unknown reply code 0x09");
    }
}
