//! The envelope of outgoing records, which depends on the progress of the handshake.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::ends::Ends;
use crate::envelope::{AssociationId, Cookie, Envelope, Nonce};
use crate::token::AddressToken;

/// The cookies that a client shows at most after its first one. Processes that share the gateway's
/// address could otherwise send a client to and fro.
const MORE_COOKIES: u8 = 4;

/// The envelope of outgoing records.
pub(crate) enum Wrap {
    /// The client has no cookie yet.
    Hello {
        nonce: Nonce,
        due: Instant,
        wait: Duration,
    },
    /// The client has a cookie or a token, and the gateway has not answered with data.
    Initial {
        nonce: Nonce,
        id: AssociationId,
        cookie: Cookie,
        /// The further cookies that the client may take.
        left: u8,
    },
    Data(AssociationId),
}

impl Wrap {
    /// Shows a token in place of the first cookie. Returns false if the client has a cookie.
    pub(crate) fn show(&mut self, token: &AddressToken) -> bool {
        let Self::Hello { nonce, .. } = *self else {
            return false;
        };
        *self = Self::Initial {
            nonce,
            id: token.id(&nonce),
            cookie: token.shown(),
            left: MORE_COOKIES + 1,
        };
        true
    }

    /// Repeats a hello after this time, unless it would be repeated before.
    pub(crate) fn repeat_hello_after(&mut self, time: Duration) {
        if let Self::Hello { wait, .. } = self {
            *wait = time.min(*wait);
        }
    }

    /// Takes the gateway's reply to a hello, or to a cookie that it does not know: the gateway was
    /// restarted, or the client's address has changed. Returns false if it changes nothing.
    pub(crate) fn take_retry(&mut self, nonce: Nonce, id: AssociationId, cookie: Cookie) -> bool {
        let left = match self {
            Self::Hello { nonce: own, .. } if *own == nonce => MORE_COOKIES,
            Self::Initial {
                nonce: own,
                cookie: shown,
                left,
                ..
            } if *own == nonce && *shown != cookie && *left > 0 => *left - 1,
            _ => return false,
        };
        *self = Self::Initial {
            nonce,
            id,
            cookie,
            left,
        };
        true
    }

    /// Appends records with their envelope to `out`.
    pub(crate) fn append(&self, records: &[u8], out: &mut Vec<u8>) {
        match self {
            // The records of the first flight leave once there is a cookie: dimpl repeats them.
            Self::Hello { .. } => {}
            Self::Initial { nonce, cookie, .. } => Envelope::Initial {
                nonce: *nonce,
                cookie: *cookie,
                records,
            }
            .append(out),
            Self::Data(id) => Envelope::Data { id: *id, records }.append(out),
        }
    }

    /// Adds a datagram with records to `queue`.
    pub(crate) fn enqueue(&self, queue: &mut VecDeque<(Ends, Vec<u8>)>, to: Ends, records: &[u8]) {
        let mut datagram = Vec::with_capacity(records.len() + 21);
        self.append(records, &mut datagram);
        if !datagram.is_empty() {
            queue.push_back((to, datagram));
        }
    }
}
