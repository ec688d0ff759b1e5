//! The configuration of unlinkable submissions (`submit-issuers`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use tandem_submit::batch::Rule;
use tandem_submit::issuers::{self, Issuer};
use tandem_submit::store::{LONGEST_BATCH_WAIT, Millis};
use tandem_tokens::challenge::TokenChallenge;
use tandem_tokens::directory::Directory;
use tandem_tokens::epoch::Epochs;
use tandem_tokens::oblivious::GatewayKey;
use tandem_tokens::redemption::AcceptedIssuer;

use super::{ConfigError, GatewayOptions};
use crate::middle::submit::oblivious::{TrustedIssuer, Unlinkable};
use crate::renewal::Renewable;

/// The submissions of a batch, without an option.
const BATCH: usize = 20;

/// The least number of submissions in a batch, without an option.
const BATCH_MIN: usize = 5;

/// The time of a batch, without an option.
const BATCH_WAIT: Duration = Duration::from_secs(600);

/// The time of a batch that stays below the least number, without an option.
const BATCH_MAX_WAIT: Duration = Duration::from_secs(6 * 3600);

/// The longest time that a batch may take.
const LONGEST_WAIT: Duration = Duration::from_millis(LONGEST_BATCH_WAIT.unsigned_abs());

impl GatewayOptions {
    /// Checks the options of unlinkable submissions. Returns `None` without them.
    pub(super) fn unlinkable(&self) -> Result<Option<Arc<Unlinkable>>, ConfigError> {
        let Some(file) = &self.submit_issuers else {
            return match [
                ("submit-oblivious-key", self.submit_oblivious_key.is_some()),
                ("submit-batch", self.submit_batch.is_some()),
                ("submit-batch-min", self.submit_batch_min.is_some()),
                ("submit-batch-wait", self.submit_batch_wait.is_some()),
                (
                    "submit-batch-max-wait",
                    self.submit_batch_max_wait.is_some(),
                ),
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
        let mut files = vec![PathBuf::from(file)];
        files.extend(
            read_entries(file)?
                .iter()
                .map(|entry| directory(file, entry)),
        );
        let (name, read) = (format!("the issuers in {file}"), file.clone());
        let issuers = Renewable::new(name, files, move || read_issuers(&read))?;
        let key = read_key(key)?;
        Ok(Some(Arc::new(Unlinkable::new(
            Arc::new(issuers),
            key,
            self.batches()?,
        ))))
    }

    /// Returns the rule by which batches end.
    fn batches(&self) -> Result<Rule, ConfigError> {
        let wrong = |key, problem| Err(ConfigError::value(key, problem));
        let size = self.submit_batch.unwrap_or(BATCH);
        if size == 0 {
            return wrong("submit-batch", "must be at least 1");
        }
        let least = self.submit_batch_min.unwrap_or_else(|| BATCH_MIN.min(size));
        if !(1..=size).contains(&least) {
            return wrong("submit-batch-min", "must be from 1 to submit-batch");
        }
        let wait = self.submit_batch_wait.map_or(BATCH_WAIT, |span| span.0);
        if wait > LONGEST_WAIT {
            return wrong("submit-batch-wait", "must be at most 24h");
        }
        let longest = self.submit_batch_max_wait.map(|span| span.0);
        let longest = longest.unwrap_or_else(|| BATCH_MAX_WAIT.max(wait));
        if longest > LONGEST_WAIT || longest < wait {
            return wrong(
                "submit-batch-max-wait",
                "must be from submit-batch-wait to 24h",
            );
        }
        let millis = |time: Duration| Millis::try_from(time.as_millis()).unwrap_or(Millis::MAX);
        Ok(Rule {
            size: size as u64,
            least: least as u64,
            wait: millis(wait),
            longest: millis(longest),
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_consistent_bounds() {
        let batches = |size, least, wait: Option<&str>, longest: Option<&str>| {
            let span = |text: &str| text.parse().expect("a time");
            let options = GatewayOptions {
                submit_batch: size,
                submit_batch_min: least,
                submit_batch_wait: wait.map(span),
                submit_batch_max_wait: longest.map(span),
                ..GatewayOptions::default()
            };
            options.batches().map_err(|error| error.to_string())
        };
        let rule = |size, least, wait: Millis, longest: Millis| {
            Ok(Rule {
                size,
                least,
                wait: wait * 1000,
                longest: longest * 1000,
            })
        };
        assert_eq!(batches(None, None, None, None), rule(20, 5, 600, 21_600));
        assert_eq!(batches(Some(2), None, None, None), rule(2, 2, 600, 21_600));
        let long = batches(None, Some(9), Some("12h"), None);
        assert_eq!(long, rule(20, 9, 43_200, 43_200));
        for (problem, result) in [
            ("submit-batch: ", batches(Some(0), None, None, None)),
            ("submit-batch-min: ", batches(Some(2), Some(3), None, None)),
            ("submit-batch-min: ", batches(None, Some(0), None, None)),
            (
                "submit-batch-wait: ",
                batches(None, None, Some("25h"), None),
            ),
            (
                "submit-batch-max-wait: ",
                batches(None, None, Some("2h"), Some("1h")),
            ),
            (
                "submit-batch-max-wait: ",
                batches(None, None, None, Some("25h")),
            ),
        ] {
            assert!(
                result.is_err_and(|text| text.starts_with(problem)),
                "{problem}"
            );
        }
    }
}
