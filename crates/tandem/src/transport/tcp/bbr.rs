//! Restarts the kernel's BBR of a socket (Linux).
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

use socket2::{Domain, SockRef, Socket, Type};
use tokio::net::TcpStream;

/// The congestion control that every kernel has.
const OTHER: &[u8] = b"reno";

/// Restarts the control, with at most `rate` bytes per second until [`lift`].
pub(super) fn restart(stream: &TcpStream, rate: u64) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let mut name = socket.tcp_congestion()?;
    name.truncate(name.iter().take_while(|byte| **byte != 0).count());
    // The process may have lost the right to this control. The trial finds this out first. It also
    // keeps the module loaded in between.
    let trial = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    trial.set_tcp_congestion(&name)?;
    limit(stream, libc::c_ulong::try_from(rate).unwrap_or(NONE))?;
    let changed = socket
        .set_tcp_congestion(OTHER)
        .and_then(|()| socket.set_tcp_congestion(&name));
    changed.inspect_err(|_| lift(stream))
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
    use super::*;

    /// Returns the limit on the rate.
    fn limit_of(stream: &TcpStream) -> libc::c_ulong {
        let mut rate: libc::c_ulong = 0;
        let mut length = size_of::<libc::c_ulong>() as libc::socklen_t;
        let (level, name) = (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE);
        let (socket, value) = (stream.as_raw_fd(), (&raw mut rate).cast());
        // SAFETY: as in `limit`, with a buffer that the kernel writes.
        let result = unsafe { libc::getsockopt(socket, level, name, value, &raw mut length) };
        assert_eq!(result, 0, "Linux has this option");
        rate
    }

    #[tokio::test]
    async fn bbr_restarts_with_a_limit_that_can_be_lifted() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("bound");
        let stream = TcpStream::connect(address).await.expect("connects");
        let socket = SockRef::from(&stream);
        if socket.set_tcp_congestion(b"bbr").is_err() {
            return;
        }
        restart(&stream, 100_000).expect("the kernel has both controls");
        let name = socket.tcp_congestion().expect("a name");
        assert!(name.starts_with(b"bbr"), "{name:?}");
        assert_eq!(limit_of(&stream), 100_000);
        lift(&stream);
        assert_eq!(limit_of(&stream), NONE);
    }
}
