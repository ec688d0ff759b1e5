//! Functions of the library and of daemons.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use super::callbacks::{
    Callbacks, NewDataFn, NewRequestFn, NewSessionFn, PanicFn, PanicHandler, SessionClosedFn,
};
use super::{INPUT_ERROR, NO, YES, find, text};
use crate::daemon::{Daemon, Options, TlsFiles};
use crate::guard::{guarded, report, set_handler};
use crate::handles::{self, Handle};
use crate::sys;
use crate::user_data::UserData;

/// `SPDY_IO_SUBSYSTEM_OPENSSL`: TLS.
const TLS: c_int = 1;
/// `SPDY_IO_SUBSYSTEM_RAW`.
const RAW: c_int = 2;
/// `SPDY_DAEMON_FLAG_ONLY_IPV6`.
const ONLY_IPV6: c_int = 1;
/// `SPDYX_DAEMON_FLAG_VERSION_3_1`.
const VERSION_3_1: c_int = 0x1_0000;

/// The subsystems that `SPDY_init` named; 0 before it and after `SPDY_deinit`.
static SUBSYSTEMS: AtomicI32 = AtomicI32::new(0);

/// `SPDY_init` without its variadic arguments, of which none is defined; see `c/options.c`.
#[unsafe(no_mangle)]
pub extern "C" fn microspdy_init(subsystems: c_int) -> c_int {
    guarded(NO, || {
        if subsystems & (TLS | RAW) == 0 {
            report("SPDY_init was called without an I/O subsystem");
            return NO;
        }
        if SUBSYSTEMS.swap(subsystems, Ordering::AcqRel) != 0 {
            report("SPDY_init was called twice without SPDY_deinit");
        }
        YES
    })
}

/// Ends the use of the library.
#[unsafe(no_mangle)]
pub extern "C" fn SPDY_deinit() {
    guarded((), || {
        if SUBSYSTEMS.swap(0, Ordering::AcqRel) == 0 {
            report("SPDY_deinit was called without SPDY_init");
        }
    });
}

/// Sets the callback for faults.
///
/// # Safety
///
/// `cb` must be NULL or a function of the documented type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SPDY_set_panic_func(cb: Option<PanicFn>, cls: *mut c_void) {
    guarded((), || {
        set_handler(cb.map(|function| PanicHandler {
            function,
            cls: UserData::new(cls),
        }));
    });
}

/// The options of `SPDY_start_daemon`, as `c/options.c` reads them.
#[repr(C)]
#[derive(Debug)]
pub struct DaemonOptions {
    /// Seconds; 0 for none.
    session_timeout: c_uint,
    /// `SPDY_DAEMON_FLAG` values.
    flags: c_int,
    /// `SPDY_IO_SUBSYSTEM`; 0 if not given.
    io_subsystem: c_int,
    /// Frames; 0 for the default.
    max_num_frames: u32,
    /// NULL if not given.
    address: *const libc::sockaddr,
}

impl DaemonOptions {
    /// Returns the options of a daemon over plain TCP at an address.
    pub const fn raw(address: *const libc::sockaddr) -> Self {
        Self {
            session_timeout: 0,
            flags: 0,
            io_subsystem: RAW,
            max_num_frames: 0,
            address,
        }
    }
}

/// `SPDY_start_daemon` after its variadic arguments have been read; see `c/options.c`.
///
/// # Safety
///
/// The paths must be NULL or C strings, and the callbacks NULL or functions of the documented
/// types. `options` must be valid, with an address that is NULL or a complete socket address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn microspdy_start_daemon(
    port: u16,
    certfile: *const c_char,
    keyfile: *const c_char,
    new_session: Option<NewSessionFn>,
    session_closed: Option<SessionClosedFn>,
    new_request: Option<NewRequestFn>,
    new_data: Option<NewDataFn>,
    cls: *mut c_void,
    options: *const DaemonOptions,
) -> *mut c_void {
    guarded(std::ptr::null_mut(), || {
        if SUBSYSTEMS.load(Ordering::Acquire) == 0 {
            return std::ptr::null_mut();
        }
        // SAFETY: `c/options.c` passes a valid struct.
        let given = unsafe { &*options };
        // SAFETY: the caller promises C strings.
        let files = unsafe { (text(certfile), text(keyfile)) };
        let tls = match (given.io_subsystem, files) {
            (RAW, _) => None,
            (0 | TLS, (Some(certificate), Some(key))) => Some(TlsFiles {
                certificate: path(certificate),
                key: path(key),
            }),
            _ => return std::ptr::null_mut(),
        };
        let address = if given.address.is_null() {
            None
        } else {
            // SAFETY: the pointer is not NULL, and the caller promises a complete address.
            match unsafe { sys::socket_address(given.address) } {
                Some(address) => Some(address),
                None => return std::ptr::null_mut(),
            }
        };
        let options = Options {
            port,
            address,
            only_v6: given.flags & ONLY_IPV6 != 0,
            v31: given.flags & VERSION_3_1 != 0,
            session_timeout: (given.session_timeout > 0)
                .then(|| Duration::from_secs(given.session_timeout.into())),
            max_frames: given.max_num_frames,
            tls,
        };
        let callbacks = Callbacks {
            new_session,
            session_closed,
            new_request,
            new_data,
            cls: UserData::new(cls),
        };
        Daemon::start(&options, callbacks)
            .ok()
            .and_then(handles::insert)
            .map_or(std::ptr::null_mut(), Handle::pointer)
    })
}

/// Stops a daemon and closes its sessions, after the run of another thread. Inside a callback, this
/// happens when the `SPDY_run` under way ends.
#[unsafe(no_mangle)]
pub extern "C" fn SPDY_stop_daemon(daemon: *mut c_void) {
    guarded((), || {
        if let Some(daemon) = Handle::from_pointer(daemon).and_then(handles::remove::<Daemon>) {
            daemon.stop();
        }
    });
}

/// Adds the descriptors of a daemon to sets for `select`.
///
/// # Safety
///
/// The sets must each be NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SPDY_get_fdset(
    daemon: *mut c_void,
    read_fd_set: *mut libc::fd_set,
    write_fd_set: *mut libc::fd_set,
    except_fd_set: *mut libc::fd_set,
) -> c_int {
    guarded(INPUT_ERROR, || {
        let missing = read_fd_set.is_null() || write_fd_set.is_null() || except_fd_set.is_null();
        let (Some(daemon), false) = (find::<Daemon>(daemon), missing) else {
            return INPUT_ERROR;
        };
        let mut highest = -1;
        for interest in daemon.interests(Instant::now()) {
            if interest.read {
                // SAFETY: the set is not NULL, and the caller promises the rest.
                unsafe { sys::add_to_set(interest.descriptor, read_fd_set) };
            }
            if interest.write {
                // SAFETY: as above.
                unsafe { sys::add_to_set(interest.descriptor, write_fd_set) };
            }
            highest = highest.max(interest.descriptor);
        }
        highest
    })
}

/// Tells for how long `select` may wait at most, in milliseconds.
///
/// # Safety
///
/// `timeout` must be NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SPDY_get_timeout(daemon: *mut c_void, timeout: *mut c_ulonglong) -> c_int {
    guarded(INPUT_ERROR, || {
        let (Some(daemon), false) = (find::<Daemon>(daemon), timeout.is_null()) else {
            return INPUT_ERROR;
        };
        let now = Instant::now();
        let Some(deadline) = daemon.deadline(now) else {
            return NO;
        };
        // Rounded up: a wait that ends too early would be followed by a busy loop.
        let wait = deadline
            .saturating_duration_since(now)
            .as_micros()
            .div_ceil(1000);
        // SAFETY: the pointer is not NULL, and the caller promises the rest.
        unsafe { timeout.write(c_ulonglong::try_from(wait).unwrap_or(c_ulonglong::MAX)) };
        YES
    })
}

/// Does the work that is due, without waiting, and calls the callbacks.
#[unsafe(no_mangle)]
pub extern "C" fn SPDY_run(daemon: *mut c_void) {
    guarded((), || {
        if let Some(daemon) = find::<Daemon>(daemon) {
            daemon.run();
        }
    });
}

/// Returns the path in a C string. The name of a file need not be UTF-8.
fn path(file: &CStr) -> PathBuf {
    OsStr::from_bytes(file.to_bytes()).into()
}

/// Exports the variadic functions. Stable Rust cannot define them, so each is one jump, which
/// passes all arguments on to the C function that reads them.
macro_rules! variadic {
    ($($name:ident => $target:ident),+) => {
        unsafe extern "C" {
            $(fn $target();)+
        }
        $(
            /// Jumps to the function in `c/options.c`.
            ///
            /// # Safety
            ///
            /// The arguments must be those that the header declares.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() {
                #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
                core::arch::naked_asm!("jmp {}", sym $target);
                #[cfg(any(target_arch = "aarch64", target_arch = "arm"))]
                core::arch::naked_asm!("b {}", sym $target);
                #[cfg(target_arch = "riscv64")]
                core::arch::naked_asm!("tail {}", sym $target);
            }
        )+
    };
}

variadic!(
    SPDY_init => microspdy_init_variadic,
    SPDY_start_daemon => microspdy_start_daemon_variadic,
    SPDY_send_settings => microspdy_send_settings_variadic
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_keeps_bytes_that_are_not_utf_8() {
        let path = path(c"/etc/k\xe9y.pem");
        assert_eq!(path.as_os_str().as_bytes(), b"/etc/k\xe9y.pem");
    }
}
