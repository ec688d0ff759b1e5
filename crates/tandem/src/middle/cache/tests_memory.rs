//! Tests of the memory that a cache uses for responses that clients read slowly.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tandem_cache::{Config, Sharing};
use tandem_http::{RequestHead, ResponseHead, Scheme};

use super::CacheStage;
use crate::exchange::{Exchange, Part, Peer, Reply};
use crate::response_cache::ResponseCache;
use crate::stage::Stage;

const MEMORY: u64 = 1 << 20;
/// The longest body that is stored.
const BODY: usize = MEMORY as usize / 16;
/// The memory of a cache whose longest body exceeds the one that a session queues as a whole.
const LARGE_MEMORY: u64 = 4 << 20;

/// A cache before an origin. A path that begins with `/stall` never ends, and sends this number of
/// bytes.
struct World {
    cache: Arc<ResponseCache>,
    asked: Rc<Cell<usize>>,
    origin: Rc<dyn Stage>,
}

fn world(stalled: usize) -> World {
    world_of(MEMORY, stalled)
}

/// Creates a cache with this memory. The bodies of the origin have the longest length that it
/// stores.
fn world_of(memory: u64, stalled: usize) -> World {
    let body = memory as usize / 16;
    let cache = Arc::new(ResponseCache::new(Config {
        sharing: Sharing::Origin,
        memory,
        min_users: 1,
    }));
    let asked = Rc::new(Cell::new(0));
    let count = Rc::clone(&asked);
    let origin = Rc::new(move |exchange: Exchange| {
        count.set(count.get() + 1);
        let mut head = ResponseHead::new(200);
        head.fields.push("cache-control", "max-age=600");
        if !exchange.request.path.starts_with("/stall") {
            return Reply::ready(head, Bytes::from(vec![7; body]));
        }
        Reply::generate(move |mut sink| async move {
            sink.send(Part::Head(head)).await;
            sink.send(Part::Data(Bytes::from(vec![7; stalled]))).await;
            std::future::pending().await
        })
    });
    World {
        cache,
        asked,
        origin,
    }
}

impl World {
    fn session(&self, session: u64) -> CacheStage {
        let peer = Peer {
            session,
            ..Peer::none()
        };
        CacheStage::new(&self.cache, peer, session, true, Rc::clone(&self.origin))
    }

    /// Returns true if a request needs the origin, and its `Cache-Status`.
    async fn asks(&self, stage: &CacheStage, path: &str) -> (bool, String) {
        let before = self.asked.get();
        let (mut reply, mut status) = (call(stage, path), None);
        while let Some(part) = reply.part().await {
            if let Part::Head(head) = part.unwrap() {
                status = head.fields.get("cache-status").map(<[u8]>::to_vec);
            }
        }
        let status = String::from_utf8(status.unwrap()).unwrap();
        (self.asked.get() > before, status)
    }
}

fn call(stage: &CacheStage, path: &str) -> Reply {
    let request = RequestHead::get(Scheme::Http, "own.example", path);
    stage.call(Exchange::internal(request))
}

/// Reads the head of a response only.
async fn begun(stage: &CacheStage, path: &str) -> Reply {
    let mut reply = call(stage, path);
    let part = reply.part().await;
    assert!(matches!(part, Some(Ok(Part::Head(_)))), "{part:?}");
    reply
}

/// Lets the other tasks run until all of them wait.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Each body has a reader that reads nothing, and leaves the store at once.
#[tokio::test(start_paused = true)]
async fn unread_bodies_count_until_their_readers_end() {
    let scene = async {
        let world = world(0);
        let (slow, other) = (world.session(1), world.session(2));
        let mut unread = Vec::new();
        for number in 0..60 {
            let path = format!("/{number}");
            unread.push(begun(&slow, &path).await);
            world.asks(&other, &path).await;
        }
        // The readers hold three times the memory, unless the cache has refused bodies.
        let mut refused = 0;
        for number in 60..64 {
            let path = format!("/{number}");
            world.asks(&other, &path).await;
            refused += usize::from(world.asks(&other, &path).await.0);
        }
        assert_eq!(refused, 4);
        // One of them reads on, and is not cut.
        tokio::time::advance(Duration::from_secs(59)).await;
        let part = unread[0].part().await;
        assert!(matches!(part, Some(Ok(Part::Data(_)))), "{part:?}");
        tokio::time::advance(Duration::from_secs(2)).await;
        world.asks(&other, "/after").await;
        assert!(!world.asks(&other, "/after").await.0, "there is room again");
        while let Some(part) = unread[0].part().await {
            part.expect("a reader that took bytes");
        }
        let ended = unread[1].part().await;
        assert!(matches!(ended, Some(Err(_))), "{ended:?}");
    };
    tokio::task::LocalSet::new().run_until(scene).await;
}

/// A client opens each stored body twice and one byte of it, and reads nothing.
#[tokio::test(start_paused = true)]
async fn unread_hits_of_evicted_bodies_end() {
    let scene = async {
        let world = world_of(LARGE_MEMORY, 0);
        let (slow, other) = (world.session(1), world.session(2));
        let mut unread = Vec::new();
        for number in 0..64 {
            let path = format!("/{number}");
            world.asks(&other, &path).await;
            if world.asks(&other, &path).await.0 {
                break;
            }
            for range in [None, None, Some("bytes=9-9")] {
                let mut request = RequestHead::get(Scheme::Http, "own.example", &path);
                if let Some(range) = range {
                    request.fields.push("range", range);
                }
                let mut reply = slow.call(Exchange::internal(request));
                let head = reply.part().await;
                assert!(matches!(head, Some(Ok(Part::Head(_)))), "{head:?}");
                unread.push(reply);
            }
        }
        assert!((3 * 16..3 * 24).contains(&unread.len()), "{}", unread.len());
        let asked = world.asked.get();
        tokio::time::advance(Duration::from_secs(61)).await;
        // One of them reads on, and is not cut.
        let part = unread[0].part().await;
        assert!(matches!(part, Some(Ok(Part::Data(_)))), "{part:?}");
        for number in 100..104 {
            world.asks(&other, &format!("/{number}")).await;
            // The cache looks for such readings once in a second.
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!(!world.asks(&other, "/103").await.0, "there is room again");
        assert_eq!(world.asked.get(), asked + 4);
        let mut ended = 0;
        for reply in &mut unread[1..] {
            ended += usize::from(matches!(reply.part().await, Some(Err(_))));
        }
        assert!(ended >= 3, "{ended}");
        while let Some(part) = unread[0].part().await {
            part.expect("a reader that took bytes");
        }
    };
    tokio::task::LocalSet::new().run_until(scene).await;
}

#[tokio::test(start_paused = true)]
async fn one_session_does_not_stop_the_cache() {
    let scene = async {
        let world = world(BODY / 2);
        let (slow, other) = (world.session(1), world.session(2));
        let mut unread = Vec::new();
        for number in 0..40 {
            unread.push(begun(&slow, &format!("/stall/{number}")).await);
            settle().await;
        }
        let (is_asked, status) = world.asks(&other, "/page").await;
        assert!(is_asked && status.ends_with("; stored"), "{status}");
        assert!(!world.asks(&other, "/page").await.0);
    };
    tokio::task::LocalSet::new().run_until(scene).await;
}

#[tokio::test(start_paused = true)]
async fn stalled_responses_of_many_sessions_make_way() {
    let scene = async {
        let world = world(BODY / 2);
        let slow: Vec<CacheStage> = (1..=20).map(|number| world.session(number)).collect();
        let mut unread = Vec::new();
        for (number, stage) in slow.iter().enumerate() {
            unread.push(begun(stage, &format!("/stall/{number}")).await);
            settle().await;
        }
        let other = world.session(99);
        // No response is announced as stored that is not.
        let (_, status) = world.asks(&other, "/page").await;
        assert!(!status.contains("stored"), "{status}");
        assert!(world.asks(&other, "/page").await.0);
        tokio::time::advance(Duration::from_secs(6)).await;
        let mut requests = 0;
        while world.asks(&other, "/page").await.0 {
            requests += 1;
            settle().await;
            assert!(requests < 10, "the stalled ones make way");
        }
        // Their clients still get their responses.
        for reply in &mut unread {
            let part = reply.part().await;
            assert!(matches!(part, Some(Ok(Part::Data(_)))), "{part:?}");
        }
    };
    tokio::task::LocalSet::new().run_until(scene).await;
}
