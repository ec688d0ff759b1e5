//! Chooses the route of each exchange by the host of its request.
//!
//! Each route has separate stages, sessions and stores behind this stage. Two routes therefore
//! share nothing, even for one isolation key.

use std::rc::Rc;

use crate::carrier::LocalBoxFuture;
use crate::endpoint::split_authority;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Isolation, Reply, SessionMark};
use crate::hosts::HostMap;
use crate::stage::{CurrentSession, SessionPool, SessionPools, Stage};

/// The stages of a route, and the pool of sessions behind them.
pub struct Lane {
    /// The first stage.
    pub stage: Rc<dyn Stage>,
    /// The sessions that exchanges of the route take.
    pub sessions: Rc<dyn SessionPool>,
    /// The stage that continues downloads which began before a reload, if there is one.
    pub continuing: Option<Rc<dyn Stage>>,
}

/// The stage that chooses a route.
pub struct Routes {
    map: HostMap,
    /// The lanes of the routes, by the numbers of the map.
    lanes: Vec<Lane>,
    /// The lane of the hosts that the default gateway does not serve.
    apart: Option<Apart>,
    /// The lane of all other hosts.
    default: Lane,
}

/// The lane of hosts that have no route, and that the default gateway does not serve.
struct Apart {
    covers: Box<dyn Fn(&str) -> bool>,
    lane: Lane,
}

impl Routes {
    /// Creates the stage. The numbers of `map` are indices of `lanes`.
    pub fn new(map: HostMap, lanes: Vec<Lane>, default: Lane) -> Self {
        Self {
            map,
            lanes,
            apart: None,
            default,
        }
    }

    /// Sets the lane of hosts without a route that `covers` accepts, and of invalid authorities.
    #[must_use]
    pub fn with_apart(mut self, covers: Box<dyn Fn(&str) -> bool>, lane: Lane) -> Self {
        self.apart = Some(Apart { covers, lane });
        self
    }

    /// Returns the stage that continues downloads from a host, if there is one.
    pub fn continuing_for(&self, authority: &str) -> Option<&Rc<dyn Stage>> {
        self.lane(authority).continuing.as_ref()
    }

    fn lane(&self, authority: &str) -> &Lane {
        let Ok((host, _)) = split_authority(authority, Some(80)) else {
            let apart = self.apart.as_ref();
            return apart.map_or(&self.default, |apart| &apart.lane);
        };
        let routed = self.map.find(&host);
        let apart = self.apart.as_ref().filter(|apart| (apart.covers)(&host));
        match (routed.and_then(|(_, number)| self.lanes.get(number)), apart) {
            (Some(lane), _) => lane,
            (None, Some(apart)) => &apart.lane,
            (None, None) => &self.default,
        }
    }
}

impl Stage for Routes {
    fn call(&self, exchange: Exchange) -> Reply {
        self.lane(&exchange.request.authority).stage.call(exchange)
    }
}

impl SessionPools for Routes {
    fn of(&self, authority: &str) -> Rc<dyn SessionPool> {
        Rc::clone(&self.lane(authority).sessions)
    }
}

/// The pool of a lane that has no sessions.
pub struct NoSessions {
    /// The error of the lane, or `None` if its stage connects to origins without a session.
    pub refusal: Option<fn() -> Error>,
}

/// Returns the error for a host without a route.
pub fn no_route() -> Error {
    Error::new(
        Kind::Unreachable,
        Side::Local,
        "no route of the client covers this site, and there is no default gateway: add --route \
         HOSTS=URL, or --gateway URL for all other sites",
    )
}

/// The remedy for onion services that a default gateway does not serve.
pub const ONION_REMEDY: &str = "add --fallback via to reach onion services through --via without a \
                                gateway, and all sites if no gateway answers, or --route HOSTS=URL \
                                for one with a gateway";

/// Returns the error for an onion service that the default gateway does not serve.
pub fn onion_without_route() -> Error {
    let problem = "the client's default gateway is not at this onion service, and gets no requests \
                   for it";
    Error::new(
        Kind::Unreachable,
        Side::Local,
        format!("{problem}: {ONION_REMEDY}"),
    )
}

impl SessionPool for NoSessions {
    fn current(&self, _: &Isolation) -> Option<CurrentSession> {
        None
    }

    fn open(&self, _: &Isolation) -> Option<Rc<SessionMark>> {
        None
    }

    fn is_current(&self, _: &Isolation, _: &Rc<SessionMark>) -> bool {
        false
    }

    fn is_live(&self, _: &Isolation) -> bool {
        false
    }

    fn may_agree(&self, _: &Isolation) -> bool {
        false
    }

    fn is_awake(&self, _: &Isolation) -> bool {
        false
    }

    /// Returns false: no tunnel is agreed to early.
    fn has_failed(&self, _: &Isolation, _: &str) -> bool {
        false
    }

    fn failed(&self, _: &Isolation, _: &str) {}

    fn establish<'a>(&'a self, _: &'a Isolation) -> LocalBoxFuture<'a, Result<(), Error>> {
        let refused = self.refusal.map_or(Ok(()), |refusal| Err(refusal()));
        Box::pin(std::future::ready(refused))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tandem_http::{RequestHead, ResponseHead, Scheme};

    use super::*;
    use crate::exchange::Part;

    fn lane(status: u16) -> Lane {
        let answer = move |_: Exchange| Reply::ready(ResponseHead::new(status), Bytes::new());
        Lane {
            stage: Rc::new(answer),
            sessions: Rc::new(NoSessions { refusal: None }),
            continuing: None,
        }
    }

    #[tokio::test]
    async fn routes_choose_a_lane_by_the_host() {
        let patterns = [("*.a.example", 0), ("[::1]", 1)];
        let patterns = patterns.map(|(text, lane)| (text.parse().expect("a pattern"), lane));
        let map = HostMap::new(patterns.to_vec()).expect("a map");
        let routes = Routes::new(map, vec![lane(200), lane(201)], lane(202));
        let routes = routes.with_apart(Box::new(|host| host.ends_with(".example")), lane(203));
        for (authority, status) in [
            ("www.a.example", 200),
            ("WWW.A.EXAMPLE:8080", 200),
            ("a.example", 203),
            ("a.test", 202),
            ("[::1]:80", 201),
            ("[0:0::1]", 201),
            ("not a host", 203),
        ] {
            let request = RequestHead::get(Scheme::Http, authority, "/");
            let mut reply = routes.call(Exchange::internal(request));
            match reply.part().await {
                Some(Ok(Part::Head(head))) => assert_eq!(head.status, status, "{authority}"),
                other => panic!("{authority}: {other:?}"),
            }
        }
    }
}
