//! A slow path within one process: a relay that delays each TCP connection as a long path would.
//!
//! It needs no privileges, so that the demo runs everywhere. Measurements that must be accurate use
//! the packet emulator ([`crate::emulator`]). The model has the round trip of opening a connection,
//! one-way delay, a rate that all connections share, and the growth of each connection's window
//! from ten segments (RFC 6928, slow start without loss).

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};

/// Initial window: ten full segments.
const INITIAL_WINDOW: usize = 14_600;

/// The largest window, as the buffers of a kernel would limit it.
const LARGEST_WINDOW: usize = 6 << 20;

/// The properties of the slow path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowPath {
    /// The round-trip time.
    pub rtt: Duration,
    /// Bits per second towards the target.
    pub rate_up: u64,
    /// Bits per second back.
    pub rate_down: u64,
}

/// Bytes that a path has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// The bytes towards the target.
    pub up: u64,
    /// The bytes back.
    pub down: u64,
}

/// A path that runs as a task; ends when dropped.
#[derive(Debug)]
pub struct Running {
    /// The address on which the relay listens.
    pub address: SocketAddr,
    up: Arc<Lane>,
    down: Arc<Lane>,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    /// Returns the number of bytes carried so far.
    pub fn carried(&self) -> Carried {
        Carried {
            up: self.up.bytes.load(Ordering::Relaxed),
            down: self.down.bytes.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A direction that all connections share.
#[derive(Debug)]
struct Lane {
    delay: Duration,
    /// Seconds for one byte.
    byte_time: f64,
    free_at: Mutex<Option<Instant>>,
    bytes: AtomicU64,
}

impl Lane {
    fn new(delay: Duration, rate: u64) -> Arc<Self> {
        Arc::new(Self {
            delay,
            byte_time: 8.0 / rate.max(1) as f64,
            free_at: Mutex::new(None),
            bytes: AtomicU64::new(0),
        })
    }

    /// Returns the arrival time at the other end of bytes that are ready now.
    fn arrival(&self, bytes: usize) -> Instant {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let now = Instant::now();
        let mut free_at = self
            .free_at
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let start = free_at.map_or(now, |free| free.max(now));
        let sent = start + Duration::from_secs_f64(bytes as f64 * self.byte_time);
        *free_at = Some(sent);
        sent + self.delay
    }
}

impl SlowPath {
    /// Listens on a free port of the loopback interface and relays to `target`.
    pub async fn spawn(self, target: SocketAddr) -> io::Result<Running> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (up, down) = (
            Lane::new(self.rtt / 2, self.rate_up),
            Lane::new(self.rtt / 2, self.rate_down),
        );
        let task = tokio::spawn(accept(
            listener,
            target,
            self.rtt,
            Arc::clone(&up),
            Arc::clone(&down),
        ));
        Ok(Running {
            address,
            up,
            down,
            task,
        })
    }
}

async fn accept(
    listener: TcpListener,
    target: SocketAddr,
    rtt: Duration,
    up: Arc<Lane>,
    down: Arc<Lane>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((near, _)) = accepted else { continue };
                let (up, down) = (Arc::clone(&up), Arc::clone(&down));
                // A connection's failure shows at its ends.
                connections.spawn(async move { relay(near, target, rtt, &up, &down).await.ok() });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn relay(
    near: TcpStream,
    target: SocketAddr,
    rtt: Duration,
    up: &Lane,
    down: &Lane,
) -> io::Result<()> {
    // The local kernel has accepted already; the far end would only now have answered.
    tokio::time::sleep(rtt).await;
    let far = TcpStream::connect(target).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    let (there, back) = tokio::join!(
        carry(near_read, far_write, up),
        carry(far_read, near_write, down)
    );
    there.and(back)
}

/// Moves bytes through one lane under a window that grows as bytes are acknowledged, one delay
/// after they were sent.
async fn carry(mut read: OwnedReadHalf, mut write: OwnedWriteHalf, lane: &Lane) -> io::Result<()> {
    let mut window = INITIAL_WINDOW;
    let mut in_flight: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut unacknowledged: VecDeque<(Instant, usize)> = VecDeque::new();
    let mut outstanding = 0;
    let mut ended = false;
    loop {
        let now = Instant::now();
        while let Some(&(at, bytes)) = unacknowledged.front().filter(|(at, _)| *at <= now) {
            debug_assert!(at <= now, "acknowledged in order");
            unacknowledged.pop_front();
            outstanding -= bytes;
            window = (window + bytes).min(LARGEST_WINDOW);
        }
        while let Some((_, bytes)) = in_flight.pop_front_if(|(at, _)| *at <= now) {
            write.write_all(&bytes).await?;
        }
        if ended && in_flight.is_empty() {
            return write.shutdown().await;
        }
        let next = [
            in_flight.front().map(|f| f.0),
            unacknowledged.front().map(|u| u.0),
        ]
        .into_iter()
        .flatten()
        .min();
        if ended || outstanding >= window {
            match next {
                Some(at) => sleep_until(at).await,
                None => return write.shutdown().await,
            }
            continue;
        }
        let mut buf = vec![0; (window - outstanding).min(16 << 10)];
        let count = match next {
            None => read.read(&mut buf).await?,
            Some(at) => match timeout_at(at, read.read(&mut buf)).await {
                Ok(count) => count?,
                Err(_) => continue,
            },
        };
        if count == 0 {
            ended = true;
            continue;
        }
        buf.truncate(count);
        let arrival = lane.arrival(count);
        in_flight.push_back((arrival, buf));
        unacknowledged.push_back((arrival + lane.delay, count));
        outstanding += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order of events on a path can be told without a clock: nothing arrives before a round
    /// trip has passed, and bytes come out as they went in.
    #[tokio::test]
    async fn carries_bytes_in_order_and_counts_them() {
        let echo = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let target = echo.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = echo.accept().await.unwrap();
            let (mut read, mut write) = stream.split();
            tokio::io::copy(&mut read, &mut write).await.unwrap();
            write.shutdown().await.unwrap();
        });
        let rtt = Duration::from_millis(20);
        let path = SlowPath {
            rtt,
            rate_up: 100_000_000,
            rate_down: 100_000_000,
        }
        .spawn(target)
        .await
        .unwrap();
        let begin = Instant::now();
        let stream = TcpStream::connect(path.address).await.unwrap();
        let sent: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
        let (mut read, mut write) = stream.into_split();
        let to_send = sent.clone();
        tokio::spawn(async move {
            write.write_all(&to_send).await.unwrap();
            write.shutdown().await.unwrap();
        });
        let mut received = Vec::new();
        read.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, sent);
        assert!(
            begin.elapsed() >= rtt * 2,
            "a round trip to connect, one for the data"
        );
        assert_eq!(
            path.carried(),
            Carried {
                up: 200_000,
                down: 200_000
            }
        );
    }
}
