//! Bounds of the store: its capacity, its groups, and the variants of a resource.

use std::time::Duration;

use bytes::Bytes;
use tandem_http::cache::{CacheRules, Receipt, ResponsePolicy};
use tandem_http::{RequestHead, ResponseHead, Scheme};

use super::*;
use crate::asker::Asker;
use crate::stored::{Body, selecting};

fn key(path: u64) -> Key {
    let request = RequestHead::get(Scheme::Http, "h", format!("/{path}"));
    Key::new(0, b"", &request, false).expect("a plain request")
}

fn group(number: u64) -> Group {
    Group::Owner(number)
}

fn stored(fields: &[(&str, &str)], asked: &Fields, size: usize) -> Arc<Stored> {
    let head = ResponseHead {
        fields: fields.iter().copied().collect(),
        ..ResponseHead::new(200)
    };
    let policy = ResponsePolicy::of(&head);
    Arc::new(Stored {
        request: selecting(&head, asked),
        asker: Asker::default(),
        user: None,
        freshness: policy.freshness(CacheRules::PRIVATE, Receipt::default()),
        policy,
        head,
        trailers: None,
        extent: None,
        body: Body::new(vec![Bytes::from(vec![0; size])]),
        since: Duration::ZERO,
        started: Duration::ZERO,
        is_anonymous: true,
        had_no_credentials: true,
    })
}

fn add(store: &mut Store, path: u64, owner: u64, size: usize) {
    let none = Fields::new();
    store.insert(
        key(path),
        group(owner),
        (1, 0),
        &none,
        stored(&[], &none, size),
    );
}

/// Compares the counts of the groups with the resources.
fn check(store: &Store) {
    assert!(store.weight() <= store.resources.capacity());
    let mut expected: HashMap<Group, (u64, usize)> = HashMap::new();
    for (_, resource) in store.resources.iter() {
        let entry = expected.entry(resource.group.clone()).or_default();
        entry.0 += resource.weight;
        entry.1 += 1;
    }
    assert_eq!(expected.len(), store.groups.len());
    for (group, members) in &store.groups {
        assert_eq!(expected[group], (members.weight, members.count));
        assert!(members.weight <= store.group_capacity);
        assert!(members.keys.len() <= 2 * members.count + 17);
    }
}

#[test]
fn group_evicts_its_own_oldest_resource() {
    let mut store = Store::new(1 << 20, 40_000);
    add(&mut store, 100, 1, 10_000);
    for path in 0..5 {
        add(&mut store, path, 2, 10_000);
    }
    check(&store);
    assert!(store.get(&key(100)).is_some(), "another group's");
    assert!(store.get(&key(0)).is_none() && store.get(&key(4)).is_some());
    add(&mut store, 7, 3, 50_000);
    assert!(store.get(&key(7)).is_none(), "above the bound");
    check(&store);
}

#[test]
fn store_of_one_group_keeps_the_resource_that_is_used() {
    let capacity = 1 << 20;
    let mut store = Store::new(capacity, capacity);
    add(&mut store, 0, 1, 1000);
    for path in 1..20_000 {
        add(&mut store, path, 1, 1000);
        if path % 50 == 0 {
            assert!(store.get(&key(0)).is_some(), "{path}");
        }
    }
    check(&store);
    assert!(store.take_evicted() > 10_000);
}

#[test]
fn group_is_removed_as_a_whole() {
    let mut store = Store::new(1 << 20, 1 << 19);
    for path in 0..20 {
        add(&mut store, path, path % 2, 100);
    }
    store.remove_group(&group(0));
    check(&store);
    assert_eq!(store.len(), 10);
    assert!(store.get(&key(0)).is_none() && store.get(&key(1)).is_some());
}

#[test]
fn variants_replace_those_that_fit_the_request() {
    let mut store = Store::new(1 << 20, 1 << 19);
    let with = |value: &str| -> Fields { [("foo", value)].into_iter().collect() };
    let vary = [("vary", "Foo")];
    let mut insert = |asked: &Fields, fields: &[(&str, &str)], size| {
        store.insert(key(0), group(0), (1, 0), asked, stored(fields, asked, size));
        let found = |value| {
            let resource = store.get(&key(0)).expect("stored");
            resource
                .select(&with(value), None)
                .map(|found| found.body.len())
        };
        [found("1"), found("2"), found("3")]
    };
    assert_eq!(insert(&with("1"), &vary, 1), [Some(1), None, None]);
    assert_eq!(insert(&with("2"), &vary, 2), [Some(1), Some(2), None]);
    assert_eq!(insert(&with("1"), &vary, 3), [Some(3), Some(2), None]);
    assert_eq!(insert(&with("1"), &[], 4), [Some(4); 3]);
    for value in 0..40 {
        insert(&with(&value.to_string()), &vary, 1);
    }
    assert!(store.get(&key(0)).expect("stored").variants.len() <= MAX_VARIANTS);
    check(&store);
}

#[test]
fn many_urls_stay_within_the_capacity() {
    let mut store = Store::new(1 << 20, 1 << 19);
    for path in 0..20_000 {
        add(&mut store, path, path % 7, (path % 900) as usize);
    }
    check(&store);
    assert!(store.len() > 300 && store.take_evicted() > 10_000);
}

proptest::proptest! {
    #[test]
    fn bounds_hold_after_any_operations(
        operations in proptest::collection::vec((0u8..5, 0u64..24, 0u64..4, 0usize..9_000), 0..120),
    ) {
        let mut store = Store::new(60_000, 30_000);
        let none = Fields::new();
        for (operation, path, owner, size) in operations {
            match operation {
                // The group of a key never changes.
                0..=2 => add(&mut store, path, path % 4, size),
                3 => { store.remove(&key(path)); }
                _ => match store.get(&key(path)).and_then(|it| it.select(&none, None)).cloned() {
                    Some(old) => {
                        store.update(&key(path), 2, &old, stored(&[], &none, size));
                    }
                    None => store.remove_group(&group(owner)),
                },
            }
            check(&store);
        }
    }
}

/// Many users have one stored response each.
#[test]
fn group_of_one_resource_has_no_spare_room() {
    let mut store = Store::new(1 << 20, 1 << 20);
    add(&mut store, 1, 1, 100);
    let members = store.groups.get(&group(1)).expect("it has a member");
    assert_eq!(members.keys.capacity(), 1);
    let resource = store.resources.peek(&key(1)).expect("it is stored");
    assert_eq!(resource.variants.capacity(), 1);
    add(&mut store, 2, 1, 100);
    check(&store);
}
