//! Instruments: page models, origins, loaders, link emulator, private Tor network.

pub mod emulator;
pub mod netns;
pub mod tornet;
