//! The messages about pushes between the two proxies, besides the pushes themselves.
//!
//! ```text
//!  gateway ─▶ client  tandem-push: pushed | held-out   in a page's head: its treatment
//!                     tandem-asked: 40 or 48 digits    in a push's head: hashes of its request
//!                     tandem-asked-as: style …         in a push's head: metadata of its request
//!                     tandem-next-page: 1              in a push's head: it may follow the page
//!                     tandem-crossed: 1                in place of a response, which is a push
//!  client ─▶ gateway  POST http://push.tandem.invalid/ the session's companion
//!                     tandem-checks: 1                 in its head: promises of HEAD are taken
//!                     tandem-conditional-checks: 1
//!                                                      in its head: promises of conditional
//!                                                      requests are taken
//!                     tandem-crossings: 1              in its head: pushes may answer requests
//!                                                      that cross their promises
//!                     tandem-second-crossings: 1       in its head: several requests to one push
//!                     tandem-asked-again: 1            in a request: no reference answers it
//!                     tandem-next: bodies              in its head: the pushes of next pages that
//!                                                      the client takes
//!                     tandem-opened: a.test *.b.test   in requests for opened HTTPS, and in the
//!                                                      responses of their origins
//! ```
//!
//! The treatment of a page says whether the gateway pushes resources for it. A promise of HEAD
//! announces the head of a resource without its body. A promise of a conditional request announces
//! a 304, or the resource if the browser's copy is another version.
//!
//! The companion is one exchange that stays open while the session is in use. Its request body
//! carries [`Report`]s of five or ten bytes. Its response carries the pushes of pages whose
//! response stream has ended: RFC 9113 section 8.4 and SPDY bind each push to an open stream that
//! the client began. A gateway of another implementation finds no origin of this name. The client
//! sends it at most one such request in each session.
//!
//! A report tells the gateway no more than it would see without push. With `--push-digest`, the
//! first reports also list the responses that the browser received on earlier sessions and can
//! still use.

mod companion;
mod next_push;
mod opened;
mod report;
mod request_hashes;
mod treatment;
mod url_hash;

pub use companion::{
    ASKED_AGAIN_FIELD, CROSSED_FIELD, companion_request, is_companion, is_reserved, takes_checks,
    takes_conditional_checks, takes_references, takes_second_references,
};
pub use next_push::{NEXT_PAGE_FIELD, NextPush};
pub use opened::{MAX_OPENED_LIST, OPENED_FIELD, OpenedList};
pub use report::{Fate, Report, ReportReader};
pub use request_hashes::{ASKED_AS_FIELD, ASKED_FIELD, RequestHashes};
pub use treatment::{PUSH_FIELD, Treatment};
pub(crate) use url_hash::fnv1a;
pub use url_hash::{url_hash, url_hash_of};
