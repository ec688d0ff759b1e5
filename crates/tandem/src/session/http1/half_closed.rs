//! Distinguishes a client that has closed only its side of the connection from one that has gone.
//! TCP shows a FIN in both cases (RFC 9293 section 3.6). Only bytes sent to a closed socket are
//! answered with a reset.
//!
//! Browsers cancel a request by closing the connection, so waiting for the response regardless
//! would hold streams and origin connections without use. Simple tools close their side after the
//! request and wait. The writer therefore sends the first byte of the status line, which is the
//! same in every response, and this module waits for the reset.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::path::Facts;

/// The time without a byte sent after which a half-closed client counts as gone. It starts after
/// the head, when no byte can be sent as a probe.
const QUIET: Duration = Duration::from_secs(60);

/// The watch over a client that has ended its side.
pub(super) struct HalfClosed {
    reset: Pin<Box<dyn Future<Output = ()>>>,
    quiet: Pin<Box<Sleep>>,
}

impl HalfClosed {
    /// Begins to watch the client at the other end of the path with these facts.
    pub(super) fn watch(path: &dyn Facts) -> Self {
        Self {
            reset: path
                .broken()
                .unwrap_or_else(|| Box::pin(std::future::pending())),
            quiet: Box::pin(tokio::time::sleep(QUIET)),
        }
    }

    /// Notes that bytes were sent to the client.
    pub(super) fn note_sent(&mut self) {
        self.quiet.as_mut().reset(Instant::now() + QUIET);
    }

    /// Resolves once the client has reset the connection. If `head_sent`, it also resolves after a
    /// minute in which no byte was sent.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>, head_sent: bool) -> Poll<()> {
        if self.reset.as_mut().poll(cx).is_ready()
            || (head_sent && self.quiet.as_mut().poll(cx).is_ready())
        {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}
