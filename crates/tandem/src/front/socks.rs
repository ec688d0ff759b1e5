//! The SOCKS5 listener (RFC 1928), so that Tor Browser works after a change of one port. Its UDP
//! associations are in `udp`.
//!
//! The user name and password are the isolation key, as they are for Tor. A connection whose first
//! bytes are HTTP to the requested host is served as HTTP; any other is a tunnel. The reply may go
//! out before the far end has answered, so that the first bytes travel with the request. On port 80
//! it goes out at once, because HTTP can still report a 502. On port 443 it goes out at once unless
//! the gateway has failed, and on other ports once the gateway is known to respond. Both need
//! `early-connect`, and no failure of a tunnel to the same place a moment ago.
//!
//! A drain ends a connection at once if its request is not complete: the rest belongs to the new
//! configuration. On port 80 the request is that of HTTP, and elsewhere that of SOCKS.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tandem_http::message::is_token;
use tandem_http::socks::{Command, Reply as SocksReply, Server};
use tandem_http::{Fields, RequestHead};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::time::Instant;

use super::early::{agree, tell};
use super::udp::{Association, UdpLimits, named_port};
use crate::endpoint::split_authority;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Body, Chunk, Chunks, Exchange, Isolation, Part, Peer, Reply};
use crate::path::Path;
use crate::priority::SharedPriority;
use crate::session::Drain;
use crate::session::http1::{Http1Server, Http1Session};
use crate::stage::{SessionPool, SessionPools, Stage};

/// The silence after which a connection counts as one where the far end sends first. It does not
/// apply on port 80, where browsers open connections for later use.
const SNIFF: Duration = Duration::from_millis(200);

/// Serves SOCKS5 connections.
pub struct SocksFront {
    /// The settings for HTTP inside a connection.
    pub http1: Http1Session,
    /// The pools that know the sessions.
    pub pools: Rc<dyn SessionPools>,
    /// The time for the handshake.
    pub handshake: Duration,
    /// True if ports other than 80 may get a reply before the far end has answered.
    pub early_connect: bool,
    /// The address for the sockets of UDP associations; `None` refuses associations.
    pub udp: Option<IpAddr>,
    /// The limits on the tunnels of UDP associations.
    pub udp_limits: Rc<UdpLimits>,
}

impl SocksFront {
    /// Serves one connection.
    pub async fn serve(
        &self,
        mut path: Path,
        peer: Peer,
        stage: Rc<dyn Stage>,
        drain: Drain,
    ) -> Result<(), Error> {
        let mut server = Server::new();
        let greeted = handshake(&mut path, &mut server);
        let greeted = tokio::select! {
            biased;
            greeted = tokio::time::timeout(self.handshake, greeted) => greeted,
            () = drain.begun() => return Ok(()),
        };
        let Ok(request) = greeted else {
            let detail = "the SOCKS handshake did not end in time";
            return Err(Error::new(Kind::Timeout, Side::Client, detail));
        };
        let request = request?;
        let isolation = match (&request.user, &request.password) {
            (None, None) => Isolation::none(),
            (user, password) => Isolation::new(
                user.as_deref().unwrap_or_default(),
                password.as_deref().unwrap_or_default(),
            ),
        };
        let stage = isolated(stage, isolation.clone());
        match (request.command, self.udp) {
            (Command::Connect, _) => {
                let connection = SocksConnection {
                    path,
                    server,
                    peer,
                    isolation,
                    stage,
                };
                self.connect(connection, &request.target, drain).await
            }
            (Command::UdpAssociate, Some(bind)) => {
                let Some(limits) = self.udp_limits.of(&isolation, Instant::now()) else {
                    return answer(&mut path, &mut server, SocksReply::GeneralFailure).await;
                };
                let association = Association {
                    bind,
                    peer,
                    stage,
                    port: named_port(&request.target, peer),
                    limits,
                };
                association.run(path, server, drain).await
            }
            _ => answer(&mut path, &mut server, SocksReply::CommandNotSupported).await,
        }
    }

    /// Serves a connection to `target`.
    async fn connect(
        &self,
        connection: SocksConnection,
        target: &str,
        drain: Drain,
    ) -> Result<(), Error> {
        let SocksConnection {
            mut path,
            mut server,
            peer,
            isolation,
            stage,
        } = connection;
        let Ok((host, port)) = split_authority(target, None) else {
            return answer(&mut path, &mut server, SocksReply::AddressTypeNotSupported).await;
        };
        let sessions = self.pools.of(target);
        let is_late =
            port != 80 && (!self.early_connect || sessions.has_failed(&isolation, target));
        if is_late || (port == 443 && !sessions.may_agree(&isolation)) {
            let early = BytesMut::from(&server.take_rest()[..]);
            let reply = TunnelReply::Late(server);
            return tunnel(path, reply, early, target, peer, &*stage).await;
        }
        if !matches!(port, 80 | 443)
            && !sessions.is_live(&isolation)
            && let Err(error) = sessions.establish(&isolation).await
        {
            return answer(&mut path, &mut server, socks_reply(&error)).await;
        }
        answer(&mut path, &mut server, SocksReply::Succeeded).await?;
        let mut early = BytesMut::from(&server.take_rest()[..]);
        let asks_http = self.is_http(&mut path, &mut early, &host, port, &drain);
        let Some(is_http) = asks_http.await? else {
            return Ok(());
        };
        if is_http {
            let stage = towards(stage, target.to_owned(), port);
            Http1Server::with_early(self.http1.clone(), path, peer, stage, early)
                .run(drain)
                .await
        } else {
            let reply = TunnelReply::Sent {
                sessions,
                isolation,
            };
            tunnel(path, reply, early, target, peer, &*stage).await
        }
    }

    /// Reads the first bytes. Returns true if they are an HTTP/1.1 request to `host`, and `None` if
    /// the drain began before the request was complete.
    async fn is_http(
        &self,
        path: &mut Path,
        early: &mut BytesMut,
        host: &str,
        port: u16,
        drain: &Drain,
    ) -> Result<Option<bool>, Error> {
        let mut begun = None;
        loop {
            match looks_like_http(early) {
                Looks::Other => return Ok(Some(false)),
                Looks::Http => {
                    match tandem_http::h1::parse_request(
                        early,
                        self.http1.scheme,
                        &self.http1.limits,
                    ) {
                        Ok(Some((request, _))) => {
                            let named = split_authority(&request.head.authority, Some(80));
                            let is_same = named.is_ok_and(|(name, at)| name == host && at == port);
                            return Ok(Some(is_same && !request.head.is_connect()));
                        }
                        // Malformed HTTP to port 80 is still HTTP and is rejected. On other ports
                        // it may be any protocol.
                        Err(_) => return Ok(Some(port == 80)),
                        Ok(None) => {}
                    }
                }
                Looks::Unknown => {}
            }
            let limit = match (early.is_empty(), port) {
                (true, 80) => self.http1.timeouts.idle,
                (true, _) => SNIFF,
                // One limit covers the whole head, however slowly its bytes arrive.
                (false, _) => {
                    let begun = begun.get_or_insert_with(Instant::now);
                    self.http1.timeouts.head.saturating_sub(begun.elapsed())
                }
            };
            // Dropping this future loses no byte.
            let read = tokio::select! {
                biased;
                read = tokio::time::timeout(limit, path.read_buf(early)) => read,
                () = drain.begun() => {
                    let is_complete = port != 80 && early.is_empty();
                    return Ok(is_complete.then_some(false));
                }
            };
            match read {
                Ok(Ok(0)) => return Ok(Some(false)),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(Error::io(&error, Side::Client)),
                Err(_) if port == 80 && early.is_empty() => {
                    return Err(Error::new(
                        Kind::Timeout,
                        Side::Client,
                        "the client asked for nothing",
                    ));
                }
                Err(_) => return Ok(Some(false)),
            }
        }
    }
}

/// A connection after its handshake, before the reply to its request.
struct SocksConnection {
    path: Path,
    server: Server,
    peer: Peer,
    isolation: Isolation,
    /// The stage that gives each exchange this key.
    stage: Rc<dyn Stage>,
}

enum Looks {
    Http,
    Other,
    Unknown,
}

/// Checks for a method, a space and a path.
fn looks_like_http(bytes: &[u8]) -> Looks {
    let token = bytes
        .iter()
        .take_while(|b| is_token(**b) && b.is_ascii_uppercase())
        .count();
    match bytes.get(token) {
        None if token < 24 => Looks::Unknown,
        Some(b' ') if token >= 3 => match bytes.get(token + 1) {
            None => Looks::Unknown,
            Some(b'/' | b'*' | b'h') => Looks::Http,
            Some(_) => Looks::Other,
        },
        _ => Looks::Other,
    }
}

async fn handshake(
    path: &mut Path,
    server: &mut Server,
) -> Result<tandem_http::socks::Request, Error> {
    let mut buf = [0; 1024];
    let mut out = Vec::new();
    loop {
        let count = path
            .read(&mut buf)
            .await
            .map_err(|error| Error::io(&error, Side::Client))?;
        if count == 0 {
            return Err(Error::new(
                Kind::Truncated,
                Side::Client,
                "the client closed within the SOCKS handshake",
            ));
        }
        let result = server.handle_input(&buf[..count]);
        server.poll_output(&mut out);
        path.write_all(&out)
            .await
            .map_err(|error| Error::io(&error, Side::Client))?;
        out.clear();
        match result {
            Ok(Some(request)) => return Ok(request),
            Ok(None) => {}
            Err(bad) => {
                let _ = path.shutdown().await;
                return Err(Error::new(Kind::BadRequest, Side::Client, bad.to_string()));
            }
        }
    }
}

/// Sends a reply, and ends the connection if it is a refusal.
pub(super) async fn answer(
    path: &mut Path,
    server: &mut Server,
    reply: SocksReply,
) -> Result<(), Error> {
    server.reply(reply);
    write_reply(path, server).await?;
    if reply != SocksReply::Succeeded {
        let _ = path.shutdown().await;
    }
    Ok(())
}

/// Sends the bytes that the handshake has for the client.
pub(super) async fn write_reply(path: &mut Path, server: &mut Server) -> Result<(), Error> {
    let mut out = Vec::new();
    server.poll_output(&mut out);
    let written = path.write_all(&out).await;
    written.map_err(|error| Error::io(&error, Side::Client))
}

/// Returns the SOCKS reply code for a failure.
const fn socks_reply(error: &Error) -> SocksReply {
    match error.kind {
        Kind::Forbidden | Kind::Unauthorized => SocksReply::NotAllowed,
        Kind::ConnectionRefused => SocksReply::ConnectionRefused,
        Kind::Timeout => SocksReply::TtlExpired,
        Kind::Unreachable | Kind::Dns | Kind::Loop => SocksReply::HostUnreachable,
        _ => SocksReply::GeneralFailure,
    }
}

/// Returns the SOCKS reply code for the gateway's refusal of a tunnel.
fn refused(status: u16, fields: &Fields) -> SocksReply {
    let said = fields
        .get("proxy-status")
        .map(String::from_utf8_lossy)
        .unwrap_or_default();
    match status {
        _ if said.contains("connection_refused") => SocksReply::ConnectionRefused,
        403 | 407 => SocksReply::NotAllowed,
        504 => SocksReply::TtlExpired,
        502 => SocksReply::HostUnreachable,
        _ => SocksReply::GeneralFailure,
    }
}

/// Returns a stage that gives every exchange of the connection its isolation key.
fn isolated(stage: Rc<dyn Stage>, isolation: Isolation) -> Rc<dyn Stage> {
    Rc::new(move |mut exchange: Exchange| {
        exchange.isolation = isolation.clone();
        stage.call(exchange)
    })
}

/// Returns a stage that sends the connection's requests to the requested host, whatever host a
/// later Host field names.
fn towards(stage: Rc<dyn Stage>, target: String, port: u16) -> Rc<dyn Stage> {
    let authority = if port == 80 {
        target.trim_end_matches(":80").to_owned()
    } else {
        target
    };
    Rc::new(move |exchange: Exchange| {
        let same = split_authority(&exchange.request.authority, Some(80))
            == split_authority(&authority, Some(80));
        if same {
            stage.call(exchange)
        } else {
            Reply::fail(Error::new(
                Kind::BadRequest,
                Side::Client,
                "the Host field names another host than SOCKS did",
            ))
        }
    })
}

/// The time of a tunnel's SOCKS reply.
enum TunnelReply {
    /// The reply waits for the far end's response.
    Late(Server),
    /// The reply has been sent. A failure is noted, so that the next attempt waits.
    Sent {
        sessions: Rc<dyn SessionPool>,
        isolation: Isolation,
    },
}

/// Carries bytes both ways.
async fn tunnel(
    path: Path,
    socks: TunnelReply,
    early: BytesMut,
    target: &str,
    peer: Peer,
    stage: &dyn Stage,
) -> Result<(), Error> {
    let facts = Rc::downgrade(path.facts());
    let (read, mut write) = tokio::io::split(path);
    let request = RequestHead::connect(target);
    // The body is dropped only when the tunnel ends: its reader notices when the client goes away.
    let body = Body::new(TunnelUpward { read, early }, None);
    let exchange = Exchange {
        request: Arc::new(request),
        body,
        isolation: Isolation::none(),
        peer,
        priority: SharedPriority::default(),
    };
    let mut reply = stage.call(exchange);
    match socks {
        TunnelReply::Sent {
            sessions,
            isolation,
        } => {
            let authority = target.to_owned();
            reply = agree(reply, move |error| {
                tell(error);
                sessions.failed(&isolation, &authority);
            });
        }
        TunnelReply::Late(mut server) => {
            let verdict = verdict(&mut reply).await;
            server.reply(verdict);
            let mut out = Vec::new();
            server.poll_output(&mut out);
            write_all(&mut write, &out).await?;
            if verdict != SocksReply::Succeeded {
                return shutdown(&mut write).await;
            }
        }
    }
    let mut open = true;
    while let Some(part) = reply.part().await {
        match part {
            Ok(Part::Data(data)) => write_all(&mut write, &data).await?,
            Ok(Part::Closed) => {
                open = false;
                shutdown(&mut write).await?;
            }
            Ok(_) => {}
            Err(error) => {
                // A regular close would look like the complete end of the data.
                if let Some(facts) = facts.upgrade() {
                    facts.reset_on_close();
                }
                return Err(error);
            }
        }
    }
    match open {
        true => shutdown(&mut write).await,
        false => Ok(()),
    }
}

/// Waits for the far end's response to the request for a tunnel.
async fn verdict(reply: &mut Reply) -> SocksReply {
    loop {
        match reply.part().await {
            Some(Ok(Part::Head(head))) if (200..300).contains(&head.status) => {
                return SocksReply::Succeeded;
            }
            Some(Ok(Part::Head(head))) => return refused(head.status, &head.fields),
            Some(Ok(_)) => {}
            Some(Err(error)) => return socks_reply(&error),
            None => return SocksReply::GeneralFailure,
        }
    }
}

async fn write_all(io: &mut WriteHalf<Path>, bytes: &[u8]) -> Result<(), Error> {
    let written = async {
        io.write_all(bytes).await?;
        io.flush().await
    };
    let written = written.await;
    written.map_err(|error| Error::io(&error, Side::Client))
}

async fn shutdown(io: &mut WriteHalf<Path>) -> Result<(), Error> {
    let closed = io.shutdown().await;
    closed.map_err(|error| Error::io(&error, Side::Client))
}

/// The bytes that the client sends into a tunnel.
struct TunnelUpward {
    read: ReadHalf<Path>,
    early: BytesMut,
}

impl Chunks for TunnelUpward {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        let Self { read, early } = self;
        if early.is_empty() {
            early.reserve(16 << 10);
            let mut filling = std::pin::pin!(read.read_buf(early));
            let filled = ready!(Pin::new(&mut filling).as_mut().poll(cx));
            if let Err(error) = filled {
                return Poll::Ready(Some(Err(Error::io(&error, Side::Client))));
            }
        }
        Poll::Ready((!early.is_empty()).then(|| Ok(Chunk::Data(early.split().freeze()))))
    }
}
