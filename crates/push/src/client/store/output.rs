//! The decisions of a store, and the pieces of a response that it returns.

use bytes::Bytes;
use tandem_http::{Fields, ResponseHead};

use super::PushId;
use crate::wire::Fate;

/// The decision about a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intake {
    /// Read the push to its end, and pass on each part.
    Read(PushId),
    /// Cancel the push.
    Cancel,
}

/// The decision about a request that a push answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serve {
    /// The push that answers the request.
    pub push: PushId,
    /// True if the response is complete in the store, or is a 304 that needs its head alone.
    /// Otherwise the request joins it as it arrives.
    pub is_complete: bool,
}

/// A decision that concerns a task of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A request waits for the push: raise its priority.
    Raise(PushId),
    /// Stop the reading of the push.
    Cancel(PushId),
    /// The reader has something to take.
    WakeReader(PushId),
    /// The store may have room for more of the push.
    WakeArrival(PushId),
    /// A push of this URL has this outcome. The caller reports it to the gateway if `tell_gateway`
    /// is true.
    Became {
        /// The outcome.
        fate: Fate,
        /// The hash of the URL.
        url: u32,
        /// True if the gateway does not know yet.
        tell_gateway: bool,
        /// The hash of the cookies of the request that takes the push, unless they are known to be
        /// those of a browser to which the promise belongs.
        cookies: Option<u32>,
    },
    /// The reports so far are urgent.
    HurryReports,
    /// The body of a push with this URL begins to arrive, and no request has claimed it. A request
    /// that is under way may take it.
    Arrives {
        /// The hash of the URL.
        url: u32,
    },
    /// A copy of a push that arrives waits for a second request.
    Copied {
        /// The copy.
        push: PushId,
        /// The push.
        of: PushId,
    },
    /// The push is forgotten, and its identifier is no longer valid.
    Ended {
        /// The push.
        push: PushId,
        /// The bytes of its body that served no request.
        wasted: u64,
    },
}

/// A piece of a response, for the reader.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// The head; once. Its `Age` is right for the time of the call.
    Head(ResponseHead),
    /// Bytes of the body.
    Data(Bytes),
    /// The fields after the body.
    Trailers(Fields),
    /// The response is complete.
    End,
    /// The push broke off. The pieces so far are not complete.
    Broken,
    /// The next piece has not arrived. [`Output::WakeReader`] follows when it has.
    Pending,
}
