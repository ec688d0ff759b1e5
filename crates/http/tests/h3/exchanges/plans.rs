//! Random plans of exchanges: every message arrives whole.

use proptest::prelude::*;
use tandem_http::{Event, Method, Mux, Priority, Role};

use crate::support::*;

#[derive(Clone, Debug)]
struct Plan {
    upload: usize,
    download: usize,
    pushes: usize,
    trailers: bool,
}

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    let plan =
        (0usize..3, 0usize..3, 0usize..3, any::<bool>()).prop_map(|(a, b, pushes, trailers)| {
            Plan {
                upload: [0, 10, 5000][a],
                download: [0, 10, 40_000][b],
                pushes,
                trailers,
            }
        });
    prop::collection::vec(plan, 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the order and the cuts of the streams, every message arrives whole.
    #[test]
    fn h3_exchanges_arrive_complete(
        plans in plans(),
        choices in prop::collection::vec(0usize..4000, 1..40),
    ) {
        let mut pair = Pair::new();
        pair.choices = choices;
        let mut near = Vec::new();
        for (turn, plan) in plans.iter().enumerate() {
            let mut head = get(&format!("/{turn}"));
            head.method = if plan.upload > 0 { Method::Post } else { Method::Get };
            head.fields.push("x-turn", turn.to_string());
            let (end, priority) = (plan.upload == 0, Priority(turn as u8 % 8));
            let id = pair.client.core.open(&head, end, priority).expect("room");
            if plan.upload > 0 {
                pair.client.core.send_data(id, bytes(plan.upload), true);
            }
            near.push(id);
        }
        let (mut client, mut server) = (Vec::new(), Vec::new());
        let mut answered = 0;
        loop {
            let mut moved = pair.step(Role::Client);
            for event in events(&mut pair.server.core) {
                if let Event::Request { id, head, .. } = &event {
                    let turn: usize = head.path[1..].parse().expect("a number");
                    answer(&mut pair, *id, &plans[turn]);
                    answered += 1;
                }
                server.push(event);
            }
            moved |= pair.step(Role::Server);
            client.extend(events(&mut pair.client.core));
            if !moved {
                break;
            }
        }
        prop_assert_eq!(answered, plans.len());
        for (id, plan) in near.iter().zip(&plans) {
            prop_assert_eq!(body(&client, *id), (bytes(plan.download).to_vec(), true));
        }
        let pushes: Vec<u32> = client.iter().filter_map(|event| match event {
            Event::Push { id, .. } => Some(*id),
            _ => None,
        }).collect();
        for push in pushes {
            prop_assert_eq!(body(&client, push), (bytes(500).to_vec(), true));
        }
        for event in &server {
            if let Event::Request { id, head, .. } = event {
                let turn: usize = head.path[1..].parse().expect("a number");
                let (content, _) = body(&server, *id);
                prop_assert_eq!(content.len(), plans[turn].upload);
            }
        }
        prop_assert_eq!((pair.client.core.active(), pair.server.core.active()), (0, 0));
    }
}

fn answer(pair: &mut Pair, id: u32, plan: &Plan) {
    let core = &mut pair.server.core;
    core.inform(id, &response(103, &[]));
    core.respond(
        id,
        &response(200, &[("x-answer", "a value that comes again")]),
        false,
    );
    let mut pushes = Vec::new();
    for _ in 0..plan.pushes {
        // The permission to push may not have arrived.
        pushes.extend(core.push(id, &get("/pushed"), Priority(5)));
    }
    core.send_data(id, bytes(plan.download), !plan.trailers);
    if plan.trailers {
        core.send_trailers(id, &[("x-end", "1")].into_iter().collect());
    }
    for push in pushes {
        core.respond(push, &response(200, &[]), false);
        core.send_data(push, bytes(500), true);
    }
}
