//! The order of claims, the release of batches, and deliverers whose lease has ended.

use tandem_submit::batch::Rule;
use tandem_submit::store::{Claim, DAY, Millis, NewSubmission, SpentToken, Store};
use tandem_submit::submission::State;

use super::{Place, SERVER, due, new, reply, wait};

/// The rule of the batches.
const RULE: Rule = Rule {
    size: 20,
    least: 2,
    wait: 1000,
    longest: 60_000,
};

fn member(number: u8, arrived: Millis) -> NewSubmission {
    NewSubmission {
        now: arrived,
        leased_until: RULE.due(arrived),
        is_collected: true,
        ..new(number)
    }
}

fn release(store: &dyn Store, now: Millis) -> u64 {
    wait(store.release(SERVER.to_owned(), RULE, now))
}

/// Returns the first bytes of the identifiers of all submissions that are due, of which each claim
/// takes up to 16.
fn claim_in_order(store: &dyn Store, now: Millis) -> Vec<u8> {
    let mut order = Vec::new();
    loop {
        let claimed = wait(store.claim(Claim {
            limit: 16,
            ..due(now, now + 5000)
        }))
        .deliveries;
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
    for number in (1..=20).rev() {
        assert_eq!(release(&*store, DAY + 999), 0);
        wait(store.admit(member(number, DAY + 10 * (20 - Millis::from(number)))));
    }
    assert!(claim_in_order(&*store, DAY + 999).is_empty());
    assert_eq!(release(&*store, DAY + 999), 20);
    let order = claim_in_order(&*store, DAY + 999);
    assert_eq!(order, (1..=20).collect::<Vec<u8>>());
    assert_eq!(release(&*store, DAY + 9000), 0);
}

pub(crate) fn ends_batches_by_the_rule(place: &dyn Place) {
    let store = place.open();
    wait(store.admit(member(1, DAY)));
    wait(store.admit(new(9)));
    let elsewhere = NewSubmission {
        server: "http://other/in".to_owned(),
        ..member(8, DAY)
    };
    wait(store.admit(elsewhere));
    // One submission is fewer than the least number of a batch.
    assert_eq!(release(&*store, DAY + 59_999), 0);
    drop(store);
    // A restart neither loses nor hastens the batch.
    let store = place.open();
    assert_eq!(claim_in_order(&*store, DAY + 59_999), [9]);
    wait(store.admit(member(2, DAY + 900)));
    assert_eq!(release(&*store, DAY + 999), 0);
    assert_eq!(release(&*store, DAY + 1000), 2);
    assert_eq!(claim_in_order(&*store, DAY + 1000), [1, 2]);
    wait(store.admit(member(3, DAY + 1000)));
    assert_eq!(release(&*store, DAY + 60_999), 0);
    // The first leases are over.
    assert_eq!(claim_in_order(&*store, DAY + 60_999), [1, 2]);
    assert_eq!(release(&*store, DAY + 61_000), 1);
    assert_eq!(claim_in_order(&*store, DAY + 61_000), [3]);
}

pub(crate) fn releases_each_member_once(place: &dyn Place) {
    let store = place.open();
    wait(store.admit(member(1, DAY)));
    wait(store.admit(member(2, DAY)));
    // No gateway released them in time.
    let late = RULE.due(DAY);
    let claimed = wait(store.claim(Claim {
        limit: 1,
        ..due(late, late + 5000)
    }))
    .deliveries;
    assert_eq!(claimed[0].id, new(1).id);
    assert_eq!(release(&*store, late), 1);
    let claimed = wait(store.claim(due(late, late + 5000))).deliveries;
    let claimed: Vec<_> = claimed.iter().map(|it| (it.id, it.attempts)).collect();
    assert_eq!(claimed, [(new(2).id, 0)]);
}

pub(crate) fn counts_what_waits(place: &dyn Place) {
    let store = place.open();
    let token = |number: u8, epoch| NewSubmission {
        spent: Some(SpentToken {
            epoch,
            nonce: [number; 32],
        }),
        ..member(number, DAY + 100 * Millis::from(number))
    };
    for (number, epoch) in [(1, 7), (2, 8), (3, 8)] {
        wait(store.admit(token(number, epoch)));
    }
    wait(store.admit(NewSubmission {
        now: DAY + 50,
        ..new(4)
    }));
    let waiting = || wait(store.waiting(SERVER.to_owned(), DAY + 450));
    assert_eq!((waiting().here, waiting().collected), (4, 3));
    assert_eq!(waiting().oldest, 400);
    wait(store.answer(new(4).id, reply(201), DAY + 450));
    assert_eq!((waiting().here, waiting().oldest), (3, 350));
    assert_eq!(wait(store.spent(0)), [(7, 1), (8, 2)]);
    assert_eq!(wait(store.spent(8)), [(8, 2)]);
}

pub(crate) fn ignores_late_deliverers(place: &dyn Place) {
    let store = place.open();
    wait(store.admit(new(1)));
    let first = wait(store.claim(due(DAY + 1000, DAY + 5000)))
        .deliveries
        .remove(0);
    let second = wait(store.claim(due(DAY + 6000, DAY + 9000)))
        .deliveries
        .remove(0);
    for late in [new(1).lease(), first.lease()] {
        wait(store.postpone(late, DAY + 6001, DAY + 6000));
        wait(store.give_up(late, None, DAY + 6000));
    }
    assert!(
        wait(store.claim(due(DAY + 6001, DAY + 9000)))
            .deliveries
            .is_empty()
    );
    let record = wait(store.state(new(1).id)).expect("it is stored");
    assert_eq!(record.state, State::Accepted);
    wait(store.postpone(second.lease(), DAY + 7000, DAY + 6000));
    let third = wait(store.claim(due(DAY + 7000, DAY + 9000)))
        .deliveries
        .remove(0);
    assert_eq!(third.attempts, 1);
    wait(store.give_up(third.lease(), None, DAY + 7001));
    let record = wait(store.state(new(1).id)).expect("it is stored");
    assert_eq!(record.state, State::NotDelivered);
    // An answer ends the delivery even if it is late.
    wait(store.answer(new(1).id, reply(201), DAY + 7002));
    let record = wait(store.state(new(1).id)).expect("it is stored");
    assert_eq!(record.state, State::Answered);
}
