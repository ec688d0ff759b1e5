//! The HTTP/2 connections of browsers to the client as their proxy. All tunnels of such a
//! connection belong to one context of a browser.
//!
//! Browsers keep the connections to an HTTPS proxy in the same pools as those to origins. Profiles,
//! containers and private windows never share one, and in Chromium neither do the sites of its tabs
//! (`interop/contexts.sh`). A tunnel over HTTP/1.1 has a connection of its own, and nothing
//! connects it with other tunnels.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

use crate::end_listeners::EndListeners;
use crate::exchange::{Exchange, Reply};
use crate::stage::Stage;

/// The open HTTP/2 connections of browsers, by number.
#[derive(Default)]
pub struct ProxyConnections {
    open: RefCell<HashSet<u64>>,
    on_end: EndListeners,
}

impl ProxyConnections {
    /// Calls `on_end` at the end of each connection.
    pub fn on_end(&self, on_end: impl Fn(u64) + 'static) {
        self.on_end.add(on_end);
    }

    /// Returns whether an HTTP/2 connection of a browser has this number.
    pub fn contains(&self, number: u64) -> bool {
        self.open.borrow().contains(&number)
    }

    /// Adds a connection, and returns its stage before `next`. The connection ends with the stage.
    pub fn begin(self: &Rc<Self>, number: u64, next: Rc<dyn Stage>) -> Rc<dyn Stage> {
        self.open.borrow_mut().insert(number);
        Rc::new(OfConnection {
            number,
            connections: Rc::clone(self),
            next,
        })
    }
}

struct OfConnection {
    number: u64,
    connections: Rc<ProxyConnections>,
    next: Rc<dyn Stage>,
}

impl Stage for OfConnection {
    fn call(&self, exchange: Exchange) -> Reply {
        self.next.call(exchange)
    }
}

impl Drop for OfConnection {
    fn drop(&mut self) {
        self.connections.open.borrow_mut().remove(&self.number);
        self.connections.on_end.notify(self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use bytes::Bytes;
    use tandem_http::ResponseHead;

    use super::*;

    #[test]
    fn connection_ends_with_its_stage() {
        let connections = Rc::new(ProxyConnections::default());
        let ended = Rc::new(Cell::new(0));
        let seen = Rc::clone(&ended);
        connections.on_end(move |number| seen.set(number));
        let next = |_| Reply::ready(ResponseHead::new(200), Bytes::new());
        let stage = connections.begin(7, Rc::new(next));
        assert!(connections.contains(7) && !connections.contains(8));
        drop(stage);
        assert!(!connections.contains(7));
        assert_eq!(ended.get(), 7);
    }
}
