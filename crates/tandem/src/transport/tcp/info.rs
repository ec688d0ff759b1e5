//! The kernel's own measurement of a TCP connection (Linux, `TCP_INFO`): round trip and rate, and
//! the state of its BBR (`TCP_CC_INFO`).

#![expect(
    unsafe_code,
    reason = "a system call that the standard library does not offer; its use says why it is sound"
)]

use std::os::fd::AsRawFd;
use std::time::Duration;

use tokio::net::TcpStream;

use crate::path::{BbrPhase, BbrState, Measure};

/// Returns the speed of the connection, or `None` if the kernel does not report it.
pub(super) fn measure(stream: &TcpStream) -> Option<Measure> {
    read(&ask(stream)?)
}

/// Returns true if sent or unsent bytes wait for an acknowledgement.
pub(super) fn has_unacknowledged(stream: &TcpStream) -> bool {
    ask(stream).is_some_and(|info| {
        let waits = |at| number(&info, at).is_some_and(|waiting| waiting > 0);
        waits(UNACKNOWLEDGED) || waits(UNSENT)
    })
}

/// Returns the bytes that have arrived, or `None` if the kernel does not report them.
pub(super) fn received(stream: &TcpStream) -> Option<u64> {
    long(&ask(stream)?, RECEIVED)
}

/// Returns the bytes that the other end has acknowledged, or `None` if the kernel does not report
/// them.
pub(super) fn acknowledged(stream: &TcpStream) -> Option<u64> {
    long(&ask(stream)?, ACKNOWLEDGED)
}

/// Returns the state of the kernel's BBR, or `None` if it is another control or version.
pub(super) fn bbr(stream: &TcpStream) -> Option<BbrState> {
    read_bbr(&ask(stream)?, &ask_bbr(stream)?)
}

/// Reads `struct tcp_info`, as far as the kernel knows its fields.
#[cfg(target_os = "linux")]
fn ask(stream: &TcpStream) -> Option<Vec<u8>> {
    option(stream, libc::TCP_INFO, INFO)
}

/// Reads the information of the congestion control.
#[cfg(target_os = "linux")]
fn ask_bbr(stream: &TcpStream) -> Option<Vec<u8>> {
    // A longer structure is seen to be another one.
    option(stream, libc::TCP_CC_INFO, BBR + 4)
}

/// Reads at most `length` bytes of a socket option of TCP.
#[cfg(target_os = "linux")]
fn option(stream: &TcpStream, name: libc::c_int, length: usize) -> Option<Vec<u8>> {
    let mut info = vec![0u8; length];
    let mut len = length as libc::socklen_t;
    let (socket, at) = (stream.as_raw_fd(), info.as_mut_ptr().cast());
    // SAFETY: the descriptor is open as long as `stream`, and the kernel writes no more than `len`
    // bytes to `info`.
    let result = unsafe { libc::getsockopt(socket, libc::IPPROTO_TCP, name, at, &raw mut len) };
    info.truncate(len as usize);
    (result == 0).then_some(info)
}

/// Returns `None`, since other systems have no `TCP_INFO`.
#[cfg(not(target_os = "linux"))]
fn ask(_: &TcpStream) -> Option<Vec<u8>> {
    None
}

/// Returns `None`, since other systems have no `TCP_CC_INFO`.
#[cfg(not(target_os = "linux"))]
fn ask_bbr(_: &TcpStream) -> Option<Vec<u8>> {
    None
}

/// Reads the field at an offset. An older kernel writes fewer fields.
fn number(info: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(info.get(at..at + 4)?.try_into().ok()?))
}

/// Reads the long field at an offset.
fn long(info: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(info.get(at..at + 8)?.try_into().ok()?))
}

/// The length of `struct tcp_info` up to the last field that is read, and the offsets of those
/// fields (linux/tcp.h). New kernels add fields only at the end.
const INFO: usize = 168;
const LOSS_STATE: usize = 1;
const FLAGS: usize = 7;
const MSS: usize = 16;
const UNACKNOWLEDGED: usize = 24;
const ROUND_TRIP: usize = 68;
const WINDOW: usize = 80;
const SENT_AGAIN: usize = 100;
const ACKNOWLEDGED: usize = 120;
const RECEIVED: usize = 128;
const UNSENT: usize = 144;
const LEAST_ROUND_TRIP: usize = 148;
const SENT: usize = 156;
const RATE: usize = 160;

/// The length of `struct tcp_bbr_info` of version 1, and the offsets of its fields
/// (linux/inet_diag.h). Version 3 has a longer one.
const BBR: usize = 20;
const BANDWIDTH: usize = 0;
const WINDOW_GAIN: usize = 16;

/// The gains of the window in `PROBE_RTT` and `PROBE_BW`, in units of 1/256.
const GAIN_PROBING: u32 = 256;
const GAIN_STEADY: u32 = 512;

/// Parses the bytes from the kernel. An older kernel writes fewer fields.
fn read(info: &[u8]) -> Option<Measure> {
    let number = |at: usize| number(info, at);
    let least = number(LEAST_ROUND_TRIP).filter(|us| !matches!(*us, 0 | u32::MAX));
    let round_trip = f64::from(least.or_else(|| number(ROUND_TRIP).filter(|us| *us > 0))?) / 1e6;
    let arrived = long(info, RATE);
    // The path carries a congestion window per round trip, even before any byte was sent.
    let window = f64::from(number(MSS)?) * f64::from(number(WINDOW)?) / round_trip;
    let rate = window.max(arrived.unwrap_or(0) as f64);
    (rate > 0.0).then_some(Measure { round_trip, rate })
}

/// Parses the bytes of `TCP_INFO` and `TCP_CC_INFO`.
fn read_bbr(info: &[u8], bbr: &[u8]) -> Option<BbrState> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_info_is_read_from_old_and_new_kernels() {
        let mut info = [0; INFO];
        let mut put = |at: usize, bytes: &[u8]| info[at..at + bytes.len()].copy_from_slice(bytes);
        put(MSS, &1000u32.to_ne_bytes());
        put(WINDOW, &10u32.to_ne_bytes());
        put(ROUND_TRIP, &200_000u32.to_ne_bytes());
        put(LEAST_ROUND_TRIP, &100_000u32.to_ne_bytes());
        let measure = |round_trip, rate| Some(Measure { round_trip, rate });
        assert_eq!(read(&info), measure(0.1, 100_000.0), "the window");
        info[RATE..RATE + 8].copy_from_slice(&2_000_000u64.to_ne_bytes());
        assert_eq!(read(&info), measure(0.1, 2e6), "the rate");
        assert_eq!(read(&info[..104]), measure(0.2, 50_000.0), "an old kernel");
        assert_eq!(read(&info[..60]), None);
        assert_eq!(read(&[0; INFO]), None);
    }
    #[test]
    fn bbr_is_read_in_its_first_version_only() {
        let (mut info, mut bbr) = ([0; INFO], [0; BBR + 4]);
        let put = |to: &mut [u8], at: usize, value: u32| {
            to[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        };
        put(&mut info, ROUND_TRIP, 600_000);
        put(&mut info, LEAST_ROUND_TRIP, 490_000);
        put(&mut info, UNSENT, 1);
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
            sent: 2000,
            sent_again: 30,
        };
        assert_eq!(read_bbr(&info, &bbr[..BBR]), Some(steady));
        assert_eq!(read_bbr(&info, &bbr), None, "another version");
        assert_eq!(read_bbr(&info, &bbr[..16]), None, "another control");
        assert_eq!(read_bbr(&info[..104], &bbr[..BBR]), None, "an old kernel");
        put(&mut info, UNSENT, 0);
        assert!(read_bbr(&info, &bbr[..BBR]).is_some_and(|state| state.starved));
        put(&mut info, UNSENT, 1);
        (info[LOSS_STATE], info[FLAGS]) = (3, 0xff);
        put(&mut bbr, WINDOW_GAIN, GAIN_PROBING);
        let state = read_bbr(&info, &bbr[..BBR]).expect("version 1");
        assert_eq!(state.phase, BbrPhase::ProbingRoundTrip);
        assert!(state.starved && !state.intact);
        put(&mut bbr, WINDOW_GAIN, 739);
        let state = read_bbr(&info, &bbr[..BBR]).expect("version 1");
        assert_eq!(state.phase, BbrPhase::Starting);
    }
}
