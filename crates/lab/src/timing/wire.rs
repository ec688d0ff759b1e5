//! The protocol of timing client and server: a line each, then stamps.
//!
//! ```text
//!   "tandem-timing MODE\n" ─▶
//!                          ◀─ "ok CLOCK\n", or "error WHY\n" and the end
//!   download               ◀─ blocks, without end
//!   upload     blocks ─▶   ◀─ reports, ten a second
//!   echo       stamps ─▶   ◀─ each with the server's own
//! ```
//!
//! A stamp is the time since 1970 in nanoseconds, 8 bytes, most significant first. A block begins
//! with a stamp. CLOCK names the boot of the server's kernel. If the client has the same name, both
//! use one clock, and one-way delays are valid.

use std::time::{Duration, SystemTime};

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};

/// Bytes of a block.
pub const BLOCK: usize = 16 << 10;

/// Bytes of a stamp.
pub const STAMP: usize = 8;

/// Bytes of an echo: the stamp and the server's time; of a report: bytes so far and the last
/// block's age.
pub const PAIR: usize = 2 * STAMP;

/// Time between two reports.
pub const REPORT_EVERY: Duration = Duration::from_millis(100);

/// Bytes of either line.
pub const MAX_LINE: usize = 128;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The server sends blocks.
    Download,
    /// The client does.
    Upload,
    /// Stamps come back.
    Echo,
}

impl Mode {
    /// Returns the text form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Download => "download",
            Self::Upload => "upload",
            Self::Echo => "echo",
        }
    }

    /// The client's line.
    pub fn request(self) -> String {
        format!("tandem-timing {}\n", self.as_str())
    }

    /// Reads the client's line; the error is for the client's eyes.
    pub fn of_request(line: &[u8]) -> Result<Self, &'static str> {
        let line = line
            .strip_suffix(b"\n")
            .ok_or("a request is one short line")?;
        let mode = line
            .strip_prefix(b"tandem-timing ")
            .ok_or("this is a timing server")?;
        let modes = [Self::Download, Self::Upload, Self::Echo];
        modes
            .into_iter()
            .find(|known| known.as_str().as_bytes() == mode)
            .ok_or("no such mode")
    }
}

/// The server's line.
pub fn reply(accepted: Result<Mode, &str>) -> String {
    match accepted {
        Ok(_) => format!("ok {}\n", clock()),
        Err(why) => format!("error {why}\n"),
    }
}

/// Reads the server's line: the name of its clock.
pub fn of_reply(line: &[u8]) -> Result<String, String> {
    let text = String::from_utf8_lossy(line);
    match text.trim_end().split_once(' ') {
        Some(("ok", clock)) if line.ends_with(b"\n") => Ok(clock.to_owned()),
        Some(("error", why)) => Err(why.to_owned()),
        _ => Err("is no timing server".to_owned()),
    }
}

/// Returns the name of this clock: the boot of this machine's kernel.
pub fn clock() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    // Without a boot id, the name is unique to this process.
    if boot.trim().is_empty() {
        format!("process-{}", std::process::id())
    } else {
        boot.trim().to_owned()
    }
}

/// Returns the current time as a stamp.
pub fn now() -> u64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads a line of at most [`MAX_LINE`] bytes, including its end if there is one.
pub async fn read_line<R: AsyncRead + Unpin>(from: &mut BufReader<R>) -> std::io::Result<Vec<u8>> {
    let mut line = Vec::new();
    from.take(MAX_LINE as u64)
        .read_until(b'\n', &mut line)
        .await?;
    Ok(line)
}

/// Finds the stamps at the beginnings of blocks in bytes that are cut anywhere.
#[derive(Debug, Default)]
pub struct Blocks {
    /// Bytes of the current block that have come.
    at: usize,
    stamp: [u8; STAMP],
}

impl Blocks {
    /// Takes bytes, and passes on each stamp that they complete.
    pub fn take(&mut self, mut bytes: &[u8], mut tell: impl FnMut(u64)) {
        while !bytes.is_empty() {
            if self.at < STAMP {
                let piece = bytes.len().min(STAMP - self.at);
                self.stamp[self.at..self.at + piece].copy_from_slice(&bytes[..piece]);
                self.at += piece;
                bytes = &bytes[piece..];
                if self.at == STAMP {
                    tell(u64::from_be_bytes(self.stamp));
                }
            } else {
                let piece = bytes.len().min(BLOCK - self.at);
                bytes = &bytes[piece..];
                self.at = (self.at + piece) % BLOCK;
            }
        }
    }
}

/// A block without a stamp yet: the same bytes each time, and no food for a compressor.
pub fn new_block() -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(BLOCK).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_back_and_others_refused() {
        for mode in [Mode::Download, Mode::Upload, Mode::Echo] {
            assert_eq!(Mode::of_request(mode.request().as_bytes()), Ok(mode));
        }
        for bad in [
            "",
            "\n",
            "tandem-timing echo",
            "tandem-timing\n",
            "tandem-timing  echo\n",
            "GET / HTTP/1.1\r\n",
        ] {
            assert!(Mode::of_request(bad.as_bytes()).is_err(), "{bad:?}");
        }
        assert_eq!(of_reply(reply(Ok(Mode::Echo)).as_bytes()), Ok(clock()));
        assert_eq!(
            of_reply(reply(Err("no such mode")).as_bytes()),
            Err("no such mode".into())
        );
        for bad in [
            &b"ok x"[..],
            b"",
            b"\xff\n",
            b"HTTP/1.1 400 Bad Request\r\n",
        ] {
            assert_eq!(of_reply(bad), Err("is no timing server".into()));
        }
    }

    #[test]
    fn stamps_are_found_however_blocks_are_cut() {
        let mut bytes = Vec::new();
        for stamp in 1..=5_u64 {
            let mut block = new_block();
            block[..STAMP].copy_from_slice(&stamp.to_be_bytes());
            bytes.extend(block);
        }
        for size in [1, 3, 7, STAMP, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK] {
            let (mut blocks, mut found) = (Blocks::default(), Vec::new());
            bytes
                .chunks(size)
                .for_each(|piece| blocks.take(piece, |stamp| found.push(stamp)));
            assert_eq!(found, [1, 2, 3, 4, 5], "{size}");
        }
    }
}
