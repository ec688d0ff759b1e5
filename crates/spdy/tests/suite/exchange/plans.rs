//! Random plans of exchanges: each body arrives whole, through any windows and cuts.

use proptest::prelude::*;
use tandem_http::flood::LEAST_WINDOW;
use tandem_http::{Event, Mux as _, Priority, Role};
use tandem_spdy::Version;

use super::{BOTH, body_of, feed};
use crate::support::{Pair, body, config, get, response};

/// A request: its urgency, the bytes of its body and of its response, true if trailers end the
/// response, and the number of pushes.
type Plan = (u8, usize, usize, bool, usize);

/// Returns plans with bodies of fewer than `sent` and `answered` bytes.
fn plans(sent: usize, answered: usize) -> impl Strategy<Value = Vec<Plan>> {
    let plan = (0u8..8, 0..sent, 0..answered, any::<bool>(), 0usize..3);
    prop::collection::vec(plan, 1..12)
}

/// Runs the requests at once on a session with these stream windows of client and server. Input is
/// cut after `cut` bytes, and each write has at most `limit`. The pushes of a request have 0,
/// `pushed`, ... bytes. Checks that all of it arrives complete, and that no stream is left over.
fn run_plans(
    version: Version,
    (cut, limit): (usize, usize),
    windows: (u32, u32),
    requests: &[Plan],
    pushed_bytes: usize,
) -> Result<(), TestCaseError> {
    let (mut client, mut server) = (config(Role::Client, version), config(Role::Server, version));
    (client.mux.stream_window, server.mux.stream_window) = windows;
    let mut pair = Pair::with(client, server);
    pair.cut = cut;
    let mut expected = Vec::new();
    let mut up = Vec::new();
    for &(urgency, sent, answered, trailers, pushes) in requests {
        let id = pair
            .client
            .open(&get("/"), sent == 0, Priority(urgency))
            .expect("room");
        if sent > 0 {
            up.push((id, body(sent)));
        }
        expected.push((id, sent, answered, trailers, pushes));
    }
    let mut down = Vec::new();
    let (mut at_client, mut at_server) = (Vec::new(), Vec::new());
    let mut pushed = Vec::new();
    loop {
        feed(&mut pair.client, &mut up);
        feed(&mut pair.server, &mut down);
        let moved = pair.step(limit);
        for event in pair.take_server() {
            match &event {
                Event::Request { id, .. } => {
                    let (_, _, answered, trailers, pushes) = expected[(*id as usize - 1) / 2];
                    for number in 0..pushes {
                        let push = pair
                            .server
                            .push(*id, &get("/p"), Priority(7))
                            .expect("taken");
                        pushed.push((push, pushed_bytes * number));
                        pair.server
                            .respond(push, &response(200, &[("x", "y")]), false);
                        down.push((push, body(pushed_bytes * number)));
                    }
                    pair.server.respond(*id, &response(200, &[]), false);
                    if trailers {
                        pair.server.send_data(*id, body(answered), false);
                        pair.server
                            .send_trailers(*id, &[("t", "1")].into_iter().collect());
                    } else {
                        down.push((*id, body(answered)));
                    }
                }
                Event::Data { id, data, .. } => pair.server.release(*id, data.len()),
                _ => {}
            }
            at_server.push(event);
        }
        for event in pair.take_client() {
            if let Event::Data { id, data, .. } = &event {
                pair.client.release(*id, data.len());
            }
            at_client.push(event);
        }
        if !moved && up.is_empty() && down.is_empty() {
            break;
        }
    }
    for (id, sent, answered, trailers, _) in expected {
        prop_assert_eq!(body_of(&at_server, id), (body(sent).to_vec(), sent > 0));
        prop_assert_eq!(
            body_of(&at_client, id),
            (body(answered).to_vec(), !trailers)
        );
    }
    for (push, len) in pushed {
        prop_assert_eq!(body_of(&at_client, push).0.len(), len);
    }
    prop_assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn exchanges_arrive_complete(
        version in prop::sample::select(&BOTH[..]),
        cut_and_limit in (1usize..40_000, 1usize..40_000),
        windows in (LEAST_WINDOW..200_000, LEAST_WINDOW..100_000),
        requests in plans(60_000, 200_000),
    ) {
        run_plans(version, cut_and_limit, windows, &requests, 10_000)?;
    }

    /// The flood budget permits a smaller window while the reserve pays for its credit.
    #[test]
    fn short_exchanges_arrive_through_small_windows(
        version in prop::sample::select(&BOTH[..]),
        cut_and_limit in (1usize..40_000, 1usize..40_000),
        windows in (1..LEAST_WINDOW, 1..LEAST_WINDOW),
        requests in plans(100, 60),
    ) {
        run_plans(version, cut_and_limit, windows, &requests, 10)?;
    }
}
