//! What happens to an exchange between `front` and `back`: isolation ([`isolate`]), admission ([`auth`]), counting
//! ([`count`]). Each is a stage that holds the next.

pub mod auth;
pub mod count;
pub mod isolate;
