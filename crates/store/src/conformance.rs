//! The behaviour that each store has in common. Both stores run all of these tests.

mod damaged;
mod leases;

use std::future::Future;
use std::sync::Arc;

use tandem_http::Fields;
use tandem_submit::rights::Quota;
use tandem_submit::store::{
    Admission, CLEANING_GAP, Claim, Content, DAY, Epoch, Inquiry, Millis, NewSubmission, OVERHEAD,
    Prospect, SpentToken, Store, StoreError, upload_time,
};
use tandem_submit::submission::{Answer, IdempotencyKey, State, SubmissionId};

pub(crate) use damaged::sets_damaged_submissions_apart;
pub(crate) use leases::{
    claims_one_time_by_identifiers, counts_what_waits, ends_batches_by_the_rule,
    ignores_late_deliverers, releases_a_batch_at_one_time, releases_each_member_once,
};

/// The server of all submissions.
pub(crate) const SERVER: &str = "http://server/in";

/// The place of one store, which is empty at the beginning and removed at the end of a test.
pub(crate) trait Place {
    /// Opens the store. Earlier openings have been dropped.
    fn open(&self) -> Arc<dyn Store>;

    /// Runs a statement that both kinds of databases know. Earlier openings have been dropped.
    fn sql(&self, statement: &str);
}

/// Runs all tests with the places that an expression returns.
macro_rules! conformance {
    ($place:expr) => {
        crate::conformance::conformance!($place;
            admits_a_key_once, charges_quotas_by_day, asks_quotas_without_a_charge,
            leases_due_submissions_once, claims_one_time_by_identifiers,
            releases_a_batch_at_one_time, ends_batches_by_the_rule, releases_each_member_once,
            counts_what_waits, ignores_late_deliverers,
            claims_bodies_up_to_a_sum, claims_times_that_cannot_be,
            claims_for_one_server, keeps_the_first_answer, answers_after_giving_up,
            reads_states_without_answers, forgets_ended_submissions,
            forgets_nothing_after_a_jump_of_the_clock, bounds_the_stored_bytes,
            spends_a_token_once, refuses_tokens_of_ended_epochs, spends_nothing_for_a_refusal,
            sets_damaged_submissions_apart,
            admits_one_of_many_at_once, claims_disjoint_sets_at_once);
    };
    ($place:expr; $($name:ident),*) => {
        $(#[test]
        fn $name() {
            crate::conformance::$name(&$place);
        })*
    };
}
pub(crate) use conformance;

pub(crate) fn wait<T>(future: impl Future<Output = Result<T, StoreError>>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.build().expect("a runtime");
    runtime.block_on(future).expect("the store works")
}

pub(crate) fn new(number: u8) -> NewSubmission {
    let mut fields = Fields::new();
    fields.push("content-type", "text/plain");
    NewSubmission {
        id: SubmissionId([number; 16]),
        key: IdempotencyKey([number; 32]),
        client: "client".to_owned(),
        fingerprint: [number; 32],
        content: Content {
            path: "/reports?a=b".to_owned(),
            fields,
            body: b"0123456789".as_slice().into(),
            digest: [1; 32],
        },
        now: DAY,
        leased_until: DAY + 1000,
        quota: Quota::default(),
        server: SERVER.to_owned(),
        spent: None,
        is_collected: false,
        max_stored: u64::MAX,
    }
}

/// Returns a claim of any number of submissions that are due at a time.
pub(crate) fn due(now: Millis, leased_until: Millis) -> Claim {
    Claim {
        server: SERVER.to_owned(),
        now,
        leased_until,
        latest: i64::MAX,
        limit: 9,
        bytes: u64::MAX,
    }
}

pub(crate) fn waiting(store: &dyn Store) -> u64 {
    wait(store.waiting(SERVER.to_owned(), DAY)).here
}

pub(crate) fn reply(status: u16) -> Answer {
    Answer {
        status,
        fields: Fields::new(),
        body: b"thanks".as_slice().into(),
    }
}

pub(crate) fn admits_a_key_once(place: &dyn Place) {
    let store = place.open();
    assert!(matches!(wait(store.admit(new(1))), Admission::Stored));
    let again = NewSubmission {
        id: SubmissionId([9; 16]),
        ..new(1)
    };
    match wait(store.admit(again)) {
        Admission::Known(record) => {
            assert_eq!((record.id, record.state), (new(1).id, State::Accepted));
        }
        other => panic!("{other:?}"),
    }
    let other = NewSubmission {
        fingerprint: [9; 32],
        ..new(1)
    };
    assert!(matches!(wait(store.admit(other)), Admission::KeyReused));
    assert_eq!(waiting(&*store), 1);
}

pub(crate) fn charges_quotas_by_day(place: &dyn Place) {
    let store = place.open();
    let with_quota = |number, now| NewSubmission {
        now,
        quota: Quota {
            submissions: Some(2),
            bytes: Some(25),
        },
        ..new(number)
    };
    for number in [1, 2, 1] {
        assert!(!matches!(
            wait(store.admit(with_quota(number, DAY))),
            Admission::OverQuota
        ));
    }
    let third = wait(store.admit(with_quota(3, 2 * DAY - 1)));
    assert!(matches!(third, Admission::OverQuota));
    let tomorrow = wait(store.admit(with_quota(3, 2 * DAY)));
    assert!(matches!(tomorrow, Admission::Stored));
    let mut large = with_quota(4, 2 * DAY);
    large.content.body = vec![0; 16].into();
    assert!(matches!(wait(store.admit(large)), Admission::OverQuota));
    assert_eq!(waiting(&*store), 3);
}

pub(crate) fn leases_due_submissions_once(place: &dyn Place) {
    let store = place.open();
    for number in 1..=3 {
        wait(store.admit(new(number)));
    }
    assert!(
        wait(store.claim(due(DAY + 999, DAY + 5000)))
            .deliveries
            .is_empty()
    );
    let first = wait(store.claim(Claim {
        limit: 2,
        ..due(DAY + 1000, DAY + 5000)
    }))
    .deliveries;
    let second = wait(store.claim(Claim {
        limit: 2,
        ..due(DAY + 1000, DAY + 5000)
    }))
    .deliveries;
    assert_eq!((first.len(), second.len()), (2, 1));
    let delivery = &second[0];
    assert_eq!(delivery.content.path, "/reports?a=b");
    assert_eq!(&delivery.content.body[..], b"0123456789");
    assert_eq!(delivery.content.fields, new(1).content.fields);
    assert_eq!((delivery.accepted, delivery.attempts), (DAY, 0));
    wait(store.postpone(delivery.lease(), DAY + 2000, DAY + 1000));
    let third = wait(store.claim(due(DAY + 2000, DAY + 5000))).deliveries;
    assert_eq!(third.len(), 1);
    assert_eq!((third[0].id, third[0].attempts), (delivery.id, 1));
}

pub(crate) fn keeps_the_first_answer(place: &dyn Place) {
    let store = place.open();
    wait(store.admit(new(1)));
    wait(store.answer(new(1).id, reply(201), DAY));
    wait(store.answer(new(1).id, reply(500), DAY));
    wait(store.give_up(new(1).lease(), Some(503), DAY));
    let record = wait(store.find(new(1).id)).expect("it is stored");
    assert_eq!(record.state, State::Answered);
    assert_eq!(record.answer, Some(reply(201)));
    assert!(
        wait(store.claim(due(i64::MAX, i64::MAX)))
            .deliveries
            .is_empty()
    );
    assert_eq!(
        wait(store.find(SubmissionId([7; 16]))).map(|it| it.state),
        None
    );
}

pub(crate) fn answers_after_giving_up(place: &dyn Place) {
    let store = place.open();
    wait(store.admit(new(1)));
    wait(store.give_up(new(1).lease(), Some(503), DAY));
    let record = |store: &dyn Store| wait(store.find(new(1).id)).expect("stored");
    let given_up = record(&*store);
    assert_eq!(
        (given_up.state, given_up.status),
        (State::NotDelivered, Some(503))
    );
    assert!(given_up.answer.is_none());
    wait(store.answer(new(1).id, reply(200), DAY));
    let answered = record(&*store);
    assert_eq!(
        (answered.state, answered.status),
        (State::Answered, Some(200))
    );
}

pub(crate) fn forgets_ended_submissions(place: &dyn Place) {
    let store = place.open();
    for number in 1..=3 {
        wait(store.admit(new(number)));
    }
    wait(store.answer(new(1).id, reply(200), DAY));
    wait(store.give_up(new(2).lease(), None, DAY + 1));
    let keep = 1000;
    wait(store.forget(DAY, keep));
    assert_eq!(wait(store.forget(DAY + keep + 1, keep)), 1);
    assert!(wait(store.find(new(1).id)).is_none());
    assert_eq!(wait(store.forget(DAY + keep + 2, keep)), 1);
    assert_eq!(waiting(&*store), 1);
}

pub(crate) fn forgets_nothing_after_a_jump_of_the_clock(place: &dyn Place) {
    let store = place.open();
    wait(store.admit(new(1)));
    wait(store.answer(new(1).id, reply(200), DAY));
    let (keep, hour) = (7 * DAY, CLEANING_GAP / 2);
    assert_eq!(wait(store.forget(DAY + hour, keep)), 0);
    // The clock jumps ahead, and back again before the next removal. A restart forgets no time.
    assert_eq!(wait(store.forget(100 * DAY, keep)), 0);
    drop(store);
    let store = place.open();
    assert_eq!(wait(store.forget(DAY + 2 * hour, keep)), 0);
    assert!(wait(store.find(new(1).id)).is_some());
    // It ended while the clock was ahead.
    wait(store.admit(new(2)));
    wait(store.answer(new(2).id, reply(200), 100 * DAY));
    let mut now = DAY + 2 * hour;
    let mut removed = 0;
    while now < 9 * DAY {
        now += hour;
        removed += wait(store.forget(now, keep));
    }
    assert_eq!(removed, 2);
}

pub(crate) fn claims_bodies_up_to_a_sum(place: &dyn Place) {
    let store = place.open();
    for number in 1..=4 {
        let mut one = new(number);
        one.content.body = vec![0; usize::from(number) * 1000].into();
        wait(store.admit(one));
    }
    let claim = |bytes| Claim {
        bytes,
        ..due(2 * DAY, 3 * DAY)
    };
    let lengths = |bytes| -> Vec<usize> {
        let claimed = wait(store.claim(claim(bytes))).deliveries;
        claimed.iter().map(|it| it.content.body.len()).collect()
    };
    assert_eq!(lengths(999), [0; 0]);
    assert_eq!(lengths(5999), [1000, 2000]);
    // The third does not fit, and the fourth does not overtake it.
    assert_eq!(lengths(2999), [0; 0]);
    assert_eq!(lengths(7000), [3000, 4000]);
    // A lease of a longer body ends later.
    let ended = due(3 * DAY + upload_time(3000), 4 * DAY);
    assert_eq!(wait(store.claim(ended)).deliveries.len(), 3);
}

pub(crate) fn claims_times_that_cannot_be(place: &dyn Place) {
    let store = place.open();
    let ahead = NewSubmission {
        now: 100 * DAY,
        leased_until: 100 * DAY,
        ..new(1)
    };
    wait(store.admit(ahead));
    let claim = Claim {
        latest: 2 * DAY,
        ..due(DAY, DAY + 1000)
    };
    assert_eq!(wait(store.claim(claim.clone())).deliveries.len(), 1);
    assert!(wait(store.claim(claim)).deliveries.is_empty());
}

pub(crate) fn claims_for_one_server(place: &dyn Place) {
    let store = place.open();
    wait(store.admit(new(1)));
    let other = || Claim {
        server: "http://other/in".to_owned(),
        ..due(2 * DAY, 3 * DAY)
    };
    assert!(wait(store.claim(other())).deliveries.is_empty());
    let counted = wait(store.waiting(other().server, DAY));
    assert_eq!((counted.here, counted.elsewhere), (0, 1));
    assert_eq!(wait(store.claim(due(2 * DAY, 3 * DAY))).deliveries.len(), 1);
}

fn inquire(store: &dyn Store, number: u8, bytes: u64, quota: Quota, max_stored: u64) -> Prospect {
    wait(store.inquire(Inquiry {
        key: IdempotencyKey([number; 32]),
        client: "client".to_owned(),
        bytes,
        now: DAY,
        quota,
        max_stored,
    }))
}

pub(crate) fn asks_quotas_without_a_charge(place: &dyn Place) {
    let store = place.open();
    let quota = Quota {
        submissions: Some(1),
        bytes: Some(10),
    };
    let inquire = |number, bytes| inquire(&*store, number, bytes, quota, u64::MAX);
    assert_eq!(inquire(1, 11), Prospect::OverQuota);
    for _ in 0..2 {
        assert_eq!(inquire(1, 10), Prospect::Admissible);
    }
    wait(store.admit(NewSubmission { quota, ..new(1) }));
    assert_eq!(inquire(2, 0), Prospect::OverQuota);
    assert_eq!(inquire(1, 10), Prospect::Admissible);
}

pub(crate) fn reads_states_without_answers(place: &dyn Place) {
    let store = place.open();
    wait(store.admit(new(1)));
    wait(store.answer(new(1).id, reply(201), DAY));
    let record = wait(store.state(new(1).id)).expect("it is stored");
    assert_eq!((record.state, record.status), (State::Answered, Some(201)));
    assert!(record.answer.is_none() && record.key == new(1).key);
    assert!(wait(store.state(new(2).id)).is_none());
}

pub(crate) fn bounds_the_stored_bytes(place: &dyn Place) {
    let store = place.open();
    let max_stored = 2 * (OVERHEAD + 10);
    let admit = |number| {
        wait(store.admit(NewSubmission {
            max_stored,
            ..new(number)
        }))
    };
    let stored = || wait(store.waiting(SERVER.to_owned(), DAY)).stored;
    let inquire = |number, bytes| inquire(&*store, number, bytes, Quota::default(), max_stored);
    assert!(matches!(admit(1), Admission::Stored));
    assert_eq!(inquire(2, 11), Prospect::Full);
    assert_eq!(inquire(2, 10), Prospect::Admissible);
    assert!(matches!(admit(2), Admission::Stored));
    assert_eq!(stored(), max_stored);
    assert!(matches!(admit(3), Admission::Full));
    // A repetition needs no room.
    assert!(matches!(admit(2), Admission::Known(_)));
    assert_eq!(inquire(2, 10), Prospect::Admissible);
    // An answer takes the place of the content, and a failure has none.
    wait(store.answer(new(1).id, reply(200), DAY));
    wait(store.give_up(new(2).lease(), None, DAY));
    assert_eq!(stored(), 2 * OVERHEAD + 6);
    assert!(matches!(admit(3), Admission::Full));
    wait(store.answer(new(2).id, reply(200), DAY));
    wait(store.answer(new(2).id, reply(200), DAY));
    assert_eq!(stored(), 2 * (OVERHEAD + 6));
    for now in [DAY + 1, DAY + 2] {
        wait(store.forget(now, 0));
    }
    assert_eq!(stored(), 0);
    assert!(matches!(admit(3), Admission::Stored));
}

fn with_token(number: u8, epoch: Epoch, nonce: u8) -> NewSubmission {
    NewSubmission {
        spent: Some(SpentToken {
            epoch,
            nonce: [nonce; 32],
        }),
        ..new(number)
    }
}

pub(crate) fn spends_a_token_once(place: &dyn Place) {
    let store = place.open();
    let admit = |number, epoch, nonce| wait(store.admit(with_token(number, epoch, nonce)));
    assert!(matches!(admit(1, 7, 1), Admission::Stored));
    assert!(matches!(admit(2, 7, 1), Admission::TokenSpent));
    assert!(wait(store.find(new(2).id)).is_none());
    // The same nonce in another epoch belongs to another token.
    assert!(matches!(admit(2, 8, 1), Admission::Stored));
    // A repetition gets the same submission, and spends no second token.
    assert!(matches!(admit(1, 7, 1), Admission::Known(it) if it.id == new(1).id));
    assert!(matches!(admit(1, 7, 2), Admission::Known(_)));
    assert!(matches!(admit(3, 7, 2), Admission::Stored));
    let other = NewSubmission {
        fingerprint: [9; 32],
        ..with_token(1, 7, 3)
    };
    assert!(matches!(wait(store.admit(other)), Admission::KeyReused));
    assert!(matches!(admit(4, 7, 3), Admission::Stored));
    assert_eq!(waiting(&*store), 4);
    // A token stays spent when its submission is forgotten.
    wait(store.answer(new(1).id, reply(200), DAY));
    for now in [DAY + 1, DAY + 2] {
        wait(store.forget(now, 0));
    }
    assert!(matches!(admit(1, 7, 1), Admission::TokenSpent));
}

pub(crate) fn refuses_tokens_of_ended_epochs(place: &dyn Place) {
    let store = place.open();
    let admit = |number, epoch, nonce| wait(store.admit(with_token(number, epoch, nonce)));
    wait(store.end_epochs(3));
    for (number, epoch) in [(1, 5), (2, 6)] {
        assert!(matches!(admit(number, epoch, 1), Admission::Stored));
    }
    for first in [6, 4] {
        wait(store.end_epochs(first));
        assert!(matches!(admit(3, 5, 1), Admission::EpochOver));
        assert!(matches!(admit(3, 5, 2), Admission::EpochOver));
        assert!(matches!(admit(3, 6, 1), Admission::TokenSpent));
    }
    assert!(matches!(admit(1, 5, 1), Admission::Known(_)));
    assert!(matches!(admit(3, 6, 2), Admission::Stored));
    assert!(matches!(admit(4, u32::MAX, 2), Admission::Stored));
    drop(store);
    let store = place.open();
    let late = store.admit(with_token(5, 5, 3));
    assert!(matches!(wait(late), Admission::EpochOver));
}

fn today() -> Epoch {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
    let days = since.expect("a clock").as_secs() / 86_400;
    Epoch::try_from(days).expect("a day")
}

pub(crate) fn spends_a_token_of_today(store: &dyn Store) {
    let admission = wait(store.admit(with_token(9, today(), 9)));
    assert!(matches!(admission, Admission::Stored));
}

/// Tokens of keys that begin later are good.
pub(crate) fn refuses_tokens_of_begun_keys(store: &dyn Store) {
    // The day can change during the test.
    let yesterday = today() - 1;
    let admission = wait(store.admit(with_token(1, yesterday, 1)));
    assert!(matches!(admission, Admission::EpochOver));
    let admission = wait(store.admit(with_token(2, yesterday + 3, 1)));
    assert!(matches!(admission, Admission::Stored));
}

pub(crate) fn spends_nothing_for_a_refusal(place: &dyn Place) {
    let store = place.open();
    let full = NewSubmission {
        max_stored: OVERHEAD,
        ..with_token(1, 7, 1)
    };
    assert!(matches!(wait(store.admit(full)), Admission::Full));
    let quota = Quota {
        submissions: Some(1),
        bytes: Some(9),
    };
    let over = NewSubmission {
        quota,
        ..with_token(1, 7, 1)
    };
    assert!(matches!(wait(store.admit(over)), Admission::OverQuota));
    let spent = NewSubmission {
        quota: Quota {
            bytes: None,
            ..quota
        },
        ..with_token(1, 7, 1)
    };
    assert!(matches!(wait(store.admit(spent)), Admission::Stored));
    assert_eq!(waiting(&*store), 1);
}

/// Runs a function on eight threads at the same time.
fn at_once<T: Send>(run: impl Fn(u8) -> T + Sync) -> Vec<T> {
    let barrier = std::sync::Barrier::new(8);
    let (barrier, run) = (&barrier, &run);
    std::thread::scope(|scope| {
        let threads = [0, 1, 2, 3, 4, 5, 6, 7].map(|number| {
            scope.spawn(move || {
                barrier.wait();
                run(number)
            })
        });
        threads
            .map(|thread| thread.join().expect("a thread"))
            .into()
    })
}

pub(crate) fn admits_one_of_many_at_once(place: &dyn Place) {
    let store = place.open();
    let count = |admissions: &[Admission], wanted: fn(&Admission) -> bool| {
        admissions.iter().filter(|it| wanted(it)).count()
    };
    let same_key = at_once(|_| wait(store.admit(new(100))));
    assert_eq!(count(&same_key, |it| matches!(it, Admission::Stored)), 1);
    assert_eq!(count(&same_key, |it| matches!(it, Admission::Known(_))), 7);
    let same_token = at_once(|number| wait(store.admit(with_token(number, 7, 1))));
    assert_eq!(count(&same_token, |it| matches!(it, Admission::Stored)), 1);
    let is_spent = |it: &Admission| matches!(it, Admission::TokenSpent);
    assert_eq!(count(&same_token, is_spent), 7);
    let quota = Quota {
        submissions: Some(3),
        bytes: None,
    };
    let same_client = at_once(|number| {
        wait(store.admit(NewSubmission {
            quota,
            ..new(50 + number)
        }))
    });
    assert_eq!(count(&same_client, |it| matches!(it, Admission::Stored)), 3);
}

pub(crate) fn claims_disjoint_sets_at_once(place: &dyn Place) {
    let store = place.open();
    for number in 0..40 {
        wait(store.admit(new(number)));
    }
    let claimed = at_once(|_| wait(store.claim(due(2 * DAY, 3 * DAY))).deliveries);
    let mut ids: Vec<_> = claimed.iter().flatten().map(|it| it.id.0).collect();
    ids.extend(
        std::iter::repeat_with(|| wait(store.claim(due(2 * DAY, 3 * DAY))).deliveries)
            .take_while(|claimed| !claimed.is_empty())
            .flatten()
            .map(|it| it.id.0),
    );
    ids.sort_unstable();
    assert_eq!(ids, (0..40).map(|number| [number; 16]).collect::<Vec<_>>());
}
