//! Tests of late binding with an origin whose dials and responses wait for the test.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tandem_http::{RequestHead, Scheme};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Semaphore, oneshot};

use super::super::{Limits, Mode, ToOrigin};
use crate::back::doubles::{body_of, run};
use crate::back::tests_over_paths;
use crate::error::{Error, Side};
use crate::exchange::{Exchange, Peer};
use crate::path::Path;
use crate::stage::Stage;
use crate::transport::doubles::{FakeDial, served};

/// An origin over HTTP/1.1. Its dials and its responses wait for the test.
struct Waiting {
    dials: RefCell<Vec<oneshot::Sender<Result<(), Error>>>>,
    dialled: Cell<usize>,
    /// A permit lets one response go.
    responses: Semaphore,
    /// The number of requests that have arrived.
    requests: Cell<usize>,
}

impl Waiting {
    fn new() -> Rc<Self> {
        Rc::new(Self {
            dials: RefCell::default(),
            dialled: Cell::new(0),
            responses: Semaphore::new(0),
            requests: Cell::default(),
        })
    }

    /// Dials, until the test ends the dial.
    async fn dial(self: Rc<Self>) -> Result<Path, Error> {
        self.dialled.set(self.dialled.get() + 1);
        let (end, ended) = oneshot::channel();
        self.dials.borrow_mut().push(end);
        ended.await.expect("the test ends each dial")?;
        Ok(served(|far| serve(far, self)))
    }

    /// Ends the oldest dial.
    fn end_dial(&self, result: Result<(), Error>) {
        let dial = self.dials.borrow_mut().remove(0);
        dial.send(result).expect("a dial that goes on");
    }
}

/// Serves requests without bodies until the end of the connection.
async fn serve(mut path: Path, origin: Rc<Waiting>) -> io::Result<()> {
    let mut input = Vec::new();
    loop {
        while !input.ends_with(b"\r\n\r\n") {
            if path.read_buf(&mut input).await? == 0 {
                return Ok(());
            }
        }
        input.clear();
        origin.requests.set(origin.requests.get() + 1);
        origin.responses.acquire().await.expect("open").forget();
        path.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .await?;
        path.flush().await?;
    }
}

fn to_origin(origin: &Rc<Waiting>) -> ToOrigin {
    let origin = Rc::clone(origin);
    let transport = FakeDial::new(move |_| Rc::clone(&origin).dial());
    tests_over_paths::to_origin(Mode::Forward, transport, Limits::default())
}

/// Makes a request of session 1. The flag tells when its response has arrived.
fn ask(stage: &ToOrigin) -> (tokio::task::JoinHandle<()>, Rc<Cell<bool>>) {
    let reply = stage.call(Exchange {
        peer: Peer {
            session: 1,
            ..Peer::none()
        },
        ..Exchange::internal(RequestHead::get(Scheme::Http, "site.example", "/"))
    });
    let done = Rc::new(Cell::new(false));
    let is_done = Rc::clone(&done);
    let task = tokio::task::spawn_local(async move {
        let body = body_of(reply).await.expect("a complete response");
        is_done.set(body == b"ok");
    });
    (task, done)
}

/// Lets all tasks run until each of them waits.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// Brings a second exchange to a connection that the first has used. The dial of the second goes
/// on. Returns the flags of both.
async fn bound_late(origin: &Waiting, stage: &ToOrigin) -> [Rc<Cell<bool>>; 2] {
    let (_, first) = ask(stage);
    settle().await;
    origin.end_dial(Ok(()));
    settle().await;
    let (_, second) = ask(stage);
    settle().await;
    assert_eq!((origin.dialled.get(), origin.requests.get()), (2, 1));
    origin.responses.add_permits(1);
    settle().await;
    assert!(first.get() && !second.get());
    assert_eq!(origin.requests.get(), 2, "over the first connection");
    [first, second]
}

#[test]
fn exchange_takes_a_connection_that_becomes_idle() {
    run(async {
        let origin = Waiting::new();
        let stage = to_origin(&origin);
        let [_, second] = bound_late(&origin, &stage).await;
        // The next exchange waits for the spare dial.
        let (_, third) = ask(&stage);
        settle().await;
        assert_eq!(origin.dialled.get(), 2);
        origin.end_dial(Ok(()));
        settle().await;
        assert_eq!(origin.requests.get(), 3, "over the second connection");
        origin.responses.add_permits(2);
        settle().await;
        assert!(second.get() && third.get());
    });
}

#[test]
fn exchange_dials_itself_after_its_spare_has_failed() {
    run(async {
        let origin = Waiting::new();
        let stage = to_origin(&origin);
        let _flags = bound_late(&origin, &stage).await;
        let (_, third) = ask(&stage);
        let (_, fourth) = ask(&stage);
        settle().await;
        assert_eq!(origin.dialled.get(), 3, "one spare serves one exchange");
        origin.end_dial(Err(Error::io(
            &io::ErrorKind::ConnectionRefused.into(),
            Side::Origin,
        )));
        settle().await;
        assert_eq!(origin.dialled.get(), 4);
        origin.end_dial(Ok(()));
        origin.end_dial(Ok(()));
        origin.responses.add_permits(3);
        settle().await;
        assert!(third.get() && fourth.get());
    });
}

#[test]
fn cancelled_exchange_passes_its_connection_on() {
    run(async {
        let origin = Waiting::new();
        let stage = to_origin(&origin);
        let _flags = bound_late(&origin, &stage).await;
        let (third, _) = ask(&stage);
        let (_, fourth) = ask(&stage);
        settle().await;
        assert_eq!(origin.dialled.get(), 3);
        // The third relies on the spare. Without it, the next exchange may rely on it.
        third.abort();
        settle().await;
        let (_, fifth) = ask(&stage);
        settle().await;
        assert_eq!(origin.dialled.get(), 3);
        origin.end_dial(Ok(()));
        origin.end_dial(Ok(()));
        origin.responses.add_permits(3);
        settle().await;
        assert!(fourth.get() && fifth.get());
    });
}

#[test]
fn unused_connection_serves_later_or_is_closed() {
    run(async {
        for (pause, dials) in [(1, 2), (6, 3)] {
            let origin = Waiting::new();
            let stage = to_origin(&origin);
            let [_, second] = bound_late(&origin, &stage).await;
            origin.end_dial(Ok(()));
            settle().await;
            tokio::time::sleep(Duration::from_secs(pause)).await;
            let (_, third) = ask(&stage);
            settle().await;
            assert_eq!(origin.dialled.get(), dials, "after {pause} s");
            if dials == 3 {
                origin.end_dial(Ok(()));
            }
            origin.responses.add_permits(2);
            settle().await;
            assert!(second.get() && third.get());
        }
    });
}
