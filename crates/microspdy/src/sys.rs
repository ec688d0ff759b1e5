//! Calls of the C library for which `socket2` has no safe form: `poll`, and the structs of
//! `select` and of socket addresses that programs pass.

#![expect(unsafe_code, reason = "the functions take pointers of C programs")]

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::RawFd;

/// A descriptor that fits into a set of `select`.
pub(crate) const fn fits_select(descriptor: RawFd) -> bool {
    descriptor >= 0 && (descriptor as usize) < libc::FD_SETSIZE
}

/// Adds a descriptor to a set; one that does not fit is left out.
///
/// # Safety
///
/// `set` must be valid.
pub(crate) unsafe fn add_to_set(descriptor: RawFd, set: *mut libc::fd_set) {
    if fits_select(descriptor) {
        // SAFETY: the set is valid, and the descriptor is within it.
        unsafe { libc::FD_SET(descriptor, set) }
    }
}

/// Reads an IPv4 or IPv6 address; `None` for other families.
///
/// # Safety
///
/// `address` must point to a socket address that is complete for its family.
pub(crate) unsafe fn socket_address(address: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: every socket address begins with its family.
    let family = unsafe { (&raw const (*address).sa_family).read_unaligned() };
    match c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: an address of this family has this type.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family has this type.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// Asks which descriptors are ready, without waiting. The results are in `revents`.
pub(crate) fn poll_now(descriptors: &mut [libc::pollfd]) {
    for descriptor in descriptors.iter_mut() {
        descriptor.revents = 0;
    }
    // SAFETY: the pointer and the length are those of the slice. An error leaves no result, so
    // that the work waits for the next call.
    unsafe {
        libc::poll(
            descriptors.as_mut_ptr(),
            descriptors.len() as libc::nfds_t,
            0,
        );
    }
}

/// Returns free memory of the process to the system, where the allocator has a call for it.
pub(crate) fn trim_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the function has no requirements.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_are_read() {
        for text in ["192.0.2.1:80", "[2001:db8::1]:443"] {
            let address: SocketAddr = text.parse().expect("an address");
            let storage = socket2::SockAddr::from(address);
            // SAFETY: `storage` holds a complete address.
            let read = unsafe { socket_address(storage.as_ptr().cast()) };
            assert_eq!(read, Some(address));
        }
    }

    #[test]
    fn select_refuses_large_descriptors() {
        assert!(fits_select(0));
        assert!(fits_select(libc::FD_SETSIZE as RawFd - 1));
        assert!(!fits_select(libc::FD_SETSIZE as RawFd));
        assert!(!fits_select(-1));
    }
}
