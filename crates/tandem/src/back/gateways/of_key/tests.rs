//! Tests of keys that share no knowledge of gateways.

use std::rc::Rc;

use tandem_http::{RequestHead, ResponseHead, Scheme};

use super::*;
use crate::back::gateways::doubles::{FakeSession, LIMITS, gateway, run};
use crate::back::gateways::{Gateway, ToGateway, WayEntry};
use crate::carrier::{CarrierFuture, LocalBoxFuture};
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::{Exchange, Part, Sink};
use crate::path::Path;
use crate::session::Connected;
use crate::stage::{SessionPool, Stage};
use crate::transport::{Dial, Target};

/// The dials and the reports of failures at one gateway, which refuses some keys.
#[derive(Default)]
struct Answers {
    refused: RefCell<Vec<Isolation>>,
    dials: RefCell<Vec<Isolation>>,
    failed: RefCell<Vec<Isolation>>,
}

impl Dial for Rc<Answers> {
    fn below(&self) -> Option<&dyn Dial> {
        None
    }

    fn dial<'a>(
        &'a self,
        _: &'a Target,
        isolation: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        self.dials.borrow_mut().push(isolation.clone());
        let dialled = match self.refused.borrow().contains(isolation) {
            false => Ok(Path::pair(1).0),
            true => {
                let error = Error::new(Kind::Reset, Side::Peer, "it refuses the key");
                Err(error.with_retry(Retry::Safe))
            }
        };
        Box::pin(std::future::ready(dialled))
    }

    fn failed(&self, isolation: &Isolation) {
        self.failed.borrow_mut().push(isolation.clone());
    }
}

/// A session that answers once it is dialled. It tells which gateway answered.
struct Dialled {
    dial: RefCell<Option<CarrierFuture<'static>>>,
    is_established: Cell<bool>,
    is_closed: Cell<bool>,
    gateway: usize,
    answered: Rc<RefCell<Vec<usize>>>,
}

impl FakeSession for Dialled {
    fn run<'a>(
        &'a self,
        _: &'a mut Exchange,
        sink: &'a mut Sink,
    ) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let dial = self.dial.borrow_mut().take();
            if let Some(dial) = dial {
                let dialled = dial.await;
                self.is_established.set(dialled.is_ok());
                self.is_closed.set(dialled.is_err());
                dialled?;
            }
            self.answered.borrow_mut().push(self.gateway);
            sink.send(Part::Head(ResponseHead::new(204))).await;
            Ok(())
        })
    }

    fn drain(&self) {
        self.is_closed.set(true);
    }

    fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    fn is_established(&self) -> bool {
        self.is_established.get()
    }
}

/// A pool with two gateways.
struct Scene {
    answers: [Rc<Answers>; 2],
    answered: Rc<RefCell<Vec<usize>>>,
    pool: Rc<Gateways>,
}

impl Scene {
    fn new(are_apart: bool) -> Self {
        let answers: [Rc<Answers>; 2] = Default::default();
        let answered = Rc::default();
        let gateway = |(index, transport): (usize, &Rc<Answers>)| {
            let answered = Rc::clone(&answered);
            let connect = move |dial| -> Rc<dyn Connected> {
                Rc::new(Dialled {
                    dial: RefCell::new(Some(dial)),
                    is_established: Cell::default(),
                    is_closed: Cell::default(),
                    gateway: index,
                    answered: Rc::clone(&answered),
                })
            };
            Gateway {
                transport: Rc::new(Rc::clone(transport)),
                ..gateway(connect, WayEntry::default())
            }
        };
        let gateways = answers.iter().enumerate().map(gateway).collect();
        let pool = Gateways::new(gateways, LIMITS, None);
        if are_apart {
            pool.keep_keys_apart();
        }
        Self {
            answers,
            answered,
            pool,
        }
    }

    /// Requests a page with a key, and returns the gateway that answered.
    async fn get(&self, isolation: &Isolation) -> usize {
        let request = RequestHead::get(Scheme::Http, "site.example", "/");
        let exchange = Exchange {
            isolation: isolation.clone(),
            ..Exchange::internal(request)
        };
        let mut reply = ToGateway(Rc::clone(&self.pool)).call(exchange);
        while let Some(part) = reply.part().await {
            part.expect("a whole response");
        }
        self.answered.borrow_mut().pop().expect("an answer")
    }
}

fn keys<const N: usize>() -> [Isolation; N] {
    std::array::from_fn(|number| Isolation::new(&number.to_be_bytes(), b""))
}

/// The first gateway refuses the session of one key, to find out which other keys leave it too.
#[test]
fn refusal_of_a_key_moves_no_other_key() {
    run(async {
        let [refused, live, new, later] = keys();
        for are_apart in [true, false] {
            let scene = Scene::new(are_apart);
            let [first, _] = &scene.answers;
            assert_eq!(scene.get(&live).await, 0);
            first.refused.borrow_mut().push(refused.clone());
            for _ in 0..2 {
                assert_eq!(scene.get(&refused).await, 1);
            }
            let others = usize::from(!are_apart);
            assert_eq!(scene.get(&live).await, others);
            assert_eq!(scene.get(&new).await, others);
            if are_apart {
                let expected = [&live, &refused, &new].map(Isolation::clone);
                assert_eq!(*first.dials.borrow(), expected, "one dial for each key");
            }
            assert_eq!(*first.failed.borrow(), std::slice::from_ref(&refused));
            let lookup = ToGateway(Rc::clone(&scene.pool));
            assert!(lookup.may_agree(&later));
        }
    });
}

/// New keys would otherwise wait for a dead gateway one by one.
#[test]
fn gateway_that_three_keys_lose_is_last_for_new_keys() {
    run(async {
        let [live, one, two, three, new] = keys();
        let scene = Scene::new(true);
        let [first, _] = &scene.answers;
        assert_eq!(scene.get(&live).await, 0);
        first.refused.borrow_mut().extend(keys::<5>());
        for key in [&one, &two, &three] {
            assert_eq!(scene.get(key).await, 1);
        }
        let dials = first.dials.borrow().len();
        assert_eq!(scene.get(&new).await, 1);
        assert_eq!(first.dials.borrow().len(), dials, "no dial of the new key");
        assert_eq!(scene.get(&live).await, 0, "its session is alive");
    });
}

#[test]
fn failure_is_known_to_its_key_only() {
    run(async {
        let [refused, other] = keys();
        let scene = Scene::new(true);
        scene.pool.blame(&refused, 0, Instant::now());
        assert!(scene.pool.gateway_has_failed(&refused, 0));
        assert!(!scene.pool.gateway_has_failed(&other, 0));
        assert_eq!(scene.get(&refused).await, 0);
        assert!(!scene.pool.gateway_has_failed(&refused, 0));
        // A session that was opened before the last report says nothing new.
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        let opened = Instant::now();
        for (opened, reports) in [(opened, 2), (opened, 2)] {
            tokio::time::advance(std::time::Duration::from_secs(1)).await;
            scene.pool.blame(&refused, 0, opened);
            assert_eq!(scene.answers[0].failed.borrow().len(), reports);
        }
        scene.pool.end(&refused);
        assert!(!scene.pool.gateway_has_failed(&refused, 0));
    });
}

#[test]
fn knowledge_of_keys_is_bounded() {
    run(async {
        let scene = Scene::new(true);
        for number in 0..2 * MAX_KEYS {
            let key = Isolation::new(&number.to_be_bytes(), b"");
            scene.pool.prefer(&key, 1);
            assert!(scene.pool.of_keys.keys.borrow().len() <= MAX_KEYS);
        }
    });
}
