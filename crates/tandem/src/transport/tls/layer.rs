//! TLS over another transport: dialling with a connector, listening with an acceptor.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tandem_http::Scheme;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::identity::Identity;
use super::{ClientCertificates, ClientTls, acceptor, connect, local_acceptor, wrap};
use crate::endpoint::{BadEndpoint, Endpoint};
use crate::error::{Error, Kind, Side};
use crate::exchange::Isolation;
use crate::path::Path;
use crate::probe::points::FRONT_HANDSHAKE;
use crate::transport::registry::{
    DialContext, Dials, ListenContext, Listens, Provider, Socket, TransportError,
};
use crate::transport::tcp::Tcp;
use crate::transport::{Dial, Incoming, Listen, Listener, LocalBoxFuture, Target};

/// The dialling end: TLS over the transport below.
pub struct Tls {
    /// The transport below.
    pub below: Rc<dyn Dial>,
    /// The settings of the handshake.
    pub connector: TlsConnector,
    /// The name in the other end's certificate; `None` for the target's host.
    pub name: Option<String>,
    /// The time for the handshake.
    pub timeout: Duration,
    /// The side at fault that errors name.
    pub side: Side,
}

impl Dial for Tls {
    fn below(&self) -> Option<&dyn Dial> {
        Some(&*self.below)
    }

    fn dial<'a>(
        &'a self,
        target: &'a Target,
        isolation: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        Box::pin(async move {
            let path = self.below.dial(target, isolation).await?;
            let name = self.name.as_ref().unwrap_or(&target.host);
            connect(&self.connector, path, name, self.timeout, self.side).await
        })
    }
}

/// The listening end over TCP.
struct TlsListening {
    below: Tcp,
    acceptor: TlsAcceptor,
    /// The time for the handshake.
    timeout: Duration,
}

impl Listen for TlsListening {
    fn listen(&self, socket: Socket) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(TlsAccepting {
            below: self.below.listen(socket)?,
            acceptor: self.acceptor.clone(),
            timeout: self.timeout,
        }))
    }
}

/// Accepts connections of the transport below, and runs the TLS handshake on them.
struct TlsAccepting {
    below: Box<dyn Listener>,
    acceptor: TlsAcceptor,
    timeout: Duration,
}

impl Listener for TlsAccepting {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Incoming>> {
        let Incoming { address, carrier } = ready!(self.below.poll_accept(cx))?;
        let (acceptor, timeout) = (self.acceptor.clone(), self.timeout);
        let carrier = Box::pin(async move {
            let path = carrier.await?.into_bytes()?;
            Ok(accept(acceptor, path, timeout).await?.into())
        });
        Poll::Ready(Ok(Incoming { address, carrier }))
    }
}

/// Runs the listener's handshake over `path`.
async fn accept(acceptor: TlsAcceptor, path: Path, timeout: Duration) -> Result<Path, Error> {
    let begun = FRONT_HANDSHAKE.start();
    match tokio::time::timeout(timeout, acceptor.accept(path)).await {
        Ok(Ok(stream)) => {
            FRONT_HANDSHAKE.stop(begun, 0);
            Ok(wrap(stream.into()))
        }
        Ok(Err(error)) => Err(Error::new(Kind::Tls, Side::Client, error.to_string())),
        Err(_) => Err(Error::new(
            Kind::Timeout,
            Side::Client,
            "the TLS handshake did not end in time",
        )),
    }
}

/// The options of endpoints that are dialled over TLS or DTLS.
pub const DIAL_OPTIONS: &[&str] = &["ca", "cert", "key", "sni"];

/// The transport `tls` of endpoints: TLS over TCP, or over the proxy to the endpoint.
#[derive(Debug)]
pub struct TlsProvider;

impl Provider for TlsProvider {
    fn name(&self) -> &'static str {
        "tls"
    }

    fn scheme(&self) -> Scheme {
        Scheme::Https
    }
}

impl Dials for TlsProvider {
    fn dial_options(&self) -> &'static [&'static str] {
        DIAL_OPTIONS
    }

    fn check_dial(&self, endpoint: &Endpoint) -> Result<(), BadEndpoint> {
        endpoint.identity_files().map(drop)
    }

    fn dialling(
        &self,
        endpoint: &Endpoint,
        context: DialContext,
    ) -> Result<Rc<dyn Dial>, TransportError> {
        let option = |key: &str| endpoint.option(key).map(str::to_owned);
        let watched = |(cert, key)| Identity::watch(cert, key, &context.renewals).map(Arc::new);
        let tls = ClientTls {
            ca: option("ca"),
            identity: endpoint.identity_files()?.map(watched).transpose()?,
            alpn: vec![endpoint.session.alpn().to_vec()],
            unlinkable: true,
        };
        let DialContext {
            streams, timeout, ..
        } = context;
        Ok(Rc::new(Tls {
            below: streams,
            connector: tls.connector()?,
            name: option("sni"),
            timeout,
            side: Side::Peer,
        }))
    }
}

impl Listens for TlsProvider {
    fn has_client_certificates(&self) -> bool {
        true
    }

    fn check_listener(&self, endpoint: &Endpoint) -> Result<(), BadEndpoint> {
        endpoint.options(&["cert", "key"])?;
        endpoint.certificate_files().map(drop)
    }

    fn listening(
        &self,
        endpoint: &Endpoint,
        context: ListenContext<'_>,
    ) -> Result<Box<dyn Listen>, TransportError> {
        let clients = context.client_ca.map(|ca| ClientCertificates {
            ca,
            optional: context.optional_certificate,
        });
        let own = [endpoint.session.alpn()];
        let alpn = context.alpn.unwrap_or(&own);
        let acceptor = match context.authority {
            Some(directory) if endpoint.option("cert").is_none() => {
                local_acceptor(directory, alpn, context.renewals)?
            }
            _ => {
                let (cert, key) = endpoint.certificate_files()?;
                acceptor(Identity::watch(cert, key, context.renewals)?, clients, alpn)?
            }
        };
        let below = Tcp {
            options: context.socket,
            pinned: None,
        };
        Ok(Box::new(TlsListening {
            below,
            acceptor,
            timeout: context.timeout,
        }))
    }
}

/// Returns the same connector with other protocols to offer (ALPN), best first.
pub fn offering(connector: &TlsConnector, protocols: &[&[u8]]) -> TlsConnector {
    let mut config = connector.config().as_ref().clone();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}
