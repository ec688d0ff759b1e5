//! A connected TCP socket as a path: the stream, and the facts from its socket options.
//!
//! The kernel reports a reset once. If a write meets it, the next read finds a regular end, and the
//! beginning of the data would count as the whole. The stream therefore remembers the reset.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use super::info;
#[cfg(target_os = "linux")]
use crate::path::{BbrState, KernelBbr};
use crate::path::{Facts, Measure, Path};

/// Creates a path from a connected socket.
pub fn path(stream: TcpStream) -> Path {
    let socket = Rc::new(SharedSocket {
        stream: RefCell::new(stream),
        failure: Cell::default(),
    });
    Path::new(SocketStream(Rc::clone(&socket)), socket)
}

/// The socket, shared by the stream and its facts.
struct SharedSocket {
    /// The socket. It is borrowed within a single poll only.
    stream: RefCell<TcpStream>,
    /// The failure of the connection, if a write has met it.
    failure: Cell<Option<io::ErrorKind>>,
}

impl SharedSocket {
    /// Notes the failure of a write. A broken pipe says nothing about the data that has arrived:
    /// the other end may have closed regularly before.
    fn noted<T>(&self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &written
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            self.failure.set(Some(error.kind()));
        }
        written
    }
}

impl Facts for SharedSocket {
    fn below(&self) -> Option<&dyn Facts> {
        None
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        self.stream.borrow().peer_addr().ok()
    }

    fn measure(&self) -> Option<Measure> {
        info::measure(&self.stream.borrow())
    }

    fn bytes_received(&self) -> Option<u64> {
        info::received(&self.stream.borrow())
    }

    fn bytes_acknowledged(&self) -> Option<u64> {
        info::acknowledged(&self.stream.borrow())
    }

    fn is_over_bbr(&self) -> bool {
        SockRef::from(&*self.stream.borrow())
            .tcp_congestion()
            .is_ok_and(|name| name.starts_with(b"bbr"))
    }

    #[cfg(target_os = "linux")]
    fn kernel_bbr(&self) -> Option<&dyn KernelBbr> {
        Some(self)
    }

    fn unsent_limit(&self) -> Option<u32> {
        SockRef::from(&*self.stream.borrow())
            .tcp_notsent_lowat()
            .ok()
    }

    fn limit_unsent(&self, bytes: u32) {
        // A kernel that rejects the limit keeps the old one, as the trait documents.
        let _ = SockRef::from(&*self.stream.borrow()).set_tcp_notsent_lowat(bytes);
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let stream = self.stream.borrow();
        let ask = || {
            let has_room = info::has_room(&stream);
            has_room
                .then_some(())
                .ok_or_else(|| io::ErrorKind::WouldBlock.into())
        };
        loop {
            // The next write meets a failure and reports it.
            if ready!(stream.poll_write_ready(cx)).is_err() {
                return Poll::Ready(());
            }
            match stream.try_io(Interest::WRITABLE, ask) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => return Poll::Ready(()),
            }
        }
    }

    fn has_unacknowledged(&self) -> bool {
        info::has_unacknowledged(&self.stream.borrow())
    }

    fn broken(&self) -> Option<Pin<Box<dyn Future<Output = ()>>>> {
        // The future needs a second descriptor, because reads and writes borrow the stream.
        let socket = SockRef::from(&*self.stream.borrow()).try_clone().ok()?;
        let watched = TcpStream::from_std(socket.into()).ok()?;
        Some(Box::pin(async move {
            match watched.ready(Interest::ERROR).await {
                Ok(ready) if ready.is_error() => {}
                _ => std::future::pending().await,
            }
        }))
    }

    fn reset_on_close(&self) {
        // The option is rejected only if the kernel has already closed the connection.
        let _ = SockRef::from(&*self.stream.borrow()).set_linger(Some(Duration::ZERO));
    }
}

#[cfg(target_os = "linux")]
impl KernelBbr for SharedSocket {
    fn state(&self) -> Option<BbrState> {
        super::bbr::state(&self.stream.borrow())
    }

    fn restart(&self, rate: u64) -> bool {
        super::bbr::restart(&self.stream.borrow(), rate).is_ok()
    }

    fn lift(&self) {
        super::bbr::lift(&self.stream.borrow());
    }
}

/// The stream of a [`SharedSocket`].
struct SocketStream(Rc<SharedSocket>);

impl AsyncRead for SocketStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buf.filled().len();
        ready!(Pin::new(&mut *self.0.stream.borrow_mut()).poll_read(cx, buf))?;
        let at_end = buf.filled().len() == filled && buf.remaining() > 0;
        let failure = self.0.failure.get().filter(|_| at_end);
        Poll::Ready(failure.map_or(Ok(()), |failure| Err(failure.into())))
    }
}

impl AsyncWrite for SocketStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.0.stream.borrow_mut()).poll_write(cx, buf);
        self.0.noted(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut stream = self.0.stream.borrow_mut();
        #[cfg(target_os = "linux")]
        if let Some(tail) = crate::body_memory::tail(bufs) {
            return self
                .0
                .noted(super::cached::poll_write(&stream, cx, bufs, &tail));
        }
        self.0
            .noted(Pin::new(&mut *stream).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.stream.borrow_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.stream.borrow_mut()).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    async fn connected() -> (Path, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let far = TcpStream::connect(address).await.expect("connects");
        (path(listener.accept().await.expect("accepts").0), far)
    }

    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn socket_measures_its_connection() {
        let (mut near, mut far) = connected().await;
        near.write_all(&[1; 100_000]).await.expect("takes it");
        far.read_exact(&mut vec![0; 100_000])
            .await
            .expect("gets it");
        let measure = near.facts().measure().expect("Linux tells");
        assert!(
            (0.0..10.0).contains(&measure.round_trip) && measure.rate > 10_000.0,
            "{measure:?}"
        );
        far.write_all(&[1; 3000]).await.expect("takes it");
        near.read_exact(&mut [0; 3000]).await.expect("gets it");
        assert_eq!(near.facts().bytes_received(), Some(3000));
        let taken = near.facts().bytes_acknowledged().expect("Linux tells");
        assert!(taken >= 100_000, "{taken}");
    }

    #[tokio::test]
    async fn socket_resets_when_told() {
        for reset in [false, true] {
            let (near, mut far) = connected().await;
            if reset {
                near.facts().reset_on_close();
            }
            drop(near);
            let read = far.read(&mut [0]).await.map_err(|error| error.kind());
            let expected = if reset {
                Err(io::ErrorKind::ConnectionReset)
            } else {
                Ok(0)
            };
            assert_eq!(read, expected);
        }
    }

    #[tokio::test]
    async fn read_reports_the_reset_that_a_write_has_met() {
        for reset in [false, true] {
            let (mut near, mut far) = connected().await;
            far.write_all(b"a part").await.expect("there is room");
            match reset {
                true => SockRef::from(&far).set_linger(Some(Duration::ZERO)),
                false => far.shutdown().await,
            }
            .expect("the connection is open");
            drop(far);
            // After a regular close, the first write brings about the reset that fails the next.
            while near.write(&[1; 100]).await.is_ok() {}
            let mut bytes = Vec::new();
            let read = near.read_to_end(&mut bytes).await;
            assert_eq!((read.is_err(), &bytes[..]), (reset, &b"a part"[..]));
        }
    }

    #[tokio::test]
    async fn socket_tells_of_a_reset_but_not_of_an_end() {
        let (mut near, far) = connected().await;
        let mut broken = near.facts().broken().expect("can be watched");
        let lingers_not = SockRef::from(&far).set_linger(Some(Duration::ZERO));
        lingers_not.expect("the option is there");
        let (mut other, mut ending) = connected().await;
        let mut ended = other.facts().broken().expect("can be watched");
        ending.shutdown().await.expect("an end");
        assert_eq!(other.read(&mut [0]).await.ok(), Some(0));
        drop(far);
        broken.as_mut().await;
        assert!(near.read(&mut [0]).await.is_err());
        let pending =
            std::future::poll_fn(|cx| std::task::Poll::Ready(ended.as_mut().poll(cx).is_pending()));
        assert!(pending.await, "an end is no reset");
    }

    /// A write appends to the last buffer of the kernel, of up to 64 KiB, without a look at the
    /// limit.
    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn socket_has_room_while_few_bytes_are_unsent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let mut far = TcpStream::connect(address).await.expect("connects");
        let socket = Rc::new(SharedSocket {
            stream: RefCell::new(listener.accept().await.expect("accepts").0),
            failure: Cell::default(),
        });
        let mut near = SocketStream(Rc::clone(&socket));
        socket.limit_unsent(16 << 10);
        // Tokio would have a task that never waits yield.
        let filling = tokio::task::unconstrained(std::future::poll_fn(|cx| {
            let mut sent = 0;
            while socket.poll_room(cx).is_ready()
                && let Poll::Ready(count) = Pin::new(&mut near).poll_write(cx, &[1; 8 << 10])
            {
                sent += count.expect("takes some");
            }
            Poll::Ready(sent)
        }));
        let sent = filling.await;
        let unsent = info::unsent(&socket.stream.borrow()).expect("Linux tells");
        assert!(unsent <= 16 << 10, "{unsent}");
        far.read_exact(&mut vec![0; sent]).await.expect("gets it");
        std::future::poll_fn(|cx| socket.poll_room(cx)).await;
    }

    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn socket_tells_of_unacknowledged_bytes() {
        let (mut near, mut far) = connected().await;
        let sent = near.write(&vec![1; 32 << 20]).await.expect("takes some");
        assert!(
            near.facts().has_unacknowledged(),
            "more than both ends hold"
        );
        far.read_exact(&mut vec![0; sent]).await.expect("gets it");
        assert!(!near.facts().has_unacknowledged());
    }
}
