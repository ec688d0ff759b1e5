//! Reports the use of connections to their table. A connection counts as authenticated from its
//! first exchange here, and as busy while a reply is under way.

use std::rc::Rc;
use std::task::{Context, Poll};

use crate::connections::{Connection, ExchangeGuard};
use crate::error::Error;
use crate::exchange::{Exchange, Part, Parts, Reply};
use crate::stage::Stage;

/// The stage of one connection, behind its authentication.
pub struct Track {
    /// The connection.
    pub connection: Rc<Connection>,
    /// The stage that exchanges go on to.
    pub next: Rc<dyn Stage>,
}

impl Stage for Track {
    fn call(&self, exchange: Exchange) -> Reply {
        self.connection.authenticate();
        Reply::new(Tracked {
            _guard: self.connection.begin_exchange(),
            reply: self.next.call(exchange),
        })
    }
}

struct Tracked {
    reply: Reply,
    _guard: ExchangeGuard,
}

impl Parts for Tracked {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        self.reply.poll_part(cx)
    }
}
