//! Pairs with HTTP/3 over a transport that another crate provides, as the shared tests of the
//! library start them.

use std::sync::atomic::{AtomicUsize, Ordering};

use tandem::config::{ClientOptions, GatewayOptions};

use crate::NAME;
use crate::certificates::Certificates;
use crate::harness::Pair;
use crate::provided::start_pair;

/// The sessions of the tests that the library shares.
pub(crate) const PUSHING: [&str; 1] = ["h3"];
pub(crate) const CARRYING: [&str; 1] = ["h3"];

/// The number of the next pair, which names the directory of its certificates.
static NEXT: AtomicUsize = AtomicUsize::new(0);

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
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let certificates = Certificates::new(&format!("{NAME}-pair-{number}"));
        start_pair(&certificates, gateway, client)
    }
}
