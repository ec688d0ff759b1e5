//! `SPDY_settings_*` and `SPDY_send_settings`.

use std::ffi::{c_int, c_void};

use super::callbacks::{SettingsFn, visit_settings};
use super::{INPUT_ERROR, NO, YES, destroy, enter, find, yes_or_no};
use crate::daemon::SessionEntry;
use crate::guard::guarded;
use crate::settings::Settings;

/// `SPDY_FLAG_SETTINGS_CLEAR_SETTINGS`.
const CLEAR_SETTINGS: c_int = 1;

/// Creates an empty set.
#[unsafe(no_mangle)]
pub extern "C" fn SPDY_settings_create() -> *const c_void {
    guarded(std::ptr::null(), || enter(Settings::default()).cast_const())
}

/// Adds or replaces an entry.
#[unsafe(no_mangle)]
pub extern "C" fn SPDY_settings_add(
    container: *mut c_void,
    id: c_int,
    flags: c_int,
    value: i32,
) -> c_int {
    guarded(NO, || match find::<Settings>(container) {
        Some(set) => yes_or_no(set.add(id, flags, value)),
        None => INPUT_ERROR,
    })
}

/// Finds an entry.
///
/// # Safety
///
/// `flags` and `value` must each be NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SPDY_settings_lookup(
    container: *const c_void,
    id: c_int,
    flags: *mut c_int,
    value: *mut i32,
) -> c_int {
    guarded(NO, || {
        let (Some(set), false) = (
            find::<Settings>(container),
            flags.is_null() || value.is_null(),
        ) else {
            return INPUT_ERROR;
        };
        let entries = set.entries();
        let Some(entry) = entries.iter().find(|entry| entry.id == id as u32) else {
            return NO;
        };
        // SAFETY: the pointers are not NULL, and the caller promises the rest.
        unsafe {
            flags.write(entry.flags.into());
            value.write(entry.value as i32);
        }
        YES
    })
}

/// Visits the entries of a set.
///
/// # Safety
///
/// `iterator` must be NULL or a function of the documented type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SPDY_settings_iterate(
    container: *const c_void,
    iterator: Option<SettingsFn>,
    iterator_cls: *mut c_void,
) -> c_int {
    guarded(INPUT_ERROR, || {
        let Some(set) = find::<Settings>(container) else {
            return INPUT_ERROR;
        };
        let entries = set.entries();
        match iterator {
            Some(function) => visit_settings(&entries, function, iterator_cls),
            None => entries.len() as c_int,
        }
    })
}

/// Destroys a set.
#[unsafe(no_mangle)]
pub extern "C" fn SPDY_settings_destroy(container: *mut c_void) {
    guarded((), || destroy::<Settings>(container));
}

/// Sends a set to the client. The header declares it as variadic, and no option is defined; see
/// `c/options.c`.
#[unsafe(no_mangle)]
pub extern "C" fn microspdy_send_settings(
    session: *mut c_void,
    settings: *const c_void,
    flags: c_int,
) -> c_int {
    guarded(NO, || {
        let (Some(session), Some(set)) =
            (find::<SessionEntry>(session), find::<Settings>(settings))
        else {
            return INPUT_ERROR;
        };
        if flags & !CLEAR_SETTINGS != 0 {
            return NO;
        }
        yes_or_no(session.send_settings(&set.frame(flags == CLEAR_SETTINGS)))
    })
}
