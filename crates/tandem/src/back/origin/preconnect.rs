//! Connections in advance, for a client without a gateway: while a page is requested, connections
//! for its resources are dialled.
//!
//! ```text
//!   page ──dial──▶ request ──▶ first bytes name resources ─▶ open connections carry their requests
//!     └──dials──▶ spare connections (`binding`) ─────────────┘
//! ```
//!
//! Browsers open as many connections a round trip later, for all but the smallest pages. The number
//! follows the earlier pages of the origin, and never exceeds the connections of a browser.

use std::rc::Rc;

use tandem_push::fetch_standard::is_navigation;

use super::pipelining::Pipeline;
use super::{Origin, PoolKey};
use crate::exchange::Exchange;

/// The connections for the page of an origin that has not shown its need. The page itself takes
/// one of them.
const UNKNOWN: usize = 4;

impl Origin {
    /// Dials for the resources of a page while that is requested, if it has the only connection to
    /// its origin. At most `most` connections result.
    pub(super) fn preconnect(
        self: &Rc<Self>,
        exchange: &Exchange,
        key: &PoolKey,
        pipeline: &Pipeline,
        most: usize,
    ) {
        // A user can turn the early requests of a host off, and gets no early connections then.
        let is_page = exchange.peer.push && is_navigation(&exchange.request);
        if !is_page || pipeline.connections() > 1 {
            return;
        }
        let wanted = pipeline.begin_page().unwrap_or(UNKNOWN).min(most);
        // A page that needs no other connection dials itself.
        if wanted > 1 {
            let present = self.pool.borrow().binding.spares(key);
            (present..wanted).for_each(|_| self.add_spare(key, self.own_dial(exchange, key)));
        }
    }
}

#[cfg(test)]
mod tests;
