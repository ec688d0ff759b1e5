//! The crate from outside: other people's frames, whole exchanges, broken rules, and the CRIME
//! guess.

mod adversary;
mod crime;
mod exchange;
mod floods;
mod model;
mod rules;
mod server;
mod support;
mod vectors;
