//! Push prediction: the resources that a page will need, learned from traffic.
//!
//! Three layers, none of which opens a file, reads a clock or starts a thread:
//!
//! * **Predictors.** [`basic`] holds the three documented algorithms (basic, basic-less,
//!   basic-more) with every option of [`options`]; [`auto`] holds the predictor with one setting
//!   that the gateway uses. Both are driven by the same three calls: a response is being sent, a
//!   push was cancelled, a session was closed.
//! * **Replay.** [`log`] turns access-log lines into records, [`order`] restores the order of
//!   requests inside a second, [`replay`] cuts sessions and counts the pushes that a predictor
//!   would have made, [`grid`] does so for many settings at once.
//! * **Accounts.** [`cost`] holds the counts and the PushCost function.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod agent;
pub mod auto;
pub mod basic;
pub mod cost;
pub mod crowd;
pub mod grid;
pub mod ids;
pub mod learn;
pub mod log;
pub mod options;
pub mod order;
pub mod replay;

pub use auto::{Auto, AutoConfig, Candidate, Exchange, Gains, Gathering, StateError, Worth};
pub use basic::{Basic, Push};
pub use cost::{PushCost, Tally};
pub use options::{Algorithm, Options};
