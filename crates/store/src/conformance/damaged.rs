//! Submissions whose rows have values that the program does not write.

use std::sync::Arc;

use tandem_submit::store::{CLEANING_GAP, Claimed, DAY, Store};
use tandem_submit::submission::State;

use super::{NewSubmission, Place, due, new, wait, waiting};

/// A number, and the length of the body that tells statements apart.
fn sized(number: u8, length: usize) -> NewSubmission {
    let mut one = new(number);
    one.content.body = vec![b'x'; length].into();
    one
}

fn ids(claimed: &Claimed) -> Vec<[u8; 16]> {
    let mut ids: Vec<_> = claimed.deliveries.iter().map(|it| it.id.0).collect();
    ids.sort_unstable();
    ids
}

fn claim_at(store: &Arc<dyn Store>, days: i64) -> Claimed {
    wait(store.claim(due(days * DAY, (days + 1) * DAY)))
}

pub(crate) fn sets_damaged_submissions_apart(place: &dyn Place) {
    let store = place.open();
    for (number, length) in [(1, 100), (2, 101), (3, 102), (4, 103), (5, 104), (6, 100)] {
        wait(store.admit(sized(number, length)));
    }
    drop(store);
    place.sql("UPDATE contents SET digest = substr(digest, 1, 1) WHERE length(body) = 101");
    place.sql("DELETE FROM contents WHERE length(body) = 102");
    place.sql("UPDATE submissions SET attempts = -1 WHERE size = 4096 + 103");
    place.sql("UPDATE contents SET id = substr(id, 1, 3) WHERE length(body) = 104");
    place.sql("UPDATE submissions SET id = substr(id, 1, 3) WHERE size = 4096 + 104");
    let store = place.open();
    let claimed = claim_at(&store, 2);
    assert_eq!(ids(&claimed), [[1; 16], [6; 16]]);
    let mut damaged = claimed.damaged;
    damaged.sort_unstable();
    let known = [2, 3, 4].map(|number| format!("{number:02}").repeat(16));
    assert_eq!(damaged[..3], known);
    assert_eq!(damaged[3..], ["050505"]);
    // They are ended for their clients, and no later claim meets them.
    for number in [2, 3, 4] {
        let record = wait(store.state(new(number).id)).expect("a row");
        assert_eq!((record.state, record.status), (State::NotDelivered, None));
    }
    assert_eq!(waiting(&*store), 2);
    let claimed = claim_at(&store, 9);
    assert_eq!(ids(&claimed), [[1; 16], [6; 16]]);
    assert!(claimed.damaged.is_empty());
    // They are kept longer than ended submissions, until someone mends them.
    for step in 0..3 {
        let now = 90 * DAY + step * CLEANING_GAP;
        assert_eq!(wait(store.forget(now, 0)), 0);
    }
    drop(store);
    place.sql("UPDATE submissions SET attempts = 0 WHERE size = 4096 + 103");
    place.sql("UPDATE submissions SET state = 0 WHERE state = 2 AND ended IS NULL");
    let store = place.open();
    let claimed = claim_at(&store, 99);
    assert_eq!(ids(&claimed), [[1; 16], [4; 16], [6; 16]]);
    assert_eq!(claimed.damaged.len(), 3);
}
