//! Answers the preflights of scripts that an origin has permitted before, and joins those that are
//! under way. A preflight costs a round trip before the request that it is for.
//!
//! The decisions are those of [`tandem_push::client::Preflights`], one cache for each connection of
//! a browser and isolation key. A browser that keeps apart its sites and private windows gives each
//! its own connections. An answer that all of them share would show an origin on one site the
//! preflights of another. This stage of the client keeps the clock and moves the answers.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tandem_http::{Method, RequestHead, ResponseHead};
use tandem_push::client::{PreflightKey, PreflightStep, Preflights};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::error::Error;
use crate::exchange::{Exchange, Isolation, Part, Parts, Reply, Sink};
use crate::metrics::METRICS;
use crate::stage::Stage;

/// The time after which a preflight leaves the one that it has joined, and is sent itself.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The stage that answers preflights.
pub struct AnswerPreflights {
    next: Rc<dyn Stage>,
    /// The largest number of connections with a cache. A table that is full starts again.
    max_keys: usize,
    keys: RefCell<HashMap<(u64, Isolation), SharedPreflights>>,
}

/// The preflights of one connection with one isolation key.
#[derive(Default)]
struct PreflightsOfKey {
    cache: Preflights,
    /// The ends of the preflights that are under way.
    ends: HashMap<PreflightKey, Rc<Notify>>,
}

/// The preflights of one key, which their replies share.
type SharedPreflights = Rc<RefCell<PreflightsOfKey>>;

impl AnswerPreflights {
    /// Creates a stage before `next` for this number of connections.
    pub fn new(max_keys: usize, next: Rc<dyn Stage>) -> Self {
        Self {
            next,
            max_keys,
            keys: RefCell::default(),
        }
    }

    /// Returns the preflights of an exchange's connection and key, and creates them.
    fn of(&self, exchange: &Exchange) -> SharedPreflights {
        let own = (exchange.peer.session, exchange.isolation.clone());
        let mut keys = self.keys.borrow_mut();
        if !keys.contains_key(&own) && keys.len() >= self.max_keys {
            keys.retain(|_, of_key| !of_key.borrow_mut().cache.is_idle(now()));
            if keys.len() >= self.max_keys {
                keys.clear();
            }
        }
        Rc::clone(keys.entry(own).or_default())
    }

    /// Forgets the preflights of the parts of isolation keys that belong to a connection of a
    /// browser.
    pub fn end_parts_of(&self, connection: u64) {
        let mut keys = self.keys.borrow_mut();
        keys.retain(|(_, isolation), _| isolation.connection() != connection);
    }

    /// Answers a preflight, or sends it.
    fn pass(&self, of_key: SharedPreflights, key: PreflightKey, exchange: Exchange) -> Reply {
        let next = Rc::clone(&self.next);
        Reply::generate(|mut sink| async move {
            let mut step = of_key.borrow_mut().begin(&key);
            if step == PreflightStep::Wait {
                let end = of_key.borrow().ends.get(&key).cloned();
                if let Some(end) = end {
                    // A stalled preflight delays those that have joined it once.
                    let _: Result<(), _> = timeout(JOIN_TIMEOUT, end.notified()).await;
                }
                step = of_key.borrow_mut().begin(&key);
            }
            if let PreflightStep::Respond(head) = step {
                METRICS.preflights_answered.add(1);
                sink.send(Part::Head(head)).await;
                return Ok(());
            }
            let end = Rc::<Notify>::default();
            if step == PreflightStep::Send {
                let ends = &mut of_key.borrow_mut().ends;
                ends.insert(key.clone(), Rc::clone(&end));
            }
            let sent = Sent {
                of_key,
                key,
                end,
                head: None,
            };
            pass(next.call(exchange), sent, &mut sink).await
        })
    }

    /// Watches the answer to a request that may end a permission.
    fn watch(&self, exchange: Exchange) -> Reply {
        let own = (exchange.peer.session, exchange.isolation.clone());
        let of_key = self.keys.borrow().get(&own).cloned();
        let has_answers = |of_key: &SharedPreflights| !of_key.borrow().cache.is_empty();
        let Some(of_key) = of_key.filter(has_answers) else {
            return self.next.call(exchange);
        };
        let request = Arc::clone(&exchange.request);
        Reply::new(WatchedReply {
            reply: self.next.call(exchange),
            request,
            of_key,
        })
    }
}

impl Stage for AnswerPreflights {
    fn call(&self, exchange: Exchange) -> Reply {
        let request = &exchange.request;
        if request.method != Method::Options {
            return match request.fields.contains("origin") {
                true => self.watch(exchange),
                false => self.next.call(exchange),
            };
        }
        let key = PreflightKey::of(request).filter(|_| exchange.body.is_empty());
        match key {
            Some(key) => self.pass(self.of(&exchange), key, exchange),
            None => self.next.call(exchange),
        }
    }
}

impl PreflightsOfKey {
    fn begin(&mut self, key: &PreflightKey) -> PreflightStep {
        self.cache.begin(now(), key)
    }

    fn note_end(&mut self, key: &PreflightKey, end: &Rc<Notify>) {
        if self.ends.get(key).is_some_and(|own| Rc::ptr_eq(own, end)) {
            self.ends.remove(key);
        }
        end.notify_waiters();
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// Passes the reply to a preflight on. The preflight has ended with its head.
async fn pass(mut reply: Reply, sent: Sent, sink: &mut Sink) -> Result<(), Error> {
    let mut sent = Some(sent);
    while let Some(part) = reply.part().await {
        let part = part?;
        if let Part::Head(head) = &part
            && let Some(mut sent) = sent.take()
        {
            sink.set_supply(reply.supply());
            sent.head = Some(head.clone());
        }
        sink.send(part).await;
    }
    Ok(())
}

/// A preflight that was sent. It ends when it is dropped.
struct Sent {
    of_key: SharedPreflights,
    key: PreflightKey,
    /// Tells that the preflight has ended.
    end: Rc<Notify>,
    /// The answer, if it has come.
    head: Option<ResponseHead>,
}

impl Drop for Sent {
    fn drop(&mut self) {
        let mut of_key = self.of_key.borrow_mut();
        of_key.cache.end(now(), &self.key, self.head.as_ref());
        of_key.note_end(&self.key, &self.end);
    }
}

/// The reply to a request of a script, on its way to the browser.
struct WatchedReply {
    reply: Reply,
    request: Arc<RequestHead>,
    of_key: SharedPreflights,
}

impl Parts for WatchedReply {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let part = self.reply.poll_part(cx);
        let cache = &mut self.of_key.borrow_mut().cache;
        match &part {
            Poll::Ready(Some(Ok(Part::Head(head)))) => cache.note_response(&self.request, head),
            Poll::Ready(Some(Err(_))) => cache.note_failure(&self.request),
            _ => {}
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use bytes::Bytes;
    use tandem_http::Scheme;
    use tokio::time::sleep;

    use super::*;

    /// The time that the path and the origin take for an answer.
    const ROUND_TRIP: Duration = Duration::from_millis(400);

    /// An origin behind a slow path, which counts its requests.
    struct Api {
        asked: Cell<usize>,
        /// The origin permits requests of pages of another origin.
        permits: Cell<bool>,
    }

    impl Stage for Rc<Api> {
        fn call(&self, _: Exchange) -> Reply {
            self.asked.set(self.asked.get() + 1);
            let mut head = ResponseHead::new(200);
            if self.permits.get() {
                head.fields.push("access-control-allow-origin", "*");
                head.fields.push("access-control-max-age", "60");
            }
            Reply::generate(|mut sink| async move {
                sleep(ROUND_TRIP).await;
                sink.send(Part::Head(head)).await;
                sink.send(Part::Data(Bytes::from_static(b"ok"))).await;
                Ok(())
            })
        }
    }

    fn stage() -> (AnswerPreflights, Rc<Api>) {
        let api = Rc::new(Api {
            asked: Cell::new(0),
            permits: Cell::new(true),
        });
        let stage = AnswerPreflights::new(2, Rc::new(Rc::clone(&api)));
        (stage, api)
    }

    fn exchange(method: Method, user: &str) -> Exchange {
        let mut request = RequestHead {
            method,
            ..RequestHead::get(Scheme::Http, "api.test", "/x")
        };
        request.fields.push("origin", "http://page.test");
        if request.method == Method::Options {
            request.fields.push("access-control-request-method", "GET");
        }
        Exchange {
            isolation: Isolation::new(user.as_bytes(), b""),
            ..Exchange::internal(request)
        }
    }

    /// Returns the status of a reply, once it is complete.
    async fn status(mut reply: Reply) -> u16 {
        let mut status = 0;
        while let Some(part) = reply.part().await {
            if let Part::Head(head) = part.expect("nothing fails") {
                status = head.status;
            }
        }
        status
    }

    #[tokio::test(start_paused = true)]
    async fn permitted_preflight_is_answered_at_once() {
        let (stage, api) = stage();
        let ask = |user| status(stage.call(exchange(Method::Options, user)));
        assert_eq!(ask("anna").await, 200);
        let began = Instant::now();
        assert_eq!((ask("anna").await, began.elapsed()), (204, Duration::ZERO));
        assert_eq!(
            (ask("bert").await, api.asked.get()),
            (200, 2),
            "another key"
        );
        sleep(Duration::from_secs(60)).await;
        assert_eq!((ask("anna").await, api.asked.get()), (200, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn answer_serves_the_connection_that_asked() {
        let (stage, api) = stage();
        for (session, asked) in [(1, 1), (2, 2), (1, 2)] {
            let mut preflight = exchange(Method::Options, "anna");
            preflight.peer.session = session;
            status(stage.call(preflight)).await;
            assert_eq!(api.asked.get(), asked, "connection {session}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_of_a_connections_part_end_with_it() {
        let (stage, api) = stage();
        let ask = |connection| {
            let mut preflight = exchange(Method::Options, "anna");
            preflight.isolation = preflight.isolation.within(connection);
            status(stage.call(preflight))
        };
        assert_eq!((ask(1).await, ask(2).await), (200, 200));
        stage.end_parts_of(1);
        assert_eq!((ask(1).await, ask(2).await, api.asked.get()), (200, 204, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn joined_preflights_leave_together_after_a_refusal() {
        let (stage, api) = stage();
        api.permits.set(false);
        let ask = || status(stage.call(exchange(Method::Options, "anna")));
        let began = Instant::now();
        assert_eq!(
            tokio::join!(ask(), ask(), ask(), ask()),
            (200, 200, 200, 200)
        );
        assert_eq!((api.asked.get(), began.elapsed()), (4, 2 * ROUND_TRIP));
    }

    #[tokio::test(start_paused = true)]
    async fn preflights_under_way_are_joined() {
        let (stage, api) = stage();
        let ask = || status(stage.call(exchange(Method::Options, "anna")));
        let began = Instant::now();
        let joined = tokio::join!(ask(), ask(), ask());
        assert_eq!(joined, (200, 204, 204));
        assert_eq!((api.asked.get(), began.elapsed()), (1, ROUND_TRIP));
    }

    #[tokio::test(start_paused = true)]
    async fn preflight_leaves_another_that_stalls() {
        let (stage, api) = stage();
        let ask = || status(stage.call(exchange(Method::Options, "anna")));
        let mut stalled = stage.call(exchange(Method::Options, "anna"));
        let first = timeout(Duration::ZERO, stalled.part()).await;
        assert!(first.is_err(), "nobody polls it any more");
        let began = Instant::now();
        assert_eq!(ask().await, 200);
        assert_eq!(
            (api.asked.get(), began.elapsed()),
            (2, JOIN_TIMEOUT + ROUND_TRIP)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_or_refused_preflight_answers_no_other() {
        let (stage, api) = stage();
        let ask = || status(stage.call(exchange(Method::Options, "anna")));
        let cancelled = tokio::time::timeout(ROUND_TRIP / 2, ask());
        assert!(tokio::join!(cancelled, ask()).0.is_err());
        assert_eq!(api.asked.get(), 2);
        let (stage, api) = self::stage();
        api.permits.set(false);
        let ask = || status(stage.call(exchange(Method::Options, "anna")));
        assert_eq!(tokio::join!(ask(), ask()), (200, 200));
        assert_eq!(api.asked.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn refused_request_ends_its_preflight_permission() {
        let (stage, api) = stage();
        let ask = |method| status(stage.call(exchange(method, "anna")));
        ask(Method::Options).await;
        assert_eq!(ask(Method::Get).await, 200);
        assert_eq!(ask(Method::Options).await, 204);
        api.permits.set(false);
        ask(Method::Get).await;
        assert_eq!(ask(Method::Options).await, 200);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_with_answers_are_bounded() {
        let (stage, _) = stage();
        let ask = |user| status(stage.call(exchange(Method::Options, user)));
        for user in ["anna", "bert", "carl"] {
            ask(user).await;
            assert!(stage.keys.borrow().len() <= 2);
        }
        assert_eq!((ask("carl").await, ask("anna").await), (204, 200));
    }
}
