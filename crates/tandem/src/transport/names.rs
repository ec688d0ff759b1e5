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
//! failed look-up leaves the addresses of an earlier one in use.

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

    /// Returns the known addresses, at most four and the resolver's best one first. There is none
    /// before the first look-up has succeeded.
    pub fn known(&self) -> Vec<SocketAddr> {
        match &self.0 {
            Source::Given(address) => vec![*address],
            Source::Named(name, port) => with_port(&name.state().addresses, *port),
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

/// The names of gateways that are in use. After a reload, a name keeps its addresses.
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
    /// The addresses of the last look-up that succeeded.
    addresses: Vec<SocketAddr>,
    /// The problem of the last look-up.
    problem: Option<String>,
    /// The beginning of the look-up that is under way.
    running: Option<Instant>,
    /// The end of the last look-up, and the pause after it.
    last: Option<(Instant, Duration)>,
}

impl State {
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
            None => Ok(state.addresses.clone()),
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
                if !state.addresses.is_empty() && state.addresses != addresses {
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
    for address in found {
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
mod tests {
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
            let polled =
                std::future::poll_fn(|cx| std::task::Poll::Ready(waiting.as_mut().poll(cx)));
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
}
