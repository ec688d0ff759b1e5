//! One push as a reply of its own: it waits for its turn, fetches, and reads on in what it fetched.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tandem_http::ResponseHead;
use tandem_http::cache::{ResponsePolicy, vary};
use tandem_http::message::content_length;
use tandem_preload::{self as scan, Kind as For, Need};
use tandem_push::answer::is_pushable_status;
use tandem_push::wire::ASKED_FIELD;
use tokio::time::Sleep;

use super::Target;
use super::document::{Document, Use};
use super::gate::Ticket;
use super::page::Page;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Part, Parts, Reply};
use crate::metrics::METRICS;
use crate::priority::PriorityWatch;
use crate::stage::Stage;

/// A fetch that has no answer for so long makes room for others, and goes on.
const PATIENCE: Duration = Duration::from_secs(2);

/// The reply.
pub(super) struct Fetch {
    page: Rc<Page>,
    next: Rc<dyn Stage>,
    ticket: Option<Ticket>,
    priority: PriorityWatch,
    /// Until it is sent.
    exchange: Option<Exchange>,
    reply: Option<Reply>,
    patience: Option<Pin<Box<Sleep>>>,
    document: Option<Document>,
    target: Target,
    purpose: Use,
    /// Read, but not before what it names has been promised.
    held: Option<Result<Part, Error>>,
    sized: bool,
    received: u64,
    /// Its head has been passed on: the client will tell what became of it.
    given: bool,
    /// Somebody asks for it.
    wanted: bool,
}

impl Fetch {
    pub(super) fn new(
        page: Rc<Page>,
        ticket: Ticket,
        exchange: Exchange,
        target: Target,
        purpose: Use,
    ) -> Self {
        Self {
            next: Rc::clone(&page.asked.next),
            page,
            ticket: Some(ticket),
            priority: exchange.priority.watch(),
            held: None,
            exchange: Some(exchange),
            reply: None,
            patience: None,
            document: None,
            target,
            purpose,
            sized: false,
            received: 0,
            given: false,
            wanted: false,
        }
    }

    /// Begins once it is its turn.
    fn poll_begin(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.exchange.is_none() {
            return Poll::Ready(Ok(()));
        }
        if let Some(ticket) = &mut self.ticket {
            ready!(ticket.poll_enter(cx));
        }
        if self.page.is_abandoned() {
            return Poll::Ready(Err(Error::new(
                Kind::Reset,
                Side::Client,
                "nobody waits for the page",
            )));
        }
        if let Some(exchange) = self.exchange.take() {
            self.reply = Some(self.next.call(exchange));
            self.patience = Some(Box::pin(tokio::time::sleep(PATIENCE)));
        }
        Poll::Ready(Ok(()))
    }

    fn pass(&mut self, part: Part) -> Result<Part, Error> {
        match part {
            Part::Head(head) => self.on_head(head).map(Part::Head),
            Part::Data(data) => {
                self.received += data.len() as u64;
                METRICS.push_bytes_sent.add(data.len() as u64);
                let spent = !self.sized && !self.page.spend(data.len() as u64);
                let most = self.page.session.limits().asset_bytes;
                if spent && self.received > most && !self.wanted {
                    return Err(Error::new(
                        Kind::TooLarge,
                        Side::Local,
                        "a push without end",
                    ));
                }
                self.page.read(&mut self.document, &data);
                Ok(Part::Data(data))
            }
            part => Ok(part),
        }
    }

    fn on_head(&mut self, mut head: ResponseHead) -> Result<ResponseHead, Error> {
        self.ticket = None;
        self.patience = None;
        let length = content_length(&head.fields).ok().flatten();
        self.sized = length.is_some();
        let length = length.unwrap_or(0);
        let fits = length <= self.page.session.limits().asset_bytes && self.page.spend(length);
        if !may_be_pushed(&head) || !fits {
            return Err(Error::new(
                Kind::Forbidden,
                Side::Local,
                "the answer is not to be pushed",
            ));
        }
        self.given = true;
        self.page.session.note_given(&self.target.url, &head);
        self.document = self
            .page
            .document(&self.target.url, &head, self.purpose.clone());
        match redirect(&self.target.url, &head) {
            Some(mut target) => {
                target.kind = self.purpose.kind();
                target.frame = self
                    .purpose
                    .frame()
                    .cloned()
                    .filter(|_| target.kind != For::Document);
                self.page.redirect(&self.target.url, target);
            }
            None => self.page.settle(&self.target.url, &head),
        }
        head.fields.set(ASKED_FIELD, self.target.asked.encode());
        Ok(head)
    }

    /// A request waits for it: it goes before all other pushes.
    fn hurry(&mut self) {
        self.wanted = true;
        if let Some(ticket) = &mut self.ticket {
            ticket.hurry();
        }
    }

    fn end(&mut self) {
        self.reply = None;
        self.ticket = None;
        self.page.end_document(&mut self.document);
    }
}

impl Parts for Fetch {
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        if let Poll::Ready(precedence) = self.priority.poll_changed(cx)
            && !precedence.push
        {
            self.hurry();
        }
        if let Err(error) = ready!(self.poll_begin(cx)) {
            self.end();
            return Poll::Ready(Some(Err(error)));
        }
        if let Some(patience) = &mut self.patience
            && patience.as_mut().poll(cx).is_ready()
        {
            self.patience = None;
            self.ticket = None;
        }
        if let Some(part) = self.held.take() {
            return Poll::Ready(Some(part));
        }
        loop {
            let Some(reply) = &mut self.reply else {
                return Poll::Ready(None);
            };
            let promised = self.page.session.carried.get();
            let part = match ready!(reply.poll_part(cx)) {
                Some(Ok(Part::Hints(_) | Part::Pushed { .. })) => continue,
                Some(Ok(part)) => self.pass(part),
                end => {
                    self.end();
                    return Poll::Ready(end);
                }
            };
            if part.is_err() {
                self.page.session.forget_given(&self.target);
                self.end();
            }
            if self.page.session.carried.get() != promised {
                // The companion has been woken, and goes first: a promise leaves before what
                // mentions it.
                self.held = Some(part);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            return Poll::Ready(Some(part));
        }
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        if !self.given {
            self.page
                .session
                .withdraw(&self.target, self.priority.shared());
        }
    }
}

/// Whether an answer may go to a client that has not asked for it: not if it must not be stored,
/// depends on the user, or is no complete answer to a plain GET.
fn may_be_pushed(head: &ResponseHead) -> bool {
    is_pushable_status(head.status)
        && !ResponsePolicy::of(head).forbids_storage()
        && !vary::depends_on(&head.fields, "cookie")
        && !vary::depends_on(&head.fields, "authorization")
}

/// Where a redirect leads. One that sets a cookie may lead to what can be asked for once, with that
/// cookie.
pub(super) fn redirect(url: &str, head: &ResponseHead) -> Option<Need> {
    if !matches!(head.status, 301 | 302 | 303 | 307 | 308) || head.fields.contains("set-cookie") {
        return None;
    }
    let target = String::from_utf8_lossy(head.fields.get("location")?).into_owned();
    let url = scan::resolve(url, &target)?;
    Some(Need {
        url,
        kind: For::Document,
        urgency: 0,
        anonymous: false,
        referrer: None,
        via: None,
        frame: None,
    })
}
