//! Tells a client that has only ended its side of the connection from one that is gone. TCP shows
//! a FIN in both cases (RFC 9293 section 3.6); only bytes sent to a closed socket are answered by a
//! reset.
//!
//! Browsers cancel a request by closing, so that waiting for the answer regardless would hold
//! streams and origin connections for nothing. Simple tools end their side after the request and
//! wait. The writer therefore sends the first byte of the status line, which is the same in every
//! answer, and this module waits for the reset.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::path::Path;

/// Time without a byte after which a half-closed client is taken to be gone. It counts once the
/// head is out, when no byte can be sent that would tell.
const QUIET: Duration = Duration::from_secs(60);

/// The watch over a client that has ended its side.
pub(super) struct HalfClosed {
    reset: Pin<Box<dyn Future<Output = ()>>>,
    quiet: Pin<Box<Sleep>>,
}

impl HalfClosed {
    /// Begins to watch the client at the other end of `path`.
    pub(super) fn watch(path: &Path) -> Self {
        Self {
            reset: path
                .facts()
                .broken()
                .unwrap_or_else(|| Box::pin(std::future::pending())),
            quiet: Box::pin(tokio::time::sleep(QUIET)),
        }
    }

    /// Notes that the client has been sent something.
    pub(super) fn note_sent(&mut self) {
        self.quiet.as_mut().reset(Instant::now() + QUIET);
    }

    /// Resolves once the client has reset the connection or, where `head_sent`, has been sent
    /// nothing for a minute.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>, head_sent: bool) -> Poll<()> {
        if self.reset.as_mut().poll(cx).is_ready()
            || (head_sent && self.quiet.as_mut().poll(cx).is_ready())
        {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}
