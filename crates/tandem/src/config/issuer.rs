//! The options of an issuer of tokens, and the configuration that they make: the listeners of a
//! gateway without origins, the accounts and the keys.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tandem_store::issued::IssuedTokens;
use tandem_submit::rights::Rights;
use tandem_tokens::epoch::Epochs;

use super::gateway::listeners;
use super::units::Span;
use super::{ConfigError, GatewayConfig, GatewayOptions, options};
use crate::endpoint::{Endpoint, Usage};
use crate::middle::issuer::keys::EpochKeys;
use crate::middle::issuer::{Issuer, now};
use crate::renewal::{self, Renewable};
use crate::transport::registry::Transports;

/// The tokens of an account in an epoch, without an option.
const TOKENS: u64 = 100;

/// The time between two looks for a new epoch.
const RENEWAL: Duration = Duration::from_secs(5);

options! { @all
    /// Options of `tandem issuer`; each is a flag and a key of `[issuer]`.
    IssuerOptions {
        /// Listener for clients: h2+tls://ADDRESS:PORT?cert=FILE&key=FILE, h2+tcp://127.0.0.1:9980, …
        /// (repeatable)
        listen: Vec<Endpoint> [help_heading = "Listening", value_name = "URL", value_parser = |text: &str| Usage::GatewayListener.parse(text)] with "listeners",
        /// File with the accounts, in the form of --submit-rights; per-day is the number of tokens in
        /// an epoch
        accounts: Option<String> [help_heading = "Tokens", value_name = "FILE"],
        /// Directory for the keys and the numbers of issued tokens; only this user may read it
        keys: Option<PathBuf> [help_heading = "Tokens", value_name = "DIRECTORY"],
        /// Length of an epoch, in whole hours; tokens are valid for one to two epochs [default: 24h]
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
    /// The listeners and limits of a gateway without origins.
    pub near: GatewayConfig,
    /// The file of accounts.
    pub accounts: String,
    /// The directory of keys.
    pub keys: PathBuf,
    /// The length of an epoch in seconds.
    pub epoch: u64,
    /// The tokens of an account in an epoch.
    pub tokens: u64,
    /// The issuer, once it is open. It outlives a reload.
    pub opened: Arc<OnceLock<Arc<Issuer>>>,
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
        let rights = read_accounts(&accounts)?;
        if rights.has_certificates() && self.auth.is_empty() {
            return Err(ConfigError::value(
                "accounts",
                "accounts with certificates need --auth client-ca=FILE",
            ));
        }
        let near = GatewayOptions {
            listen: self.listen,
            open: self.auth.is_empty().then_some(true),
            auth: self.auth,
            workers: self.workers,
            push: Some(false),
            metrics: self.metrics,
            admin: self.admin,
            control: self.control,
            ..GatewayOptions::default()
        };
        Ok(IssuerConfig {
            near: near.typed_as("issuer", transports)?,
            accounts,
            keys,
            epoch: epoch.as_secs(),
            tokens: self.tokens.unwrap_or(TOKENS),
            opened: Arc::default(),
        })
    }
}

impl IssuerConfig {
    /// Returns the issuer, and opens it first if it is not open. The first start takes some
    /// seconds. A thread then renews its keys.
    ///
    /// # Errors
    /// Returns the reason why a file cannot be used.
    pub fn issuer(&self) -> Result<Arc<Issuer>, ConfigError> {
        if let Some(opened) = self.opened.get() {
            return Ok(Arc::clone(opened));
        }
        let issuer = Arc::new(self.open()?);
        let weak = Arc::downgrade(&issuer);
        let thread = std::thread::Builder::new().name("tandem-issuer".into());
        let thread = thread.spawn(move || renew(&weak));
        thread.map_err(|error| ConfigError::value("keys", format!("no thread: {error}")))?;
        // Roles are opened by one thread, one after the other.
        Ok(Arc::clone(self.opened.get_or_init(|| issuer)))
    }

    fn open(&self) -> Result<Issuer, ConfigError> {
        let wrong = |problem: String| ConfigError::value("keys", problem);
        self.make_directory()
            .map_err(|error| wrong(format!("{}: {error}", self.keys.display())))?;
        let keys = EpochKeys::open(&self.keys, Epochs::new(self.epoch), now());
        let keys = keys.map_err(|error| wrong(error.to_string()))?;
        let issued = IssuedTokens::open(&self.keys.join("issued"));
        let issued = issued.map_err(|error| wrong(error.to_string()))?;
        let file = self.accounts.clone();
        let name = format!("the accounts in {file}");
        let files = vec![PathBuf::from(&file)];
        let accounts = Renewable::new(name, files, move || read_accounts(&file))?;
        let accounts: Arc<_> = renewal::watch(accounts);
        Ok(Issuer::new(keys, accounts, issued, self.tokens))
    }

    /// Creates the directory of keys, and removes the permissions of others.
    fn make_directory(&self) -> std::io::Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::create_dir_all(&self.keys)?;
        std::fs::set_permissions(&self.keys, std::fs::Permissions::from_mode(0o700))
    }
}

/// Renews the keys of an issuer as long as it exists.
fn renew(issuer: &Weak<Issuer>) {
    loop {
        std::thread::sleep(RENEWAL);
        match issuer.upgrade() {
            Some(issuer) => issuer.renew(),
            None => return,
        }
    }
}

fn read_accounts(file: &str) -> Result<Rights, ConfigError> {
    let wrong = |problem: String| ConfigError::value("accounts", format!("{file}: {problem}"));
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    Rights::parse(&text).map_err(|error| wrong(error.to_string()))
}
