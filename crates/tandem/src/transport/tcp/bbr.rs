//! Reads and restarts the kernel's BBR (version 1) of a socket (Linux, `TCP_CC_INFO`).
//!
//! BBR takes its shortest round trip from the connection when a socket gets it. A change to another
//! congestion control and back therefore renews this value. It keeps the congestion window, but BBR
//! begins with `STARTUP`, which sends at 2.9 times the known rate. A limit on the pacing prevents
//! that.

#![expect(
    unsafe_code,
    reason = "a system call that the standard library does not offer; its use says why it is sound"
)]

use std::io;
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};
use tokio::net::TcpStream;

use super::info::{self, LEAST_ROUND_TRIP, ROUND_TRIP, UNSENT, number};
use crate::path::{BbrPhase, BbrState};

/// More offsets in `struct tcp_info` (linux/tcp.h).
const LOSS_STATE: usize = 1;
const FLAGS: usize = 7;
const SENT_AGAIN: usize = 100;
const LIMIT: usize = 112;
const SENT: usize = 156;

/// The length of `struct tcp_bbr_info` of version 1, and the offsets of its fields
/// (linux/inet_diag.h). Version 3 has a longer one.
const BBR: usize = 20;
const BANDWIDTH: usize = 0;
const WINDOW_GAIN: usize = 16;

/// The gains of the window in `PROBE_RTT` and `PROBE_BW`, in units of 1/256.
const GAIN_PROBING: u32 = 256;
const GAIN_STEADY: u32 = 512;

/// Returns the state of the kernel's BBR, or `None` if it is another control or version.
pub(super) fn state(stream: &TcpStream) -> Option<BbrState> {
    // A longer structure is seen to be another one.
    let bbr = info::option(stream, libc::TCP_CC_INFO, BBR + 4)?;
    read(&info::ask(stream)?, &bbr)
}

/// Parses the bytes of `TCP_INFO` and `TCP_CC_INFO`.
fn read(info: &[u8], bbr: &[u8]) -> Option<BbrState> {
    let microseconds = |at| Some(Duration::from_micros(number(info, at)?.into()));
    (bbr.len() == BBR).then_some(())?;
    Some(BbrState {
        phase: match number(bbr, WINDOW_GAIN)? {
            GAIN_PROBING => BbrPhase::ProbingRoundTrip,
            GAIN_STEADY => BbrPhase::Steady,
            _ => BbrPhase::Starting,
        },
        bandwidth: long_of_halves(bbr, BANDWIDTH)?,
        round_trip: microseconds(ROUND_TRIP)?,
        least_round_trip: microseconds(LEAST_ROUND_TRIP)?,
        // The first bit field of the byte after the window scales. The kernel keeps the best sample
        // for long, so that the bit can be out of date.
        starved: first_bit(*info.get(FLAGS)?) || number(info, UNSENT)? == 0,
        intact: *info.get(LOSS_STATE)? == 0,
        limited: info::long(info, LIMIT)? != u64::MAX,
        sent: number(info, SENT)?,
        sent_again: number(info, SENT_AGAIN)?,
    })
}

/// Reads the long field whose lower half comes first on every machine.
fn long_of_halves(info: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(number(info, at)?) | (u64::from(number(info, at + 4)?) << 32))
}

/// Returns the first bit of a byte of bit fields.
const fn first_bit(byte: u8) -> bool {
    let first = if cfg!(target_endian = "little") {
        1
    } else {
        0x80
    };
    byte & first != 0
}

/// The congestion control that every kernel has. An operator can still forbid it.
const OTHER: &[u8] = b"reno";

/// Restarts the control, with at most `rate` bytes per second until [`lift`].
pub(super) fn restart(stream: &TcpStream, rate: u64) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let mut name = socket.tcp_congestion()?;
    name.truncate(name.iter().take_while(|byte| **byte != 0).count());
    // The trial also keeps the module loaded in between.
    let trial = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    let set = |socket: &Socket, name: &[u8]| socket.set_tcp_congestion(name);
    let rate = libc::c_ulong::try_from(rate).unwrap_or(NONE);
    begin_anew(&trial, &socket, &name, set, || limit(stream, rate)).inspect_err(|_| lift(stream))
}

/// Changes a socket to the other control and back, after a trial on an unused socket. Both controls
/// can be forbidden, and the kernel does not check this for the control that a socket already has.
/// An unused socket can begin with either.
fn begin_anew<S>(
    trial: &S,
    socket: &S,
    name: &[u8],
    set: impl Fn(&S, &[u8]) -> io::Result<()>,
    limit: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let change = |socket| set(socket, OTHER).and_then(|()| set(socket, name));
    change(trial)?;
    limit()?;
    change(socket)
}

/// Removes the limit on the rate.
pub(super) fn lift(stream: &TcpStream) {
    // The kernel takes this value at any time.
    let _ = limit(stream, NONE);
}

/// The value that stands for no limit.
const NONE: libc::c_ulong = libc::c_ulong::MAX;

/// Limits the rate in bytes per second.
fn limit(stream: &TcpStream, rate: libc::c_ulong) -> io::Result<()> {
    let (socket, length) = (stream.as_raw_fd(), size_of::<libc::c_ulong>());
    let (level, name) = (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE);
    let value = (&raw const rate).cast();
    // SAFETY: the descriptor is open as long as `stream`, and the kernel reads `length` bytes from
    // `rate`.
    let result = unsafe { libc::setsockopt(socket, level, name, value, length as _) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn bbr_restarts_with_a_limit_that_can_be_lifted() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("bound");
        let mut stream = TcpStream::connect(address).await.expect("connects");
        if SockRef::from(&stream).set_tcp_congestion(b"bbr").is_err() {
            return;
        }
        let (mut far, _) = listener.accept().await.expect("accepts");
        stream.write_all(&[1; 5000]).await.expect("there is room");
        far.read_exact(&mut [0; 5000]).await.expect("gets it");
        while info::has_unacknowledged(&stream) {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        let (bandwidth, limit) = (
            || Some(state(&stream)?.bandwidth),
            || info::long(&info::ask(&stream)?, LIMIT),
        );
        if bandwidth().is_none() {
            return; // another version
        }
        assert!(bandwidth() > Some(0), "measured");
        assert!(state(&stream).is_some_and(|state| !state.limited));
        let socket = SockRef::from(&stream);
        restart(&stream, 100_000).expect("the kernel has both controls");
        let name = socket.tcp_congestion().expect("a name");
        assert!(name.starts_with(b"bbr"), "{name:?}");
        assert_eq!(bandwidth(), Some(0), "begun anew");
        assert_eq!(limit(), Some(100_000));
        assert!(state(&stream).is_some_and(|state| state.limited));
        lift(&stream);
        assert_eq!(limit(), Some(u64::MAX));
    }

    #[test]
    fn socket_keeps_a_control_that_it_could_not_get_back() {
        for (allowed, left, changes) in [
            (&["reno", "bbr"][..], "bbr", 2),
            (&["reno"], "bbr", 0),
            (&["bbr"], "bbr", 0),
        ] {
            // The kernel checks no right to the control that a socket already has.
            let (limited, count) = (Cell::new(false), Cell::new(0));
            let set = |socket: &Cell<&str>, name: &[u8]| {
                let name = ["reno", "bbr"]
                    .into_iter()
                    .find(|own| own.as_bytes() == name);
                let name = name.expect("one of both");
                if name != socket.get() && !allowed.contains(&name) {
                    return Err(io::ErrorKind::PermissionDenied.into());
                }
                count.set(count.get() + u32::from(limited.get()));
                socket.set(name);
                Ok(())
            };
            let (trial, socket) = (Cell::new("bbr"), Cell::new("bbr"));
            let limit = || {
                limited.set(true);
                Ok(())
            };
            let result = begin_anew(&trial, &socket, b"bbr", set, limit);
            assert_eq!((result.is_ok(), socket.get()), (changes == 2, left));
            assert_eq!(count.get(), changes, "changes under the limit: {allowed:?}");
        }
    }

    #[test]
    fn bbr_is_read_in_its_first_version_only() {
        let (mut info, mut bbr) = ([0; info::INFO], [0; BBR + 4]);
        let put = |to: &mut [u8], at: usize, value: u32| {
            to[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        };
        put(&mut info, ROUND_TRIP, 600_000);
        put(&mut info, LEAST_ROUND_TRIP, 490_000);
        put(&mut info, UNSENT, 1);
        info[LIMIT..LIMIT + 8].fill(0xff);
        put(&mut info, SENT, 2000);
        put(&mut info, SENT_AGAIN, 30);
        put(&mut bbr, BANDWIDTH, 5);
        put(&mut bbr, BANDWIDTH + 4, 1);
        put(&mut bbr, WINDOW_GAIN, GAIN_STEADY);
        let steady = BbrState {
            phase: BbrPhase::Steady,
            bandwidth: (1 << 32) + 5,
            round_trip: Duration::from_millis(600),
            least_round_trip: Duration::from_millis(490),
            starved: false,
            intact: true,
            limited: false,
            sent: 2000,
            sent_again: 30,
        };
        assert_eq!(read(&info, &bbr[..BBR]), Some(steady));
        assert_eq!(read(&info, &bbr), None, "another version");
        assert_eq!(read(&info, &bbr[..16]), None, "another control");
        assert_eq!(read(&info[..104], &bbr[..BBR]), None, "an old kernel");
        put(&mut info, UNSENT, 0);
        assert!(read(&info, &bbr[..BBR]).is_some_and(|state| state.starved));
        put(&mut info, UNSENT, 1);
        (info[LOSS_STATE], info[FLAGS], info[LIMIT]) = (3, 0xff, 0);
        put(&mut bbr, WINDOW_GAIN, GAIN_PROBING);
        let state = read(&info, &bbr[..BBR]).expect("version 1");
        assert_eq!(state.phase, BbrPhase::ProbingRoundTrip);
        assert!(state.starved && !state.intact && state.limited);
        put(&mut bbr, WINDOW_GAIN, 739);
        let state = read(&info, &bbr[..BBR]).expect("version 1");
        assert_eq!(state.phase, BbrPhase::Starting);
    }
}
