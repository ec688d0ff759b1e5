//! Tests of the kept circuit against a fake Tor client.

use std::cell::RefCell;
use std::future::Future;

use tokio::net::TcpListener;

use super::super::fake_tor::{Circuits, FINGERPRINT, FakeTor, accept, relay};
use super::super::{Exit, Tor};
use super::*;
use crate::endpoint::Via;
use crate::exchange::Isolation;
use crate::transport::tcp::SocketOptions;
use crate::transport::{Dial, Target};

const QUICK: TimeLimits = TimeLimits {
    look: Duration::from_millis(5),
    watch: Duration::from_millis(5),
    build: Duration::from_secs(60),
    unused: Duration::from_millis(20),
    age: Duration::from_secs(600),
    idle: Duration::from_secs(600),
    rest: Duration::from_millis(1),
    pauses: (Duration::from_millis(5), Duration::from_millis(40)),
};

struct Scene {
    fake: Rc<RefCell<FakeTor>>,
    tor: Option<Tor>,
}

impl Scene {
    /// Waits for a state that must come.
    async fn until(&self, come: impl Fn(&FakeTor) -> bool) {
        while !come(&self.fake.borrow()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn ready(&self) {
        self.until(|fake| !fake.circuits.kept().is_empty()).await;
    }

    fn tor(&self) -> &Tor {
        self.tor.as_ref().expect("not ended yet")
    }

    async fn dial(&self) {
        let path = self.tor().dial(&target(), &Isolation::none()).await;
        drop(path.expect("the SOCKS port accepts"));
    }

    fn circuits(&self) -> Circuits {
        self.fake.borrow().circuits.clone()
    }
}

fn target() -> Target {
    Target::new("192.0.2.80".into(), 9980)
}

/// Runs a scene with a transport that has found its exit.
fn play<F: Future<Output = ()>>(
    times: TimeLimits,
    change: impl FnOnce(&mut FakeTor),
    scene: impl FnOnce(Scene) -> F,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let (control, socks) = (
            TcpListener::bind("127.0.0.1:0").await,
            TcpListener::bind("127.0.0.1:0").await,
        );
        let (control, socks) = (control.expect("listens"), socks.expect("listens"));
        let address = control.local_addr().expect("bound");
        let mut fake = FakeTor {
            has_descriptor: true,
            fetched: 1,
            ..FakeTor::new()
        };
        change(&mut fake);
        let fake = Rc::new(RefCell::new(fake));
        tokio::task::spawn_local(accept(
            control,
            socks.local_addr().expect("bound"),
            Rc::clone(&fake),
        ));
        let exit = Exit::Fingerprint(FINGERPRINT.into());
        let mut tor = Tor::new(
            Via::TorPort(address),
            None,
            Some(exit),
            SocketOptions::default(),
        )
        .keep_circuit();
        tor.backoff = Rc::new(Backoff::new(times));
        tor.get_ready(&target()).await;
        scene(Scene {
            fake,
            tor: Some(tor),
        })
        .await;
    });
}

#[test]
fn circuit_is_ready_before_each_dial() {
    let others = |fake: &mut FakeTor| {
        fake.circuits.models = vec![
            [relay("A"), relay("B"), relay("C")],
            [relay("A"), relay("D"), relay("C")],
        ];
    };
    play(QUICK, others, |scene| async move {
        for middle in [relay("B"), relay("D")] {
            scene.ready().await;
            let circuits = scene.circuits();
            let kept = circuits.kept();
            assert_eq!(kept.len(), 1, "{circuits:?}");
            assert_eq!(kept[0].path, [relay("A"), middle, FINGERPRINT]);
            let id = kept[0].id.clone();
            let model = (id.parse::<u32>().expect("a number") - 1).to_string();
            assert!(
                circuits
                    .commands
                    .contains(&format!("CLOSECIRCUIT {model} IfUnused")),
                "{circuits:?}"
            );
            scene.dial().await;
            let given = scene
                .circuits()
                .open
                .into_iter()
                .find(|circuit| circuit.id == id)
                .expect("in use");
            assert_eq!(given.purpose, "GENERAL", "before the stream is there");
        }
        // Tor builds no more circuits, and those in use stay.
        scene.until(|fake| fake.circuits.kept().is_empty()).await;
        assert_eq!(scene.circuits().open.len(), 2);
    });
}

#[test]
fn events_bring_a_circuit_without_polling() {
    let hour = Duration::from_secs(3600);
    let times = TimeLimits {
        look: hour,
        watch: hour,
        ..QUICK
    };
    let slow = |fake: &mut FakeTor| fake.circuits.slow = 4;
    play(times, slow, |scene| async move {
        for _ in 0..2 {
            scene.ready().await;
            scene.dial().await;
        }
        assert_eq!(scene.circuits().count("EXTENDCIRCUIT 0 $"), 2);
    });
}

#[test]
fn circuit_takes_only_relays_that_may_share_it() {
    let (a, b, c) = (relay("A"), relay("B"), relay("C"));
    let odd = |fake: &mut FakeTor| {
        fake.circuits.models = vec![
            [FINGERPRINT, b, c],
            [a, FINGERPRINT, c],
            [a, a, c],
            [c, b, FINGERPRINT],
        ];
    };
    play(QUICK, odd, |scene| async move {
        scene.ready().await;
        assert_eq!(scene.circuits().kept()[0].path, [c, b, FINGERPRINT]);
        assert_eq!(
            scene.circuits().count("EXTENDCIRCUIT 0 $"),
            1,
            "the others were not tried"
        );
    });
}

/// The family line with which every relay names all of them.
const FAMILY: &str = "family $AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA $BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB \
                      $000102030405060708090A0B0C0D0E0F10111213";

#[test]
fn dial_goes_on_where_no_circuit_can_be_built() {
    type Change = fn(&mut Circuits);
    let changes: [(Change, bool); 5] = [
        (|circuits| circuits.setting = "NodeFamily=$A,$B", false),
        (
            |circuits| circuits.setting = "__DisablePredictedCircuits=1",
            false,
        ),
        (|circuits| circuits.models.clear(), false),
        (|circuits| circuits.grabbed = true, true),
        (|circuits| circuits.family = FAMILY, true),
    ];
    for (change, asks_for_models) in changes {
        play(
            QUICK,
            |fake| change(&mut fake.circuits),
            |scene| async move {
                scene.until(|fake| fake.circuits.count("GETCONF") > 2).await;
                scene.dial().await;
                let circuits = scene.circuits();
                assert_eq!(circuits.count("EXTENDCIRCUIT 0 $"), 0, "{circuits:?}");
                assert_eq!(
                    circuits.count("EXTENDCIRCUIT") > 0,
                    asks_for_models,
                    "{circuits:?}"
                );
                assert_eq!(
                    scene.fake.borrow().connections,
                    2,
                    "one connection more than that for the port, not one for each time"
                );
            },
        );
    }
}

#[test]
fn circuit_that_dies_is_replaced() {
    let change: [fn(&mut Circuits); 2] = [
        |circuits| circuits.open.clear(),
        |circuits| circuits.open[0].purpose = "MEASURE_TIMEOUT",
    ];
    for change in change {
        play(
            QUICK,
            |_| {},
            |scene| async move {
                scene.ready().await;
                let first = scene.circuits().kept()[0].id.clone();
                change(&mut scene.fake.borrow_mut().circuits);
                scene
                    .until(|fake| {
                        fake.circuits
                            .kept()
                            .iter()
                            .any(|circuit| circuit.id != first)
                    })
                    .await;
                assert_eq!(scene.circuits().kept().len(), 1);
            },
        );
    }
}

#[test]
fn circuit_that_grows_old_is_exchanged() {
    play(
        TimeLimits {
            age: Duration::from_millis(10),
            ..QUICK
        },
        |_| {},
        |scene| async move {
            scene
                .until(|fake| fake.circuits.count("EXTENDCIRCUIT 0 $") > 2)
                .await;
            scene.until(|fake| fake.circuits.open.len() <= 1).await;
        },
    );
}

#[test]
fn circuit_that_no_stream_takes_is_closed() {
    play(
        QUICK,
        |fake| fake.circuits.stream = "",
        |scene| async move {
            scene.ready().await;
            let first = scene.circuits().kept()[0].id.clone();
            scene.dial().await;
            scene
                .until(|fake| fake.circuits.open.iter().all(|circuit| circuit.id != first))
                .await;
            scene.ready().await;
        },
    );
}

#[test]
fn circuit_is_given_away_while_it_is_built() {
    play(
        QUICK,
        |fake| fake.circuits.slow = 1,
        |scene| async move {
            scene
                .until(|fake| fake.circuits.count("EXTENDCIRCUIT 0") > 0)
                .await;
            scene.fake.borrow_mut().circuits.slow = u32::MAX;
            let unfinished = |fake: &FakeTor| {
                fake.circuits
                    .open
                    .iter()
                    .any(|circuit| circuit.purpose == "CONTROLLER")
            };
            scene.until(unfinished).await;
            scene.dial().await;
            let circuits = scene.circuits();
            assert!(
                circuits
                    .open
                    .iter()
                    .all(|circuit| circuit.purpose == "GENERAL"),
                "{circuits:?}"
            );
        },
    );
}

#[test]
fn transport_leaves_no_circuit_behind() {
    play(
        QUICK,
        |_| {},
        |mut scene| async move {
            scene.ready().await;
            scene.tor = None;
            scene.until(|fake| fake.circuits.open.is_empty()).await;
        },
    );
}

#[test]
fn transport_for_one_dial_keeps_no_circuit() {
    play(
        QUICK,
        |_| {},
        |mut scene| async move {
            let Some(Tor { control, exit, .. }) = scene.tor.take() else {
                panic!("a transport")
            };
            scene.tor = Some(Tor::new(control, None, exit, SocketOptions::default()));
            // The first dial finds the exit, and the second one would begin a circuit to it.
            for _ in 0..2 {
                scene.dial().await;
                assert!(scene.tor().state.borrow().chosen.is_some());
                assert!(scene.tor().state.borrow().circuit.is_none());
            }
        },
    );
}

#[test]
fn dial_does_not_wait_for_a_silent_control_port() {
    for (silent, hangs_up) in [
        (Some("SETCIRCUITPURPOSE"), None),
        (None, Some("SETCIRCUITPURPOSE")),
    ] {
        play(
            QUICK,
            |_| {},
            |scene| async move {
                scene.ready().await;
                (
                    scene.fake.borrow_mut().silent,
                    scene.fake.borrow_mut().hangs_up,
                ) = (silent, hangs_up);
                scene.dial().await;
                scene.dial().await;
            },
        );
    }
}

#[test]
fn dial_connects_to_a_closed_control_port_again() {
    play(
        QUICK,
        |_| {},
        |scene| async move {
            scene.ready().await;
            scene.fake.borrow_mut().hangs_up = Some("GETINFO circuit-status");
            scene
                .until(|_| {
                    !scene
                        .tor()
                        .state
                        .borrow()
                        .circuit
                        .as_ref()
                        .expect("begun")
                        .is_kept()
                })
                .await;
            scene.fake.borrow_mut().hangs_up = None;
            scene.fake.borrow_mut().circuits.open.clear();
            assert_eq!(scene.fake.borrow().connections, 2, "there was no dial");
            while scene.circuits().kept().is_empty() {
                scene.dial().await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(scene.fake.borrow().connections, 3);
        },
    );
}

#[test]
fn no_circuit_is_kept_without_dials() {
    play(
        TimeLimits {
            idle: Duration::from_secs(3),
            ..QUICK
        },
        |_| {},
        |scene| async move {
            scene.ready().await;
            scene.until(|fake| fake.circuits.open.is_empty()).await;
            assert!(
                !scene
                    .tor()
                    .state
                    .borrow()
                    .circuit
                    .as_ref()
                    .expect("begun")
                    .is_kept()
            );
            scene.dial().await;
            scene.ready().await;
            assert_eq!(scene.fake.borrow().connections, 3);
        },
    );
}

#[tokio::test(start_paused = true)]
async fn backoff_doubles_until_failures_are_forgotten() {
    let backoff = Backoff::new(TimeLimits::USUAL);
    let mut pauses = Vec::new();
    for _ in 0..40 {
        backoff.lose();
        pauses.push(backoff.after_failures());
    }
    assert_eq!(pauses[..4], [2, 4, 8, 16].map(Duration::from_secs));
    assert_eq!(pauses[39], Duration::from_secs(600));
    for outcome in [Outcome::Unused, Outcome::Good] {
        backoff.note(outcome);
        assert_eq!(
            backoff.after_failures(),
            Duration::from_secs(600),
            "that proves nothing"
        );
        // Five minutes are more than a pause after `Unused`, and than thirty waits.
        assert!(backoff.pause() > Duration::from_secs(300), "nor that");
    }
    let backoff = Backoff::new(QUICK);
    (0..3).for_each(|_| backoff.lose());
    assert_eq!(backoff.after_failures(), Duration::from_millis(20));
    tokio::time::advance(Duration::from_millis(100)).await;
    backoff.lose();
    assert_eq!(backoff.after_failures(), Duration::from_millis(5));
}

#[test]
fn backoff_rests_for_an_unpredictable_time() {
    let mean = Duration::from_secs(10);
    let times: Vec<_> = (0..4000).map(|_| at_random(mean).as_secs_f64()).collect();
    let share =
        |below: f64| times.iter().filter(|time| **time < below).count() as f64 / times.len() as f64;
    // Six deviations of such a sample.
    for (below, expected) in [(1.0, 0.095), (10.0, 0.632), (30.0, 0.950)] {
        assert!(
            (share(below) - expected).abs() < 0.05,
            "{below}: {}",
            share(below)
        );
    }
}

#[test]
fn gateway_that_does_not_answer_costs_no_circuits() {
    play(
        TimeLimits {
            pauses: (Duration::from_secs(600), Duration::from_secs(600)),
            ..QUICK
        },
        // The circuit stays with its stream until the dial reports the failure.
        |fake| fake.circuits.stream = "SENTCONNECT",
        |scene| async move {
            scene.ready().await;
            for _ in 0..5 {
                scene.dial().await;
                scene.tor().failed(&Isolation::none());
            }
            scene.until(|fake| fake.circuits.kept().is_empty()).await;
            assert_eq!(scene.circuits().count("EXTENDCIRCUIT 0 $"), 1);
        },
    );
}
