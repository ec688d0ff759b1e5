//! The options of a gateway that shares its knowledge with others: `share`, `share-key` and
//! `share-memory`.

use super::ConfigError;
use super::gateway::{GatewayOptions, PushConfig};
use crate::fleet::{EngineAddress, FleetConfig};
use crate::secret::unreadable;

impl GatewayOptions {
    /// Returns the configuration of the fleet, or `None` without `share`.
    pub(super) fn fleet(
        &self,
        push: Option<&PushConfig>,
    ) -> Result<Option<FleetConfig>, ConfigError> {
        if self.share.is_none() && self.share_memory.is_some() {
            return Err(ConfigError::value("share-memory", "needs share"));
        }
        let (share, file) = match (&self.share, &self.share_key) {
            (None, None) => return Ok(None),
            (None, Some(_)) => return Err(ConfigError::value("share-key", "needs share")),
            (Some(_), None) => {
                let problem = "needs share-key: a file with at least 32 random bytes, the same for \
                               all gateways";
                return Err(ConfigError::value("share", problem));
            }
            (Some(share), Some(file)) => (share, file),
        };
        if push.is_none_or(|push| push.predictor.is_none()) {
            return Err(ConfigError::value(
                "share",
                "needs push and predict, which are off",
            ));
        }
        let bad_address = |problem: String| ConfigError::value("share", problem);
        let engine = EngineAddress::parse(share).map_err(bad_address)?;
        engine.check().map_err(bad_address)?;
        let bad_key = |problem: String| {
            ConfigError::value("share-key", format!("{}: {problem}", file.display()))
        };
        let secret = std::fs::read(file).map_err(|error| bad_key(unreadable(file, &error)))?;
        let key =
            tandem_fleet::FleetKey::new(&secret).map_err(|error| bad_key(error.to_string()))?;
        let password_file = engine.password_file().map(Into::into);
        Ok(Some(FleetConfig {
            engine,
            key,
            memory: self.share_memory.map_or(64 << 20, |size| size.0),
            secret_files: password_file.into_iter().chain([file.clone()]).collect(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        let options: GatewayOptions = toml::from_str(&format!(
            "listen = [\"h2+tcp://127.0.0.1:1\"]\nopen = true\n{text}"
        ))
        .unwrap();
        options.typed().unwrap_err().to_string()
    }

    #[test]
    fn share_needs_a_key_and_the_predictor() {
        let file = std::env::temp_dir().join(format!("tandem-fleet-{}", std::process::id()));
        std::fs::write(&file, "too short").unwrap();
        let key = format!("share-key = {:?}", file.display().to_string());
        let share = "share = \"redis://127.0.0.1\"";
        for (text, parts) in [
            (share.to_owned(), ["share", "needs share-key"]),
            (key.clone(), ["share-key", "needs share"]),
            (
                "share-memory = \"1MiB\"".to_owned(),
                ["share-memory", "needs share"],
            ),
            (format!("{share}\n{key}"), ["share-key", "openssl rand"]),
            (
                format!("{share}\n{key}\npredict = false"),
                ["share", "needs push"],
            ),
            (
                format!("{share}\nshare-key = \"/nonexistent\""),
                ["/nonexistent", "share-key"],
            ),
            (
                format!("share = \"http://127.0.0.1\"\n{key}"),
                ["share", "redis://"],
            ),
        ] {
            let problem = problem(&text);
            assert!(
                parts.iter().all(|part| problem.contains(part)),
                "{text}: {problem}"
            );
        }
        std::fs::remove_file(file).unwrap();
    }
}
