//! The listening socket of a daemon, and its new connections.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::{Options, StartError};
use crate::sys;

const BACKLOG: i32 = 128;

/// Binds the address of the options, or all addresses.
pub(super) fn bind(options: &Options) -> Result<Socket, StartError> {
    let socket = match options.address {
        Some(address) if options.only_v6 && !address.is_ipv6() => return Err(StartError::NotV6),
        Some(address) => listen(address, options.only_v6)?,
        None if options.port == 0 => return Err(StartError::NoPort),
        None => {
            let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, options.port));
            match listen(any, options.only_v6) {
                // A system without IPv6.
                Err(error) if lacks_family(&error) && !options.only_v6 => {
                    listen((Ipv4Addr::UNSPECIFIED, options.port).into(), false)?
                }
                result => result?,
            }
        }
    };
    if sys::fits_select(socket.as_raw_fd()) {
        Ok(socket)
    } else {
        Err(StartError::Descriptor)
    }
}

fn lacks_family(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)
    )
}

fn listen(address: SocketAddr, only_v6: bool) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(only_v6)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Accepts a connection that waits. `None` if there is none, or if it cannot be served: the
/// descriptor must fit into a set of `select`.
pub(super) fn accept(listener: &Socket) -> Accepted {
    match listener.accept() {
        Ok((socket, address)) => {
            let usable =
                sys::fits_select(socket.as_raw_fd()) && socket.set_nonblocking(true).is_ok();
            if usable {
                Accepted::Connection(socket, address)
            } else {
                Accepted::Unusable
            }
        }
        Err(error) => match error.kind() {
            io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => Accepted::Unusable,
            io::ErrorKind::WouldBlock => Accepted::None,
            _ => Accepted::Exhausted,
        },
    }
}

/// The result of [`accept`].
#[derive(Debug)]
pub(super) enum Accepted {
    Connection(Socket, SockAddr),
    /// The connection was closed; more may wait.
    Unusable,
    None,
    /// The system has no descriptor or no memory for a connection that waits.
    Exhausted,
}

/// The time for which a listener waits after [`Accepted::Exhausted`], unless a session ends before.
const PAUSE_TIME: Duration = Duration::from_millis(100);

/// The pause of a listener. The connection that cannot be accepted keeps the listener readable, so
/// `select` would return at once, again and again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pause(Option<Instant>);

impl Pause {
    pub(super) fn begin(&mut self, now: Instant) {
        self.0 = Some(now + PAUSE_TIME);
    }

    /// Ends the pause, since a descriptor is free.
    pub(super) fn end(&mut self) {
        self.0 = None;
    }

    /// Returns the end of the pause, if it has not come yet.
    pub(super) fn until(self, now: Instant) -> Option<Instant> {
        self.0.filter(|&until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_ends_by_itself_and_with_a_session() {
        let start = Instant::now();
        let mut pause = Pause::default();
        assert_eq!(pause.until(start), None);
        pause.begin(start);
        assert_eq!(pause.until(start), Some(start + PAUSE_TIME));
        assert_eq!(pause.until(start + PAUSE_TIME), None);
        pause.end();
        assert_eq!(pause.until(start), None);
    }
}
