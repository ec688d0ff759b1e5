//! The wait of a request for the answer of the fleet, before the request goes to its origin.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tandem_cache::{Fetch, Incoming};
use tokio::sync::oneshot;

use super::CacheSession;
use super::reply::set_phase;
use crate::metrics::METRICS;
use crate::response_cache::flight::{Flight, FlightPhase};

/// The time that a request waits. The timer counts whole milliseconds and rounds up, so the wait
/// ends within two.
const LOOKUP_TIMEOUT: Duration = Duration::from_millis(1);

/// A request to the origin, with the flight that it leads.
pub(super) type Led = (Box<Fetch>, Option<Arc<Flight>>);

/// A request that waits for the fleet.
pub(super) struct Asking {
    session: Rc<CacheSession>,
    /// The request to the origin; `None` once it was taken.
    fetch: Option<Led>,
    answer: oneshot::Receiver<Incoming>,
    limit: Pin<Box<tokio::time::Sleep>>,
}

impl Asking {
    /// Asks the fleet for the response to a fetch. Returns the fetch if there is no fleet.
    pub(super) fn new(
        session: &Rc<CacheSession>,
        fetch: Box<Fetch>,
        flight: Option<Arc<Flight>>,
    ) -> Result<Self, Led> {
        let cache = &session.cache;
        let answer = cache.link().and_then(|link| {
            let name = cache.lock().wanted(cache.now(), &fetch)?;
            link.ask(name)
        });
        let Some(answer) = answer else {
            return Err((fetch, flight));
        };
        METRICS.fleet_lookups.add(1);
        Ok(Self {
            session: Rc::clone(session),
            fetch: Some((fetch, flight)),
            answer,
            limit: Box::pin(tokio::time::sleep(LOOKUP_TIMEOUT)),
        })
    }

    /// Polls until the answer is there or has taken too long. Returns the fetch that remains, or
    /// `None` if a response of the fleet was stored in its place.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Led>> {
        let incoming = match Pin::new(&mut self.answer).poll(cx) {
            Poll::Ready(answer) => answer.ok(),
            Poll::Pending => {
                ready!(self.limit.as_mut().poll(cx));
                METRICS.fleet_lookups_late.add(1);
                None
            }
        };
        let Some((fetch, flight)) = self.fetch.take() else {
            return Poll::Ready(None);
        };
        let cache = &self.session.cache;
        let is_adopted = incoming.is_some_and(|it| cache.lock().adopt(cache.now(), &fetch, it));
        if !is_adopted {
            return Poll::Ready(Some((fetch, flight)));
        }
        METRICS.fleet_lookups_hit.add(1);
        cache.end_flight(&fetch);
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
