//! The options of an issuer of tokens, and the configuration that they make: the listeners, the
//! accounts and the keys.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::gateway::listeners;
use super::near::{NearConfig, NearOptions};
use super::units::Span;
use super::{ConfigError, PathValues, options};
use crate::endpoint::{Endpoint, Usage};
use crate::issuer::{IssuerSettings, read_accounts};
use crate::role_name::RoleName;
use crate::transport::registry::Transports;

/// The tokens of an account in an epoch, without an option.
const TOKENS: u64 = 100;

options! { @all
    /// Options of `tandem issuer`; each is a flag and a key of `[issuer]`.
    IssuerOptions {
        /// Listener for clients: h2+tls://ADDRESS:PORT?cert=FILE&key=FILE, h2+tcp://127.0.0.1:9980,
        /// … (repeatable)
        listen: Vec<Endpoint> [help_heading = "Listening", value_name = "URL", value_parser = |text: &str| Usage::GatewayListener.parse(text)] with "listeners",
        /// File with the accounts, in the form of --submit-rights; per-day is the number of tokens
        /// in an epoch
        accounts: Option<String> [help_heading = "Tokens", value_name = "FILE"],
        /// Directory for the keys and the numbers of issued tokens; only this user may read it
        keys: Option<PathBuf> [help_heading = "Tokens", value_name = "DIRECTORY"],
        /// Length of an epoch, in whole hours up to 744h; tokens are valid for one to two epochs
        /// [default: 24h]
        epoch: Option<Span> [help_heading = "Tokens", value_name = "TIME"],
        /// Number of tokens of an account in an epoch, for accounts without per-day [default: 100]
        tokens: Option<u64> [help_heading = "Tokens", value_name = "N"],
        /// Admit accounts with a certificate from this authority: client-ca=FILE
        auth: Vec<String> [help_heading = "Tokens", value_name = "CREDENTIAL"],
        /// Number of threads [default: one for each core]
        workers: Option<usize> [help_heading = "Listening", value_name = "N"],
        /// Address of the listener for Prometheus metrics, loopback only [default: none]
        metrics: Option<SocketAddr> [help_heading = "Watching", value_name = "ADDRESS"],
        /// Address of the listener for the operator's page, loopback only; `tandem open` opens it
        /// [default: none]
        admin: Option<SocketAddr> [help_heading = "Watching", value_name = "ADDRESS"],
        /// Path of the Unix socket for `tandem open` and `top`, accessible to this user only
        /// [default: none]
        control: Option<PathBuf> [help_heading = "Watching", value_name = "PATH"],
        /// Log level or filter, such as info or tandem=debug [default: info]
        log: Option<String> [help_heading = "Watching", value_name = "FILTER"],
    }
}

/// The checked configuration of an issuer.
#[derive(Clone, Debug)]
pub struct IssuerConfig {
    /// The end towards clients.
    pub near: NearConfig,
    /// The files and numbers of the issuer.
    pub settings: IssuerSettings,
}

impl IssuerOptions {
    /// Checks the options; the endpoints may name the given transports.
    ///
    /// # Errors
    /// Fails if an option is missing or not valid, or if the file of accounts cannot be read.
    pub fn typed_with(self, transports: &Transports) -> Result<IssuerConfig, ConfigError> {
        let needed = |key, remedy: &str| ConfigError::value(key, format!("give {remedy}"));
        let accounts = self
            .accounts
            .ok_or_else(|| needed("accounts", "a TOML file of accounts"))?;
        let keys = self
            .keys
            .ok_or_else(|| needed("keys", "a directory that only this user may read"))?;
        if self.auth.iter().any(|auth| !auth.starts_with("client-ca=")) {
            return Err(ConfigError::value("auth", "must be client-ca=FILE"));
        }
        let epoch = self
            .epoch
            .map_or(Duration::from_secs(86_400), |span| span.0);
        let hours = epoch.as_secs() / 3600;
        if epoch != Duration::from_secs(hours * 3600) || !(1..=744).contains(&hours) {
            return Err(ConfigError::value(
                "epoch",
                "must be from 1h to 744h, in whole hours",
            ));
        }
        let rights = read_accounts(&accounts)
            .map_err(|error| ConfigError::value("accounts", error.to_string()))?;
        if rights.has_certificates() && self.auth.is_empty() {
            return Err(ConfigError::value(
                "accounts",
                "accounts with certificates need --auth client-ca=FILE",
            ));
        }
        let near = NearOptions {
            listen: self.listen,
            open: self.auth.is_empty().then_some(true),
            auth: self.auth,
            workers: self.workers,
            metrics: self.metrics,
            admin: self.admin,
            control: self.control,
            ..NearOptions::default()
        };
        let path = PathValues::default().typed()?;
        Ok(IssuerConfig {
            near: near.typed(RoleName::Issuer, path, false, transports)?,
            settings: IssuerSettings {
                accounts,
                keys,
                epoch: epoch.as_secs(),
                tokens: self.tokens.unwrap_or(TOKENS),
            },
        })
    }
}
