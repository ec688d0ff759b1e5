//! SOCKS5 without I/O: RFC 1928, user names and passwords of RFC 1929, and tor's extended errors.
//!
//! [`Server`] is spoken to by browsers, [`Client`] speaks to tor. A client may send everything at
//! once, greeting, credentials, request and the first bytes of the stream: [`Client::first_flight`]
//! does, and [`Server`] takes it so.

mod client;
mod datagram;
mod reply;
mod server;

pub use client::{Client, Progress, SocksError};
pub use datagram::Datagram;
pub use reply::Reply;
pub use server::{BadSocks, Command, Request, Server};

/// Protocol version.
const VERSION: u8 = 5;
/// Version of the user/password exchange (RFC 1929).
const AUTH_VERSION: u8 = 1;
/// Method: no authentication.
const NO_AUTH: u8 = 0;
/// Method: user name and password.
const USER_PASSWORD: u8 = 2;
/// Method: none is acceptable.
const NO_METHOD: u8 = 0xff;
/// Address types (RFC 1928 section 5).
const IPV4: u8 = 1;
const DOMAIN: u8 = 3;
const IPV6: u8 = 4;
