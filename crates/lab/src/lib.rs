//! Instruments: page models, origins, loaders, link emulator, private Tor network.
