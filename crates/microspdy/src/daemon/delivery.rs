//! Responses on their way: each stream has a queue of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use tandem_http::{Mux as _, Reason, ResponseHead, StreamId};
use tandem_spdy::Connection;

use super::run::Notice;
use crate::ffi::callbacks::{Block, BodyCallback, Outcome, ResultCallback};
use crate::handles::Handle;
use crate::response::{Body, Response};

/// A response that the program queued.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) object: Arc<Response>,
    pub(crate) response: Handle,
    /// Close the stream after it.
    pub(crate) close: bool,
    pub(crate) result: Option<ResultCallback>,
}

/// How far a response is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// The core knows nothing of it.
    Waiting,
    /// The body comes from a callback. `paused`: it had nothing in this run.
    Pulling { paused: bool },
    /// The core has all of it.
    Given,
    /// The last byte is this one of the session's output.
    Written(u64),
}

/// A response of a stream.
#[derive(Debug)]
struct Item {
    queued: Queued,
    request: Handle,
    progress: Progress,
}

/// The responses of a stream.
#[derive(Debug, Default)]
struct Line {
    /// The head of a response was sent; the bodies of later ones continue its body.
    head_sent: bool,
    items: VecDeque<Item>,
}

/// The responses of a session.
#[derive(Debug, Default)]
pub(super) struct Deliveries {
    lines: BTreeMap<StreamId, Line>,
}

/// A block that a body callback should produce.
#[derive(Debug)]
pub(super) struct Pull {
    pub(super) stream: StreamId,
    pub(super) callback: BodyCallback,
}

impl Item {
    fn notice(self, outcome: Outcome) -> Option<Notice> {
        let open = outcome == Outcome::Success && !self.queued.close;
        Some(Notice::Result {
            callback: self.queued.result?,
            response: self.queued.response,
            request: self.request,
            outcome,
            open,
        })
    }
}

impl Deliveries {
    pub(super) fn push(&mut self, stream: StreamId, request: Handle, queued: Queued) {
        self.lines.entry(stream).or_default().items.push_back(Item {
            queued,
            request,
            progress: Progress::Waiting,
        });
    }

    /// Returns true if the last response of a stream closes it.
    pub(super) fn will_close(&self, stream: StreamId) -> bool {
        self.lines
            .get(&stream)
            .and_then(|line| line.items.back())
            .is_some_and(|item| item.queued.close)
    }

    /// Returns true if a result callback tells the program when the stream ends.
    pub(super) fn reports(&self, stream: StreamId) -> bool {
        self.lines
            .get(&stream)
            .is_some_and(|line| line.items.iter().any(|item| item.queued.result.is_some()))
    }

    /// Returns true if a response waits for the core, or its callback could be called.
    pub(super) fn has_work(&self, core: &Connection) -> bool {
        self.lines
            .iter()
            .any(|(&stream, line)| match line.items.front() {
                Some(item) => match item.progress {
                    Progress::Waiting => true,
                    Progress::Pulling { .. } => core.send_room(stream) > 0,
                    Progress::Given => core.is_sent(stream),
                    Progress::Written(_) => false,
                },
                None => false,
            })
    }

    /// Lets callbacks that had nothing be called again.
    pub(super) fn resume(&mut self) {
        for line in self.lines.values_mut() {
            if let Some(item) = line.items.front_mut()
                && let Progress::Pulling { paused } = &mut item.progress
            {
                *paused = false;
            }
        }
    }

    /// Passes new responses to the core.
    pub(super) fn start(&mut self, core: &mut Connection) {
        for (&stream, line) in &mut self.lines {
            let head_sent = &mut line.head_sent;
            if let Some(item) = line.items.front_mut()
                && item.progress == Progress::Waiting
            {
                item.progress = start(core, stream, &item.queued, head_sent);
            }
        }
    }

    /// Lists the callbacks that should produce a block now.
    pub(super) fn pulls(&self, core: &Connection) -> Vec<Pull> {
        let ready = |(&stream, line): (&StreamId, &Line)| {
            let item = line.items.front()?;
            let Body::Callback(callback) = &item.queued.object.body else {
                return None;
            };
            let pulls = item.progress == Progress::Pulling { paused: false };
            (pulls && core.send_room(stream) > 0).then(|| Pull {
                stream,
                callback: callback.clone(),
            })
        };
        self.lines.iter().filter_map(ready).collect()
    }

    /// Takes a block of a callback. Returns false if the callback has failed; its stream then ends.
    pub(super) fn fill(&mut self, core: &mut Connection, stream: StreamId, block: Block) -> bool {
        let line = self.lines.get_mut(&stream);
        let Some(item) = line.and_then(|line| line.items.front_mut()) else {
            return true;
        };
        if !matches!(item.progress, Progress::Pulling { .. }) {
            return true;
        }
        match block {
            Block::Bytes(bytes, true) if bytes.is_empty() => {
                item.progress = Progress::Pulling { paused: true };
            }
            Block::Bytes(bytes, more) => {
                core.send_data(stream, bytes.into(), item.queued.close && !more);
                if !more {
                    item.progress = Progress::Given;
                }
            }
            Block::Failed => {
                core.reset_after_data(stream, Reason::Internal);
                return false;
            }
        }
        true
    }

    /// Notes which responses the core has given out; `put` is the number of bytes that it has
    /// given out in all. Later responses of their streams can start.
    pub(super) fn mark(&mut self, core: &Connection, put: u64) {
        for (&stream, line) in &mut self.lines {
            if let Some(item) = line.items.front_mut()
                && item.progress == Progress::Given
                && core.is_sent(stream)
            {
                item.progress = Progress::Written(put);
            }
        }
    }

    /// Removes the responses whose last byte is among the first `sent`.
    pub(super) fn finish(&mut self, sent: u64) -> Vec<Notice> {
        let mut notices = Vec::new();
        self.lines.retain(|_, line| {
            let mut closed = false;
            while let Some(item) = line.items.front()
                && let Progress::Written(end) = item.progress
                && end <= sent
                && let Some(item) = line.items.pop_front()
            {
                closed |= item.queued.close;
                notices.extend(item.notice(Outcome::Success));
            }
            !closed
        });
        notices
    }

    /// Removes the responses of a stream that was reset.
    pub(super) fn cancel(&mut self, stream: StreamId) -> Vec<Notice> {
        let line = self.lines.remove(&stream).unwrap_or_default();
        let cancelled = line.items.into_iter();
        cancelled
            .filter_map(|item| item.notice(Outcome::StreamClosed))
            .collect()
    }

    /// Removes all responses, since the session ends.
    pub(super) fn cancel_all(&mut self) -> Vec<Notice> {
        let lines = std::mem::take(&mut self.lines).into_values();
        lines
            .flat_map(|line| line.items)
            .filter_map(|item| item.notice(Outcome::SessionClosed))
            .collect()
    }
}

/// Passes the head, and a body in memory, to the core.
fn start(
    core: &mut Connection,
    stream: StreamId,
    queued: &Queued,
    head_sent: &mut bool,
) -> Progress {
    let response = &queued.object;
    let body = match &response.body {
        Body::Bytes(bytes) => Some(bytes),
        Body::Callback(_) => None,
    };
    let head_only = body.is_some_and(Bytes::is_empty);
    let end = queued.close && head_only;
    if std::mem::replace(head_sent, true) {
        if end {
            core.send_data(stream, Bytes::new(), true);
        }
    } else if stream % 2 == 1 {
        let (status, version) = (&response.status_text, &response.version);
        core.respond_literally(stream, status, version, &response.fields, end);
    } else {
        let head = ResponseHead {
            status: response.status,
            fields: response.fields.clone(),
        };
        core.respond(stream, &head, end);
    }
    match body {
        Some(bytes) if !head_only => {
            core.send_data(stream, bytes.clone(), queued.close);
            Progress::Given
        }
        Some(_) => Progress::Given,
        None => Progress::Pulling { paused: false },
    }
}
