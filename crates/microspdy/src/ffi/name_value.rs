//! `SPDY_name_value_*`.

use std::ffi::{c_char, c_int, c_void};

use super::callbacks::{NameValueFn, visit_pairs};
use super::{INPUT_ERROR, NO, YES, destroy, enter, find, text};
use crate::guard::guarded;
use crate::name_value::{Added, NameValue};

/// Creates an empty list.
#[unsafe(no_mangle)]
pub extern "C" fn SPDY_name_value_create() -> *mut c_void {
    guarded(std::ptr::null_mut(), || enter(NameValue::default()))
}

/// Adds a value to a name.
///
/// # Safety
///
/// `name` and `value` must be NULL or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SPDY_name_value_add(
    container: *mut c_void,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    guarded(NO, || {
        // SAFETY: the caller promises C strings.
        let (name, value) = unsafe { (text(name), text(value)) };
        let (Some(list), Some(name), Some(value)) = (find::<NameValue>(container), name, value)
        else {
            return INPUT_ERROR;
        };
        match list.add(name, value) {
            Added::Yes => YES,
            Added::Known => NO,
            Added::BadName => INPUT_ERROR,
        }
    })
}

/// Finds the values of a name.
///
/// # Safety
///
/// `name` must be NULL or a C string, and `num_values` NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SPDY_name_value_lookup(
    container: *mut c_void,
    name: *const c_char,
    num_values: *mut c_int,
) -> *const *const c_char {
    guarded(std::ptr::null(), || {
        // SAFETY: the caller promises a C string.
        let name = unsafe { text(name) };
        let (Some(list), Some(name), false) =
            (find::<NameValue>(container), name, num_values.is_null())
        else {
            return std::ptr::null();
        };
        let Some(pair) = list.lookup(name) else {
            return std::ptr::null();
        };
        let (values, count) = pair.array();
        // SAFETY: the pointer is not NULL, and the caller promises the rest.
        unsafe { num_values.write(count as c_int) };
        values
    })
}

/// Visits the names of a list.
///
/// # Safety
///
/// `iterator` must be NULL or a function of the documented type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SPDY_name_value_iterate(
    container: *mut c_void,
    iterator: Option<NameValueFn>,
    iterator_cls: *mut c_void,
) -> c_int {
    guarded(INPUT_ERROR, || {
        let Some(list) = find::<NameValue>(container) else {
            return INPUT_ERROR;
        };
        match iterator {
            Some(function) => visit_pairs(&list.snapshot(), function, iterator_cls),
            None => list.len() as c_int,
        }
    })
}

/// Destroys a list.
#[unsafe(no_mangle)]
pub extern "C" fn SPDY_name_value_destroy(container: *mut c_void) {
    guarded((), || destroy::<NameValue>(container));
}
