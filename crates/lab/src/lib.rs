//! Instruments: page models, origins, loaders, link emulator, private Tor network.

pub mod bench;
pub mod browser;
pub mod emulator;
pub mod experiment;
pub mod har;
pub mod loader;
pub mod measure;
pub mod netns;
pub mod origin;
pub mod page;
pub mod slowpath;
pub mod stats;
pub mod timing;
pub mod tornet;
