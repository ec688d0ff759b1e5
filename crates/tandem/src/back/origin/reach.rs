//! The transports and session protocols towards origins, and exchanges in one fixed protocol.
//!
//! A gateway lets TLS negotiate HTTP/2 or HTTP/1.1. A bridge may have one multiplexed protocol for
//! all origins: HTTP/2 by prior knowledge (RFC 9113 section 3.3), HTTP/3 or SPDY. Its sessions
//! begin without a wait, so that exchanges that arrive together share one.

use std::rc::Rc;
use std::time::Duration;

use tandem_http::Scheme;
use tokio_rustls::TlsConnector;

use super::tries::Patience;
use super::{Origin, PoolKey};
use crate::carrier::Carrier;
use crate::endpoint::SessionKind;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Isolation, Sink};
use crate::metrics::METRICS;
use crate::path::Path;
use crate::probe::points::ORIGIN_DIAL;
use crate::session::http1::Http1Session;
use crate::session::{Connect, Connected};
use crate::transport::Dial;
use crate::transport::tls::Tls;
use crate::transport::tls::layer::offering;

/// The transports to origins.
#[derive(Clone)]
pub struct OriginTransports {
    /// The transport to origins of the scheme `http`.
    pub plain: Rc<dyn Dial>,
    /// The transport to origins of the scheme `https`.
    pub secure: Rc<dyn Dial>,
    /// TLS that offers HTTP/1.1 only, for exchanges that HTTP/2 rarely carries.
    pub secure_http1: Rc<dyn Dial>,
    /// The transport of tunnels: byte streams to the target itself.
    pub tunnels: Rc<dyn Dial>,
}

impl OriginTransports {
    /// Returns TCP or another transport of byte streams, and TLS over it. Certificates must contain
    /// `name`, or the origin's host if that is `None`.
    pub fn with_tls(
        below: Rc<dyn Dial>,
        tls: &TlsConnector,
        name: Option<&str>,
        timeout: Duration,
    ) -> Self {
        let secure = |connector: TlsConnector| {
            Rc::new(Tls {
                below: Rc::clone(&below),
                connector,
                name: name.map(str::to_owned),
                timeout,
                side: Side::Origin,
            })
        };
        Self {
            secure_http1: secure(offering(tls, &[b"http/1.1"])),
            secure: secure(tls.clone()),
            plain: Rc::clone(&below),
            tunnels: below,
        }
    }
}

/// The session protocols towards origins.
pub struct OriginProtocols {
    /// HTTP/1.1.
    pub http1: Http1Session,
    /// HTTP/2, or the protocol that `always` names.
    pub multiplexed: Rc<dyn Connect>,
    /// The protocol of all connections; `None` if TLS negotiates HTTP/2 or HTTP/1.1.
    pub always: Option<SessionKind>,
}

impl Origin {
    /// Dials the origin of `key` for a separate connection.
    pub(super) async fn dial(&self, exchange: &Exchange, key: &PoolKey) -> Result<Path, Error> {
        let needs_http1 = self.needs_http1(exchange, key);
        let (scheme, target) = &*key.origin;
        let transport = match scheme {
            Scheme::Http => &self.transports.plain,
            Scheme::Https if needs_http1 => &self.transports.secure_http1,
            Scheme::Https => &self.transports.secure,
        };
        transport
            .dial(target, &key.part_of(&exchange.isolation))
            .await
    }

    /// Runs an exchange on a session of the fixed protocol. At a reverse proxy, where all clients
    /// share the sessions, it waits for its start like any other.
    pub(super) async fn over_fixed(
        &self,
        exchange: &mut Exchange,
        key: &PoolKey,
        patience: &Patience,
        sink: &mut Sink,
    ) -> Result<(), Error> {
        let _permit = match &self.starts {
            Some(_) => self.permit(exchange, key, sink).await?,
            None => None,
        };
        patience.begin();
        let session = match self.multiplexed(key) {
            Some(session) => {
                METRICS.origin_reused.add(1);
                session
            }
            None => self.begin(exchange, key),
        };
        self.over(&*session, exchange, sink).await
    }

    /// Begins a session of the fixed protocol. It takes exchanges before it is connected.
    fn begin(&self, exchange: &Exchange, key: &PoolKey) -> Rc<dyn Connected> {
        self.make_room(key.session);
        let transport = match key.origin.0 {
            Scheme::Http => &self.transports.plain,
            Scheme::Https => &self.transports.secure,
        };
        let (transport, always) = (Rc::clone(transport), self.protocols.always);
        let (origin, isolation) = (Rc::clone(&key.origin), key.part_of(&exchange.isolation));
        let session = self.protocols.multiplexed.connect(Box::pin(async move {
            let dialling = ORIGIN_DIAL.start();
            let carrier = transport.carrier(&origin.1, &isolation).await?;
            ORIGIN_DIAL.stop(dialling, 0);
            if origin.0 == Scheme::Https {
                check_negotiated(always, &carrier)?;
            }
            Ok(carrier)
        }));
        let mut pool = self.pool.borrow_mut();
        pool.multiplexed.insert(key, Rc::clone(&session));
        session
    }
}

impl PoolKey {
    /// Returns the part of an isolation key that belongs to the client's session. Sessions take
    /// turns at the resolver by it.
    pub(super) fn part_of(&self, isolation: &Isolation) -> Isolation {
        match isolation.connection() {
            0 => isolation.within(self.session),
            _ => isolation.clone(),
        }
    }
}

/// Checks that TLS has negotiated the protocol (ALPN, RFC 7301). Servers of SPDY may be older than
/// ALPN.
fn check_negotiated(always: Option<SessionKind>, carrier: &Carrier) -> Result<(), Error> {
    let is_negotiated = match (carrier.facts().alpn(), always) {
        // A transport of many streams has checked it in its handshake.
        _ if matches!(carrier, Carrier::Streams(_)) => true,
        (Some(alpn), Some(kind)) => alpn == kind.alpn(),
        (None, Some(kind)) => matches!(kind, SessionKind::Spdy3 | SessionKind::Spdy31),
        (_, None) => true,
    };
    if is_negotiated {
        return Ok(());
    }
    let detail = "the origin's TLS did not agree to the protocol that is set for it (ALPN)";
    Err(Error::new(Kind::Protocol, Side::Origin, detail))
}
