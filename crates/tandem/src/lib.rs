//! The proxy as a library. The client and the gateway are compositions of the same parts.
//!
//! ```text
//!            front                 middle               back
//!  accepts a protocol ──Exchange─▶ decides ──Exchange─▶ dials      sessions: http1 · mux · streams
//!                     ◀───Reply──          ◀───Reply──             transports: tcp · tls · socks · tor
//! ```
//!
//! - [`front`], [`middle`] and [`back`] are the pipeline. [`exchange`] holds the values that pass
//!   through it, [`stage`] the interface between its steps, and [`error`] the failures.
//! - [`session`] and [`transport`] hold the protocols, joined by a [`carrier`] of one [`path`] or
//!   many streams.
//! - [`endpoint`] and [`config`] hold the users' settings.
//! - [`roles`] holds the compositions, and [`runtime`] their threads.

pub mod admin;
pub mod announcement;
pub mod back;
pub mod body_memory;
pub mod carrier;
pub mod cli;
pub mod config;
pub mod connections;
pub mod descriptors;
pub mod digest_file;
pub mod disk_cache;
mod embedded;
pub mod end_listeners;
pub mod endpoint;
pub mod error;
pub mod exchange;
pub mod expiring;
pub mod failure;
mod files;
pub mod fleet;
pub mod front;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod hosts;
pub mod in_use;
#[cfg(feature = "submit")]
pub mod issuer;
pub mod journal;
pub mod learned;
pub mod log_limit;
pub mod metrics;
pub mod middle;
mod moment;
pub mod path;
pub mod path_speed;
pub mod priority;
pub mod probe;
pub mod renewal;
pub mod response_cache;
pub mod resume;
pub mod role_name;
pub mod roles;
pub mod runtime;
mod secret;
pub mod services;
pub mod session;
pub mod stage;
pub mod status;
mod textual;
pub mod token_bucket;
pub mod transport;
pub mod users;
mod versions;
pub mod visit_file;
pub mod wakers;
pub mod warm_up;
