//! The proxy, as a library: both ends of a slow path are compositions of the same parts.
//!
//! ```text
//!            front                 middle               back
//!  accepts a protocol ──Exchange─▶ decides ──Exchange─▶ dials      sessions: http1 · mux (h2, spdy)
//!                     ◀───Reply──          ◀───Reply──             transports: tcp · tls · socks · tor
//! ```
//!
//! [`exchange`] the values that travel, [`stage`] the interface they travel by, [`error`] what can
//! go wrong; [`front`], [`middle`], [`back`] the pipeline; [`session`] and [`transport`] what it
//! speaks and over what, joined only by a [`carrier`] of one [`path`] or many streams; [`endpoint`] and [`config`] what users write;
//! [`roles`] the compositions, [`runtime`] their threads.

pub mod admin;
pub mod back;
pub mod carrier;
pub mod cli;
pub mod config;
pub mod endpoint;
pub mod error;
pub mod exchange;
pub mod failure;
pub mod front;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod gauge;
pub mod learned;
pub mod log_limit;
pub mod metrics;
pub mod middle;
pub mod path;
pub mod priority;
pub mod probe;
pub mod renewal;
pub mod roles;
pub mod runtime;
pub mod services;
pub mod session;
pub mod stage;
pub mod status;
pub mod transport;
pub mod warm_up;
