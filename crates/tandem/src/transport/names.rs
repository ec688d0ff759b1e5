//! The addresses of gateways that are dialled without a proxy. The user gives an address, or
//! permits the look-up of the gateway's name (`resolve=system`).
//!
//! A name is looked up when a dial has no address, and again when no address answers. All dials of
//! the process to that name share the result.
//!
//! ```text
//!   dial ──no address, or no answer──▶ Name ──one look-up, after a pause──▶ thread ─▶ addresses
//! ```
//!
//! A look-up blocks a thread, and nothing can cancel it. A name therefore has one at a time. A
//! failed look-up leaves the addresses of an earlier one in use. The portal of a network may answer
//! with an address of its own, so that the address which answered last stays the last candidate
//! until another one answers. A configuration that is read again renews the addresses.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::error::{Error, Kind, Retry, Side};

/// The time for which a dial waits for a look-up. A resolver tries two servers, or one twice, in
/// that time by default.
const LIMIT: Duration = Duration::from_secs(10);

/// The pause after a look-up. It doubles with each look-up that follows soon.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause. A gateway that is down does not become reachable by more look-ups.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The longest pause while no address is known. Requests fail in it, although the network may be up
/// again.
const LONGEST_WITHOUT: Duration = Duration::from_secs(4);

/// The number of addresses of one gateway that are tried.
const MAX_ADDRESSES: usize = 4;

/// Asks a resolver for the addresses of a name. The port of the result has no meaning.
type Resolve = dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// The addresses of a gateway. Clones, and gateways of the same name, share the look-ups.
#[derive(Clone, Debug)]
pub struct Addresses(Source);

#[derive(Clone, Debug)]
enum Source {
    Given(SocketAddr),
    Named(Arc<Name>, u16),
}

impl Addresses {
    /// Creates the addresses of a gateway with one address, whose name is never looked up.
    pub const fn given(address: SocketAddr) -> Self {
        Self(Source::Given(address))
    }

    /// Returns the address that the user gave, if it replaces look-ups.
    pub const fn as_given(&self) -> Option<SocketAddr> {
        match self.0 {
            Source::Given(address) => Some(address),
            Source::Named(..) => None,
        }
    }

    /// Returns the known addresses, at most four and the resolver's best one first. The last one
    /// may be the one that answered before the last look-up. There is none before the first look-up
    /// has succeeded.
    pub fn known(&self) -> Vec<SocketAddr> {
        match &self.0 {
            Source::Given(address) => vec![*address],
            Source::Named(name, port) => with_port(&name.state().candidates(), *port),
        }
    }

    /// Returns the first of the known addresses.
    pub fn first(&self) -> Option<SocketAddr> {
        match &self.0 {
            Source::Given(address) => Some(*address),
            Source::Named(name, port) => {
                let mut first = name.state().addresses.first().copied()?;
                first.set_port(*port);
                Some(first)
            }
        }
    }

    /// Returns the number of times that the addresses have changed.
    pub fn changes(&self) -> u64 {
        match &self.0 {
            Source::Given(_) => 0,
            Source::Named(name, _) => name.state().changes,
        }
    }

    /// Notes that the gateway has answered at an address.
    pub fn answered(&self, mut address: SocketAddr) {
        if let Source::Named(name, _) = &self.0 {
            address.set_port(0);
            name.state().answered = Some(address);
        }
    }

    /// Returns true if the last look-up did not find the address, which answered before it.
    pub fn is_former(&self, mut address: SocketAddr) -> bool {
        address.set_port(0);
        match &self.0 {
            Source::Given(_) => false,
            Source::Named(name, _) => name.state().former() == Some(address),
        }
    }

    /// Looks the name up if a configuration was read again since, and waits for `limit` at most.
    pub async fn refresh(&self, limit: Duration) {
        if let Source::Named(name, _) = &self.0
            && name.state().is_stale
        {
            // The known addresses stay in use if it fails.
            let _ = timeout(limit, name.look_up()).await;
            name.state().is_stale = false;
        }
    }

    /// Looks the name up, and returns its addresses. During the pause after a look-up, the result
    /// is that of the last one.
    ///
    /// # Errors
    /// Fails if the resolver knows no address, or does not answer in time.
    pub async fn look_up(&self) -> Result<Vec<SocketAddr>, Error> {
        match &self.0 {
            Source::Given(address) => Ok(vec![*address]),
            Source::Named(name, port) => Ok(with_port(&name.look_up().await?, *port)),
        }
    }

    /// Begins to look up the name again, unless it is too early for that. Without an address it
    /// does nothing, because the next dial looks the name up.
    pub fn renew(&self) {
        if let Source::Named(name, _) = &self.0
            && !name.state().addresses.is_empty()
        {
            name.begin();
        }
    }

    /// Looks the name up on this thread, for a command that checks a configuration.
    ///
    /// # Errors
    /// Returns the problem of the resolver.
    pub fn look_up_now(&self) -> Result<(), String> {
        match &self.0 {
            Source::Given(_) => Ok(()),
            Source::Named(name, _) => {
                let found = name.ask();
                name.note(found.clone());
                found.map(drop)
            }
        }
    }
}

fn with_port(addresses: &[SocketAddr], port: u16) -> Vec<SocketAddr> {
    let at = |address: &SocketAddr| {
        let mut address = *address;
        address.set_port(port);
        address
    };
    addresses.iter().map(at).collect()
}

/// The names for the resolver of this machine, which follows the hosts file and nsswitch.conf.
static OF_PROCESS: LazyLock<Names> =
    LazyLock::new(|| Names::new(|host| Ok((host, 0).to_socket_addrs()?.collect())));

/// The names of gateways that are in use. After a reload, a name keeps its addresses until a dial
/// has looked it up again.
pub struct Names {
    resolve: Arc<Resolve>,
    in_use: Mutex<BTreeMap<String, Weak<Name>>>,
}

impl Names {
    /// Creates the names that `resolve` is asked for. It may block the thread that calls it.
    pub fn new(
        resolve: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            resolve: Arc::new(resolve),
            in_use: Mutex::default(),
        }
    }

    /// Returns the names that the resolver of this machine is asked for.
    pub fn of_process() -> &'static Self {
        &OF_PROCESS
    }

    /// Returns the addresses of a host. Nothing is looked up yet.
    pub fn addresses(&self, host: &str, port: u16) -> Addresses {
        let mut in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        let known = in_use.get(host).and_then(Weak::upgrade);
        if let Some(name) = &known {
            name.expire();
        }
        let name = known.unwrap_or_else(|| {
            let name = Arc::new(Name {
                host: host.to_owned(),
                resolve: Arc::clone(&self.resolve),
                state: Mutex::default(),
                ended: watch::Sender::default(),
            });
            in_use.retain(|_, name| name.strong_count() > 0);
            in_use.insert(host.to_owned(), Arc::downgrade(&name));
            name
        });
        Addresses(Source::Named(name, port))
    }
}

/// A name, and the result of its look-ups.
struct Name {
    host: String,
    resolve: Arc<Resolve>,
    state: Mutex<State>,
    /// The number of look-ups that have ended.
    ended: watch::Sender<u64>,
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)
    }
}

#[derive(Default)]
struct State {
    /// The addresses of the last look-up that succeeded. They have no ports.
    addresses: Vec<SocketAddr>,
    /// The address that answered last.
    answered: Option<SocketAddr>,
    /// The number of look-ups that found other addresses than before.
    changes: u64,
    /// True if the next dial looks the name up first.
    is_stale: bool,
    /// The problem of the last look-up.
    problem: Option<String>,
    /// The beginning of the look-up that is under way.
    running: Option<Instant>,
    /// The end of the last look-up, and the pause after it.
    last: Option<(Instant, Duration)>,
}

impl State {
    /// Returns the address that answered last, if the last look-up did not find it.
    fn former(&self) -> Option<SocketAddr> {
        let is_absent = |it: &SocketAddr| !self.addresses.contains(it);
        self.answered.filter(is_absent)
    }

    /// Returns the addresses to try, at most [`MAX_ADDRESSES`].
    fn candidates(&self) -> Vec<SocketAddr> {
        let former = self.former();
        let most = MAX_ADDRESSES - usize::from(former.is_some());
        let found = self.addresses.iter().copied().take(most);
        found.chain(former).collect()
    }

    /// Returns the pause after a look-up that begins now, or `None` if it is too early for one.
    fn pause(&self, now: Instant) -> Option<Duration> {
        let longest = match self.addresses.is_empty() {
            true => LONGEST_WITHOUT,
            false => LONGEST_PAUSE,
        };
        match self.last {
            Some((ended, pause)) if now - ended < pause.min(longest) => None,
            Some((ended, pause)) if now - ended < 2 * LONGEST_PAUSE => {
                Some((2 * pause).min(longest))
            }
            _ => Some(FIRST_PAUSE),
        }
    }
}

impl Name {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the next dial look the name up, without a pause.
    fn expire(&self) {
        let mut state = self.state();
        state.is_stale = !state.addresses.is_empty();
        state.last = None;
    }

    async fn look_up(self: &Arc<Self>) -> Result<Vec<SocketAddr>, Error> {
        let mut ended = self.ended.subscribe();
        if let Some(limit) = self.begin()
            && timeout(limit, ended.changed()).await.is_err()
        {
            return Err(failed("this machine's resolver does not answer"));
        }
        let state = self.state();
        match &state.problem {
            Some(problem) => Err(failed(problem)),
            None if state.addresses.is_empty() => Err(failed("the look-up ended early")),
            None => Ok(state.candidates()),
        }
    }

    /// Begins a look-up, unless one is under way or ended a short time ago. Returns the time for
    /// which a dial waits for the one that is under way.
    fn begin(self: &Arc<Self>) -> Option<Duration> {
        let (mut state, now) = (self.state(), Instant::now());
        if let Some(begun) = state.running {
            return Some(LIMIT.saturating_sub(now - begun));
        }
        let pause = state.pause(now)?;
        state.running = Some(now);
        drop(state);
        let running = Running {
            name: Arc::clone(self),
            pause,
        };
        tokio::task::spawn_blocking(move || running.name.note(running.name.ask()));
        Some(LIMIT)
    }

    /// Asks the resolver on this thread.
    fn ask(&self) -> Result<Vec<SocketAddr>, String> {
        let found = (self.resolve)(&self.host).map_err(|error| error.to_string())?;
        let usable = alternating(found.into_iter());
        match usable.is_empty() {
            true => Err("the name has no address".to_owned()),
            false => Ok(usable),
        }
    }

    /// Notes the result of a look-up.
    fn note(&self, found: Result<Vec<SocketAddr>, String>) {
        let mut state = self.state();
        match found {
            Ok(addresses) => {
                // A resolver may change their order each time.
                let is_same = state.addresses.len() == addresses.len()
                    && addresses.iter().all(|it| state.addresses.contains(it));
                if !state.addresses.is_empty() && !is_same {
                    state.changes += 1;
                    let host = &self.host;
                    tracing::info!("gateway {host}: its name has other addresses now");
                }
                (state.addresses, state.problem) = (addresses, None);
            }
            Err(problem) => state.problem = Some(problem),
        }
    }
}

/// A look-up that is under way, until it is dropped.
struct Running {
    name: Arc<Name>,
    pause: Duration,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.name.state();
        state.running = None;
        state.last = Some((Instant::now(), self.pause));
        drop(state);
        self.name.ended.send_modify(|count| *count += 1);
    }
}

/// Returns the error of a dial without an address.
fn failed(problem: &str) -> Error {
    let detail = format!("the gateway's name cannot be looked up yet: {problem}");
    Error::new(Kind::Dns, Side::Peer, detail).with_retry(Retry::Safe)
}

/// Returns the addresses to try. IPv4 and IPv6 alternate, and the resolver's best one is the first
/// (RFC 8305 section 4).
fn alternating(found: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut all: Vec<SocketAddr> = Vec::new();
    for mut address in found {
        address.set_port(0);
        if !all.contains(&address) {
            all.push(address);
        }
    }
    let is_first_v6 = all.first().is_some_and(SocketAddr::is_ipv6);
    let (best, others): (Vec<_>, Vec<_>) =
        (all.into_iter()).partition(|address| address.is_ipv6() == is_first_v6);
    let (mut best, mut others) = (best.into_iter(), others.into_iter());
    let pairs = std::iter::from_fn(|| {
        let pair = [best.next(), others.next()];
        (pair != [None, None]).then_some(pair)
    });
    pairs.flatten().flatten().take(MAX_ADDRESSES).collect()
}

#[cfg(test)]
mod tests;
