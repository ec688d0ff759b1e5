//! What happens to an exchange between `front` and `back`: isolation ([`isolate`]), admission ([`auth`]), counting
//! ([`count`]), pushing what a page says it needs ([`associated`]). Each is a stage that holds the next.

pub mod associated;
pub mod auth;
pub mod count;
pub mod isolate;
