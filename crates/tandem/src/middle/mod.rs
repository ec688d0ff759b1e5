//! The stages between `front` and `back`. Each stage holds the next.
//!
//! - [`isolate`] reads isolation keys, and [`pair_fields`] removes the pair's own fields.
//! - [`connection_logins`] marks the requests of a browser's connection that has logged in (NTLM,
//!   Negotiate), and `logins` knows the credentials of a session's requests.
//! - [`max_forwards`] handles `Max-Forwards`, [`hops`] counts relays, and [`via`] ends loops of
//!   bridges.
//! - [`auth`] admits sessions, and [`track`] reports the use of connections.
//! - [`routes`] chooses the client's route by the host of a request. [`udp_target`] puts the target
//!   of a UDP tunnel in its place.
//! - [`exchange_metrics`] counts exchanges, [`access_log`] logs them, and [`record`] keeps them for
//!   the dashboard.
//! - [`websocket`] adds the key of WebSockets that arrive over HTTP/2, or the proof of those that
//!   leave over it.
//! - [`warm_up`] opens the congestion window of a new session.
//! - [`resume`] begins a session with the speed of an earlier one.
//! - [`cache`] answers requests from the cache of the gateway or of the client.
//! - [`compress`] and [`decompress`] code bodies between the two proxies. The latter takes its
//!   memory from [`decoding_memory`].
//! - [`continued`] continues downloads whose session was lost.
//! - [`push`] pushes the resources of pages at the gateway.
//! - [`solo`] holds the sessions of a client without a gateway.
//! - [`announce`] announces a reverse gateway, and [`discovery`] tries the gateways that sites
//!   announce.
//! - [`submit`] takes anonymous submissions, and `issuer` issues tokens for them.
//! - [`entrusted`] lets the gateway fetch HTTPS of listed hosts, by the consent of both ends.
//! - [`pushed`] takes pushes at the client, [`preflights`] answers preflights of scripts, and
//!   [`loads`] measures page loads.

pub mod access_log;
pub mod announce;
pub mod auth;
pub mod cache;
pub mod compress;
pub mod connection_logins;
pub mod continued;
pub mod decoding_memory;
pub mod decompress;
pub mod discovery;
pub mod entrusted;
pub mod exchange_metrics;
pub mod hops;
pub mod isolate;
#[cfg(feature = "submit")]
pub mod issuer;
pub mod loads;
mod logins;
pub mod max_forwards;
pub mod pair_fields;
pub mod preflights;
pub mod push;
pub mod pushed;
pub mod record;
pub mod resume;
pub mod routes;
pub mod solo;
pub mod submit;
pub mod track;
pub mod udp_target;
pub mod via;
pub mod warm_up;
pub mod websocket;

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::access_log::AccessLog;
    use super::exchange_metrics::ExchangeMetrics;
    use super::hops::CountHop;
    use super::loads::Loads;
    use super::pair_fields::{Edge, PairFields};
    use crate::exchange::{Carrying, Exchange, Reply, SessionMark, Supply};
    use crate::stage::Stage;
    use tandem_http::{RequestHead, Scheme};

    #[test]
    fn stages_pass_on_supply_and_session_of_a_reply() {
        let session = Rc::new(SessionMark::new(true));
        let mark = Rc::clone(&session);
        let last = move |_: Exchange| {
            let session = Rc::clone(&mark);
            Reply::generate(|sink| {
                sink.set_supply(Supply::Joined);
                sink.set_carrying(Some(Carrying {
                    session,
                    version: None,
                }));
                std::future::pending()
            })
        };
        let next: Rc<dyn Stage> = Rc::new(last);
        let edge = Edge::Origins;
        let next = Rc::new(PairFields { edge, next });
        let edge = Edge::Front;
        let next = Rc::new(PairFields { edge, next });
        let next = Rc::new(CountHop { next });
        let next = Rc::new(Loads::new(Default::default(), next));
        let next = Rc::new(AccessLog { urls: false, next });
        let first = ExchangeMetrics { next };
        let request = RequestHead::get(Scheme::Http, "site.example", "/");
        let reply = first.call(Exchange::internal(request));
        assert_eq!(reply.supply(), Supply::Joined);
        let carrying = reply.take_carrying().expect("the session");
        assert!(Rc::ptr_eq(&carrying.session, &session));
        assert!(reply.take_carrying().is_none());
    }
}
