//! The client's own TLS to a host behind a gateway: the requests of this process itself that the
//! gateway must neither read nor answer.
//!
//! ```text
//!  origin ─▶ TLS ─▶ tunnels ─▶ stage of the gateway ─▶ (the gateway) ─▶ host
//! ```

use std::rc::Rc;

use tandem_http::h1::Limits;

use super::lanes::RESPONSE;
use super::{http1_session, mux_session};
use crate::back::origin::{
    Limits as OriginLimits, Mode, Origin, OriginProtocols, OriginTransports, ToOrigin,
};
use crate::config::{ClientConfig, ConfigError};
use crate::endpoint::{Endpoint, SessionKind};
use crate::role_name::RoleName;
use crate::session::http1::Http1Session;
use crate::session::mux::Multiplexed;
use crate::stage::Stage;
use crate::transport::connect::ConnectTunnels;
use crate::transport::tls::ClientTls;

/// The streams that the host may open.
const STREAMS: u32 = 16;

impl ClientConfig {
    /// Creates a stage for requests of the scheme `https`, which travel in tunnels through the
    /// stage `gateway`. The host must show the certificate that `host` demands by its options. It
    /// gets no certificate of this client, because it must not recognise the client.
    ///
    /// # Errors
    /// Fails if the certificates of the authorities cannot be read.
    pub fn own_tls(
        &self,
        host: &Endpoint,
        gateway: Rc<dyn Stage>,
    ) -> Result<Rc<dyn Stage>, ConfigError> {
        let alpn = [SessionKind::H2, SessionKind::Http].map(|session| session.alpn().to_vec());
        let tls = ClientTls {
            ca: host.option("ca").map(str::to_owned),
            identity: None,
            alpn: alpn.into(),
            unlinkable: true,
        };
        let timeout = self.path.socket.connect_timeout;
        let transports = OriginTransports::with_tls(
            Rc::new(ConnectTunnels { next: gateway }),
            &tls.connector()?,
            host.option("sni"),
            timeout,
        );
        let head = Limits::default().head;
        let protocols = OriginProtocols {
            http1: Http1Session {
                response_timeout: RESPONSE,
                ..http1_session(RoleName::Client, &self.path)
            },
            multiplexed: Rc::new(mux_session(
                Multiplexed::H2,
                &self.path,
                STREAMS,
                head,
                RoleName::Client,
            )),
            always: None,
        };
        let limits = OriginLimits::default();
        let origin = Origin::with(Mode::Forward, transports, protocols, limits);
        Ok(Rc::new(ToOrigin(origin)))
    }
}
