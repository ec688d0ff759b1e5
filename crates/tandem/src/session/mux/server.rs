//! The server end of a multiplexed session. Each request becomes an exchange, and a [`Pump`] sends
//! each reply into its stream.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tandem_http::message::content_length;
use tandem_http::{Event, Method, Priority, Reason, Role, StreamId};
use tokio::time::{Sleep, sleep};

use super::core::Core;
use super::driver::{Driver, Owner, Pace};
use super::over_streams::StreamsDriver;
use super::{Inbound, MuxSession, Shared, Stream, early};
use crate::carrier::{Carrier, LocalBoxFuture};
use crate::error::{Error, Side};
use crate::exchange::{Body, Chunk, Chunks, Exchange, Isolation, Part, Peer, PushedPart, Reply};
use crate::failure;
use crate::moment;
use crate::priority::{Precedence, PriorityWatch, SharedPriority};
use crate::probe::points::HEADERS_ENCODE;
use crate::role_name::RoleName;
use crate::session::{Drain, check_protocol};
use crate::stage::Stage;

/// Serves one carrier until its session ends.
pub(super) fn serve(
    session: &MuxSession,
    carrier: Carrier,
    peer: Peer,
    stage: Rc<dyn Stage>,
    drain: Drain,
) -> LocalBoxFuture<'static, Result<(), Error>> {
    let core = session.new_core(Role::Server);
    let shared = Shared::new(core.mux(), session.protocol);
    let owner = ServerOwner {
        shared: Rc::clone(&shared),
        peer,
        stage,
        who: session.who,
    };
    let pace = Pace {
        timeouts: session.timeouts.clone(),
        write_limit: session.write_limit,
    };
    let (role, drain) = (Role::Server, Some(drain));
    match core {
        Core::Bytes(core) => match carrier.into_bytes() {
            Ok(path) => {
                let mut driver = Driver::new(shared, core, path, owner, role, pace, drain);
                Box::pin(async move { driver.run().await })
            }
            Err(error) => Box::pin(std::future::ready(Err(error))),
        },
        Core::Streams(core) => match carrier.into_streams() {
            Ok(streams) => {
                let mut driver =
                    StreamsDriver::new(shared, core, streams, owner, role, pace, drain);
                Box::pin(async move { driver.run().await })
            }
            Err(error) => Box::pin(std::future::ready(Err(error))),
        },
    }
}

/// The server end as its driver sees it.
struct ServerOwner {
    shared: Rc<Shared>,
    peer: Peer,
    stage: Rc<dyn Stage>,
    /// The name of this proxy in its own responses.
    who: RoleName,
}

impl Owner for ServerOwner {
    fn handle_event(&mut self, event: Event) {
        let Event::Request {
            id,
            head,
            end,
            priority,
        } = event
        else {
            return;
        };
        self.shared.streams.borrow_mut().insert(
            id,
            Stream {
                complete: end,
                ..Stream::default()
            },
        );
        let body = if end {
            Body::empty()
        } else {
            let length = content_length(&head.fields)
                .ok()
                .flatten()
                .filter(|_| !head.is_connect());
            Body::new(
                StreamBody {
                    shared: Rc::clone(&self.shared),
                    id,
                },
                length,
            )
        };
        let bodyless = head.method == Method::Head;
        let peer = Peer {
            push: self.shared.core.borrow().peer_takes_pushes(),
            ..self.peer
        };
        let priority = SharedPriority::new(Precedence::request(priority));
        let refused = check_protocol(&head).err();
        let exchange = Exchange {
            request: Arc::new(head),
            body,
            isolation: Isolation::none(),
            peer,
            priority: priority.clone(),
        };
        let pump = Pump {
            shared: Rc::clone(&self.shared),
            id,
            priority: priority.watch(),
            reply: match refused {
                Some(error) => Reply::fail(error),
                None => early::call(&self.stage, &self.shared, exchange),
            },
            who: self.who,
            held: None,
            bodyless,
            pushed: false,
            head_sent: false,
            finished: false,
            unsent_timer: None,
        };
        pump.spawn();
    }

    fn ends_when_idle(&self) -> bool {
        false
    }
}

/// The body of a request, read from its stream.
struct StreamBody {
    shared: Rc<Shared>,
    id: StreamId,
}

impl Chunks for StreamBody {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        let inbound = ready!(self.shared.poll_inbound(self.id, cx.waker()));
        Poll::Ready(match inbound {
            Some(Inbound::Data(data)) => Some(Ok(Chunk::Data(data))),
            Some(Inbound::Trailers(fields)) => Some(Ok(Chunk::Trailers(fields))),
            Some(Inbound::Failed(error)) => Some(Err(error)),
            Some(Inbound::Informational(_) | Inbound::Response(_) | Inbound::Pushed { .. })
            | None => None,
        })
    }

    fn has_arrived(&self) -> bool {
        let streams = self.shared.streams.borrow();
        streams.get(&self.id).is_none_or(|stream| stream.complete)
    }
}

/// Sends the parts of a reply into a stream. The pump stays one part behind, so that the last frame
/// can carry the end of the stream.
struct Pump {
    shared: Rc<Shared>,
    id: StreamId,
    priority: PriorityWatch,
    reply: Reply,
    /// The name of this proxy in its own responses.
    who: RoleName,
    held: Option<Part>,
    /// True for HEAD: the response has no body, not even that of an error page or of a stage that
    /// answers HEAD as it answers GET.
    bodyless: bool,
    /// True for a push. Its failure resets the stream, since an error page would be stored as the
    /// resource.
    pushed: bool,
    head_sent: bool,
    finished: bool,
    /// The timer of the next poll for the unsent data of a push.
    unsent_timer: Option<Pin<Box<Sleep>>>,
}

/// The polling interval for the unsent data of a push.
const UNSENT_INTERVAL: Duration = Duration::from_millis(250);

impl Pump {
    /// Starts the task that sends the reply. The future of an `async fn` would store the pump
    /// twice.
    fn spawn(self) {
        tokio::task::spawn_local(moment::sharing(self, Self::poll));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // A change in the course of this poll wakes the task again.
        let Some(wish) = self.wish(cx) else {
            return Poll::Ready(());
        };
        self.reprioritise(wish, cx);
        if self.unsent_timer.is_some() {
            return self.poll_unsent(cx);
        }
        loop {
            // A reply that is always ready must not fill the queue beyond its limit. The part that
            // is held back can wait, because the queue before it is full.
            let waits_for_room = self.head_sent && !self.finished;
            if waits_for_room && ready!(self.shared.poll_room(self.id, cx.waker())).is_err() {
                return Poll::Ready(());
            }
            match self.reply.poll_part(cx) {
                Poll::Pending => {
                    self.flush_held(false);
                    return Poll::Pending;
                }
                // The other direction of a tunnel may continue.
                Poll::Ready(Some(Ok(Part::Closed))) => self.finish(),
                // A response without a body ends at the first part of the body.
                Poll::Ready(Some(Ok(Part::Data(_) | Part::Trailers(_)))) if self.bodyless => {
                    self.finish();
                    return Poll::Ready(());
                }
                Poll::Ready(Some(Ok(part))) => {
                    self.flush_held(false);
                    self.held = Some(part);
                }
                Poll::Ready(None) => {
                    self.finish();
                    return self.poll_unsent(cx);
                }
                Poll::Ready(Some(Err(error))) => {
                    self.flush_held(false);
                    self.fail(&error);
                    return Poll::Ready(());
                }
            }
        }
    }

    /// Waits until the queued data of a push has left, so that a request can still raise the push.
    fn poll_unsent(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.pushed && self.shared.core.borrow().unsent(self.id).bytes > 0 {
            let new = || Box::pin(sleep(UNSENT_INTERVAL));
            ready!(self.unsent_timer.get_or_insert_with(new).as_mut().poll(cx));
            self.unsent_timer = None;
        }
        Poll::Ready(())
    }

    /// Takes the client's wish for another priority, if it has one. Returns `None` if the stream
    /// was reset or the session is over. Registers the waker, so that a reset wakes this task.
    fn wish(&self, cx: &Context<'_>) -> Option<Option<Priority>> {
        if self.shared.ended.get().is_some() {
            return None;
        }
        let mut streams = self.shared.streams.borrow_mut();
        let stream = streams.get_mut(&self.id)?;
        stream.writer.set(cx.waker());
        (!stream.failed).then(|| stream.priority.take())
    }

    /// Applies a change of priority. The client's wish goes to the shared cell, and from there to
    /// every queue on the way. A change by another stage changes the core's order of sending.
    fn reprioritise(&mut self, wish: Option<Priority>, cx: &Context<'_>) {
        if let Some(priority) = wish {
            // A client raises a push to the urgency of a request that joins it.
            let push = self.priority.get().push && priority > Priority::default();
            self.priority.set(Precedence { push, priority });
        }
        if let Poll::Ready(precedence) = self.priority.poll_changed(cx) {
            self.shared.set_priority(self.id, precedence.priority);
        }
    }

    fn flush_held(&mut self, end: bool) {
        let Some(part) = self.held.take() else { return };
        let mut core = self.shared.core.borrow_mut();
        match part {
            Part::Hints(head) => HEADERS_ENCODE.time(self.id, || core.inform(self.id, &head)),
            Part::Head(head) => {
                HEADERS_ENCODE.time(self.id, || core.respond(self.id, &head, end));
                self.head_sent = true;
                self.finished = end;
            }
            Part::Data(data) => {
                core.send_data(self.id, data, end);
                self.shared.watch.given(&*core, self.id);
                self.finished = end;
            }
            Part::Trailers(fields) => {
                core.send_trailers(self.id, &fields);
                self.finished = true;
            }
            Part::Pushed(pushed) => {
                drop(core);
                push(&self.shared, self.id, *pushed, self.who);
            }
            Part::Closed => {}
        }
        self.shared.wake_driver();
    }

    fn finish(&mut self) {
        self.flush_held(true);
        if !self.finished {
            if self.head_sent {
                self.shared
                    .core
                    .borrow_mut()
                    .send_data(self.id, Bytes::new(), true);
            } else {
                self.shared
                    .core
                    .borrow_mut()
                    .reset(self.id, Reason::Internal);
            }
            self.finished = true;
            self.shared.wake_driver();
        }
    }

    /// Reports a failure. Before the head it becomes an error response. After the head the stream
    /// is reset once its queued body has left. The client then cannot take the body for complete.
    fn fail(&mut self, error: &Error) {
        if self.finished {
            return;
        }
        if self.head_sent {
            let mut core = self.shared.core.borrow_mut();
            core.reset_after_data(self.id, error.reason());
        } else if self.pushed
            // A client of the pair takes this code as a refusal by the gateway, and repeats the
            // request. A browser would repeat it at once, so it gets an error page.
            || (self.who != RoleName::Client
                && error.reason() == Reason::Refused
                && error.side != Side::Origin)
        {
            self.shared.core.borrow_mut().reset(self.id, error.reason());
        } else {
            let (head, body) = failure::response(error, self.who);
            let mut core = self.shared.core.borrow_mut();
            core.respond(self.id, &head, self.bodyless);
            if !self.bodyless {
                core.send_data(self.id, body, true);
            }
        }
        self.finished = true;
        self.shared.wake_driver();
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        // A complete response ends its stream, even while the request body still arrives. A reset
        // would drop the part of the response that is queued in the core.
        self.shared
            .forget(self.id, (!self.finished).then_some(Reason::Cancel));
    }
}

fn push(shared: &Rc<Shared>, parent: StreamId, pushed: PushedPart, who: RoleName) {
    let PushedPart {
        request,
        reply,
        priority,
        ..
    } = pushed;
    let encoding = HEADERS_ENCODE.start();
    let urgency = priority.get().priority;
    let opened = shared.core.borrow_mut().push(parent, &request, urgency);
    let Ok(id) = opened else { return };
    HEADERS_ENCODE.stop(encoding, id);
    shared.streams.borrow_mut().insert(
        id,
        Stream {
            complete: true,
            ..Stream::default()
        },
    );
    let pump = Pump {
        shared: Rc::clone(shared),
        id,
        priority: priority.watch(),
        reply,
        who,
        held: None,
        bodyless: false,
        pushed: true,
        head_sent: false,
        finished: false,
        unsent_timer: None,
    };
    pump.spawn();
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::task::Waker;

    use bytes::Buf;
    use tandem_http::{ByteMux, Mux, MuxConfig, RequestHead, ResponseHead, Scheme, SendBuf, h2};

    use super::super::Multiplexed;
    use super::*;
    use crate::exchange::Parts;

    /// The size of the parts in bytes.
    const PART: usize = 16 << 10;
    /// The number of parts with data.
    const PARTS: usize = 256;

    /// A response with parts that are always ready. It counts the parts with data that were taken.
    struct AlwaysReady {
        head: Option<ResponseHead>,
        taken: Rc<Cell<usize>>,
    }

    impl Parts for AlwaysReady {
        fn below(&self) -> Option<&Reply> {
            None
        }

        fn poll_part(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
            if let Some(head) = self.head.take() {
                return Poll::Ready(Some(Ok(Part::Head(head))));
            }
            let taken = self.taken.get();
            self.taken.set((taken + 1).min(PARTS));
            Poll::Ready((taken < PARTS).then(|| Ok(Part::Data(Bytes::from_static(&[7; PART])))))
        }
    }

    /// Returns the core of a server with its shared part, and the core of its client.
    fn ends() -> (Rc<RefCell<h2::Connection>>, Rc<Shared>, h2::Connection) {
        let server = h2::Connection::new(MuxConfig::new(Role::Server));
        let server = Rc::new(RefCell::new(server));
        let shared = Shared::new(Rc::clone(&server) as _, Multiplexed::H2);
        let client = h2::Connection::new(MuxConfig::new(Role::Client));
        (server, shared, client)
    }

    /// Moves at most `limit` bytes of output of one end into the other.
    fn pass(from: &mut dyn ByteMux, to: &mut dyn ByteMux, limit: usize) {
        let mut out = SendBuf::new();
        from.poll_output(&mut out, limit);
        to.handle_input(
            std::time::Instant::now(),
            &out.copy_to_bytes(out.remaining()),
        )
        .expect("a session that goes on");
    }

    #[test]
    fn pump_takes_no_more_than_the_send_buffer() {
        let most = MuxConfig::new(Role::Server).send_buffer / PART + 2;
        let (core, shared, mut client) = ends();
        let request = RequestHead::get(Scheme::Http, "site.example", "/");
        let id = client
            .open(&request, true, Priority::default())
            .expect("room for a stream");
        pass(&mut client, &mut *core.borrow_mut(), usize::MAX);
        shared.streams.borrow_mut().insert(id, Stream::default());
        let taken = Rc::new(Cell::new(0));
        let priority = SharedPriority::default();
        let mut pump = Pump {
            shared: Rc::clone(&shared),
            id,
            priority: priority.watch(),
            reply: Reply::new(AlwaysReady {
                head: Some(ResponseHead::new(200)),
                taken: Rc::clone(&taken),
            }),
            who: RoleName::Gateway,
            held: None,
            bodyless: false,
            pushed: false,
            head_sent: false,
            finished: false,
            unsent_timer: None,
        };
        let (mut sent, mut cx) = (0, Context::from_waker(Waker::noop()));
        while pump.poll(&mut cx).is_pending() {
            assert!(
                taken.get() <= sent / PART + most,
                "{} parts, {sent} bytes",
                taken.get()
            );
            pass(&mut *core.borrow_mut(), &mut client, 4 << 10);
            while let Some(event) = client.poll_event() {
                if let Event::Data { data, .. } = event {
                    sent += data.len();
                }
            }
        }
        assert_eq!(taken.get(), PARTS);
        assert!(sent >= (PARTS - most) * PART, "{sent}");
    }

    #[test]
    fn pump_sends_no_body_in_response_to_head() {
        let (core, shared, mut client) = ends();
        let mut request = RequestHead::get(Scheme::Http, "site.example", "/");
        request.method = Method::Head;
        let id = client
            .open(&request, true, Priority::default())
            .expect("room for a stream");
        pass(&mut client, &mut *core.borrow_mut(), usize::MAX);
        shared.streams.borrow_mut().insert(id, Stream::default());
        let priority = SharedPriority::default();
        let mut pump = pump_of(&shared, id, &priority);
        (pump.pushed, pump.bodyless) = (false, true);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(pump.poll(&mut cx).is_ready());
        pass(&mut *core.borrow_mut(), &mut client, usize::MAX);
        let events: Vec<_> = std::iter::from_fn(|| client.poll_event()).collect();
        let ends_with_its_head = matches!(events.last(), Some(Event::Response { end: true, .. }));
        assert!(ends_with_its_head, "{events:?}");
    }

    /// A pump of a stream that sends a complete body of [`PART`] bytes.
    fn pump_of(shared: &Rc<Shared>, id: StreamId, priority: &SharedPriority) -> Pump {
        let body = Bytes::from_static(&[7; PART]);
        Pump {
            shared: Rc::clone(shared),
            id,
            priority: priority.watch(),
            reply: Reply::ready(ResponseHead::new(200), body),
            who: RoleName::Gateway,
            held: None,
            bodyless: false,
            pushed: true,
            head_sent: false,
            finished: false,
            unsent_timer: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn complete_push_in_the_queue_can_be_raised() {
        let (core, shared, mut client) = ends();
        let request = RequestHead::get(Scheme::Http, "site.example", "/");
        let mut open = || client.open(&request, true, Priority(6)).expect("room");
        let ids = [open(), open()];
        pass(&mut client, &mut *core.borrow_mut(), usize::MAX);
        let priorities =
            [6, 6].map(|urgency| SharedPriority::new(Precedence::push(Priority(urgency))));
        let mut cx = Context::from_waker(Waker::noop());
        let mut pumps = [0, 1].map(|at| {
            shared
                .streams
                .borrow_mut()
                .insert(ids[at], Stream::default());
            pump_of(&shared, ids[at], &priorities[at])
        });
        for pump in &mut pumps {
            assert!(
                pump.poll(&mut cx).is_pending(),
                "its body waits in the queue"
            );
        }
        priorities[1].set(Precedence::default());
        assert!(pumps[1].poll(&mut cx).is_pending());
        let mut ends = Vec::new();
        for _ in 0..64 {
            pass(&mut *core.borrow_mut(), &mut client, 1 << 10);
            while let Some(event) = client.poll_event() {
                if let Event::Data { id, end: true, .. } = event {
                    ends.push(id);
                }
            }
        }
        assert_eq!(ends, [ids[1], ids[0]]);
        tokio::time::sleep(UNSENT_INTERVAL).await;
        for pump in &mut pumps {
            assert!(pump.poll(&mut cx).is_ready(), "nothing is left");
        }
    }
}
