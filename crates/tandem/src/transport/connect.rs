//! Byte streams through the pipeline of this process. A dial is a CONNECT request to a stage (RFC
//! 9110 section 9.3.6).
//!
//! The TLS layer to the origin of an opened host runs over such a stream. The gateway therefore
//! sees the same tunnel as without opening.
//!
//! ```text
//!  Path: poll_read ◀── parts of the reply ◀── stage
//!        poll_write ──▶ Upward ──▶ body of the exchange ──▶ stage
//! ```

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tandem_http::RequestHead;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Dial, LocalBoxFuture, Target};
use crate::endpoint::join_authority;
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::{Body, Chunk, Chunks, Exchange, Isolation, Part, Peer, Reply};
use crate::failure::refusal;
use crate::path::{Facts, Path};
use crate::priority::SharedPriority;
use crate::stage::Stage;
use crate::wakers::WakerCell;

/// The unsent bytes that a stream holds.
const UNSENT: usize = 64 << 10;

/// A transport that opens tunnels through a stage.
pub struct ConnectTunnels {
    /// The stage that receives the CONNECT requests.
    pub next: Rc<dyn Stage>,
}

impl Dial for ConnectTunnels {
    fn below(&self) -> Option<&dyn Dial> {
        None
    }

    /// Opens a tunnel. The path is returned before the other end has agreed, so that the first
    /// bytes leave with the request. Tunnels for the parts of an isolation key have the whole key.
    fn dial<'a>(
        &'a self,
        target: &'a Target,
        isolation: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        let authority = join_authority(&target.host, target.port);
        let upward = Rc::new(Upward::default());
        let exchange = Exchange {
            request: Arc::new(RequestHead::connect(&authority)),
            body: Body::new(UpwardChunks(Rc::clone(&upward)), None),
            isolation: isolation.whole(),
            peer: Peer::none(),
            priority: SharedPriority::default(),
        };
        let stream = TunnelStream {
            reply: self.next.call(exchange),
            data: Bytes::new(),
            has_ended: false,
            upward,
        };
        let path = Path::new(stream, Rc::new(NoFacts));
        Box::pin(std::future::ready(Ok(path)))
    }
}

/// The facts of a tunnel. Dropping its stream cancels the exchange, which resets the tunnel.
struct NoFacts;

impl Facts for NoFacts {
    fn below(&self) -> Option<&dyn Facts> {
        None
    }
}

/// The near end of a tunnel.
struct TunnelStream {
    reply: Reply,
    /// The bytes of the last part that were not read yet.
    data: Bytes,
    has_ended: bool,
    upward: Rc<Upward>,
}

impl AsyncRead for TunnelStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.data.is_empty() && !this.has_ended {
            match ready!(this.reply.poll_part(cx)) {
                Some(Ok(Part::Head(head))) if !(200..300).contains(&head.status) => {
                    return Poll::Ready(Err(refusal(&head).into_io()));
                }
                Some(Ok(Part::Data(data))) => this.data = data,
                Some(Ok(Part::Closed)) | None => this.has_ended = true,
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    // The far end may have got the bytes inside, whatever the gateway says.
                    let retry = error.retry.min(Retry::IfIdempotent);
                    return Poll::Ready(Err(error.with_retry(retry).into_io()));
                }
            }
        }
        let count = this.data.len().min(buf.remaining());
        buf.put_slice(&this.data[..count]);
        this.data.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TunnelStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.upward.poll_write(cx, bytes)
    }

    /// Returns at once, because the stage takes the bytes without being asked.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.upward.end(Ending::Regular);
        Poll::Ready(Ok(()))
    }
}

impl Drop for TunnelStream {
    fn drop(&mut self) {
        self.upward.end(Ending::Aborted);
    }
}

/// The bytes towards the far end that the stage has not taken yet.
#[derive(Default)]
struct Upward {
    unsent: Cell<BytesMut>,
    ending: Cell<Option<Ending>>,
    reader: WakerCell,
    writer: WakerCell,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// The near end has sent all of its bytes.
    Regular,
    /// The near end was dropped before its end.
    Aborted,
    /// The stage no longer reads.
    Unread,
}

impl Upward {
    fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.ending.get().is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let mut unsent = self.unsent.take();
        let room = UNSENT.saturating_sub(unsent.len());
        let count = room.min(bytes.len());
        unsent.extend_from_slice(&bytes[..count]);
        self.unsent.set(unsent);
        if room == 0 {
            self.writer.set(cx.waker());
            return Poll::Pending;
        }
        self.reader.wake();
        Poll::Ready(Ok(count))
    }

    /// Ends the bytes. The first ending counts.
    fn end(&self, ending: Ending) {
        let first = self.ending.get().unwrap_or(ending);
        self.ending.set(Some(first));
        self.reader.wake();
        self.writer.wake();
    }
}

/// The bytes as the body of an exchange.
struct UpwardChunks(Rc<Upward>);

impl Chunks for UpwardChunks {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        let ending = self.0.ending.get();
        let mut unsent = self.0.unsent.take();
        let is_due = !unsent.is_empty() && ending != Some(Ending::Aborted);
        let data = is_due.then(|| unsent.split().freeze());
        self.0.unsent.set(unsent);
        if let Some(data) = data {
            self.0.writer.wake();
            return Poll::Ready(Some(Ok(Chunk::Data(data))));
        }
        match ending {
            Some(Ending::Aborted) => Poll::Ready(Some(Err(Error::new(
                Kind::Reset,
                Side::Client,
                "the tunnel was given up",
            )))),
            Some(_) => Poll::Ready(None),
            None => {
                self.0.reader.set(cx.waker());
                Poll::Pending
            }
        }
    }
}

impl Drop for UpwardChunks {
    fn drop(&mut self) {
        self.0.end(Ending::Unread);
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::ResponseHead;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// A stage that agrees and returns each byte, up to the end or the failure of the body.
    fn echo(exchange: Exchange) -> Reply {
        assert_eq!(exchange.request.authority, "a.example:443");
        Reply::generate(|mut sink| async move {
            sink.send(Part::Head(ResponseHead::new(200))).await;
            let mut body = exchange.body;
            while let Some(chunk) = std::future::poll_fn(|cx| body.poll_chunk(cx)).await {
                if let Chunk::Data(data) = chunk? {
                    sink.send(Part::Data(data)).await;
                }
            }
            sink.send(Part::Closed).await;
            Ok(())
        })
    }

    async fn dial(stage: impl Fn(Exchange) -> Reply + 'static) -> Path {
        let tunnels = ConnectTunnels {
            next: Rc::new(stage),
        };
        let target = Target::new("a.example".into(), 443);
        let path = tunnels.dial(&target, &Isolation::none()).await;
        path.expect("dialling waits for no answer")
    }

    #[tokio::test]
    async fn tunnel_carries_bytes_both_ways() {
        let (mut read, mut write) = tokio::io::split(dial(echo).await);
        let sent = vec![7; 300 << 10];
        let writing = async {
            write.write_all(&sent).await.expect("the echo reads");
            write.shutdown().await.expect("an end");
        };
        let mut received = Vec::new();
        let (_, read) = tokio::join!(writing, read.read_to_end(&mut received));
        assert_eq!(read.ok(), Some(sent.len()));
        assert_eq!(received, sent);
    }

    #[tokio::test]
    async fn refused_tunnel_fails_with_the_reason() {
        let refuse = |_| Reply::ready(ResponseHead::new(403), Bytes::new());
        let mut path = dial(refuse).await;
        let error = path.read_u8().await.expect_err("a refusal");
        let error = Error::io(&error, Side::Origin);
        assert_eq!((error.kind, error.side), (Kind::Forbidden, Side::Peer));
    }

    #[tokio::test]
    async fn dropped_tunnel_is_no_regular_end() {
        let kept: Rc<Cell<Option<Body>>> = Rc::default();
        let keep = Rc::clone(&kept);
        let path = dial(move |exchange| {
            keep.set(Some(exchange.body));
            Reply::ready(ResponseHead::new(200), Bytes::new())
        })
        .await;
        drop(path);
        let mut body = kept.take().expect("the stage ran");
        let chunk = std::future::poll_fn(|cx| body.poll_chunk(cx)).await;
        assert!(matches!(chunk, Some(Err(_))));
    }

    #[tokio::test]
    async fn tunnel_without_a_reader_fails_writes() {
        let mut path = dial(|_| Reply::generate(|_| std::future::pending())).await;
        let error = path.write_all(b"x").await.expect_err("the body is gone");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
