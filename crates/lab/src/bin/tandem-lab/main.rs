//! `tandem-lab`: experiments on emulated networks and on a private Tor network.

fn main() {}
