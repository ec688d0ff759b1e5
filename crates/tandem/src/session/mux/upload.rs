//! The task that sends the body of a request into its stream.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tandem_http::{Reason, StreamId};

use super::Shared;
use crate::error::{Retry, Side};
use crate::exchange::{Body, Chunk};

/// The time without data from the near end after which a half-closed tunnel is given up.
const HALF_CLOSED: Duration = Duration::from_secs(60);

/// The progress of a task that sends a request body.
#[derive(Default)]
pub(super) struct Uploaded {
    pub(super) done: Cell<bool>,
    /// The number of pieces taken from the body.
    moved: Cell<u64>,
    /// True while the task waits for room in the stream.
    blocked: Cell<bool>,
    notify: tokio::sync::Notify,
}

impl Uploaded {
    /// Returns the state of a request without a body.
    pub(super) fn none() -> Self {
        Self {
            done: Cell::new(true),
            ..Self::default()
        }
    }

    pub(super) fn finish(&self) {
        self.done.set(true);
        self.notify.notify_one();
    }

    /// Resolves when the upload ends, or when its source has been silent for [`HALF_CLOSED`]. A
    /// tunnel with a closed far end would otherwise stay open without use.
    pub(super) async fn until_over(&self) {
        while !self.done.get() {
            let moved = self.moved.get();
            let ended = tokio::time::timeout(HALF_CLOSED, self.notify.notified()).await;
            if ended.is_err() && self.moved.get() == moved && !self.blocked.get() {
                return;
            }
        }
    }
}

/// Sends a body into its stream at the rate that the stream accepts.
pub(super) async fn upload(shared: Rc<Shared>, id: StreamId, mut body: Body, uploaded: &Uploaded) {
    let mut left = body.length();
    loop {
        uploaded.blocked.set(true);
        if std::future::poll_fn(|cx| shared.poll_room(id, cx.waker()))
            .await
            .is_err()
        {
            return;
        }
        uploaded.blocked.set(false);
        let chunk = std::future::poll_fn(|cx| body.poll_chunk(cx)).await;
        uploaded.moved.set(uploaded.moved.get() + 1);
        let mut core = shared.core.borrow_mut();
        let ended = match chunk {
            Some(Ok(Chunk::Data(data))) => {
                // With a known length, the last data frame can carry the end of the stream.
                left = left.map(|left| left.saturating_sub(data.len() as u64));
                core.send_data(id, data, left == Some(0));
                shared.watch.given(&*core, id);
                left == Some(0)
            }
            Some(Ok(Chunk::Trailers(fields))) => {
                core.send_trailers(id, &fields);
                true
            }
            None => {
                core.send_data(id, Bytes::new(), true);
                true
            }
            Some(Err(error)) => {
                core.reset(id, Reason::Cancel);
                drop(core);
                let mut streams = shared.streams.borrow_mut();
                // A response that is already complete stays valid.
                if let Some(stream) = streams.get_mut(&id).filter(|stream| !stream.complete) {
                    stream.fail(error.at(Side::Client).with_retry(Retry::Never));
                }
                drop(streams);
                shared.wake_driver();
                return;
            }
        };
        drop(core);
        shared.wake_driver();
        if ended {
            return;
        }
    }
}
