//! The wait of a request for the answer of the disk or of the fleet, before the request goes to its
//! origin.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tandem_cache::{Fetch, Incoming, OnDisk};
use tokio::sync::oneshot;

use super::CacheSession;
use super::reply::set_phase;
use crate::metrics::METRICS;
use crate::response_cache::flight::{Flight, FlightPhase};

/// A place that may have the response to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AskedPlace {
    /// The gateway's disk.
    Disk,
    /// Another gateway of the fleet.
    Fleet,
}

impl AskedPlace {
    /// The place to ask after this one.
    pub(super) const fn next(self) -> Option<Self> {
        match self {
            Self::Disk => Some(Self::Fleet),
            Self::Fleet => None,
        }
    }

    /// The time that a request waits. The timer counts whole milliseconds and rounds up, so the
    /// wait ends within a millisecond more.
    const fn timeout(self) -> Duration {
        match self {
            // The index knows that the file exists, so most waits end with it. The limit is about
            // the time that a rotating disk needs for one file.
            Self::Disk => Duration::from_millis(19),
            Self::Fleet => Duration::from_millis(1),
        }
    }

    fn note_late(self) {
        match self {
            Self::Disk => METRICS.cache_disk_late.add(1),
            Self::Fleet => METRICS.fleet_lookups_late.add(1),
        }
    }
}

/// A request to the origin, with the flight that it leads.
pub(super) type Led = (Box<Fetch>, Option<Arc<Flight>>);

/// A request that waits for an answer.
pub(super) struct Asking {
    session: Rc<CacheSession>,
    source: AskedPlace,
    /// The response on the disk that was asked for.
    on_disk: Option<OnDisk>,
    /// The request to the origin; `None` once it was taken.
    fetch: Option<Led>,
    answer: oneshot::Receiver<Incoming>,
    limit: Pin<Box<tokio::time::Sleep>>,
}

impl Asking {
    /// Asks a place for the response to a fetch. Returns the fetch if the place has none.
    pub(super) fn new(
        session: &Rc<CacheSession>,
        source: AskedPlace,
        led: Led,
    ) -> Result<Self, Led> {
        let (cache, fetch) = (&session.cache, &led.0);
        let asked = match source {
            AskedPlace::Disk => cache.disk().and_then(|link| {
                let found = cache.lock().on_disk(cache.now(), fetch)?;
                Some((link.ask(found.name)?, Some(found)))
            }),
            AskedPlace::Fleet => cache.link().and_then(|link| {
                let name = cache.lock().wanted(cache.now(), fetch)?;
                let answer = link.ask(name)?;
                METRICS.fleet_lookups.add(1);
                Some((answer, None))
            }),
        };
        let Some((answer, on_disk)) = asked else {
            return Err(led);
        };
        Ok(Self {
            session: Rc::clone(session),
            source,
            on_disk,
            fetch: Some(led),
            answer,
            limit: Box::pin(tokio::time::sleep(source.timeout())),
        })
    }

    /// The place that was asked.
    pub(super) const fn source(&self) -> AskedPlace {
        self.source
    }

    /// Stores the answer in place of a request to the origin. Returns whether it may serve.
    fn adopt(&self, fetch: &Fetch, incoming: Incoming) -> bool {
        let cache = &self.session.cache;
        let now = cache.now();
        let mut locked = cache.lock();
        match self.on_disk {
            Some(found) => locked.adopt_from_disk(now, fetch, found, incoming),
            None => locked.adopt(now, fetch, incoming),
        }
    }

    /// Returns the request to the origin that may follow.
    pub(super) fn fetch(&self) -> Option<&Fetch> {
        self.fetch.as_ref().map(|(fetch, _)| &**fetch)
    }

    /// Polls until the answer is there or has taken too long. Returns the fetch that remains, or
    /// `None` if the answer was stored in its place.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Led>> {
        let incoming = match Pin::new(&mut self.answer).poll(cx) {
            Poll::Ready(answer) => answer.ok(),
            Poll::Pending => {
                ready!(self.limit.as_mut().poll(cx));
                self.source.note_late();
                None
            }
        };
        let Some((fetch, flight)) = self.fetch.take() else {
            return Poll::Ready(None);
        };
        if !incoming.is_some_and(|incoming| self.adopt(&fetch, incoming)) {
            return Poll::Ready(Some((fetch, flight)));
        }
        match self.source {
            AskedPlace::Disk => METRICS.cache_disk_hits.add(1),
            AskedPlace::Fleet => METRICS.fleet_lookups_hit.add(1),
        }
        self.session.cache.end_flight(&fetch);
        set_phase(flight, FlightPhase::Released { alone: false });
        Poll::Ready(None)
    }
}

/// A request that is given up lets those that wait decide again.
impl Drop for Asking {
    fn drop(&mut self) {
        if let Some((fetch, flight)) = self.fetch.take() {
            self.session.cache.end_flight(&fetch);
            set_phase(flight, FlightPhase::Released { alone: false });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use bytes::Bytes;
    use tandem_cache::{Config, Namer, Sharing};
    use tandem_http::{RequestHead, ResponseHead, Scheme};
    use tokio::time::Instant;

    use super::super::CacheStage;
    use super::*;
    use crate::exchange::{Exchange, Part, Peer, Reply};
    use crate::response_cache::ResponseCache;
    use crate::response_cache::link::{LookupQuestions, link};
    use crate::stage::Stage;

    /// A gateway that notes the times of requests to its origin.
    struct Gateway {
        cache: Arc<ResponseCache>,
        stage: CacheStage,
        asked: Rc<RefCell<Vec<Instant>>>,
        questions: LookupQuestions,
    }

    fn gateway() -> Gateway {
        let cache = Arc::new(ResponseCache::new(Config {
            sharing: Sharing::Origin,
            memory: 1 << 20,
            min_users: 1,
        }));
        let (link, questions) = link();
        let namer = Namer::new(|target| {
            let mut name = [0; 16];
            target
                .iter()
                .for_each(|byte| name[usize::from(byte % 16)] += 1);
            name
        });
        cache.join_fleet(Some(namer), &Arc::new(link));
        cache.lock().note_heard(cache.now());
        over(cache, questions)
    }

    /// Returns a gateway with this cache.
    fn over(cache: Arc<ResponseCache>, questions: LookupQuestions) -> Gateway {
        let asked = Rc::new(RefCell::new(Vec::new()));
        let times = Rc::clone(&asked);
        let origin: Rc<dyn Stage> = Rc::new(move |_: Exchange| {
            times.borrow_mut().push(Instant::now());
            let mut head = ResponseHead::new(200);
            head.fields.push("cache-control", "max-age=600");
            Reply::ready(head, Bytes::from_static(b"body"))
        });
        let stage = CacheStage::new(&cache, Peer::none(), 1, false, origin);
        Gateway {
            cache,
            stage,
            asked,
            questions,
        }
    }

    impl Gateway {
        fn call(&self, path: &str) -> Reply {
            let request = RequestHead::get(Scheme::Http, "own.example", path);
            self.stage.call(Exchange::internal(request))
        }

        /// Requests a URL, and returns the time until the head and the requests to the origin.
        async fn get(&self, path: &str) -> (Duration, usize) {
            let (began, before) = (Instant::now(), self.asked.borrow().len());
            let mut reply = self.call(path);
            let part = reply.part().await;
            assert!(matches!(part, Some(Ok(Part::Head(_)))), "{part:?}");
            let wait = began.elapsed();
            while reply.part().await.is_some() {}
            (wait, self.asked.borrow().len() - before)
        }
    }

    async fn within<T>(work: impl Future<Output = T>) -> T {
        tokio::time::advance(Duration::from_secs(1)).await;
        tokio::task::LocalSet::new().run_until(work).await
    }

    #[tokio::test(start_paused = true)]
    async fn request_waits_two_milliseconds_at_most() {
        let mut gateway = gateway();
        within(async {
            assert_eq!(gateway.get("/down").await, (Duration::ZERO, 1));
            gateway.questions.accept();
            let mut held = Vec::new();
            for number in 0..64 {
                tokio::time::advance(Duration::from_micros(137)).await;
                let (wait, asked) = gateway.get(&format!("/{number}")).await;
                assert!(
                    !wait.is_zero() && wait <= Duration::from_millis(2),
                    "{wait:?}"
                );
                assert_eq!(asked, 1, "the origin is asked in the end");
                held.push(gateway.questions.next().await);
            }
            // 64 questions are open, so the next request does not wait.
            assert_eq!(gateway.get("/more").await, (Duration::ZERO, 1));
            drop(held);
            assert_ne!(gateway.get("/again").await.0, Duration::ZERO);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn answer_of_the_fleet_serves_all_requests_that_wait() {
        let (lender, mut gateway) = (gateway(), gateway());
        within(async {
            lender.get("/").await;
            let due = lender.cache.lock().take_due(lender.cache.now(), 1);
            let bytes = Bytes::from(due[0].write(lender.cache.now()).expect("a clock"));
            gateway.questions.accept();
            let mut replies = [gateway.call("/"), gateway.call("/")];
            let question = gateway.questions.next().await.expect("a question");
            assert_eq!(question.name, due[0].name);
            question.answer(Incoming::read(&bytes).expect("a response"));
            for reply in &mut replies {
                let part = reply.part().await;
                assert!(matches!(part, Some(Ok(Part::Head(_)))), "{part:?}");
            }
            assert!(gateway.asked.borrow().is_empty());
            // A second request finds the response here.
            assert_eq!(gateway.get("/").await, (Duration::ZERO, 0));
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn request_waits_twenty_milliseconds_for_the_disk() {
        let cache = Arc::new(ResponseCache::new(Config {
            sharing: Sharing::Origin,
            memory: 1 << 20,
            min_users: 1,
        }));
        let (asking, mut questions) = link();
        let namer = Namer::new(|target| [target[target.len() - 1]; 16]);
        let mut index = tandem_cache::Index::new(1 << 20);
        index.insert([b'a'; 16], 1);
        cache.open_disk(index, namer);
        cache.ask_disk(&Arc::new(asking));
        questions.accept();
        let gateway = over(cache, link().1);
        within(async {
            // The disk does not have this one.
            assert_eq!(gateway.get("/b").await, (Duration::ZERO, 1));
            let (wait, asked) = gateway.get("/a").await;
            let limit = Duration::from_millis(20);
            assert!(wait > limit / 2 && wait <= limit, "{wait:?}");
            assert_eq!(asked, 1);
            assert!(questions.next().await.is_some());
            // The response from the origin has replaced that of the disk.
            assert!(gateway.cache.lock().disk().expect("open").is_empty());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn refusal_sends_the_request_to_the_origin_at_once() {
        let mut gateway = gateway();
        within(async {
            gateway.questions.accept();
            let mut reply = gateway.call("/");
            drop(gateway.questions.next().await);
            let began = Instant::now();
            assert!(reply.part().await.is_some());
            assert_eq!(*gateway.asked.borrow(), [began]);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn request_that_is_given_up_lets_others_ask() {
        let gateway = gateway();
        within(async {
            gateway.questions.accept();
            let given_up = gateway.call("/");
            let mut other = gateway.call("/");
            drop(given_up);
            assert!(other.part().await.is_some());
            assert_eq!(gateway.asked.borrow().len(), 1);
        })
        .await;
    }
}
