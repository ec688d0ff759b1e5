//! A Tor client as the way to the gateway: its control port tells the SOCKS port and finds gateways
//! at exits.
//!
//! A gateway at an exit listens on an address that means nothing on the Internet (192.0.2.80:9980,
//! RFC 5737) and is announced by an exact line of the exit's policy. Tor does not compare addresses
//! when it picks an exit, so a plain SOCKS connect would go to a wrong one: instead the full
//! descriptors are read once (`control`, `directory`), an exit with that line is chosen by weight,
//! and MAPADDRESS pins the address to it. Guard and middle stay Tor's own choice, also of the
//! circuit to it that is kept ready (`ready_circuit`, `circuits`).

pub(crate) mod circuits;
pub(crate) mod control;
mod cookie;
pub(crate) mod directory;
#[cfg(test)]
mod fake_tor;
mod ready_circuit;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use tokio::sync::OnceCell;

pub use control::Control;
pub use directory::GatewayExit;

use super::socks::Socks;
use super::tcp::SocketOptions;
use super::{LocalBoxFuture, Target, Transport};
use crate::endpoint::Via;
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::Isolation;
use crate::path::Path;
use ready_circuit::{Backoff, ReadyCircuit, Times};

/// Which exit to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Any that announces the gateway, by weight.
    Auto,
    /// The relay with this fingerprint (40 hexadecimal digits).
    Fingerprint(String),
}

impl std::str::FromStr for Exit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let digits = text.trim_start_matches('$');
        if digits.len() == 40 && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Ok(Self::Fingerprint(digits.to_ascii_uppercase()));
        }
        Err(format!(
            "exit={text:?} is neither \"auto\" nor a fingerprint of 40 hexadecimal digits"
        ))
    }
}

/// What has been asked of the Tor client.
#[derive(Debug)]
struct Prepared {
    socks: SocketAddr,
    /// A name of ours that leads to the gateway at its exit. It means nothing to a Tor client that
    /// has forgotten it (by a restart): then dialling it fails, and no wrong exit is ever asked for
    /// the gateway's address.
    name: Option<String>,
}

/// Dials through a Tor client.
#[derive(Debug)]
pub struct Tor {
    control: Via,
    password: Option<String>,
    exit: Option<Exit>,
    options: SocketOptions,
    ready: RefCell<Rc<OnceCell<Prepared>>>,
    /// Exits that failed; tried again only when no other is left.
    failed: RefCell<Vec<String>>,
    chosen: RefCell<Option<String>>,
    /// The circuit to the pinned exit that is kept ready.
    ready_circuit: RefCell<Option<Rc<ReadyCircuit>>>,
    backoff: Rc<Backoff>,
}

impl Tor {
    /// A way through the Tor client whose control port or socket is `control`. `exit`: the target
    /// is a gateway at an exit.
    pub fn new(
        control: Via,
        password: Option<String>,
        exit: Option<Exit>,
        options: SocketOptions,
    ) -> Self {
        Self {
            control,
            password,
            exit,
            options,
            ready: RefCell::default(),
            failed: RefCell::default(),
            chosen: RefCell::default(),
            ready_circuit: RefCell::default(),
            backoff: Rc::new(Backoff::new(Times::USUAL)),
        }
    }

    /// Asks for the SOCKS port and pins the gateway's address to an exit.
    async fn prepare(
        &self,
        target: &Target,
        cell: &Rc<OnceCell<Prepared>>,
    ) -> Result<Prepared, Error> {
        let mut control = Control::connect(&self.control, self.password.as_deref()).await?;
        let socks = control.socks_port().await?;
        let Some(exit) = self.exit.clone() else {
            return Ok(Prepared { socks, name: None });
        };
        let (host, port, patience) = (
            target.host.clone(),
            target.port,
            self.options.connect_timeout,
        );
        // In a task of its own: it goes on when whoever dials gives up, so that Tor's settings are
        // as before in the end.
        let asking = tokio::task::spawn_local(async move {
            let found = match exit {
                Exit::Auto => control.gateways(&host, port, patience).await?,
                Exit::Fingerprint(fingerprint) => {
                    control
                        .descriptor(&fingerprint, &host, port, patience)
                        .await?;
                    vec![GatewayExit {
                        fingerprint,
                        ..GatewayExit::default()
                    }]
                }
            };
            Ok((control, found))
        });
        let ended = |_| {
            Error::new(
                Kind::Internal,
                Side::Local,
                "the talk with Tor's control port broke off",
            )
        };
        let (mut control, found) = asking.await.map_err(ended)??;
        let fingerprint = self.choose(&found)?;
        let name = format!("{:016x}{:016x}.invalid", random(), random());
        control
            .map_to_exit(&name, &target.host, &fingerprint)
            .await?;
        // Another may have been chosen since, while this one's turn was thought to have failed.
        if Rc::ptr_eq(cell, &self.ready.borrow()) {
            self.keep_ready(async { Ok(control) }, &fingerprint);
            *self.chosen.borrow_mut() = Some(fingerprint);
        }
        let name = Some(name);
        Ok(Prepared { socks, name })
    }

    /// Keeps a circuit to this exit ready, unless that failed a moment ago.
    fn keep_ready(
        &self,
        control: impl Future<Output = Result<Control, Error>> + 'static,
        exit: &str,
    ) {
        if self.backoff.pause().is_zero() {
            let kept = ReadyCircuit::keep(control, exit.to_owned(), Rc::clone(&self.backoff));
            *self.ready_circuit.borrow_mut() = Some(Rc::new(kept));
        }
    }

    /// Has the next stream to the pinned exit take the circuit that is ready. Where none is kept,
    /// because nobody dialled for long or the control port went away, the next but one will have
    /// it.
    async fn release_circuit(&self) {
        let kept = self.ready_circuit.borrow().clone();
        if let Some(kept) = kept.filter(|kept| kept.is_kept()) {
            return kept.release().await;
        }
        let (via, password) = (self.control.clone(), self.password.clone());
        if let Some(exit) = self.chosen.borrow().as_deref() {
            self.keep_ready(
                async move { Control::connect(&via, password.as_deref()).await },
                exit,
            );
        }
    }

    /// By weight among those that have not failed.
    fn choose(&self, found: &[GatewayExit]) -> Result<String, Error> {
        if found.is_empty() {
            return Err(unreachable("no exit announces a gateway at that address"));
        }
        let mut failed = self.failed.borrow_mut();
        let fresh: Vec<_> = found
            .iter()
            .filter(|exit| !failed.contains(&exit.fingerprint))
            .collect();
        let pool = if fresh.is_empty() {
            failed.clear();
            found.iter().collect()
        } else {
            fresh
        };
        let total: u64 = pool.iter().map(|exit| exit.bandwidth.max(1)).sum();
        let mut point = random() % total.max(1);
        for exit in &pool {
            let weight = exit.bandwidth.max(1);
            if point < weight {
                return Ok(exit.fingerprint.clone());
            }
            point -= weight;
        }
        Err(unreachable("no exit announces a gateway at that address"))
    }
}

/// A number from the randomness that the standard library seeds its hash maps with.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

fn unreachable(detail: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(Kind::Unreachable, Side::Peer, detail).with_retry(Retry::Safe)
}

impl Transport for Tor {
    fn dial<'a>(
        &'a self,
        target: &'a Target,
        isolation: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        Box::pin(async move {
            let cell = Rc::clone(&self.ready.borrow());
            let prepared = cell.get_or_try_init(|| self.prepare(target, &cell)).await?;
            let socks = Socks::new(prepared.socks, self.options.clone());
            let Some(name) = &prepared.name else {
                return socks.dial(target, isolation).await;
            };
            self.release_circuit().await;
            socks
                .dial(
                    &Target {
                        host: name.clone(),
                        port: target.port,
                    },
                    isolation,
                )
                .await
        })
    }

    fn get_ready<'a>(&'a self, target: &'a Target) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            let cell = Rc::clone(&self.ready.borrow());
            if self.exit.is_some()
                && let Err(error) = cell.get_or_try_init(|| self.prepare(target, &cell)).await
            {
                tracing::info!(%error, "no way to the gateway yet");
            }
        })
    }

    fn failed(&self) {
        // An exit of the user's own choice is not exchanged for another, but the Tor client may
        // have been started anew.
        if let (Some(chosen), Some(Exit::Auto)) = (self.chosen.borrow_mut().take(), &self.exit) {
            self.failed.borrow_mut().push(chosen);
        }
        *self.ready.borrow_mut() = Rc::default();
        // A circuit to the next exit, or the same, is not built at once: dialling one that is dead
        // would build ever more.
        *self.ready_circuit.borrow_mut() = None;
        self.backoff.lose();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpListener;

    use super::fake_tor::{FINGERPRINT, FakeTor, accept};
    use super::*;

    #[test]
    fn reads_exits() {
        assert_eq!("auto".parse(), Ok(Exit::Auto));
        assert!(
            "$0001020304050607080910111213141516171819"
                .parse::<Exit>()
                .is_ok()
        );
        assert!("home".parse::<Exit>().is_err());
    }

    /// Dials a gateway through the double as often as `dials` says, at once; gives what came of it
    /// and the double's end state.
    fn dial(
        double: FakeTor,
        exit: &str,
        patience: Duration,
        dials: usize,
    ) -> (Vec<Result<(), Error>>, FakeTor) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let control = TcpListener::bind("127.0.0.1:0").await.expect("listens");
            let socks = TcpListener::bind("127.0.0.1:0").await.expect("listens");
            let (address, to_socks) = (
                control.local_addr().expect("bound"),
                socks.local_addr().expect("bound"),
            );
            let state = Rc::new(RefCell::new(double));
            tokio::task::spawn_local(accept(control, to_socks, Rc::clone(&state)));
            let options = SocketOptions {
                connect_timeout: patience,
                ..SocketOptions::default()
            };
            let target = Rc::new(Target {
                host: "192.0.2.80".into(),
                port: 9980,
            });
            let dialling: Vec<_> = (0..dials)
                .map(|_| {
                    Tor::new(
                        Via::TorPort(address),
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

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn a_fingerprint_brings_its_descriptor() {
        let (results, end) = dial(
            FakeTor {
                arriving: 3,
                ..FakeTor::new()
            },
            FINGERPRINT,
            PATIENCE,
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
        let (results, end) = dial(known, FINGERPRINT, PATIENCE, 1);
        assert_eq!(
            (results, end.fetched),
            (vec![Ok(())], 1),
            "what is there is not fetched again"
        );
    }

    #[test]
    fn a_tor_that_starts_is_waited_for() {
        for exit in ["auto", FINGERPRINT] {
            let young = FakeTor {
                starting: 4,
                arriving: 2,
                uptime: 5,
                announced_after: 3,
                ..FakeTor::new()
            };
            let (results, end) = dial(young, exit, PATIENCE, 1);
            assert_eq!(results, [Ok(())]);
            assert_eq!((end.fetched, end.microdescriptors), (3, "auto"));
        }
    }

    #[test]
    fn what_is_missing_is_said() {
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
    fn several_at_once_leave_the_users_setting() {
        let (results, end) = dial(
            FakeTor {
                arriving: 5,
                ..FakeTor::new()
            },
            "auto",
            PATIENCE,
            4,
        );
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        assert_eq!((end.microdescriptors, end.mapped.len()), ("auto", 4));
    }

    #[test]
    fn settings_that_others_change_come_back_in_the_end() {
        // Another program has Tor fetch full descriptors, and ends before we do.
        let other = FakeTor {
            microdescriptors: "0",
            arriving: 6,
            others_end: 3,
            ..FakeTor::new()
        };
        let (results, end) = dial(other, FINGERPRINT, PATIENCE, 1);
        assert_eq!(
            (results, end.microdescriptors, end.fetched),
            (vec![Ok(())], "auto", 1)
        );
        // The user has it so.
        let (results, end) = dial(
            FakeTor {
                microdescriptors: "0",
                ..FakeTor::new()
            },
            FINGERPRINT,
            PATIENCE,
            1,
        );
        assert_eq!(
            (results, end.microdescriptors, end.fetched),
            (vec![Ok(())], "0", 0)
        );
    }

    #[test]
    fn whoever_gives_up_leaves_the_users_setting() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, async {
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
            let target = Target {
                host: "192.0.2.80".into(),
                port: 9980,
            };
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
}
