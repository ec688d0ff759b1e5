use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};

use tandem_http::{RequestHead, ResponseHead, Scheme};

use super::*;
use crate::back::gateways::doubles::{FakeSession, LIMITS, gateway, run};
use crate::back::gateways::{PoolLimits, ToGateway, WayEntry};
use crate::carrier::LocalBoxFuture;
use crate::exchange::Sink;
use crate::path::Facts;
use crate::resume::{give, is_request};
use crate::stage::Stage;
use crate::transport::names::Addresses;

fn key(user: &str, gateway: usize, network: u8) -> PathKey {
    let network = std::net::IpAddr::from([10, 0, 0, network]);
    let isolation = Isolation::new(user.as_bytes(), b"");
    (isolation, gateway, Some(network))
}

fn taken(tokens: &Tokens, key: &PathKey) -> Option<String> {
    tokens.take(key).map(|token| token.text)
}

#[test]
fn tokens_are_shown_once_and_on_their_path_only() {
    let tokens = Tokens::default();
    tokens.keep(key("a", 0, 1), KeptToken::new("old".into()));
    tokens.keep(key("a", 0, 1), KeptToken::new("new".into()));
    for other in [key("b", 0, 1), key("a", 1, 1), key("a", 0, 2)] {
        assert!(tokens.take(&other).is_none());
    }
    assert_eq!(taken(&tokens, &key("a", 0, 1)).as_deref(), Some("new"));
    assert!(tokens.take(&key("a", 0, 1)).is_none());
}

#[test]
fn oldest_token_makes_room() {
    let tokens = Tokens::default();
    for number in 0..=MAX_TOKENS {
        tokens.keep(key("a", number, 1), KeptToken::new(number.to_string()));
    }
    assert_eq!(tokens.0.borrow().len(), MAX_TOKENS);
    assert!(tokens.take(&key("a", 0, 1)).is_none());
    assert_eq!(taken(&tokens, &key("a", 1, 1)).as_deref(), Some("1"));
}

#[test]
fn tokens_of_a_key_end_with_it() {
    let tokens = Tokens::default();
    tokens.keep(key("a", 0, 1), KeptToken::new("1".into()));
    tokens.keep(key("b", 0, 1), KeptToken::new("2".into()));
    tokens.forget(&Isolation::new(b"a", b""));
    assert!(tokens.take(&key("a", 0, 1)).is_none());
    assert_eq!(taken(&tokens, &key("b", 0, 1)).as_deref(), Some("2"));
}

#[tokio::test]
async fn response_without_end_gives_its_token() {
    let reply = Reply::generate(|mut sink| async move {
        let mut head = ResponseHead::new(200);
        give(&mut head.fields, "token");
        sink.send(Part::Head(head)).await;
        std::future::pending().await
    });
    let token = token_of(reply).await.expect("a token");
    assert_eq!(token.as_deref(), Some("token"));
}

/// A gateway that gives the tokens `token-1`, `token-2` and so on.
#[derive(Default)]
struct Fake {
    /// The tokens that were shown, with the number of their session.
    shown: RefCell<Vec<(usize, Option<String>)>>,
    sessions: Cell<usize>,
    given: Cell<usize>,
    /// True if it gives no tokens any more.
    has_retreated: Cell<bool>,
    /// True if it knows no requests for tokens.
    is_old: bool,
    /// True if it does not answer.
    is_silent: Cell<bool>,
    /// True if its sessions are never established.
    is_unreachable: Cell<bool>,
}

/// A session that receives a page's datagrams with each response.
struct Dialled {
    gateway: Rc<Fake>,
    number: usize,
    facts: Rc<Received>,
    is_drained: Cell<bool>,
}

struct Received(Cell<u64>);

impl Facts for Received {
    fn below(&self) -> Option<&dyn Facts> {
        None
    }

    fn datagrams_received(&self) -> Option<u64> {
        Some(self.0.get())
    }
}

impl FakeSession for Dialled {
    fn run<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        sink: &'a mut Sink,
    ) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            if self.gateway.is_silent.get() && is_request(&exchange.request) {
                return Err(Error::new(Kind::Reset, Side::Peer, "the session has ended"));
            }
            let mut head = ResponseHead::new(200);
            if is_request(&exchange.request) {
                let token = token_in(&exchange.request.fields).map(str::to_owned);
                let gateway = &self.gateway;
                let is_given = token.is_none() && !gateway.has_retreated.get();
                gateway.shown.borrow_mut().push((self.number, token));
                if is_given {
                    gateway.given.set(gateway.given.get() + 1);
                    give(&mut head.fields, &format!("token-{}", gateway.given.get()));
                }
                if gateway.is_old {
                    head = ResponseHead::new(502);
                }
            } else {
                self.facts.0.set(self.facts.0.get() + WORTH);
            }
            sink.send(Part::Head(head)).await;
            Ok(())
        })
    }

    fn drain(&self) {
        self.is_drained.set(true);
    }

    fn is_closed(&self) -> bool {
        self.is_drained.get()
    }

    fn is_established(&self) -> bool {
        !self.gateway.is_unreachable.get()
    }

    fn facts(&self) -> Option<Rc<dyn Facts>> {
        Some(Rc::clone(&self.facts) as _)
    }
}

/// Begins a session with a gateway.
fn connect(gateway: &Rc<Fake>) -> Rc<dyn Connected> {
    gateway.sessions.set(gateway.sessions.get() + 1);
    Rc::new(Dialled {
        gateway: Rc::clone(gateway),
        number: gateway.sessions.get(),
        facts: Rc::new(Received(Cell::new(0))),
        is_drained: Cell::new(false),
    })
}

fn pool(fake: &Rc<Fake>, way: WayEntry) -> Rc<Gateways> {
    let fake = Rc::clone(fake);
    let gateway = gateway(move |_| connect(&fake), way);
    let limits = PoolLimits { tries: 1, ..LIMITS };
    Gateways::new(vec![gateway], limits, None)
}

const UDP: WayEntry = WayEntry {
    is_alternative: false,
    is_datagrams: true,
    addresses: Some(Addresses::given(SocketAddr::new(
        IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
        9,
    ))),
};

/// Loads a page with an isolation key, and waits longer than a request for a token does.
async fn load(pool: &Rc<Gateways>, isolation: &Isolation) {
    let request = RequestHead::get(Scheme::Http, "site.example", "/".to_owned());
    let mut exchange = Exchange::internal(request);
    exchange.isolation = isolation.clone();
    let mut reply = ToGateway(Rc::clone(pool)).call(exchange);
    while reply.part().await.is_some() {}
    drop(reply);
    tokio::time::sleep(2 * SETTLE).await;
}

/// Closes the sessions, so that the next request opens another one.
fn close(pool: &Rc<Gateways>) {
    pool.slots.borrow_mut().clear();
}

#[test]
fn next_session_shows_the_token_of_the_first() {
    run(async {
        let gateway = Rc::<Fake>::default();
        let (pool, key) = (pool(&gateway, UDP), Isolation::none());
        load(&pool, &key).await;
        assert_eq!(*gateway.shown.borrow(), [(1, None)]);
        close(&pool);
        load(&pool, &key).await;
        let expected = [(1, None), (2, Some("token-1".to_owned())), (2, None)];
        assert_eq!(*gateway.shown.borrow(), expected);
    });
}

#[test]
fn response_without_a_token_ends_the_last_one() {
    run(async {
        let gateway = Rc::<Fake>::default();
        let (pool, key) = (pool(&gateway, UDP), Isolation::none());
        load(&pool, &key).await;
        gateway.has_retreated.set(true);
        load(&pool, &key).await;
        close(&pool);
        load(&pool, &key).await;
        assert_eq!(*gateway.shown.borrow(), [(1, None), (1, None), (2, None)]);
    });
}

#[test]
fn token_for_a_private_address_is_shown_for_minutes() {
    run(async {
        let private = key("a", 0, 1);
        let public = (private.0.clone(), 0, "2001:4860::1".parse().ok());
        for (age, remains) in [(599, true), (601, false)] {
            let tokens = Tokens::default();
            tokens.keep(private.clone(), KeptToken::new("1".into()));
            tokens.keep(public.clone(), KeptToken::new("2".into()));
            tokio::time::advance(Duration::from_secs(age)).await;
            assert_eq!(tokens.take(&private).is_some(), remains);
            assert!(tokens.take(&public).is_some());
        }
    });
}

#[test]
fn token_is_used_up_once_a_gateway_may_have_seen_it() {
    for (is_unreachable, remains) in [(true, true), (false, false)] {
        run(async move {
            let gateway = Rc::<Fake>::default();
            let (pool, key) = (pool(&gateway, UDP), Isolation::none());
            load(&pool, &key).await;
            let got = pool.tokens.0.borrow()[0].1.got;
            close(&pool);
            gateway.is_silent.set(true);
            gateway.is_unreachable.set(is_unreachable);
            load(&pool, &key).await;
            let kept: Vec<_> = pool
                .tokens
                .0
                .borrow()
                .iter()
                .map(|(_, it)| it.got)
                .collect();
            // Its time counts from the response of the gateway.
            assert_eq!(kept, Vec::from_iter(remains.then_some(got)));
        });
    }
}

#[test]
fn token_ages_while_the_machine_sleeps() {
    let (tokens, private) = (Tokens::default(), key("a", 0, 1));
    for (age, remains) in [(590, true), (601, false)] {
        let mut token = KeptToken::new("1".into());
        // The monotonic clock stands still.
        token.got.1 -= Duration::from_secs(age);
        tokens.keep(private.clone(), token);
        assert_eq!(tokens.take(&private).is_some(), remains);
    }
}

#[test]
fn session_of_another_key_shows_no_token() {
    run(async {
        let gateway = Rc::<Fake>::default();
        let pool = pool(&gateway, UDP);
        for user in [&b"a"[..], b"b"] {
            load(&pool, &Isolation::new(user, b"")).await;
        }
        assert_eq!(*gateway.shown.borrow(), [(1, None), (2, None)]);
    });
}

#[test]
fn sessions_over_tcp_or_a_proxy_ask_for_no_token() {
    run(async {
        let tcp = WayEntry {
            is_datagrams: false,
            ..UDP
        };
        let proxied = WayEntry {
            addresses: None,
            ..UDP
        };
        for way in [tcp, proxied] {
            let gateway = Rc::<Fake>::default();
            let (pool, key) = (pool(&gateway, way), Isolation::none());
            for _ in 0..2 {
                load(&pool, &key).await;
                close(&pool);
            }
            assert_eq!(gateway.sessions.get(), 2);
            assert!(gateway.shown.borrow().is_empty());
        }
    });
}

#[test]
fn gateway_without_tokens_is_asked_once() {
    run(async {
        let gateway = Rc::new(Fake {
            is_old: true,
            ..Fake::default()
        });
        let (pool, key) = (pool(&gateway, UDP), Isolation::none());
        for _ in 0..3 {
            load(&pool, &key).await;
        }
        assert_eq!(*gateway.shown.borrow(), [(1, None)]);
    });
}
