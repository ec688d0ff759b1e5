//! Pairs with HTTP/3 over a transport that another crate provides, as the shared tests of the
//! library start them.

use tandem::config::{ClientOptions, GatewayOptions};

use crate::harness::Pair;
use crate::provided::start_new_pair;

/// The sessions of the tests that the library shares.
pub(crate) const PUSHING: [&str; 1] = ["h3"];
pub(crate) const CARRYING: [&str; 1] = ["h3"];

pub(crate) fn carrying_pair(session: &str) -> Pair {
    Pair::with(session, |_| {}, |_| {})
}

impl Pair {
    pub(crate) fn start() -> Self {
        Self::with("h3", |_| {}, |_| {})
    }

    pub(crate) fn with(
        session: &str,
        gateway: impl FnOnce(&mut GatewayOptions),
        client: impl FnOnce(&mut ClientOptions),
    ) -> Self {
        assert_eq!(session, "h3");
        start_new_pair(gateway, client)
    }
}
