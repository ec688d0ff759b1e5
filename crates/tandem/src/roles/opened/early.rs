//! The lane of HTTPS that the client fetches itself: both halves of push in one process, over the
//! tunnels to origins.
//!
//! ```text
//!  part ─▶ loads ─▶ preflights ─▶ pushed ─▶ listing ─▶ sessions: push ─▶ pair_fields
//!                                                           opened_origins ◀──┘
//! ```
//!
//! By default, state belongs to the part of an isolation key that is one connection of a browser to
//! this program, and ends with it (`front::opened::ProxyConnections`).

use std::rc::Rc;
use std::sync::Arc;

use tandem_http::Scheme;
use tandem_push::wire::{MAX_OPENED_LIST, OPENED_FIELD};

use crate::back::opened_origins::{OpenedOrigins, ToOpened};
use crate::config::ClientConfig;
use crate::config::open::{EarlyRequests, OpenedHttps};
use crate::exchange::{Exchange, Peer, Reply};
use crate::journal::Journal;
use crate::middle::continued::after_reload::AfterReload;
use crate::middle::pair_fields::{Edge, PairFields};
use crate::middle::push::{EarlyLimits, Push, Pushing};
use crate::middle::solo::{NewSession, PeerOf, SoloLimits, SoloSessions, ToSolo};
use crate::roles::push_lane::{PushLane, SessionsEnd};
use crate::stage::Stage;

/// The largest number of connections of browsers with knowledge and stored responses. A further one
/// ends the state of the one that was idle for longest, or gets no early requests.
pub(in crate::roles) const MAX_PARTS: usize = 64;

/// The share of a connection in `push-memory`: one of this number.
pub(in crate::roles) const PARTS_IN_MEMORY: usize = 8;

/// The name of the lane among the times of page loads.
const WAY: &str = "HTTPS opened on this machine";

impl ClientConfig {
    /// Creates the stages between the browser's exchanges and `origins`. They request the resources
    /// of a page early, if the user and push permit it.
    pub(super) fn early_lane(
        &self,
        open: &OpenedHttps,
        origins: &Rc<OpenedOrigins>,
        journal: &Arc<Journal>,
        after_reload: &AfterReload,
    ) -> Rc<dyn Stage> {
        let to_origins: Rc<dyn Stage> = Rc::new(ToOpened(Rc::clone(origins)));
        let limits = match open.early {
            EarlyRequests::Off => return to_origins,
            EarlyRequests::Connection => EarlyLimits {
                own_requests_only: true,
                ..EarlyLimits::OPENED
            },
            EarlyRequests::Shared => EarlyLimits::OPENED,
        };
        let is_shared = open.early == EarlyRequests::Shared;
        let list: Arc<str> = open.local_list().into();
        if list.len() > MAX_OPENED_LIST {
            tracing::warn!(
                "the list of opened hosts is longer than {MAX_OPENED_LIST} bytes: nothing is \
                 requested early over HTTPS; use *.SUFFIX for hosts of one site"
            );
        }
        if !self.push || self.push_memory == 0 || list.len() > MAX_OPENED_LIST {
            return to_origins;
        }
        let pushing = Rc::new(Pushing {
            early: Some(limits),
            // The file of `--solo-state` holds no HTTPS, so there are no visits.
            ..Pushing::default()
        });
        let limits = SoloLimits {
            max_sessions: match is_shared {
                true => self.max_sessions,
                false => self.max_sessions.min(MAX_PARTS),
            },
            idle: self.path.timeouts.idle,
        };
        let to_origins: Rc<dyn Stage> = Rc::new(PairFields {
            edge: Edge::Origins,
            next: to_origins,
        });
        // A part may be as large as its share of the memory, so that parts in use are counted too.
        let without_session = (!is_shared).then(|| Rc::clone(&to_origins));
        let new_session: NewSession = Box::new(move |session| {
            let next = Rc::clone(&to_origins);
            let peer = Peer {
                session: session.number,
                ..Peer::none()
            };
            Rc::new(Push::new(&pushing, None, peer, next))
        });
        let known = Rc::clone(origins);
        // The exchanges of a connection of the browser keep its number, and so do the early
        // requests of its pages.
        let peer_of: PeerOf = Box::new(move |exchange: &Exchange, _| Peer {
            session: exchange.peer.session,
            address: None,
            push: known.is_h2(exchange.peer.session),
        });
        let sessions = SoloSessions::new(limits, new_session, peer_of, without_session);
        let ending = Rc::downgrade(&sessions);
        origins.on_end(move |connection| {
            if let Some(sessions) = ending.upgrade() {
                sessions.end_parts_of(connection);
            }
        });
        let to_sessions = Rc::new(ToSolo(sessions));
        let listing = Rc::new(Listing {
            list,
            next: Rc::clone(&to_sessions) as _,
        });
        let (memory, on_end) = match is_shared {
            true => (self.push_memory, None),
            false => {
                let memory = self.push_memory.div_ceil(PARTS_IN_MEMORY);
                (memory, Some(&**origins))
            }
        };
        let lane = self.with_pushes(PushLane {
            sessions: to_sessions,
            next: listing,
            end: SessionsEnd::Here,
            memory,
            times: journal.load_times(WAY),
            digest: None,
            on_end,
            after_reload: after_reload.clone(),
        });
        if is_shared {
            return lane;
        }
        Rc::new(OfPart {
            origins: Rc::clone(origins),
            next: lane,
        })
    }
}

/// The stage that gives each exchange the part of the isolation key that it belongs to.
pub(in crate::roles) struct OfPart {
    pub(in crate::roles) origins: Rc<OpenedOrigins>,
    pub(in crate::roles) next: Rc<dyn Stage>,
}

impl Stage for OfPart {
    fn call(&self, mut exchange: Exchange) -> Reply {
        let connection = exchange.peer.session;
        let part = self.origins.part(connection);
        exchange.isolation = part.unwrap_or_else(|| exchange.isolation.within(connection));
        self.next.call(exchange)
    }
}

/// The stage that tells the half of push behind it which hosts the user has listed. It makes no
/// early request for other ones.
struct Listing {
    list: Arc<str>,
    next: Rc<dyn Stage>,
}

impl Stage for Listing {
    fn call(&self, mut exchange: Exchange) -> Reply {
        if exchange.request.scheme == Scheme::Https && !exchange.request.is_connect() {
            let fields = &mut exchange.request_mut().fields;
            fields.push(OPENED_FIELD, &*self.list);
        }
        self.next.call(exchange)
    }
}
