//! Tests of the memory of announced gateways.

use tandem_http::Scheme;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

impl<L> Memory<L> {
    /// Returns the gateways in use.
    pub fn gateways(&self) -> impl Iterator<Item = &L> {
        let states = self.entries.values().map(|entry| &entry.state);
        states.filter_map(|state| match state {
            GatewayState::Up { gateway, .. } => Some(gateway),
            _ => None,
        })
    }
}

fn key(user: &str, host: &str) -> SiteOfKey {
    let site = Site {
        scheme: Scheme::Http,
        host: host.to_owned(),
        port: 80,
    };
    (Isolation::new(user.as_bytes(), b""), site)
}

fn way(port: u16, lifetime: Duration) -> Vec<AnnouncedWay> {
    let endpoint = format!("h2+tcp://a.onion:{port}");
    let endpoint = endpoint.parse().expect("an endpoint");
    vec![AnnouncedWay { endpoint, lifetime }]
}

/// Announces a gateway at port 1, and returns the number of the trial of the next request.
fn begin(memory: &mut Memory<u32>, key: &SiteOfKey, now: Instant) -> u64 {
    memory.announced(key, &way(1, HOUR), now);
    match memory.request(key, now, |_| false) {
        Decision::Try(ways, trial) => {
            assert_eq!(ways[0].port, 1);
            trial
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn gateway_is_used_once_its_trial_succeeds() {
    let (mut memory, now) = (Memory::new(MAX_SITES), Instant::now());
    let key = key("u", "a.onion");
    assert_eq!(memory.request(&key, now, |_| true), Decision::Direct);
    let trial = begin(&mut memory, &key, now);
    // No request waits for the trial, and there is one trial at a time.
    assert_eq!(memory.request(&key, now, |_| true), Decision::Direct);
    memory.announced(&key, &way(2, HOUR), now);
    assert_eq!(memory.request(&key, now, |_| true), Decision::Direct);
    memory.tried(&key, trial, Some(7), now);
    let used = Decision::Gateway(7, trial);
    assert_eq!(memory.request(&key, now, |_| true), used);
    memory.announced(&key, &way(2, HOUR), now);
    assert_eq!(memory.request(&key, now, |_| true), used);
    assert_eq!(memory.gateways().copied().collect::<Vec<_>>(), [7]);
}

#[test]
fn gateway_belongs_to_one_key_and_one_origin() {
    let (mut memory, now) = (Memory::new(MAX_SITES), Instant::now());
    let first = key("u", "a.onion");
    let trial = begin(&mut memory, &first, now);
    memory.tried(&first, trial, Some(7), now);
    let mut other_port = first.clone();
    other_port.1.port = 8080;
    let mut secure = first.clone();
    secure.1.scheme = Scheme::Https;
    for other in [key("v", "a.onion"), key("u", "b.onion"), other_port, secure] {
        assert_eq!(memory.request(&other, now, |_| true), Decision::Direct);
    }
}

#[test]
fn part_of_a_key_ends_with_its_connection() {
    let (mut memory, now) = (Memory::new(MAX_SITES), Instant::now());
    let whole = key("u", "a.onion");
    let of = |connection| (whole.0.within(connection), whole.1.clone());
    for (number, key) in [(0, &whole), (1, &of(1)), (2, &of(2))] {
        let trial = begin(&mut memory, key, now);
        memory.tried(key, trial, Some(number), now);
    }
    let mut resource = of(1);
    resource.1.port = 81;
    let trial = begin(&mut memory, &resource, now);
    memory.end_parts_of(1);
    assert_eq!(memory.take_dropped(), [1]);
    memory.tried(&resource, trial, Some(9), now);
    assert_eq!(memory.take_dropped(), [9], "nobody waits for it any more");
    assert_eq!(memory.request(&of(1), now, |_| true), Decision::Direct);
    let mut kept: Vec<_> = memory.gateways().copied().collect();
    kept.sort_unstable();
    assert_eq!(kept, [0, 2]);
}

#[test]
fn failed_gateway_rests_for_longer_each_time() {
    let (mut memory, mut now) = (Memory::new(MAX_SITES), Instant::now());
    let key = key("u", "a.onion");
    let mut suspensions = Vec::new();
    for _ in 0..9 {
        let trial = begin(&mut memory, &key, now);
        memory.tried(&key, trial, None, now);
        let begun = now;
        while !matches!(memory.request(&key, now, |_| false), Decision::Try(..)) {
            now += Duration::from_secs(10);
            memory.announced(&key, &way(1, HOUR), now);
            memory.sweep(now);
        }
        suspensions.push(now.duration_since(begun).as_secs());
        let trial = memory.trials;
        // This failure counts too.
        memory.tried(&key, trial, Some(1), now);
        assert!(memory.refused(&key, trial, now) && !memory.refused(&key, trial, now));
        now += LONGEST_SUSPENSION;
    }
    assert_eq!(suspensions[..3], [30, 120, 480]);
    assert_eq!(suspensions[8], LONGEST_SUSPENSION.as_secs());
    assert_eq!(memory.take_dropped().len(), 9);
}

#[test]
fn lasting_gateway_begins_without_failures() {
    let (mut memory, now) = (Memory::new(MAX_SITES), Instant::now());
    let key = key("u", "a.onion");
    let trial = begin(&mut memory, &key, now);
    memory.tried(&key, trial, None, now);
    let later = now + FIRST_SUSPENSION;
    let trial = begin(&mut memory, &key, later);
    memory.tried(&key, trial, Some(7), later);
    // A session that closes at once is a failure.
    assert_eq!(memory.request(&key, later, |_| false), Decision::Direct);
    memory.announced(&key, &way(1, HOUR), later + FIRST_SUSPENSION);
    let soon = later + FIRST_SUSPENSION;
    assert_eq!(memory.request(&key, soon, |_| true), Decision::Direct);
    let later = later + 2 * FIRST_SUSPENSION;
    let trial = begin(&mut memory, &key, later);
    memory.tried(&key, trial, Some(8), later);
    let lasted = later + PROBATION;
    assert_eq!(
        memory.request(&key, lasted, |_| true),
        Decision::Gateway(8, trial)
    );
    // A session that closes later is replaced.
    let Decision::Try(_, next) = memory.request(&key, lasted, |_| false) else {
        panic!("no trial");
    };
    memory.tried(&key, next, None, lasted);
    let retried = lasted + FIRST_SUSPENSION;
    memory.announced(&key, &way(1, HOUR), retried);
    assert!(matches!(
        memory.request(&key, retried, |_| false),
        Decision::Try(..)
    ));
    assert_eq!(memory.take_dropped(), [7, 8]);
}

#[test]
fn announcement_ends_with_its_lifetime() {
    let (mut memory, now) = (Memory::new(MAX_SITES), Instant::now());
    let key = key("u", "a.onion");
    let trial = begin(&mut memory, &key, now);
    memory.tried(&key, trial, Some(7), now);
    let used = Decision::Gateway(7, trial);
    let soon = now + HOUR - Duration::from_secs(1);
    assert_eq!(memory.request(&key, soon, |_| true), used);
    // The same ways are renewed.
    memory.announced(&key, &way(1, HOUR), soon);
    assert_eq!(memory.request(&key, now + HOUR, |_| true), used);
    memory.announced(&key, &way(2, 9 * HOUR), now + HOUR);
    assert_eq!(
        memory.request(&key, soon + HOUR, |_| true),
        Decision::Direct
    );
    assert_eq!(memory.take_dropped(), [7]);
    let end = soon + HOUR;
    memory.announced(&key, &way(1, HOUR), end);
    assert_eq!(memory.request(&key, end, |_| true), Decision::Direct);
}

#[test]
fn cleared_and_idle_sites_are_forgotten() {
    let (mut memory, now) = (Memory::new(MAX_SITES), Instant::now());
    let (one, two, three) = (
        key("u", "a.onion"),
        key("u", "b.onion"),
        key("u", "c.onion"),
    );
    for (key, gateway) in [(&one, Some(1)), (&two, Some(2)), (&three, None)] {
        let trial = begin(&mut memory, key, now);
        memory.tried(key, trial, gateway, now);
    }
    memory.withdraw(&one, now);
    memory.withdraw(&three, now);
    assert_eq!(memory.take_dropped(), [1]);
    memory.sweep(now + IDLE);
    assert_eq!(memory.take_dropped(), [2]);
    assert!(memory.entries.is_empty());
}

#[test]
fn withdrawn_gateway_is_not_used_after_its_trial() {
    let (mut memory, now) = (Memory::new(MAX_SITES), Instant::now());
    let key = key("u", "a.onion");
    let trial = begin(&mut memory, &key, now);
    memory.withdraw(&key, now);
    memory.tried(&key, trial, Some(7), now);
    assert_eq!(memory.take_dropped(), [7]);
    assert_eq!(memory.request(&key, now, |_| true), Decision::Direct);
    // The same announcement counts again.
    let later = now + FIRST_SUSPENSION;
    let trial = begin(&mut memory, &key, later);
    memory.withdraw(&key, later);
    memory.announced(&key, &way(1, HOUR), later);
    memory.tried(&key, trial, Some(8), later);
    let used = Decision::Gateway(8, trial);
    assert_eq!(memory.request(&key, later, |_| true), used);
}

#[test]
fn site_starts_no_trial_by_withdrawals() {
    let (mut memory, mut now) = (Memory::new(MAX_SITES), Instant::now());
    let (key, second) = (key("u", "a.onion"), Duration::from_secs(1));
    let first = begin(&mut memory, &key, now);
    let mut trials = Vec::new();
    for number in 0..120 {
        now += second;
        match number % 3 {
            0 => memory.withdraw(&key, now),
            1 => memory.announced(&key, &way(2, second), now),
            _ => memory.announced(&key, &way(1, second), now),
        }
        memory.sweep(now);
        if let Decision::Try(_, trial) = memory.request(&key, now, |_| true) {
            trials.push(trial);
        }
        // Every trial succeeds, except the first, which lasts for 60 s.
        if number >= 60 {
            memory.tried(&key, first, Some(0), now);
            if let Some(trial) = trials.last() {
                memory.tried(&key, *trial, Some(0), now);
            }
        }
    }
    assert!(trials.len() <= 2, "{trials:?}");
}

#[test]
fn failures_survive_withdrawals() {
    let (mut memory, mut now) = (Memory::<u32>::new(MAX_SITES), Instant::now());
    let (key, second) = (key("u", "a.onion"), Duration::from_secs(1));
    for failures in 1..4 {
        let trial = begin(&mut memory, &key, now);
        memory.tried(&key, trial, None, now);
        memory.withdraw(&key, now);
        now += FIRST_SUSPENSION * (1 << (failures - 1));
        memory.announced(&key, &way(1, second), now);
        memory.withdraw(&key, now);
        memory.announced(&key, &way(1, second), now);
        now += 2 * second;
        memory.sweep(now);
        assert_eq!(memory.entries[&key].failures, failures);
    }
}

#[test]
fn sites_of_a_key_cannot_repeat_trials_in_turn() {
    let (mut memory, now) = (Memory::<u32>::new(MAX_SITES), Instant::now());
    let site = |number: usize| key("u", &format!("{number}.onion"));
    for number in 0..MAX_SITES_OF_KEY {
        let trial = begin(&mut memory, &site(number), now);
        memory.tried(&site(number), trial, (number == 0).then_some(7), now);
    }
    let later = now + FIRST_SUSPENSION - Duration::from_secs(1);
    for number in 0..40 {
        memory.announced(&site(number), &way(1, HOUR), later);
        let decision = memory.request(&site(number), later, |_| true);
        assert!(!matches!(decision, Decision::Try(..)), "{number}");
    }
    assert_eq!(memory.entries.len(), MAX_SITES_OF_KEY);
}

#[test]
fn trials_are_bounded_for_each_key_and_overall() {
    let (mut memory, now) = (Memory::<u32>::new(MAX_SITES), Instant::now());
    let mut tries = |user: usize, number: usize| {
        let key = key(&user.to_string(), &format!("{number}.onion"));
        memory.announced(&key, &way(1, HOUR), now);
        usize::from(matches!(
            memory.request(&key, now, |_| true),
            Decision::Try(..)
        ))
    };
    let of_one: usize = (0..5).map(|number| tries(0, number)).sum();
    assert_eq!(of_one, MAX_TRIALS_OF_KEY);
    let of_others: usize = (1..40).map(|user| tries(user, 0)).sum();
    assert_eq!(of_one + of_others, MAX_TRIALS);
}

#[test]
fn lanes_are_bounded() {
    let (mut memory, now) = (Memory::new(2), Instant::now());
    for host in ["a.onion", "b.onion"] {
        let trial = begin(&mut memory, &key("u", host), now);
        memory.tried(&key("u", host), trial, Some(1), now);
    }
    let third = key("v", "c.onion");
    memory.announced(&third, &way(1, HOUR), now);
    assert_eq!(memory.request(&third, now, |_| true), Decision::Direct);
    memory.withdraw(&key("u", "a.onion"), now);
    let decision = memory.request(&third, now, |_| true);
    assert!(matches!(decision, Decision::Try(..)), "{decision:?}");
}

#[test]
fn renewed_announcement_ends_after_a_day() {
    let (mut memory, begun) = (Memory::new(MAX_SITES), Instant::now());
    let key = key("u", "a.onion");
    let trial = begin(&mut memory, &key, begun);
    memory.tried(&key, trial, Some(7), begun);
    let mut now = begun;
    while now < begun + MAX_AGE {
        let used = Decision::Gateway(7, trial);
        assert_eq!(memory.request(&key, now, |_| true), used);
        memory.announced(&key, &way(1, 24 * HOUR), now);
        memory.sweep(now);
        now += IDLE / 2;
    }
    assert_eq!(memory.request(&key, now, |_| true), Decision::Direct);
    assert_eq!(memory.take_dropped(), [7]);
    assert!(memory.entries.is_empty());
    begin(&mut memory, &key, now);
}

#[test]
fn suspended_site_is_forgotten_when_idle() {
    let (mut memory, mut now) = (Memory::<u32>::new(MAX_SITES), Instant::now());
    let key = key("u", "a.onion");
    for _ in 0..6 {
        now += LONGEST_SUSPENSION;
        let trial = begin(&mut memory, &key, now);
        memory.tried(&key, trial, None, now);
    }
    memory.sweep(now + IDLE);
    assert!(memory.entries.is_empty());
}

#[test]
fn gateway_rests_after_failed_exchanges_in_a_row() {
    let (mut memory, now) = (Memory::new(MAX_SITES), Instant::now());
    let key = key("u", "a.onion");
    let trial = begin(&mut memory, &key, now);
    memory.tried(&key, trial, Some(7), now);
    for _ in 0..5 {
        assert!(!memory.missed(&key, trial, true, now));
        assert!(!memory.missed(&key, trial, true, now));
        memory.served(&key, trial);
    }
    for number in 1..=MAX_MISSES {
        assert_eq!(memory.missed(&key, trial, true, now), number == MAX_MISSES);
    }
    assert!(!memory.missed(&key, trial, true, now));
    memory.announced(&key, &way(1, HOUR), now);
    assert_eq!(memory.request(&key, now, |_| true), Decision::Direct);
}

#[test]
fn session_lost_after_probation_is_replaced() {
    let (mut memory, now) = (Memory::new(MAX_SITES), Instant::now());
    let key = key("u", "a.onion");
    let trial = begin(&mut memory, &key, now);
    memory.tried(&key, trial, Some(7), now);
    let lasted = now + PROBATION;
    assert!(memory.missed(&key, trial, false, lasted));
    let Decision::Try(_, trial) = memory.request(&key, lasted, |_| true) else {
        panic!("no trial");
    };
    memory.tried(&key, trial, Some(8), lasted);
    assert!(memory.missed(&key, trial, false, lasted));
    assert_eq!(memory.request(&key, lasted, |_| true), Decision::Direct);
    assert_eq!(memory.take_dropped(), [7, 8]);
}

#[test]
fn memory_is_bounded_for_each_key_and_overall() {
    let (mut memory, now) = (Memory::<u32>::new(MAX_SITES), Instant::now());
    let second = Duration::from_secs(1);
    let victim = key("victim", "a.onion");
    memory.announced(&victim, &way(1, HOUR), now + 100 * second);
    for number in 0..50 {
        let host = format!("{number}.onion");
        memory.announced(
            &key("attacker", &host),
            &way(1, HOUR),
            now + number * second,
        );
    }
    assert_eq!(memory.entries.len(), MAX_SITES_OF_KEY + 1);
    assert!(memory.entries.contains_key(&victim));
    for number in 0..1000 {
        let user = format!("u{number}");
        memory.announced(&key(&user, "a.onion"), &way(1, HOUR), now + 200 * second);
    }
    assert_eq!(memory.entries.len(), MAX_SITES);
}
