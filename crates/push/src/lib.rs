//! Push without I/O. The gateway's half decides which resources are sent before the browser
//! requests them. The client's half keeps them until the browser does.
//!
//! ```text
//!            gateway                                      client
//!  request ─▶ ┌─────────┐ ─▶ promise, fetch   promise ─▶ ┌────────┐ ─▶ response
//!     head ─▶ │ gateway │ ─▶ raise, cancel       head ─▶ │ client │ ─▶ report
//!     body ─▶ └─────────┘ ─▶ learn, timeout   request ─▶ └────────┘ ─▶ timeout
//!                  ▲                   wire                   │
//!                  └────────────── reports ◀──────────────────┘
//! ```
//!
//! - [`wire`]: the fields, names and reports that the two halves exchange.
//! - [`fetch_standard`]: the requests of browsers, as the Fetch and Referrer Policy standards
//!   define them.
//! - [`response_rules`]: the responses that may be pushed.
//! - [`cookies`]: the cookies that a page sets for the requests of its resources.
//! - [`gone_urls`]: the resources that their origins no longer have.
//! - [`hints`]: the resources that the head of a response names.
//! - [`asked_hosts`]: the hosts of other origins that the pages of an origin request.
//! - [`image_accept`]: the formats of images that browsers accept.
//! - [`known_redirects`]: the redirects to other origins that the gateway may follow.
//! - [`likely_budget`]: the budget of pushes that wait for no request of the browser.
//! - [`next_pages`]: the documents that visitors of a page ask for next.
//! - [`referrers`]: the parts of pages' URLs that requests name in `Referer`.
//! - [`refusing_hosts`]: the hosts that answer different users with failures.
//! - [`scripts`]: the requests that scripts make for data.
//! - [`site`]: the comparison of sites.
//! - [`transfers`]: the resources that the visits to a page transfer.
//! - [`useless_pushes`]: the resources whose pushes were of no use.
//! - [`gateway`]: the state machine of one session at the gateway.
//! - [`client`]: the state machine of one session at the client.
//!
//! The crate opens no socket, reads no clock and starts no thread. Times are arguments, and
//! decisions are values that the caller carries out.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod asked_hosts;
mod browser_fields;
pub mod client;
pub mod cookie_urls;
pub mod cookies;
pub mod fetch_standard;
pub mod gateway;
pub mod gone_urls;
pub mod hints;
pub mod image_accept;
pub mod known_redirects;
pub mod likely_budget;
pub mod next_pages;
pub mod referrers;
pub mod refusing_hosts;
pub mod response_rules;
pub mod scripts;
pub mod site;
pub mod transfers;
mod url;
pub mod useless_pushes;
pub mod wire;
