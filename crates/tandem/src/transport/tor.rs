//! A Tor client as the way to the gateway: its control port tells the SOCKS port and finds gateways at exits.
//!
//! A gateway at an exit listens on an address that means nothing on the Internet (192.0.2.80:9980, RFC 5737) and is
//! announced by an exact line of the exit's policy. Tor does not compare addresses when it picks an exit, so a plain
//! SOCKS connect would go to a wrong one: instead the full descriptors are read once, an exit with that line is chosen
//! by weight, and MAPADDRESS pins the address to it. Guard and middle stay Tor's own choice. Control protocol:
//! <https://spec.torproject.org/control-spec>.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::OnceCell;

use super::socks::Socks;
use super::tcp::SocketOptions;
use super::{LocalBoxFuture, Target, Transport};
use crate::endpoint::Via;
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::Isolation;
use crate::path::Path;

/// How long full descriptors may take to arrive.
const DESCRIPTORS_TIMEOUT: Duration = Duration::from_secs(90);

/// Most bytes that one answer may have: all descriptors of the public network are about 30 MB.
const ANSWER_LIMIT: usize = 128 << 20;

/// Most bytes of one line: the single-line answers that are asked for are far shorter.
const LINE_LIMIT: u64 = 1 << 20;

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
        let mut name = None;
        if let Some(exit) = &self.exit {
            let fingerprint = match exit {
                Exit::Fingerprint(fingerprint) => fingerprint.clone(),
                Exit::Auto => {
                    let found = control.gateways(&target.host, target.port).await?;
                    self.choose(&found)?
                }
            };
            let ours = format!("{:016x}{:016x}.invalid", random(), random());
            control.map_to_exit(&ours, &target.host, &fingerprint).await?;
            *self.chosen.borrow_mut() = Some(fingerprint);
            name = Some(ours);
        }
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

/// An exit that announces a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayExit {
    /// 40 upper-case hexadecimal digits.
    pub fingerprint: String,
    /// The relay's name for itself.
    pub nickname: String,
    /// Its address.
    pub address: String,
    /// Its weight in the consensus, kB/s.
    pub bandwidth: u64,
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

/// An authenticated control connection.
pub struct Control {
    stream: BufReader<Box<dyn Stream>>,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Control")
    }
}

/// One line of an answer, with the data that follows it where there is any.
#[derive(Debug)]
struct Line {
    code: u16,
    text: String,
    data: Option<String>,
}

impl Control {
    /// Connects and authenticates with what the client accepts: nothing, its cookie, or the given password.
    pub async fn connect(via: &Via, password: Option<&str>) -> Result<Self, Error> {
        let io = |error: std::io::Error| unreachable(format!("Tor's control port: {error}"));
        let stream: Box<dyn Stream> = match via {
            Via::TorPort(address) => Box::new(tokio::net::TcpStream::connect(address).await.map_err(io)?),
            Via::TorSocket(path) => Box::new(tokio::net::UnixStream::connect(path).await.map_err(io)?),
            Via::Socks(_) => return Err(Error::new(Kind::Internal, Side::Local, "a SOCKS port is no control port")),
        };
        let mut control = Self { stream: BufReader::new(stream) };
        control.authenticate(password).await?;
        Ok(control)
    }

    async fn authenticate(&mut self, password: Option<&str>) -> Result<(), Error> {
        let info = self.ask("PROTOCOLINFO 1").await?;
        let auth = info.iter().find(|line| line.text.starts_with("AUTH ")).map_or("", |line| &line.text);
        let methods = auth.split("METHODS=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default();
        let has = |method: &str| methods.split(',').any(|m| m == method);
        let command = if has("NULL") {
            "AUTHENTICATE".into()
        } else if let (true, Some(password)) = (has("HASHEDPASSWORD"), password) {
            format!("AUTHENTICATE \"{}\"", password.replace('\\', "\\\\").replace('"', "\\\""))
        } else if has("COOKIE") {
            let file = auth.split("COOKIEFILE=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
            let cookie = std::fs::read(file).map_err(|error| {
                tracing::error!(file, %error, "cannot read Tor's cookie file");
                unreachable("Tor's cookie file cannot be read: the log names it")
            })?;
            let hex: String = cookie.iter().map(|b| format!("{b:02x}")).collect();
            format!("AUTHENTICATE {hex}")
        } else {
            return Err(unreachable("Tor's control port wants a password: give --tor-password-file"));
        };
        self.ask(&command).await.map(drop)
    }

    /// Sends a command and reads its answer; refusals are errors.
    async fn ask(&mut self, command: &str) -> Result<Vec<Line>, Error> {
        let io = |error: std::io::Error| unreachable(format!("Tor's control port: {error}"));
        self.stream.get_mut().write_all(format!("{command}\r\n").as_bytes()).await.map_err(io)?;
        self.stream.get_mut().flush().await.map_err(io)?;
        let mut lines = Vec::new();
        let mut budget = ANSWER_LIMIT;
        loop {
            let (line, last) = self.line(&mut budget).await?;
            // Events may come in between; nothing here asks for them.
            if line.code >= 600 {
                continue;
            }
            if line.code >= 400 {
                let verb = command.split(' ').next().unwrap_or_default();
                return Err(unreachable(format!("Tor refused {verb}: {} {}", line.code, line.text)));
            }
            lines.push(line);
            if last {
                return Ok(lines);
            }
        }
    }

    async fn text_line(&mut self, budget: &mut usize) -> Result<String, Error> {
        let mut bytes = Vec::new();
        let mut limited = tokio::io::AsyncReadExt::take(&mut self.stream, (*budget as u64).min(LINE_LIMIT));
        let io = |error: std::io::Error| unreachable(format!("Tor's control port: {error}"));
        tokio::time::timeout(Duration::from_secs(60), limited.read_until(b'\n', &mut bytes))
            .await
            .map_err(|_| unreachable("Tor's control port does not answer"))?
            .map_err(io)?;
        if !bytes.ends_with(b"\n") {
            return Err(unreachable("Tor closed its control port"));
        }
        *budget = budget.checked_sub(bytes.len()).ok_or_else(|| unreachable("Tor's answer is too long"))?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.trim_end_matches(['\r', '\n']).to_owned())
    }

    async fn line(&mut self, budget: &mut usize) -> Result<(Line, bool), Error> {
        let text = self.text_line(budget).await?;
        let code = text.get(..3).and_then(|code| code.parse().ok());
        let (Some(code), Some(separator)) = (code, text.as_bytes().get(3).copied()) else {
            return Err(unreachable("what answers is not Tor's control port"));
        };
        let rest = text.get(4..).unwrap_or_default().to_owned();
        let mut data = None;
        if separator == b'+' {
            let mut all = String::new();
            loop {
                let line = self.text_line(budget).await?;
                if line == "." {
                    break;
                }
                // RFC 821 section 4.5.2 dot stuffing.
                all.push_str(line.strip_prefix('.').unwrap_or(&line));
                all.push('\n');
            }
            data = Some(all);
        }
        Ok((Line { code, text: rest, data }, separator == b' '))
    }

    async fn info(&mut self, key: &str) -> Result<String, Error> {
        let lines = self.ask(&format!("GETINFO {key}")).await?;
        let prefix = format!("{key}=");
        let line = lines.into_iter().find(|line| line.text.starts_with(&prefix));
        let line = line.ok_or_else(|| unreachable(format!("Tor does not tell {key}")))?;
        Ok(line.data.unwrap_or_else(|| line.text[prefix.len()..].to_owned()))
    }

    /// The first SOCKS port over TCP.
    pub async fn socks_port(&mut self) -> Result<SocketAddr, Error> {
        let listeners = self.info("net/listeners/socks").await?;
        let port = listeners.split(' ').find_map(|listener| listener.trim_matches('"').parse().ok());
        port.ok_or_else(|| unreachable("the Tor client has no SOCKS port over TCP: set SocksPort"))
    }

    /// Exits that announce `host:port` with an exact line of their policy.
    pub async fn gateways(&mut self, host: &str, port: u16) -> Result<Vec<GatewayExit>, Error> {
        let address: Ipv4Addr =
            host.parse().map_err(|_| unreachable("a gateway at an exit has an IPv4 address such as 192.0.2.80"))?;
        let before = self.ask("GETCONF UseMicrodescriptors").await?;
        let before = before.first().map_or("UseMicrodescriptors", |line| line.text.as_str()).to_owned();
        // The consensus is told in the flavour in use: after the change it would have to be fetched first.
        let weights = parse_weights(&self.info("ns/all").await?);
        if weights.is_empty() {
            return Err(unreachable("Tor knows no relays yet: wait until it has started"));
        }
        self.ask("SETCONF UseMicrodescriptors=0").await?;
        let found = self.wait_for_descriptors(&weights, address, port).await;
        // Back to what the user had, whatever came of it.
        let restore = if before.contains('=') { format!("SETCONF {before}") } else { format!("RESETCONF {before}") };
        self.ask(&restore).await?;
        found
    }

    /// Full descriptors arrive over some seconds: asks until as many are there as relays, or no more come.
    async fn wait_for_descriptors(
        &mut self,
        weights: &HashMap<String, u64>,
        address: Ipv4Addr,
        port: u16,
    ) -> Result<Vec<GatewayExit>, Error> {
        let deadline = tokio::time::Instant::now() + DESCRIPTORS_TIMEOUT;
        let (mut last, mut still) = (0, 0);
        loop {
            let text = self.info("desc/all-recent").await.unwrap_or_default();
            let count = text.lines().filter(|line| line.starts_with("router ")).count();
            still = if count == last { still + 1 } else { 0 };
            last = count;
            let complete = count > 0 && (count >= weights.len() || still >= 12);
            if complete || tokio::time::Instant::now() >= deadline {
                return Ok(parse_gateways(&text, weights, address, port));
            }
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
    }

    /// Has `name` lead to `host` through the relay with this fingerprint.
    pub async fn map_to_exit(&mut self, name: &str, host: &str, fingerprint: &str) -> Result<(), Error> {
        self.ask(&format!("MAPADDRESS {name}={host}.{fingerprint}.exit")).await.map(drop)
    }
}

/// Running relays and their weights, by fingerprint, from a consensus (dir-spec section 3.4.1).
fn parse_weights(consensus: &str) -> HashMap<String, u64> {
    let mut weights = HashMap::new();
    let mut current: Option<String> = None;
    let mut running = false;
    for line in consensus.lines() {
        if let Some(rest) = line.strip_prefix("r ") {
            current = rest.split(' ').nth(1).and_then(decode_identity);
        } else if let Some(flags) = line.strip_prefix("s ") {
            running = flags.split(' ').any(|flag| flag == "Running");
            if let (true, Some(fingerprint)) = (running, &current) {
                weights.insert(fingerprint.clone(), 0);
            }
        } else if let (Some(rest), Some(fingerprint), true) = (line.strip_prefix("w Bandwidth="), &current, running) {
            let bandwidth = rest.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
            weights.insert(fingerprint.clone(), bandwidth);
        }
    }
    weights
}

/// The unpadded base64 of 20 bytes as hexadecimal digits.
fn decode_identity(text: &str) -> Option<String> {
    let value = |byte: u8| -> Option<u32> {
        Some(match byte {
            b'A'..=b'Z' => u32::from(byte - b'A'),
            b'a'..=b'z' => u32::from(byte - b'a') + 26,
            b'0'..=b'9' => u32::from(byte - b'0') + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        })
    };
    let mut hex = String::with_capacity(40);
    let (mut bits, mut held) = (0u32, 0);
    for byte in text.bytes() {
        bits = (bits << 6) | value(byte)?;
        held += 6;
        if held >= 8 {
            held -= 8;
            hex.push_str(&format!("{:02X}", (bits >> held) & 0xff));
            bits &= (1 << held) - 1;
        }
    }
    (hex.len() == 40).then_some(hex)
}

/// The gateways among router descriptors (dir-spec section 2.1.1).
fn parse_gateways(descriptors: &str, weights: &HashMap<String, u64>, address: Ipv4Addr, port: u16) -> Vec<GatewayExit> {
    let mut found = Vec::new();
    for descriptor in descriptors.split("\nrouter ").map(|d| d.strip_prefix("router ").unwrap_or(d)) {
        let mut names = descriptor.split(' ');
        let (Some(nickname), Some(relay_address)) = (names.next(), names.next()) else { continue };
        let fingerprint =
            descriptor.lines().find_map(|line| line.trim_start_matches("opt ").strip_prefix("fingerprint "));
        let Some(fingerprint) = fingerprint.map(|text| text.replace(' ', "")) else { continue };
        let Some(&bandwidth) = weights.get(&fingerprint) else { continue };
        if announces(descriptor, address, port) {
            found.push(GatewayExit {
                fingerprint,
                nickname: nickname.into(),
                address: relay_address.into(),
                bandwidth,
            });
        }
    }
    found
}

/// Whether the first policy line that covers the address is exactly the one that announces a gateway.
fn announces(descriptor: &str, address: Ipv4Addr, port: u16) -> bool {
    let exact = format!("accept {address}:{port}");
    for line in descriptor.lines() {
        let Some(pattern) = line.strip_prefix("accept ").or_else(|| line.strip_prefix("reject ")) else { continue };
        if line == exact {
            return true;
        }
        if covers(pattern, address, port) {
            return false;
        }
    }
    false
}

fn covers(pattern: &str, address: Ipv4Addr, port: u16) -> bool {
    let Some((net, ports)) = pattern.rsplit_once(':') else { return false };
    let ports_match = match ports.split_once('-') {
        _ if ports == "*" => true,
        Some((low, high)) => {
            low.parse().is_ok_and(|low: u16| low <= port) && high.parse().is_ok_and(|high: u16| port <= high)
        }
        None => ports.parse() == Ok(port),
    };
    let (base, bits) = net.split_once('/').unwrap_or((net, "32"));
    let net_matches = net == "*"
        || match (base.parse::<Ipv4Addr>(), bits.parse::<u32>()) {
            (Ok(base), Ok(bits)) if bits <= 32 => {
                let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
                (base.to_bits() & mask) == (address.to_bits() & mask)
            }
            _ => false,
        };
    ports_match && net_matches
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONSENSUS: &str = "r one AAECAwQFBgcICQoLDA0ODxAREhM x 2026-01-01 00:00:00 198.18.1.1 5001 0\ns Exit Running Valid\nw Bandwidth=700\n\
        r two //////////////////////////8 x 2026-01-01 00:00:00 198.18.2.1 5001 0\ns Valid\nw Bandwidth=9\n";

    fn descriptor(policy: &str) -> String {
        format!(
            "router one 198.18.1.1 5001 0 0\nfingerprint 0001 0203 0405 0607 0809 0A0B 0C0D 0E0F 1011 1213\n{policy}\n"
        )
    }

    #[test]
    fn finds_the_exact_line_only() {
        let weights = parse_weights(CONSENSUS);
        assert_eq!(weights.len(), 1);
        let address = Ipv4Addr::new(192, 0, 2, 80);
        let find = |policy: &str| parse_gateways(&descriptor(policy), &weights, address, 9980);
        let found = find("accept 192.0.2.80:9980\nreject *:*");
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].bandwidth, found[0].nickname.as_str()), (700, "one"));
        assert!(find("reject 192.0.2.0/24:*\naccept 192.0.2.80:9980").is_empty());
        assert!(find("accept *:9980\nreject *:*").is_empty());
        assert_eq!(find("reject 10.0.0.0/8:*\nreject *:25\naccept 192.0.2.80:9980").len(), 1);
    }

    #[test]
    fn reads_exits() {
        assert_eq!("auto".parse(), Ok(Exit::Auto));
        assert!("$0001020304050607080910111213141516171819".parse::<Exit>().is_ok());
        assert!("home".parse::<Exit>().is_err());
    }

    proptest::proptest! {
        #[test]
        fn whatever_tor_says_is_read_without_panic(
            consensus in "((r|s|w|x) [A-Za-z0-9+/=: ]{0,60}\n){0,12}",
            descriptors in "((router|fingerprint|accept|reject|opt) [A-Fa-z0-9.:*/ -]{0,50}\n){0,12}",
            port: u16,
        ) {
            let weights = parse_weights(&consensus);
            parse_gateways(&descriptors, &weights, Ipv4Addr::new(192, 0, 2, 80), port);
        }
    }
}
