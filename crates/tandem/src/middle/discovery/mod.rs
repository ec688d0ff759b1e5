//! Discovers the gateways of sites: reads announcements in responses, tries each gateway beside the
//! next request, and sends the requests of its site there once it works.
//!
//! ```text
//!  routes ─▶ discovery ─┬─▶ the way without a gateway      responses announce
//!                       └─▶ the lane of the site's own gateway, one for each isolation key
//! ```
//!
//! `docs/src/discovery.md` has the rules. [`memory`] decides, and this stage moves data and runs
//! the trials. A request that the gateway did not serve takes the way without a gateway.

pub mod memory;

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tandem_http::ResponseHead;
use tokio::time::Instant;

use crate::announcement::{Announcement, Site};
use crate::carrier::LocalBoxFuture;
use crate::endpoint::Endpoint;
use crate::error::{Error, Retry};
use crate::exchange::{Exchange, Isolation, Part, Parts, Reply, Supply};
use crate::metrics::METRICS;
use crate::middle::routes::Lane;
use crate::stage::Stage;
use memory::{Decision, Memory, SiteOfKey};

/// The longest trial of a gateway.
const TRIAL: Duration = Duration::from_secs(60);

/// The pause between two sweeps of the memory.
const SWEEP: Duration = Duration::from_secs(60);

/// The lane of a site's own gateway, for one isolation key.
pub struct SiteLane {
    /// The stages and the sessions.
    pub lane: Lane,
    /// Opens the session, and resolves once the gateway has admitted it.
    pub prepare: Box<dyn Fn(Isolation) -> LocalBoxFuture<'static, Result<(), Error>>>,
}

/// Creates the lane of a gateway without connecting. Returns `None` if this client can use none of
/// the ways.
pub type NewLane = Box<dyn Fn(&[Endpoint]) -> Option<SiteLane>>;

/// The stage before the lane of all hosts without a route and without a gateway.
pub struct Discovery {
    this: Weak<Self>,
    direct: Rc<dyn Stage>,
    new_lane: NewLane,
    memory: RefCell<Memory<Rc<SiteLane>>>,
}

impl Discovery {
    /// Creates the stage. `direct` serves requests without a gateway.
    pub fn new(direct: Rc<dyn Stage>, new_lane: NewLane) -> Rc<Self> {
        let this = Rc::new_cyclic(|this: &Weak<Self>| Self {
            this: this.clone(),
            direct,
            new_lane,
            memory: RefCell::default(),
        });
        let weak = Rc::downgrade(&this);
        tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                let Some(this) = weak.upgrade() else { return };
                this.with_memory(|memory| memory.sweep(Instant::now()));
            }
        });
        this
    }

    /// Changes the memory, and drops the gateways that it no longer uses afterwards: their stages
    /// run when they are dropped.
    fn with_memory<T>(&self, change: impl FnOnce(&mut Memory<Rc<SiteLane>>) -> T) -> T {
        let mut memory = self.memory.borrow_mut();
        let result = change(&mut memory);
        let dropped = memory.take_dropped();
        drop(memory);
        drop(dropped);
        result
    }

    /// Tries a gateway beside the requests of its site.
    fn try_beside(&self, key: SiteOfKey, ways: &[Endpoint], trial: u64) {
        let lane = (self.new_lane)(ways).map(Rc::new);
        let this = self.this.clone();
        tokio::task::spawn_local(async move {
            let lane = match lane {
                Some(lane) => {
                    METRICS.discoveries_tried.add(1);
                    let prepared = (lane.prepare)(key.0.clone());
                    let works = tokio::time::timeout(TRIAL, prepared).await;
                    matches!(works, Ok(Ok(()))).then_some(lane)
                }
                None => None,
            };
            METRICS.discoveries_up.add(u64::from(lane.is_some()));
            if let Some(this) = this.upgrade() {
                this.with_memory(|memory| memory.tried(&key, trial, lane, Instant::now()));
            }
        });
    }

    /// Notes the announcement in the head of a response.
    fn read(&self, key: &SiteOfKey, head: &ResponseHead) {
        if !(200..300).contains(&head.status) {
            return;
        }
        let Some(announced) = Announcement::in_response(&key.1, &head.fields) else {
            return;
        };
        match announced {
            Ok(Announcement::Ways(ways)) => {
                self.with_memory(|memory| memory.announced(key, &ways, Instant::now()));
            }
            Ok(Announcement::Clear) => self.with_memory(|memory| memory.cleared(key)),
            Err(error) => {
                METRICS.announcements_refused.add(1);
                tracing::debug!(%error, "an announcement of a gateway is ignored");
            }
        }
    }

    fn direct(&self, key: SiteOfKey, exchange: Exchange) -> Reply {
        Reply::new(Watched {
            reply: self.direct.call(exchange),
            discovery: self.this.clone(),
            key,
            through: None,
        })
    }
}

impl Stage for Discovery {
    fn call(&self, exchange: Exchange) -> Reply {
        let Some(site) = Site::of(&exchange.request) else {
            return self.direct.call(exchange);
        };
        let key = (exchange.isolation.clone(), site);
        let is_live = |lane: &Rc<SiteLane>| lane.lane.sessions.is_live(&key.0);
        let decision = self.with_memory(|memory| memory.request(&key, Instant::now(), is_live));
        match decision {
            Decision::Direct => self.direct(key, exchange),
            Decision::Try(ways, trial) => {
                self.try_beside(key.clone(), &ways, trial);
                self.direct(key, exchange)
            }
            Decision::Gateway(lane, trial) => {
                METRICS.discovered_exchanges.add(1);
                let again = copy(&exchange);
                Reply::new(Watched {
                    reply: lane.lane.stage.call(exchange),
                    discovery: self.this.clone(),
                    key,
                    through: Some(Through {
                        trial,
                        again: Some(again),
                        lane,
                    }),
                })
            }
        }
    }
}

/// Returns the same exchange, whose body is shared with the first.
fn copy(exchange: &Exchange) -> Exchange {
    Exchange {
        request: exchange.request.clone(),
        body: exchange.body.share(),
        isolation: exchange.isolation.clone(),
        peer: exchange.peer,
        priority: exchange.priority.clone(),
    }
}

/// The reply to a request for a site that may announce a gateway.
struct Watched {
    reply: Reply,
    discovery: Weak<Discovery>,
    key: SiteOfKey,
    /// Present if the gateway serves the request.
    through: Option<Through>,
}

/// The state of a request that the site's gateway serves.
struct Through {
    trial: u64,
    /// The request for another attempt without the gateway. It is `None` once a part of the
    /// response has been passed on.
    again: Option<Exchange>,
    /// The lane, which lives as long as its replies.
    lane: Rc<SiteLane>,
}

/// Judges a part of a response by a gateway. Returns the rule for another attempt without it if the
/// part is a failure. A gateway that refuses the site (421) or the client (407), or that cannot
/// reach the origin (502, 504), is of no use.
fn failure(part: &Result<Part, Error>) -> Option<Retry> {
    match part {
        Ok(Part::Head(head)) => match head.status {
            407 | 421 => Some(Retry::Safe),
            502 | 504 => Some(Retry::IfIdempotent),
            _ => None,
        },
        Ok(_) => None,
        Err(error) => error.side.is_before_origin().then_some(error.retry),
    }
}

impl Watched {
    /// Notes that the gateway failed, if it has refused the request or its session has ended.
    /// Continues without it and returns true if the request may be repeated.
    fn leave(&mut self, retry: Retry, has_refused: bool) -> bool {
        let (Some(discovery), Some(through)) = (self.discovery.upgrade(), &mut self.through) else {
            return false;
        };
        let trial = through.trial;
        let again = through
            .again
            .take()
            .filter(|exchange| retry.permits(&exchange.request.method) && exchange.body.rewind());
        // One reset stream does not mean a broken gateway.
        if has_refused || !through.lane.lane.sessions.is_live(&self.key.0) {
            let is_first =
                discovery.with_memory(|memory| memory.failed(&self.key, trial, Instant::now()));
            METRICS.discoveries_failed.add(u64::from(is_first));
        }
        let Some(exchange) = again else {
            return false;
        };
        self.reply = discovery.direct.call(exchange);
        self.through = None;
        true
    }
}

impl Parts for Watched {
    fn supply(&self) -> Supply {
        self.reply.supply()
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        loop {
            let part = std::task::ready!(self.reply.poll_part(cx));
            let Some(part) = part else {
                return Poll::Ready(None);
            };
            if self.through.is_some() {
                if let Some(retry) = failure(&part)
                    && self.leave(retry, part.is_ok())
                {
                    continue;
                }
                // Another attempt would repeat parts that the browser has.
                if let Some(through) = &mut self.through {
                    through.again = None;
                }
            }
            if let Ok(Part::Head(head)) = &part
                && let Some(discovery) = self.discovery.upgrade()
            {
                discovery.read(&self.key, head);
            }
            return Poll::Ready(Some(part));
        }
    }
}

#[cfg(test)]
mod tests;
