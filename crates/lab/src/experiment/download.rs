//! Downloads by the way of a set-up, apart from the page: those beside its load, and the earlier
//! one of a client that returns.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::file::Setup;
use super::trial_network::TrialNetwork;
use crate::bench::BenchError;

/// The bytes of a download that the experiment stops.
const ENDLESS: u64 = 1 << 40;
/// The bytes and the time of an earlier download. It shows the speed of its path.
const EARLIER_BYTES: u64 = 8 << 20;
const EARLIER_TIME: Duration = Duration::from_secs(20);
/// The idle time after which the client of [`earlier`] closes its session.
pub const IDLE: Duration = Duration::from_secs(3);
/// The time after a download in which the client gets its token, is idle and closes its session.
const REST: Duration = Duration::from_secs(8);

/// Running downloads, which end with this value.
#[derive(Debug)]
pub struct Downloads {
    sockets: Vec<TcpStream>,
    threads: Vec<JoinHandle<()>>,
    bytes: Arc<AtomicU64>,
}

impl Downloads {
    /// Begins downloads by the way of a set-up.
    ///
    /// # Errors
    /// Fails if no connection is accepted.
    pub fn begin(
        network: &TrialNetwork<'_>,
        setup: &Setup,
        count: usize,
    ) -> Result<Self, BenchError> {
        let mut downloads = Self {
            sockets: Vec::new(),
            threads: Vec::new(),
            bytes: Arc::default(),
        };
        for _ in 0..count {
            let begun = downloads.add(network, setup);
            begun.map_err(BenchError::system("begin a download"))?;
        }
        Ok(downloads)
    }

    fn add(&mut self, network: &TrialNetwork<'_>, setup: &Setup) -> io::Result<()> {
        let (mut socket, request) = network.request(setup, &format!("/bytes/{ENDLESS}"))?;
        self.sockets.push(socket.try_clone()?);
        socket.write_all(request.as_bytes())?;
        let bytes = Arc::clone(&self.bytes);
        self.threads.push(std::thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(read @ 1..) = socket.read(&mut buffer) {
                bytes.fetch_add(read as u64, Ordering::Relaxed);
            }
        }));
        Ok(())
    }

    /// Returns the bytes that all downloads have received.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Downloads {
    fn drop(&mut self) {
        for socket in &self.sockets {
            // A socket that is closed already needs no end.
            let _ = socket.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            // A reader that panicked has ended too.
            let _ = thread.join();
        }
    }
}

/// Lets a client be at its gateway before the load: it downloads something, and its session ends.
///
/// # Errors
/// Fails if nothing arrives.
pub fn earlier(network: &TrialNetwork<'_>, setup: &Setup) -> Result<(), BenchError> {
    let download = Downloads::begin(network, setup, 1)?;
    let until = Instant::now() + EARLIER_TIME;
    while download.bytes() < EARLIER_BYTES && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    let is_empty = download.bytes() == 0;
    drop(download);
    if is_empty {
        return Err(BenchError::Value(
            "an earlier download brought nothing".into(),
        ));
    }
    std::thread::sleep(REST);
    Ok(())
}
