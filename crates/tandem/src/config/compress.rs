//! The option `compress`, which client and gateway have in common.

use serde::{Deserialize, Serialize};

/// The compression of bodies between the two proxies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum BodyCompression {
    /// Compress text that holds nothing personal, if both proxies can
    #[default]
    Auto,
    /// Compress nothing
    Off,
}

impl BodyCompression {
    /// Returns true if bodies are compressed.
    pub const fn is_on(self) -> bool {
        matches!(self, Self::Auto)
    }
}
