//! Push prediction: what a page will need, learned from traffic.
