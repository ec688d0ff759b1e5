//! A tunnel over a connection: it carries bytes both ways until both ends have closed.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::Instant;

use super::buffers;
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::{Body, Chunk, Part, Sink};
use crate::path::{Facts, Path};
use crate::session::Task;

/// The time within which the target must take some of the bytes that wait for it, or send some.
///
/// A near end that closes its connection may be unable to show it: its close comes after the bytes
/// that wait. A tunnel that nobody uses would hold memory of its session without end.
const STUCK: Duration = Duration::from_secs(600);
/// The same time once the near end is known to have closed. On other paths too, a near end that has
/// closed only its side counts as gone after a silence of this length.
const CLOSED: Duration = Duration::from_secs(60);

/// The limit for targets that take nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// No limit, at an end that does not dial targets.
    Unlimited,
    /// Ten minutes, or one after the near end has closed.
    Limited,
}

/// The progress of a tunnel's target.
struct TargetProgress {
    /// The facts about the path to the target.
    facts: Rc<dyn Facts>,
    /// The pieces that the target has sent.
    received: Cell<u64>,
    /// True while the near end does not take the last piece.
    waits_for_near: Cell<bool>,
}

impl TargetProgress {
    fn new(facts: Rc<dyn Facts>) -> Self {
        Self {
            facts,
            received: Cell::new(0),
            waits_for_near: Cell::new(false),
        }
    }

    /// Returns the pieces that the target has sent, and the bytes that its kernel has taken. A slow
    /// target takes bytes of a socket long before the socket has room for more.
    fn progress(&self) -> (u64, Option<u64>) {
        (self.received.get(), self.facts.bytes_acknowledged())
    }
}

/// Carries bytes both ways until both ends have closed. The bytes in `early` came with the head.
/// `facts` are those of the path. A tunnel that breaks off resets the path.
///
/// With limited patience, the tunnel also ends if the target has taken and sent nothing for a time
/// while bytes wait for it.
pub(crate) async fn tunnel(
    mut read: ReadHalf<Path>,
    write: WriteHalf<Path>,
    facts: Rc<dyn Facts>,
    (body, early): (Body, Bytes),
    sink: &mut Sink,
    patience: Patience,
) -> Result<(), Error> {
    let (done, uploaded) = tokio::sync::oneshot::channel();
    let signs = Rc::new(TargetProgress::new(Rc::clone(&facts)));
    let seen = Rc::clone(&signs);
    let _task = Task::spawn(async move {
        // If this fails, the receiver was dropped with its exchange.
        let _ = done.send(carry_up(write, body, &seen, patience).await);
    });
    // It is dropped first, so that the path still exists.
    let mut upward = UpwardEnd {
        facts,
        is_regular: false,
    };
    let up = async {
        let ended = uploaded.await.unwrap_or(Ok(true));
        upward.is_regular = matches!(ended, Ok(true));
        ended
    };
    let down = async {
        if !early.is_empty() {
            signs.waits_for_near.set(true);
            sink.send(Part::Data(early)).await;
            signs.waits_for_near.set(false);
        }
        loop {
            let data = buffers::read(&mut read, buffers::ReadSize::Later).await;
            let data =
                data.map_err(|error| Error::io(&error, Side::Origin).with_retry(Retry::Never))?;
            if data.is_empty() {
                break;
            }
            signs.received.set(signs.received.get() + 1);
            signs.waits_for_near.set(true);
            sink.send(Part::Data(data)).await;
            signs.waits_for_near.set(false);
        }
        // The near end may still send, and closes when it has finished.
        sink.send(Part::Closed).await;
        Ok(())
    };
    tokio::try_join!(up, down).map(drop)
}

/// Writes the bytes of a tunnel towards its target, and closes that direction after them. Returns
/// false if the target takes no more, and the error of a body that broke off.
async fn carry_up(
    mut write: impl AsyncWrite + Unpin,
    mut body: Body,
    signs: &TargetProgress,
    patience: Patience,
) -> Result<bool, Error> {
    while let Some(chunk) = poll_fn(|cx| body.poll_chunk(cx)).await {
        let Chunk::Data(mut data) = chunk? else {
            continue;
        };
        let wait = Wait {
            signs,
            patience,
            body: &body,
        };
        while data.has_remaining() {
            match wait.for_target(async || write.write(&data).await).await? {
                Ok(count @ 1..) => data.advance(count),
                Ok(0) | Err(_) => return Ok(false),
            }
        }
        if wait
            .for_target(async || write.flush().await)
            .await?
            .is_err()
        {
            return Ok(false);
        }
    }
    let wait = Wait {
        signs,
        patience,
        body: &body,
    };
    let closed = wait.for_target(async || write.shutdown().await).await?;
    Ok(closed.is_ok())
}

/// A wait for the target of a tunnel.
struct Wait<'a> {
    signs: &'a TargetProgress,
    patience: Patience,
    body: &'a Body,
}

impl Wait<'_> {
    /// Repeats an operation, which may be cancelled, until it is done. Fails if it takes too long
    /// while the target neither takes nor sends anything.
    async fn for_target<T>(
        &self,
        mut operate: impl AsyncFnMut() -> io::Result<T>,
    ) -> Result<io::Result<T>, Error> {
        if self.patience == Patience::Unlimited {
            return Ok(operate().await);
        }
        // Most operations are done at once. To ask for the progress costs system calls.
        let first = poll_fn(|cx| Poll::Ready(pin!(operate()).poll(cx)));
        if let Poll::Ready(done) = first.await {
            return Ok(done);
        }
        let (mut before, mut since) = (self.signs.progress(), Instant::now());
        loop {
            if let Ok(done) = tokio::time::timeout(CLOSED, operate()).await {
                return Ok(done);
            }
            let progress = self.signs.progress();
            // A target whose data the near end does not take may wait with its reading.
            if progress != before || self.signs.waits_for_near.get() {
                (before, since) = (progress, Instant::now());
            }
            let (limit, detail) = match self.body.has_arrived() {
                true => (CLOSED, "the target of a closed tunnel takes no bytes"),
                false => (
                    STUCK,
                    "the target of a tunnel took no bytes for ten minutes",
                ),
            };
            if since.elapsed() >= limit {
                let error = Error::new(Kind::Timeout, Side::Origin, detail);
                return Err(error.with_retry(Retry::Never));
            }
        }
    }
}

/// The end of the upward direction of a tunnel. If it is not regular, the path is reset: a regular
/// close would look like the complete end of the data.
struct UpwardEnd {
    facts: Rc<dyn Facts>,
    is_regular: bool,
}

impl Drop for UpwardEnd {
    fn drop(&mut self) {
        if !self.is_regular {
            self.facts.reset_on_close();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use tandem_http::RequestHead;
    use tandem_http::h1::Form;
    use tokio::io::AsyncReadExt;

    use super::super::{Http1Client, Http1Session};
    use super::*;
    use crate::exchange::{Chunks, Exchange, Reply};

    /// A body of two pieces. Its end arrives with the first one, if it has closed.
    struct Pieces {
        taken: u32,
        closed: bool,
    }

    impl Chunks for Pieces {
        fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
            if self.taken == 2 {
                return Poll::Ready(None);
            }
            self.taken += 1;
            Poll::Ready(Some(Ok(Chunk::Data(Bytes::from_static(&[7; 10])))))
        }

        fn has_arrived(&self) -> bool {
            self.closed || self.taken == 2
        }
    }

    fn body(closed: bool) -> Body {
        Body::new(Pieces { taken: 0, closed }, None)
    }

    /// The facts of a socket whose kernel counts the bytes that its other end takes. It also counts
    /// the questions for them.
    #[derive(Default)]
    struct Counted(Cell<u64>, Cell<u32>);

    impl Facts for Counted {
        fn below(&self) -> Option<&dyn Facts> {
            None
        }

        fn bytes_acknowledged(&self) -> Option<u64> {
            self.1.set(self.1.get() + 1);
            Some(self.0.get())
        }
    }

    fn signs() -> TargetProgress {
        TargetProgress::new(Rc::new(Counted::default()))
    }

    #[tokio::test(start_paused = true)]
    async fn tunnel_to_a_silent_deaf_target_ends() {
        for (capacity, closed, limit) in [(5, false, STUCK), (5, true, CLOSED), (16, false, CLOSED)]
        {
            // With a capacity of 16, the second piece is on its way, behind which the end came.
            let (near, _far) = tokio::io::duplex(capacity);
            let begin = Instant::now();
            let ended = carry_up(near, body(closed), &signs(), Patience::Limited).await;
            assert_eq!(ended.map_err(|error| error.kind), Err(Kind::Timeout));
            assert_eq!(begin.elapsed(), limit);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tunnel_without_a_limit_waits_for_its_target() {
        let (near, _far) = tokio::io::duplex(5);
        let signs = signs();
        let carried = carry_up(near, body(true), &signs, Patience::Unlimited);
        assert!(tokio::time::timeout(STUCK * 9, carried).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn tunnel_to_a_slow_target_lasts() {
        for (closed, pause) in [(false, STUCK / 2), (true, CLOSED / 2)] {
            let (near, mut far) = tokio::io::duplex(5);
            let counted = Rc::new(Counted::default());
            let signs = TargetProgress::new(Rc::clone(&counted) as _);
            let target = async {
                for _ in 0..5 {
                    tokio::time::sleep(pause).await;
                    signs.received.set(signs.received.get() + 1);
                }
                for _ in 0..5 {
                    tokio::time::sleep(pause).await;
                    counted.0.set(counted.0.get() + 1);
                }
                signs.waits_for_near.set(true);
                tokio::time::sleep(STUCK * 3).await;
                signs.waits_for_near.set(false);
                let mut bytes = Vec::new();
                far.read_to_end(&mut bytes).await.map(|_| bytes.len())
            };
            let carried = carry_up(near, body(closed), &signs, Patience::Limited);
            let (ended, taken) = tokio::join!(carried, target);
            assert_eq!(ended.map_err(|error| error.kind), Ok(true));
            assert_eq!(taken.ok(), Some(20));
        }
    }

    #[tokio::test]
    async fn tunnel_asks_for_no_progress_while_target_reads() {
        let (near, _far) = tokio::io::duplex(100);
        let counted = Rc::new(Counted::default());
        let signs = TargetProgress::new(Rc::clone(&counted) as _);
        let ended = carry_up(near, body(false), &signs, Patience::Limited).await;
        assert_eq!(ended.map_err(|error| error.kind), Ok(true));
        assert_eq!(counted.1.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_tunnel_lasts() {
        /// A body that brings nothing.
        struct Idle;

        impl Chunks for Idle {
            fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
                Poll::Pending
            }
        }

        let (near, _far) = tokio::io::duplex(5);
        let signs = signs();
        let carried = carry_up(near, Body::new(Idle, None), &signs, Patience::Limited);
        assert!(tokio::time::timeout(STUCK * 9, carried).await.is_err());
    }

    /// Opens a tunnel over a connection that takes nothing after its response and the first bytes.
    /// The near end takes nothing for a while after these. Returns the time until the tunnel ends,
    /// or `None` if it lasts.
    async fn ends_after(form: Form, early: &'static [u8]) -> Option<Duration> {
        /// A body that always has more.
        struct Flood;

        impl Chunks for Flood {
            fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
                Poll::Ready(Some(Ok(Chunk::Data(Bytes::from_static(&[7; 100])))))
            }
        }

        let (near, mut far) = Path::pair(256);
        let client = Http1Client::over(
            Http1Session::new(form, crate::role_name::RoleName::Gateway),
            near,
        );
        let mut exchange = Exchange::internal(RequestHead::connect("site.example:81"));
        exchange.body = Body::new(Flood, None);
        let mut reply =
            Reply::generate(
                |mut sink| async move { client.exchange(&mut exchange, &mut sink).await },
            );
        let respond = async {
            far.read_exact(&mut [0; 10]).await.expect("a request");
            let response = [b"HTTP/1.1 200 OK\r\n\r\n", early].concat();
            far.write_all(&response).await.expect("room");
        };
        let (head, ()) = tokio::join!(reply.part(), respond);
        assert!(matches!(head, Some(Ok(Part::Head(_)))), "{head:?}");
        let begin = Instant::now();
        if !early.is_empty() {
            let part = reply.part().await;
            assert!(
                matches!(&part, Some(Ok(Part::Data(data))) if data == early),
                "{part:?}"
            );
            tokio::time::sleep(STUCK * 2).await;
        }
        let ended = tokio::time::timeout(STUCK * 9, reply.part()).await.ok()?;
        let error = ended.expect("no regular end").expect_err("no data");
        assert_eq!((error.kind, error.side), (Kind::Timeout, Side::Origin));
        Some(begin.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_end_that_dials_targets_has_a_limit() {
        let local = tokio::task::LocalSet::new();
        let tunnels = local.run_until(async {
            assert_eq!(ends_after(Form::Origin, b"").await, Some(STUCK));
            assert_eq!(ends_after(Form::Absolute, b"").await, None);
            let after_early = ends_after(Form::Origin, b"early").await;
            assert!(after_early > Some(STUCK * 2), "{after_early:?}");
        });
        tunnels.await;
    }
}
