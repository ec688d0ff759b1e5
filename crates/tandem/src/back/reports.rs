//! The client's side of a session's companion (see [`tandem_push::wire`]): opened with the request
//! for a page, or once a gateway has said that it pushes, it tells what became of each push and
//! takes those whose page is over. It ends when the session has been quiet for a while, so that a
//! session at rest stays at rest.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tandem_http::cache::invalidates;
use tandem_http::{Method, RequestHead, ResponseHead};
use tandem_push::fetch_standard::is_navigation;
use tandem_push::wire::{Fate, PUSH_FIELD, Report, Treatment, companion_request, url_hash};
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::pushed::{PushStore, fresh_for};
use crate::error::Error;
use crate::exchange::{Body, Chunk, Chunks, Exchange, Isolation, Part, Peer, Reply, Tap};
use crate::priority::SharedPriority;
use crate::session::Connected;

/// How long reports are gathered, and how often the end is thought of.
const GATHER: Duration = Duration::from_millis(250);

/// A companion ends after so long without any other exchange or report.
const QUIET: Duration = Duration::from_secs(15);

/// Bytes of reports that wait for a companion at most; later ones are lost, which harms only
/// counts.
const MAX_WAITING: usize = 64 << 10;

/// Resources named to the browser at most.
const MAX_EARLY: usize = 24;

/// Reports that wait to be sent.
#[derive(Default)]
pub struct Reporter {
    waiting: RefCell<Vec<u8>>,
    /// One of them is of use only at once.
    urgent: Cell<bool>,
    /// The companion's body, while it waits.
    body: RefCell<Option<Waker>>,
    /// What the browser got on this key's sessions, for the gateway's digest; `None` where it is to
    /// be told nothing.
    pub digest: Option<Rc<Digest>>,
    /// A companion is open, or the gateway knows none: another is not to be opened.
    settled: Cell<bool>,
}

/// What a key's browser got and can use still, by hash of its URL.
#[derive(Default)]
pub struct Digest(RefCell<VecDeque<(u32, Instant)>>);

/// URLs in a digest.
const MAX_DIGEST: usize = 1024;

impl Digest {
    fn note(&self, request: &RequestHead, head: &ResponseHead) {
        let Some(fresh) = fresh_for(head).filter(|fresh| *fresh > QUIET) else {
            return;
        };
        let Some(until) = Instant::now().checked_add(fresh) else {
            return;
        };
        let mut held = self.0.borrow_mut();
        if held.len() >= MAX_DIGEST {
            held.pop_front();
        }
        held.push_back((url_hash(request), until));
    }

    fn write(&self, out: &mut Vec<u8>) {
        let now = Instant::now();
        self.0.borrow_mut().retain(|(_, until)| *until > now);
        for (url, _) in &*self.0.borrow() {
            Report::Holds(*url).encode(out);
        }
    }
}

impl Reporter {
    /// One that begins with what `digest` says of earlier sessions.
    pub fn new(digest: Option<Rc<Digest>>) -> Self {
        let this = Self {
            digest,
            ..Self::default()
        };
        if let Some(digest) = &this.digest {
            digest.write(&mut this.waiting.borrow_mut());
        }
        this
    }

    /// The browser gets this answer.
    pub fn note_given(&self, request: &RequestHead, head: &ResponseHead) {
        if let Some(digest) = &self.digest {
            digest.note(request, head);
        }
    }

    /// Tells the gateway what became of a push: at once if somebody waits for it, which not every
    /// protocol can say, else in a while.
    pub fn report(&self, fate: Fate, url: u32) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() < MAX_WAITING {
            Report::Became(fate, url).encode(&mut waiting);
        }
        if fate == Fate::Late {
            self.urgent.set(true);
            if let Some(body) = self.body.take() {
                body.wake();
            }
        }
    }
}

/// What an exchange's answer leaves with its session: pushes for the store, and the wish for a
/// companion.
pub struct Arrival {
    /// Where pushes are kept; once it is gone they are of no use.
    pub store: Weak<PushStore>,
    /// What the answer came on.
    pub session: Rc<dyn Connected>,
    /// The key of both.
    pub isolation: Isolation,
    /// Whether the browser is told of what is promised before the head.
    pub hints: bool,
    /// What is asked.
    pub request: RequestHead,
    /// What was promised so far.
    pub promised: RefCell<Vec<RequestHead>>,
}

impl Tap for Arrival {
    fn pushed(&self, request: RequestHead, reply: Reply, priority: SharedPriority) {
        let Some(store) = self.store.upgrade() else {
            return;
        };
        let mut promised = self.promised.borrow_mut();
        if self.hints && promised.len() < MAX_EARLY {
            promised.push(request.clone());
        }
        store.take_in(
            request,
            reply,
            priority,
            self.session.promises_have_fields(),
        );
    }

    fn head(&self, head: &mut ResponseHead) {
        if let Some(store) = self.store.upgrade() {
            store.reporter.note_given(&self.request, head);
            // What was on its way when this changed something came before its answer (RFC 9111
            // section 4.4).
            if invalidates(&self.request.method, head.status) {
                store.forget_origin(&self.request);
            }
        }
        let Some(treatment) = head.fields.get(PUSH_FIELD).and_then(Treatment::parse) else {
            return;
        };
        for request in self.promised.take() {
            if let Some(preload) = preload(&request) {
                head.fields.push("link", preload);
            }
        }
        if treatment == Treatment::Pushed {
            self.open_companion();
        }
    }
}

impl Arrival {
    /// The exchange begins. With a page's request the companion leaves as well: what is found late
    /// in a page, or beyond a redirect, then need not wait for a round trip.
    pub fn begin(&self, request: &RequestHead) {
        if is_navigation(request) && request.method == Method::Get {
            self.open_companion();
        }
    }

    fn open_companion(&self) {
        let Some(store) = self.store.upgrade() else {
            return;
        };
        if !store.takes_pushes() || store.reporter.settled.replace(true) {
            return;
        }
        let (session, store) = (Rc::clone(&self.session), Weak::clone(&self.store));
        tokio::task::spawn_local(accompany(session, store, self.isolation.clone()));
    }
}

/// What tells the browser that it will need something (RFC 8288; HTML standard, "preload").
fn preload(request: &RequestHead) -> Option<String> {
    let path = request.path.split('?').next().unwrap_or_default();
    let kind = match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("css") => "; as=style",
        Some("js") => "; as=script",
        Some("woff2" | "woff") => "; as=font; crossorigin",
        Some("png" | "jpg" | "jpeg" | "gif" | "webp" | "avif" | "svg") => "; as=image",
        // Whose kind is not known would be fetched twice.
        _ => return None,
    };
    Some(format!(
        "<{}://{}{}>; rel=preload{kind}",
        request.scheme.as_str(),
        request.authority,
        request.path
    ))
}

/// Keeps a companion open while the session is in use.
async fn accompany(session: Rc<dyn Connected>, store: Weak<PushStore>, isolation: Isolation) {
    let Some(reporter) = store.upgrade().map(|store| Rc::clone(&store.reporter)) else {
        return;
    };
    let tap = Rc::new(Arrival {
        store: Weak::clone(&store),
        session: Rc::clone(&session),
        isolation: isolation.clone(),
        request: companion_request(),
        hints: false,
        promised: RefCell::default(),
    });
    let over = Rc::new(Cell::new(None));
    let mut ticks = tokio::time::interval(GATHER);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let reports = ReportBody {
        reporter: Rc::clone(&reporter),
        store,
        session: Rc::clone(&session),
        ticks,
        quiet_since: Instant::now(),
        over: Rc::clone(&over),
    };
    let mut exchange = Exchange {
        request: companion_request(),
        body: Body::new(reports, None),
        isolation,
        peer: Peer {
            session: 0,
            address: None,
            push: false,
        },
        priority: SharedPriority::default(),
    };
    let mut reply = Reply::generate(|mut sink| async move {
        sink.tap(tap);
        session.run(&mut exchange, &mut sink).await
    });
    let mut taken = false;
    loop {
        let part = match tokio::time::timeout(QUIET, reply.part()).await {
            Ok(Some(part)) => part,
            Ok(None) => break,
            // Who does not end his answer when all is said does not keep the session.
            Err(_) if over.get().is_some_and(|at: Instant| at.elapsed() >= QUIET) => break,
            Err(_) => continue,
        };
        match part {
            Ok(Part::Head(head)) => taken = head.status == 200,
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "the session's companion ended"),
        }
    }
    reporter.settled.set(!taken);
}

/// The body of a companion.
struct ReportBody {
    reporter: Rc<Reporter>,
    store: Weak<PushStore>,
    session: Rc<dyn Connected>,
    ticks: Interval,
    quiet_since: Instant,
    /// When the last was said.
    over: Rc<Cell<Option<Instant>>>,
}

impl Chunks for ReportBody {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        while self.over.get().is_none() {
            let now = match self.ticks.poll_tick(cx) {
                Poll::Ready(now) => now,
                Poll::Pending if self.reporter.urgent.get() => Instant::now(),
                Poll::Pending => {
                    self.reporter.body.replace(Some(cx.waker().clone()));
                    return Poll::Pending;
                }
            };
            self.reporter.urgent.set(false);
            let waiting = self.reporter.waiting.take();
            if self.session.active() > 1 || !waiting.is_empty() {
                self.quiet_since = now;
            }
            let over = self.store.strong_count() == 0
                || self.session.is_closed()
                || now.saturating_duration_since(self.quiet_since) >= QUIET;
            self.over.set(over.then_some(now));
            if !waiting.is_empty() {
                return Poll::Ready(Some(Ok(Chunk::Data(Bytes::from(waiting)))));
            }
        }
        Poll::Ready(None)
    }
}
