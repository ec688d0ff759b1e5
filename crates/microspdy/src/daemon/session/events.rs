//! The events of a session's core: each becomes a notice for the program, or a change of the
//! session.

use std::sync::atomic::Ordering;

use tandem_http::{Event, Mux as _, Priority, Reason, RequestHead, StreamId};

use super::super::RequestEntry;
use super::Session;
use crate::daemon::run::Notice;
use crate::ffi::callbacks::Outcome;
use crate::handles;

impl Session {
    pub(super) fn collect(&mut self, notices: &mut Vec<Notice>) {
        while let Some(event) = self.core.poll_event() {
            self.on_event(event, notices);
        }
    }

    fn on_event(&mut self, event: Event, notices: &mut Vec<Notice>) {
        match event {
            Event::Request {
                id,
                head,
                end,
                priority,
            } => notices.extend(self.on_request(id, &head, end, priority)),
            Event::Data { id, data, end } => match self.requests.receive(id, end) {
                Some(request) => notices.push(Notice::Data {
                    request,
                    stream: id,
                    data,
                    more: !end,
                }),
                None => self.core.release(id, data.len()),
            },
            Event::Trailers { id, .. } => {
                // The end of the body; the interface has no place for the fields.
                notices.extend(self.requests.receive(id, true).map(|request| Notice::Data {
                    request,
                    stream: id,
                    data: bytes::Bytes::new(),
                    more: false,
                }));
            }
            Event::Reset { id, .. } => notices.extend(self.end_stream(id)),
            Event::Pong { payload } => {
                let answered = self.pings.iter().position(|ping| ping.payload == payload);
                if let Some(at) = answered {
                    let ping = self.pings.remove(at);
                    notices.extend(ping.callback.map(|callback| Notice::Pong {
                        callback,
                        sent: ping.sent,
                    }));
                }
            }
            // Bodies are pulled when there is room, and clients are never servers.
            _ => {}
        }
    }

    /// Gives up the responses of a stream that was reset. If none of them has a result callback,
    /// another notice tells the program of the end.
    pub(super) fn end_stream(&mut self, id: StreamId) -> Vec<Notice> {
        let reported = self.deliveries.reports(id);
        let mut notices = self.deliveries.cancel(id);
        let request = self.requests.end(id);
        // Notices of the request that wait for the program are void.
        if let Some(entry) = request.and_then(handles::get::<RequestEntry>) {
            entry.ended.store(true, Ordering::Release);
        }
        let ended = request.filter(|_| !reported);
        notices.extend(ended.map(|request| Notice::Ended {
            request,
            outcome: Outcome::StreamClosed,
        }));
        notices
    }

    fn on_request(
        &mut self,
        stream: StreamId,
        head: &RequestHead,
        end: bool,
        priority: Priority,
    ) -> Option<Notice> {
        let place = (self.id, self.handle);
        let Some(request) = RequestEntry::enter(&self.daemon, place, stream, head, priority) else {
            self.core.reset(stream, Reason::Internal);
            return None;
        };
        self.requests.begin(stream, request, !end);
        Some(Notice::Request {
            request,
            stream,
            more: !end,
        })
    }
}
