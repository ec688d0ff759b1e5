//! Random plans of exchanges: each body arrives whole, through any windows and cuts.

use bytes::Bytes;
use proptest::prelude::*;
use tandem_http::flood::LEAST_WINDOW;
use tandem_http::{Event, Method, Mux, Priority, Reason, RequestHead, Role};

use crate::support::{Pair, bytes, client_config, events, fields, get, response, server_config};

/// A step of a random exchange.
#[derive(Clone, Debug)]
struct Plan {
    path: String,
    up: Vec<usize>,
    down: Vec<usize>,
    trailers: bool,
    urgency: u8,
    reset: bool,
}

/// Returns fewer than `most` plans, with pieces of fewer than `size` bytes.
fn plans(size: usize, most: usize) -> impl Strategy<Value = Vec<Plan>> {
    let sizes = move || prop::collection::vec(0..size, 0..4);
    let plan = (
        "/[a-z]{0,30}",
        sizes(),
        sizes(),
        any::<bool>(),
        0u8..8,
        prop::bool::weighted(0.1),
    )
        .prop_map(|(path, up, down, trailers, urgency, reset)| Plan {
            path,
            up,
            down,
            trailers,
            urgency,
            reset,
        });
    prop::collection::vec(plan, 1..most)
}

/// Runs the plans at once on a session with these stream windows. Frames are cut at `cuts`, and
/// each write has at most `limit` bytes. Checks that every byte arrives, in order, and that no
/// stream is left over.
fn run_plans(
    plans: &[Plan],
    cuts: Vec<usize>,
    limit: usize,
    windows: (u32, u32),
) -> Result<(), TestCaseError> {
    let (mut client, mut server) = (client_config(), server_config());
    (client.stream_window, server.stream_window) = windows;
    (client.session_window, server.session_window) = (70_000, 80_000);
    let mut pair = Pair::with(client, server);
    (pair.cuts, pair.limit) = (cuts, limit);
    let mut up: Vec<Vec<u8>> = Vec::new();
    let mut down: Vec<Vec<u8>> = Vec::new();
    for plan in plans {
        let post = RequestHead {
            method: Method::Post,
            ..get(&plan.path)
        };
        let id = pair
            .client
            .open(&post, false, Priority(plan.urgency))
            .expect("a stream");
        prop_assert_eq!(id as usize, up.len() * 2 + 1);
        plan.up
            .iter()
            .for_each(|&size| pair.client.send_data(id, bytes(size), false));
        if plan.trailers {
            pair.client.send_trailers(id, &fields(&[("x-end", "1")]));
        } else {
            pair.client.send_data(id, Bytes::new(), true);
        }
        up.push(Vec::new());
        down.push(Vec::new());
    }
    let (mut up_ends, mut down_ends, mut resets) = (0, 0, 0);
    loop {
        let mut moved = pair.step(Role::Client);
        for event in events(&mut pair.server) {
            match event {
                Event::Request {
                    id, head, priority, ..
                } => {
                    let plan = &plans[id as usize / 2];
                    prop_assert_eq!(&head.path, &plan.path);
                    prop_assert_eq!(priority.0, plan.urgency);
                    pair.server.respond(id, &response(200, &[]), false);
                    plan.down
                        .iter()
                        .for_each(|&size| pair.server.send_data(id, bytes(size), false));
                    if plan.reset {
                        pair.server.reset(id, Reason::Internal);
                    } else if plan.trailers {
                        pair.server.send_trailers(id, &fields(&[("x-end", "1")]));
                    } else {
                        pair.server.send_data(id, Bytes::new(), true);
                    }
                }
                Event::Data { id, data, end } => {
                    pair.server.release(id, data.len());
                    up[id as usize / 2].extend_from_slice(&data);
                    up_ends += usize::from(end);
                }
                Event::Trailers { .. } => up_ends += 1,
                _ => {}
            }
        }
        moved |= pair.step(Role::Server);
        for event in events(&mut pair.client) {
            match event {
                Event::Data { id, data, end } => {
                    pair.client.release(id, data.len());
                    down[id as usize / 2].extend_from_slice(&data);
                    down_ends += usize::from(end);
                }
                Event::Trailers { .. } => down_ends += 1,
                Event::Reset { reason, .. } => {
                    prop_assert_eq!(reason, Reason::Internal);
                    resets += 1;
                }
                _ => {}
            }
        }
        if !moved {
            break;
        }
    }
    let good = plans.iter().filter(|p| !p.reset).count();
    prop_assert_eq!((down_ends, resets), (good, plans.len() - good));
    prop_assert!(up_ends >= good);
    for (at, plan) in plans.iter().enumerate().filter(|(_, p)| !p.reset) {
        prop_assert_eq!(
            &up[at],
            &plan.up.iter().flat_map(|&n| bytes(n)).collect::<Vec<u8>>()
        );
        prop_assert_eq!(
            &down[at],
            &plan
                .down
                .iter()
                .flat_map(|&n| bytes(n))
                .collect::<Vec<u8>>()
        );
    }
    prop_assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn exchanges_arrive_complete(
        plans in plans(40_000, 20),
        cuts in prop::collection::vec(1usize..5000, 1..20),
        limit in 1usize..40_000,
        windows in (LEAST_WINDOW..100_000, LEAST_WINDOW..100_000),
    ) {
        run_plans(&plans, cuts, limit, windows)?;
    }

    /// The flood budget permits a smaller window while the reserve pays for its credit.
    #[test]
    fn short_exchanges_arrive_through_small_windows(
        plans in plans(100, 3),
        cuts in prop::collection::vec(1usize..5000, 1..20),
        limit in 1usize..40_000,
        windows in (1..LEAST_WINDOW, 1..LEAST_WINDOW),
    ) {
        run_plans(&plans, cuts, limit, windows)?;
    }
}
