//! How a session's path is, as its own TCP connection measures it (Linux, `TCP_INFO`): what a round
//! trip takes, and how many bytes a second arrive.
//!
//! It sees no further than the connection goes. Behind Tor's exit or a local tunnel that is not the
//! path that matters, so a connection from this machine itself is not measured.

#![expect(
    unsafe_code,
    reason = "a system call that the standard library does not offer; its use says why it is sound"
)]

use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use socket2::{SockRef, Socket};

use crate::path::Path;

/// A measure is good for so long.
const GOOD_FOR: Duration = Duration::from_millis(100);

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measure {
    /// The shortest round trip, seconds.
    pub round_trip: f64,
    /// The highest rate, bytes per second: a connection that had little to send tells of no other.
    pub rate: f64,
}

/// A connection that can be measured while its session uses it. It keeps the connection open: it
/// goes with the session.
#[derive(Debug)]
pub struct Gauge {
    socket: Socket,
    last: Cell<Option<(Instant, Measure)>>,
}

impl Gauge {
    /// That of a path; `None` where it has no TCP connection of its own to another machine.
    pub fn of(path: &Path) -> Option<Self> {
        let peer = path.peer_addr()?.ip().to_canonical();
        if peer.is_loopback() {
            None
        } else {
            Self::of_connection(path)
        }
    }

    fn of_connection(path: &Path) -> Option<Self> {
        let socket = SockRef::from(path.tcp()?).try_clone().ok()?;
        Some(Self {
            socket,
            last: Cell::new(None),
        })
    }

    /// How the path is now; `None` where the system does not tell.
    pub fn measure(&self) -> Option<Measure> {
        let now = Instant::now();
        let last = self.last.get();
        if let Some((at, measure)) = last
            && now.saturating_duration_since(at) < GOOD_FOR
        {
            return Some(measure);
        }
        let mut measure = self.ask()?;
        measure.rate = measure.rate.max(last.map_or(0.0, |(_, last)| last.rate));
        self.last.set(Some((now, measure)));
        Some(measure)
    }

    #[cfg(target_os = "linux")]
    fn ask(&self) -> Option<Measure> {
        let mut info = [0u8; INFO];
        let mut len = INFO as libc::socklen_t;
        let (socket, at) = (self.socket.as_raw_fd(), info.as_mut_ptr().cast());
        // SAFETY: the descriptor is open as long as `self.socket`, and the kernel writes no more
        // than `len` bytes to `info`.
        let said = unsafe {
            libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, at, &raw mut len)
        };
        if said == 0 {
            read(info.get(..len as usize)?)
        } else {
            None
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn ask(&self) -> Option<Measure> {
        None
    }
}

/// Bytes of `struct tcp_info` up to what is wanted of it, and where (linux/tcp.h; fields are only
/// ever added at its end).
const INFO: usize = 168;
const MSS: usize = 16;
const ROUND_TRIP: usize = 68;
const WINDOW: usize = 80;
const LEAST_ROUND_TRIP: usize = 148;
const RATE: usize = 160;

/// What the kernel says; an older one says less.
fn read(info: &[u8]) -> Option<Measure> {
    let number = |at: usize| Some(u32::from_ne_bytes(info.get(at..at + 4)?.try_into().ok()?));
    let least = number(LEAST_ROUND_TRIP).filter(|us| !matches!(*us, 0 | u32::MAX));
    let round_trip = f64::from(least.or_else(|| number(ROUND_TRIP).filter(|us| *us > 0))?) / 1e6;
    let arrived = info
        .get(RATE..RATE + 8)
        .and_then(|rate| Some(u64::from_ne_bytes(rate.try_into().ok()?)));
    // What may be on its way at once arrives in one round trip, even while nothing has been sent
    // yet.
    let may = f64::from(number(MSS)?) * f64::from(number(WINDOW)?) / round_trip;
    let rate = may.max(arrived.unwrap_or(0) as f64);
    (rate > 0.0).then_some(Measure { round_trip, rate })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn a_connection_is_measured_but_not_one_from_here() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut there = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let mut path = Path::Tcp(listener.accept().await.unwrap().0);
        assert!(Gauge::of(&path).is_none());
        let gauge = Gauge::of_connection(&path).unwrap();
        path.write_all(&[1; 100_000]).await.unwrap();
        there.read_exact(&mut vec![0; 100_000]).await.unwrap();
        let measure = gauge.measure().unwrap();
        assert!(
            measure.round_trip > 0.0 && measure.round_trip < 10.0 && measure.rate > 10_000.0,
            "{measure:?}"
        );
        assert_eq!(gauge.measure(), Some(measure), "not asked for anew at once");
    }

    #[test]
    fn what_the_kernel_says_is_read() {
        let mut info = [0; INFO];
        let mut put = |at: usize, bytes: &[u8]| info[at..at + bytes.len()].copy_from_slice(bytes);
        put(MSS, &1000u32.to_ne_bytes());
        put(WINDOW, &10u32.to_ne_bytes());
        put(ROUND_TRIP, &200_000u32.to_ne_bytes());
        put(LEAST_ROUND_TRIP, &100_000u32.to_ne_bytes());
        assert_eq!(
            read(&info),
            Some(Measure {
                round_trip: 0.1,
                rate: 100_000.0
            }),
            "what it may send"
        );
        info[RATE..RATE + 8].copy_from_slice(&2_000_000u64.to_ne_bytes());
        assert_eq!(
            read(&info),
            Some(Measure {
                round_trip: 0.1,
                rate: 2e6
            })
        );
        assert_eq!(
            read(&info[..104]),
            Some(Measure {
                round_trip: 0.2,
                rate: 50_000.0
            }),
            "an older kernel"
        );
        assert_eq!(read(&info[..60]), None);
        assert_eq!(read(&[0; INFO]), None);
    }
}
