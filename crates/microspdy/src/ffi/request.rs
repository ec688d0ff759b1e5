//! Functions of requests.

use std::ffi::{c_int, c_void};

use super::callbacks::{ResultCallback, ResultFn};
use super::{INPUT_ERROR, NO, destroy, find, yes_or_no};
use crate::daemon::{Queued, RequestEntry, SessionEntry};
use crate::guard::guarded;
use crate::handles::{self, Handle};
use crate::response::Response;
use crate::user_data::UserData;

/// Returns the session of a request, or NULL if the session has ended.
#[unsafe(no_mangle)]
pub extern "C" fn SPDY_get_session_for_request(request: *const c_void) -> *mut c_void {
    guarded(std::ptr::null_mut(), || {
        find::<RequestEntry>(request)
            .map(|request| request.session)
            .filter(|session| handles::get::<SessionEntry>(*session).is_some())
            .map_or(std::ptr::null_mut(), Handle::pointer)
    })
}

/// Stores a pointer of the program.
#[unsafe(no_mangle)]
pub extern "C" fn SPDY_set_cls_to_request(request: *mut c_void, cls: *mut c_void) {
    guarded((), || {
        if let Some(request) = find::<RequestEntry>(request) {
            request.cls.set(cls);
        }
    });
}

/// Returns the stored pointer, or NULL.
#[unsafe(no_mangle)]
pub extern "C" fn SPDY_get_cls_from_request(request: *mut c_void) -> *mut c_void {
    guarded(std::ptr::null_mut(), || {
        find::<RequestEntry>(request).map_or(std::ptr::null_mut(), |request| request.cls.get())
    })
}

/// Queues a response.
///
/// # Safety
///
/// `rrcb` must be NULL or a function of the documented type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SPDY_queue_response(
    request: *mut c_void,
    response: *mut c_void,
    closestream: bool,
    consider_priority: bool,
    rrcb: Option<ResultFn>,
    rrcb_cls: *mut c_void,
) -> c_int {
    guarded(NO, || {
        let (Some(request), Some(object), Some(response)) = (
            find::<RequestEntry>(request),
            find::<Response>(response),
            Handle::from_pointer(response),
        ) else {
            return INPUT_ERROR;
        };
        let queued = Queued {
            object,
            response,
            close: closestream,
            result: rrcb.map(|function| ResultCallback {
                function,
                cls: UserData::new(rrcb_cls),
            }),
        };
        yes_or_no(request.queue(queued, consider_priority))
    })
}

/// Destroys a request. Its stream goes on.
#[unsafe(no_mangle)]
pub extern "C" fn SPDY_destroy_request(request: *mut c_void) {
    guarded((), || destroy::<RequestEntry>(request));
}
