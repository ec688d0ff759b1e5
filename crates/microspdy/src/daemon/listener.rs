//! The listening socket of a daemon, and its new connections.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd as _;

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
        Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => Accepted::Unusable,
        Err(_) => Accepted::None,
    }
}

/// The result of [`accept`].
#[derive(Debug)]
pub(super) enum Accepted {
    Connection(Socket, SockAddr),
    /// The connection was closed; more may wait.
    Unusable,
    None,
}
