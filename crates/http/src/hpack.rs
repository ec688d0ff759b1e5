//! hpack
