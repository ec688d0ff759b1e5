//! Tests of the look-ups of names.

use std::sync::mpsc;

use super::*;

fn addresses(list: &[&str]) -> Vec<SocketAddr> {
    let parse = |ip: &&str| SocketAddr::new(ip.parse().expect("an address"), 0);
    list.iter().map(parse).collect()
}

/// A resolver that gives the results of a list in turn, and the list of the names it was asked.
#[derive(Default)]
struct FakeResolver {
    answers: Mutex<Vec<io::Result<Vec<SocketAddr>>>>,
    asked: Mutex<Vec<String>>,
}

impl FakeResolver {
    fn names(self: &Arc<Self>) -> Names {
        let resolver = Arc::clone(self);
        Names::new(move |host| {
            resolver.asked.lock().expect("no panic").push(host.into());
            let mut answers = resolver.answers.lock().expect("no panic");
            match answers.is_empty() {
                true => Err(io::Error::other("no such name")),
                false => answers.remove(0),
            }
        })
    }

    fn answer(&self, list: &[&str]) {
        let mut answers = self.answers.lock().expect("no panic");
        answers.push(Ok(addresses(list)));
    }

    fn asked(&self) -> usize {
        self.asked.lock().expect("no panic").len()
    }
}

#[tokio::test(start_paused = true)]
async fn look_ups_of_a_name_keep_their_pauses() {
    let resolver = Arc::<FakeResolver>::default();
    let name = resolver.names().addresses("gw.example", 443);
    let begun = Instant::now();
    let mut times = Vec::new();
    while begun.elapsed() < Duration::from_secs(20) {
        let before = resolver.asked();
        let error = name.look_up().await.expect_err("no address");
        assert_eq!((error.kind, error.retry), (Kind::Dns, Retry::Safe));
        assert!(error.detail.contains("no such name"), "{}", error.detail);
        if resolver.asked() > before {
            times.push(begun.elapsed().as_secs());
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(times, [0, 1, 3, 7, 11, 15, 19]);
}

#[tokio::test(start_paused = true)]
async fn pauses_of_a_known_name_grow_to_half_a_minute() {
    let resolver = Arc::<FakeResolver>::default();
    resolver.answer(&["192.0.2.1"]);
    let name = resolver.names().addresses("gw.example", 443);
    name.look_up().await.expect("an address");
    let begun = Instant::now();
    let mut times = Vec::new();
    while begun.elapsed() < Duration::from_secs(100) {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let before = resolver.asked();
        assert!(name.look_up().await.is_err() || resolver.asked() == before);
        if resolver.asked() > before {
            times.push(begun.elapsed().as_secs());
        }
        assert_eq!(name.known(), ["192.0.2.1:443".parse().expect("an address")]);
    }
    assert_eq!(times, [1, 3, 7, 15, 31, 61, 91]);
    tokio::time::sleep(2 * LONGEST_PAUSE).await;
    name.renew();
    tokio::time::sleep(FIRST_PAUSE).await;
    let before = resolver.asked();
    assert!(name.look_up().await.is_err());
    assert_eq!(resolver.asked(), before + 1, "the pause is short again");
}

#[tokio::test]
async fn gateways_of_one_name_share_a_look_up() {
    let resolver = Arc::<FakeResolver>::default();
    resolver.answer(&["192.0.2.1", "2001:db8::1"]);
    let names = resolver.names();
    let (tcp, udp) = (
        names.addresses("gw.example", 443),
        names.addresses("gw.example", 444),
    );
    assert_eq!((tcp.first(), resolver.asked()), (None, 0));
    let found = tokio::join!(tcp.look_up(), udp.look_up());
    assert_eq!(found.0.expect("addresses")[0].port(), 443);
    assert_eq!(found.1.expect("addresses").len(), 2);
    assert_eq!(udp.first(), Some("192.0.2.1:444".parse().expect("valid")));
    assert_eq!(*resolver.asked.lock().expect("no panic"), ["gw.example"]);
}

#[test]
fn name_in_use_keeps_its_addresses() {
    let resolver = Arc::<FakeResolver>::default();
    resolver.answer(&["192.0.2.1"]);
    let names = resolver.names();
    let before = names.addresses("gw.example", 443);
    before.look_up_now().expect("an address");
    let after = names.addresses("gw.example", 443);
    assert_eq!(after.known(), before.known());
    drop((before, after));
    let new = names.addresses("other.example", 443);
    assert!(new.known().is_empty());
    assert_eq!(names.in_use.lock().expect("no panic").len(), 1);
}

#[tokio::test]
async fn given_address_needs_no_look_up() {
    let address = "192.0.2.1:443".parse().expect("an address");
    let given = Addresses::given(address);
    given.renew();
    assert_eq!(given.look_up().await.ok(), Some(vec![address]));
    assert_eq!(given.as_given(), Some(address));
}

#[tokio::test(start_paused = true)]
async fn silent_resolver_keeps_one_thread() {
    let (answer, wait) = mpsc::channel::<()>();
    let (asked, wait) = (Arc::new(Mutex::new(0)), Mutex::new(wait));
    let count = Arc::clone(&asked);
    let names = Names::new(move |_| {
        *count.lock().expect("no panic") += 1;
        // It ends with the sender.
        let _ = wait.lock().expect("no panic").recv();
        Ok(addresses(&["192.0.2.1"]))
    });
    let name = names.addresses("gw.example", 443);
    // The clock stands while a thread is blocked.
    let (mut looking_up, mut other) = (Box::pin(name.look_up()), Box::pin(name.look_up()));
    for waiting in [&mut looking_up, &mut other] {
        let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(waiting.as_mut().poll(cx)));
        assert!(polled.await.is_pending());
    }
    tokio::time::advance(LIMIT).await;
    for waiting in [looking_up, other] {
        let error = waiting.await.expect_err("no answer");
        assert!(error.detail.contains("does not answer"), "{}", error.detail);
    }
    let error = name.look_up().await.expect_err("it is not asked again");
    assert_eq!(error.kind, Kind::Dns);
    drop(answer);
    let mut ended = match &name.0 {
        Source::Named(name, _) => name.ended.subscribe(),
        Source::Given(_) => unreachable!("it has a name"),
    };
    ended.wait_for(|count| *count == 1).await.expect("it ends");
    assert_eq!(name.known().len(), 1, "the late answer counts");
    assert_eq!(*asked.lock().expect("no panic"), 1);
}

#[test]
fn addresses_of_both_families_alternate() {
    for (found, tried) in [
        (
            &["::5", "::6", "192.0.2.5"][..],
            &["::5", "192.0.2.5", "::6"][..],
        ),
        (&["192.0.2.5", "192.0.2.5", "::5"], &["192.0.2.5", "::5"]),
        (
            &["::1", "::2", "::3", "::4", "::5"],
            &["::1", "::2", "::3", "::4"],
        ),
        (
            &["::1", "::2", "::3", "::4", "192.0.2.1"],
            &["::1", "192.0.2.1", "::2", "::3"],
        ),
        (&[], &[]),
    ] {
        let found = addresses(found).into_iter();
        assert_eq!(alternating(found), addresses(tried));
    }
}

#[tokio::test]
async fn address_that_answered_last_is_the_last_of_four() {
    let resolver = Arc::<FakeResolver>::default();
    let name = resolver.names().addresses("gw.example", 443);
    let four = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"];
    resolver.answer(&["192.0.2.9"]);
    name.look_up_now().expect("an address");
    let former = name.first().expect("an address");
    name.answered(former);
    resolver.answer(&four);
    name.look_up_now().expect("addresses");
    let known: Vec<_> = name.known().iter().map(|it| it.ip().to_string()).collect();
    assert_eq!(known, [four[0], four[1], four[2], "192.0.2.9"]);
    assert!(name.is_former(former));
    assert_eq!(name.changes(), 1);
    let first = name.first().expect("an address");
    name.answered(first);
    assert_eq!((name.known().len(), name.is_former(former)), (4, false));
    // Another order is no change.
    resolver.answer(&[four[3], four[2], four[1], four[0]]);
    name.look_up_now().expect("addresses");
    assert_eq!(name.changes(), 1);
}
