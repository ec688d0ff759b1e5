//! Records page loads for the dashboard: the resources of each page with their times, and the way
//! on which each response came.
//!
//! A navigation begins a load. Requests of the same isolation key belong to it until three seconds
//! have passed without a request, a head or an end. While a response is under way, the time is ten
//! seconds. Tunnels and streams of events do not count as under way.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tandem_http::{Method, RequestHead, ResponseHead};
use tandem_push::fetch_standard::is_navigation;
use tokio::time::Instant;

use crate::error::Error;
use crate::exchange::{Exchange, Isolation, Part, Parts, Reply, Supply};
use crate::journal::{Journal, JournalIndex, Resource};
use crate::stage::Stage;

/// The time without an event after which a request begins another load.
const QUIET: Duration = Duration::from_secs(3);

/// The same time while responses are under way. A long poll does not keep a load alive for longer.
const QUIET_UNDER_WAY: Duration = Duration::from_secs(10);

/// The number of isolation keys whose present load is known.
const MAX_KEYS: usize = 256;

/// The stage that records page loads.
pub struct Record {
    journal: Arc<Journal>,
    next: Rc<dyn Stage>,
    present: RefCell<HashMap<Isolation, Rc<Present>>>,
}

/// The present load of an isolation key.
struct Present {
    load: u64,
    last: Cell<Instant>,
    /// The requests without a complete response, except tunnels and streams of events.
    under_way: Cell<usize>,
}

impl Record {
    /// Creates a stage before `next`.
    pub fn new(journal: Arc<Journal>, next: Rc<dyn Stage>) -> Self {
        Self {
            journal,
            next,
            present: RefCell::default(),
        }
    }

    /// Returns the load that a request belongs to.
    fn load(&self, isolation: &Isolation, is_page: bool, url: &str) -> Rc<Present> {
        let now = Instant::now();
        let mut all = self.present.borrow_mut();
        if let Some(present) = all.get(isolation)
            && !is_page
            && present.is_live(now)
        {
            return Rc::clone(present);
        }
        if all.len() >= MAX_KEYS && !all.contains_key(isolation) {
            all.retain(|_, present| present.is_live(now));
            if all.len() >= MAX_KEYS {
                all.clear();
            }
        }
        let present = Rc::new(Present {
            load: self.journal.open_load(url, now.into_std()),
            last: Cell::new(now),
            under_way: Cell::default(),
        });
        all.insert(isolation.clone(), Rc::clone(&present));
        present
    }
}

impl Present {
    fn is_live(&self, now: Instant) -> bool {
        let quiet = match self.under_way.get() {
            0 => QUIET,
            _ => QUIET_UNDER_WAY,
        };
        now - self.last.get() < quiet
    }
}

impl Stage for Record {
    fn call(&self, exchange: Exchange) -> Reply {
        let request = &exchange.request;
        let is_tunnel = request.is_connect() || request.protocol.is_some();
        let url = target(request);
        let is_page = !is_tunnel && request.method == Method::Get && is_navigation(request);
        let present = self.load(&exchange.isolation, is_page, &url);
        let supply = if is_tunnel {
            Supply::Tunnel
        } else {
            Supply::Requested
        };
        let now = Instant::now();
        present.last.set(now);
        let under_way = present.under_way.get() + usize::from(!is_tunnel);
        present.under_way.set(under_way);
        let method = request.method.as_str();
        let entry = self
            .journal
            .begin(present.load, method, &url, supply, now.into_std());
        Reply::new(RecordedReply {
            reply: self.next.call(exchange),
            journal: Arc::clone(&self.journal),
            entry,
            present,
            is_tunnel,
            counts: !is_tunnel,
            bytes: 0,
            problem: Some("cancelled".into()),
        })
    }
}

/// Returns whether a response is a stream of events (HTML standard, section 9.2).
fn is_event_stream(head: &ResponseHead) -> bool {
    let kind = head.fields.get("content-type").unwrap_or_default();
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
}

/// Returns the URL of a request, or the authority that a CONNECT names.
pub(super) fn target(request: &RequestHead) -> String {
    match request.is_connect() {
        true => request.authority.clone(),
        false => request.url(),
    }
}

/// A reply that is recorded. Its entry ends with it.
struct RecordedReply {
    reply: Reply,
    journal: Arc<Journal>,
    entry: Option<JournalIndex>,
    present: Rc<Present>,
    is_tunnel: bool,
    /// The reply counts as under way.
    counts: bool,
    bytes: u64,
    problem: Option<String>,
}

impl RecordedReply {
    fn on_head(&mut self, head: &ResponseHead) {
        let (status, supply) = (head.status, self.reply.supply());
        let (is_tunnel, is_stream) = (self.is_tunnel, is_event_stream(head));
        self.update(|resource, time| {
            resource.status = Some(status);
            resource.head = Some(time);
            resource.is_stream = is_stream;
            if !is_tunnel {
                resource.supply = supply;
            }
        });
        self.present.last.set(Instant::now());
        if is_stream {
            self.leave();
        }
    }

    /// Counts no longer as under way.
    fn leave(&mut self) {
        if std::mem::take(&mut self.counts) {
            let under_way = &self.present.under_way;
            under_way.set(under_way.get() - 1);
        }
    }

    fn update(&self, change: impl FnOnce(&mut Resource, f64)) {
        if let Some(entry) = self.entry {
            self.journal
                .update(entry, Instant::now().into_std(), change);
        }
    }
}

impl Parts for RecordedReply {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let part = std::task::ready!(self.reply.poll_part(cx));
        match &part {
            None => self.problem = None,
            Some(Err(error)) => self.problem = Some(error.detail.to_string()),
            Some(Ok(Part::Head(head))) => self.on_head(head),
            Some(Ok(Part::Data(data))) => self.bytes += data.len() as u64,
            Some(Ok(_)) => {}
        }
        Poll::Ready(part)
    }
}

impl Drop for RecordedReply {
    fn drop(&mut self) {
        let (bytes, mut problem) = (self.bytes, self.problem.take());
        let is_tunnel = self.is_tunnel;
        self.update(|resource, time| {
            resource.end = Some(time);
            resource.bytes = bytes;
            // Either end may drop an open tunnel, which is its usual end.
            if is_tunnel && resource.head.is_some() {
                problem = None;
            }
            resource.problem = problem;
        });
        self.leave();
        self.present.last.set(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tandem_http::Scheme;

    use super::*;
    use crate::error::{Kind, Side};

    fn exchange(path: &str, is_page: bool) -> Exchange {
        let mut request = RequestHead::get(Scheme::Http, "site.example", path);
        if is_page {
            request.fields.push("sec-fetch-dest", "document");
        }
        Exchange::internal(request)
    }

    async fn finish(mut reply: Reply) {
        while reply.part().await.is_some_and(|part| part.is_ok()) {}
    }

    fn record(next: impl Fn(Exchange) -> Reply + 'static) -> (Record, Arc<Journal>) {
        let journal = Arc::<Journal>::default();
        (Record::new(Arc::clone(&journal), Rc::new(next)), journal)
    }

    #[tokio::test]
    async fn resources_belong_to_the_page_before_them() {
        let (record, journal) =
            record(|_| Reply::ready(ResponseHead::new(200), Bytes::from_static(b"four")));
        finish(record.call(exchange("/one", true))).await;
        finish(record.call(exchange("/a.css", false))).await;
        finish(record.call(exchange("/two", true))).await;
        for present in record.present.borrow().values() {
            present.last.set(present.last.get() - QUIET);
        }
        finish(record.call(exchange("/late", false))).await;
        let loads = journal.changes(0, Instant::now().into_std()).loads;
        let paths: Vec<Vec<_>> = loads
            .iter()
            .map(|load| load.resources.iter().map(|it| it.url.as_str()).collect())
            .collect();
        let url = |path: &str| format!("http://site.example{path}");
        assert_eq!(paths[0], [url("/late")]);
        assert_eq!(paths[1], [url("/two")]);
        assert_eq!(paths[2], [url("/one"), url("/a.css")]);
        let page = &loads[2].resources[0];
        assert_eq!(
            (page.status, page.bytes, &page.problem),
            (Some(200), 4, &None)
        );
        assert!(page.head.is_some() && page.end.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn open_responses_do_not_prolong_a_load() {
        let (record, journal) = record(|exchange| {
            Reply::generate(move |mut sink| async move {
                let mut head = ResponseHead::new(200);
                if exchange.request.path == "/events" {
                    head.fields
                        .push("content-type", "Text/Event-Stream; charset=utf-8");
                }
                sink.send(Part::Head(head)).await;
                std::future::pending().await
            })
        });
        for (path, quiet) in [("/events", QUIET), ("/poll", QUIET_UNDER_WAY)] {
            let loads = || journal.changes(0, Instant::now().into_std()).loads;
            let mut open = record.call(exchange(path, true));
            assert!(matches!(open.part().await, Some(Ok(Part::Head(_)))));
            let before = loads().len();
            tokio::time::advance(quiet - Duration::from_millis(1)).await;
            drop(record.call(exchange("/a.css", false)));
            assert_eq!(loads().len(), before, "{path}");
            tokio::time::advance(quiet).await;
            drop(record.call(exchange("/later", false)));
            assert_eq!(loads().len(), before + 1, "{path}");
            let own = &loads()[1].resources[0];
            assert_eq!((own.is_stream, own.end), (path == "/events", None));
            drop(open);
        }
    }

    #[tokio::test]
    async fn failures_and_cancelled_requests_have_a_problem() {
        let (record, journal) = record(|exchange| {
            if exchange.request.path == "/fails" {
                Reply::fail(Error::new(Kind::Timeout, Side::Origin, "no answer"))
            } else {
                Reply::ready(ResponseHead::new(200), Bytes::new())
            }
        });
        finish(record.call(exchange("/fails", false))).await;
        drop(record.call(exchange("/dropped", false)));
        let loads = journal.changes(0, Instant::now().into_std()).loads;
        let problems: Vec<_> = loads[0]
            .resources
            .iter()
            .map(|it| it.problem.clone())
            .collect();
        assert_eq!(
            problems,
            [Some("no answer".into()), Some("cancelled".to_owned())]
        );
    }

    #[tokio::test]
    async fn a_push_is_recorded_as_such() {
        let (record, journal) = record(|_| {
            Reply::generate(|mut sink| async move {
                sink.set_supply(Supply::Joined);
                sink.send(Part::Head(ResponseHead::new(200))).await;
                Ok(())
            })
        });
        finish(record.call(exchange("/", true))).await;
        let loads = journal.changes(0, Instant::now().into_std()).loads;
        assert_eq!(loads[0].resources[0].supply, Supply::Joined);
    }

    #[tokio::test]
    async fn number_of_known_keys_is_bounded() {
        let (record, _) = record(|_| Reply::ready(ResponseHead::new(200), Bytes::new()));
        for user in 0..2 * MAX_KEYS {
            let mut exchange = exchange("/", true);
            exchange.isolation = Isolation::new(user.to_string().as_bytes(), b"");
            drop(record.call(exchange));
        }
        assert!(record.present.borrow().len() <= MAX_KEYS);
    }
}
