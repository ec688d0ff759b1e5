//! The reply to a request that may cross the promise of its resource on the path. The push answers
//! the request as soon as its body arrives, or when the gateway refers to it. If another request of
//! the same kind waits, both get the push.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use tandem_http::{Method, RequestHead};
use tandem_push::wire::{ASKED_AGAIN_FIELD, CROSSED_FIELD, url_hash};

use super::PushedShared;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Body, Exchange, Isolation, Part, Parts, Peer, Reply};
use crate::priority::SharedPriority;
use crate::wakers::WakerCell;

/// The requests under way without a head, by URL hash.
#[derive(Default)]
pub(super) struct Crossings {
    waiting: RefCell<HashMap<u32, Vec<Rc<Signal>>>>,
}

/// Tells a request that a push of its resource arrives.
struct Signal {
    isolation: Isolation,
    request: Arc<RequestHead>,
    arrives: Cell<bool>,
    waker: WakerCell,
}

impl Crossings {
    /// Notes that the body of a push begins to arrive, and no request has claimed it.
    pub(super) fn note_arrival(&self, url: u32) {
        let waiting = self.waiting.borrow();
        for signal in waiting.get(&url).into_iter().flatten() {
            signal.arrives.set(true);
            signal.waker.wake();
        }
    }

    /// Returns whether another request waits that differs from this one in nothing.
    fn has_equal(&self, url: u32, own: &Signal) -> bool {
        let waiting = self.waiting.borrow();
        let mut of_url = waiting.get(&url).into_iter().flatten();
        of_url.any(|other| {
            !std::ptr::eq(&**other, own)
                && other.isolation == own.isolation
                && other.request == own.request
        })
    }

    /// Returns whether a request for this URL waits that has this isolation key.
    fn has_any(&self, url: u32, isolation: &Isolation) -> bool {
        let waiting = self.waiting.borrow();
        let mut of_url = waiting.get(&url).into_iter().flatten();
        of_url.any(|other| other.isolation == *isolation)
    }

    fn join(&self, url: u32, exchange: &Exchange) -> Rc<Signal> {
        let signal = Rc::new(Signal {
            isolation: exchange.isolation.clone(),
            request: Arc::clone(&exchange.request),
            arrives: Cell::default(),
            waker: WakerCell::default(),
        });
        let mut waiting = self.waiting.borrow_mut();
        waiting.entry(url).or_default().push(Rc::clone(&signal));
        signal
    }

    fn leave(&self, url: u32, signal: &Rc<Signal>) {
        let mut waiting = self.waiting.borrow_mut();
        if let Some(of_url) = waiting.get_mut(&url) {
            of_url.retain(|own| !Rc::ptr_eq(own, signal));
            if of_url.is_empty() {
                waiting.remove(&url);
            }
        }
    }
}

/// The largest number of times that references cause a request to the gateway. From the second time
/// on, the request has a mark, and the gateway answers with a reference only if it ignores the
/// mark.
const MAX_ASKED: u8 = 3;

/// The source of the response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ResponseSource {
    /// The gateway, for the first time.
    Gateway,
    /// A push.
    Push,
    /// The gateway again, since no push was there, or the push broke off.
    GatewayAgain,
}

/// The reply to a request of the browser.
pub(super) struct Crossing {
    shared: Rc<PushedShared>,
    isolation: Isolation,
    request: Arc<RequestHead>,
    peer: Peer,
    priority: SharedPriority,
    url: u32,
    signal: Option<Rc<Signal>>,
    reply: Reply,
    source: ResponseSource,
    /// The requests to the gateway so far.
    times_asked: u8,
    /// The head was passed on.
    has_begun: bool,
}

impl Crossing {
    /// Sends an exchange on.
    pub(super) fn reply(shared: &Rc<PushedShared>, exchange: Exchange) -> Reply {
        let request = &exchange.request;
        let may_cross = request.method == Method::Get
            && exchange.body.is_empty()
            && !shared.options.is_gateway_local;
        if !may_cross {
            return shared.forward(exchange, false);
        }
        let url = url_hash(request);
        Reply::new(Self {
            isolation: exchange.isolation.clone(),
            request: Arc::clone(request),
            peer: exchange.peer,
            priority: exchange.priority.clone(),
            url,
            signal: Some(shared.crossings.join(url, &exchange)),
            times_asked: 1,
            reply: shared.forward(exchange, true),
            shared: Rc::clone(shared),
            source: ResponseSource::Gateway,
            has_begun: false,
        })
    }

    /// Takes the push that answers the request, if there is one.
    fn take_push(&mut self) -> bool {
        let shared = &self.shared;
        let current = shared.pool.current(&self.isolation);
        let pushes = current.and_then(|current| shared.find(&self.isolation, &current.mark));
        let cache_status = shared.options.cache_status;
        let own = self.signal.as_deref();
        let is_shared = own.is_some_and(|own| shared.crossings.has_equal(self.url, own));
        let serving =
            pushes.and_then(|pushes| pushes.answer(&self.request, false, cache_status, is_shared));
        let Some(serving) = serving else {
            return false;
        };
        self.reply = Reply::new(serving);
        self.source = ResponseSource::Push;
        true
    }

    fn ask_again(&mut self) {
        self.leave();
        self.source = ResponseSource::GatewayAgain;
        self.times_asked += 1;
        let mut request = Arc::clone(&self.request);
        Arc::make_mut(&mut request)
            .fields
            .set(ASKED_AGAIN_FIELD, "1");
        let exchange = Exchange {
            request,
            body: Body::empty(),
            isolation: self.isolation.clone(),
            peer: self.peer,
            priority: self.priority.clone(),
        };
        self.reply = self.shared.forward(exchange, true);
    }

    /// Stops waiting for a push. The last request for a resource leaves no copy of its push behind.
    fn leave(&mut self) {
        let Some(signal) = self.signal.take() else {
            return;
        };
        let crossings = &self.shared.crossings;
        crossings.leave(self.url, &signal);
        if !crossings.has_any(self.url, &self.isolation) {
            self.shared.drop_copy(&self.isolation, &self.request);
        }
    }
}

impl Parts for Crossing {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        loop {
            let arrives = self.signal.as_ref().is_some_and(|signal| {
                signal.waker.set(cx.waker());
                signal.arrives.take()
            });
            if arrives && self.take_push() {
                self.leave();
            }
            let part = std::task::ready!(self.reply.poll_part(cx));
            let Some(Ok(Part::Head(head))) = &part else {
                let is_lost = self.source == ResponseSource::Push && !self.has_begun;
                if is_lost && matches!(part, Some(Err(_))) {
                    self.ask_again();
                    continue;
                }
                return Poll::Ready(part);
            };
            let is_reference = head.fields.contains(CROSSED_FIELD);
            match (is_reference, self.source) {
                (true, source) if source != ResponseSource::Push && self.take_push() => {
                    self.leave();
                }
                (true, source)
                    if source != ResponseSource::Push && self.times_asked < MAX_ASKED =>
                {
                    self.ask_again();
                }
                (true, _) => {
                    let error = Error::new(Kind::Protocol, Side::Peer, "a push is missing");
                    return Poll::Ready(Some(Err(error)));
                }
                (false, _) => {
                    self.leave();
                    self.has_begun = true;
                    return Poll::Ready(part);
                }
            }
        }
    }
}

impl Drop for Crossing {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tandem_http::{ResponseHead, Scheme};
    use tandem_push::client::StoreLimits;
    use tandem_push::wire::NextPush;
    use tokio::sync::Notify;
    use tokio::task::LocalSet;

    use super::super::{PushOptions, Pushed};
    use super::*;
    use crate::exchange::{PushedPart, SessionMark};
    use crate::stage::doubles::OneSession;
    use crate::stage::{SessionPool, Stage};

    const OPTIONS: PushOptions = PushOptions {
        store: StoreLimits {
            memory: 1 << 20,
            cancel_useless: false,
        },
        early_hints: false,
        cache_status: false,
        digest: false,
        next: NextPush::Off,
        is_gateway_local: false,
        max_keys: 1,
    };

    /// The gateway behind a session.
    struct Gateway {
        mark: Rc<SessionMark>,
        /// The answers to requests for the image, in this order.
        answers: RefCell<Vec<Answer>>,
        /// The number of requests for the image.
        asked: Cell<usize>,
        /// Lets the push follow its promise.
        go_on: Rc<Notify>,
        /// The push breaks off before its head.
        is_broken: bool,
        /// The `Cache-Control` of the push.
        caching: &'static str,
    }

    #[derive(Clone, Copy)]
    enum Answer {
        Never,
        Reference,
        Whole,
    }

    fn request(path: &str) -> RequestHead {
        RequestHead::get(Scheme::Http, "a.test", path)
    }

    fn whole(text: &'static str) -> Reply {
        Reply::ready(ResponseHead::new(200), Bytes::from_static(text.as_bytes()))
    }

    impl Gateway {
        fn new(answers: &[Answer], is_broken: bool) -> Rc<Self> {
            Rc::new(Self {
                mark: Rc::new(SessionMark::new(true)),
                answers: RefCell::new(answers.iter().rev().copied().collect()),
                asked: Cell::new(0),
                go_on: Rc::default(),
                is_broken,
                caching: "max-age=60",
            })
        }

        fn with_caching(answers: &[Answer], caching: &'static str) -> Rc<Self> {
            let gateway = Self::new(answers, false);
            let mut gateway = Rc::into_inner(gateway).expect("no other owner");
            gateway.caching = caching;
            Rc::new(gateway)
        }

        /// Returns the pool of the client.
        fn pool(&self) -> Rc<dyn SessionPool> {
            Rc::new(OneSession::of(Rc::clone(&self.mark)))
        }

        /// Returns the page, which brings a push of the image.
        fn page(&self) -> Reply {
            let (mark, go_on) = (Rc::clone(&self.mark), Rc::clone(&self.go_on));
            let (is_broken, caching) = (self.is_broken, self.caching);
            let push = Reply::generate(move |mut sink| async move {
                go_on.notified().await;
                if is_broken {
                    return Err(Error::new(Kind::Reset, Side::Peer, "broken"));
                }
                let fields = [("cache-control", caching)];
                let head = ResponseHead {
                    fields: fields.into_iter().collect(),
                    ..ResponseHead::new(200)
                };
                sink.send(Part::Head(head)).await;
                sink.send(Part::Data(Bytes::from_static(b"pushed"))).await;
                Ok(())
            });
            let pushed = PushedPart {
                request: request("/image"),
                reply: push,
                priority: SharedPriority::default(),
                session: Some(mark),
            };
            Reply::generate(|mut sink| async move {
                sink.send(Part::Pushed(Box::new(pushed))).await;
                sink.send(Part::Head(ResponseHead::new(200))).await;
                Ok(())
            })
        }
    }

    impl Stage for Rc<Gateway> {
        fn call(&self, exchange: Exchange) -> Reply {
            if exchange.request.path != "/image" {
                return self.page();
            }
            self.asked.set(self.asked.get() + 1);
            match self.answers.borrow_mut().pop().unwrap_or(Answer::Never) {
                Answer::Never => Reply::generate(|_sink| std::future::pending()),
                Answer::Whole => whole("whole"),
                Answer::Reference => {
                    let mut head = ResponseHead::new(204);
                    head.fields.push(CROSSED_FIELD, "1");
                    Reply::ready(head, Bytes::new())
                }
            }
        }
    }

    /// Returns the body of a response.
    async fn body(mut reply: Reply) -> Result<Vec<u8>, Error> {
        let mut body = Vec::new();
        while let Some(part) = reply.part().await {
            match part? {
                Part::Data(data) => body.extend_from_slice(&data),
                Part::Head(head) => assert!(!head.fields.contains(CROSSED_FIELD)),
                _ => {}
            }
        }
        Ok(body)
    }

    /// Requests the image, and then the page that brings its push. Returns the body of the image
    /// and the number of requests for it.
    async fn cross(answers: &[Answer], is_broken: bool) -> (Option<String>, usize) {
        let gateway = Gateway::new(answers, is_broken);
        let pool = gateway.pool();
        let stage = Pushed::new(OPTIONS, pool, Rc::new(Rc::clone(&gateway)));
        let call = |path| stage.call(Exchange::internal(request(path)));
        let image = call("/image");
        let others = async {
            body(call("/page")).await.expect("the page comes");
            gateway.go_on.notify_one();
        };
        let (image, ()) = tokio::join!(body(image), others);
        let text = image
            .ok()
            .map(|image| String::from_utf8(image).expect("text"));
        (text, gateway.asked.get())
    }

    fn run(answers: &[Answer], is_broken: bool) -> (Option<String>, usize) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        LocalSet::new().block_on(&runtime, cross(answers, is_broken))
    }

    #[test]
    fn request_under_way_takes_a_push_that_arrives() {
        let pushed = Some("pushed".to_owned());
        assert_eq!(run(&[Answer::Never], false), (pushed, 1));
    }

    #[test]
    fn reference_without_a_push_is_asked_again() {
        let whole = Some("whole".to_owned());
        let again = [Answer::Reference, Answer::Whole];
        assert_eq!(run(&again, false), (whole, 2));
        let twice = [Answer::Reference, Answer::Reference, Answer::Whole];
        let whole = Some("whole".to_owned());
        assert_eq!(run(&twice, false), (whole, 3), "a later push is gone too");
        let always = [Answer::Reference; 4];
        assert_eq!(run(&always, false), (None, 3), "the gateway is wrong");
    }

    /// Requests the image twice before its promised push follows. Returns the bodies and the number
    /// of requests.
    async fn cross_twice(answers: &[Answer], caching: &'static str) -> ([String; 2], usize) {
        let gateway = Gateway::with_caching(answers, caching);
        let pool = gateway.pool();
        let stage = Pushed::new(OPTIONS, pool, Rc::new(Rc::clone(&gateway)));
        let page = stage.call(Exchange::internal(request("/page")));
        body(page).await.expect("the page comes");
        // Both requests were sent before the promise arrived.
        let ask = || Crossing::reply(&stage.shared, Exchange::internal(request("/image")));
        let (one, other) = (ask(), ask());
        let release = async { gateway.go_on.notify_one() };
        let (one, other, ()) = tokio::join!(body(one), body(other), release);
        let text = |body: Result<Vec<u8>, Error>| {
            String::from_utf8(body.expect("it is answered")).expect("text")
        };
        ([text(one), text(other)], gateway.asked.get())
    }

    #[test]
    fn push_answers_both_requests_that_it_has_crossed() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        let run = |answers: &[Answer], caching| {
            let (mut bodies, asked) =
                LocalSet::new().block_on(&runtime, cross_twice(answers, caching));
            bodies.sort();
            (bodies.map(|body| body == "pushed"), asked)
        };
        for first in [Answer::Never, Answer::Reference] {
            for second in [Answer::Never, Answer::Reference] {
                assert_eq!(run(&[first, second], "max-age=60"), ([true, true], 2));
            }
        }
        let answers = [Answer::Reference, Answer::Reference, Answer::Whole];
        for caching in ["no-cache", ""] {
            assert_eq!(run(&answers, caching), ([true, false], 3), "{caching}");
        }
    }

    /// The second request ends before it takes its copy of the push. A later one asks.
    #[test]
    fn copy_for_a_request_that_ended_serves_no_later_one() {
        let scene = async {
            let gateway = Gateway::new(&[Answer::Reference, Answer::Never, Answer::Whole], false);
            let pool = gateway.pool();
            let stage = Pushed::new(OPTIONS, pool, Rc::new(Rc::clone(&gateway)));
            let page = stage.call(Exchange::internal(request("/page")));
            body(page).await.expect("the page comes");
            let ask = || Crossing::reply(&stage.shared, Exchange::internal(request("/image")));
            let (mut one, other) = (ask(), ask());
            std::future::poll_fn(|cx| Poll::Ready(one.poll_part(cx).is_pending())).await;
            drop(other);
            gateway.go_on.notify_one();
            let one = body(one).await.ok();
            let later = body(stage.call(Exchange::internal(request("/image")))).await;
            (one, later.ok(), gateway.asked.get())
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        let found = LocalSet::new().block_on(&runtime, scene);
        let text = |text: &str| Some(text.as_bytes().to_vec());
        assert_eq!(found, (text("pushed"), text("whole"), 3));
    }

    /// Requests the image once the promise of its push has come.
    async fn refer(is_broken: bool, answers: &[Answer]) -> (Option<String>, usize) {
        let gateway = Gateway::new(answers, is_broken);
        let pool = gateway.pool();
        let stage = Pushed::new(OPTIONS, pool, Rc::new(Rc::clone(&gateway)));
        let shared = &stage.shared;
        let page = stage.call(Exchange::internal(request("/page")));
        body(page).await.expect("the page comes");
        // The request was sent before the promise arrived.
        let image = Crossing::reply(shared, Exchange::internal(request("/image")));
        let release = async { gateway.go_on.notify_one() };
        let (image, ()) = tokio::join!(body(image), release);
        let text = image
            .ok()
            .map(|image| String::from_utf8(image).expect("text"));
        (text, gateway.asked.get())
    }

    /// Requests the image while its promised push is on its way. The push breaks off, and the
    /// gateway answers the next request with a reference.
    #[test]
    fn reference_after_a_broken_push_is_asked_again() {
        let again = async {
            let gateway = Gateway::new(&[Answer::Reference, Answer::Whole], true);
            let pool = gateway.pool();
            let stage = Pushed::new(OPTIONS, pool, Rc::new(Rc::clone(&gateway)));
            let call = |path| stage.call(Exchange::internal(request(path)));
            body(call("/page")).await.expect("the page comes");
            let release = async { gateway.go_on.notify_one() };
            let (image, ()) = tokio::join!(body(call("/image")), release);
            (image.ok(), gateway.asked.get())
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        let found = LocalSet::new().block_on(&runtime, again);
        assert_eq!(found, (Some(b"whole".to_vec()), 2));
    }

    /// No reference reaches the browser from a gateway that must not send one.
    #[test]
    fn reference_to_a_request_that_takes_none_is_an_error() {
        let found = async {
            let gateway = Gateway::new(&[Answer::Reference], false);
            let pool = gateway.pool();
            let stage = Pushed::new(OPTIONS, pool, Rc::new(Rc::clone(&gateway)));
            let head = RequestHead {
                method: Method::Head,
                ..request("/image")
            };
            body(stage.call(Exchange::internal(head))).await.is_err()
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        assert!(LocalSet::new().block_on(&runtime, found));
    }

    #[test]
    fn reference_gives_a_push_or_another_response() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        let answers = [Answer::Reference, Answer::Whole];
        for (is_broken, text, asked) in [(false, "pushed", 1), (true, "whole", 2)] {
            let referred = refer(is_broken, &answers);
            let found = LocalSet::new().block_on(&runtime, referred);
            assert_eq!(found, (Some(text.to_owned()), asked));
        }
    }
}
