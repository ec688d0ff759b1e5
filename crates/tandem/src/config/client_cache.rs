//! The option `cache` of a client, and `cache-memory` of both proxies.

use serde::{Deserialize, Serialize};
use tandem_cache::{Config, Sharing};

use super::ConfigError;
use super::units::Size;

/// The option `cache` of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ClientCache {
    /// Store nothing
    #[default]
    Off,
    /// Store responses for the isolation key that fetched them
    Private,
}

impl ClientCache {
    /// Returns the configuration of a client's cache; `None` without one.
    pub(super) fn typed(
        option: Option<Self>,
        memory: Option<Size>,
    ) -> Result<Option<Config>, ConfigError> {
        let memory = memory_of(memory)?;
        let config = Config {
            sharing: Sharing::Client,
            memory,
            min_users: 1,
        };
        Ok((option == Some(Self::Private)).then_some(config))
    }
}

/// Returns the bytes of memory for a cache.
pub(super) fn memory_of(option: Option<Size>) -> Result<u64, ConfigError> {
    let memory = option.map_or(64 << 20, |size| size.0);
    if memory < 1 << 20 {
        return Err(ConfigError::value("cache-memory", "must be at least 1MiB"));
    }
    Ok(memory)
}
