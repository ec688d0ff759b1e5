//! Packets written to a file as they pass a host's interface (pcap, nanoseconds, raw IP).
//!
//! A dedicated thread writes them, so that a slow disk never delays a packet. Packets that it
//! cannot take are counted.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const LINKTYPE_RAW: u32 = 101;
const SNAP_LENGTH: u32 = 65_535;
/// Packets that may wait for the disk.
const BACKLOG: usize = 16_384;

/// An open capture.
#[derive(Debug)]
pub struct Capture {
    sender: SyncSender<(Duration, Vec<u8>)>,
    writer: JoinHandle<io::Result<()>>,
    path: PathBuf,
    missed: u64,
}

impl Capture {
    /// Creates the file and starts its writer.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut file = BufWriter::with_capacity(1 << 18, File::create(path)?);
        write_header(&mut file)?;
        file.flush()?;
        let (sender, receiver) = sync_channel(BACKLOG);
        let writer = thread::Builder::new()
            .name("capture".into())
            .spawn(move || write_all(file, receiver))?;
        Ok(Self {
            sender,
            writer,
            path: path.into(),
            missed: 0,
        })
    }

    /// Adds a packet seen now.
    pub fn record(&mut self, packet: &[u8]) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        if self.sender.try_send((now, packet.to_vec())).is_err() {
            self.missed += 1;
        }
    }

    /// Writes the packets that still wait; packets missing from the file are an error.
    pub fn finish(self) -> io::Result<()> {
        drop(self.sender);
        let result = self
            .writer
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("its writer panicked")));
        let missed = self.missed;
        let complete = if missed == 0 {
            Ok(())
        } else {
            Err(io::Error::other(format!("{missed} packets are missing")))
        };
        result
            .and(complete)
            .map_err(|e| io::Error::new(e.kind(), format!("capture {}: {e}", self.path.display())))
    }
}

fn write_all(mut file: BufWriter<File>, packets: Receiver<(Duration, Vec<u8>)>) -> io::Result<()> {
    for (time, packet) in packets {
        write_packet(&mut file, time, &packet)?;
    }
    file.flush()
}

fn write_header(out: &mut impl Write) -> io::Result<()> {
    out.write_all(&MAGIC_NANOSECONDS.to_ne_bytes())?;
    out.write_all(&2u16.to_ne_bytes())?;
    out.write_all(&4u16.to_ne_bytes())?;
    out.write_all(&[0; 8])?;
    out.write_all(&SNAP_LENGTH.to_ne_bytes())?;
    out.write_all(&LINKTYPE_RAW.to_ne_bytes())
}

fn write_packet(out: &mut impl Write, time: Duration, packet: &[u8]) -> io::Result<()> {
    let len = packet.len() as u32;
    for field in [time.as_secs() as u32, time.subsec_nanos(), len, len] {
        out.write_all(&field.to_ne_bytes())?;
    }
    out.write_all(packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_header_and_every_packet() {
        let path = std::env::temp_dir().join(format!("tandem-capture-{}", std::process::id()));
        let mut capture = Capture::create(&path).expect("temporary file");
        capture.record(&[0x45, 1, 2]);
        capture.record(&[0x45; 20]);
        capture.finish().expect("both written");
        let bytes = std::fs::read(&path).expect("written");
        std::fs::remove_file(&path).expect("ours");
        assert_eq!(bytes.len(), 24 + 16 + 3 + 16 + 20);
        assert_eq!(bytes[..4], MAGIC_NANOSECONDS.to_ne_bytes());
        assert_eq!(bytes[24 + 8..24 + 12], 3u32.to_ne_bytes());
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let mut capture = Capture::create(Path::new("/dev/full")).map_err(|e| e.kind());
        if let Ok(capture) = &mut capture {
            capture.record(&[0x45; 20]);
        }
        let error = capture.map_or_else(|kind| kind, |c| c.finish().expect_err("no space").kind());
        assert_eq!(error, io::ErrorKind::StorageFull);
    }
}
