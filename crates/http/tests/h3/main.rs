//! Tests of the HTTP/3 core: exchanges between two cores, recorded bytes, and a peer that speaks
//! raw frames.

mod datagrams;
mod early;
mod exchanges;
mod rules;
mod support;
mod vectors;
