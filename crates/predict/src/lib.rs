//! Push prediction: the resources that a page will need, learned from traffic.
//!
//! [`auto`] is the predictor of the gateway. It has one setting for every site. [`crowd`] counts
//! the users of a name, and [`ids`] has the containers of both. Nothing here opens a file, reads a
//! clock or starts a thread. The crate `tandem-replay` drives the predictor by access logs, and
//! compares it with documented algorithms.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod auto;
pub mod crowd;
pub mod ids;

pub use auto::{
    Aim, Auto, AutoConfig, Candidate, Exchange, Gains, Gathering, Saving, StateError, Worth,
    read_state,
};
