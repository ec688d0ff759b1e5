//! Tor's control port: the connection, its authentication, commands, replies and events.
//! [`descriptors`] and [`circuits`] hold the commands of those subjects.
//! <https://spec.torproject.org/control-spec>.

mod circuits;
mod descriptors;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};

use super::cookie::Proof;
use super::unreachable;
use crate::endpoint::Via;
use crate::error::{Error, Kind, Side};
use descriptors::Before;

/// The most bytes of one reply. All descriptors of the public network are about 30 MB.
const ANSWER_LIMIT: usize = 128 << 20;

/// The most bytes of one line. The expected single-line replies are far shorter.
const LINE_LIMIT: u64 = 1 << 20;

/// The byte stream of a control connection.
pub(crate) trait ControlStream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> ControlStream for T {}

/// An authenticated control connection.
pub struct Control {
    stream: BufReader<Box<dyn ControlStream>>,
    /// The setting to restore when the connection is dropped.
    before: Before,
    /// The beginning of a line that has not fully arrived.
    partial: Vec<u8>,
    /// The circuit that is watched, and whether an event of it has come.
    watched: Option<String>,
    has_changed: bool,
}

/// Restores the setting if the wait for descriptors is dropped, for example at the end of the
/// program.
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

/// The events that a connection subscribes to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Events {
    /// No events.
    None,
    /// Changes of circuits.
    Circuits,
    /// Changes of circuits and streams.
    CircuitsAndStreams,
}

impl Events {
    const fn command(self) -> &'static str {
        match self {
            Self::None => "SETEVENTS",
            Self::Circuits => "SETEVENTS CIRC",
            Self::CircuitsAndStreams => "SETEVENTS CIRC STREAM",
        }
    }
}

/// A line of a reply, with the data that follows it.
#[derive(Debug)]
struct ReplyLine {
    code: u16,
    text: String,
    data: Option<String>,
}

/// Returns the value of `key` in a reply to `GETINFO`. A refusal has none.
fn value(lines: Vec<ReplyLine>, key: &str) -> Option<String> {
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
    /// Connects and authenticates by a method that the Tor client accepts: none, the given
    /// password, or a proof of its cookie.
    pub async fn connect(via: &Via, password: Option<&str>) -> Result<Self, Error> {
        let io = |error: std::io::Error| {
            let detail = Error::io(&error, Side::Via).detail;
            let remedy = match error.kind() {
                ErrorKind::ConnectionRefused | ErrorKind::NotFound => {
                    ": let torrc have `ControlPort 9051` and `CookieAuthentication 1`"
                }
                ErrorKind::PermissionDenied => {
                    ": add the user to the socket's group (debian-tor on Debian)"
                }
                _ => "",
            };
            unreachable(format!("Tor's control port: {detail}{remedy}"))
                .at(Side::Via)
                .with_address(via)
        };
        let stream: Box<dyn ControlStream> = match via {
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

    /// Creates the connection over a stream that needs no authentication, or is authenticated.
    pub(crate) fn over(stream: Box<dyn ControlStream>) -> Self {
        Self {
            stream: BufReader::new(stream),
            before: Before::default(),
            partial: Vec::new(),
            watched: None,
            has_changed: false,
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
            // The cookie itself is never sent. Tor has supported this proof since 2012, and a thief
            // would offer only the method that reveals the cookie.
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

    /// Sends a command and reads its reply. Refusals are errors.
    async fn ask(&mut self, command: &str) -> Result<Vec<ReplyLine>, Error> {
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

    /// Sends a command and reads its reply, even if it is a refusal.
    async fn reply(&mut self, command: &str) -> Result<Vec<ReplyLine>, Error> {
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
            if line.code >= 600 {
                self.note_event(&line.text);
                continue;
            }
            lines.push(line);
            if last {
                return Ok(lines);
            }
        }
    }

    async fn text_line(&mut self, budget: &mut usize) -> Result<String, Error> {
        let mut bytes = std::mem::take(&mut self.partial);
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

    async fn line(&mut self, budget: &mut usize) -> Result<(ReplyLine, bool), Error> {
        let text = self.text_line(budget).await?;
        let code = text.get(..3).and_then(|code| code.parse().ok());
        let (Some(code), Some(separator)) = (code, text.as_bytes().get(3).copied()) else {
            return Err(unreachable(
                "the server at this address is not Tor's control port",
            ));
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
            ReplyLine {
                code,
                text: rest,
                data,
            },
            separator == b' ',
        ))
    }

    /// Subscribes to events instead of the earlier ones. A Tor client that refuses sends none.
    pub(crate) async fn subscribe(&mut self, events: Events) -> Result<(), Error> {
        self.reply(events.command()).await.map(drop)
    }

    /// Sets the circuit that [`Control::changed`] waits for.
    fn watch(&mut self, circuit: Option<String>) {
        (self.watched, self.has_changed) = (circuit, false);
    }

    /// Notes an event of the watched circuit: `CIRC ID ...`, or `STREAM STREAM-ID STATUS ID ...`
    /// (control-spec sections 4.1.1 and 4.1.2).
    fn note_event(&mut self, text: &str) {
        let mut words = text.split(' ');
        let circuit = match words.next() {
            Some("CIRC") => words.next(),
            Some("STREAM") => words.nth(2),
            _ => None,
        };
        self.has_changed |= circuit.is_some() && circuit == self.watched.as_deref();
    }

    /// Waits for an event of the watched circuit that has not been reported. The future can be
    /// dropped without loss of an event.
    pub(crate) async fn changed(&mut self) -> Result<(), Error> {
        let io = |error: std::io::Error| unreachable(format!("Tor's control port: {error}"));
        while !std::mem::take(&mut self.has_changed) {
            let bytes = self.stream.fill_buf().await.map_err(io)?;
            if bytes.is_empty() {
                return Err(unreachable("Tor closed its control port"));
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let count = end.map_or(bytes.len(), |end| end + 1);
            self.partial.extend_from_slice(&bytes[..count]);
            self.stream.consume(count);
            if self.partial.len() as u64 > LINE_LIMIT {
                return Err(unreachable("Tor's answer is too long"));
            }
            if end.is_some() {
                let line = std::mem::take(&mut self.partial);
                let text = String::from_utf8_lossy(&line);
                self.note_event(text.get(4..).unwrap_or_default().trim_end());
            }
        }
        Ok(())
    }

    async fn info(&mut self, key: &str) -> Result<String, Error> {
        let lines = self.ask(&format!("GETINFO {key}")).await?;
        value(lines, key).ok_or_else(|| unreachable(format!("Tor does not tell {key}")))
    }

    /// Reads a value, or returns `None` if Tor does not know it.
    pub(crate) async fn info_if_known(&mut self, key: &str) -> Result<Option<String>, Error> {
        Ok(value(self.reply(&format!("GETINFO {key}")).await?, key))
    }

    /// Returns the first SOCKS port over TCP.
    pub async fn socks_port(&mut self) -> Result<SocketAddr, Error> {
        let listeners = self.info("net/listeners/socks").await?;
        let port = listeners
            .split(' ')
            .find_map(|listener| listener.trim_matches('"').parse().ok());
        port.ok_or_else(|| unreachable("the Tor client has no SOCKS port over TCP: set SocksPort"))
    }

    /// Maps `name` to `host` through the relay with this fingerprint.
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

    /// Sends a last command without waiting. It is short enough for the socket's buffer.
    fn send_without_answer(&mut self, command: &str) {
        let _ = Pin::new(self.stream.get_mut())
            .poll_write(&mut Context::from_waker(Waker::noop()), command.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the commands sent to a control port that offers `methods` and names `file`.
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
    async fn missing_control_port_has_a_remedy() {
        let folder = std::env::temp_dir().join(format!("tandem-no-tor-{}", std::process::id()));
        let error = Control::connect(&Via::TorSocket(folder.join("control")), None).await;
        let words = error.expect_err("no Tor").detail;
        assert!(words.contains("`CookieAuthentication 1`"), "{words}");
    }

    #[tokio::test]
    async fn cookie_file_is_never_sent_to_the_control_port() {
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

    fn is_pending(control: &mut Control) -> bool {
        let changed = std::pin::pin!(control.changed());
        let mut cx = Context::from_waker(Waker::noop());
        changed.poll(&mut cx).is_pending()
    }

    #[tokio::test]
    async fn events_of_the_watched_circuit_end_the_wait() {
        let (near, mut far) = tokio::io::duplex(4096);
        let mut control = Control::over(Box::new(near));
        control.watch(Some("17".into()));
        let others = b"650 CIRC 16 BUILT\r\n650 STREAM 17 NEW 0 a:80\r\n650 STREAM 3 SUC";
        far.write_all(others).await.unwrap();
        assert!(is_pending(&mut control), "the line is not whole");
        far.write_all(b"CEEDED 17 a:80\r\n").await.unwrap();
        control.changed().await.unwrap();
        // An event between a command and its answer is reported later.
        far.write_all(b"650 CIRC 17 CLOSED\r\n250 OK\r\n650 CIR")
            .await
            .unwrap();
        control.subscribe(Events::Circuits).await.unwrap();
        control.changed().await.unwrap();
        assert!(is_pending(&mut control), "each event is reported once");
        far.write_all(b"C 17 BUILT\r\n250 uptime=1\r\n")
            .await
            .unwrap();
        assert_eq!(control.info("uptime").await.unwrap(), "1");
        drop(far);
        control.changed().await.unwrap();
        assert!(control.changed().await.is_err(), "the port has closed");
    }
}
