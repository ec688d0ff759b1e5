//! The callbacks of programs: their types in C, and safe functions that call them.
//!
//! No lock is held during a call, and each object that is passed in lives until the call returns.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::YES;
use crate::handles::Handle;
use crate::name_value::Pair;
use crate::user_data::UserData;

/// `SPDY_PanicCallback`.
pub type PanicFn = unsafe extern "C" fn(*mut c_void, *const c_char, c_uint, *const c_char);
/// `SPDY_NewSessionCallback`.
pub type NewSessionFn = unsafe extern "C" fn(*mut c_void, *mut c_void);
/// `SPDY_SessionClosedCallback`.
pub type SessionClosedFn = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int);
/// `SPDY_NameValueIterator`.
pub type NameValueFn =
    unsafe extern "C" fn(*mut c_void, *const c_char, *const *const c_char, c_int) -> c_int;
/// `SPDY_NewRequestCallback`.
pub type NewRequestFn = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    u8,
    *const c_char,
    *const c_char,
    *const c_char,
    *const c_char,
    *const c_char,
    *mut c_void,
    bool,
);
/// `SPDY_NewDataCallback`.
pub type NewDataFn =
    unsafe extern "C" fn(*mut c_void, *mut c_void, *const c_void, usize, bool) -> c_int;
/// `SPDY_ResponseCallback`.
pub type BodyFn = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut bool) -> isize;
/// `SPDY_ResponseResultCallback`.
pub type ResultFn = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void, c_int, bool);
/// `SPDYX_RequestEndedCallback`.
pub type EndedFn = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int);
/// `SPDY_PingCallback`.
pub type PingFn = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut libc::timeval);
/// `SPDY_SettingsIterator`.
pub type SettingsFn = unsafe extern "C" fn(*mut c_void, c_int, i32, u8) -> c_int;

/// The result of a response: `SPDY_RESPONSE_RESULT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All of it was written to the socket.
    Success = 0,
    /// The session ended first.
    SessionClosed = 1,
    /// The stream ended first.
    StreamClosed = 2,
}

/// The program's handler of faults.
#[derive(Clone, Debug)]
pub(crate) struct PanicHandler {
    pub(crate) function: PanicFn,
    pub(crate) cls: UserData,
}

impl PanicHandler {
    pub(crate) fn call(&self, file: &CStr, line: c_uint, reason: &CStr) {
        // SAFETY: the program passed this function for this call; the texts outlive it.
        unsafe { (self.function)(self.cls.get(), file.as_ptr(), line, reason.as_ptr()) }
    }
}

/// The callbacks of a daemon, each of which may be missing.
#[derive(Debug)]
pub(crate) struct Callbacks {
    pub(crate) new_session: Option<NewSessionFn>,
    pub(crate) session_closed: Option<SessionClosedFn>,
    pub(crate) new_request: Option<NewRequestFn>,
    pub(crate) new_data: Option<NewDataFn>,
    pub(crate) cls: UserData,
}

/// The arguments of [`Callbacks::new_request`].
pub(crate) struct NewRequest<'a> {
    pub(crate) request: Handle,
    pub(crate) priority: u8,
    /// Method, path, version, host and scheme.
    pub(crate) texts: [&'a CStr; 5],
    pub(crate) headers: Handle,
    pub(crate) more: bool,
}

impl Callbacks {
    pub(crate) fn new_session(&self, session: Handle) {
        if let Some(function) = self.new_session {
            // SAFETY: the program passed this function for this call; the handle is an opaque
            // number.
            unsafe { function(self.cls.get(), session.pointer()) }
        }
    }

    pub(crate) fn session_closed(&self, session: Handle, by_client: bool) {
        if let Some(function) = self.session_closed {
            // SAFETY: as for `new_session`.
            unsafe { function(self.cls.get(), session.pointer(), c_int::from(by_client)) }
        }
    }

    pub(crate) fn new_request(&self, new: &NewRequest<'_>) {
        let [method, path, version, host, scheme] = new.texts.map(CStr::as_ptr);
        if let Some(function) = self.new_request {
            // SAFETY: the program passed this function for this call. The texts belong to the
            // request entry, which the caller holds.
            unsafe {
                function(
                    self.cls.get(),
                    new.request.pointer(),
                    new.priority,
                    method,
                    path,
                    version,
                    host,
                    scheme,
                    new.headers.pointer(),
                    new.more,
                );
            }
        }
    }

    /// Passes a part of a request body on. Returns false if the program wants no more of it.
    pub(crate) fn new_data(&self, request: Handle, data: &[u8], more: bool) -> bool {
        let Some(function) = self.new_data else {
            return false;
        };
        let (cls, bytes) = (self.cls.get(), data.as_ptr().cast());
        // SAFETY: the program passed this function for this call; the bytes outlive it.
        unsafe { function(cls, request.pointer(), bytes, data.len(), more) != 0 }
    }
}

/// The source of a response body.
#[derive(Clone, Debug)]
pub(crate) struct BodyCallback {
    pub(crate) function: BodyFn,
    pub(crate) cls: UserData,
    /// The size of a block, in bytes.
    pub(crate) block: usize,
}

/// A block of a body from a callback.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Block {
    /// Bytes, and whether more may follow.
    Bytes(Vec<u8>, bool),
    /// The program gave up.
    Failed,
}

impl BodyCallback {
    /// Fetches the next block.
    pub(crate) fn call(&self) -> Block {
        let mut buffer = vec![0; self.block];
        let mut more = false;
        // SAFETY: the program passed this function for this call; the buffer has the size that is
        // passed along.
        let count = unsafe {
            (self.function)(
                self.cls.get(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                &raw mut more,
            )
        };
        match usize::try_from(count) {
            Ok(count) if count <= buffer.len() => {
                buffer.truncate(count);
                Block::Bytes(buffer, more)
            }
            _ => Block::Failed,
        }
    }
}

/// The callback for the result of a response.
#[derive(Debug)]
pub(crate) struct ResultCallback {
    pub(crate) function: ResultFn,
    pub(crate) cls: UserData,
}

impl ResultCallback {
    pub(crate) fn call(&self, response: Handle, request: Handle, outcome: Outcome, open: bool) {
        let (response, request) = (response.pointer(), request.pointer());
        // SAFETY: the program passed this function for this call; handles are opaque numbers.
        unsafe { (self.function)(self.cls.get(), response, request, outcome as c_int, open) }
    }
}

/// The callback for requests that end without a response.
#[derive(Clone, Debug)]
pub(crate) struct EndedCallback {
    pub(crate) function: EndedFn,
    pub(crate) cls: UserData,
}

impl EndedCallback {
    pub(crate) fn call(&self, request: Handle, outcome: Outcome) {
        // SAFETY: the program passed this function for this call; the handle is an opaque number.
        unsafe { (self.function)(self.cls.get(), request.pointer(), outcome as c_int) }
    }
}

/// The callback for the answer to a ping.
#[derive(Debug)]
pub(crate) struct PingCallback {
    pub(crate) function: PingFn,
    pub(crate) cls: UserData,
}

impl PingCallback {
    pub(crate) fn call(&self, session: Handle, round_trip: std::time::Duration) {
        let mut time = libc::timeval {
            tv_sec: libc::time_t::try_from(round_trip.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_usec: round_trip.subsec_micros().into(),
        };
        // SAFETY: the program passed this function for this call; `time` outlives it.
        unsafe { (self.function)(self.cls.get(), session.pointer(), &raw mut time) }
    }
}

/// Visits the pairs of a list while the iterator returns `SPDY_YES`, as in libmicrospdy. Returns
/// the number of visited pairs.
pub(crate) fn visit_pairs(
    pairs: &[std::sync::Arc<Pair>],
    function: NameValueFn,
    cls: *mut c_void,
) -> c_int {
    let mut visited = 0;
    for pair in pairs {
        let (values, count) = pair.array();
        visited += 1;
        // SAFETY: the program passed this function for this call; the caller holds the pairs.
        let result = unsafe { function(cls, pair.name.as_ptr(), values, count as c_int) };
        if result != YES {
            break;
        }
    }
    visited
}

/// Visits the entries of a set while the iterator returns `SPDY_YES`, as in libmicrospdy. Returns
/// the number of visited entries.
pub(crate) fn visit_settings(
    entries: &[tandem_spdy::frame::Setting],
    function: SettingsFn,
    cls: *mut c_void,
) -> c_int {
    let mut visited = 0;
    for entry in entries {
        visited += 1;
        // SAFETY: the program passed this function for this call.
        let result = unsafe { function(cls, entry.id as c_int, entry.value as i32, entry.flags) };
        if result != YES {
            break;
        }
    }
    visited
}
