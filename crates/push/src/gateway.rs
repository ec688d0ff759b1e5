//! The gateway's half: the state machine of one session. It finds the resources that the session's
//! pages need, and decides which of them are sent before the browser asks.
//!
//! ```text
//!  response to GET ─┬─ head: Link, X-Associated-Content (`hints`) ┐
//!                   ├─ body: HTML, CSS, imports (`document`)      ├─▶ a list per page ─▶ promises
//!                   └─ the needs of other users (`predictor`)     ┘   in order (`fetch_queue`)
//! ```
//!
//! A *need* is a resource that a page requires ([`tandem_preload::Need`]). A *fetch* is the
//! gateway's side of a push: its request to the origin, and the response.
//!
//! If the browser may have visited the site before (`visitors`), the promise is sent, but its fetch
//! does not begin. The fetch is *held* until the browser *claims* (requests) the resource, or until
//! claims of other resources show that the browser lacks it (`holds`). If the copy in the browser's
//! cache is too old, only the head is fetched (HEAD) and pushed; such a fetch is a *check*
//! (`copies`).
//!
//! A promise leaves before the bytes that mention its resource, so that the client never requests a
//! resource that is already on its way. The data of a push leaves after all requested data. A
//! resource that is found too late for the stream of its page is promised on the session's
//! companion ([`crate::wire`]).
//!
//! A request that crosses the promise of its resource is answered with a reference to the push
//! (`crossings`), or with a copy of its response (`repeats`).
//!
//! The methods of [`Gateway`] take events: requests, heads, bodies, reports, the progress of
//! fetches, and the time. After each of them, [`Gateway::poll_output`] returns decisions until it
//! returns `None`; then [`Gateway::poll_timeout`] returns the time at which
//! [`Gateway::handle_timeout`] is due.
//!
//! `session` holds the state. `responses`, `new_pages`, `promises`, `fetches` and `reports` handle
//! most events. The other files hold records and policies, or the decisions about one subject.
//! ARCHITECTURE.md lists the files by decision, and defines the terms.

mod action_urls;
mod audience;
mod awaited_targets;
mod budget;
mod burst;
mod candidates;
mod changed_cookies;
mod claims;
mod client_cache;
mod client_hints;
mod companion;
mod content_policies;
mod cookie_hashes;
mod cookie_hosts;
mod cookies;
mod copies;
mod crossings;
mod deadlines;
mod departure;
mod document;
mod extra_requests;
mod fetch;
mod fetch_phase;
mod fetch_queue;
mod fetches;
mod foreign_hosts;
mod frames;
mod governed_pages;
mod hinted_needs;
mod holds;
mod known_fonts;
mod known_targets;
mod learning;
mod likely_pushes;
mod load_end;
mod misses;
mod named;
mod named_referrers;
mod new_browsers;
mod new_cookies;
mod new_pages;
mod next_page;
mod next_visits;
mod output;
mod own_needs;
mod page;
mod page_copies;
mod page_hold;
mod page_series;
mod page_view;
mod predictor;
mod promises;
mod random;
mod refusals;
mod repeats;
mod reports;
mod responses;
mod returning;
mod revisits;
mod saved_visits;
mod session;
mod session_cookies;
mod stale_pages;
mod static_urls;
mod table;
mod unknown_cookies;
mod validators;
mod viewed_page;
mod visit_transfers;
mod visitors;
mod visits;
mod workers;

pub use audience::Audience;
pub use learning::{may_teach, teach, teaches_alone};
pub use output::{Clock, Config, Counts, Interest, Order, Output, PromiseStream, PushError};
pub use page::Promise;
pub use predictor::Predictor;
pub use saved_visits::{MAX_TEXT as MAX_VISITS, VisitsError};
pub use session::Gateway;
pub use table::{FetchId, ResponseId};
pub use visits::Visits;

pub use crate::response_rules::CopyLifetime;
