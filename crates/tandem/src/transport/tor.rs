//! A Tor client as the way to the gateway: its control port tells the SOCKS port and finds gateways at exits.
//!
//! A gateway at an exit listens on an address that means nothing on the Internet (192.0.2.80:9980, RFC 5737) and is
//! announced by an exact line of the exit's policy. Tor does not compare addresses when it picks an exit, so a plain
//! SOCKS connect would go to a wrong one: instead the full descriptors are read once (`control`, `directory`), an exit with
//! that line is chosen by weight, and MAPADDRESS pins the address to it. Guard and middle stay Tor's own choice.

pub(crate) mod control;
pub(crate) mod directory;

use std::cell::RefCell;
use std::net::SocketAddr;

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
        Err(format!("exit={text:?} is neither \"auto\" nor a fingerprint of 40 hexadecimal digits"))
    }
}

/// What has been asked of the Tor client.
#[derive(Debug)]
struct Prepared {
    socks: SocketAddr,
    /// A name of ours that leads to the gateway at its exit. It means nothing to a Tor client that has forgotten it (by
    /// a restart): then dialling it fails, and no wrong exit is ever asked for the gateway's address.
    name: Option<String>,
}

/// Dials through a Tor client.
#[derive(Debug)]
pub struct Tor {
    control: Via,
    password: Option<String>,
    exit: Option<Exit>,
    options: SocketOptions,
    ready: RefCell<std::rc::Rc<OnceCell<Prepared>>>,
    /// Exits that failed; tried again only when no other is left.
    failed: RefCell<Vec<String>>,
    chosen: RefCell<Option<String>>,
}

impl Tor {
    /// A way through the Tor client whose control port or socket is `control`. `exit`: the target is a gateway at an exit.
    pub fn new(control: Via, password: Option<String>, exit: Option<Exit>, options: SocketOptions) -> Self {
        Self {
            control,
            password,
            exit,
            options,
            ready: RefCell::default(),
            failed: RefCell::default(),
            chosen: RefCell::default(),
        }
    }

    /// Asks for the SOCKS port and pins the gateway's address to an exit.
    async fn prepare(&self, target: &Target) -> Result<Prepared, Error> {
        let mut control = Control::connect(&self.control, self.password.as_deref()).await?;
        let socks = control.socks_port().await?;
        let Some(exit) = self.exit.clone() else { return Ok(Prepared { socks, name: None }) };
        let (host, port, patience) = (target.host.clone(), target.port, self.options.connect_timeout);
        // In a task of its own: it goes on when whoever dials gives up, so that Tor's settings are as before in the end.
        let asking = tokio::task::spawn_local(async move {
            let found = match exit {
                Exit::Auto => control.gateways(&host, port, patience).await?,
                Exit::Fingerprint(fingerprint) => {
                    control.descriptor(&fingerprint, &host, port, patience).await?;
                    vec![GatewayExit { fingerprint, ..GatewayExit::default() }]
                }
            };
            Ok((control, found))
        });
        let ended = |_| Error::new(Kind::Internal, Side::Local, "the talk with Tor's control port broke off");
        let (mut control, found) = asking.await.map_err(ended)??;
        let fingerprint = self.choose(&found)?;
        let name = format!("{:016x}{:016x}.invalid", random(), random());
        control.map_to_exit(&name, &target.host, &fingerprint).await?;
        *self.chosen.borrow_mut() = Some(fingerprint);
        let name = Some(name);
        Ok(Prepared { socks, name })
    }

    /// By weight among those that have not failed.
    fn choose(&self, found: &[GatewayExit]) -> Result<String, Error> {
        if found.is_empty() {
            return Err(unreachable("no exit announces a gateway at that address"));
        }
        let mut failed = self.failed.borrow_mut();
        let fresh: Vec<_> = found.iter().filter(|exit| !failed.contains(&exit.fingerprint)).collect();
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
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

fn unreachable(detail: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(Kind::Unreachable, Side::Peer, detail).with_retry(Retry::Safe)
}

impl Transport for Tor {
    fn dial<'a>(&'a self, target: &'a Target, isolation: &'a Isolation) -> LocalBoxFuture<'a, Result<Path, Error>> {
        Box::pin(async move {
            let cell = std::rc::Rc::clone(&self.ready.borrow());
            let prepared = cell.get_or_try_init(|| self.prepare(target)).await?;
            let socks = Socks { proxy: prepared.socks, options: self.options.clone() };
            match &prepared.name {
                None => socks.dial(target, isolation).await,
                Some(name) => socks.dial(&Target { host: name.clone(), port: target.port }, isolation).await,
            }
        })
    }

    fn failed(&self) {
        // An exit of the user's own choice is not exchanged for another, but the Tor client may have been started anew.
        if let (Some(chosen), Some(Exit::Auto)) = (self.chosen.borrow_mut().take(), &self.exit) {
            self.failed.borrow_mut().push(chosen);
        }
        *self.ready.borrow_mut() = std::rc::Rc::default();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn reads_exits() {
        assert_eq!("auto".parse(), Ok(Exit::Auto));
        assert!("$0001020304050607080910111213141516171819".parse::<Exit>().is_ok());
        assert!("home".parse::<Exit>().is_err());
    }

    const FINGERPRINT: &str = "000102030405060708090A0B0C0D0E0F10111213";

    /// A Tor client as its control port shows it: it starts with microdescriptors and in its own time.
    #[derive(Clone, Debug)]
    struct Double {
        /// Questions for the consensus before there is one.
        starting: u32,
        /// Seconds that it claims to run.
        uptime: u64,
        /// Questions for full descriptors, once it fetches them, before they are there.
        arriving: u32,
        /// Times that full descriptors are fetched before the exit announces a gateway.
        announced_after: u32,
        fetched: u32,
        /// Questions for the setting before another program puts it back.
        others_end: u32,
        microdescriptors: &'static str,
        has_descriptor: bool,
        mapped: Vec<String>,
    }

    impl Double {
        const fn new() -> Self {
            Self {
                starting: 0,
                uptime: 3600,
                arriving: 0,
                announced_after: 0,
                fetched: 0,
                others_end: 0,
                microdescriptors: "auto",
                has_descriptor: false,
                mapped: Vec::new(),
            }
        }

        fn descriptor(&self) -> String {
            let policy = if self.fetched >= self.announced_after { "accept 192.0.2.80:9980" } else { "accept *:80" };
            format!(
                "router one 198.18.1.1 5001 0 0\nfingerprint 0001 0203 0405 0607 0809 0A0B 0C0D 0E0F 1011 1213\n{policy}\nreject *:*\n"
            )
        }

        /// Whether full descriptors are there, once they are asked for often enough.
        fn arrive(&mut self) -> bool {
            if self.microdescriptors == "0" && !self.has_descriptor {
                if self.arriving > 0 {
                    self.arriving -= 1;
                } else {
                    self.has_descriptor = true;
                }
            }
            self.has_descriptor
        }

        fn answer(&mut self, command: &str, socks: SocketAddr) -> String {
            let data = |key: &str, text: &str| format!("250+{key}=\r\n{}.\r\n250 OK\r\n", text.replace('\n', "\r\n"));
            let one = |key: &str, text: &str| format!("250-{key}={text}\r\n250 OK\r\n");
            match command {
                "PROTOCOLINFO 1" => "250-PROTOCOLINFO 1\r\n250-AUTH METHODS=NULL\r\n250 OK\r\n".into(),
                "AUTHENTICATE" => "250 OK\r\n".into(),
                "GETINFO net/listeners/socks" => one("net/listeners/socks", &format!("\"{socks}\"")),
                "GETINFO uptime" => one("uptime", &self.uptime.to_string()),
                "GETINFO status/bootstrap-phase" => {
                    one("status/bootstrap-phase", "NOTICE BOOTSTRAP PROGRESS=30 TAG=loading_status SUMMARY=\"x\"")
                }
                "GETINFO ns/all" if self.starting > 0 => {
                    self.starting -= 1;
                    "551 Internal error\r\n".into()
                }
                "GETINFO ns/all" => data(
                    "ns/all",
                    "r one AAECAwQFBgcICQoLDA0ODxAREhM x 2026-01-01 00:00:00 198.18.1.1 5001 0\ns Exit Running Valid\nw Bandwidth=700\n",
                ),
                "GETCONF UseMicrodescriptors" => {
                    self.others_end = self.others_end.saturating_sub(1);
                    if self.others_end == 1 {
                        self.microdescriptors = "auto";
                    }
                    format!("250 UseMicrodescriptors={}\r\n", self.microdescriptors)
                }
                "SETCONF UseMicrodescriptors=0" => {
                    assert_eq!(self.microdescriptors, "auto", "only one at a time");
                    (self.microdescriptors, self.has_descriptor) = ("0", false);
                    self.fetched += 1;
                    "250 OK\r\n".into()
                }
                "SETCONF UseMicrodescriptors=auto" => {
                    self.microdescriptors = "auto";
                    "250 OK\r\n".into()
                }
                "GETINFO desc/all-recent" => {
                    let text = if self.arrive() { self.descriptor() } else { String::new() };
                    data("desc/all-recent", &text)
                }
                _ if command == format!("GETINFO desc/id/{FINGERPRINT}") && self.arrive() => {
                    data(&format!("desc/id/{FINGERPRINT}"), &self.descriptor())
                }
                _ if command.starts_with("GETINFO desc/id/") => {
                    "551 We fetch microdescriptors, not router descriptors.\r\n".into()
                }
                _ if command.starts_with("MAPADDRESS ") => {
                    self.mapped.push(command.to_owned());
                    "250 OK\r\n".into()
                }
                other => panic!("the client asked {other:?}"),
            }
        }
    }

    /// Dials a gateway through the double as often as `dials` says, at once; gives what came of it and the double's end state.
    fn dial(double: Double, exit: &str, patience: Duration, dials: usize) -> (Vec<Result<(), Error>>, Double) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let control = TcpListener::bind("127.0.0.1:0").await.expect("listens");
            let socks = TcpListener::bind("127.0.0.1:0").await.expect("listens");
            let (address, to_socks) = (control.local_addr().expect("bound"), socks.local_addr().expect("bound"));
            let state = std::rc::Rc::new(RefCell::new(double));
            tokio::task::spawn_local(accept(control, to_socks, std::rc::Rc::clone(&state)));
            let options = SocketOptions { connect_timeout: patience, ..SocketOptions::default() };
            let target = std::rc::Rc::new(Target { host: "192.0.2.80".into(), port: 9980 });
            let dialling: Vec<_> = (0..dials)
                .map(|_| Tor::new(Via::TorPort(address), None, Some(exit.parse().expect("an exit")), options.clone()))
                .map(|tor| (tor, std::rc::Rc::clone(&target)))
                .map(|(tor, target)| {
                    tokio::task::spawn_local(async move { tor.dial(&target, &Isolation::none()).await.map(drop) })
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

    async fn accept(listener: TcpListener, socks: SocketAddr, state: std::rc::Rc<RefCell<Double>>) {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::task::spawn_local(converse(stream, socks, std::rc::Rc::clone(&state)));
        }
    }

    async fn converse(stream: TcpStream, socks: SocketAddr, state: std::rc::Rc<RefCell<Double>>) {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        while stream.read_line(&mut line).await.is_ok_and(|count| count > 0) {
            let answer = state.borrow_mut().answer(line.trim_end(), socks);
            if stream.get_mut().write_all(answer.as_bytes()).await.is_err() {
                return;
            }
            line.clear();
        }
    }

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn a_fingerprint_brings_its_descriptor() {
        let (results, end) = dial(Double { arriving: 3, ..Double::new() }, FINGERPRINT, PATIENCE, 1);
        assert_eq!(results, [Ok(())]);
        assert!(end.has_descriptor && end.microdescriptors == "auto" && end.fetched == 1, "{end:?}");
        assert!(end.mapped[0].ends_with(&format!("=192.0.2.80.{FINGERPRINT}.exit")), "{end:?}");
        let known = Double { has_descriptor: true, fetched: 1, ..Double::new() };
        let (results, end) = dial(known, FINGERPRINT, PATIENCE, 1);
        assert_eq!((results, end.fetched), (vec![Ok(())], 1), "what is there is not fetched again");
    }

    #[test]
    fn a_tor_that_starts_is_waited_for() {
        for exit in ["auto", FINGERPRINT] {
            let young = Double { starting: 4, arriving: 2, uptime: 5, announced_after: 3, ..Double::new() };
            let (results, end) = dial(young, exit, PATIENCE, 1);
            assert_eq!(results, [Ok(())]);
            assert_eq!((end.fetched, end.microdescriptors), (3, "auto"));
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        let soon = Duration::from_millis(60);
        let never = || Double { starting: u32::MAX, uptime: 5, ..Double::new() };
        let silent = || Double { announced_after: u32::MAX, ..Double::new() };
        let other = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        for (double, exit, part) in [
            (never(), "auto", "not started yet (30 % done)"),
            (never(), FINGERPRINT, "not started yet (30 % done)"),
            (silent(), "auto", "no exit announces a gateway at that address"),
            (silent(), FINGERPRINT, "announces no gateway at that address"),
            (Double::new(), other, "knows no running relay with that fingerprint"),
        ] {
            let (results, end) = dial(double, exit, soon, 1);
            let error = results[0].as_ref().expect_err("nothing to reach").to_string();
            assert!(error.contains(part), "{exit}: {error}");
            assert!(end.mapped.is_empty() && end.microdescriptors == "auto", "{end:?}");
        }
    }

    #[test]
    fn several_at_once_leave_the_users_setting() {
        let (results, end) = dial(Double { arriving: 5, ..Double::new() }, "auto", PATIENCE, 4);
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        assert_eq!((end.microdescriptors, end.mapped.len()), ("auto", 4));
    }

    #[test]
    fn settings_that_others_change_come_back_in_the_end() {
        // Another program has Tor fetch full descriptors, and ends before we do.
        let other = Double { microdescriptors: "0", arriving: 6, others_end: 3, ..Double::new() };
        let (results, end) = dial(other, FINGERPRINT, PATIENCE, 1);
        assert_eq!((results, end.microdescriptors, end.fetched), (vec![Ok(())], "auto", 1));
        // The user has it so.
        let (results, end) = dial(Double { microdescriptors: "0", ..Double::new() }, FINGERPRINT, PATIENCE, 1);
        assert_eq!((results, end.microdescriptors, end.fetched), (vec![Ok(())], "0", 0));
    }

    #[test]
    fn whoever_gives_up_leaves_the_users_setting() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let control = TcpListener::bind("127.0.0.1:0").await.expect("listens");
            let address = control.local_addr().expect("bound");
            let state = std::rc::Rc::new(RefCell::new(Double { arriving: 20, ..Double::new() }));
            tokio::task::spawn_local(accept(control, address, std::rc::Rc::clone(&state)));
            let tor = Tor::new(Via::TorPort(address), None, Some(Exit::Auto), SocketOptions::default());
            let target = Target { host: "192.0.2.80".into(), port: 9980 };
            let isolation = Isolation::none();
            {
                let mut dialling = tor.dial(&target, &isolation);
                while state.borrow().microdescriptors == "auto" {
                    let step = Duration::from_millis(1);
                    assert!(tokio::time::timeout(step, &mut dialling).await.is_err(), "it cannot be done yet");
                }
            }
            while state.borrow().microdescriptors != "auto" {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(state.borrow().has_descriptor && state.borrow().mapped.is_empty());
        });
    }
}
