//! What happens to an exchange between `front` and `back`: isolation ([`isolate`]), admission ([`auth`]), counting
//! ([`count`]), pushing what a page says it needs ([`associated`]) and keeping what was pushed ([`pushed`]). All but the
//! last are stages that hold the next; the store of pushes belongs to a session and so to the pool in `back`.

pub mod associated;
pub mod auth;
pub mod count;
pub mod isolate;
pub mod pushed;
