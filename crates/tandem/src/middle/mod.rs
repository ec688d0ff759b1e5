//! What happens to an exchange between `front` and `back`: isolation ([`isolate`]), admission
//! ([`auth`]), counting ([`count`]), a new session's first bytes ([`warm_up`]), pushing what a page
//! needs ([`push`]), and at the other end how long pages take ([`loads`]). Each is a stage that
//! holds the next.

pub mod auth;
pub mod count;
pub mod isolate;
pub mod loads;
pub mod push;
pub mod warm_up;
