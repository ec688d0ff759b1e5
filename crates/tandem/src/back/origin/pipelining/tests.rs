//! Tests of pipelined requests, in virtual time, with an origin that a script controls.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::ConnectionLimits;
use super::super::tests_scripted::{Behaviour, REGULAR, Scene, THINKS, body, run};
use crate::error::Kind;

#[test]
fn second_request_leaves_before_the_first_response() {
    run(async {
        let scene = Scene::new(REGULAR, 1);
        scene.begin().await;
        scene.behaviour.set(Behaviour {
            pairs: true,
            ..REGULAR
        });
        let paths = ["/a", "/bb", "/ccc", "/dddd"];
        let fetched = paths.map(|path| scene.fetch(path));
        for (path, fetched) in paths.into_iter().zip(fetched) {
            scene.expect(path, fetched).await;
        }
        assert_eq!(scene.seen.dials.get(), 1);
        assert_eq!(scene.depth(), 2);
    });
}

#[test]
fn unknown_origin_gets_one_request_on_each_connection() {
    run(async {
        let scene = Scene::new(REGULAR, 2);
        assert_eq!(scene.depth(), 1);
        let fetched = ["/a", "/b", "/c"].map(|path| scene.fetch(path));
        tokio::time::sleep(THINKS / 2).await;
        assert_eq!((scene.requests(), scene.seen.dials.get()), (2, 2));
        for (path, fetched) in ["/a", "/b", "/c"].into_iter().zip(fetched) {
            scene.expect(path, fetched).await;
        }
    });
}

#[test]
fn connections_stay_below_their_limit() {
    run(async {
        let scene = Scene::new(REGULAR, 3);
        scene.begin().await;
        let paths: Vec<_> = (0..40).map(|number| format!("/{number}")).collect();
        let fetched: Vec<_> = paths.iter().map(|path| scene.fetch(path)).collect();
        for (path, fetched) in paths.iter().zip(fetched) {
            scene.expect(path, fetched).await;
        }
        assert_eq!((scene.seen.greatest.get(), scene.requests()), (3, 41));
    });
}

#[test]
fn document_part_and_event_stream_are_not_pipelined() {
    run(async {
        for fields in [
            ("accept", "text/html,*/*"),
            ("accept", "text/event-stream"),
            ("range", "bytes=0-1"),
        ] {
            let scene = Scene::new(REGULAR, 1);
            scene.begin().await;
            let special = scene.fetch_with("/special", &[fields]);
            let behind = scene.fetch("/behind");
            tokio::time::sleep(Duration::ZERO).await;
            let more = scene.fetch_with("/more", &[fields]);
            scene.expect("/special", special).await;
            let before = scene.requests();
            assert!(before <= 3, "{before}");
            scene.expect("/behind", behind).await;
            scene.expect("/more", more).await;
            assert_eq!((scene.seen.dials.get(), scene.requests()), (1, 4));
        }
    });
}

#[test]
fn request_behind_a_closed_connection_is_repeated() {
    run(async {
        for announces in [true, false] {
            let scene = Scene::new(REGULAR, 1);
            scene.begin().await;
            scene.behaviour.set(Behaviour {
                closes_after: 2,
                announces,
                ..REGULAR
            });
            let fetched = ["/a", "/b", "/c"].map(|path| scene.fetch(path));
            for (path, fetched) in ["/a", "/b", "/c"].into_iter().zip(fetched) {
                scene.expect(path, fetched).await;
            }
            // An announced end is no fault of pipelining.
            let depth = scene.depth();
            assert_eq!(depth, if announces { 2 } else { 1 });
        }
    });
}

#[test]
fn response_that_the_connection_ends_is_read_alone() {
    run(async {
        for (connections, hints) in [(1, false), (3, false), (1, true), (3, true)] {
            let scene = Scene::new(REGULAR, connections);
            scene.begin().await;
            scene.behaviour.set(Behaviour {
                closes_open: true,
                hints,
                ..REGULAR
            });
            let paths = ["/a", "/open", "/b", "/open/c", "/d", "/open/e", "/f"];
            for _ in 0..2 {
                let fetched = paths.map(|path| scene.fetch(path));
                for (path, fetched) in paths.into_iter().zip(fetched) {
                    scene.expect(path, fetched).await;
                }
            }
            assert_eq!(scene.depth(), 1);
            let repeated = scene.requests() - 1 - 2 * paths.len();
            assert!(repeated <= 2 * connections, "{repeated}");
        }
    });
}

#[test]
fn hints_precede_the_heads_of_pipelined_responses() {
    run(async {
        let scene = Scene::new(REGULAR, 1);
        scene.begin().await;
        scene.behaviour.set(Behaviour {
            closes_open: true,
            hints: true,
            ..REGULAR
        });
        let document = [("accept", "text/html,*/*")];
        let fetched = [
            ("/open/a", &[][..]),
            ("/b", &[]),
            ("/open/c", &[]),
            ("/d", &document),
        ]
        .map(|(path, fields)| scene.statuses(path, fields));
        for statuses in fetched {
            assert_eq!(statuses.await.expect("a task"), [103, 200]);
        }
    });
}

#[test]
fn document_that_a_close_ends_leaves_pipelining_on() {
    run(async {
        let scene = Scene::new(REGULAR, 1);
        scene.begin().await;
        scene.behaviour.set(Behaviour {
            closes_open: true,
            ..REGULAR
        });
        let document = scene.fetch_with("/open", &[("accept", "text/html,*/*")]);
        scene.expect("/open", document).await;
        assert_eq!(scene.depth(), 2);
    });
}

#[test]
fn only_a_scout_follows_the_last_request() {
    run(async {
        // Many connections reach their ends together.
        let cases = [(2, 6), (6, 5), (24, 5), (24, 6), (24, 2), (32, 100)];
        for (connections, life, dials_are_free) in
            cases.into_iter().flat_map(|(connections, life)| {
                [false, true].map(|dials_are_free| (connections, life, dials_are_free))
            })
        {
            let short = Behaviour {
                closes_after: life,
                ..REGULAR
            };
            let limits = ConnectionLimits {
                most: connections,
                dials_are_free,
                ahead: 0,
            };
            let scene = Scene::limited(short, Rc::new(Cell::new(limits)));
            let paths: Vec<_> = (0..connections * life * 2)
                .map(|number| format!("/{number}"))
                .collect();
            let fetched: Vec<_> = paths.iter().map(|path| scene.fetch(path)).collect();
            for (path, fetched) in paths.iter().zip(fetched) {
                scene.expect(path, fetched).await;
            }
            assert_eq!(scene.depth(), 2);
            let lost = scene.seen.lost.get();
            assert!(lost <= 1, "{connections} connections of {life}: {lost}");
            let lingering = scene.seen.lingering.get();
            let expected = if connections > 6 { 3 } else { connections };
            assert!(
                lingering <= expected,
                "{connections} of {life}: {lingering}"
            );
        }
    });
}

/// Returns the time of seven documents after six connections have had two responses each, and the
/// dials. One of the six has carried no pipelined requests.
async fn after_equal_connections(dials_are_free: bool) -> (Duration, usize) {
    const DOCUMENT: [(&str, &str); 1] = [("accept", "text/html")];
    let limits = Rc::new(Cell::new(ConnectionLimits {
        most: 6,
        dials_are_free,
        ahead: 0,
    }));
    let scene = Scene::limited(REGULAR, Rc::clone(&limits));
    scene.begin().await;
    let document = scene.fetch_with("/document", &DOCUMENT);
    let paths: Vec<_> = (0..10).map(|number| format!("/{number}")).collect();
    let fetched: Vec<_> = paths.iter().map(|path| scene.fetch(path)).collect();
    scene.expect("/document", document).await;
    for (path, fetched) in paths.iter().zip(fetched) {
        scene.expect(path, fetched).await;
    }
    assert_eq!((scene.seen.dials.get(), scene.seen.followed.get()), (6, 5));
    limits.set(ConnectionLimits {
        most: 7,
        ..limits.get()
    });
    let begun = Instant::now();
    let documents = ["/a", "/b", "/c", "/d", "/e", "/f", "/g"];
    let fetched = documents.map(|path| scene.fetch_with(path, &DOCUMENT));
    for (path, fetched) in documents.into_iter().zip(fetched) {
        scene.expect(path, fetched).await;
    }
    (begun.elapsed(), scene.seen.dials.get())
}

/// Two connections find out whether they stay open, a third one does, and a fourth is new.
#[test]
fn new_connection_replaces_an_idle_one_that_may_end() {
    run(async {
        assert_eq!(after_equal_connections(false).await, (THINKS * 2, 7));
        assert_eq!(after_equal_connections(true).await, (THINKS, 10));
    });
}

#[test]
fn connections_follow_a_scout_in_pairs() {
    run(async {
        const CONNECTIONS: usize = 8;
        const REQUESTS: usize = CONNECTIONS * 20;
        let scene = Scene::new(REGULAR, CONNECTIONS);
        scene.begin().await;
        let paths: Vec<_> = (0..REQUESTS).map(|number| format!("/{number}")).collect();
        let fetched: Vec<_> = paths.iter().map(|path| scene.fetch(path)).collect();
        for (path, fetched) in paths.iter().zip(fetched) {
            scene.expect(path, fetched).await;
        }
        // The second request of each connection may be followed by the scout only.
        let followed = scene.seen.followed.get();
        assert!(followed >= REQUESTS / 2 - CONNECTIONS, "{followed}");
    });
}

#[test]
fn pipelining_ends_at_an_origin_that_drops_requests() {
    run(async {
        let dropping = Behaviour {
            drops: true,
            ..REGULAR
        };
        let scene = Scene::new(dropping, 1);
        scene.begin().await;
        let fetched = ["/a", "/b"].map(|path| scene.fetch(path));
        for (path, fetched) in ["/a", "/b"].into_iter().zip(fetched) {
            scene.expect(path, fetched).await;
        }
        assert_eq!(scene.depth(), 1);
    });
}

#[test]
fn request_that_the_origin_misread_is_repeated_alone() {
    const ANSWERS: [&str; 6] = [
        "\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate",
        "more of the body than its length\r\n\r\n",
        "HTTP/1.1 200 O",
        "HTTP/1.1 200 OK\r\nContent-Length: none\r\n\r\n",
        "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    ];
    for answer in ANSWERS {
        run(async move {
            let scene = Scene::new(REGULAR, 1);
            scene.begin().await;
            scene.behaviour.set(Behaviour {
                confused: Some(answer),
                ..REGULAR
            });
            let fetched = ["/a", "/b", "/c"].map(|path| scene.fetch(path));
            for (path, fetched) in ["/a", "/b", "/c"].into_iter().zip(fetched) {
                scene.expect(path, fetched).await;
            }
            assert_eq!(scene.depth(), 1);
        });
    }
}

#[test]
fn request_behind_a_repaired_response_is_repeated() {
    run(async {
        let scene = Scene::new(REGULAR, 1);
        scene.begin().await;
        scene.behaviour.set(Behaviour {
            version: "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nX:",
            ..REGULAR
        });
        let fetched = ["/a", "/b", "/c"].map(|path| scene.fetch(path));
        for (path, fetched) in ["/a", "/b", "/c"].into_iter().zip(fetched) {
            scene.expect(path, fetched).await;
        }
        assert_eq!((scene.depth(), scene.seen.dials.get()), (1, 3));
        assert_eq!(scene.requests(), 5, "one was repeated");
    });
}

#[test]
fn origin_of_http_1_0_gets_one_request_at_a_time() {
    run(async {
        let old = Behaviour {
            version: "HTTP/1.0",
            ..REGULAR
        };
        let scene = Scene::new(old, 1);
        scene.begin().await;
        assert_eq!(scene.depth(), 1);
        scene.expect("/a", scene.fetch("/a")).await;
        assert_eq!(scene.seen.dials.get(), 1);
    });
}

#[test]
fn cancelled_response_ends_its_connection_only() {
    run(async {
        let scene = Scene::new(REGULAR, 1);
        scene.begin().await;
        let [first, second] = ["/a", "/b"].map(|path| scene.fetch(path));
        tokio::time::sleep(THINKS / 2).await;
        first.abort();
        scene.expect("/b", second).await;
        assert_eq!(scene.seen.dials.get(), 2);
        assert_eq!(scene.depth(), 2);
    });
}

#[test]
fn response_to_a_cancelled_request_is_not_reused() {
    run(async {
        let scene = Scene::new(REGULAR, 1);
        scene.begin().await;
        let [first, second, third] = ["/a", "/b", "/c"].map(|path| scene.fetch(path));
        tokio::time::sleep(THINKS / 2).await;
        second.abort();
        scene.expect("/a", first).await;
        scene.expect("/c", third).await;
        let last = scene.fetch("/d");
        scene.expect("/d", last).await;
    });
}

#[test]
fn request_leaves_a_stalled_or_long_response() {
    run(async {
        let slow = Behaviour {
            thinks: Duration::from_secs(20),
            ..REGULAR
        };
        let long = Behaviour {
            length: 40 << 20,
            ..REGULAR
        };
        for behaviour in [slow, long] {
            let scene = Scene::new(REGULAR, 2);
            scene.begin().await;
            scene.behaviour.set(behaviour);
            let first = scene.fetch("/a");
            tokio::time::sleep(THINKS / 2).await;
            let second = scene.fetch("/b");
            tokio::time::sleep(THINKS / 2).await;
            scene.behaviour.set(REGULAR);
            scene.expect("/b", second).await;
            assert_eq!(scene.seen.dials.get(), 2);
            drop(first);
        }
    });
}

#[test]
fn requests_do_not_follow_large_responses() {
    run(async {
        let scene = Scene::new(REGULAR, 1);
        scene.begin().await;
        scene.behaviour.set(Behaviour {
            length: (1 << 20) + 1,
            ..REGULAR
        });
        let paths = ["/a", "/b", "/c", "/d", "/e"];
        let fetched = paths.map(|path| scene.fetch(path));
        for (path, fetched) in paths.into_iter().zip(fetched) {
            scene.expect(path, fetched).await;
        }
        assert_eq!(scene.requests(), 6, "none is repeated");
        // One request has left before the first length was known.
        assert_eq!((scene.seen.followed.get(), scene.depth()), (1, 1));
        scene.behaviour.set(REGULAR);
        for _ in 0..20 {
            scene.begin().await;
        }
        assert_eq!(scene.depth(), 2, "small responses follow");
    });
}

/// A script may read a stream with an ordinary request, and its responses need not end.
#[test]
fn request_leaves_a_response_without_an_end() {
    run(async {
        let kinds = [
            ("Text/Event-Stream; charset=utf-8", 1),
            ("application/x-ndjson", 16),
        ];
        for (kind, seconds) in kinds {
            let scene = Scene::new(REGULAR, 2);
            scene.begin().await;
            scene.behaviour.set(Behaviour {
                length: 3600,
                drips: Some(kind),
                ..REGULAR
            });
            let stream = scene.fetch("/stream");
            tokio::time::sleep(THINKS / 2).await;
            let behind = scene.fetch("/behind");
            tokio::time::sleep(THINKS).await;
            scene.behaviour.set(REGULAR);
            let begun = Instant::now();
            scene.expect("/behind", behind).await;
            let waited = begun.elapsed();
            assert!(waited < Duration::from_secs(seconds), "{kind}: {waited:?}");
            assert_eq!((scene.depth(), scene.seen.dials.get()), (2, 2));
            scene.behaviour.set(Behaviour {
                length: 3600,
                ..REGULAR
            });
            scene.expect("/stream", stream).await;
        }
    });
}

/// Returns numbers that look random.
fn numbers(mut state: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}

#[test]
fn responses_belong_to_their_requests_in_any_scene() {
    for seed in 1..150 {
        run(async move {
            let mut number = numbers(seed * 0x9e37_79b9);
            let scene = Scene::new(REGULAR, 1 + number(4) as usize);
            let mut under_way = Vec::new();
            for count in 0..60 {
                scene.behaviour.set(Behaviour {
                    closes_after: 1 + number(20) as usize,
                    announces: number(2) == 0,
                    drops: number(20) == 0,
                    thinks: THINKS * number(4) as u32,
                    ..REGULAR
                });
                let path = format!("/{count}-{}", number(1 << 40));
                under_way.push((scene.fetch(&path), path));
                if number(4) == 0 {
                    tokio::time::sleep(THINKS * number(5) as u32).await;
                }
                if number(6) == 0 {
                    let at = number(under_way.len() as u64) as usize;
                    under_way.swap_remove(at).0.abort();
                }
            }
            for (fetched, path) in under_way {
                match fetched.await.expect("a task") {
                    Ok(got) => assert!(got == body(&path, REGULAR.length), "{path}"),
                    // Three attempts may all meet a closed connection.
                    Err(error) => assert!(
                        matches!(error.kind, Kind::Reset | Kind::Truncated),
                        "{error:?}"
                    ),
                }
            }
            tokio::time::sleep(Duration::from_secs(120)).await;
            assert_eq!(scene.seen.open.get(), 0, "idle connections are closed");
        });
    }
}
