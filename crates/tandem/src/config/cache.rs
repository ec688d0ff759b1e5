//! The options of a gateway's cache and of its files: `cache`, `cache-memory`, `cache-users`,
//! `cache-dir`, `cache-disk-size` and `cache-key`.

use std::path::Path;

use tandem_cache::Sharing;
use tandem_fleet::FleetKey;

use super::ConfigError;
use super::client_cache::memory_of;
use super::gateway::{CacheOption, GatewayOptions};
use crate::back::origin::Mode;
use crate::disk_cache::{DiskConfig, check};
use crate::fleet::FleetConfig;
use crate::secret::unreadable;

/// The least bytes of the files.
const LEAST_DISK: u64 = 16 << 20;

impl GatewayOptions {
    /// Returns the configuration of the cache, or `None` without one.
    pub(super) fn caching(&self, mode: &Mode) -> Result<Option<tandem_cache::Config>, ConfigError> {
        let is_reverse = matches!(mode, Mode::Reverse { .. });
        let sharing = match self.cache.unwrap_or_default() {
            CacheOption::Off => return Ok(None),
            CacheOption::Private => Sharing::Private,
            CacheOption::Shared if is_reverse => Sharing::Origin,
            CacheOption::Shared => Sharing::Shared,
        };
        let memory = memory_of(self.cache_memory)?;
        let min_users = self.cache_users.unwrap_or(if is_reverse { 1 } else { 3 });
        if !(1..=4).contains(&min_users) {
            return Err(ConfigError::value("cache-users", "must be from 1 to 4"));
        }
        Ok(Some(tandem_cache::Config {
            sharing,
            memory,
            min_users,
        }))
    }

    /// Returns the configuration of the cache's files, or `None` without `cache-dir`.
    pub(super) fn disk(
        &self,
        cache: Option<&tandem_cache::Config>,
        fleet: Option<&FleetConfig>,
    ) -> Result<Option<DiskConfig>, ConfigError> {
        let bad = |key, problem: &str| Err(ConfigError::value(key, problem.to_owned()));
        let Some(directory) = &self.cache_dir else {
            return match (&self.cache_disk_size, &self.cache_key) {
                (Some(_), _) => bad("cache-disk-size", "needs cache-dir"),
                (None, Some(_)) => bad("cache-key", "needs cache-dir"),
                (None, None) => Ok(None),
            };
        };
        if cache.is_none_or(|cache| cache.sharing == Sharing::Private) {
            let problem = "needs --cache shared: the responses of a session never reach a disk";
            return bad("cache-dir", problem);
        }
        if self.cache_key.is_some() && fleet.is_some() {
            let problem = "does not go with share: while this gateway is down, others may \
                           invalidate the responses in its files";
            return bad("cache-key", problem);
        }
        let bytes = self.cache_disk_size.map_or(1 << 30, |size| size.0);
        if bytes < LEAST_DISK {
            return bad("cache-disk-size", "must be at least 16MiB");
        }
        check(directory).map_err(|error| ConfigError::value("cache-dir", error.to_string()))?;
        Ok(Some(DiskConfig {
            directory: directory.clone(),
            bytes,
            key: self.cache_key.as_deref().map(key).transpose()?,
        }))
    }
}

/// Reads the key of the files.
fn key(file: &Path) -> Result<FleetKey, ConfigError> {
    let bad =
        |problem: String| ConfigError::value("cache-key", format!("{}: {problem}", file.display()));
    let secret = std::fs::read(file).map_err(|error| bad(unreadable(file, &error)))?;
    FleetKey::new(&secret).map_err(|error| bad(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn typed(text: &str) -> Result<Option<DiskConfig>, String> {
        let options: GatewayOptions = toml::from_str(&format!(
            "listen = [\"h2+tcp://127.0.0.1:1\"]\nopen = true\n{text}"
        ))
        .unwrap();
        let config = options.typed().map_err(|error| error.to_string())?;
        Ok(config.disk)
    }

    #[test]
    fn files_need_a_shared_cache_and_a_directory() {
        let parent = std::env::temp_dir().join(format!("tandem-config-{}", std::process::id()));
        std::fs::create_dir(&parent).unwrap();
        std::fs::set_permissions(&parent, Permissions::from_mode(0o755)).unwrap();
        let file = parent.join("key");
        std::fs::write(&file, [b'k'; 32]).unwrap();
        std::fs::write(parent.join("short"), "short").unwrap();
        let shown = |name: &str| format!("{:?}", parent.join(name).display().to_string());
        let (dir, key) = (shown("new"), shown("key"));
        let short = shown("short");
        let shared = format!("cache = \"shared\"\ncache-dir = {dir}");
        let share = format!("share = \"redis://127.0.0.1\"\nshare-key = {key}");
        for (text, parts) in [
            (
                format!("cache-dir = {dir}"),
                ["cache-dir", "--cache shared"],
            ),
            (
                format!("cache = \"off\"\ncache-dir = {dir}"),
                ["cache-dir", "--cache shared"],
            ),
            (
                "cache = \"shared\"\ncache-disk-size = \"1GiB\"".to_owned(),
                ["cache-disk-size", "needs cache-dir"],
            ),
            (
                format!("cache = \"shared\"\ncache-key = {key}"),
                ["cache-key", "needs cache-dir"],
            ),
            (
                format!("{shared}\ncache-disk-size = \"1MiB\""),
                ["cache-disk-size", "16MiB"],
            ),
            (
                format!("cache = \"shared\"\ncache-dir = {key}"),
                ["cache-dir", "not a directory"],
            ),
            (
                format!("cache = \"shared\"\ncache-dir = {}", shown("")),
                ["cache-dir", "chmod 700"],
            ),
            (
                format!("cache = \"shared\"\ncache-dir = {}", shown("no/where")),
                ["cache-dir", "No such file"],
            ),
            (
                format!("{shared}\ncache-key = {short}"),
                ["cache-key", "openssl rand"],
            ),
            (
                format!("{shared}\ncache-key = {key}\n{share}"),
                ["cache-key", "does not go with share"],
            ),
        ] {
            let problem = typed(&text).unwrap_err();
            assert!(
                parts.iter().all(|part| problem.contains(part)),
                "{text}: {problem}"
            );
        }
        let disk = typed(&format!("{shared}\ncache-key = {key}"))
            .unwrap()
            .unwrap();
        assert!(disk.bytes == 1 << 30 && disk.key.is_some());
        assert!(typed(&format!("{shared}\n{share}")).unwrap().is_some());
        assert!(!parent.join("new").exists(), "a check creates nothing");
        std::fs::remove_dir_all(parent).unwrap();
    }
}
