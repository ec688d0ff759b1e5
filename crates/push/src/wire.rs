//! The messages about pushes between the two proxies, besides the pushes themselves.
//!
//! ```text
//!  gateway ─▶ client  tandem-push: pushed | held-out   in the head of a page: its treatment
//!                     tandem-asked: 40 hex digits      in the head of a push: its request's hashes
//!  client ─▶ gateway  POST http://push.tandem.invalid/ the session's companion
//!                     tandem-checks: 1                 in its head: promises of HEAD are taken
//!                     tandem-opened: a.test *.b.test   in requests for HTTPS that the client opens
//! ```
//!
//! The companion is one exchange that stays open while the session is in use. Its request body
//! carries [`Report`]s of five bytes. Its answer carries the pushes of pages that are already
//! complete: RFC 9113 section 8.4 and SPDY bind each push to an open stream that the client began.
//! A gateway of another make finds no such origin, and receives one such request in a session.
//!
//! A report tells the gateway no more than it would see without push. If the user allows it
//! (`--push-digest`), the first reports list the answers that the browser received on earlier
//! sessions and can still use.

mod companion;
mod opened;
mod report;
mod request_hashes;
mod treatment;
mod url_hash;

pub use companion::{companion_request, is_companion, is_reserved, takes_checks};
pub use opened::{MAX_OPENED_LIST, OPENED_FIELD, OpenedList};
pub use report::{Fate, Report, ReportReader};
pub use request_hashes::{ASKED_FIELD, RequestHashes};
pub use treatment::{PUSH_FIELD, Treatment};
pub use url_hash::url_hash;
pub(crate) use url_hash::url_hash_of;
