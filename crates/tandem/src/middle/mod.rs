//! The stages between `front` and `back`, each of which holds the next.
//!
//! They are isolation ([`isolate`]), the pair's own fields ([`pair_fields`]), `Max-Forwards`
//! ([`max_forwards`]), admission ([`auth`]), the use of connections ([`track`]), counting
//! ([`count`]), the access log ([`access_log`]), a new session's first bytes ([`warm_up`]), pushing
//! the resources of pages ([`push`]), and at the client the pushes that arrive ([`pushed`]) and the
//! time that pages take ([`loads`]).

pub mod access_log;
pub mod auth;
pub mod count;
pub mod isolate;
pub mod loads;
pub mod max_forwards;
pub mod pair_fields;
pub mod push;
pub mod pushed;
pub mod track;
pub mod warm_up;
