//! The option `compress`, which client and gateway have in common.

use serde::{Deserialize, Serialize};

/// The compression of bodies between the two proxies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum BodyCompression {
    /// Compress text that holds nothing personal, if both proxies can. Text that the origin sent
    /// with gzip reaches the browser without it
    #[default]
    Auto,
    /// The same for uncompressed text only, so that the browser gets each byte as the origin sent
    /// it
    Exact,
    /// Compress nothing
    Off,
}

impl BodyCompression {
    /// Returns true if bodies are compressed.
    pub const fn is_on(self) -> bool {
        matches!(self, Self::Auto | Self::Exact)
    }

    /// Returns true if bodies may lose the coding of their origin.
    pub const fn permits_recoding(self) -> bool {
        matches!(self, Self::Auto)
    }
}
