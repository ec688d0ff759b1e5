//! Tests of the way through a Tor client against a fake one.

use std::time::Duration;

use tokio::net::TcpListener;

use super::fake_tor::{FINGERPRINT, FakeTor, accept};
use super::*;

#[test]
fn exit_parses_auto_and_fingerprints() {
    assert_eq!("auto".parse(), Ok(Exit::Auto));
    assert!(
        "$0001020304050607080910111213141516171819"
            .parse::<Exit>()
            .is_ok()
    );
    assert!("home".parse::<Exit>().is_err());
}

/// Runs a test with tasks of its own thread.
fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, test)
}

/// Starts a fake Tor client with this SOCKS port. Returns its control port and its state.
async fn start(double: FakeTor, socks: SocketAddr) -> (Via, Rc<RefCell<FakeTor>>) {
    let control = TcpListener::bind("127.0.0.1:0").await.expect("listens");
    let address = control.local_addr().expect("bound");
    let state = Rc::new(RefCell::new(double));
    tokio::task::spawn_local(accept(control, socks, Rc::clone(&state)));
    (Via::TorPort(address), state)
}

/// Starts a fake Tor client that knows the descriptor of the gateway's exit. Returns a transport
/// through it, and its state.
async fn with_descriptor(exit: Option<Exit>, socks: SocketAddr) -> (Tor, Rc<RefCell<FakeTor>>) {
    let double = FakeTor {
        has_descriptor: true,
        ..FakeTor::new()
    };
    let (via, state) = start(double, socks).await;
    (Tor::new(via, None, exit, SocketOptions::default()), state)
}

fn gateway() -> Target {
    Target::new("192.0.2.80".into(), 9980)
}

/// Dials a gateway through the fake Tor client, `dials` times at once. Returns the results and
/// the final state of the fake.
fn dial(
    double: FakeTor,
    exit: &str,
    timeout: Duration,
    dials: usize,
) -> (Vec<Result<(), Error>>, FakeTor) {
    run(async {
        let socks = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let to_socks = socks.local_addr().expect("bound");
        let (via, state) = start(double, to_socks).await;
        let options = SocketOptions {
            connect_timeout: timeout,
            ..SocketOptions::default()
        };
        let target = Rc::new(gateway());
        let dialling: Vec<_> = (0..dials)
            .map(|_| {
                Tor::new(
                    via.clone(),
                    None,
                    Some(exit.parse().expect("an exit")),
                    options.clone(),
                )
            })
            .map(|tor| (tor, Rc::clone(&target)))
            .map(|(tor, target)| {
                tokio::task::spawn_local(async move {
                    tor.dial(&target, &Isolation::none()).await.map(drop)
                })
            })
            .collect();
        let mut results = Vec::new();
        for one in dialling {
            results.push(one.await.expect("no panic"));
        }
        let end = state.borrow().clone();
        (results, end)
    })
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

#[test]
fn tor_fetches_the_descriptor_of_a_fingerprint() {
    let (results, end) = dial(
        FakeTor {
            arriving: 3,
            ..FakeTor::new()
        },
        FINGERPRINT,
        CONNECT_TIMEOUT,
        1,
    );
    assert_eq!(results, [Ok(())]);
    assert!(
        end.has_descriptor && end.microdescriptors == "auto" && end.fetched == 1,
        "{end:?}"
    );
    assert!(
        end.mapped[0].ends_with(&format!("=192.0.2.80.{FINGERPRINT}.exit")),
        "{end:?}"
    );
    let known = FakeTor {
        has_descriptor: true,
        fetched: 1,
        ..FakeTor::new()
    };
    let (results, end) = dial(known, FINGERPRINT, CONNECT_TIMEOUT, 1);
    assert_eq!(
        (results, end.fetched),
        (vec![Ok(())], 1),
        "a present descriptor is not fetched again"
    );
}

#[test]
fn tor_waits_for_a_starting_client() {
    for exit in ["auto", FINGERPRINT] {
        let young = FakeTor {
            starting: 4,
            arriving: 2,
            uptime: 5,
            announced_after: 3,
            ..FakeTor::new()
        };
        let (results, end) = dial(young, exit, CONNECT_TIMEOUT, 1);
        assert_eq!(results, [Ok(())]);
        assert_eq!((end.fetched, end.microdescriptors), (3, "auto"));
    }
}

#[test]
fn tor_names_the_missing_part() {
    let soon = Duration::from_millis(60);
    let never = || FakeTor {
        starting: u32::MAX,
        uptime: 5,
        ..FakeTor::new()
    };
    let silent = || FakeTor {
        announced_after: u32::MAX,
        ..FakeTor::new()
    };
    let other = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    for (double, exit, part) in [
        (never(), "auto", "not started yet (30 % done)"),
        (never(), FINGERPRINT, "not started yet (30 % done)"),
        (
            silent(),
            "auto",
            "no exit announces a gateway at that address",
        ),
        (
            silent(),
            FINGERPRINT,
            "announces no gateway at that address",
        ),
        (
            FakeTor::new(),
            other,
            "knows no running relay with that fingerprint",
        ),
    ] {
        let (results, end) = dial(double, exit, soon, 1);
        let error = results[0]
            .as_ref()
            .expect_err("nothing to reach")
            .to_string();
        assert!(error.contains(part), "{exit}: {error}");
        assert!(
            end.mapped.is_empty() && end.microdescriptors == "auto",
            "{end:?}"
        );
    }
}

#[test]
fn tor_restores_the_setting_after_parallel_dials() {
    let (results, end) = dial(
        FakeTor {
            arriving: 5,
            ..FakeTor::new()
        },
        "auto",
        CONNECT_TIMEOUT,
        4,
    );
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!((end.microdescriptors, end.mapped.len()), ("auto", 4));
}

#[test]
fn tor_restores_a_setting_that_others_changed() {
    // Another program makes Tor fetch full descriptors, and ends before this one does.
    let other = FakeTor {
        microdescriptors: "0",
        arriving: 6,
        others_end: 3,
        ..FakeTor::new()
    };
    let (results, end) = dial(other, FINGERPRINT, CONNECT_TIMEOUT, 1);
    assert_eq!(
        (results, end.microdescriptors, end.fetched),
        (vec![Ok(())], "auto", 1)
    );
    // The user has set it so.
    let (results, end) = dial(
        FakeTor {
            microdescriptors: "0",
            ..FakeTor::new()
        },
        FINGERPRINT,
        CONNECT_TIMEOUT,
        1,
    );
    assert_eq!(
        (results, end.microdescriptors, end.fetched),
        (vec![Ok(())], "0", 0)
    );
}

#[test]
fn tor_restores_the_setting_of_a_dropped_dial() {
    run(async {
        let control = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let address = control.local_addr().expect("bound");
        let state = Rc::new(RefCell::new(FakeTor {
            arriving: 20,
            ..FakeTor::new()
        }));
        tokio::task::spawn_local(accept(control, address, Rc::clone(&state)));
        let tor = Tor::new(
            Via::TorPort(address),
            None,
            Some(Exit::Auto),
            SocketOptions::default(),
        );
        let target = Target::new("192.0.2.80".into(), 9980);
        let isolation = Isolation::none();
        {
            let mut dialling = tor.dial(&target, &isolation);
            while state.borrow().microdescriptors == "auto" {
                let step = Duration::from_millis(1);
                assert!(
                    tokio::time::timeout(step, &mut dialling).await.is_err(),
                    "it cannot be done yet"
                );
            }
        }
        while state.borrow().microdescriptors != "auto" {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(state.borrow().has_descriptor && state.borrow().mapped.is_empty());
    });
}

/// Returns a listener, as the SOCKS port of a Tor client. Whether it was dialled shows at once.
fn socks_port() -> (std::net::TcpListener, SocketAddr) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listens");
    listener.set_nonblocking(true).expect("a socket");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

fn was_dialled(listener: &std::net::TcpListener) -> bool {
    listener.accept().is_ok()
}

/// Another program may listen at the port of a Tor client that has ended.
#[test]
fn address_of_a_former_tor_client_is_not_dialled() {
    for exit in [None, Some(Exit::Auto)] {
        run(async {
            let (former, first) = socks_port();
            let (latter, second) = socks_port();
            let (tor, state) = with_descriptor(exit.clone(), first).await;
            let target = gateway();
            let isolation = Isolation::none();
            let dial = || async { tor.dial(&target, &isolation).await.map(drop) };
            for _ in 0..2 {
                assert_eq!(dial().await, Ok(()));
                assert!(was_dialled(&former));
            }
            let connections = state.borrow().connections;
            // The Tor client ends, and begins again later with another SOCKS port.
            state.borrow_mut().hangs_up = Some("GETINFO net/listeners/socks");
            let error = dial().await.expect_err("there is no Tor client");
            assert_eq!(error.side, Side::Via, "{error}");
            state.borrow_mut().hangs_up = None;
            state.borrow_mut().moved = Some(second);
            assert_eq!(dial().await, Ok(()));
            assert!(was_dialled(&latter) && !was_dialled(&former));
            assert!(state.borrow().connections > connections);
            let mapped = state.borrow().mapped.len();
            assert!(
                exit.is_none() || mapped > 1,
                "the new client learns the name"
            );
            assert!(tor.state.borrow().failed.is_empty(), "no exit failed");
            // It gets another SOCKS port while it runs.
            state.borrow_mut().moved = Some(first);
            assert_eq!(dial().await, Ok(()));
            assert!(was_dialled(&former) && !was_dialled(&latter));
            assert_eq!(state.borrow().mapped.len(), mapped);
        });
    }
}

/// An exit that refuses the sessions of one key must not see the other keys leave.
#[test]
fn failed_exit_is_that_of_its_key() {
    run(async {
        let (_socks, first) = socks_port();
        let (tor, state) = with_descriptor(Some(Exit::Auto), first).await;
        let target = gateway();
        let [one, other, new] = [b"1", b"2", b"3"].map(|key| Isolation::new(key, b""));
        let mapped = || state.borrow().mapped.len();
        for key in [&one, &other] {
            assert_eq!(tor.dial(&target, key).await.map(drop), Ok(()));
        }
        assert_eq!(mapped(), 1, "all keys begin with the same exit");
        tor.failed(&one);
        for key in [&other, &new] {
            assert_eq!(tor.dial(&target, key).await.map(drop), Ok(()));
        }
        assert_eq!(mapped(), 1, "it has not failed for them");
        assert_eq!(tor.dial(&target, &one).await.map(drop), Ok(()));
        assert_eq!(mapped(), 2);
        for number in 0..2 * MAX_KEYS {
            let key = Isolation::new(&number.to_be_bytes(), b"");
            tor.failed(&key);
        }
        assert_eq!(tor.of_keys.borrow().len(), MAX_KEYS);
        tor.forget(&Isolation::new(&(2 * MAX_KEYS - 1).to_be_bytes(), b""));
        assert_eq!(tor.of_keys.borrow().len(), MAX_KEYS - 1);
    });
}

/// Each new key would otherwise find the dead exit by itself.
#[test]
fn exit_that_failed_for_all_is_not_that_of_new_keys() {
    run(async {
        let (_socks, first) = socks_port();
        let (tor, state) = with_descriptor(Some(Exit::Auto), first).await;
        let [one, new] = [b"1", b"2"].map(|key| Isolation::new(key, b""));
        assert_eq!(tor.dial(&gateway(), &one).await.map(drop), Ok(()));
        let chosen = tor.state.borrow().chosen.clone();
        assert!(chosen.is_some());
        tor.failed_for_all();
        assert_eq!(tor.state.borrow().failed, Vec::from_iter(chosen));
        assert_eq!(tor.dial(&gateway(), &new).await.map(drop), Ok(()));
        assert_eq!(state.borrow().mapped.len(), 2, "an exit was chosen again");
    });
}
