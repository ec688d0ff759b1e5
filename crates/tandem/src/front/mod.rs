//! Accepts connections, limits their number and completes their handshakes. The session protocol of
//! the listener then turns the input into exchanges. [`opened`] does the same inside tunnels to
//! listed hosts.

pub mod early;
pub mod opened;
pub mod over_h2;
pub mod socks;
pub mod udp;

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use crate::carrier::{Carrier, LocalBoxFuture};
use crate::connections::{Connection, Connections};
use crate::descriptors;
use crate::error::{Error, Kind, Side};
use crate::exchange::Peer;
use crate::log_limit::LogLimit;
use crate::metrics::METRICS;
use crate::path::Facts;
use crate::session::{Drain, Serve};
use crate::stage::Stage;
use crate::transport::{Incoming, Listen, Listener};

/// The pause after a failure to accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The pause for a connection that closes at once.
const CLOSING_PAUSE: Duration = Duration::from_millis(2);

static ACCEPT_FAILURES: LogLimit = LogLimit::new();

/// Counts a failure to accept, and logs it within a limit: clients can cause many.
fn note(error: &std::io::Error) {
    METRICS.accept_failures.add(1);
    if let Some(held_back) = ACCEPT_FAILURES.admit() {
        tracing::warn!(%error, "cannot accept ({held_back} more since the last line)");
    }
}

/// Creates the stage of one connection. The state of the stage, such as an access token that was
/// sent once, ends with the connection.
pub type NewStage = Rc<dyn Fn(&Rc<dyn Facts>, Peer, &Rc<Connection>) -> Rc<dyn Stage>>;

/// The protocol of a listener's connections.
pub enum ListenerProtocol {
    /// A session protocol.
    Session(Rc<dyn Serve>),
    /// HTTP/2, or HTTP/1.1 for a client that did not negotiate HTTP/2 (ALPN, RFC 7301).
    Negotiated {
        /// The session of a client that negotiated HTTP/2.
        h2: Rc<dyn Serve>,
        /// The session of any other client.
        http1: Rc<dyn Serve>,
    },
    /// SOCKS5 connections, which carry HTTP or any other protocol.
    Socks(Rc<socks::SocksFront>),
}

/// A listener and the parts that its connections need.
pub struct Front {
    /// The protocol of the connections.
    pub protocol: ListenerProtocol,
    /// The listening end of the transport.
    pub transport: Box<dyn Listen>,
    /// Creates the stage behind each connection.
    pub new_stage: NewStage,
    /// The connections of all listeners of the thread.
    pub connections: Rc<Connections>,
    /// The number of this listener among those of the thread.
    pub listener: usize,
    /// Ends the connections gracefully.
    pub drain: Drain,
}

impl Front {
    /// Accepts until `stop` resolves. Open connections continue after that.
    pub async fn accept(
        self: Rc<Self>,
        mut listener: Box<dyn Listener>,
        stop: impl Future<Output = ()>,
    ) {
        let mut stop = std::pin::pin!(stop);
        let mut lacks = descriptors::Lacks::default();
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut stop => return,
                accepted = poll_fn(|cx| listener.poll_accept(cx)) => accepted,
            };
            match accepted {
                Ok(incoming) => {
                    self.admit(incoming);
                    if self.connections.is_over_limit() {
                        // Evicted connections close before the next one is accepted.
                        tokio::task::yield_now().await;
                    }
                }
                Err(error) => {
                    note(&error);
                    // A pause lets other connections end. If no idle one to an origin has ended,
                    // one of a client makes way, as above the limit of connections.
                    let lasts = lacks.ask(&error);
                    let pause = match lasts && self.connections.make_way(self.listener) {
                        true => CLOSING_PAUSE,
                        false => ACCEPT_PAUSE,
                    };
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    fn admit(self: &Rc<Self>, incoming: Incoming) {
        METRICS.connections.add(1);
        let Incoming { address, carrier } = incoming;
        let id = self.connections.next_number();
        let client = address.ip();
        let admitted = self
            .connections
            .admit(id, self.listener, client, &self.drain);
        let Some(connection) = admitted else {
            tracing::debug!("connection refused: too many are open");
            return;
        };
        let front = Rc::clone(self);
        let peer = Peer {
            session: id,
            address: Some(client),
            push: false,
        };
        tokio::task::spawn_local(async move {
            let serve = async {
                // The handshake's future is large, and is freed before the session begins.
                let carrier = carrier.await?;
                front.serve(carrier, peer, &connection)?.await
            };
            let served = tokio::select! {
                served = serve => served,
                () = connection.has_to_end() => Err(Error::new(
                    Kind::Timeout,
                    Side::Client,
                    "no request was admitted in time, or another connection needed the place",
                )),
            };
            if let Err(error) = served {
                tracing::debug!(%error, "connection ended");
            }
        });
    }

    /// Serves a connection whose handshake is over.
    fn serve(
        &self,
        carrier: Carrier,
        peer: Peer,
        connection: &Rc<Connection>,
    ) -> Result<LocalBoxFuture<'static, Result<(), Error>>, Error> {
        connection.list(carrier.facts());
        let stage = (self.new_stage)(carrier.facts(), peer, connection);
        let drain = connection.drain();
        Ok(match &self.protocol {
            ListenerProtocol::Session(session) => session.serve(carrier, peer, stage, drain),
            ListenerProtocol::Negotiated { h2, http1 } => {
                let is_h2 = carrier.facts().alpn() == Some(b"h2");
                let session = if is_h2 { h2 } else { http1 };
                session.serve(carrier, peer, stage, drain)
            }
            ListenerProtocol::Socks(socks) => {
                // The SOCKS handshake has a separate time limit.
                connection.authenticate();
                let (socks, path) = (Rc::clone(socks), carrier.into_bytes()?);
                Box::pin(async move { socks.serve(path, peer, stage, drain).await })
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Poll};

    use super::*;
    use crate::connections::ConnectionLimits;
    use crate::session::doubles::Unserved;
    use crate::transport::tcp::Tcp;

    /// A listener of a process without free descriptors. Its front stops after some failures.
    struct Failing {
        left: u64,
        stop: Drain,
    }

    impl Listener for Failing {
        fn poll_accept(&mut self, _: &mut Context<'_>) -> Poll<io::Result<Incoming>> {
            let Some(left) = self.left.checked_sub(1) else {
                self.stop.begin();
                return Poll::Pending;
            };
            self.left = left;
            Poll::Ready(Err(io::Error::from_raw_os_error(libc::EMFILE)))
        }
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").write(line)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_to_accept_are_counted_and_seldom_logged() {
        let (log, stop) = (Log::default(), Drain::new());
        let written = log.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || log.clone());
        let _log = tracing::subscriber::set_default(subscriber.finish());
        let front = || Front {
            protocol: ListenerProtocol::Session(Rc::new(Unserved)),
            transport: Box::new(Tcp::default()),
            new_stage: Rc::new(
                |_: &Rc<dyn Facts>, _: Peer, _: &Rc<Connection>| -> Rc<dyn Stage> {
                    unreachable!("no connection is accepted")
                },
            ),
            connections: Connections::internal(ConnectionLimits {
                total: 1,
                per_client: 1,
                listeners: 1,
                head: Duration::from_secs(1),
            }),
            listener: 0,
            drain: Drain::new(),
        };
        let listener = Failing {
            left: 20,
            stop: stop.clone(),
        };
        let before = METRICS.accept_failures.value();
        let accept = async {
            Rc::new(front())
                .accept(Box::new(listener), stop.begun())
                .await
        };
        tokio::task::LocalSet::new().run_until(accept).await;
        assert_eq!(METRICS.accept_failures.value() - before, 20);
        let log = written.0.lock().expect("no panic").clone();
        let log = String::from_utf8(log).expect("text");
        assert_eq!(log.matches("cannot accept").count(), 1, "{log}");
    }
}
