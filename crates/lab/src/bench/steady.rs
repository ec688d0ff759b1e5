//! A download that never ends: an origin that sends at a fixed rate, or as fast as it can, and a
//! user that counts the bytes that arrive through the proxies.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The length of the response, which no measurement reaches.
const LENGTH: u64 = 1 << 40;
/// The bytes of a write at full speed.
const PIECE: usize = 128 << 10;
/// The time between two writes at a fixed rate.
const TICK: Duration = Duration::from_millis(1);
/// The time for which an origin may be late and still send what it missed. What it misses beyond
/// that is lost, so that a stall of the proxies lowers the goodput.
const MEND: Duration = Duration::from_millis(20);
/// The time without a byte after which a download has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// An HTTP/1.1 origin whose responses never end.
#[derive(Debug)]
pub struct SteadyOrigin {
    /// The address on which it listens.
    pub address: SocketAddr,
    ended: Arc<AtomicBool>,
}

impl SteadyOrigin {
    /// Starts the origin. `rate` is that of each response in bytes per second; as fast as it can
    /// unless given.
    pub fn start(rate: Option<u64>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let ended = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&ended);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let stop = Arc::clone(&stop);
                // An error is the end of a connection, which is the proxy's right.
                thread::spawn(move || drop(serve(stream, rate, &stop)));
            }
        });
        Ok(Self { address, ended })
    }
}

impl Drop for SteadyOrigin {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address));
    }
}

fn serve(mut stream: TcpStream, rate: Option<u64>, ended: &AtomicBool) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    if !read_head(&stream)? {
        return Ok(());
    }
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n\
         Cache-Control: no-store\r\nContent-Length: {LENGTH}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    let piece = vec![b'x'; PIECE];
    let mut due = Instant::now();
    while !ended.load(Ordering::Relaxed) {
        let Some(rate) = rate else {
            stream.write_all(&piece)?;
            continue;
        };
        let now = Instant::now();
        due = due.max(now.checked_sub(MEND).unwrap_or(now));
        if let Some(wait) = due.checked_duration_since(now) {
            thread::sleep(wait);
        }
        due += TICK;
        let bytes = (rate as f64 * TICK.as_secs_f64()) as usize;
        stream.write_all(&piece[..bytes.clamp(1, PIECE)])?;
    }
    Ok(())
}

/// Reads the head of a request. Returns whether it was whole when the stream ended.
fn read_head(stream: &TcpStream) -> io::Result<bool> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A download on a thread of its own.
#[derive(Debug)]
pub struct Download {
    received: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Download {
    /// Requests the response of an origin through a proxy. Returns once its first bytes are there.
    pub fn start(proxy: SocketAddr, origin: SocketAddr) -> io::Result<Self> {
        let mut stream = TcpStream::connect(proxy)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(
            stream,
            "GET http://{origin}/ HTTP/1.1\r\nHost: {origin}\r\n\r\n"
        )?;
        let mut buf = vec![0; 256 << 10];
        let size = stream.read(&mut buf)?;
        if !buf[..size].starts_with(b"HTTP/1.1 200 ") {
            let text = String::from_utf8_lossy(&buf[..size.min(200)]).into_owned();
            return Err(io::Error::other(format!("the response was {text:?}")));
        }
        let received = Arc::new(AtomicU64::new(0));
        let ended = Arc::new(AtomicBool::new(false));
        let (count, stop) = (Arc::clone(&received), Arc::clone(&ended));
        let thread = thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                match stream.read(&mut buf)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    size => count.fetch_add(size as u64, Ordering::Relaxed),
                };
            }
            Ok(())
        });
        Ok(Self {
            received,
            ended,
            thread: Some(thread),
        })
    }

    /// Returns the bytes that have arrived.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Ends the download.
    ///
    /// # Errors
    /// It had failed before.
    pub fn end(mut self) -> io::Result<()> {
        self.ended.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            _ => Err(io::Error::other("the download's thread panicked")),
        }
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_keeps_its_rate() {
        let origin = SteadyOrigin::start(Some(1_000_000)).expect("a port");
        let download = Download::start(origin.address, origin.address).expect("a response");
        let (before, begun) = (download.received(), Instant::now());
        thread::sleep(Duration::from_millis(500));
        let rate = (download.received() - before) as f64 / begun.elapsed().as_secs_f64();
        // A busy machine may be slower, and nothing makes it faster.
        assert!((100_000.0..1_100_000.0).contains(&rate), "{rate}");
        download.end().expect("no failure");
    }

    #[test]
    fn download_tells_that_it_failed() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            // A connection that is closed with unread bytes is reset, with the response unread.
            assert!(read_head(&stream).expect("open"), "the head is cut");
            stream.write_all(b"HTTP/1.1 200 OK\r\n").expect("open");
        });
        let download = Download::start(address, address).expect("a response");
        server.join().expect("no panic");
        while !download
            .thread
            .as_ref()
            .is_some_and(JoinHandle::is_finished)
        {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(download.end().is_err());
    }
}
