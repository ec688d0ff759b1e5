//! Tests of the HTTP/2 core: exchanges between two cores, and a peer that speaks raw frames.

mod exchanges;
mod floods;
mod pushed;
mod rules;
mod support;
mod windows;
