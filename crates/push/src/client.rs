//! The client's half: the store of responses that were pushed on one session.
//!
//! ```text
//!  promise, head, data, end ──▶ ┌───────────┐ ──▶ read to the end, cancel, raise
//!  request ───────────────────▶ │ PushStore │ ──▶ response from the store, join an arriving push
//!  reader gone, timeout ──────▶ └─────┬─────┘ ──▶ timeout
//!                                     ▼
//!                               ReportQueue ────▶ reports for the gateway, companion
//! ```
//!
//! A store belongs to one session, and so to one isolation key. A response serves one request, or
//! several equal ones that were under way at once (`store::sharing`). By default, a useless push is
//! read to its end, because its cancellation would tell the gateway about the browser's cache. Only
//! a push beyond fixed limits of number or length is cancelled.
//!
//! [`PushStore`] is the state machine. [`matching`] decides whether a response may serve a request,
//! and [`ReportQueue`] reports the outcome of each push to the gateway. [`Preflights`] answers the
//! preflights that were permitted before.

mod digest;
mod documents;
mod later_cookies;
mod lifetime;
pub mod matching;
mod preflights;
mod preload;
mod pushed;
mod reports;
mod store;
mod stored_head;

pub use digest::{Digest, MAX_LIFETIME, MAX_RESPONSES};
pub use lifetime::fresh_for;
pub use preflights::{PreflightKey, PreflightStep, Preflights};
pub use preload::preload_link;
pub use reports::{ReportQueue, ReportStep};
pub use store::{Intake, MAX_PUSHES, Output, Piece, PushId, PushStore, Serve, StoreLimits};
pub(crate) use stored_head::{confirmation, confirms_copy, not_modified};
