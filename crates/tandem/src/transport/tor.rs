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
//! (`socks_port`). All isolation keys begin with the same exit. A key for which it fails gets
//! another one of its own. An exit that refuses one key therefore sees no other key leave.

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
use super::{Dial, LocalBoxFuture, Target};
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
    /// The exit of all keys without a failure.
    state: Rc<RefCell<TorState>>,
    /// The exits of the other keys, from the oldest to the newest key.
    of_keys: RefCell<Vec<(Isolation, Rc<RefCell<TorState>>)>>,
    backoff: Rc<Backoff>,
}

/// The largest number of keys with an exit of their own. Each holds a control connection. The
/// oldest key makes room, and begins with the exit of all keys again.
const MAX_KEYS: usize = 64;

/// The exits of a way through a Tor client.
#[derive(Debug, Default)]
struct TorState {
    ready: Rc<OnceCell<TorAddresses>>,
    /// The exits that failed. They are tried again only when no other is left.
    failed: Vec<String>,
    chosen: Option<String>,
    /// The circuit to the pinned exit that is kept ready.
    circuit: Option<Rc<ReadyCircuit>>,
    keeps_circuit: bool,
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
            state: Rc::default(),
            of_keys: RefCell::default(),
            backoff: Rc::new(Backoff::new(TimeLimits::USUAL)),
        }
    }

    /// Keeps a circuit to the exit ready for the next dial. A program that dials once and ends must
    /// not call this: Tor would hold the circuit until it stops.
    pub fn keep_circuit(self) -> Self {
        self.state.borrow_mut().keeps_circuit = true;
        self
    }

    /// Returns the state of the exit that a key uses.
    fn state_of(&self, isolation: &Isolation) -> Rc<RefCell<TorState>> {
        let of_keys = self.of_keys.borrow();
        let own = of_keys.iter().find(|(key, _)| key == isolation);
        Rc::clone(own.map_or(&self.state, |(_, state)| state))
    }

    /// Gives a key a state of its own.
    fn separate(&self, isolation: &Isolation, state: TorState) {
        self.forget(isolation);
        let mut of_keys = self.of_keys.borrow_mut();
        let oldest = (of_keys.len() >= MAX_KEYS).then(|| of_keys.remove(0));
        of_keys.push((isolation.clone(), Rc::new(RefCell::new(state))));
        drop(of_keys);
        drop(oldest);
    }

    /// Connects to the Tor client and pins the gateway's address to an exit.
    async fn prepare(
        &self,
        target: &Target,
        state: &RefCell<TorState>,
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
        let fingerprint = choose(&found, &mut state.borrow_mut().failed)?;
        let name = format!("{:016x}{:016x}.invalid", random(), random());
        control
            .map_to_exit(&name, &target.host, &fingerprint)
            .await?;
        // This exit may have been counted as failed in the meantime, and another chosen.
        if Rc::ptr_eq(cell, &state.borrow().ready) {
            self.keep_ready(state, async { Ok(control) }, &fingerprint);
            state.borrow_mut().chosen = Some(fingerprint);
        }
        let name = Some(name);
        Ok(TorAddresses { client, name })
    }

    /// Returns the present address of Tor's SOCKS port, and the gateway's private name if it is at
    /// an exit. A Tor client that has ended is prepared again.
    async fn addresses(
        &self,
        target: &Target,
        state: &RefCell<TorState>,
    ) -> Result<(SocketAddr, Option<String>), Error> {
        loop {
            let cell = Rc::clone(&state.borrow().ready);
            let was_ready = cell.initialized();
            let prepare = || self.prepare(target, state, &cell);
            let prepared = cell.get_or_try_init(prepare).await?;
            match prepared.client.address().await {
                Ok(socks) => return Ok((socks, prepared.name.clone())),
                Err(error) => {
                    forget_client(state, &cell);
                    if !was_ready {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Keeps a circuit to this exit ready, if this is wanted and did not fail a moment ago.
    fn keep_ready(
        &self,
        state: &RefCell<TorState>,
        control: impl Future<Output = Result<Control, Error>> + 'static,
        exit: &str,
    ) {
        if state.borrow().keeps_circuit && self.backoff.pause().is_zero() {
            let kept = ReadyCircuit::keep(control, exit.to_owned(), Rc::clone(&self.backoff));
            let before = state.borrow_mut().circuit.replace(Rc::new(kept));
            drop(before);
        }
    }

    /// Gives the ready circuit to the next stream to the pinned exit. No circuit is ready if no
    /// dial came for long or the control port failed. A new one is then begun, for the dial after
    /// this one.
    async fn release_circuit(&self, state: &RefCell<TorState>) {
        let kept = state.borrow().circuit.clone();
        if let Some(kept) = kept.filter(|kept| kept.is_kept()) {
            return kept.release().await;
        }
        let (via, password) = (self.control.clone(), self.password.clone());
        let exit = state.borrow().chosen.clone();
        if let Some(exit) = exit {
            self.keep_ready(
                state,
                async move { Control::connect(&via, password.as_deref()).await },
                &exit,
            );
        }
    }
}

/// Forgets a Tor client that has ended. Its exit did not fail.
fn forget_client(state: &RefCell<TorState>, cell: &Rc<OnceCell<TorAddresses>>) {
    let is_present = Rc::ptr_eq(cell, &state.borrow().ready);
    if is_present {
        reset(state);
    }
}

/// Lets the next dial prepare the Tor client again. Returns the exit that was chosen.
fn reset(state: &RefCell<TorState>) -> Option<String> {
    let mut state = state.borrow_mut();
    state.ready = Rc::default();
    let (chosen, circuit) = (state.chosen.take(), state.circuit.take());
    drop(state);
    // The end of a circuit may use the state.
    drop(circuit);
    chosen
}

/// Chooses an exit by weight among those that have not failed.
fn choose(found: &[GatewayExit], failed: &mut Vec<String>) -> Result<String, Error> {
    if found.is_empty() {
        return Err(unreachable("no exit announces a gateway at that address"));
    }
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

impl Dial for Tor {
    fn below(&self) -> Option<&dyn Dial> {
        None
    }

    fn dial<'a>(
        &'a self,
        target: &'a Target,
        isolation: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        Box::pin(async move {
            let state = self.state_of(isolation);
            let (socks, name) = self.addresses(target, &state).await?;
            let socks = Socks::new(socks, self.options.clone());
            let Some(host) = name else {
                return socks.dial(target, isolation).await;
            };
            self.release_circuit(&state).await;
            let port = target.port;
            socks.dial(&Target::new(host, port), isolation).await
        })
    }

    fn get_ready<'a>(&'a self, target: &'a Target) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            let cell = Rc::clone(&self.state.borrow().ready);
            let prepare = || self.prepare(target, &self.state, &cell);
            if self.exit.is_some()
                && let Err(error) = cell.get_or_try_init(prepare).await
            {
                tracing::info!(%error, "no way to the gateway yet");
            }
        })
    }

    fn forget(&self, isolation: &Isolation) {
        let mut of_keys = self.of_keys.borrow_mut();
        let forgotten: Vec<_> = of_keys
            .extract_if(.., |(key, _)| key == isolation)
            .collect();
        drop(of_keys);
        drop(forgotten);
    }

    fn failed(&self, isolation: &Isolation) {
        // The Tor client is prepared again in any case. No circuit is built at once to the next
        // exit, which may be the same one. Repeated dials to a dead exit would build ever more
        // circuits.
        let state = self.state_of(isolation);
        if state.borrow().keeps_circuit {
            self.backoff.lose();
        }
        let chosen = state.borrow().chosen.clone();
        if let (Some(chosen), Some(Exit::Auto)) = (chosen, &self.exit) {
            let mut failed = state.borrow().failed.clone();
            failed.push(chosen);
            // A kept circuit for each of many keys would be a recognisable load.
            let is_main = *isolation == Isolation::none();
            let keeps_circuit = is_main && self.state.borrow().keeps_circuit;
            let own = TorState {
                failed,
                keeps_circuit,
                ..TorState::default()
            };
            return self.separate(isolation, own);
        }
        // An exit that the user chose is not replaced.
        reset(&state);
    }

    fn failed_for_all(&self) {
        let chosen = reset(&self.state);
        if matches!(self.exit, Some(Exit::Auto)) {
            self.state.borrow_mut().failed.extend(chosen);
        }
    }
}

#[cfg(test)]
mod tests;
