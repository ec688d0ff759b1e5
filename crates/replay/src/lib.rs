//! Replays of access logs: the pushes that a predictor would have made, and their cost.
//!
//! The crate is a research tool. The proxies use only [`tandem_predict`], whose predictor `auto`
//! is replayed here beside the algorithms of the thesis *Speeding up Tor with SPDY*. Nothing here
//! opens a file, reads a clock or starts a thread:
//!
//! * **Logs.** [`log`] turns lines into records, [`agent`] recognises browsers, [`request_order`]
//!   restores the order of requests inside a second, and [`sessions`] cuts the records into
//!   sessions.
//! * **Predictors.** [`basic`] has the three documented algorithms (basic, basic-less, basic-more)
//!   with every option of [`options`]; [`learn`] has their statistics. [`auto`] drives the
//!   predictor of the gateway by a log, and `classes` tells pages from assets for it.
//! * **Runs.** [`run`] drives one predictor over a log, and [`grid`] evaluates many settings of
//!   the documented algorithms at once. [`cost`] has the counts and the PushCost function.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod agent;
pub mod auto;
pub mod basic;
mod classes;
pub mod cost;
pub mod grid;
pub mod interner;
pub mod learn;
pub mod log;
pub mod options;
pub mod request_order;
pub mod run;
pub mod sessions;

pub use auto::AutoReplay;
pub use basic::{Basic, Push};
pub use cost::{PushCost, Tally};
pub use options::{Algorithm, Options};
pub use run::{BasicReplay, replay, replay_basic};
pub use sessions::Sessions;
