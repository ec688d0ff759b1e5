//! A C library with the interface of libmicrospdy: it serves SPDY/3 and SPDY/3.1 to C programs.
//!
//! ```text
//!   C program ─▶ ffi (functions, callbacks) ─▶ handles ─▶ daemon ─▶ tandem_spdy::Connection
//!                 c/options.c (variadics)                   └────▶ transport ─▶ socket
//! ```
//!
//! * `ffi`: the exported functions and the calls of the program's callbacks. Unsafe code is here,
//!   and in `sys`.
//! * `handles`: the table that turns the opaque pointers of C into objects, and refuses stale ones.
//! * `daemon`: listeners, sessions and responses. A daemon is an adapter between non-blocking
//!   sockets and the sans-IO sessions of `tandem-spdy`.
//! * `transport`: plain TCP and TLS.
//! * `name_value`, `settings`, `response`: the values that programs build.
//!
//! The library starts no thread and touches no signal. Callbacks run inside `SPDY_run` and
//! `SPDY_stop_daemon`, without a lock, and may call every function of the library.

#![warn(clippy::undocumented_unsafe_blocks)]

mod daemon;
pub mod ffi;
mod guard;
mod handles;
mod name_value;
mod response;
mod settings;
mod sys;
mod transport;
mod user_data;
