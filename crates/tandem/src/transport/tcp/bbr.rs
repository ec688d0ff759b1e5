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
    if is_limited(stream)? {
        // An operator's program has limited the connection, and the limit must not be lost.
        return Err(io::ErrorKind::PermissionDenied.into());
    }
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

/// Returns true if the rate of the connection is limited.
fn is_limited(stream: &TcpStream) -> io::Result<bool> {
    // Every kernel gives 32 bits, whose maximum stands for no limit or a greater one.
    let (mut rate, mut length) = (0u32, size_of::<u32>() as libc::socklen_t);
    let (level, name) = (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE);
    let (socket, value) = (stream.as_raw_fd(), (&raw mut rate).cast());
    // SAFETY: the descriptor is open as long as `stream`, and the kernel writes no more than
    // `length` bytes to `rate`.
    let result = unsafe { libc::getsockopt(socket, level, name, value, &raw mut length) };
    match result {
        0 => Ok(rate != u32::MAX),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::info;
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
        let bandwidth = || Some(info::bbr(&stream)?.bandwidth);
        if bandwidth().is_none() {
            return; // another version
        }
        assert!(bandwidth() > Some(0), "measured");
        let socket = SockRef::from(&stream);
        restart(&stream, 100_000).expect("the kernel has both controls");
        let name = socket.tcp_congestion().expect("a name");
        assert!(name.starts_with(b"bbr"), "{name:?}");
        assert_eq!(bandwidth(), Some(0), "begun anew");
        assert_eq!(limit_of(&stream), 100_000);
        assert!(is_limited(&stream).expect("Linux has this option"));
        restart(&stream, 200_000).expect_err("this limit is another's");
        assert_eq!(limit_of(&stream), 100_000);
        lift(&stream);
        assert_eq!(limit_of(&stream), NONE);
        restart(&stream, 200_000).expect("there is no limit");
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
}
