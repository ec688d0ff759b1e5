//! The kernel's own measurement of a TCP connection (Linux, `TCP_INFO`): round trip and rate.

#![expect(
    unsafe_code,
    reason = "a system call that the standard library does not offer; its use says why it is sound"
)]

use std::os::fd::AsRawFd;

use tokio::net::TcpStream;

use crate::path::Measure;

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

/// Returns true if less than half of the limit on unsent bytes is unsent, or the connection has
/// failed. Otherwise the kernel reports later that the socket is writable.
///
/// A write does not ask this. It asks whether less than the limit is unsent, and only before it
/// begins a new buffer (`sk_buff`). It fills the last one up to 64 KiB in any case.
pub(super) fn has_room(stream: &TcpStream) -> bool {
    let mut socket = libc::pollfd {
        fd: stream.as_raw_fd(),
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: `socket` is one valid structure, and its descriptor is open as long as `stream`.
    let ready = unsafe { libc::poll(&raw mut socket, 1, 0) };
    ready != 0
}

/// Returns the bytes that the kernel holds and has not sent.
#[cfg(all(test, target_os = "linux"))]
pub(crate) fn unsent(stream: &TcpStream) -> Option<u32> {
    number(&ask(stream)?, UNSENT)
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

/// Reads `struct tcp_info`, as far as the kernel knows its fields.
#[cfg(target_os = "linux")]
pub(super) fn ask(stream: &TcpStream) -> Option<Vec<u8>> {
    option(stream, libc::TCP_INFO, INFO)
}

/// Reads at most `length` bytes of a socket option of TCP.
#[cfg(target_os = "linux")]
pub(super) fn option(stream: &TcpStream, name: libc::c_int, length: usize) -> Option<Vec<u8>> {
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

/// Reads the field at an offset. An older kernel writes fewer fields.
pub(super) fn number(info: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(info.get(at..at + 4)?.try_into().ok()?))
}

/// Reads the long field at an offset.
pub(super) fn long(info: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(info.get(at..at + 8)?.try_into().ok()?))
}

/// The length of `struct tcp_info` up to the last field that is read, and the offsets of those
/// fields (linux/tcp.h). New kernels add fields only at the end.
pub(super) const INFO: usize = 168;
const MSS: usize = 16;
const UNACKNOWLEDGED: usize = 24;
pub(super) const ROUND_TRIP: usize = 68;
const WINDOW: usize = 80;
const ACKNOWLEDGED: usize = 120;
const RECEIVED: usize = 128;
pub(super) const UNSENT: usize = 144;
pub(super) const LEAST_ROUND_TRIP: usize = 148;
const RATE: usize = 160;

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
}
