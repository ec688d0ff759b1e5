//! The datagrams of the transport, around the records of DTLS.
//!
//! ```text
//!  client ─▶ gateway   Hello    | 1 | nonce (8) | zeros (16) |
//!  gateway ─▶ client   Retry    | 2 | nonce (8) | id (4) | cookie (12) |
//!  client ─▶ gateway   Initial  | 3 | nonce (8) | cookie (12) | records of DTLS |
//!  both                Data     | id (4) | records of DTLS |
//!  gateway ─▶ client   Unknown  | 4 | the last 16 bytes of the data |
//! ```
//!
//! The highest bit of an id is set, and that of the other kinds is not. A client sends `Initial`
//! until the gateway has answered with data. A client that returns may begin with it, and show an
//! address token in place of the cookie ([`crate::token`]). If the gateway does not know the cookie
//! or token, because it was restarted or the client's address has changed, the client gets a retry
//! as well. It begins again with the new cookie. A gateway finds the association by the id, from
//! whichever address the datagram came. The retry is as long as the hello, so that a forged source
//! address gains no amplification, and the gateway keeps no state for a hello. A gateway that does
//! not know the id, because it was restarted, says so. Those 16 bytes end in the tag of a record,
//! so that only a system on the path can forge this answer.

use thiserror::Error;

/// The bytes of a client's number for its attempt to connect.
pub type Nonce = [u8; 8];

/// The bytes that prove that a client receives at its address: a cookie, or an address token.
pub type Cookie = [u8; 12];

const HELLO: u8 = 1;
const RETRY: u8 = 2;
const INITIAL: u8 = 3;
const UNKNOWN: u8 = 4;
/// The bit of the first byte that tells an id from the other kinds.
const ID_BIT: u32 = 1 << 31;
/// The bit of an id that tells associations after a token from those after a cookie. The owner of a
/// token could choose a nonce that leads to the id of another client's cookie.
const TOKEN_BIT: u32 = 1 << 30;

/// The size of the largest datagram that is read, in bytes.
pub const LARGEST: usize = 2048;
/// The bytes before the records in a datagram of data.
pub const DATA_HEADER: usize = 4;
/// The size of a hello and of a retry in bytes.
pub(crate) const HELLO_SIZE: usize = 25;
/// The size in bytes of a reply to data of an unknown association.
const UNKNOWN_SIZE: usize = 17;

/// The last bytes of a datagram.
pub type Tail = [u8; 16];

/// Returns the last bytes of a datagram of data, or `None` if it is too short to have a record.
pub fn tail(datagram: &[u8]) -> Option<Tail> {
    let (_, records) = datagram.split_at_checked(DATA_HEADER)?;
    records.last_chunk().copied()
}

/// The number of an association at its gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AssociationId(u32);

impl AssociationId {
    /// Creates an id from random bytes.
    pub const fn new(bytes: [u8; 4]) -> Self {
        Self(u32::from_be_bytes(bytes) | ID_BIT)
    }

    /// Returns the id of this number for a client with a cookie.
    #[must_use]
    pub const fn of_cookie(self) -> Self {
        Self(self.0 & !TOKEN_BIT)
    }

    /// Returns the id of this number for a client with a token.
    #[must_use]
    pub const fn of_token(self) -> Self {
        Self(self.0 | TOKEN_BIT)
    }

    /// Returns true if this is the id of a client with a token.
    pub(crate) const fn is_of_token(self) -> bool {
        self.0 & TOKEN_BIT != 0
    }

    /// Returns the bytes on the wire.
    pub const fn to_bytes(self) -> [u8; 4] {
        self.0.to_be_bytes()
    }
}

/// A datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Envelope<'a> {
    /// The request for a cookie.
    Hello {
        /// The client's number for its attempt.
        nonce: Nonce,
    },
    /// The gateway's reply to a hello.
    Retry {
        /// The number of the attempt.
        nonce: Nonce,
        /// The id of the association that the client may begin.
        id: AssociationId,
        /// The cookie to repeat.
        cookie: Cookie,
    },
    /// Records of a client that has no reply to its first records yet.
    Initial {
        /// The number of the attempt.
        nonce: Nonce,
        /// The cookie of the retry, or an address token.
        cookie: Cookie,
        /// The records.
        records: &'a [u8],
    },
    /// Records of an association.
    Data {
        /// The association.
        id: AssociationId,
        /// The records.
        records: &'a [u8],
    },
    /// The gateway's reply to records of an association that it does not know.
    Unknown {
        /// The end of the datagram with the records.
        tail: Tail,
    },
}

/// The error of a datagram that is none of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EnvelopeError {
    /// The datagram is too short, or too long for its kind.
    #[error("the datagram has a wrong length for its kind")]
    Length,
    /// The first byte names no known kind.
    #[error("the datagram is of the unknown kind {0}")]
    Kind(u8),
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], EnvelopeError> {
    bytes
        .get(at..at + N)
        .and_then(|part| part.try_into().ok())
        .ok_or(EnvelopeError::Length)
}

impl<'a> Envelope<'a> {
    /// Reads a datagram.
    ///
    /// # Errors
    /// Returns the reason why it is none of these kinds.
    pub fn decode(datagram: &'a [u8]) -> Result<Self, EnvelopeError> {
        let kind = *datagram.first().ok_or(EnvelopeError::Length)?;
        if kind & 0x80 != 0 {
            let id = AssociationId::new(array(datagram, 0)?);
            let records = &datagram[DATA_HEADER..];
            return Ok(Self::Data { id, records });
        }
        if kind == UNKNOWN {
            return match datagram.len() {
                UNKNOWN_SIZE => Ok(Self::Unknown {
                    tail: array(datagram, 1)?,
                }),
                _ => Err(EnvelopeError::Length),
            };
        }
        let nonce = array(datagram, 1)?;
        match kind {
            HELLO if datagram.len() == HELLO_SIZE => Ok(Self::Hello { nonce }),
            RETRY if datagram.len() == HELLO_SIZE => {
                let id = array::<4>(datagram, 9)?;
                if id[0] & 0x80 == 0 {
                    return Err(EnvelopeError::Kind(kind));
                }
                Ok(Self::Retry {
                    nonce,
                    id: AssociationId::new(id),
                    cookie: array(datagram, 13)?,
                })
            }
            INITIAL => Ok(Self::Initial {
                nonce,
                cookie: array(datagram, 9)?,
                records: &datagram[21..],
            }),
            HELLO | RETRY => Err(EnvelopeError::Length),
            _ => Err(EnvelopeError::Kind(kind)),
        }
    }

    /// Writes the datagram into `out`, which is cleared first.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        self.append(out);
    }

    /// Appends the datagram to `out`.
    pub fn append(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello { nonce } => {
                out.push(HELLO);
                out.extend_from_slice(nonce);
                out.extend_from_slice(&[0; HELLO_SIZE - 9]);
            }
            Self::Retry { nonce, id, cookie } => {
                out.push(RETRY);
                out.extend_from_slice(nonce);
                out.extend_from_slice(&id.to_bytes());
                out.extend_from_slice(cookie);
            }
            Self::Initial {
                nonce,
                cookie,
                records,
            } => {
                out.push(INITIAL);
                out.extend_from_slice(nonce);
                out.extend_from_slice(cookie);
                out.extend_from_slice(records);
            }
            Self::Unknown { tail } => {
                out.push(UNKNOWN);
                out.extend_from_slice(tail);
            }
            Self::Data { id, records } => {
                out.extend_from_slice(&id.to_bytes());
                out.extend_from_slice(records);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn encoded(envelope: &Envelope<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        envelope.encode(&mut out);
        out
    }

    #[test]
    fn retry_is_not_longer_than_hello() {
        let nonce = [7; 8];
        let retry = Envelope::Retry {
            nonce,
            id: AssociationId::new([1, 2, 3, 4]),
            cookie: [9; 12],
        };
        let (hello, retry) = (encoded(&Envelope::Hello { nonce }), encoded(&retry));
        assert_eq!((hello.len(), retry.len()), (HELLO_SIZE, HELLO_SIZE));
        assert_eq!(Envelope::decode(&hello[..24]), Err(EnvelopeError::Length));
        assert_eq!(Envelope::decode(&[]), Err(EnvelopeError::Length));
        assert_eq!(Envelope::decode(&[9; 30]), Err(EnvelopeError::Kind(9)));
    }

    proptest! {
        #[test]
        fn envelope_survives_decode_and_encode(datagram in vec(any::<u8>(), 0..80)) {
            match Envelope::decode(&datagram) {
                Ok(Envelope::Hello { nonce }) => {
                    prop_assert_eq!(&encoded(&Envelope::Hello { nonce })[..9], &datagram[..9]);
                }
                Ok(envelope) => prop_assert_eq!(encoded(&envelope), datagram),
                Err(_) => {}
            }
        }
    }
}
