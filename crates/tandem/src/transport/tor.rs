//! A Tor client as the way to the gateway. Its control port names the SOCKS port and finds gateways
//! at exits.
//!
//! A gateway at an exit listens on an address that has no meaning on the Internet (192.0.2.80:9980,
//! RFC 5737). An exact line of the exit's policy announces it. Tor does not compare addresses when
//! it picks an exit, so a plain SOCKS connect would go to a wrong one. Instead, the full
//! descriptors are read once (`control`, `directory`) and an exit with that line is chosen by
//! weight. MAPADDRESS then pins the address to the exit. Tor chooses guard and middle relays
//! itself, also for the circuit that is kept ready (`ready_circuit`, `circuits`).
//!
//! No address outlives the Tor client that named it: each dial asks for the SOCKS port
//! (`socks_port`).

pub(crate) mod circuits;
pub(crate) mod control;
mod cookie;
pub(crate) mod directory;
#[cfg(test)]
mod fake_tor;
mod ready_circuit;
mod socks_port;

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
use crate::secret::Secret;
use ready_circuit::{Backoff, ReadyCircuit, TimeLimits};
use socks_port::SocksPort;

/// The exit to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// An exit that announces the gateway, chosen by weight.
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

/// The knowledge of a running Tor client.
#[derive(Debug)]
struct TorAddresses {
    /// Tells the SOCKS port as long as the Tor client runs.
    client: Rc<SocksPort>,
    /// A private name that Tor maps to the gateway at its exit. A Tor client that has restarted
    /// does not know the name. Dialling it then fails, instead of reaching the gateway's address
    /// through a wrong exit.
    name: Option<String>,
}

/// Dials through a Tor client.
#[derive(Debug)]
pub struct Tor {
    control: Via,
    password: Option<Secret>,
    exit: Option<Exit>,
    options: SocketOptions,
    state: RefCell<TorState>,
    backoff: Rc<Backoff>,
    keeps_circuit: bool,
}

/// The exits of a way through a Tor client.
#[derive(Debug, Default)]
struct TorState {
    ready: Rc<OnceCell<TorAddresses>>,
    /// The exits that failed. They are tried again only when no other is left.
    failed: Vec<String>,
    chosen: Option<String>,
    /// The circuit to the pinned exit that is kept ready.
    circuit: Option<Rc<ReadyCircuit>>,
}

impl Tor {
    /// Creates a way through the Tor client with this control port or socket. With `exit`, the
    /// target is a gateway at an exit.
    pub fn new(
        control: Via,
        password: Option<Secret>,
        exit: Option<Exit>,
        options: SocketOptions,
    ) -> Self {
        Self {
            control,
            password,
            exit,
            options,
            state: RefCell::default(),
            backoff: Rc::new(Backoff::new(TimeLimits::USUAL)),
            keeps_circuit: false,
        }
    }

    /// Keeps a circuit to the exit ready for the next dial. A program that dials once and ends must
    /// not call this: Tor would hold the circuit until it stops.
    pub fn keep_circuit(mut self) -> Self {
        self.keeps_circuit = true;
        self
    }

    /// Connects to the Tor client and pins the gateway's address to an exit.
    async fn prepare(
        &self,
        target: &Target,
        cell: &Rc<OnceCell<TorAddresses>>,
    ) -> Result<TorAddresses, Error> {
        let connect = || Control::connect(&self.control, self.password.as_deref());
        // This connection is older than the name, so it does not outlive the client that knows it.
        let client = SocksPort::over(connect().await?, self.options.connect_timeout);
        let Some(exit) = self.exit.clone() else {
            return Ok(TorAddresses { client, name: None });
        };
        let mut control = connect().await?;
        let (host, port, timeout) = (
            target.host.clone(),
            target.port,
            self.options.connect_timeout,
        );
        // A separate task continues if the dial is dropped, so that Tor's settings are always
        // restored in the end.
        let asking = tokio::task::spawn_local(async move {
            let found = match exit {
                Exit::Auto => control.gateways(&host, port, timeout).await?,
                Exit::Fingerprint(fingerprint) => {
                    control
                        .descriptor(&fingerprint, &host, port, timeout)
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
        // This exit may have been counted as failed in the meantime, and another chosen.
        if Rc::ptr_eq(cell, &self.state.borrow().ready) {
            self.keep_ready(async { Ok(control) }, &fingerprint);
            self.state.borrow_mut().chosen = Some(fingerprint);
        }
        let name = Some(name);
        Ok(TorAddresses { client, name })
    }

    /// Returns the present address of Tor's SOCKS port, and the gateway's private name if it is at
    /// an exit. A Tor client that has ended is prepared again.
    async fn addresses(&self, target: &Target) -> Result<(SocketAddr, Option<String>), Error> {
        loop {
            let cell = Rc::clone(&self.state.borrow().ready);
            let was_ready = cell.initialized();
            let prepared = cell.get_or_try_init(|| self.prepare(target, &cell)).await?;
            match prepared.client.address().await {
                Ok(socks) => return Ok((socks, prepared.name.clone())),
                Err(error) => {
                    self.forget_client(&cell);
                    if !was_ready {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Forgets a Tor client that has ended. Its exit did not fail.
    fn forget_client(&self, cell: &Rc<OnceCell<TorAddresses>>) {
        let mut state = self.state.borrow_mut();
        if Rc::ptr_eq(cell, &state.ready) {
            (state.ready, state.chosen) = (Rc::default(), None);
            let circuit = state.circuit.take();
            drop(state);
            drop(circuit);
        }
    }

    /// Keeps a circuit to this exit ready, if this is wanted and did not fail a moment ago.
    fn keep_ready(
        &self,
        control: impl Future<Output = Result<Control, Error>> + 'static,
        exit: &str,
    ) {
        if self.keeps_circuit && self.backoff.pause().is_zero() {
            let kept = ReadyCircuit::keep(control, exit.to_owned(), Rc::clone(&self.backoff));
            let before = self.state.borrow_mut().circuit.replace(Rc::new(kept));
            drop(before);
        }
    }

    /// Gives the ready circuit to the next stream to the pinned exit. No circuit is ready if no
    /// dial came for long or the control port failed. A new one is then begun, for the dial after
    /// this one.
    async fn release_circuit(&self) {
        let kept = self.state.borrow().circuit.clone();
        if let Some(kept) = kept.filter(|kept| kept.is_kept()) {
            return kept.release().await;
        }
        let (via, password) = (self.control.clone(), self.password.clone());
        let exit = self.state.borrow().chosen.clone();
        if let Some(exit) = exit {
            self.keep_ready(
                async move { Control::connect(&via, password.as_deref()).await },
                &exit,
            );
        }
    }

    /// Chooses an exit by weight among those that have not failed.
    fn choose(&self, found: &[GatewayExit]) -> Result<String, Error> {
        if found.is_empty() {
            return Err(unreachable("no exit announces a gateway at that address"));
        }
        let failed = &mut self.state.borrow_mut().failed;
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

/// Returns a random number, from the source that seeds the standard library's hash maps.
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
    fn below(&self) -> Option<&dyn Transport> {
        None
    }

    fn dial<'a>(
        &'a self,
        target: &'a Target,
        isolation: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        Box::pin(async move {
            let (socks, name) = self.addresses(target).await?;
            let socks = Socks::new(socks, self.options.clone());
            let Some(host) = name else {
                return socks.dial(target, isolation).await;
            };
            self.release_circuit().await;
            let port = target.port;
            socks.dial(&Target { host, port }, isolation).await
        })
    }

    fn get_ready<'a>(&'a self, target: &'a Target) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            let cell = Rc::clone(&self.state.borrow().ready);
            if self.exit.is_some()
                && let Err(error) = cell.get_or_try_init(|| self.prepare(target, &cell)).await
            {
                tracing::info!(%error, "no way to the gateway yet");
            }
        })
    }

    fn failed(&self) {
        // An exit that the user chose is not replaced. The Tor client is prepared again in any
        // case, because it may have restarted.
        let mut state = self.state.borrow_mut();
        if let (Some(chosen), Some(Exit::Auto)) = (state.chosen.take(), &self.exit) {
            state.failed.push(chosen);
        }
        state.ready = Rc::default();
        // No circuit is built at once to the next exit, which may be the same one. Repeated dials
        // to a dead exit would build ever more circuits.
        let circuit = state.circuit.take();
        drop(state);
        drop(circuit);
        self.backoff.lose();
    }
}

#[cfg(test)]
mod tests;
