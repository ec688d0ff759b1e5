//! The client's half: the store of answers that were pushed on one session.
//!
//! [`matching`] decides whether a pushed answer may serve a request.

mod encoding;
pub mod matching;
