//! Faults: a panic never crosses into C, and a misuse that cannot be answered with a return code
//! reaches the program's panic callback.

use std::ffi::{CStr, CString, c_uint};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::{Mutex, PoisonError};

use crate::ffi::callbacks::PanicHandler;

static HANDLER: Mutex<Option<PanicHandler>> = Mutex::new(None);

/// Sets the callback for faults; `None` restores the default, which prints and aborts.
pub(crate) fn set_handler(handler: Option<PanicHandler>) {
    *HANDLER.lock().unwrap_or_else(PoisonError::into_inner) = handler;
}

/// Runs the body of an exported function. A panic goes to the panic callback; if that returns, the
/// function returns `fallback`.
#[track_caller]
pub(crate) fn guarded<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => value,
        Err(payload) => {
            let text = payload
                .downcast_ref::<&str>()
                .copied()
                .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
                .unwrap_or("internal fault");
            report(text);
            fallback
        }
    }
}

/// Reports a fault to the panic callback.
#[track_caller]
pub(crate) fn report(reason: &str) {
    let place = Location::caller();
    let handler = HANDLER
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let Some(handler) = handler else {
        eprintln!("libmicrospdy: {reason} ({}:{})", place.file(), place.line());
        std::process::abort();
    };
    let text = |text: &str| CString::new(text.replace('\0', " ")).unwrap_or_default();
    let (file, reason): (CString, CString) = (text(place.file()), text(reason));
    call(&handler, &file, place.line(), &reason);
}

fn call(handler: &PanicHandler, file: &CStr, line: u32, reason: &CStr) {
    handler.call(file, line as c_uint, reason);
}
