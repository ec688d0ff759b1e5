//! The options of the digest that a client sends at the start of a session.

use std::path::PathBuf;

use super::ConfigError;
use crate::endpoint::Via;

/// Returns whether sessions begin with a digest: by default without `--via`, where the gateway sees
/// the client's address anyway. With `--via` a digest is refused, since it would link the sessions
/// that the proxy keeps apart.
pub(super) fn digest(asked: Option<bool>, via: Option<&Via>) -> Result<bool, ConfigError> {
    match (asked.unwrap_or_else(|| via.is_none()), via) {
        (true, Some(_)) => Err(ConfigError::value(
            "push-digest",
            "contradicts --via: it would link its sessions",
        )),
        (asked, _) => Ok(asked),
    }
}

/// Checks the file for digests. With `--via` it is refused, even with an old file of another
/// configuration: the next process would show the gateway that it knows the browser.
pub(super) fn digest_file(
    file: Option<PathBuf>,
    has_digest: bool,
    via: Option<&Via>,
) -> Result<Option<PathBuf>, ConfigError> {
    let problem = match &file {
        Some(_) if via.is_some() => "contradicts --via: it would link its sessions",
        Some(_) if !has_digest => "needs push-digest, which is off",
        _ => return Ok(file),
    };
    Err(ConfigError::value("push-digest-file", problem))
}

#[cfg(test)]
mod tests {
    use crate::config::ClientOptions;
    use crate::config::client::tests::options;

    #[test]
    fn digest_file_needs_a_digest_and_no_proxy() {
        let via = Some("socks5://127.0.0.1:9050");
        for (via, digest, problem) in [
            (None, None, None),
            (None, Some(true), None),
            (None, Some(false), Some("needs push-digest")),
            (via, None, Some("contradicts --via")),
        ] {
            let options = ClientOptions {
                push_digest: digest,
                push_digest_file: Some("digests".into()),
                ..options("h2+tls://gw.example:443?ip=192.0.2.1", via)
            };
            let error = options.typed().err().map(|error| error.to_string());
            assert_eq!(error.is_some(), problem.is_some(), "{error:?}");
            let (error, problem) = (error.unwrap_or_default(), problem.unwrap_or_default());
            assert!(error.contains(problem), "{error}");
        }
    }
}
