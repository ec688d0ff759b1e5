//! The gateway's side of a session's companion (see [`tandem_push::wire`]): takes reports, and
//! carries the pushes whose page is over. It ends when the client ends its body.

use std::rc::Rc;
use std::task::{Context, Poll};

use tandem_http::ResponseHead;
use tandem_push::wire::{Fate, Report, ReportReader};

use super::{Promised, SessionState};
use crate::error::{Error, Kind, Side};
use crate::exchange::{Body, Chunk, Exchange, Part, Parts, Reply};
use crate::metrics::METRICS;
use crate::priority::Precedence;

/// Answers the request for a companion; a session has one at a time.
pub(super) fn answer(session: &Rc<SessionState>, exchange: Exchange) -> Reply {
    if session.companion.replace(true) {
        return Reply::fail(Error::new(
            Kind::Busy,
            Side::Client,
            "the session has a companion already",
        ));
    }
    Reply::new(Carrying {
        session: Rc::clone(session),
        body: exchange.body,
        reports: ReportReader::default(),
        head_sent: false,
    })
}

struct Carrying {
    session: Rc<SessionState>,
    body: Body,
    reports: ReportReader,
    head_sent: bool,
}

impl Parts for Carrying {
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        if !self.head_sent {
            self.head_sent = true;
            return Poll::Ready(Some(Ok(Part::Head(ResponseHead::new(200)))));
        }
        let mut later = self.session.later.borrow_mut();
        if let Some(promise) = later.ready.pop_front() {
            return Poll::Ready(Some(Ok(promise)));
        }
        later.waker = Some(cx.waker().clone());
        drop(later);
        loop {
            match std::task::ready!(self.body.poll_chunk(cx)) {
                Some(Ok(Chunk::Data(data))) => {
                    let session = &self.session;
                    self.reports.read(&data, |report| session.told(report));
                }
                Some(Ok(Chunk::Trailers(_))) => {}
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}

impl Drop for Carrying {
    fn drop(&mut self) {
        self.session.companion.set(false);
    }
}

/// What a client may say that it holds.
const MAX_HELD: usize = 4096;

impl SessionState {
    fn told(self: &Rc<Self>, report: Report) {
        match report {
            Report::Became(fate, url) => self.reported(fate, url),
            Report::Holds(url) => {
                let mut held = self.held.borrow_mut();
                if held.len() < MAX_HELD {
                    held.insert(url);
                }
            }
        }
    }

    fn reported(self: &Rc<Self>, fate: Fate, url: u32) {
        let Some(Promised {
            url,
            page,
            priority,
            ..
        }) = self.promised.borrow_mut().remove(&url)
        else {
            return;
        };
        let learned = self.pushing.learned.as_ref();
        match fate {
            Fate::Used => METRICS.pushes_used.add(1),
            Fate::Late => {
                METRICS.pushes_late.add(1);
                priority.set(Precedence::default());
            }
            Fate::Wasted => METRICS.pushes_wasted.add(1),
            Fate::Cancelled => METRICS.pushes_cancelled.add(1),
        }
        match fate {
            Fate::Used | Fate::Late => self.note_host(&url),
            Fate::Wasted | Fate::Cancelled => self.given.borrow_mut().doubt(&url),
        }
        match (fate, learned) {
            (Fate::Used | Fate::Late, Some(learned)) => {
                learned.used(self.peer.session, &page.url, &url)
            }
            (Fate::Cancelled, Some(learned)) => learned.cancelled(self.peer.session, &url),
            _ => {}
        }
    }
}
