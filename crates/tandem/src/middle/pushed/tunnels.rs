//! Tunnels and WebSockets, by which a page may change the state of its site unseen.
//!
//! The stage watches the bytes of the browser, and the first bytes that answer them. A WebSocket
//! counts as an unsafe request of the page that its `Origin` names. The bytes of another tunnel
//! name no page. The first flight of a handshake (TLS, QUIC) changes nothing.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use tandem_http::RequestHead;
use tandem_http::upgrade::WEBSOCKET;

use super::PushedShared;
use crate::error::Error;
use crate::exchange::{Body, Chunk, Chunks, Exchange, Isolation, Part, Parts, Reply};

/// The first byte of a TLS record with a handshake message (RFC 8446 section 5.1).
const TLS_HANDSHAKE: u8 = 22;

/// Sends the exchange of a tunnel on, and watches its bytes.
pub(super) fn forward(shared: &Rc<PushedShared>, mut exchange: Exchange) -> Reply {
    if exchange.body.is_empty() {
        return shared.next.call(exchange);
    }
    let watch = Rc::new(TunnelWatch {
        shared: Rc::clone(shared),
        isolation: exchange.isolation.clone(),
        request: Arc::clone(&exchange.request),
        progress: Cell::default(),
    });
    let length = exchange.body.length();
    let upward = Upward {
        source: exchange.body,
        watch: Rc::clone(&watch),
    };
    exchange.body = Body::new(upward, length);
    Reply::new(Downward {
        reply: shared.next.call(exchange),
        watch,
    })
}

/// The watch over the bytes of one tunnel.
struct TunnelWatch {
    shared: Rc<PushedShared>,
    isolation: Isolation,
    request: Arc<RequestHead>,
    progress: Cell<Progress>,
}

/// The bytes of a tunnel so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Progress {
    /// No byte has passed.
    #[default]
    Silent,
    /// The browser has begun a handshake.
    Greeting,
    /// The browser has sent bytes that are not answered yet.
    Asked,
    /// The last bytes came from the other end.
    Answered,
}

impl Progress {
    /// Returns the progress after bytes of the browser, and whether they may change a site.
    fn after_upward(self, first: Option<u8>, is_udp: bool) -> (Self, bool) {
        match self {
            Self::Silent if is_udp || first == Some(TLS_HANDSHAKE) => (Self::Greeting, false),
            Self::Greeting => (Self::Greeting, false),
            _ => (Self::Asked, true),
        }
    }

    /// Returns the progress after bytes of the other end, and whether they may show a change.
    const fn after_downward(self) -> (Self, bool) {
        (Self::Answered, matches!(self, Self::Asked))
    }
}

impl TunnelWatch {
    fn on_upward(&self, data: &[u8]) {
        let is_udp = tandem_http::connect_udp::is_request(&self.request);
        let first = data.first().copied();
        let after = self.progress.get().after_upward(first, is_udp);
        self.go_on(after);
    }

    fn on_downward(&self) {
        self.go_on(self.progress.get().after_downward());
    }

    fn go_on(&self, (progress, is_change): (Progress, bool)) {
        self.progress.set(progress);
        if !is_change {
            return;
        }
        let protocol = self.request.protocol.as_deref();
        match protocol.is_some_and(|it| it.eq_ignore_ascii_case(WEBSOCKET)) {
            true => self
                .shared
                .note_unsafe_request(&self.isolation, &self.request),
            false => self.shared.note_hidden_change(&self.isolation),
        }
    }
}

/// The bytes of the browser.
struct Upward {
    source: Body,
    watch: Rc<TunnelWatch>,
}

impl Chunks for Upward {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        let chunk = std::task::ready!(self.source.poll_chunk(cx));
        if let Some(Ok(Chunk::Data(data))) = &chunk {
            self.watch.on_upward(data);
        }
        Poll::Ready(chunk)
    }

    fn has_arrived(&self) -> bool {
        self.source.has_arrived()
    }
}

/// The reply, with the bytes of the other end.
struct Downward {
    reply: Reply,
    watch: Rc<TunnelWatch>,
}

impl Parts for Downward {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let part = std::task::ready!(self.reply.poll_part(cx));
        if let Some(Ok(Part::Data(_))) = &part {
            self.watch.on_downward();
        }
        Poll::Ready(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnel_changes_sites_after_its_handshake() {
        let asked = (Progress::Asked, true);
        let greeting = (Progress::Greeting, false);
        for (first, is_udp, expected) in [
            (TLS_HANDSHAKE, false, greeting),
            (TLS_HANDSHAKE, true, greeting),
            (b'P', true, greeting),
            (b'P', false, asked),
        ] {
            let found = Progress::Silent.after_upward(Some(first), is_udp);
            assert_eq!(found, expected, "{first} {is_udp}");
        }
        assert_eq!(Progress::Greeting.after_upward(Some(1), false), greeting);
        assert_eq!(
            Progress::Greeting.after_downward(),
            (Progress::Answered, false)
        );
        let after = Progress::Answered.after_upward(Some(TLS_HANDSHAKE), false);
        assert_eq!(after, asked);
        assert_eq!(Progress::Asked.after_downward(), (Progress::Answered, true));
        assert_eq!(
            Progress::Answered.after_downward(),
            (Progress::Answered, false)
        );
    }
}
