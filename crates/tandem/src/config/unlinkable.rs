//! The configuration of unlinkable submissions (`submit-issuers`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use tandem_submit::issuers::{self, Issuer};
use tandem_submit::store::{LONGEST_BATCH_WAIT, Millis};
use tandem_tokens::challenge::TokenChallenge;
use tandem_tokens::directory::Directory;
use tandem_tokens::epoch::Epochs;
use tandem_tokens::oblivious::GatewayKey;
use tandem_tokens::redemption::AcceptedIssuer;

use super::{ConfigError, GatewayOptions};
use crate::middle::submit::oblivious::{TrustedIssuer, Unlinkable};
use crate::renewal::{self, Renewable};

/// The submissions of a batch, without an option.
const BATCH: usize = 20;

/// The longest time of a batch, without an option.
const BATCH_WAIT: Duration = Duration::from_secs(600);

/// The longest time that a batch may take.
const LONGEST_WAIT: Duration = Duration::from_millis(LONGEST_BATCH_WAIT.unsigned_abs());

impl GatewayOptions {
    /// Checks the options of unlinkable submissions. Returns `None` without them.
    pub(super) fn unlinkable(&self) -> Result<Option<Arc<Unlinkable>>, ConfigError> {
        let Some(file) = &self.submit_issuers else {
            return match [
                ("submit-oblivious-key", self.submit_oblivious_key.is_some()),
                ("submit-batch", self.submit_batch.is_some()),
                ("submit-batch-wait", self.submit_batch_wait.is_some()),
            ]
            .into_iter()
            .find(|(_, is_set)| *is_set)
            {
                Some((key, _)) => Err(ConfigError::value(key, "needs --submit-issuers FILE")),
                None => Ok(None),
            };
        };
        let key = self.submit_oblivious_key.as_ref().ok_or_else(|| {
            ConfigError::value(
                "submit-oblivious-key",
                "submit-issuers needs it: openssl genpkey -algorithm x25519 makes one",
            )
        })?;
        let size = self.submit_batch.unwrap_or(BATCH);
        if size == 0 {
            return Err(ConfigError::value("submit-batch", "must be at least 1"));
        }
        let wait = self.submit_batch_wait.map_or(BATCH_WAIT, |span| span.0);
        if wait > LONGEST_WAIT {
            return Err(ConfigError::value(
                "submit-batch-wait",
                "must be at most 24h",
            ));
        }
        let wait = Millis::try_from(wait.as_millis()).unwrap_or(Millis::MAX);
        let mut files = vec![PathBuf::from(file)];
        files.extend(
            read_entries(file)?
                .iter()
                .map(|entry| directory(file, entry)),
        );
        let (name, read) = (format!("the issuers in {file}"), file.clone());
        let issuers = Renewable::new(name, files, move || read_issuers(&read))?;
        let issuers = renewal::watch(issuers);
        let key = read_key(key)?;
        Ok(Some(Arc::new(Unlinkable::new(issuers, key, size, wait))))
    }
}

fn read_key(file: &str) -> Result<GatewayKey, ConfigError> {
    let wrong =
        |problem: &str| ConfigError::value("submit-oblivious-key", format!("{file}: {problem}"));
    const REMEDY: &str = "it holds no X25519 key: make one with openssl genpkey -algorithm x25519";
    let pem = std::fs::read(file).map_err(|error| wrong(&error.to_string()))?;
    let der = PrivatePkcs8KeyDer::from_pem_slice(&pem).map_err(|_| wrong(REMEDY))?;
    GatewayKey::from_pkcs8(der.secret_pkcs8_der()).map_err(|_| wrong(REMEDY))
}

fn wrong(file: &str, problem: &str) -> ConfigError {
    ConfigError::value("submit-issuers", format!("{file}: {problem}"))
}

fn read_entries(file: &str) -> Result<Vec<Issuer>, ConfigError> {
    let text = std::fs::read_to_string(file).map_err(|error| wrong(file, &error.to_string()))?;
    issuers::parse(&text).map_err(|error| wrong(file, &error.to_string()))
}

/// Returns the file of an issuer's directory. A relative path begins at the file of issuers.
fn directory(file: &str, issuer: &Issuer) -> PathBuf {
    let parent = Path::new(file).parent().map(Path::to_owned);
    parent.unwrap_or_default().join(&issuer.directory)
}

fn read_issuers(file: &str) -> Result<Vec<TrustedIssuer>, ConfigError> {
    let trusted = |(at, issuer): (usize, Issuer)| {
        let path = directory(file, &issuer);
        let wrong = |problem: String| {
            let path = path.display();
            wrong(file, &format!("issuer {}: {path}: {problem}", at + 1))
        };
        let text = std::fs::read(&path).map_err(|error| wrong(error.to_string()))?;
        let keys = Directory::read(&text).map_err(|error| wrong(error.to_string()))?;
        let challenge = TokenChallenge {
            issuer_name: issuer.name,
            redemption_context: None,
            origin_info: issuer.origin,
        };
        let accepted = AcceptedIssuer::new(challenge, Epochs::new(issuer.epoch), keys);
        Ok(TrustedIssuer {
            accepted: accepted.map_err(|error| wrong(error.to_string()))?,
            rights: issuer.rights,
        })
    };
    read_entries(file)?
        .into_iter()
        .enumerate()
        .map(trusted)
        .collect()
}
