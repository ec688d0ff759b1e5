//! The lane of a client without a gateway: both halves of push in one process, over connections to
//! origins.
//!
//! ```text
//!  exchange_metrics ─▶ access_log ─▶ loads ─▶ pushed ─▶
//!      sessions: push ─▶ pair_fields ─▶ polite ─▶ origin
//! ```

use std::rc::Rc;

use tandem_http::Scheme;
use tandem_http::h1::Limits;
use tandem_push::gateway::Visits;

use super::lanes::tls_to_origins;
use super::{http1_session, mux_session};
use crate::back::growth::Pace;
use crate::back::origin::{Limits as OriginLimits, Mode, Origin};
use crate::back::own::OwnListeners;
use crate::back::policy::{Direct, Policy, PolicyOf};
use crate::back::polite::{Pipelining, Polite};
use crate::back::udp::NoUdp;
use crate::config::client::{Solo, SoloMode};
use crate::config::{ClientConfig, ConfigError};
use crate::exchange::{Exchange, Peer, Reply};
use crate::middle::pair_fields::{Edge, PairFields};
use crate::middle::push::{EarlyLimits, Push, Pushing};
use crate::middle::solo::{ExceptedHosts, NewSession, SoloLimits, SoloSessions, is_excepted};
use crate::role_name::RoleName;
use crate::session::http1::DEPTH;
use crate::session::mux::Multiplexed;
use crate::stage::Stage;
use crate::transport::Dial;

impl ClientConfig {
    /// Creates the sessions without a gateway.
    ///
    /// The sessions of requests without an isolation key share `visits`, which a file keeps.
    pub(super) fn solo_sessions(
        &self,
        solo: &Solo,
        visits: Option<Visits>,
    ) -> Result<Rc<SoloSessions>, ConfigError> {
        let origin = self.solo_origin(solo)?;
        let most = solo.connections;
        let except: Rc<[_]> = solo.except.clone().into();
        let (takes_pushes, refused) = (self.push, Rc::clone(&except));
        let per_session = OriginLimits::default().per_session;
        // A new stream through Tor carries its first request at once, and waits for nothing.
        let preconnects = solo.mode == SoloMode::Direct;
        let pipelining = solo.pipelining.then_some(Pipelining { preconnects });
        let pace = match solo.mode {
            SoloMode::Via => Pace::EachAnswer,
            SoloMode::Direct => Pace::Doubling,
        };
        let polite = Polite::before(&origin, most, per_session, pace, pipelining);
        let polite = Rc::new(polite);
        let excepted = Rc::new(ExceptedHosts {
            except,
            next: Rc::clone(&polite) as _,
        });
        let pushing = Pushing {
            hold_out: solo.hold_out,
            early: Some(EarlyLimits::SOLO),
            ..Pushing::default()
        };
        let without_key = Rc::new(Pushing {
            visits,
            ..pushing.clone()
        });
        // Tor Browser gives keys, and its cache is empty when it starts. Without a key, a browser
        // may keep its cache on disk.
        let with_new_cache = Rc::new(Pushing {
            early: Some(EarlyLimits {
                caches_are_new: solo.mode == SoloMode::Via,
                ..EarlyLimits::SOLO
            }),
            ..pushing.clone()
        });
        let with_key = Rc::new(pushing);
        let limits = SoloLimits {
            max_sessions: self.max_sessions.div_ceil(self.routes.len() + 1),
            idle: self.path.timeouts.idle,
        };
        let new_session: NewSession = Box::new(move |session| {
            let number = session.number;
            let to_origin = Rc::new(SoloOrigins {
                session: number,
                origin: Rc::clone(&origin),
                polite: Rc::clone(&polite),
                next: Rc::clone(&excepted) as _,
            });
            let to_origin = Rc::new(NoUdp {
                reason: "no UDP: the client has no gateway for this host (--solo)",
                next: to_origin,
            });
            let next = Rc::new(PairFields {
                edge: Edge::Origins,
                next: to_origin,
            });
            let peer = Peer {
                session: number,
                ..Peer::none()
            };
            let pushing = match session.isolation.credentials() {
                None => &without_key,
                Some(_) if session.is_first => &with_new_cache,
                Some(_) => &with_key,
            };
            Rc::new(Push::new(pushing, None, peer, next))
        });
        let peer_of = move |exchange: &Exchange, session| Peer {
            session,
            address: None,
            // HTTPS is tunnelled, and HTTP/2 origins multiplex by themselves.
            push: exchange.request.scheme == Scheme::Http
                && takes_pushes
                && !is_excepted(&refused, exchange),
        };
        let peer_of = Box::new(peer_of);
        Ok(SoloSessions::new(limits, new_session, peer_of, None))
    }

    /// Returns the way to sites from this machine, if `--solo=direct` permits it.
    pub fn solo_direct(&self) -> Option<Direct> {
        let solo = self.solo.as_ref()?;
        if solo.mode != SoloMode::Direct {
            return None;
        }
        Direct::read_networks();
        Some(Direct {
            policy: Policy {
                of: PolicyOf::Solo,
                allow: solo.allow_dest.clone(),
                ..Policy::default()
            },
            named: None,
            own: OwnListeners::default(),
            options: self.path.socket.clone(),
        })
    }

    /// Creates the pool of connections to origins.
    fn solo_origin(&self, solo: &Solo) -> Result<Rc<Origin>, ConfigError> {
        let transport: Rc<dyn Dial> = match self.solo_direct() {
            None => self.via_to_origins().ok_or_else(SoloMode::needs_via)?,
            Some(direct) => Rc::new(direct),
        };
        let head = Limits::default().head;
        let h2 = mux_session(Multiplexed::H2, &self.path, 256, head, RoleName::Client);
        // `polite` sets the limits. These are larger, since pushes use half of them.
        let limits = OriginLimits {
            per_origin: 2 * solo.connections * DEPTH,
            per_session: 2 * OriginLimits::default().per_session,
            ..OriginLimits::default()
        };
        Ok(Origin::new(
            Mode::Forward,
            transport,
            tls_to_origins()?,
            http1_session(RoleName::Client, &self.path),
            Rc::new(h2),
            self.path.socket.connect_timeout,
            limits,
        ))
    }
}

/// The way to origins of one session. Dropping it closes the idle connections of the session, and
/// forgets its origins.
struct SoloOrigins {
    session: u64,
    origin: Rc<Origin>,
    polite: Rc<Polite>,
    next: Rc<dyn Stage>,
}

impl Stage for SoloOrigins {
    fn call(&self, exchange: Exchange) -> Reply {
        self.next.call(exchange)
    }
}

impl Drop for SoloOrigins {
    fn drop(&mut self) {
        self.origin.end_session(self.session);
        self.polite.end_session(self.session);
    }
}
