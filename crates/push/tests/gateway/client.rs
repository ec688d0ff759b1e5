//! The client's half of a scene: the store of one session, and the response that it waits for.

use std::collections::HashMap;
use std::time::Instant;

use tandem_http::cache::is_safe;
use tandem_http::{RequestHead, ResponseHead};
use tandem_push::client::{Intake, Output, Piece, PushId, PushStore, StoreLimits};
use tandem_push::gateway::FetchId;
use tandem_push::wire::Report;

const LIMITS: StoreLimits = StoreLimits {
    memory: 64 << 20,
    cancel_useless: false,
};

/// A response at the browser.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) head: ResponseHead,
    pub(crate) body: String,
    /// The response was pushed.
    pub(crate) is_pushed: bool,
}

/// The client's half.
pub(crate) struct Client {
    store: PushStore,
    has_own_fields: bool,
    pushes: HashMap<FetchId, PushId>,
    /// The last request of the browser.
    request: Option<RequestHead>,
    /// The response to the request that no push answered.
    reply: Option<Reply>,
}

impl Client {
    pub(crate) fn new(has_own_fields: bool, now: Instant) -> Self {
        Self {
            store: PushStore::new(LIMITS, now),
            has_own_fields,
            pushes: HashMap::new(),
            request: None,
            reply: None,
        }
    }

    /// Takes a request of the browser. Returns the push that answers it.
    pub(crate) fn take_request(&mut self, now: Instant, request: &RequestHead) -> Option<PushId> {
        self.request = Some(request.clone());
        if !is_safe(&request.method) {
            self.store.note_unsafe_request(request);
        }
        let serve = self.store.on_request(now, request, false)?;
        Some(serve.push)
    }

    /// Returns the response to the last request; `None` if a push was to answer it and broke off.
    pub(crate) fn reply(&mut self, now: Instant, served: Option<PushId>) -> Option<Reply> {
        let Some(id) = served else {
            return Some(self.reply.take().expect("the gateway answered"));
        };
        let head = match self.store.take_piece(now, id) {
            Piece::Head(head) => {
                self.note_response(&head);
                head
            }
            Piece::Broken => {
                self.store.on_reader_gone(id);
                return None;
            }
            other => panic!("{other:?} begins the push"),
        };
        let mut body = Vec::new();
        loop {
            match self.store.take_piece(now, id) {
                Piece::Data(data) => body.extend_from_slice(&data),
                Piece::End => break,
                other => panic!("{other:?} ends the push"),
            }
        }
        self.store.on_reader_gone(id);
        Some(Reply {
            head,
            body: String::from_utf8(body).expect("bodies are text"),
            is_pushed: true,
        })
    }

    /// Takes the reports for the gateway.
    pub(crate) fn take_reports(&mut self) -> Vec<Report> {
        let outputs = std::iter::from_fn(|| self.store.poll_output());
        let reports = outputs.filter_map(|output| match output {
            Output::Became {
                fate,
                url,
                tell_gateway: true,
                cookies,
            } => Some(match cookies {
                Some(cookies) => Report::Claimed { fate, url, cookies },
                None => Report::Became(fate, url),
            }),
            _ => None,
        });
        reports.collect()
    }

    pub(crate) fn on_promise(&mut self, now: Instant, id: FetchId, mut request: RequestHead) {
        if !self.has_own_fields {
            request.fields = Default::default();
        }
        match self.store.on_promise(now, request, self.has_own_fields) {
            Intake::Read(push) => self.pushes.insert(id, push),
            Intake::Cancel => panic!("the client cancels no push"),
        };
    }

    pub(crate) fn on_push_head(&mut self, now: Instant, id: FetchId, head: ResponseHead) {
        self.store.on_head(now, self.pushes[&id], head);
    }

    pub(crate) fn on_push_body(&mut self, now: Instant, id: FetchId, body: String) {
        let id = self.pushes[&id];
        if !body.is_empty() {
            self.store.on_data(now, id, body.into());
        }
        self.store.on_end(id, true);
    }

    /// Notes the response to the last request, as the browser gets it.
    fn note_response(&mut self, head: &ResponseHead) {
        if let Some(request) = &self.request {
            self.store.note_response(request, head, 0);
        }
    }

    pub(crate) fn on_push_reset(&mut self, id: FetchId) {
        self.store.on_end(self.pushes[&id], false);
    }

    pub(crate) fn on_answer_head(&mut self, head: ResponseHead) {
        self.note_response(&head);
        self.reply = Some(Reply {
            head,
            body: String::new(),
            is_pushed: false,
        });
    }

    pub(crate) fn on_answer_body(&mut self, body: String) {
        if let Some(reply) = &mut self.reply {
            reply.body = body;
        }
    }
}
