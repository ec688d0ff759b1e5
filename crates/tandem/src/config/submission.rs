//! The configuration of submissions (`mode=submit`).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tandem_http::Scheme;
use tandem_submit::rights::Rights;
use tandem_submit::store::OVERHEAD;

use super::gateway::CacheOption;
use super::mode::ModeOption;
use super::{ConfigError, GatewayOptions, PathConfig, positive};
use crate::back::origin::Mode;
use crate::endpoint::split_authority;
use crate::hosts::HostPattern;
use crate::middle::submit::signer::Signer;
use crate::middle::submit::{SubmissionServer, SubmissionTimes};
use crate::renewal::{Renewable, Renewals};
use crate::transport::Target;

/// The checked configuration of submissions.
#[derive(Clone, Debug)]
pub struct SubmissionConfig {
    /// The server that gets the submissions.
    pub server: SubmissionServer,
    /// The file of the clients' rights; `None` if clients have tokens only.
    pub rights: Option<String>,
    /// The unlinkable mode, if the gateway has issuers.
    #[cfg(feature = "submit")]
    pub unlinkable: Option<Arc<crate::middle::submit::oblivious::Unlinkable>>,
    /// The key that signs submissions.
    pub signer: Arc<Signer>,
    /// The address of the store.
    pub store: String,
    /// The bytes that the store may hold.
    pub max_stored: u64,
    /// The times.
    pub times: SubmissionTimes,
}

impl SubmissionConfig {
    /// Watches the file of rights.
    ///
    /// # Errors
    /// Returns the first problem of the file.
    pub fn watch_rights(&self, renewals: &Renewals) -> Result<Arc<Renewable<Rights>>, ConfigError> {
        let Some(file) = self.rights.clone() else {
            let none = || Ok::<_, ConfigError>(Rights::none());
            let rights = Renewable::new("no rights".to_owned(), Vec::new(), none)?;
            return Ok(Arc::new(rights));
        };
        let name = format!("the rights in {file}");
        let files = vec![PathBuf::from(&file)];
        let rights = Renewable::new(name, files, move || read_rights(&file))?;
        Ok(renewals.watch(rights))
    }
}

impl GatewayOptions {
    /// Checks the options of submissions. Returns `None` in other modes.
    pub(super) fn submission(
        &self,
        path: &PathConfig,
    ) -> Result<Option<SubmissionConfig>, ConfigError> {
        let Some(ModeOption::Submit(url)) = &self.mode else {
            return match self.needless() {
                Some(key) => Err(ConfigError::value(key, "needs --mode submit=URL")),
                None => Ok(None),
            };
        };
        crate::services::has_stores().map_err(|problem| ConfigError::value("mode", problem))?;
        let (server, _) = server(url).map_err(|problem| ConfigError::value("mode", problem))?;
        let rights = match self.submit_issuers {
            Some(_) => self.submit_rights.clone(),
            None => {
                let remedy = "a TOML file of clients";
                Some(needed(
                    "submit-rights",
                    self.submit_rights.as_deref(),
                    remedy,
                )?)
            }
        };
        let rights_read = rights.as_deref().map(read_rights).transpose()?;
        let rights_read = rights_read.unwrap_or_else(Rights::none);
        self.check_contradictions(&rights_read)?;
        let signer = self.signer()?;
        let remedy = "sqlite:FILE or postgres://USER@HOST/DATABASE";
        let store = needed("submit-store", self.submit_store.as_deref(), remedy)?;
        crate::services::check_store(&store)
            .map_err(|problem| ConfigError::value("submit-store", problem))?;
        let max_stored = self.submit_max_stored.map_or(1 << 30, |size| size.0);
        if max_stored < rights_read.largest_body().saturating_add(OVERHEAD) {
            return Err(ConfigError::value(
                "submit-max-stored",
                "must hold the largest body that the rights allow, and 4 KiB",
            ));
        }
        let times = self.times(path)?;
        Ok(Some(SubmissionConfig {
            server,
            rights,
            #[cfg(feature = "submit")]
            unlinkable: self.unlinkable()?,
            signer: Arc::new(signer),
            store,
            max_stored,
            times,
        }))
    }

    /// Refuses options that a gateway for submissions does not have.
    fn check_contradictions(&self, rights: &Rights) -> Result<(), ConfigError> {
        let bad = |key, problem: &str| Err(ConfigError::value(key, problem));
        let has = |prefix: &str| self.auth.iter().any(|auth| auth.starts_with(prefix));
        if rights.has_certificates() && !has("client-ca=") {
            let problem = "clients with certificates need --auth client-ca=FILE";
            return bad("submit-rights", problem);
        }
        let admits = "mode=submit admits the clients of --submit-rights";
        if has("token-file=") {
            return bad("auth", admits);
        }
        if self.open.is_some() {
            return bad("open", admits);
        }
        if self.log_urls == Some(true) {
            let problem = "mode=submit logs no paths, which may identify clients";
            return bad("log-urls", problem);
        }
        if self.push == Some(true) {
            return bad("push", "mode=submit pushes nothing");
        }
        if self.cache.is_some_and(|cache| cache != CacheOption::Off) {
            return bad("cache", "mode=submit caches nothing");
        }
        Ok(())
    }

    /// Reads the key that signs submissions.
    fn signer(&self) -> Result<Signer, ConfigError> {
        let remedy = "openssl genpkey -algorithm ed25519 makes one";
        let file = needed("submit-key", self.submit_key.as_deref(), remedy)?;
        let wrong =
            |problem: String| ConfigError::value("submit-key", format!("{file}: {problem}"));
        let pem = std::fs::read(&file).map_err(|error| wrong(error.to_string()))?;
        Signer::from_pem(&pem).map_err(|problem| wrong(problem.to_owned()))
    }

    fn times(&self, path: &PathConfig) -> Result<SubmissionTimes, ConfigError> {
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        let attempt = positive(
            "response-timeout",
            self.response_timeout,
            Duration::from_secs(60),
        )?;
        let retry = positive("submit-retry", self.submit_retry, hours(24))?;
        let keep = positive("submit-keep", self.submit_keep, hours(168))?;
        if keep < retry.max(hours(1)) {
            return Err(ConfigError::value(
                "submit-keep",
                "must be at least submit-retry and one hour, because a request that is repeated \
                 later is delivered again",
            ));
        }
        let wait = self.submit_wait;
        Ok(SubmissionTimes {
            wait: wait.map_or(Duration::from_secs(10), |span| span.0),
            attempt,
            retry,
            keep,
            pause: path.timeouts.head,
        })
    }

    /// Returns an option of submissions that is set.
    fn needless(&self) -> Option<&'static str> {
        let set = [
            ("submit-rights", self.submit_rights.is_some()),
            ("submit-key", self.submit_key.is_some()),
            ("submit-store", self.submit_store.is_some()),
            ("submit-max-stored", self.submit_max_stored.is_some()),
            ("submit-wait", self.submit_wait.is_some()),
            ("submit-issuers", self.submit_issuers.is_some()),
            ("submit-oblivious-key", self.submit_oblivious_key.is_some()),
            ("submit-batch", self.submit_batch.is_some()),
            ("submit-batch-min", self.submit_batch_min.is_some()),
            ("submit-batch-wait", self.submit_batch_wait.is_some()),
            (
                "submit-batch-max-wait",
                self.submit_batch_max_wait.is_some(),
            ),
            ("submit-retry", self.submit_retry.is_some()),
            ("submit-keep", self.submit_keep.is_some()),
        ];
        set.into_iter()
            .find(|(_, is_set)| *is_set)
            .map(|(key, _)| key)
    }
}

/// Returns the value of an option without which a gateway takes no submissions.
fn needed(key: &'static str, value: Option<&str>, remedy: &str) -> Result<String, ConfigError> {
    let value = value.map(str::to_owned);
    value.ok_or_else(|| ConfigError::value(key, format!("mode=submit needs it: {remedy}")))
}

fn read_rights(file: &str) -> Result<Rights, ConfigError> {
    let wrong = |problem: String| ConfigError::value("submit-rights", format!("{file}: {problem}"));
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    Rights::parse(&text).map_err(|error| wrong(error.to_string()))
}

/// Returns the origin of a server's URL.
pub(super) fn origin(url: &str) -> Result<Mode, String> {
    let (server, target) = server(url)?;
    Ok(Mode::Reverse {
        scheme: server.scheme,
        hosts: vec![HostPattern::Name(target.host.clone())],
        target,
    })
}

fn server(url: &str) -> Result<(SubmissionServer, Target), String> {
    let bad = |problem: &str| format!("submit={url}: {problem}");
    let (scheme, rest) = url
        .split_once("://")
        .ok_or_else(|| bad("write http://HOST:PORT/PATH or https://HOST:PORT/PATH"))?;
    let scheme = Scheme::parse(scheme.as_bytes())
        .ok_or_else(|| bad("the scheme is neither http nor https"))?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let is_path = path.bytes().all(|byte| byte.is_ascii_graphic()) && !path.contains(['?', '#']);
    if !is_path {
        return Err(bad("the path has a query, a fragment or other characters"));
    }
    let (host, port) = split_authority(authority, Some(scheme.default_port())).map_err(bad)?;
    let server = SubmissionServer {
        scheme,
        authority: authority.to_ascii_lowercase(),
        base: path.strip_suffix('/').unwrap_or(path).to_owned(),
    };
    Ok((server, Target::new(host, port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_url_has_a_base_path() {
        for (url, authority, base, port) in [
            ("https://server.example", "server.example", "", 443),
            ("http://Server.example:81/", "server.example:81", "", 81),
            ("https://[::1]/a/b/", "[::1]", "/a/b", 443),
        ] {
            let (server, target) = server(url).expect(url);
            assert_eq!(
                (server.authority.as_str(), server.base.as_str()),
                (authority, base)
            );
            assert_eq!(target.port, port);
        }
        for url in [
            "server",
            "ftp://server",
            "http://",
            "http://a/b?c",
            "http://a:b/",
            "http://a/#",
        ] {
            assert!(
                server(url).is_err_and(|problem| problem.contains(url)),
                "{url}"
            );
        }
    }

    #[test]
    fn missing_feature_is_told_before_missing_files() {
        let options = GatewayOptions {
            listen: vec!["http+tcp://127.0.0.1:0".parse().expect("an endpoint")],
            mode: Some("submit=http://server.example".parse().expect("a mode")),
            ..GatewayOptions::default()
        };
        let error = options.typed().expect_err("no files").to_string();
        let start = match cfg!(feature = "submit") {
            true => "submit-rights: mode=submit needs it",
            false => "mode: this program takes no submissions: build it with",
        };
        assert!(error.starts_with(start), "{error}");
    }

    #[test]
    fn options_of_submissions_need_their_mode() {
        let options = GatewayOptions {
            listen: vec!["http+tcp://127.0.0.1:0".parse().expect("an endpoint")],
            open: Some(true),
            submit_key: Some("key".into()),
            ..GatewayOptions::default()
        };
        let error = options.typed().expect_err("no mode").to_string();
        assert_eq!(error, "submit-key: needs --mode submit=URL");
    }
}
