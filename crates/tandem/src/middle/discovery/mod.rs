//! Discovers the gateways of sites: reads announcements in responses, tries each gateway beside the
//! next request, and sends the requests of its site there once it works.
//!
//! ```text
//!  routes ─▶ discovery ─┬─▶ the way without a gateway      responses announce
//!                       └─▶ the lane of the site's own gateway, one for each isolation key, or
//!                           for each part of one
//! ```
//!
//! `docs/src/discovery.md` has the rules. [`memory`] decides, and this stage moves data and runs
//! the trials. A request that the gateway did not serve takes the way without a gateway. The
//! resources of a page take the way of its document.

pub mod memory;

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tandem_http::cache::is_safe;
use tandem_http::{RequestHead, ResponseHead};
use tandem_push::fetch_standard::is_navigation;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::announcement::{Announcement, Site};
use crate::carrier::LocalBoxFuture;
use crate::endpoint::Endpoint;
use crate::error::{Error, Kind, Retry};
use crate::exchange::{Exchange, Isolation, Part, Parts, Reply, Supply};
use crate::failure::{OwnError, own_error};
use crate::metrics::METRICS;
use crate::middle::routes::Lane;
use crate::stage::Stage;
use memory::{Decision, Memory, SiteOfKey};

/// The longest trial of a gateway, in which its ways share the time.
const TRIAL: Duration = Duration::from_secs(60);

/// The largest number of ways that a trial uses.
const MAX_WAYS: usize = 3;

/// The pause between two sweeps of the memory.
const SWEEP: Duration = Duration::from_secs(60);

/// The lane of a site's own gateway, for one isolation key.
pub struct SiteLane {
    /// The stages and the sessions.
    pub lane: Lane,
    /// Opens the session, and resolves once the gateway has admitted it.
    pub prepare: Box<dyn Fn(Isolation) -> LocalBoxFuture<'static, Result<(), Error>>>,
}

/// Creates the lane of a way to a gateway without connecting. Returns `None` if this client cannot
/// use the way.
pub type NewLane = Box<dyn Fn(&Endpoint) -> Option<SiteLane>>;

/// The stage before the lane of all hosts without a route and without a gateway.
pub struct Discovery {
    this: Weak<Self>,
    direct: Rc<dyn Stage>,
    new_lane: NewLane,
    memory: RefCell<Memory<Rc<SiteLane>>>,
    /// The trials under way, by isolation key. They end with this stage.
    trials: RefCell<Vec<(Isolation, JoinHandle<()>)>>,
}

impl Discovery {
    /// Creates the stage. `direct` serves requests without a gateway. At most `max_lanes` gateways
    /// are in use or being tried.
    pub fn new(direct: Rc<dyn Stage>, new_lane: NewLane, max_lanes: usize) -> Rc<Self> {
        let this = Rc::new_cyclic(|this: &Weak<Self>| Self {
            this: this.clone(),
            direct,
            new_lane,
            memory: RefCell::new(Memory::new(max_lanes)),
            trials: RefCell::default(),
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

    /// Tries a gateway beside the requests of its site. Its ways are tried in their order.
    fn try_beside(&self, key: SiteOfKey, ways: &[Endpoint], trial: u64) {
        let usable = ways.iter().filter_map(|way| (self.new_lane)(way));
        let lanes: Vec<_> = usable.take(MAX_WAYS).map(Rc::new).collect();
        let this = self.this.clone();
        let isolation = key.0.clone();
        let trial = tokio::task::spawn_local(async move {
            let lane = first_that_works(lanes, &key.0).await;
            METRICS.discoveries_up.add(u64::from(lane.is_some()));
            if let Some(this) = this.upgrade() {
                this.with_memory(|memory| memory.tried(&key, trial, lane, Instant::now()));
            }
        });
        let mut trials = self.trials.borrow_mut();
        // Only the trials under way are kept.
        trials.retain(|(_, trial)| !trial.is_finished());
        trials.push((isolation, trial));
    }

    /// Forgets the sites of the parts of isolation keys that belong to a connection of a browser,
    /// and ends the sessions with their gateways.
    pub fn end_parts_of(&self, connection: u64) {
        let of_parts = |(isolation, _): &(Isolation, _)| isolation.connection() == connection;
        for (_, trial) in self.trials.borrow().iter().filter(|it| of_parts(it)) {
            trial.abort();
        }
        self.with_memory(|memory| memory.end_parts_of(connection));
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
            Ok(Announcement::Clear) => {
                self.with_memory(|memory| memory.withdraw(key, Instant::now()));
            }
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
            has_failed: false,
        })
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        for (_, trial) in self.trials.take() {
            trial.abort();
        }
    }
}

/// Opens the session of the first lane that works.
async fn first_that_works(lanes: Vec<Rc<SiteLane>>, key: &Isolation) -> Option<Rc<SiteLane>> {
    let share = TRIAL / u32::try_from(lanes.len().max(1)).unwrap_or(u32::MAX);
    for lane in lanes {
        METRICS.discoveries_tried.add(1);
        let prepared = (lane.prepare)(key.clone());
        if let Ok(Ok(())) = tokio::time::timeout(share, prepared).await {
            return Some(lane);
        }
    }
    None
}

impl Stage for Discovery {
    fn call(&self, exchange: Exchange) -> Reply {
        let Some(site) = Site::of(&exchange.request) else {
            return self.direct.call(exchange);
        };
        let key = (exchange.isolation.clone(), site);
        let is_live = |lane: &Rc<SiteLane>| lane.lane.sessions.is_live(&key.0);
        let (is_resource, now) = (is_resource(&exchange.request), Instant::now());
        let decision = self.with_memory(|memory| match memory.request(&key, now, is_live) {
            Decision::Gateway(..) if !memory.is_for_gateway(&key, is_resource, now) => {
                Decision::Direct
            }
            decision => decision,
        });
        match decision {
            Decision::Direct => self.direct(key, exchange),
            Decision::Try(ways, trial) => {
                self.try_beside(key.clone(), &ways, trial);
                self.direct(key, exchange)
            }
            // The loss of a silent session shows late, and the request cannot be repeated then.
            Decision::Gateway(lane, _)
                if !is_safe(&exchange.request.method) && !lane.lane.sessions.is_awake(&key.0) =>
            {
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
                    has_failed: false,
                })
            }
        }
    }
}

/// Returns whether a request is for a resource of a page.
fn is_resource(request: &RequestHead) -> bool {
    let of_page = ["referer", "sec-fetch-dest"];
    let is_of_page = of_page
        .iter()
        .any(|name| request.fields.get(name).is_some());
    is_of_page && !is_navigation(request)
}

/// Returns the same exchange. Both share the body.
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
    /// True if the gateway failed, and its response is passed on.
    has_failed: bool,
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

/// The failure of a gateway to serve an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GatewayFailure {
    /// The gateway refuses the client or the site, or reports a fault in itself.
    Refused(Retry),
    /// The exchange failed. Some such failures in a row mean that the gateway is of no use.
    Missed(Retry),
    /// The session has no free stream, or takes no new requests.
    Full(Retry),
}

impl GatewayFailure {
    /// Judges a part of a response by a gateway. A response of the origin, whatever its status, is
    /// no failure of the gateway. The gateway tells the two apart in `Proxy-Status`.
    fn of(part: &Result<Part, Error>) -> Option<Self> {
        match part {
            Ok(Part::Head(head)) => match (head.status, own_error(head)) {
                // Other gateways may send no reason. An origin that answers 421 has not processed
                // the request either (RFC 9110 section 15.5.20).
                (407 | 421, _) | (_, Some(OwnError::Denied)) => Some(Self::Refused(Retry::Safe)),
                (_, Some(OwnError::Itself)) => Some(Self::Refused(Retry::IfIdempotent)),
                (_, Some(OwnError::Origin)) => Some(Self::Missed(Retry::IfIdempotent)),
                (_, None) => None,
            },
            Err(error) if !error.side.is_before_origin() => None,
            Err(error) if error.kind == Kind::Full => Some(Self::Full(error.retry)),
            Err(error) => Some(Self::Missed(error.retry)),
            Ok(_) => None,
        }
    }

    const fn retry(self) -> Retry {
        match self {
            Self::Refused(retry) | Self::Missed(retry) | Self::Full(retry) => retry,
        }
    }
}

impl Watched {
    /// Notes that the gateway failed. Continues without it and returns true if the request may be
    /// repeated.
    fn leave(&mut self, failure: GatewayFailure) -> bool {
        let (Some(discovery), Some(through)) = (self.discovery.upgrade(), &mut self.through) else {
            return false;
        };
        let (trial, now) = (through.trial, Instant::now());
        let may_repeat = |exchange: &Exchange| {
            let method = &exchange.request.method;
            failure.retry().permits(method) || is_safe(method)
        };
        let again = through
            .again
            .take()
            .filter(|exchange| may_repeat(exchange) && exchange.body.rewind());
        let is_live = through.lane.lane.sessions.is_live(&self.key.0);
        let is_left = discovery.with_memory(|memory| match failure {
            GatewayFailure::Refused(_) => memory.refused(&self.key, trial, now),
            GatewayFailure::Missed(_) => memory.missed(&self.key, trial, is_live, now),
            GatewayFailure::Full(_) => false,
        });
        METRICS.discoveries_failed.add(u64::from(is_left));
        let Some(exchange) = again else {
            return false;
        };
        self.reply = discovery.direct.call(exchange);
        self.through = None;
        true
    }

    /// Notes that the gateway served the exchange completely.
    fn finish(&self) {
        if let (Some(discovery), Some(through)) = (self.discovery.upgrade(), &self.through)
            && !self.has_failed
        {
            discovery.with_memory(|memory| memory.served(&self.key, through.trial));
        }
    }
}

impl Parts for Watched {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        loop {
            let part = std::task::ready!(self.reply.poll_part(cx));
            let Some(part) = part else {
                self.finish();
                return Poll::Ready(None);
            };
            if self.through.is_some() {
                let failure = GatewayFailure::of(&part);
                if let Some(failure) = failure
                    && self.leave(failure)
                {
                    continue;
                }
                self.has_failed |= failure.is_some();
                // Another attempt would repeat parts that the browser has.
                if let Some(through) = &mut self.through {
                    through.again = None;
                }
            }
            // A response in the store of pushes may have come long ago.
            if let Ok(Part::Head(head)) = &part
                && self.reply.supply() == Supply::Requested
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
