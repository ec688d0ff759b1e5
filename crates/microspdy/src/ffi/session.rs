//! Functions of sessions.

use std::ffi::{c_int, c_void};

use super::callbacks::{PingCallback, PingFn};
use super::{INPUT_ERROR, NO, find, yes_or_no};
use crate::daemon::SessionEntry;
use crate::guard::guarded;
use crate::user_data::UserData;

/// Closes a session: GOAWAY, then the connection.
#[unsafe(no_mangle)]
pub extern "C" fn SPDY_close_session(session: *mut c_void) {
    guarded((), || {
        if let Some(session) = find::<SessionEntry>(session) {
            session.close();
        }
    });
}

/// Stores a pointer of the program.
#[unsafe(no_mangle)]
pub extern "C" fn SPDY_set_cls_to_session(session: *mut c_void, cls: *mut c_void) {
    guarded((), || {
        if let Some(session) = find::<SessionEntry>(session) {
            session.cls.set(cls);
        }
    });
}

/// Returns the stored pointer, or NULL.
#[unsafe(no_mangle)]
pub extern "C" fn SPDY_get_cls_from_session(session: *mut c_void) -> *mut c_void {
    guarded(std::ptr::null_mut(), || {
        find::<SessionEntry>(session).map_or(std::ptr::null_mut(), |session| session.cls.get())
    })
}

/// Returns the address of the client.
///
/// # Safety
///
/// `addr` must be NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SPDY_get_remote_addr(
    session: *mut c_void,
    addr: *mut *mut libc::sockaddr,
) -> libc::socklen_t {
    guarded(0, || {
        let (Some(session), false) = (find::<SessionEntry>(session), addr.is_null()) else {
            return 0;
        };
        let address = &session.address;
        // SAFETY: the pointer is not NULL, and the caller promises the rest. The address belongs to
        // the entry, which the table holds until the session ends.
        unsafe { addr.write(address.as_ptr().cast::<libc::sockaddr>().cast_mut()) };
        address.len()
    })
}

/// Sends a ping.
///
/// # Safety
///
/// `rttcb` must be NULL or a function of the documented type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SPDY_send_ping(
    session: *mut c_void,
    rttcb: Option<PingFn>,
    rttcb_cls: *mut c_void,
) -> c_int {
    guarded(NO, || {
        let Some(session) = find::<SessionEntry>(session) else {
            return INPUT_ERROR;
        };
        let callback = rttcb.map(|function| PingCallback {
            function,
            cls: UserData::new(rttcb_cls),
        });
        yes_or_no(session.send_ping(callback))
    })
}
