//! Functions of responses.

use std::ffi::{c_char, c_int, c_void};

use bytes::Bytes;

use super::callbacks::{BodyCallback, BodyFn};
use super::{destroy, enter, find, text};
use crate::guard::guarded;
use crate::name_value::NameValue;
use crate::response::{Body, MAX_BLOCK, Response};
use crate::user_data::UserData;

/// The arguments that both kinds of responses share.
struct Head {
    status: c_int,
    statustext: *const c_char,
    version: *const c_char,
    headers: *mut c_void,
}

impl Head {
    /// Builds the response and enters it.
    ///
    /// # Safety
    ///
    /// Both texts must be NULL or C strings.
    unsafe fn build(&self, body: Body) -> *mut c_void {
        // SAFETY: the caller promises C strings.
        let (statustext, version) = unsafe { (text(self.statustext), text(self.version)) };
        let version = version.and_then(|version| version.to_str().ok());
        let statustext = statustext.map(|text| text.to_string_lossy());
        let headers = find::<NameValue>(self.headers);
        let (Some(version), true) = (version, headers.is_some() || self.headers.is_null()) else {
            return std::ptr::null_mut();
        };
        Response::new(
            self.status,
            statustext.as_deref(),
            version,
            headers.as_deref(),
            body,
        )
        .map_or(std::ptr::null_mut(), enter)
    }
}

/// Builds a response with a body in memory, which is copied.
///
/// # Safety
///
/// The texts must be NULL or C strings, and `data` must point to `size` bytes unless `size` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SPDY_build_response(
    status: c_int,
    statustext: *const c_char,
    version: *const c_char,
    headers: *mut c_void,
    data: *const c_void,
    size: usize,
) -> *mut c_void {
    guarded(std::ptr::null_mut(), || {
        if size > isize::MAX as usize || size > 0 && data.is_null() {
            return std::ptr::null_mut();
        }
        let body = if size == 0 {
            Bytes::new()
        } else {
            // SAFETY: the pointer is not NULL, and the caller promises `size` bytes behind it.
            Bytes::copy_from_slice(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) })
        };
        let head = Head {
            status,
            statustext,
            version,
            headers,
        };
        // SAFETY: the caller promises C strings.
        unsafe { head.build(Body::Bytes(body)) }
    })
}

/// Builds a response with a body from a callback.
///
/// # Safety
///
/// The texts must be NULL or C strings, and `rcb` NULL or a function of the documented type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SPDY_build_response_with_callback(
    status: c_int,
    statustext: *const c_char,
    version: *const c_char,
    headers: *mut c_void,
    rcb: Option<BodyFn>,
    rcb_cls: *mut c_void,
    block_size: u32,
) -> *mut c_void {
    guarded(std::ptr::null_mut(), || {
        let (Some(function), true) = (rcb, block_size <= MAX_BLOCK) else {
            return std::ptr::null_mut();
        };
        let block = if block_size == 0 {
            MAX_BLOCK
        } else {
            block_size
        };
        let head = Head {
            status,
            statustext,
            version,
            headers,
        };
        let body = Body::Callback(BodyCallback {
            function,
            cls: UserData::new(rcb_cls),
            block: block as usize,
        });
        // SAFETY: the caller promises C strings.
        unsafe { head.build(body) }
    })
}

/// Destroys a response. Queued copies of it are still sent.
#[unsafe(no_mangle)]
pub extern "C" fn SPDY_destroy_response(response: *mut c_void) {
    guarded((), || destroy::<Response>(response));
}
