//! An HTTP cache without I/O (RFC 9111): it decides which stored response serves a request, which
//! requests go to the origin, and which responses are stored.
//!
//! ```text
//!  request ─▶ Key ─▶ ┌───────┐ ─▶ Hit: Stored ─▶ respond ─▶ 200, 206, 304, 416
//!   head   ────────▶ │ Cache │ ─▶ Join: the request under way for the same key
//!   body   ────────▶ └───────┘ ─▶ Fetch: conditions, then receive ─▶ Pending ─▶ finish
//! ```
//!
//! - [`key`]: the requests that a cache may serve, and the keys of their responses.
//! - [`stored`]: a stored response with its body in shared bytes.
//! - [`store`]: the memory store, bounded in all and for each group of keys.
//! - [`cache`]: the decisions.
//! - [`names`] and [`travel`]: the targets and the responses that caches of one operator share, or
//!   that go to a disk.
//! - [`disk`]: the index of the responses on a disk.
//! - [`response`]: the heads of responses from the store.
//!
//! The rules of RFC 9111 themselves are in [`tandem_http::cache`]. This crate opens no socket,
//! reads no clock and starts no thread: times are arguments.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod asker;
pub mod cache;
mod credentials;
pub mod disk;
mod kept;
pub mod key;
pub mod names;
pub mod response;
pub mod store;
pub mod stored;
pub mod travel;

pub use cache::{Cache, Config, Fetch, Lookup, OnDisk, Pending, Reason, Received};
pub use disk::Index;
pub use key::{Key, Sharing};
pub use names::{Name, Namer};
pub use response::{Response, respond};
pub use store::Group;
pub use stored::{Body, PiecePlace, Stored};
pub use travel::{Incoming, Outgoing};

use std::time::Duration;

/// The time of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The time since some fixed point, from a clock that never goes back.
    pub elapsed: Duration,
    /// The seconds since 1970 (UTC), if the clock is set.
    pub unix: Option<u64>,
}
