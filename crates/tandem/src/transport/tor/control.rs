//! Tor's control port: asking, having full descriptors fetched, and circuits.
//! <https://spec.torproject.org/control-spec>.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::Instant;

use super::circuits::{self, Circuit, Relay, StreamState, parse_circuits, parse_relay};
use super::cookie::Proof;
use super::directory::{GatewayExit, announces, parse_gateways, parse_weights};
use super::unreachable;
use crate::endpoint::Via;
use crate::error::{Error, Kind, Side};

/// How long full descriptors may take to arrive.
const DESCRIPTORS_TIMEOUT: Duration = Duration::from_secs(90);

/// The setting with which Tor fetches full descriptors.
const FULL: &str = "UseMicrodescriptors=0";

/// Between two looks at what has arrived.
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 5 } else { 400 });

/// Looks without anything new after which nothing more is expected.
const STILL: u32 = 12;

/// Seconds after its start in which a Tor client may not know all of its network yet.
const YOUNG: u64 = 180;

/// Most bytes that one answer may have: all descriptors of the public network are about 30 MB.
const ANSWER_LIMIT: usize = 128 << 20;

/// Most bytes of one line: the single-line answers that are asked for are far shorter.
const LINE_LIMIT: u64 = 1 << 20;

/// What a control connection runs over.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

/// An authenticated control connection.
pub struct Control {
    stream: BufReader<Box<dyn Stream>>,
    /// What is to be put back when nothing can be waited for any more.
    before: Before,
}

/// Whoever waited for descriptors has gone, as when the program ends: Tor is not left to fetch them
/// for ever.
impl Drop for Control {
    fn drop(&mut self) {
        if let Some(command) = std::mem::take(&mut self.before).command() {
            self.send_without_answer(&format!("{command}\r\n"));
        }
    }
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

/// What `UseMicrodescriptors` was before it was changed, as Tor tells it.
#[derive(Default)]
struct Before(Option<String>);

impl Before {
    /// What puts it back, if it was changed.
    fn command(self) -> Option<String> {
        let before = self.0?;
        let verb = if before.contains('=') {
            "SETCONF"
        } else {
            "RESETCONF"
        };
        Some(format!("{verb} {before}"))
    }
}

/// Held by who changes which descriptors Tor fetches. Other processes may do the same at any time.
static FETCHING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn gateway_address(host: &str) -> Result<Ipv4Addr, Error> {
    host.parse()
        .map_err(|_| unreachable("a gateway at an exit has an IPv4 address such as 192.0.2.80"))
}

/// The value of `key` in an answer to `GETINFO`; a refusal has none.
fn value(lines: Vec<Line>, key: &str) -> Option<String> {
    let prefix = format!("{key}=");
    let line = lines
        .into_iter()
        .find(|line| line.code < 400 && line.text.starts_with(&prefix))?;
    Some(
        line.data
            .unwrap_or_else(|| line.text[prefix.len()..].to_owned()),
    )
}

impl Control {
    /// Connects and authenticates with what the client accepts: nothing, the given password, or a
    /// proof that its cookie is known.
    pub async fn connect(via: &Via, password: Option<&str>) -> Result<Self, Error> {
        let io = |error: std::io::Error| unreachable(format!("Tor's control port: {error}"));
        let stream: Box<dyn Stream> = match via {
            Via::TorPort(address) => {
                Box::new(tokio::net::TcpStream::connect(address).await.map_err(io)?)
            }
            Via::TorSocket(path) => {
                Box::new(tokio::net::UnixStream::connect(path).await.map_err(io)?)
            }
            Via::Socks(_) => {
                return Err(Error::new(
                    Kind::Internal,
                    Side::Local,
                    "a SOCKS port is no control port",
                ));
            }
        };
        let mut control = Self::over(stream);
        control.authenticate(password).await?;
        Ok(control)
    }

    /// A connection that needs no authentication, or had it.
    pub(crate) fn over(stream: Box<dyn Stream>) -> Self {
        Self {
            stream: BufReader::new(stream),
            before: Before::default(),
        }
    }

    async fn authenticate(&mut self, password: Option<&str>) -> Result<(), Error> {
        let info = self.ask("PROTOCOLINFO 1").await?;
        let auth = info
            .iter()
            .find(|line| line.text.starts_with("AUTH "))
            .map_or("", |line| &line.text);
        let methods = auth
            .split("METHODS=")
            .nth(1)
            .and_then(|rest| rest.split(' ').next())
            .unwrap_or_default();
        let has = |method: &str| methods.split(',').any(|m| m == method);
        let command = if has("NULL") {
            "AUTHENTICATE".into()
        } else if let (true, Some(password)) = (has("HASHEDPASSWORD"), password) {
            format!(
                "AUTHENTICATE \"{}\"",
                password.replace('\\', "\\\\").replace('"', "\\\"")
            )
        } else if has("SAFECOOKIE") {
            // Never the cookie itself: Tor has had this way since 2012, and a thief would offer
            // that one only.
            let file = auth
                .split("COOKIEFILE=\"")
                .nth(1)
                .and_then(|rest| rest.split('"').next())
                .unwrap_or_default();
            let proof = Proof::begin(file.as_ref())?;
            let answer = self.ask(&proof.challenge()).await?;
            proof.response(answer.first().map_or("", |line| &line.text))?
        } else {
            return Err(unreachable(
                "Tor's control port wants a password: give --tor-password-file",
            ));
        };
        self.ask(&command).await.map(drop)
    }

    /// Sends a command and reads its answer; refusals are errors.
    async fn ask(&mut self, command: &str) -> Result<Vec<Line>, Error> {
        let lines = self.reply(command).await?;
        match lines.iter().find(|line| line.code >= 400) {
            Some(line) => {
                let verb = command.split(' ').next().unwrap_or_default();
                Err(unreachable(format!(
                    "Tor refused {verb}: {} {}",
                    line.code, line.text
                )))
            }
            None => Ok(lines),
        }
    }

    /// Sends a command and reads its answer, whatever it is.
    async fn reply(&mut self, command: &str) -> Result<Vec<Line>, Error> {
        let io = |error: std::io::Error| unreachable(format!("Tor's control port: {error}"));
        self.stream
            .get_mut()
            .write_all(format!("{command}\r\n").as_bytes())
            .await
            .map_err(io)?;
        self.stream.get_mut().flush().await.map_err(io)?;
        let mut lines = Vec::new();
        let mut budget = ANSWER_LIMIT;
        loop {
            let (line, last) = self.line(&mut budget).await?;
            // Events may come in between; nothing here asks for them.
            if line.code >= 600 {
                continue;
            }
            lines.push(line);
            if last {
                return Ok(lines);
            }
        }
    }

    async fn text_line(&mut self, budget: &mut usize) -> Result<String, Error> {
        let mut bytes = Vec::new();
        let mut limited =
            tokio::io::AsyncReadExt::take(&mut self.stream, (*budget as u64).min(LINE_LIMIT));
        let io = |error: std::io::Error| unreachable(format!("Tor's control port: {error}"));
        tokio::time::timeout(
            Duration::from_secs(60),
            limited.read_until(b'\n', &mut bytes),
        )
        .await
        .map_err(|_| unreachable("Tor's control port does not answer"))?
        .map_err(io)?;
        if !bytes.ends_with(b"\n") {
            return Err(unreachable("Tor closed its control port"));
        }
        *budget = budget
            .checked_sub(bytes.len())
            .ok_or_else(|| unreachable("Tor's answer is too long"))?;
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
        Ok((
            Line {
                code,
                text: rest,
                data,
            },
            separator == b' ',
        ))
    }

    async fn info(&mut self, key: &str) -> Result<String, Error> {
        let lines = self.ask(&format!("GETINFO {key}")).await?;
        value(lines, key).ok_or_else(|| unreachable(format!("Tor does not tell {key}")))
    }

    /// The same, where Tor may well not know.
    pub(crate) async fn info_if_known(&mut self, key: &str) -> Result<Option<String>, Error> {
        Ok(value(self.reply(&format!("GETINFO {key}")).await?, key))
    }

    /// The first SOCKS port over TCP.
    pub async fn socks_port(&mut self) -> Result<SocketAddr, Error> {
        let listeners = self.info("net/listeners/socks").await?;
        let port = listeners
            .split(' ')
            .find_map(|listener| listener.trim_matches('"').parse().ok());
        port.ok_or_else(|| unreachable("the Tor client has no SOCKS port over TCP: set SocksPort"))
    }

    /// Exits that announce `host:port` with an exact line of their policy. A Tor client that has
    /// just started, and finds none, is asked again for as long as `patience`.
    pub async fn gateways(
        &mut self,
        host: &str,
        port: u16,
        patience: Duration,
    ) -> Result<Vec<GatewayExit>, Error> {
        let address = gateway_address(host)?;
        let _alone = FETCHING.lock().await;
        let deadline = Instant::now() + patience;
        loop {
            // The consensus is told in the flavour in use: after the change it would have to be
            // fetched first.
            let weights = self.relays(deadline).await?;
            let found = self.wait_for_descriptors(&weights, address, port).await;
            self.restore().await?;
            let found = found?;
            if !found.is_empty() || !self.may_improve(deadline).await? {
                return Ok(found);
            }
        }
    }

    /// Has Tor hold the full descriptor of the relay with this fingerprint, and checks that it
    /// announces `host:port`: by its microdescriptor alone, Tor would not use it for a port that
    /// few exits allow.
    pub async fn descriptor(
        &mut self,
        fingerprint: &str,
        host: &str,
        port: u16,
        patience: Duration,
    ) -> Result<(), Error> {
        let address = gateway_address(host)?;
        let _alone = FETCHING.lock().await;
        let deadline = Instant::now() + patience;
        loop {
            let mut known = self
                .info_if_known(&format!("desc/id/{fingerprint}"))
                .await?;
            let good = |text: &String| announces(text, address, port);
            let is_relay =
                known.is_some() || self.relays(deadline).await?.contains_key(fingerprint);
            if is_relay && !known.as_ref().is_some_and(good) {
                let fetched = self.wait_for_descriptor(fingerprint, good).await;
                self.restore().await?;
                known = fetched?;
            }
            let problem = match known {
                Some(text) if good(&text) => return Ok(()),
                Some(_) => "the exit with that fingerprint announces no gateway at that address",
                None if is_relay => {
                    "the descriptor of the exit with that fingerprint did not arrive in time"
                }
                None => "Tor knows no running relay with that fingerprint",
            };
            if !self.may_improve(deadline).await? {
                return Err(unreachable(problem));
            }
        }
    }

    /// Running relays and their weights, once Tor has a consensus.
    async fn relays(&mut self, deadline: Instant) -> Result<HashMap<String, u64>, Error> {
        loop {
            let weights = parse_weights(&self.info_if_known("ns/all").await?.unwrap_or_default());
            if !weights.is_empty() {
                return Ok(weights);
            }
            if Instant::now() >= deadline {
                let phase = self
                    .info_if_known("status/bootstrap-phase")
                    .await?
                    .unwrap_or_default();
                let percent = phase
                    .split(' ')
                    .find_map(|word| word.strip_prefix("PROGRESS=")?.parse::<u8>().ok());
                let progress = percent.map_or_else(String::new, |n| format!(" ({n} % done)"));
                return Err(unreachable(format!(
                    "Tor has not started yet{progress}: it knows no relays"
                )));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Whether it is worth asking again, after a pause: Tor has just started, and there is time.
    async fn may_improve(&mut self, deadline: Instant) -> Result<bool, Error> {
        let uptime = self
            .info_if_known("uptime")
            .await?
            .and_then(|seconds| seconds.parse().ok());
        let again =
            uptime.is_some_and(|seconds: u64| seconds < YOUNG) && Instant::now() + PAUSE < deadline;
        if again {
            tokio::time::sleep(PAUSE * 5).await;
        }
        Ok(again)
    }

    /// Has Tor fetch full descriptors, or still do: another program of ours may just have ended and
    /// put back what was. Where Tor fetches them already, whoever had it do so will see to it.
    async fn fetch_full(&mut self) -> Result<(), Error> {
        let now = self.ask("GETCONF UseMicrodescriptors").await?;
        let now = now
            .first()
            .map_or("UseMicrodescriptors", |line| line.text.as_str());
        if now == FULL {
            return Ok(());
        }
        self.before = Before(Some(now.to_owned()));
        self.ask(&format!("SETCONF {FULL}")).await.map(drop)
    }

    /// Back to what the user had, whatever came of it.
    async fn restore(&mut self) -> Result<(), Error> {
        let Some(command) = std::mem::take(&mut self.before).command() else {
            return Ok(());
        };
        self.ask(&command).await.map(drop)
    }

    /// One that is not `good` may be an old one, and a newer one on its way.
    async fn wait_for_descriptor(
        &mut self,
        fingerprint: &str,
        good: impl Fn(&String) -> bool,
    ) -> Result<Option<String>, Error> {
        let deadline = Instant::now() + DESCRIPTORS_TIMEOUT;
        let mut still = 0;
        loop {
            self.fetch_full().await?;
            let known = self
                .info_if_known(&format!("desc/id/{fingerprint}"))
                .await?;
            still += u32::from(known.is_some());
            if known.as_ref().is_some_and(&good) || still >= STILL || Instant::now() >= deadline {
                return Ok(known);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Full descriptors arrive over some seconds: asks until as many are there as relays, or no
    /// more come.
    async fn wait_for_descriptors(
        &mut self,
        weights: &HashMap<String, u64>,
        address: Ipv4Addr,
        port: u16,
    ) -> Result<Vec<GatewayExit>, Error> {
        let deadline = Instant::now() + DESCRIPTORS_TIMEOUT;
        let (mut last, mut still) = (0, 0);
        loop {
            self.fetch_full().await?;
            let text = self
                .info_if_known("desc/all-recent")
                .await?
                .unwrap_or_default();
            let count = text
                .lines()
                .filter(|line| line.starts_with("router "))
                .count();
            still = if count == last { still + 1 } else { 0 };
            last = count;
            let complete = count > 0 && (count >= weights.len() || still >= STILL);
            if complete || Instant::now() >= deadline {
                return Ok(parse_gateways(&text, weights, address, port));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Has `name` lead to `host` through the relay with this fingerprint.
    pub async fn map_to_exit(
        &mut self,
        name: &str,
        host: &str,
        fingerprint: &str,
    ) -> Result<(), Error> {
        self.ask(&format!("MAPADDRESS {name}={host}.{fingerprint}.exit"))
            .await
            .map(drop)
    }

    /// Circuits that this Tor client has begun and not closed.
    pub(crate) async fn circuits(&mut self) -> Result<Vec<Circuit>, Error> {
        Ok(parse_circuits(&self.info("circuit-status").await?))
    }

    /// What is known of a relay; nothing if that is not enough to say whom it may share a circuit
    /// with.
    pub(crate) async fn relay(&mut self, fingerprint: &str) -> Result<Option<Relay>, Error> {
        let Some(entry) = self.info_if_known(&format!("ns/id/{fingerprint}")).await? else {
            return Ok(None);
        };
        let mut description = self.info_if_known(&format!("md/id/{fingerprint}")).await?;
        if description.as_ref().is_none_or(String::is_empty) {
            description = self
                .info_if_known(&format!("desc/id/{fingerprint}"))
                .await?;
        }
        Ok(parse_relay(
            fingerprint,
            &entry,
            &description.unwrap_or_default(),
        ))
    }

    /// Whether relays of one circuit must be of different networks; `None` if none should be built.
    pub(crate) async fn distinct_subnets(&mut self) -> Result<Option<bool>, Error> {
        let lines = self
            .reply(&format!("GETCONF {}", circuits::SETTINGS))
            .await?;
        Ok(circuits::distinct_subnets(
            lines.iter().map(|line| line.text.as_str()),
        ))
    }

    /// Begins a circuit; gives Tor's number for it, nothing if Tor does not want to.
    pub(crate) async fn extend_circuit(
        &mut self,
        arguments: &str,
    ) -> Result<Option<String>, Error> {
        let lines = self.reply(&format!("EXTENDCIRCUIT {arguments}")).await?;
        let begun = lines
            .first()
            .filter(|line| line.code < 400)
            .and_then(|line| line.text.strip_prefix("EXTENDED "));
        Ok(begun.map(str::to_owned))
    }

    /// Lets streams use a circuit; whether it is still there.
    pub(crate) async fn make_general(&mut self, circuit: &str) -> Result<bool, Error> {
        let lines = self
            .reply(&format!("SETCIRCUITPURPOSE {circuit} purpose=general"))
            .await?;
        Ok(lines.iter().all(|line| line.code < 400))
    }

    /// How far the stream on this circuit has come, if there is one.
    pub(crate) async fn stream_on(&mut self, circuit: &str) -> Result<Option<StreamState>, Error> {
        Ok(circuits::stream_on(
            &self.info("stream-status").await?,
            circuit,
        ))
    }

    /// Closes a circuit, unless there are streams on it. One that is gone already is as good.
    pub(crate) async fn close_unused(&mut self, circuit: &str) -> Result<(), Error> {
        self.reply(&format!("CLOSECIRCUIT {circuit} IfUnused"))
            .await
            .map(drop)
    }

    /// The same as the last word on this connection, where nothing can be waited for.
    pub(crate) fn close_unused_without_answer(&mut self, circuit: &str) {
        self.send_without_answer(&format!("CLOSECIRCUIT {circuit} IfUnused\r\n"));
    }

    /// So few bytes fit into the socket's buffer; if not, nothing more can be done.
    fn send_without_answer(&mut self, command: &str) {
        let _ = Pin::new(self.stream.get_mut())
            .poll_write(&mut Context::from_waker(Waker::noop()), command.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said to a control port that offers `methods` and names `file`.
    async fn said(methods: &str, file: &std::path::Path) -> String {
        let (near, far) = tokio::io::duplex(4096);
        let offer = format!(
            "250-AUTH METHODS={methods} COOKIEFILE=\"{}\"\r\n250 OK\r\n250 AUTHCHALLENGE\r\n",
            file.display()
        );
        let (read, mut write) = tokio::io::split(far);
        write.write_all(offer.as_bytes()).await.unwrap();
        assert!(
            Control::over(Box::new(near))
                .authenticate(None)
                .await
                .is_err()
        );
        let mut said = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut BufReader::new(read), &mut said)
            .await
            .unwrap();
        said
    }

    #[tokio::test]
    async fn whoever_ends_in_the_middle_puts_back_what_was() {
        let (near, mut far) = tokio::io::duplex(4096);
        far.write_all(b"250 UseMicrodescriptors\r\n").await.unwrap();
        let mut control = Control::over(Box::new(near));
        let changing = tokio::time::timeout(PAUSE, control.fetch_full()).await;
        assert!(changing.is_err(), "there is no answer yet");
        drop(control);
        let mut said = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut far, &mut said)
            .await
            .unwrap();
        assert_eq!(
            said.lines().collect::<Vec<_>>(),
            [
                "GETCONF UseMicrodescriptors",
                "SETCONF UseMicrodescriptors=0",
                "RESETCONF UseMicrodescriptors"
            ]
        );
    }

    #[tokio::test]
    async fn no_file_that_a_control_port_names_is_sent_to_it() {
        let file = std::env::temp_dir().join(format!("tandem-secret-{}", std::process::id()));
        std::fs::write(&file, "a secret key of exactly 32 bytes").unwrap();
        let said = [
            said("COOKIE", &file).await,
            said("COOKIE,SAFECOOKIE", &file).await,
        ];
        std::fs::remove_file(&file).unwrap();
        assert_eq!(said[0], "PROTOCOLINFO 1\r\n");
        assert!(
            said[1].starts_with("PROTOCOLINFO 1\r\nAUTHCHALLENGE SAFECOOKIE "),
            "{}",
            said[1]
        );
        assert_eq!(said[1].lines().count(), 2, "{}", said[1]);
    }
}
