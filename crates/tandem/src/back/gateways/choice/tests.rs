use std::net::SocketAddr;

use bytes::Bytes;
use tandem_http::{Method, RequestHead, ResponseHead, Scheme};

use super::*;
use crate::back::gateways::doubles::{FakeSession, LIMITS, gateway, run};
use crate::back::gateways::refuge::CONFIRMATIONS;
use crate::back::gateways::{PoolLimits, ToGateway, WayEntry};
use crate::back::ways::STAGGER;
use crate::carrier::LocalBoxFuture;
use crate::exchange::{Exchange, Part, Reply, SessionMark, Sink};
use crate::path::Facts;
use crate::stage::{SessionPool, Stage};
use crate::transport::names::Names;

const MS: Duration = Duration::from_millis(1);

thread_local! {
    /// The network of this machine, or 0 without one.
    static NETWORK: Cell<u8> = const { Cell::new(1) };
    /// How often the network was asked for.
    static LOOKS: Cell<usize> = const { Cell::new(0) };
}

fn network_of(_: SocketAddr) -> Network {
    LOOKS.set(LOOKS.get() + 1);
    let network = Some(NETWORK.get()).filter(|network| *network > 0);
    network.map(|network| [192, 0, 2, network].into())
}

/// A way to the gateway: the time until its sessions are established, and its requests.
struct Way {
    takes: Cell<Duration>,
    requests: Cell<usize>,
    is_datagrams: bool,
    /// True while nothing arrives.
    is_blocked: Cell<bool>,
    /// The time until a response.
    responds_in: Cell<Duration>,
    /// True if a part of the body follows some time after the head.
    has_body: Cell<bool>,
    body_takes: Cell<Duration>,
    /// The parts of the body that have arrived with the head.
    parts: Cell<usize>,
    /// The time until a lost session is silent.
    stalls_in: Cell<Duration>,
    /// The time after which a silent path is dead, for sessions over datagrams.
    dies_in: Cell<Duration>,
    /// The time until an established session answers a probe.
    answers_in: Cell<Duration>,
    /// True while no session can be established.
    is_refused: Cell<bool>,
    /// The time before which sessions were opened that receive nothing.
    lost_before: Cell<Option<tokio::time::Instant>>,
    /// True if sessions take requests before they are established.
    is_early: Cell<bool>,
    /// True if a probe finds that the session has ended.
    ends_at_probe: Cell<bool>,
    /// True for sessions that have long been silent.
    was_idle: Cell<bool>,
    /// The datagrams that have arrived, if the way counts them.
    datagrams: Cell<Option<u64>>,
    /// The bytes that were acknowledged, if the way counts them.
    acknowledged: Cell<Option<u64>>,
    /// The address at which the gateway answers.
    answers_at: Cell<Option<SocketAddr>>,
    /// The sessions, the exchanges and the probes that were begun.
    dials: Cell<usize>,
    runs: Cell<usize>,
    probes: Cell<usize>,
}

impl Way {
    fn new(takes: Duration, is_datagrams: bool) -> Self {
        Self {
            takes: Cell::new(takes),
            requests: Cell::new(0),
            is_datagrams,
            is_blocked: Cell::new(false),
            responds_in: Cell::new(MS),
            has_body: Cell::new(false),
            body_takes: Cell::new(1000 * MS),
            parts: Cell::new(0),
            stalls_in: Cell::default(),
            dies_in: Cell::default(),
            answers_in: Cell::default(),
            is_refused: Cell::new(false),
            lost_before: Cell::default(),
            is_early: Cell::new(false),
            ends_at_probe: Cell::new(false),
            was_idle: Cell::new(false),
            datagrams: Cell::default(),
            acknowledged: Cell::default(),
            answers_at: Cell::default(),
            dials: Cell::new(0),
            runs: Cell::new(0),
            probes: Cell::new(0),
        }
    }
}

impl Facts for Way {
    fn below(&self) -> Option<&dyn Facts> {
        None
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        self.answers_at.get()
    }

    fn datagrams_received(&self) -> Option<u64> {
        self.datagrams.get()
    }

    fn bytes_received(&self) -> Option<u64> {
        self.acknowledged.get().map(|_| 0)
    }

    fn bytes_acknowledged(&self) -> Option<u64> {
        self.acknowledged.get()
    }
}

/// Counts an event.
fn count(counter: &Cell<usize>) {
    counter.set(counter.get() + 1);
}

struct OverWay {
    way: Rc<Way>,
    network: u8,
    opened_at: tokio::time::Instant,
    established_at: tokio::time::Instant,
    mark: Rc<SessionMark>,
    is_drained: Cell<bool>,
    is_given_up: Cell<bool>,
    /// The number of exchanges under way.
    active: Cell<usize>,
    is_refused: bool,
}

/// Counts an exchange on a session until it is dropped.
struct Active<'a>(&'a Cell<usize>);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.update(|active| active - 1);
    }
}

impl OverWay {
    /// Returns true if no datagram arrives, since this machine has another address.
    fn is_silent(&self) -> bool {
        let has_moved = self.way.is_datagrams && self.network != NETWORK.get();
        let lost_before = self.way.lost_before.get();
        let is_lost = lost_before.is_some_and(|time| self.opened_at < time);
        has_moved || is_lost || self.way.is_blocked.get()
    }

    async fn until_works(&self) {
        while self.is_silent() {
            tokio::time::sleep(MS).await;
        }
    }

    /// Fails once the session is given up.
    async fn until_given_up(&self) -> Result<(), Error> {
        while !self.is_given_up.get() {
            tokio::time::sleep(MS).await;
        }
        Err(Error::new(Kind::Timeout, Side::Peer, "the path is lost"))
    }
}

impl FakeSession for OverWay {
    fn run<'a>(
        &'a self,
        _: &'a mut Exchange,
        sink: &'a mut Sink,
    ) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            count(&self.way.runs);
            count(&self.active);
            let _active = Active(&self.active);
            if self.way.is_early.get() {
                tokio::time::sleep_until(self.established_at).await;
            }
            tokio::time::sleep(self.way.responds_in.get()).await;
            self.until_works().await;
            count(&self.way.requests);
            sink.send(Part::Head(ResponseHead::new(204))).await;
            for _ in 0..self.way.parts.get() {
                sink.send(Part::Data(Bytes::from_static(b"x"))).await;
            }
            if self.way.has_body.get() {
                let body = async {
                    tokio::time::sleep(self.way.body_takes.get()).await;
                    self.until_works().await;
                };
                tokio::select! {
                    () = body => {}
                    lost = self.until_given_up() => return lost,
                }
                sink.send(Part::Data(Bytes::from_static(b"x"))).await;
            }
            Ok(())
        })
    }

    fn drain(&self) {
        self.is_drained.set(true);
    }

    fn give_up(&self) {
        self.is_given_up.set(true);
    }

    fn is_closed(&self) -> bool {
        self.is_drained.get() || self.is_refused
    }

    fn active(&self) -> usize {
        self.active.get()
    }

    fn is_established(&self) -> bool {
        !self.is_refused && tokio::time::Instant::now() >= self.established_at
    }

    fn facts(&self) -> Option<Rc<dyn Facts>> {
        Some(Rc::clone(&self.way) as _)
    }

    fn was_idle(&self) -> bool {
        self.way.was_idle.get()
    }

    fn mark(&self) -> Option<Rc<SessionMark>> {
        Some(Rc::clone(&self.mark))
    }

    fn established<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async {
            tokio::time::sleep_until(self.established_at).await;
            match self.is_refused {
                true => Err(Error::new(Kind::Unreachable, Side::Peer, "refused")),
                false => Ok(()),
            }
        })
    }

    fn takes_early<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>> {
        match self.way.is_early.get() {
            true => Box::pin(std::future::ready(Ok(()))),
            false => FakeSession::established(self),
        }
    }

    fn silent<'a>(&'a self) -> LocalBoxFuture<'a, ()> {
        Box::pin(async {
            while !self.is_silent() {
                tokio::time::sleep(MS).await;
            }
            tokio::time::sleep(self.way.stalls_in.get()).await;
        })
    }

    fn dies<'a>(&'a self) -> LocalBoxFuture<'a, bool> {
        Box::pin(async {
            if !FakeSession::is_established(self) {
                return true;
            }
            tokio::select! {
                biased;
                () = self.until_works() => false,
                () = tokio::time::sleep(self.way.dies_in.get()) => true,
            }
        })
    }

    fn recovers<'a>(&'a self) -> LocalBoxFuture<'a, ()> {
        Box::pin(self.until_works())
    }

    fn answers<'a>(&'a self) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async {
            count(&self.way.probes);
            FakeSession::established(self).await?;
            if self.way.ends_at_probe.get() {
                return Err(Error::new(Kind::Reset, Side::Peer, "the session has ended"));
            }
            self.until_works().await;
            tokio::time::sleep(self.way.answers_in.get()).await;
            Ok(())
        })
    }
}

/// Begins a session by a way.
fn connect(way: &Rc<Way>) -> Rc<dyn Connected> {
    count(&way.dials);
    let opened_at = tokio::time::Instant::now();
    Rc::new(OverWay {
        way: Rc::clone(way),
        network: NETWORK.get(),
        opened_at,
        established_at: opened_at + way.takes.get(),
        is_refused: way.is_refused.get(),
        mark: Rc::new(SessionMark::new(true)),
        is_drained: Cell::new(false),
        is_given_up: Cell::new(false),
        active: Cell::new(0),
    })
}

const QUIC: usize = 0;
const DTLS: usize = 1;
const TLS: usize = 2;

/// A pool with three ways, two of them over datagrams, and the time that each takes.
struct Scene {
    ways: [Rc<Way>; 3],
    pool: Rc<Gateways>,
}

impl Scene {
    fn new(takes: [u32; 3]) -> Self {
        Self::at(&Addresses::given(([192, 0, 2, 99], 1).into()), takes)
    }

    /// Creates a scene whose gateway has these addresses.
    fn at(addresses: &Addresses, takes: [u32; 3]) -> Self {
        Self::at_each([0; 3].map(|_| addresses.clone()), takes)
    }

    /// Creates a scene whose ways lead to these addresses.
    fn at_each(addresses: [Addresses; 3], takes: [u32; 3]) -> Self {
        let ways = [0, 1, 2].map(|at| Rc::new(Way::new(takes[at] * MS, at < TLS)));
        let gateway = |(index, way): (usize, &Rc<Way>)| {
            let entry = WayEntry {
                is_alternative: index > 0,
                is_datagrams: way.is_datagrams,
                addresses: Some(addresses[index].clone()),
            };
            let way = Rc::clone(way);
            gateway(move |_| connect(&way), entry)
        };
        let limits = PoolLimits {
            max_sessions: 100,
            ..LIMITS
        };
        let gateways = ways.iter().enumerate().map(gateway).collect();
        let pool = Gateways::new(gateways, limits, None);
        pool.source.set(network_of);
        Self { pool, ways }
    }

    /// Creates a scene in which the session of a client without keys is one over QUIC.
    async fn on_quic(takes: [u32; 3]) -> (Rc<Self>, Isolation) {
        let (scene, key) = (Rc::new(Self::new(takes)), Isolation::none());
        assert_eq!(scene.get(&key).await, QUIC);
        (scene, key)
    }

    /// Requests a page with a key, and returns the way that carried it.
    async fn get(&self, isolation: &Isolation) -> usize {
        self.ask(Method::Get, isolation).await
    }

    /// Sends a request with a key, and returns the way that carried it.
    async fn ask(&self, method: Method, isolation: &Isolation) -> usize {
        let before = self.ways.clone().map(|way| way.requests.get());
        let mut request = RequestHead::get(Scheme::Http, "site.example", "/".to_owned());
        request.method = method;
        let exchange = Exchange {
            isolation: isolation.clone(),
            ..Exchange::internal(request)
        };
        let mut reply = ToGateway(Rc::clone(&self.pool)).call(exchange);
        while let Some(part) = reply.part().await {
            part.expect("a whole response");
        }
        let carried = |way: &usize| self.ways[*way].requests.get() > before[*way];
        (QUIC..=TLS).find(carried).expect("a way carried it")
    }

    fn slot_mark(&self, isolation: &Isolation, index: usize) -> Rc<SessionMark> {
        let slots = self.pool.slots.borrow();
        let slot = &slots[&(isolation.clone(), index)];
        slot.current.mark().expect("a mark")
    }

    fn current_is(&self, isolation: &Isolation, index: usize) -> bool {
        let current = ToGateway(Rc::clone(&self.pool)).current(isolation);
        let current = current.expect("a session");
        Rc::ptr_eq(&current.mark, &self.slot_mark(isolation, index))
    }
}

#[test]
fn ways_to_a_name_race_on_a_known_network() {
    run(async {
        let names = Names::new(|_| Ok(vec![([192, 0, 2, 99], 0).into()]));
        let scene = Scene::at(&names.addresses("gw.example", 1), [10, 20, 30]);
        assert_eq!(scene.get(&Isolation::none()).await, QUIC);
        let slots = scene.pool.slots.borrow();
        assert!(slots.values().all(|slot| slot.network.is_some()));
    });
}

#[test]
fn way_with_an_address_waits_for_no_look_up() {
    run(async {
        let asked = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let noted = std::sync::Arc::clone(&asked);
        let names = Names::new(move |_| {
            noted.store(true, std::sync::atomic::Ordering::SeqCst);
            Ok(vec![([192, 0, 2, 99], 0).into()])
        });
        let named = names.addresses("gw.example", 1);
        let given = Addresses::given(([192, 0, 2, 99], 1).into());
        let scene = Scene::at_each([named.clone(), named, given], [5000, 5000, 10]);
        assert_eq!(scene.get(&Isolation::none()).await, TLS);
        // The dials of the other ways look the name up, and those of this scene do not.
        assert!(!asked.load(std::sync::atomic::Ordering::SeqCst));
    });
}

/// Opens a session of a key before it is needed.
async fn open(scene: &Scene, key: &Isolation, way: usize) {
    let (session, _use) = scene.pool.begin(key, way);
    session.established().await.expect("a session");
}

/// Begins a request, and lets it run beside the test.
fn spawn(scene: &Rc<Scene>, method: Method, key: &Isolation) -> tokio::task::JoinHandle<usize> {
    let (scene, key) = (Rc::clone(scene), key.clone());
    tokio::task::spawn_local(async move { scene.ask(method, &key).await })
}

/// Begins some requests of a key, and lets them run beside the test.
fn spawn_requests(scene: &Rc<Scene>, key: &Isolation, count: usize) {
    for _ in 0..count {
        spawn(scene, Method::Get, key);
    }
}

#[test]
fn way_that_lost_the_race_takes_nothing_over() {
    run(async {
        let scene = Scene::new([600, 900, 1000]);
        let key = Isolation::none();
        for second in 0..5 {
            assert_eq!(scene.get(&key).await, QUIC, "second {second}");
            assert_eq!(scene.pool.preferred.get(), QUIC);
            assert!(scene.current_is(&key, QUIC));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
}

#[test]
fn way_that_lost_a_race_by_chance_wins_a_later_one() {
    run(async {
        let scene = Scene::new([900, 50, 1000]);
        let [first, second] = [b"a", b"b"].map(|user| Isolation::new(user, b""));
        assert_eq!(scene.get(&first).await, DTLS);
        scene.ways[QUIC].takes.set(50 * MS);
        tokio::time::sleep(Duration::from_secs(500)).await;
        assert_eq!(scene.get(&second).await, DTLS);
        tokio::time::sleep(Duration::from_secs(101)).await;
        assert_eq!(scene.get(&first).await, DTLS, "an open session stays");
        let third = Isolation::new(b"c", b"");
        assert_eq!(scene.get(&third).await, QUIC);
        assert_eq!(scene.get(&first).await, DTLS);
    });
}

#[test]
fn late_way_over_datagrams_replaces_tcp() {
    run(async {
        let scene = Scene::new([9000, 2000, 100]);
        let key = Isolation::none();
        assert_eq!(scene.get(&key).await, TLS);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(scene.get(&key).await, DTLS);
        assert!(scene.current_is(&key, DTLS));
    });
}

#[test]
fn way_does_not_fail_on_the_next_network() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        NETWORK.set(2);
        assert_eq!(scene.get(&key).await, TLS, "the request moves");
        let group = &scene.pool.groups[0];
        for network in [1, 2] {
            let network = Some([192, 0, 2, network].into());
            assert!(!group.ways.borrow().has_failed(network, QUIC));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        scene.get(&key).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(scene.get(&key).await, QUIC, "it is used at once");
    });
}

#[test]
fn request_leaves_silence_once_another_way_answers() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        let mark = scene.slot_mark(&key, QUIC);
        scene.ways[QUIC].is_blocked.set(true);
        let begun = tokio::time::Instant::now();
        assert_eq!(scene.get(&key).await, TLS);
        assert!(begun.elapsed() <= 110 * MS, "{:?}", begun.elapsed());
        assert!(scene.current_is(&key, TLS), "new requests go there too");
        // The datagrams were missing for a moment only.
        tokio::time::sleep(300 * MS).await;
        assert_eq!(scene.get(&key).await, TLS);
        scene.ways[QUIC].is_blocked.set(false);
        tokio::time::sleep(100 * MS).await;
        assert!(scene.current_is(&key, QUIC), "the pushes go there");
        assert_eq!(scene.get(&key).await, QUIC);
        assert!(Rc::ptr_eq(&mark, &scene.slot_mark(&key, QUIC)));
        let ways = &scene.pool.groups[0].ways;
        assert!(
            !ways
                .borrow()
                .has_failed(network_of(([0; 4], 0).into()), QUIC)
        );
    });
}

#[test]
fn session_without_further_answers_is_broken() {
    run(async {
        let (scene, key) = Scene::on_quic([50, 5000, 100]).await;
        scene.ways[QUIC].is_blocked.set(true);
        assert_eq!(scene.get(&key).await, TLS);
        tokio::time::sleep(CONFIRMATIONS as u32 * STAGGER + MS).await;
        let ways = &scene.pool.groups[0].ways;
        assert!(
            ways.borrow()
                .has_failed(network_of(([0; 4], 0).into()), QUIC)
        );
        assert!(!scene.pool.slots.borrow().contains_key(&(key.clone(), QUIC)));
        assert_eq!(scene.get(&key).await, TLS);
    });
}

/// A gap between two satellites lets nothing through, by any way.
#[test]
fn gap_in_the_whole_path_moves_no_request() {
    run(async {
        let (scene, key) = Scene::on_quic([100, 5000, 30]).await;
        scene.pool.begin(&key, TLS).0.established().await.unwrap();
        scene.ways[TLS].answers_in.set(40 * MS);
        for way in [QUIC, TLS] {
            scene.ways[way].is_blocked.set(true);
        }
        let ways = scene.ways.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(500 * MS).await;
            for way in [QUIC, TLS] {
                ways[way].is_blocked.set(false);
            }
        });
        assert_eq!(scene.get(&key).await, QUIC);
    });
}

/// Another key of this client uses another way.
#[test]
fn session_of_a_key_is_found_by_any_way() {
    run(async {
        let scene = Scene::new([50, 5000, 5000]);
        let [first, second] = [b"a", b"b"].map(|user| Isolation::new(user, b""));
        assert_eq!(scene.get(&first).await, QUIC);
        scene.pool.preferred.set(TLS);
        assert!(scene.current_is(&first, QUIC));
        assert!(ToGateway(Rc::clone(&scene.pool)).current(&second).is_none());
    });
}

mod beside;
mod checks;
mod downloads;
mod moves;
mod refuge;
mod returning;
