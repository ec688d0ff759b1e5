//! TCP through a SOCKS5 proxy (RFC 1928, RFC 1929) without waiting for its replies.
//!
//! The greeting, the credentials, the request and the session's first bytes leave in one write. The
//! replies are removed from the front of the input. Over Tor this saves the circuit's round trip
//! (optimistic data). The single write keeps Nagle's algorithm at the relays from delaying a part
//! of it. The isolation key becomes the SOCKS user and password.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tandem_http::socks::{Client, Progress, Reply, SocksError};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::Sleep;

use super::tcp::{SocketOptions, Tcp};
use super::{Dial, LocalBoxFuture, Target};
use crate::endpoint::is_onion;
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::Isolation;
use crate::path::{Facts, Path};

/// The most bytes of the session that leave with the handshake.
const FIRST_WRITE: usize = 32 << 10;

/// The longest time from the proxy's agreement to the end of the handshake. Tor builds a circuit
/// in it, or reports a failure after two minutes (`SocksTimeout`). Its reason has time to arrive.
const STREAM_TIMEOUT: Duration = Duration::from_secs(130);

/// Dials through a SOCKS5 proxy, which resolves names.
pub struct Socks {
    /// The proxy's address.
    proxy: Target,
    /// The way to the proxy.
    below: Rc<dyn Dial>,
    /// The longest time until the proxy has agreed to speak, which needs no connection.
    reply_timeout: Duration,
}

impl Socks {
    /// Creates a transport through a proxy that is reached over plain TCP.
    pub fn new(proxy: SocketAddr, options: SocketOptions) -> Self {
        let reply_timeout = options.connect_timeout;
        let tcp = Tcp {
            options: Some(options),
            pinned: Some(proxy),
        };
        let proxy = Target::new(proxy.ip().to_string(), proxy.port());
        Self {
            proxy,
            below: Rc::new(tcp),
            reply_timeout,
        }
    }
}

impl Dial for Socks {
    fn below(&self) -> Option<&dyn Dial> {
        Some(&*self.below)
    }

    fn get_ready<'a>(&'a self, _: &'a Target) -> LocalBoxFuture<'a, ()> {
        self.below.get_ready(&self.proxy)
    }

    fn dial<'a>(
        &'a self,
        target: &'a Target,
        isolation: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        Box::pin(async move {
            let proxy = self.below.dial(&self.proxy, &Isolation::none()).await;
            let proxy = proxy.map_err(|error| error.at(Side::Via))?;
            over(proxy, target, isolation, self.reply_timeout)
        })
    }
}

/// Puts a handshake for `target` before the first bytes of a path to a proxy. No byte is sent
/// before the first write, flush or read. A read fails if the proxy has not agreed to speak within
/// `reply_timeout`. Fails if SOCKS cannot express the target.
pub fn over(
    proxy: Path,
    target: &Target,
    isolation: &Isolation,
    reply_timeout: Duration,
) -> Result<Path, Error> {
    let facts = Rc::new(Proxied(Rc::clone(proxy.facts())));
    let stream = SocksStream::new(proxy, target, isolation, reply_timeout)?;
    Ok(Path::new(stream, facts))
}

/// The facts about the connection to a proxy.
struct Proxied(Rc<dyn Facts>);

impl Facts for Proxied {
    fn below(&self) -> Option<&dyn Facts> {
        Some(&*self.0)
    }

    fn is_to_proxy(&self) -> bool {
        true
    }
}

/// The answers of a SOCKS proxy to a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocksTrial {
    /// It takes users and passwords. It has opened the stream, if one was requested.
    Works,
    /// It speaks SOCKS5 and takes no user and password.
    TakesNoKeys,
}

/// Greets the proxy at `address`. If it takes users and passwords, it is then asked for a stream to
/// `target`. The isolation key separates this stream from all others.
pub async fn try_proxy(
    address: SocketAddr,
    target: Option<&Target>,
    isolation: &Isolation,
    options: SocketOptions,
) -> Result<SocksTrial, Error> {
    let nowhere = Target::new("nowhere.invalid".into(), 80);
    let asked = target.unwrap_or(&nowhere);
    let is_onion = is_onion(&asked.host);
    let mut client = Client::new(&asked.host, asked.port, isolation.credentials())
        .map_err(|error| refusal(&error, is_onion))?;
    let via = |error: io::Error| Error::io(&error, Side::Via).with_address(address);
    let proxy = Socks::new(address, options);
    let path = proxy.below.dial(&proxy.proxy, &Isolation::none()).await;
    let mut path = path.map_err(|error| error.at(Side::Via))?;
    let (greeting, flight) = (client.greeting().to_vec(), client.first_flight());
    path.write_all(&greeting).await.map_err(via)?;
    path.flush().await.map_err(via)?;
    let mut method = [0; 2];
    path.read_exact(&mut method).await.map_err(|_| silent())?;
    match client.handle_input(&method) {
        Ok(_) if target.is_none() => return Ok(SocksTrial::Works),
        Ok(_) => {}
        Err(SocksError::MethodRefused) => return Ok(SocksTrial::TakesNoKeys),
        Err(error) => return Err(refusal(&error, is_onion).with_address(address)),
    }
    path.write_all(&flight[greeting.len()..])
        .await
        .map_err(via)?;
    path.flush().await.map_err(via)?;
    loop {
        let mut scratch = [0; 512];
        let count = path.read(&mut scratch).await.map_err(via)?;
        if count == 0 {
            return Err(silent());
        }
        let progress = client.handle_input(&scratch[..count]);
        if let Progress::Done { .. } = progress.map_err(|error| refusal(&error, is_onion))? {
            return Ok(SocksTrial::Works);
        }
    }
}

/// Returns the error of a proxy that closed the connection during the handshake.
fn silent() -> Error {
    Error::new(
        Kind::Reset,
        Side::Via,
        "the SOCKS proxy closed the connection: is that its SOCKS port?",
    )
}

/// A path that sends a SOCKS handshake with its first bytes.
struct SocksStream {
    proxy: Path,
    /// The handshake, until the proxy's replies have arrived.
    handshake: Option<Client>,
    /// The bytes of the handshake and the session that are not written yet.
    flight: BytesMut,
    /// The session bytes that were read together with the proxy's replies.
    rest: BytesMut,
    /// True for an onion service, whose failures Tor can explain.
    is_onion: bool,
    reply_timeout: Duration,
    /// The end of the time for the next replies, from the first wait for them.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl SocksStream {
    fn new(
        proxy: Path,
        target: &Target,
        isolation: &Isolation,
        reply_timeout: Duration,
    ) -> Result<Self, Error> {
        let client = Client::new(&target.host, target.port, isolation.credentials())
            .map_err(|error| refusal(&error, false))?;
        let flight = BytesMut::from(&client.first_flight()[..]);
        Ok(Self {
            proxy,
            handshake: Some(client),
            flight,
            rest: BytesMut::new(),
            is_onion: is_onion(&target.host),
            reply_timeout,
            alarm: None,
        })
    }

    fn poll_flight(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.flight.is_empty() {
            let written = ready!(Pin::new(&mut self.proxy).poll_write(cx, &self.flight));
            let written = written.map_err(|error| lost(&error))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.flight.advance(written);
        }
        self.flight = BytesMut::new();
        Poll::Ready(Ok(()))
    }

    /// Writes to the proxy. It is blamed for a failure until the handshake is done.
    fn of_proxy<T>(
        &mut self,
        write: impl FnOnce(Pin<&mut Path>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let is_begun = self.handshake.is_none();
        write(Pin::new(&mut self.proxy)).map_err(|error| match is_begun {
            true => error,
            false => lost(&error),
        })
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(client) = &mut self.handshake {
            let mut scratch = [0; 2048];
            let mut buf = ReadBuf::new(&mut scratch);
            let Poll::Ready(read) = Pin::new(&mut self.proxy).poll_read(cx, &mut buf) else {
                return self.poll_alarm(cx);
            };
            read.map_err(|error| lost(&error))?;
            let bytes = buf.filled();
            if bytes.is_empty() {
                return Poll::Ready(Err(silent().with_retry(Retry::IfIdempotent).into_io()));
            }
            let was_agreed = client.is_agreed();
            match client
                .handle_input(bytes)
                .map_err(|error| refusal(&error, self.is_onion).into_io())?
            {
                // The connection may take long. The replies before it may not, so that a part of
                // them changes nothing.
                Progress::Pending if client.is_agreed() && !was_agreed => self.alarm = None,
                Progress::Pending => {}
                Progress::Done { consumed } => {
                    self.rest.extend_from_slice(&bytes[consumed..]);
                    self.handshake = None;
                    self.alarm = None;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Waits for the end of the time for a reply, and then fails.
    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let is_agreed = self.handshake.as_ref().is_some_and(Client::is_agreed);
        let (limit, detail) = match is_agreed {
            false => (
                self.reply_timeout,
                "the SOCKS proxy does not reply: is that its SOCKS port?",
            ),
            true => (
                STREAM_TIMEOUT,
                "the SOCKS proxy has neither connected nor told why: try again later",
            ),
        };
        let alarm = self
            .alarm
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(alarm.as_mut().poll(cx));
        Poll::Ready(Err(Error::new(Kind::Timeout, Side::Via, detail).into_io()))
    }
}

/// Blames the proxy for the end of a connection during the handshake. The other end is not known to
/// have taken part.
fn lost(error: &io::Error) -> io::Error {
    Error::io(error, Side::Via).into_io()
}

/// Classifies a SOCKS proxy's refusal. No byte reached the other end, so sending again is safe.
fn refusal(error: &SocksError, is_onion: bool) -> Error {
    let (kind, side) = match error {
        SocksError::Refused(Reply::ConnectionRefused) => (Kind::ConnectionRefused, Side::Peer),
        SocksError::Refused(Reply::TtlExpired | Reply::OnionIntroductionTimedOut) => {
            (Kind::Timeout, Side::Peer)
        }
        SocksError::Refused(_) => (Kind::Unreachable, Side::Peer),
        _ => (Kind::Protocol, Side::Via),
    };
    let remedy = match error {
        SocksError::Refused(reply) => remedy(*reply, is_onion),
        SocksError::AuthRefused => "; it takes no user and password, which carry the isolation",
        SocksError::MethodRefused => {
            "; it must take any user and password, which carry the isolation, and none without an \
             isolation key"
        }
        SocksError::Malformed => ": is that its SOCKS port?",
        _ => "",
    };
    let words = match error {
        SocksError::Refused(reply) => reply.to_string(),
        other => other.to_string(),
    };
    Error::new(kind, side, format!("{words}{remedy}")).with_retry(Retry::Safe)
}

/// Returns advice on a reply. Tor sends the codes from X'F0' on only if its SocksPort has the flag
/// `ExtendedErrors` (proposal 304).
const fn remedy(reply: Reply, is_onion: bool) -> &'static str {
    match reply {
        Reply::OnionDescriptorNotFound => {
            ": no such service, or it is down; compare the address letter by letter"
        }
        Reply::OnionDescriptorInvalid => {
            ": the service or Tor is outdated, or Tor's clock is wrong"
        }
        Reply::OnionIntroductionFailed => ": it is known, but does not answer; it may be down",
        Reply::OnionRendezvousFailed => ": it is known, but was not reached; try again later",
        Reply::OnionAuthorizationMissing => ": give Tor its key (ClientOnionAuthDir)",
        Reply::OnionAuthorizationWrong => ": the key in Tor's ClientOnionAuthDir is another one",
        Reply::OnionAddressInvalid => ": a letter is wrong or missing",
        Reply::OnionIntroductionTimedOut => ": it is known, but does not answer in time",
        Reply::GeneralFailure | Reply::HostUnreachable | Reply::TtlExpired if is_onion => {
            "; Tor tells the reason if its SocksPort has the flag ExtendedErrors"
        }
        Reply::ConnectionRefused => ", says the SOCKS proxy: is the gateway running there?",
        Reply::NotAllowed => ", which may forbid addresses like the gateway's",
        _ => ", says the SOCKS proxy",
    }
}

impl AsyncRead for SocksStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.flight.is_empty() {
            // A session that waits for input has written its first bytes, so the handshake leaves
            // now.
            let _ = this.poll_flight(cx)?;
        }
        if this.handshake.is_some() {
            ready!(this.poll_handshake(cx))?;
        }
        if !this.rest.is_empty() {
            let count = this.rest.len().min(buf.remaining());
            buf.put_slice(&this.rest.split_to(count));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.proxy).poll_read(cx, buf)
    }
}

impl AsyncWrite for SocksStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.flight.is_empty() {
            return this.of_proxy(|proxy| proxy.poll_write(cx, buf));
        }
        let room = FIRST_WRITE.saturating_sub(this.flight.len());
        if room == 0 {
            ready!(this.poll_flight(cx))?;
            return this.of_proxy(|proxy| proxy.poll_write(cx, buf));
        }
        let taken = buf.len().min(room);
        this.flight.extend_from_slice(&buf[..taken]);
        let _ = this.poll_flight(cx)?;
        Poll::Ready(Ok(taken))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let size: usize = bufs.iter().map(|buf| buf.len()).sum();
        if this.flight.is_empty() {
            return this.of_proxy(|proxy| proxy.poll_write_vectored(cx, bufs));
        }
        if this.flight.len() + size > FIRST_WRITE {
            ready!(this.poll_flight(cx))?;
            return this.of_proxy(|proxy| proxy.poll_write_vectored(cx, bufs));
        }
        for buf in bufs {
            this.flight.extend_from_slice(buf);
        }
        let _ = this.poll_flight(cx)?;
        Poll::Ready(Ok(size))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_flight(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_flight(cx))?;
        Pin::new(&mut this.proxy).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read_through(replies: &[u8]) -> (Result<usize, Error>, Duration) {
        let (near, mut far) = Path::pair(1 << 10);
        let target = Target::new("site.test".into(), 80);
        let key = Isolation::new(b"user", b"password");
        let limit = Duration::from_secs(30);
        let mut path = over(near, &target, &key, limit).expect("a target");
        far.write_all(replies).await.expect("room");
        let begun = tokio::time::Instant::now();
        let read = path.read(&mut [0; 8]).await;
        let read = read.map_err(|error| Error::io(&error, Side::Peer));
        (read, begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn silent_proxy_fails_the_handshake_in_time() {
        for (replies, limit, detail) in [
            (&b""[..], Duration::from_secs(30), "is that its SOCKS port"),
            (&[5], Duration::from_secs(30), "is that its SOCKS port"),
            (&[5, 2], Duration::from_secs(30), "is that its SOCKS port"),
            (
                &[5, 2, 1],
                Duration::from_secs(30),
                "is that its SOCKS port",
            ),
            (&[5, 2, 1, 0], STREAM_TIMEOUT, "neither connected nor told"),
            // Tor omits the first reply.
            (&[1, 0], STREAM_TIMEOUT, "neither connected nor told"),
        ] {
            let (read, waited) = read_through(replies).await;
            let error = read.expect_err("no stream");
            assert_eq!((error.kind, error.side), (Kind::Timeout, Side::Via));
            assert!(error.detail.contains(detail), "{error:?}");
            // Timers of tokio are exact to a millisecond.
            assert_eq!(waited.as_secs(), limit.as_secs());
        }
        let connected = [5, 2, 1, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0, b'o', b'k'];
        assert_eq!(read_through(&connected).await.0, Ok(2));
    }

    #[tokio::test]
    async fn proxy_that_resets_the_connection_is_blamed() {
        let connected = [5, 2, 1, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for (replies, side) in [
            (&b""[..], Side::Via),
            (&[5, 2], Side::Via),
            (&connected[..10], Side::Via),
            (&connected, Side::Peer),
        ] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
            let listener = listener.expect("a port");
            let proxy = listener.local_addr().expect("an address");
            let target = Target::new("site.test".into(), 80);
            let dial = Socks::new(proxy, SocketOptions::default());
            let key = Isolation::new(b"user", b"password");
            let mut path = dial.dial(&target, &key).await.expect("a path");
            path.write_all(b"GET").await.expect("room");
            path.flush().await.expect("room");
            assert!(path.facts().is_to_proxy());
            let (mut far, _) = listener.accept().await.expect("a connection");
            far.write_all(replies).await.expect("room");
            // A socket with unread input sends a reset instead of an end.
            far.readable().await.expect("the handshake");
            drop(far);
            let error = path.read(&mut [0; 8]).await.expect_err("a reset");
            let error = Error::io(&error, Side::Peer);
            assert_eq!((error.kind, error.side), (Kind::Reset, side), "{replies:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn proxy_that_chooses_another_method_gets_a_remedy() {
        for reply in [[5, 0], [5, 0xff]] {
            let error = read_through(&reply).await.0.expect_err("no stream");
            assert_eq!((error.kind, error.side), (Kind::Protocol, Side::Via));
            assert!(
                error.detail.contains("must take any user and password"),
                "{error:?}"
            );
        }
    }
}
