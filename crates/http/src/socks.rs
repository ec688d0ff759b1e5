//! socks
