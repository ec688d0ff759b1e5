//! The route of the rest of a download that breaks off after a reload. The next configuration
//! chooses it, and never the one with which the download began.

use std::cell::OnceCell;
use std::rc::Rc;

use tandem_http::Scheme;

use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Reply};
use crate::middle::routes::Routes;
use crate::stage::Stage;

/// The end of a configuration. Clones share it.
#[derive(Clone, Default)]
pub struct AfterReload {
    /// The stage of the next configuration, or `None` if that continues no downloads.
    continuing: Rc<OnceCell<Option<Rc<dyn Stage>>>>,
    /// True for the lanes of the user's gateways, whose downloads may go on.
    goes_on: bool,
}

impl AfterReload {
    /// Returns the same end for a lane whose downloads go on by the next configuration. Those of
    /// other lanes end with an error.
    #[must_use]
    pub fn going_on(&self) -> Self {
        Self {
            continuing: Rc::clone(&self.continuing),
            goes_on: true,
        }
    }

    /// Notes the reload. `continuing` is the stage of the next configuration, or `None` if that
    /// continues no downloads. Only the first call counts.
    pub fn set(&self, continuing: Option<Rc<dyn Stage>>) {
        // A configuration is replaced once.
        let _ = self.continuing.set(continuing);
    }

    /// Returns true after a reload to a configuration by which downloads of the lane with this
    /// scheme may go on.
    pub(super) fn has_next(&self, scheme: Scheme) -> bool {
        let has_next = matches!(self.continuing.get(), Some(Some(_)));
        self.goes_on && has_next && scheme == Scheme::Http
    }

    /// Sends the request for the rest of a download, to `next` unless there was a reload.
    pub(super) fn ask(&self, exchange: Exchange, next: &Rc<dyn Stage>) -> Reply {
        match self.continuing.get() {
            None => next.call(exchange),
            Some(Some(next)) if self.goes_on => next.call(exchange),
            Some(_) => Reply::fail(no_gateway()),
        }
    }
}

/// Returns the error of a rest for which the new configuration has no gateway. It permits no other
/// attempt.
fn no_gateway() -> Error {
    let detail = "after a reload, no gateway of the client continues this download";
    Error::new(Kind::Unreachable, Side::Local, detail)
}

/// The stage of a configuration that continues downloads from before its reload. Its requests enter
/// a lane behind the lane's own [`Continue`](super::Continue).
pub struct Continuing {
    /// The lanes of the configuration.
    pub routes: Rc<Routes>,
    /// The end of the configuration.
    pub after_reload: AfterReload,
}

impl Stage for Continuing {
    fn call(&self, exchange: Exchange) -> Reply {
        if let Some(later) = self.after_reload.continuing.get() {
            return match later {
                Some(later) => later.call(exchange),
                None => Reply::fail(no_gateway()),
            };
        }
        let request = &exchange.request;
        // The consent to requests over HTTPS belongs to the former configuration.
        let continuing = self.routes.continuing_for(&request.authority);
        match continuing.filter(|_| request.scheme == Scheme::Http) {
            Some(continuing) => continuing.call(exchange),
            None => Reply::fail(no_gateway()),
        }
    }
}
