//! The functions of the C interface, as the headers in `include/` declare them.
//!
//! Each function checks its arguments, and runs inside `crate::guard::guarded`. Objects are
//! passed as handles, which are looked up in a table and never followed. Only texts, buffers and
//! result pointers of the program are followed; the header states their requirements.

#![expect(
    unsafe_code,
    reason = "exported functions and calls of C callbacks are unsafe by nature"
)]

pub mod callbacks;
pub mod daemon;
pub mod name_value;
pub mod push;
pub mod request;
pub mod response;
pub mod session;
pub mod settings;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use crate::handles::{self, Handle, Kind};

/// `SPDY_YES`.
pub const YES: c_int = 1;
/// `SPDY_NO`.
pub const NO: c_int = 0;
/// `SPDY_INPUT_ERROR`.
pub const INPUT_ERROR: c_int = -1;

/// Finds the object of a pointer that a program passed.
fn find<T: Kind>(pointer: *const c_void) -> Option<Arc<T>> {
    handles::get(Handle::from_pointer(pointer)?)
}

/// Removes the object of a pointer that a program passed, if it has one.
fn destroy<T: Kind>(pointer: *const c_void) {
    if let Some(handle) = Handle::from_pointer(pointer) {
        drop(handles::remove::<T>(handle));
    }
}

/// Enters an object and returns its pointer, or NULL if the table is full.
fn enter<T: Kind>(object: T) -> *mut c_void {
    handles::insert(Arc::new(object)).map_or(std::ptr::null_mut(), Handle::pointer)
}

const fn yes_or_no(yes: bool) -> c_int {
    if yes { YES } else { NO }
}

/// Reads a text argument; `None` for NULL.
///
/// # Safety
///
/// A pointer that is not NULL must point to a C string that lives during the call of the exported
/// function.
unsafe fn text<'a>(pointer: *const c_char) -> Option<&'a CStr> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the pointer is not NULL, and the caller promises the rest.
    Some(unsafe { CStr::from_ptr(pointer) })
}
