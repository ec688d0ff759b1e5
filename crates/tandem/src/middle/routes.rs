//! Chooses the route of each exchange by the host of its request.
//!
//! Each route has separate stages, sessions and stores behind this stage. Two routes therefore
//! share nothing, even for one isolation key.

use std::rc::Rc;

use crate::carrier::LocalBoxFuture;
use crate::endpoint::split_authority;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Isolation, Reply};
use crate::hosts::HostMap;
use crate::stage::{SessionPool, SessionPools, Stage};

/// The stages of a route, and the pool of sessions behind them.
pub struct Lane {
    /// The first stage.
    pub stage: Rc<dyn Stage>,
    /// The sessions that exchanges of the route take.
    pub sessions: Rc<dyn SessionPool>,
}

/// The stage that chooses a route.
pub struct Routes {
    map: HostMap,
    /// The lanes of the routes, by the numbers of the map.
    lanes: Vec<Lane>,
    /// The lane of all other hosts.
    default: Lane,
}

impl Routes {
    /// Creates the stage. The numbers of `map` are indices of `lanes`.
    pub fn new(map: HostMap, lanes: Vec<Lane>, default: Lane) -> Self {
        Self {
            map,
            lanes,
            default,
        }
    }

    fn lane(&self, authority: &str) -> &Lane {
        let host = split_authority(authority, Some(80)).map(|(host, _)| host);
        host.ok()
            .and_then(|host| self.map.find(&host))
            .and_then(|(_, number)| self.lanes.get(number))
            .unwrap_or(&self.default)
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
    /// True if the lane's stage connects to origins without a session.
    pub connects: bool,
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

impl SessionPool for NoSessions {
    fn establish<'a>(&'a self, _: &'a Isolation) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(std::future::ready(if self.connects {
            Ok(())
        } else {
            Err(no_route())
        }))
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
            sessions: Rc::new(NoSessions { connects: true }),
        }
    }

    #[tokio::test]
    async fn routes_choose_a_lane_by_the_host() {
        let patterns = [("*.a.example", 0), ("[::1]", 1)];
        let patterns = patterns.map(|(text, lane)| (text.parse().expect("a pattern"), lane));
        let map = HostMap::new(patterns.to_vec()).expect("a map");
        let routes = Routes::new(map, vec![lane(200), lane(201)], lane(202));
        for (authority, status) in [
            ("www.a.example", 200),
            ("WWW.A.EXAMPLE:8080", 200),
            ("a.example", 202),
            ("[::1]:80", 201),
            ("[0:0::1]", 201),
            ("not a host", 202),
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
