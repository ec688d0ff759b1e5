//! The order of claims, the release of batches, and deliverers whose lease has ended.

use tandem_submit::store::{Claim, DAY, Millis, NewSubmission, Store};
use tandem_submit::submission::State;

use super::{Place, due, new, reply, wait};

/// Returns the first bytes of the identifiers of all submissions that are due, of which each claim
/// takes up to 16.
fn claim_in_order(store: &dyn Store, now: Millis) -> Vec<u8> {
    let mut order = Vec::new();
    loop {
        let claimed = wait(store.claim(Claim {
            limit: 16,
            ..due(now, now + 5000)
        }));
        if claimed.is_empty() {
            return order;
        }
        order.extend(claimed.iter().map(|delivery| delivery.id.0[0]));
    }
}

pub(crate) fn claims_one_time_by_identifiers(place: &dyn Place) {
    let store = place.open();
    for number in (1..=20).rev() {
        wait(store.admit(new(number)));
    }
    let order = claim_in_order(&*store, DAY + 1000);
    assert_eq!(order, (1..=20).collect::<Vec<u8>>());
}

pub(crate) fn releases_a_batch_at_one_time(place: &dyn Place) {
    let store = place.open();
    let member = |number: u8| {
        // The clocks of the gateway and the store differ by more with each arrival.
        let arrived = DAY + 10 * (20 - Millis::from(number));
        NewSubmission {
            now: arrived,
            leased_until: DAY + 60_000 + (20 - Millis::from(number)),
            ..new(number)
        }
    };
    for number in (1..=20).rev() {
        wait(store.admit(member(number)));
    }
    let batch = (1..=20).map(|number| member(number).lease()).collect();
    wait(store.release(batch, DAY + 1000));
    let order = claim_in_order(&*store, DAY + 1000);
    assert_eq!(order, (1..=20).collect::<Vec<u8>>());
}

pub(crate) fn releases_no_leased_member(place: &dyn Place) {
    let store = place.open();
    for number in 1..=2 {
        wait(store.admit(new(number)));
    }
    let claimed = wait(store.claim(Claim {
        limit: 1,
        ..due(DAY + 1000, DAY + 5000)
    }));
    assert_eq!(claimed[0].id, new(1).id);
    let batch = vec![new(1).lease(), new(2).lease(), new(3).lease()];
    wait(store.release(batch, DAY + 1500));
    let claimed = wait(store.claim(due(DAY + 1500, DAY + 5000)));
    let claimed: Vec<_> = claimed.iter().map(|it| (it.id, it.attempts)).collect();
    assert_eq!(claimed, [(new(2).id, 0)]);
}

pub(crate) fn ignores_late_deliverers(place: &dyn Place) {
    let store = place.open();
    wait(store.admit(new(1)));
    let first = wait(store.claim(due(DAY + 1000, DAY + 5000))).remove(0);
    let second = wait(store.claim(due(DAY + 6000, DAY + 9000))).remove(0);
    for late in [new(1).lease(), first.lease()] {
        wait(store.postpone(late, DAY + 6001, DAY + 6000));
        wait(store.give_up(late, None, DAY + 6000));
    }
    assert!(wait(store.claim(due(DAY + 6001, DAY + 9000))).is_empty());
    let record = wait(store.state(new(1).id)).expect("it is stored");
    assert_eq!(record.state, State::Accepted);
    wait(store.postpone(second.lease(), DAY + 7000, DAY + 6000));
    let third = wait(store.claim(due(DAY + 7000, DAY + 9000))).remove(0);
    assert_eq!(third.attempts, 1);
    wait(store.give_up(third.lease(), None, DAY + 7001));
    let record = wait(store.state(new(1).id)).expect("it is stored");
    assert_eq!(record.state, State::NotDelivered);
    // An answer ends the delivery even if it is late.
    wait(store.answer(new(1).id, reply(201), DAY + 7002));
    let record = wait(store.state(new(1).id)).expect("it is stored");
    assert_eq!(record.state, State::Answered);
}
