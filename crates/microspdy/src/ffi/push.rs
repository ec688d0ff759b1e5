//! Additions to the interface of libmicrospdy, which `microspdy_push.h` declares: push, priorities,
//! the version of a session, and the end of requests without a response.

use std::ffi::{c_char, c_int, c_void};

use tandem_http::Scheme;

use super::callbacks::{EndedCallback, EndedFn, ResultCallback, ResultFn};
use super::{INPUT_ERROR, NO, YES, find, text, yes_or_no};
use crate::daemon::{Daemon, PushTarget, Queued, RequestEntry, SessionEntry};
use crate::guard::guarded;
use crate::handles::Handle;
use crate::response::Response;
use crate::user_data::UserData;

/// The highest number of a SPDY priority, which is the least urgent.
const LAST_PRIORITY: u8 = 7;

/// Pushes a response together with that of a request.
///
/// # Safety
///
/// The texts must be NULL or C strings, and `rrcb` NULL or a function of the documented type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SPDYX_push_response(
    request: *mut c_void,
    scheme: *const c_char,
    host: *const c_char,
    path: *const c_char,
    priority: u8,
    response: *mut c_void,
    rrcb: Option<ResultFn>,
    rrcb_cls: *mut c_void,
) -> *mut c_void {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: the caller promises C strings.
        let texts = unsafe { (text(scheme), text(host), text(path)) };
        let (Some(scheme), Some(host), Some(path)) = texts else {
            return std::ptr::null_mut();
        };
        let (Some(request), Some(object), Some(response), Some(scheme), true) = (
            find::<RequestEntry>(request),
            find::<Response>(response),
            Handle::from_pointer(response),
            Scheme::parse(scheme.to_bytes()),
            priority <= LAST_PRIORITY,
        ) else {
            return std::ptr::null_mut();
        };
        let target = PushTarget {
            scheme,
            host,
            path,
            priority,
        };
        let queued = Queued {
            object,
            response,
            close: true,
            result: rrcb.map(|function| ResultCallback {
                function,
                cls: UserData::new(rrcb_cls),
            }),
        };
        request
            .push(&target, queued)
            .map_or(std::ptr::null_mut(), Handle::pointer)
    })
}

/// Changes the priority of a request's response, or of a push.
#[unsafe(no_mangle)]
pub extern "C" fn SPDYX_set_priority(request: *mut c_void, priority: u8) -> c_int {
    guarded(NO, || match find::<RequestEntry>(request) {
        Some(request) if priority <= LAST_PRIORITY => yes_or_no(request.set_priority(priority)),
        _ => INPUT_ERROR,
    })
}

/// Returns whether the client of a session takes pushes.
#[unsafe(no_mangle)]
pub extern "C" fn SPDYX_takes_push(session: *mut c_void) -> c_int {
    guarded(NO, || match find::<SessionEntry>(session) {
        Some(session) => yes_or_no(session.takes_push()),
        None => INPUT_ERROR,
    })
}

/// Returns the version of a session: 30 for SPDY/3, 31 for SPDY/3.1.
#[unsafe(no_mangle)]
pub extern "C" fn SPDYX_get_version(session: *mut c_void) -> c_int {
    guarded(NO, || match find::<SessionEntry>(session) {
        Some(session) => session.version().map_or(NO, c_int::from),
        None => INPUT_ERROR,
    })
}

/// Sets the callback for requests of a daemon that end without a response.
///
/// # Safety
///
/// `recb` must be NULL or a function of the documented type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SPDYX_set_request_ended_callback(
    daemon: *mut c_void,
    recb: Option<EndedFn>,
    recb_cls: *mut c_void,
) -> c_int {
    guarded(NO, || {
        let Some(daemon) = find::<Daemon>(daemon) else {
            return INPUT_ERROR;
        };
        daemon.set_ended_callback(recb.map(|function| EndedCallback {
            function,
            cls: UserData::new(recb_cls),
        }));
        YES
    })
}
