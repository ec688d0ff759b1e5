//! A session over a carrier of many streams: HTTP/1.1 with one exchange on each stream.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;

use tandem::carrier::{Carrier, Direction, Streams};
use tandem::error::{Error, Side};
use tandem::exchange::{Exchange, Peer, Sink};
use tandem::session::http1::{Http1Client, Http1Server, Http1Session};
use tandem::session::{Connected, Drain, Session, SessionEvents, SessionState};
use tandem::stage::Stage;
use tandem::transport::LocalBoxFuture;
use tokio::sync::Notify;

/// HTTP/1.1 with one exchange on each stream.
#[derive(Clone)]
pub(super) struct StreamSession {
    pub(super) http1: Http1Session,
}

impl Session for StreamSession {
    fn connect(&self, dial: LocalBoxFuture<'static, Result<Carrier, Error>>) -> Rc<dyn Connected> {
        let asking = Rc::new(Asking {
            http1: self.http1.clone(),
            carrier: RefCell::new(None),
            dialled: Notify::new(),
            active: Cell::new(0),
        });
        let this = Rc::clone(&asking);
        tokio::task::spawn_local(async move {
            let streams = dial.await.and_then(Carrier::into_streams);
            *this.carrier.borrow_mut() = Some(streams);
            this.dialled.notify_waiters();
        });
        asking
    }

    fn serve(
        &self,
        carrier: Carrier,
        peer: Peer,
        stage: Rc<dyn Stage>,
        drain: Drain,
    ) -> LocalBoxFuture<'static, Result<(), Error>> {
        let http1 = self.http1.clone();
        Box::pin(async move {
            let streams = carrier.into_streams()?;
            let mut draining = std::pin::pin!(drain.begun());
            loop {
                let stream = tokio::select! {
                    () = &mut draining => return Ok(()),
                    stream = poll_fn(|cx| streams.poll_accept(cx)) => stream?,
                };
                let Some(stream) = stream else { return Ok(()) };
                let path = stream.into_path(streams.facts()).expect("both halves");
                let server = Http1Server::new(http1.clone(), path, peer, Rc::clone(&stage));
                let drain = drain.clone();
                // The failure of one stream does not affect the others.
                tokio::task::spawn_local(async move { drop(server.run(drain).await) });
            }
        })
    }
}

struct Asking {
    http1: Http1Session,
    carrier: RefCell<Option<Result<Rc<dyn Streams>, Error>>>,
    dialled: Notify,
    active: Cell<usize>,
}

impl Asking {
    async fn streams(&self) -> Result<Rc<dyn Streams>, Error> {
        loop {
            let dialled = self.dialled.notified();
            if let Some(streams) = &*self.carrier.borrow() {
                return streams.clone();
            }
            dialled.await;
        }
    }
}

impl Connected for Asking {
    fn run<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        sink: &'a mut Sink,
    ) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let streams = self.streams().await?;
            let mut stream = poll_fn(|cx| streams.poll_open(Direction::Bidirectional, cx)).await?;
            let send = stream.send.as_mut().expect("both halves");
            send.set_priority(exchange.priority.get().priority);
            let path = stream.into_path(streams.facts()).expect("both halves");
            self.active.set(self.active.get() + 1);
            let result = Http1Client::over(self.http1.clone(), path)
                .run(exchange, sink)
                .await;
            self.active.set(self.active.get() - 1);
            result.map_err(|error| error.at(Side::Peer))
        })
    }

    fn drain(&self) {}
}

impl SessionState for Asking {
    fn is_ready(&self) -> bool {
        !self.is_closed()
    }

    fn is_closed(&self) -> bool {
        matches!(&*self.carrier.borrow(), Some(Err(_)))
    }

    fn is_established(&self) -> bool {
        matches!(&*self.carrier.borrow(), Some(Ok(_)))
    }

    fn active(&self) -> usize {
        self.active.get()
    }
}

impl SessionEvents for Asking {
    fn established<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async { self.streams().await.map(drop) })
    }
}
