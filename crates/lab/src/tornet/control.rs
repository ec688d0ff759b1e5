//! Asking a running `tor` through its control socket.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::TornetError;

/// Longest answer read.
const LONGEST: usize = 16 << 20;

/// A connection to a control socket without authentication.
#[derive(Debug)]
pub struct Control {
    reader: BufReader<UnixStream>,
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
            lines.push(rest[kind.len_utf8()..].to_owned());
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
