//! Tests of the streams that a session shares with its driver.

use bytes::{Buf, Bytes};
use tandem_http::pushed::MAX_WAITING;
use tandem_http::{ByteMux, RequestHead, ResponseHead, Role, Scheme, SendBuf, h2};

use super::stream::JOINED;
use super::*;
use crate::error::Kind;
use crate::session::Interim;

/// Moves the output of one end into the other.
fn pass(from: &mut dyn ByteMux, to: &mut dyn ByteMux) {
    let mut out = SendBuf::new();
    while from.wants_output() {
        from.poll_output(&mut out, usize::MAX);
    }
    to.handle_input(Instant::now(), &out.copy_to_bytes(out.remaining()))
        .expect("a session that goes on");
}

/// A client with one request under way.
struct Asked {
    shared: Rc<Shared>,
    core: Rc<RefCell<h2::Connection>>,
    /// The server's core, which has the request.
    peer: h2::Connection,
    id: StreamId,
}

fn asked() -> Asked {
    let config = MuxConfig {
        push: true,
        ..MuxConfig::new(Role::Client)
    };
    let core = Rc::new(RefCell::new(h2::Connection::new(config)));
    let shared = Shared::new(Rc::clone(&core) as _, Multiplexed::H2);
    let mut peer = h2::Connection::new(MuxConfig::new(Role::Server));
    let request = RequestHead::get(Scheme::Http, "site.example", "/");
    let id = shared
        .core
        .borrow_mut()
        .open(&request, true, Priority::default())
        .expect("room for a stream");
    shared.streams.borrow_mut().insert(id, Stream::default());
    pass(&mut *core.borrow_mut(), &mut peer);
    Asked {
        shared,
        core,
        peer,
        id,
    }
}

impl Asked {
    /// Delivers the output of the server to the streams of the client.
    fn arrive(&mut self) {
        pass(&mut self.peer, &mut *self.core.borrow_mut());
        loop {
            let event = self.shared.core.borrow_mut().poll_event();
            let Some(event) = event else { return };
            self.shared.dispatch(event, Role::Client);
        }
    }
}

#[test]
fn unread_push_is_forgotten_with_its_parent() {
    let mut asked = asked();
    let id = asked.id;
    let request = RequestHead::get(Scheme::Http, "site.example", "/style.css");
    let pushed = asked
        .peer
        .push(id, &request, Priority::default())
        .expect("a client that takes pushes");
    asked.peer.respond(pushed, &ResponseHead::new(200), false);
    asked
        .peer
        .send_data(pushed, Bytes::from_static(b"p {}"), false);
    asked.arrive();
    assert_eq!(asked.shared.streams.borrow().len(), 2);
    asked.shared.forget(id, Some(Reason::Cancel));
    assert!(asked.shared.streams.borrow().is_empty());
    assert_eq!(asked.shared.core.borrow().active(), 0);
}

#[test]
fn stream_joins_single_bytes_into_pieces() {
    let mut asked = asked();
    let id = asked.id;
    let body: Bytes = (0..20_000_u32).map(|i| (i % 251) as u8).collect();
    asked.peer.respond(id, &ResponseHead::new(200), false);
    for at in 0..body.len() {
        asked
            .peer
            .send_data(id, body.slice(at..=at), at + 1 == body.len());
        asked.arrive();
    }
    let mut streams = asked.shared.streams.borrow_mut();
    let waiting = streams
        .remove(&id)
        .expect("a stream that nobody forgot")
        .inbound;
    assert!(
        waiting.len() <= 2 + body.len() / JOINED,
        "{}",
        waiting.len()
    );
    let pieces = waiting.into_iter().filter_map(|inbound| match inbound {
        Inbound::Data(data) => Some(data),
        _ => None,
    });
    assert_eq!(pieces.flatten().collect::<Vec<_>>(), body);
}

impl Asked {
    /// Pushes answers without content. Each head has a field of 50,000 bytes.
    fn push_large_heads(&mut self, count: usize) {
        let field = ("x", "y".repeat(50_000));
        let mut request = RequestHead::get(Scheme::Http, "site.example", "/pushed");
        request.fields.push(field.0, &field.1);
        let mut response = ResponseHead::new(304);
        response.fields.push(field.0, &field.1);
        for _ in 0..count {
            let pushed = self.peer.push(self.id, &request, Priority::default());
            let pushed = pushed.expect("a client that takes pushes");
            self.peer.respond(pushed, &response, true);
            self.arrive();
        }
    }

    /// Reads all input of a stream, and that of the pushes in it.
    fn read(&self, id: StreamId) -> usize {
        let mut count = 0;
        while let Poll::Ready(Some(inbound)) = self.shared.poll_inbound(id, Waker::noop()) {
            count += 1;
            if let Inbound::Pushed { id, .. } = inbound {
                count += self.read(id);
                self.shared.forget(id, None);
            }
        }
        count
    }
}

#[test]
fn unread_pushes_of_a_session_are_bounded() {
    let mut asked = asked();
    asked.push_large_heads(100);
    let shared = Rc::clone(&asked.shared);
    let waiting = shared.pushed_heads.waiting();
    assert!(
        waiting > MAX_WAITING / 2 && waiting <= MAX_WAITING,
        "{waiting}"
    );
    assert!(shared.streams.borrow().len() < 70);
    asked.peer.respond(asked.id, &ResponseHead::new(200), false);
    asked.arrive();
    let has_head = |inbound: &Inbound| matches!(inbound, Inbound::Response(_));
    assert!(
        shared.streams.borrow()[&asked.id]
            .inbound
            .iter()
            .any(has_head)
    );
    shared.forget(asked.id, Some(Reason::Cancel));
    assert_eq!(shared.pushed_heads.waiting(), 0);
    assert!(shared.streams.borrow().is_empty());
}

#[test]
fn read_pushes_make_room_for_others() {
    let mut asked = asked();
    for _ in 0..10 {
        asked.push_large_heads(10);
        assert_eq!(asked.read(asked.id), 20);
        assert_eq!(asked.shared.pushed_heads.waiting(), 0);
    }
}

#[test]
fn endless_interim_responses_fail_one_exchange() {
    let mut asked = asked();
    let id = asked.id;
    for _ in 0..100 {
        asked.peer.inform(id, &ResponseHead::new(103));
    }
    asked.arrive();
    let streams = asked.shared.streams.borrow();
    let waiting = &streams[&id].inbound;
    assert_eq!(waiting.len(), Interim::MOST.heads + 1);
    assert!(matches!(waiting.back(), Some(Inbound::Failed(error)) if error.kind == Kind::Protocol));
    assert!(asked.shared.core.borrow().is_open() && asked.shared.core.borrow().active() == 0);
}
