use std::cell::RefCell;

use bytes::Bytes;
use tandem_http::{RequestHead, ResponseHead, Scheme};

use super::*;
use crate::back::gateways::doubles::{FakeSession, LIMITS, gateway, run};
use crate::back::gateways::{PoolLimits, ToGateway, WayEntry};
use crate::carrier::LocalBoxFuture;
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::Sink;
use crate::path::Facts;
use crate::stage::Stage;
use crate::warm_up::measured;

const MBIT: f64 = 125_000.0;
const PIECE: usize = 4096;
/// The bytes of a page and of a download.
const PAGE: u64 = 20_000;
const DOWNLOAD: u64 = 4 << 20;

/// A way to the gateway: its rate, and the pages that were requested by it.
struct Way {
    rate: Cell<f64>,
    pages: RefCell<Vec<String>>,
    filler: Cell<u64>,
    /// The time until a response begins, in milliseconds.
    latency: Cell<u64>,
    /// True if the gateway sends no filler.
    is_old: Cell<bool>,
    /// True until a session has ended at the request for filler.
    ends: Cell<bool>,
}

impl Way {
    fn new(rate: f64) -> Rc<Self> {
        Rc::new(Self {
            rate: Cell::new(rate),
            pages: RefCell::default(),
            filler: Cell::new(0),
            latency: Cell::new(50),
            is_old: Cell::new(false),
            ends: Cell::new(false),
        })
    }
}

/// A session whose responses share the rate of its way. Filler waits for all others.
struct OverWay {
    way: Rc<Way>,
    received: Rc<Received>,
    active: Cell<usize>,
    is_drained: Cell<bool>,
}

struct Received(Cell<u64>);

impl Facts for Received {
    fn below(&self) -> Option<&dyn Facts> {
        None
    }

    fn bytes_received(&self) -> Option<u64> {
        Some(self.0.get())
    }
}

impl OverWay {
    /// Returns the bytes of a response, and notes the request.
    fn answer(&self, request: &RequestHead) -> u64 {
        let Some(bytes) = measured(request) else {
            self.way.pages.borrow_mut().push(request.path.to_string());
            return match &*request.path {
                "/download" => DOWNLOAD,
                _ => PAGE,
            };
        };
        let filler = if self.way.is_old.get() { 0 } else { bytes };
        self.way.filler.set(self.way.filler.get() + filler);
        filler
    }
}

impl FakeSession for OverWay {
    fn run<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        sink: &'a mut Sink,
    ) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            if self.is_drained.get() {
                return Err(
                    Error::new(Kind::Full, Side::Peer, "no more requests").with_retry(Retry::Safe)
                );
            }
            let bytes = self.answer(&exchange.request);
            let is_filler = measured(&exchange.request).is_some();
            if is_filler && self.way.ends.take() {
                self.is_drained.set(true);
                tokio::time::sleep(Duration::from_millis(self.way.latency.get())).await;
                return Err(Error::new(Kind::Full, Side::Peer, "no more requests"));
            }
            self.active.set(self.active.get() + 1);
            let _ended = Ended(&self.active);
            tokio::time::sleep(Duration::from_millis(self.way.latency.get())).await;
            sink.send(Part::Head(ResponseHead::new(200))).await;
            for _ in 0..bytes.div_ceil(PIECE as u64) {
                while is_filler && self.active.get() > 1 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                let time = (PIECE * self.active.get()) as f64 / self.way.rate.get();
                tokio::time::sleep(Duration::from_secs_f64(time)).await;
                self.received.0.set(self.received.0.get() + PIECE as u64);
                let piece = Bytes::from_static(&[0; PIECE]);
                sink.send(Part::Data(piece)).await;
            }
            Ok(())
        })
    }

    fn drain(&self) {
        self.is_drained.set(true);
    }

    fn is_closed(&self) -> bool {
        self.is_drained.get()
    }

    fn active(&self) -> usize {
        self.active.get()
    }

    fn facts(&self) -> Option<Rc<dyn Facts>> {
        Some(Rc::clone(&self.received) as _)
    }
}

/// Counts an exchange until it has ended.
struct Ended<'a>(&'a Cell<usize>);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

fn pool(udp: &Rc<Way>, tcp: &Rc<Way>) -> Rc<Gateways> {
    pool_with(udp, tcp, true)
}

fn pool_with(udp: &Rc<Way>, tcp: &Rc<Way>, compares_ways: bool) -> Rc<Gateways> {
    let gateway = |way: &Rc<Way>, is_datagrams: bool| {
        let entry = WayEntry {
            is_alternative: !is_datagrams,
            is_datagrams,
            addresses: None,
        };
        let way = Rc::clone(way);
        let connect = move |_| -> Rc<dyn Connected> {
            Rc::new(OverWay {
                way: Rc::clone(&way),
                received: Rc::new(Received(Cell::new(0))),
                active: Cell::new(0),
                is_drained: Cell::new(false),
            })
        };
        gateway(connect, entry)
    };
    let limits = PoolLimits {
        compares_ways,
        ..LIMITS
    };
    Gateways::new(vec![gateway(udp, true), gateway(tcp, false)], limits, None)
}

/// Requests a path, and returns the bytes of the response.
async fn get(pool: &Rc<Gateways>, path: &str) -> u64 {
    let request = RequestHead::get(Scheme::Http, "site.example", path.to_owned());
    let mut reply = ToGateway(Rc::clone(pool)).call(Exchange::internal(request));
    let mut bytes = 0;
    while let Some(part) = reply.part().await {
        if let Part::Data(data) = part.expect("a whole response") {
            bytes += data.len() as u64;
        }
    }
    bytes
}

/// Requests a download in the background.
fn download(pool: &Rc<Gateways>) -> tokio::task::JoinHandle<u64> {
    let pool = Rc::clone(pool);
    tokio::task::spawn_local(async move { get(&pool, "/download").await })
}

/// Creates a pool whose way over datagrams is slow, and that way.
fn with_slow_udp() -> (Rc<Way>, Rc<Gateways>) {
    let (udp, tcp) = (Way::new(0.25 * MBIT), Way::new(20.0 * MBIT));
    let pool = pool(&udp, &tcp);
    (udp, pool)
}

/// Waits until the session of a way has ended at the request for filler.
async fn end_of_session(udp: &Way) {
    while udp.ends.get() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits, and requests a page. Returns the way that carried it: `"udp"` or `"tcp"`.
async fn way_after(pool: &Rc<Gateways>, seconds: u64, udp: &Way) -> &'static str {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let before = udp.pages.borrow().len();
    get(pool, "/page").await;
    match udp.pages.borrow().len() > before {
        true => "udp",
        false => "tcp",
    }
}

#[test]
fn throttled_way_is_left_and_used_again_later() {
    run(async {
        let (udp, tcp) = (Way::new(0.25 * MBIT), Way::new(20.0 * MBIT));
        let pool = pool(&udp, &tcp);
        let download = download(&pool);
        assert_eq!(way_after(&pool, 1, &udp).await, "udp");
        // Two seconds of observation, and the comparison.
        assert_eq!(way_after(&pool, 5, &udp).await, "tcp");
        assert_eq!(
            download.await.expect("it ends"),
            DOWNLOAD,
            "nothing is lost"
        );
        for _ in 0..20 {
            assert_eq!(way_after(&pool, 5, &udp).await, "tcp");
        }
        // The first suspension ends. UDP is compared again, and is still slow.
        let before = udp.filler.get();
        for _ in 0..60 {
            assert_eq!(way_after(&pool, 5, &udp).await, "tcp");
        }
        assert!(udp.filler.get() > before, "it was compared");
        udp.rate.set(20.0 * MBIT);
        assert_eq!(way_after(&pool, 5, &udp).await, "tcp", "it is suspended");
        let mut ways = Vec::new();
        for _ in 0..130 {
            ways.push(way_after(&pool, 5, &udp).await);
        }
        ways.dedup();
        assert_eq!(ways, ["tcp", "udp"], "it stays");
    });
}

#[test]
fn way_is_compared_again_if_its_session_has_ended() {
    run(async {
        let (udp, pool) = with_slow_udp();
        udp.ends.set(true);
        let download = download(&pool);
        // Two seconds of observation, and the two comparisons.
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert!(pool.groups[0].ways.borrow().is_throttled(None, 0));
        assert_eq!(way_after(&pool, 0, &udp).await, "tcp");
        assert_eq!(download.await.expect("it ends"), DOWNLOAD);
    });
}

#[test]
fn second_comparison_leaves_a_broken_way_suspended() {
    run(async {
        let (udp, pool) = with_slow_udp();
        udp.ends.set(true);
        let download = download(&pool);
        end_of_session(&udp).await;
        // The way has broken, and TCP takes the requests.
        pool.groups[0].ways.borrow_mut().failed(None, 0, now());
        for _ in 0..100 {
            assert_eq!(way_after(&pool, 0, &udp).await, "tcp");
        }
        assert_eq!(download.await.expect("it ends"), DOWNLOAD);
        assert!(pool.groups[0].ways.borrow().is_throttled(None, 0));
    });
}

#[test]
fn pool_that_drains_repeats_no_comparison() {
    run(async {
        let (udp, pool) = with_slow_udp();
        udp.ends.set(true);
        let download = download(&pool);
        end_of_session(&udp).await;
        let filler = udp.filler.get();
        pool.drain();
        assert_eq!(download.await.expect("it ends"), DOWNLOAD);
        assert_eq!(udp.filler.get(), filler);
    });
}

#[test]
fn way_slow_during_a_comparison_is_compared_after_it() {
    run(async {
        let (udp, pool) = with_slow_udp();
        pool.groups[0].comparing.set(true);
        let download = download(&pool);
        assert_eq!(way_after(&pool, 5, &udp).await, "udp");
        pool.groups[0].comparing.set(false);
        assert_eq!(way_after(&pool, 5, &udp).await, "tcp");
        assert_eq!(download.await.expect("it ends"), DOWNLOAD);
    });
}

#[test]
fn slow_path_keeps_its_way_and_is_compared_seldom() {
    run(async {
        let (udp, tcp) = (Way::new(0.5 * MBIT), Way::new(0.5 * MBIT));
        let pool = pool(&udp, &tcp);
        for _ in 0..60 {
            get(&pool, "/download").await;
        }
        assert!(tcp.pages.borrow().is_empty());
        // An hour has passed. Each comparison ended with the first round.
        assert!(
            (1..=7).contains(&(tcp.filler.get() >> 16)),
            "{}",
            tcp.filler.get()
        );
        assert!(!pool.groups[0].comparing.get());
    });
}

/// Makes a pool leave a way that is throttled, and waits until its first suspension is over.
async fn throttled() -> (Rc<Gateways>, Rc<Way>, Rc<Way>) {
    let (udp, tcp) = (Way::new(0.25 * MBIT), Way::new(20.0 * MBIT));
    let pool = pool(&udp, &tcp);
    get(&pool, "/download").await;
    assert_eq!(way_after(&pool, 1, &udp).await, "tcp");
    tokio::time::sleep(Duration::from_secs(400)).await;
    (pool, udp, tcp)
}

#[test]
fn throttled_way_stays_left_beside_a_download() {
    run(async {
        let (pool, udp, tcp) = throttled().await;
        let downloads = {
            let pool = Rc::clone(&pool);
            tokio::task::spawn_local(async move {
                for _ in 0..60 {
                    get(&pool, "/download").await;
                }
            })
        };
        for _ in 0..15 {
            assert_eq!(way_after(&pool, 5, &udp).await, "tcp");
        }
        downloads.await.expect("they end");
        assert!(tcp.pages.borrow().len() > 70);
    });
}

#[test]
fn way_returns_after_an_undecided_comparison() {
    run(async {
        let (pool, udp, tcp) = throttled().await;
        udp.rate.set(20.0 * MBIT);
        udp.is_old.set(true);
        tcp.is_old.set(true);
        assert_eq!(way_after(&pool, 0, &udp).await, "tcp");
        udp.is_old.set(false);
        tcp.is_old.set(false);
        assert_eq!(way_after(&pool, 100, &udp).await, "tcp", "it is suspended");
        let ways = [
            way_after(&pool, 3600, &udp).await,
            way_after(&pool, 5, &udp).await,
        ];
        assert_eq!(ways, ["tcp", "udp"]);
    });
}

#[test]
fn client_without_filler_compares_no_ways() {
    run(async {
        let (udp, tcp) = (Way::new(0.25 * MBIT), Way::new(20.0 * MBIT));
        let pool = pool_with(&udp, &tcp, false);
        get(&pool, "/download").await;
        assert_eq!(way_after(&pool, 1, &udp).await, "udp");
        assert_eq!((udp.filler.get(), tcp.filler.get()), (0, 0));
    });
}

#[test]
fn session_without_filler_is_not_throttled() {
    run(async {
        let (udp, tcp) = (Way::new(0.5 * MBIT), Way::new(500.0 * MBIT));
        // It has sent all filler of the session, and its answer comes after the bytes by TCP.
        udp.is_old.set(true);
        udp.latency.set(480);
        let pool = pool(&udp, &tcp);
        get(&pool, "/download").await;
        assert!(tcp.filler.get() > 0);
        assert_eq!(way_after(&pool, 1, &udp).await, "udp");
    });
}

#[test]
fn gateway_without_filler_keeps_the_way() {
    run(async {
        let (udp, tcp) = (Way::new(0.25 * MBIT), Way::new(20.0 * MBIT));
        udp.is_old.set(true);
        tcp.is_old.set(true);
        let pool = pool(&udp, &tcp);
        get(&pool, "/download").await;
        assert_eq!(way_after(&pool, 1, &udp).await, "udp");
        assert!(!pool.groups[0].comparing.get());
    });
}
