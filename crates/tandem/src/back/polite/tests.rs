//! Tests of polite exchanges, in virtual time.

use std::cell::Cell;
use std::time::Duration;

use bytes::Bytes;
use tandem_http::{Method, RequestHead, ResponseHead};
use tokio::time::Instant;

use super::*;
use crate::exchange::Peer;
use crate::priority::{Precedence, SharedPriority};

/// An origin that answers after a second, and refuses more than `most` requests at once.
struct Scripted {
    most: usize,
    refusal: fn() -> Reply,
    now: Cell<usize>,
    greatest: Cell<usize>,
    refused: Cell<usize>,
    asked: Cell<usize>,
}

impl Scripted {
    fn new(most: usize, refusal: fn() -> Reply) -> Rc<Self> {
        Rc::new(Self {
            most,
            refusal,
            now: Cell::new(0),
            greatest: Cell::new(0),
            refused: Cell::new(0),
            asked: Cell::new(0),
        })
    }

    fn stage(self: &Rc<Self>) -> Rc<dyn Stage> {
        let this = Rc::clone(self);
        Rc::new(move |_: Exchange| {
            this.asked.set(this.asked.get() + 1);
            if this.now.get() >= this.most {
                this.refused.set(this.refused.get() + 1);
                return (this.refusal)();
            }
            this.now.set(this.now.get() + 1);
            this.greatest.set(this.greatest.get().max(this.now.get()));
            let this = Rc::clone(&this);
            Reply::generate(|mut sink| async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                sink.send(Part::Head(ResponseHead::new(200))).await;
                sink.send(Part::Data(Bytes::from_static(&[0; 1000]))).await;
                this.now.set(this.now.get() - 1);
                Ok(())
            })
        })
    }
}

fn exchange(method: Method, host: &str, push: bool) -> Exchange {
    let request = RequestHead {
        method,
        ..RequestHead::get(Scheme::Http, host, "/")
    };
    Exchange {
        peer: Peer {
            session: 1,
            ..Peer::none()
        },
        priority: SharedPriority::new(Precedence {
            push,
            ..Precedence::default()
        }),
        ..Exchange::internal(request)
    }
}

async fn status(mut reply: Reply) -> Result<u16, Error> {
    let mut status = 0;
    while let Some(part) = reply.part().await {
        if let Part::Head(head) = part? {
            status = head.status;
        }
    }
    Ok(status)
}

/// Requests `count` resources at once, early or not. Returns the statuses that are not 200.
async fn load(polite: &Rc<Polite>, count: usize, push: bool) -> Vec<Result<u16, Error>> {
    let local = tokio::task::LocalSet::new();
    let answers = local.run_until(async {
        let tasks: Vec<_> = (0..count)
            .map(|_| {
                let reply = polite.call(exchange(Method::Get, "a.test", push));
                tokio::task::spawn_local(status(reply))
            })
            .collect();
        let mut answers = Vec::new();
        for task in tasks {
            answers.push(task.await.expect("a task"));
        }
        answers
    });
    let answers = answers.await;
    answers.into_iter().filter(|it| *it != Ok(200)).collect()
}

fn unavailable() -> Reply {
    Reply::ready(ResponseHead::new(503), Bytes::new())
}

fn reset() -> Reply {
    Reply::fail(Error::new(Kind::Reset, Side::Origin, "reset"))
}

#[tokio::test(start_paused = true)]
async fn connections_grow_up_to_the_largest_limit() {
    let origin = Scripted::new(usize::MAX, unavailable);
    let polite = self::polite(origin.stage());
    assert_eq!(load(&polite, 300, true).await, []);
    // Pushes leave two places to requests.
    assert_eq!(origin.greatest.get(), 30);
}

#[tokio::test(start_paused = true)]
async fn refusals_above_six_connections_are_hidden() {
    for refusal in [unavailable, reset] {
        for most in [6, 7, 10, 20] {
            let origin = Scripted::new(most, refusal);
            let polite = self::polite(origin.stage());
            assert_eq!(load(&polite, 200, false).await, [], "limit {most}");
            assert!(origin.greatest.get() <= most);
            // At most one burst is refused, since the limit falls at the first refusal.
            let bursts = if most == 6 { 0..=12 } else { 0..=24 };
            assert!(
                bursts.contains(&origin.refused.get()),
                "{most}: {}",
                origin.refused.get()
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_within_six_connections_are_passed_on() {
    let origin = Scripted::new(3, unavailable);
    let polite = self::polite(origin.stage());
    let failed = load(&polite, 12, false).await;
    assert!(failed.contains(&Ok(503)), "{failed:?}");
    assert_eq!(origin.asked.get(), 12, "no request is repeated");
}

/// Idle connections may be those that an origin counts.
#[tokio::test(start_paused = true)]
async fn refusal_beside_idle_connections_is_hidden() {
    for (grows, expected) in [(true, Ok(200)), (false, Err(Kind::ConnectionRefused))] {
        let asked = Cell::new(0);
        let polite = self::polite(Rc::new(move |_: Exchange| match asked.replace(1) {
            0 => Reply::fail(Error::new(Kind::ConnectionRefused, Side::Peer, "refused")),
            _ => Reply::ready(ResponseHead::new(200), Bytes::new()),
        }));
        if grows {
            grow(&polite);
        }
        let local = tokio::task::LocalSet::new();
        let reply = polite.call(exchange(Method::Get, "a.test", false));
        let answer = local.run_until(status(reply)).await;
        assert_eq!(answer.map_err(|error| error.kind), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn unrepeatable_request_waits_for_six_connections() {
    let origin = Scripted::new(usize::MAX, unavailable);
    let polite = self::polite(origin.stage());
    grow(&polite);
    let local = tokio::task::LocalSet::new();
    let crowd = local.run_until(async {
        let get = || {
            let reply = polite.call(exchange(Method::Get, "a.test", false));
            tokio::task::spawn_local(status(reply));
        };
        (0..40).for_each(|_| get());
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(origin.now.get(), 32);
        let mut post = polite.call(exchange(Method::Post, "a.test", false));
        let head = post.part().await;
        assert!(matches!(head, Some(Ok(Part::Head(_)))));
        assert!(origin.now.get() <= FLOOR, "{}", origin.now.get());
        while post.part().await.is_some() {}
        (0..40).for_each(|_| get());
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(origin.now.get() > FLOOR, "the limit returns");
    });
    crowd.await;
}

#[tokio::test(start_paused = true)]
async fn sessions_and_origins_have_separate_limits() {
    let origin = Scripted::new(usize::MAX, unavailable);
    let polite = self::polite(origin.stage());
    let state = &polite.state;
    state.growths.note(&key(1, "a.test"), |growth, now| {
        growth.note_wait(now);
        growth.note_response(now, 1, true);
    });
    assert_eq!(state.growths.exchanges(&key(1, "a.test")), FLOOR + 1);
    assert_eq!(state.growths.exchanges(&key(2, "a.test")), FLOOR);
    assert_eq!(state.growths.exchanges(&key(1, "b.test")), FLOOR);
}

#[test]
fn socks_refusal_names_the_site() {
    let error = Error::new(Kind::ConnectionRefused, Side::Peer, "is the gateway there?");
    let error = at_origin(error);
    assert_eq!(error.side, Side::Origin);
    assert!(!error.detail.contains("gateway"));
}

fn polite(origin: Rc<dyn Stage>) -> Rc<Polite> {
    let (trim, depth) = (Box::new(|_, _: &_, _| ()), Box::new(|_: &_| 1));
    Rc::new(Polite::new(origin, 32, 256, Pace::Doubling, trim, depth))
}

fn key(session: u64, host: &str) -> OriginKey {
    let target = Target::new(host.into(), 80);
    (session, (Scheme::Http, target))
}

/// Raises the limit of session 1 at `a.test` to 32.
fn grow(polite: &Polite) {
    for _ in 0..26 {
        let state = &polite.state;
        state.growths.note(&key(1, "a.test"), |growth, now| {
            growth.note_response(now, 1, true);
        });
    }
}

/// Never responds to GET, and responds to other methods at once. Counts the GETs under way.
fn silent(under_way: &Rc<Cell<usize>>) -> Rc<dyn Stage> {
    struct UnderWay(Rc<Cell<usize>>);
    impl Drop for UnderWay {
        fn drop(&mut self) {
            self.0.set(self.0.get() - 1);
        }
    }
    let under_way = Rc::clone(under_way);
    Rc::new(move |exchange: Exchange| {
        if exchange.request.method != Method::Get {
            return Reply::ready(ResponseHead::new(200), Bytes::new());
        }
        under_way.set(under_way.get() + 1);
        let counted = UnderWay(Rc::clone(&under_way));
        Reply::generate(|_| async move {
            let _counted = counted;
            std::future::pending().await
        })
    })
}

#[tokio::test(start_paused = true)]
async fn unrepeatable_request_ends_early_requests() {
    let under_way = Rc::<Cell<usize>>::default();
    let polite = self::polite(silent(&under_way));
    let local = tokio::task::LocalSet::new();
    let scene = local.run_until(async {
        grow(&polite);
        let joined = exchange(Method::Get, "a.test", true);
        let priority = joined.priority.clone();
        let mut early: Vec<_> = (0..40)
            .map(|_| exchange(Method::Get, "a.test", true))
            .collect();
        early.insert(3, joined);
        for exchange in early {
            tokio::task::spawn_local(status(polite.call(exchange)));
        }
        tokio::task::spawn_local(status(polite.call(exchange(Method::Get, "b.test", true))));
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(under_way.get() > 20, "{}", under_way.get());
        priority.set(Precedence::default());
        let began = Instant::now();
        let post = status(polite.call(exchange(Method::Post, "a.test", false)));
        assert_eq!(post.await, Ok(200));
        // It waits for responses, and then for the origin to learn of the ends.
        assert_eq!(began.elapsed(), Duration::from_secs(3));
        tokio::time::sleep(Duration::from_secs(29)).await;
        assert!(under_way.get() > 2);
        // All early requests have used up their time by then, one after the other.
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!(under_way.get(), 1, "the request of the browser goes on");
    });
    scene.await;
    drop(local);
    assert!(polite.state.early.is_empty());
}

#[tokio::test(start_paused = true)]
async fn unrepeatable_request_waits_for_responses() {
    let origin = Scripted::new(usize::MAX, unavailable);
    let polite = self::polite(origin.stage());
    grow(&polite);
    let local = tokio::task::LocalSet::new();
    let scene = local.run_until(async {
        let early: Vec<_> = (0..20)
            .map(|_| polite.call(exchange(Method::Get, "a.test", true)))
            .map(|reply| tokio::task::spawn_local(status(reply)))
            .collect();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let post = status(polite.call(exchange(Method::Post, "a.test", false)));
        assert_eq!(post.await, Ok(200));
        for task in early {
            assert_eq!(task.await.expect("a task"), Ok(200), "none is ended");
        }
    });
    scene.await;
    assert_eq!(origin.asked.get(), 21);
}

/// The origin learns 300 ms later that a request has ended, and takes six at once.
#[tokio::test(start_paused = true)]
async fn unrepeatable_request_waits_for_ended_ones() {
    struct UnderWay(Rc<Cell<usize>>);
    impl Drop for UnderWay {
        fn drop(&mut self) {
            let counted = Rc::clone(&self.0);
            tokio::task::spawn_local(async move {
                tokio::time::sleep(Duration::from_millis(300)).await;
                counted.set(counted.get() - 1);
            });
        }
    }
    for push in [true, false] {
        let counted = Rc::<Cell<usize>>::default();
        let of_origin = Rc::clone(&counted);
        let polite = self::polite(Rc::new(move |exchange: Exchange| {
            let before = of_origin.get();
            if exchange.request.method != Method::Get {
                let status = if before < FLOOR { 200 } else { 503 };
                return Reply::ready(ResponseHead::new(status), Bytes::new());
            }
            of_origin.set(before + 1);
            let counted = UnderWay(Rc::clone(&of_origin));
            Reply::generate(|_| async move {
                let _counted = counted;
                std::future::pending().await
            })
        }));
        let local = tokio::task::LocalSet::new();
        let scene = local.run_until(async {
            grow(&polite);
            let get = || {
                let reply = polite.call(exchange(Method::Get, "a.test", push));
                tokio::task::spawn_local(status(reply))
            };
            let tasks: Vec<_> = (0..20).map(|_| get()).collect();
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert_eq!(counted.get(), 20);
            if !push {
                // The browser leaves the page.
                tasks.iter().for_each(|task| task.abort());
            }
            let post = status(polite.call(exchange(Method::Post, "a.test", false)));
            assert_eq!(post.await, Ok(200), "{push}");
        });
        scene.await;
    }
}

#[tokio::test(start_paused = true)]
async fn refused_early_request_is_not_repeated() {
    for (refusal, retry_after, asked) in [
        (unavailable as fn() -> Reply, 60, 30),
        (busy as fn() -> Reply, 120, 30),
    ] {
        let origin = Scripted::new(0, refusal);
        let polite = self::polite(origin.stage());
        grow(&polite);
        assert_eq!(load(&polite, 100, true).await.len(), 100);
        assert!(origin.asked.get() <= asked, "{}", origin.asked.get());
        let before = origin.asked.get();
        tokio::time::advance(Duration::from_secs(retry_after - 1)).await;
        load(&polite, 3, true).await;
        assert_eq!(origin.asked.get(), before, "growth is paused");
        load(&polite, 1, false).await;
        assert_eq!(origin.asked.get(), before + 1, "the browser decides itself");
        tokio::time::advance(Duration::from_secs(4000)).await;
        load(&polite, 1, true).await;
        assert_eq!(origin.asked.get(), before + 2);
    }
}

fn busy() -> Reply {
    let mut head = ResponseHead::new(429);
    head.fields.push("retry-after", "120");
    Reply::ready(head, Bytes::new())
}

#[test]
fn retry_after_is_seconds_or_a_date() {
    let of = |value: &str| {
        let mut head = ResponseHead::new(503);
        head.fields.push("retry-after", value);
        retry_after(&head)
    };
    assert_eq!(of(" 120 "), Duration::from_secs(120));
    for value in ["", "-1", "soon", "Sun, 06 Nov 1994 08:49:37 GMT"] {
        assert_eq!(of(value), Duration::ZERO, "{value}");
    }
    assert!(of("Fri, 31 Dec 9999 23:59:59 GMT") > Duration::from_secs(1 << 32));
    assert_eq!(retry_after(&ResponseHead::new(503)), Duration::ZERO);
}

#[test]
fn proxy_failure_is_no_refusal() {
    for (side, expected) in [
        (Side::Via, false),
        (Side::Local, false),
        (Side::Origin, true),
        (Side::Peer, true),
    ] {
        let error = Error::new(Kind::Reset, side, "reset");
        assert_eq!(is_refusal(&error), expected, "{side:?}");
    }
}

/// Requests one resource while ten others are under way. Returns the status.
async fn crowded(polite: &Rc<Polite>) -> Result<u16, Error> {
    grow(polite);
    let local = tokio::task::LocalSet::new();
    let answer = local.run_until(async {
        for _ in 0..10 {
            let reply = polite.call(exchange(Method::Get, "a.test", false));
            tokio::task::spawn_local(status(reply));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        status(polite.call(exchange(Method::Get, "a.test", false))).await
    });
    answer.await
}

#[tokio::test(start_paused = true)]
async fn timeout_is_passed_on() {
    let timeout = || Reply::fail(Error::new(Kind::Timeout, Side::Origin, "late"));
    let origin = Scripted::new(10, timeout);
    let answer = crowded(&polite(origin.stage())).await;
    assert_eq!(answer.map_err(|error| error.kind), Err(Kind::Timeout));
    assert_eq!(origin.refused.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn refusal_after_hints_is_hidden() {
    let hinted = || {
        Reply::generate(|mut sink| async move {
            sink.send(Part::Hints(ResponseHead::new(103))).await;
            sink.send(Part::Head(ResponseHead::new(503))).await;
            Ok(())
        })
    };
    let origin = Scripted::new(10, hinted);
    assert_eq!(crowded(&polite(origin.stage())).await, Ok(200));
    assert_eq!(origin.refused.get(), 1);
}

#[tokio::test]
async fn state_ends_with_its_session() {
    let polite = self::polite(Scripted::new(1, unavailable).stage());
    let state = &polite.state;
    for session in [1, 2] {
        state.growths.note(&key(session, "a.test"), |_, _| ());
    }
    let one = key(1, "a.test");
    let hold = Hold::new(state, &one);
    polite.end_session(1);
    let known = || state.growths.len();
    assert_eq!(known(), 1);
    drop(hold);
    assert_eq!(known(), 1, "a late release adds nothing");
}

#[tokio::test(start_paused = true)]
async fn origins_at_rest_are_bounded() {
    let polite = self::polite(Scripted::new(1, unavailable).stage());
    let state = &polite.state;
    for number in 0..MAX_ORIGINS + 100 {
        tokio::time::advance(Duration::from_millis(1)).await;
        state
            .growths
            .note(&key(1, &format!("{number}.test")), |growth, now| {
                growth.note_refusal(now, Refusal::Connection);
            });
    }
    let growths = &state.growths;
    assert_eq!(growths.len(), MAX_ORIGINS);
    assert!(!growths.contains(&key(1, "99.test")), "the oldest");
    assert!(growths.contains(&key(1, "100.test")));
}

/// An origin answered 429 with `Retry-After`, and many other origins follow.
#[tokio::test(start_paused = true)]
async fn origin_that_asks_to_wait_is_forgotten_last() {
    let polite = self::polite(Scripted::new(1, unavailable).stage());
    let growths = &polite.state.growths;
    let busy = key(1, "busy.test");
    let wait = Duration::from_secs(600);
    growths.note(&busy, |growth, now| {
        growth.note_refusal(now, Refusal::Response(wait));
    });
    for number in 0..MAX_ORIGINS + 100 {
        tokio::time::advance(Duration::from_millis(1)).await;
        growths.note(&key(1, &format!("{number}.test")), |_, _| ());
    }
    assert_eq!(growths.len(), MAX_ORIGINS);
    assert!(growths.refuses_early(&busy));
    tokio::time::advance(wait).await;
    growths.note(&key(1, "other.test"), |_, _| ());
    assert!(!growths.contains(&busy), "the wait has ended");
}

#[tokio::test(start_paused = true)]
async fn refused_early_requests_have_no_response() {
    let origin = Scripted::new(7, unavailable);
    let polite = self::polite(origin.stage());
    let failed = load(&polite, 200, true).await;
    assert!(origin.refused.get() > 0);
    assert!(
        !failed.is_empty() && failed.iter().all(Result::is_err),
        "{failed:?}"
    );
    // Six connections would have met the refusal as well.
    let polite = self::polite(Scripted::new(0, unavailable).stage());
    assert_eq!(load(&polite, 1, true).await, [Ok(503)]);
}

/// A refusal whose body ends after a while, or never. Its connection is kept if it is read whole.
#[tokio::test(start_paused = true)]
async fn refused_response_is_read_to_its_end() {
    thread_local! {
        static READ_WHOLE: Cell<usize> = const { Cell::new(0) };
    }
    let refusals: [fn() -> Reply; 2] = [
        || {
            Reply::generate(|mut sink| async move {
                sink.send(Part::Head(ResponseHead::new(503))).await;
                sink.send(Part::Data(Bytes::from_static(b"busy"))).await;
                READ_WHOLE.set(READ_WHOLE.get() + 1);
                Ok(())
            })
        },
        || {
            Reply::generate(|mut sink| async move {
                sink.send(Part::Head(ResponseHead::new(503))).await;
                std::future::pending().await
            })
        },
    ];
    for (refusal, whole) in refusals.into_iter().zip([1, 1]) {
        let origin = Scripted::new(10, refusal);
        assert_eq!(crowded(&polite(origin.stage())).await, Ok(200));
        assert_eq!(origin.refused.get(), 1);
        assert_eq!(READ_WHOLE.get(), whole);
    }
}

/// The origin counts a request whose response was not read whole.
#[tokio::test(start_paused = true)]
async fn refused_response_that_was_read_counts_no_more() {
    let endless = || {
        Reply::generate(|mut sink| async move {
            sink.send(Part::Head(ResponseHead::new(503))).await;
            std::future::pending().await
        })
    };
    for (refusal, counts) in [(unavailable as fn() -> Reply, false), (endless, true)] {
        let polite = self::polite(Scripted::new(0, refusal).stage());
        grow(&polite);
        assert_eq!(load(&polite, 1, true).await.len(), 1);
        let until = polite.state.growths.abandoned_until(&key(1, "a.test"), 0);
        assert_eq!(until.is_some(), counts);
    }
}
