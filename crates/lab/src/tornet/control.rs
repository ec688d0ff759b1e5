//! Asking a running `tor` through its control socket.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::TornetError;

/// Longest answer read.
const LONGEST: usize = 16 << 20;

/// The longest wait for a new identity. Tor takes ten seconds between two.
const NEW_IDENTITY_LIMIT: Duration = Duration::from_secs(20);

/// The time between two looks at events.
const EVENT_PAUSE: Duration = Duration::from_millis(50);

/// A connection to a control socket without authentication.
#[derive(Debug)]
pub struct Control {
    reader: BufReader<UnixStream>,
    /// The events that came before the answers to commands.
    events: Vec<String>,
}

impl Control {
    /// Connects and authenticates.
    pub fn connect(socket: &Path) -> Result<Self, TornetError> {
        let action = format!("connect to {}", socket.display());
        let stream = UnixStream::connect(socket).map_err(TornetError::of(&action))?;
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .map_err(TornetError::of(&action))?;
        let mut control = Self {
            reader: BufReader::new(stream),
            events: Vec::new(),
        };
        control.ask("AUTHENTICATE")?;
        Ok(control)
    }

    /// Sends a command; gives the lines of its answer without codes, the data of data replies
    /// included.
    pub fn ask(&mut self, command: &str) -> Result<Vec<String>, TornetError> {
        let io = TornetError::of(format!("ask tor for {command}"));
        self.exchange(command)
            .map_err(io)?
            .map_err(TornetError::Control)
    }

    /// The value of one `GETINFO` key.
    pub fn info(&mut self, key: &str) -> Result<String, TornetError> {
        let lines = self.ask(&format!("GETINFO {key}"))?;
        let text = lines.join("\n");
        let value = text
            .strip_prefix(key)
            .and_then(|rest| rest.strip_prefix('='));
        let value = value.ok_or_else(|| TornetError::Control(format!("no {key} in {text:?}")))?;
        Ok(value
            .strip_suffix("\nOK")
            .unwrap_or(value)
            .trim_start_matches('\n')
            .to_owned())
    }

    /// Subscribes to events, such as `STREAM CIRC`.
    pub fn subscribe(&mut self, names: &str) -> Result<(), TornetError> {
        self.ask(&format!("SETEVENTS {names}")).map(drop)
    }

    /// Returns the lines of the events since the last call, without the code.
    pub fn events(&mut self) -> Result<Vec<String>, TornetError> {
        // The answer to any command comes after all earlier events.
        self.ask("GETINFO version")?;
        Ok(std::mem::take(&mut self.events))
    }

    /// Makes tor forget the descriptors of onion services, and use no earlier circuit for new
    /// streams. Returns once it has: tor delays the signal if the last one was within ten seconds.
    /// Other events of this connection end.
    pub fn new_identity(&mut self) -> Result<(), TornetError> {
        self.subscribe("SIGNAL")?;
        self.ask("SIGNAL NEWNYM")?;
        let until = Instant::now() + NEW_IDENTITY_LIMIT;
        while !self.events()?.iter().any(|event| event == "SIGNAL NEWNYM") {
            if Instant::now() > until {
                return Err(TornetError::Control("no new identity".into()));
            }
            thread::sleep(EVENT_PAUSE);
        }
        self.subscribe("")
    }

    /// Bootstrap progress in per cent.
    pub fn bootstrap(&mut self) -> Result<u8, TornetError> {
        let phase = self.info("status/bootstrap-phase")?;
        let progress = phase
            .split_whitespace()
            .find_map(|word| word.strip_prefix("PROGRESS="));
        progress
            .and_then(|n| n.parse().ok())
            .ok_or(TornetError::Control(phase))
    }

    fn exchange(&mut self, command: &str) -> std::io::Result<Result<Vec<String>, String>> {
        self.reader
            .get_mut()
            .write_all(format!("{command}\r\n").as_bytes())?;
        let mut lines = Vec::new();
        let mut size = 0;
        loop {
            let line = self.line(&mut size)?;
            let (code, rest) = line.split_at_checked(3).unwrap_or((&line, ""));
            let Some(kind) = rest.chars().next() else {
                return Ok(Err(line));
            };
            let text = rest[kind.len_utf8()..].to_owned();
            if code == "650" {
                self.events.push(text);
                continue;
            }
            lines.push(text);
            if kind == '+' {
                self.data(&mut lines, &mut size)?;
            } else if kind == ' ' {
                return Ok(if code.starts_with('2') {
                    Ok(lines)
                } else {
                    Err(line)
                });
            }
        }
    }

    /// The lines of a data reply, up to the single dot.
    fn data(&mut self, lines: &mut Vec<String>, size: &mut usize) -> std::io::Result<()> {
        loop {
            let line = self.line(size)?;
            if line == "." {
                return Ok(());
            }
            lines.push(line.strip_prefix('.').unwrap_or(&line).to_owned());
        }
    }

    fn line(&mut self, size: &mut usize) -> std::io::Result<String> {
        let mut line = String::new();
        *size += self.reader.read_line(&mut line)?;
        if line.is_empty() || *size > LONGEST {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scripted(script: &'static str) -> Control {
        let (ours, mut theirs) = UnixStream::pair().expect("socket pair");
        theirs
            .write_all(script.as_bytes())
            .expect("fits the buffer");
        // The reader keeps the other end open so that our commands can be written.
        std::mem::forget(theirs);
        Control {
            reader: BufReader::new(ours),
            events: Vec::new(),
        }
    }

    #[test]
    fn reads_single_values_and_data() {
        let mut control = scripted(
            "250-status/bootstrap-phase=NOTICE BOOTSTRAP PROGRESS=75 TAG=enough\r\n250 OK\r\n\
             250+ns/all=\r\nr auth1 x\r\n..dot\r\n.\r\n250 OK\r\n",
        );
        assert_eq!(control.bootstrap().expect("first answer"), 75);
        assert_eq!(
            control.info("ns/all").expect("second answer"),
            "r auth1 x\n.dot"
        );
    }

    #[test]
    fn events_are_read_before_an_answer() {
        let mut control = scripted(
            "650 STREAM 1 NEW 0 a.onion:80\r\n250-version=1\r\n650 CIRC 2 BUILT\r\n250 OK\r\n",
        );
        let events = control.events().expect("an answer");
        assert_eq!(events, ["STREAM 1 NEW 0 a.onion:80", "CIRC 2 BUILT"]);
    }

    #[test]
    fn new_identity_waits_for_the_delayed_signal() {
        let mut control = scripted(
            "250 OK\r\n250 OK\r\n250-version=1\r\n250 OK\r\n\
             650 SIGNAL NEWNYM\r\n250-version=1\r\n250 OK\r\n250 OK\r\n\
             250-next=7\r\n250 OK\r\n",
        );
        control.new_identity().expect("the event comes");
        assert_eq!(control.info("next").expect("all else is read"), "7");
    }

    #[test]
    fn errors_carry_tors_words() {
        let mut control = scripted("552 Unrecognized key \"nope\"\r\n");
        assert!(
            control
                .info("nope")
                .expect_err("refused")
                .to_string()
                .contains("Unrecognized key")
        );
        let mut control = scripted("no\r\n");
        control.ask("X").expect_err("not a reply");
    }
}
