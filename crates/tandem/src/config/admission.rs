//! The admission of clients by a gateway: with tokens, with certificates, or without credentials.

use super::near::NearOptions;
use super::{ConfigError, read_secret};
use crate::role_name::RoleName;
use crate::transport::registry::Transports;

/// The credentials that admit a client.
#[derive(Default)]
pub(super) struct Credentials {
    /// The files that hold the tokens.
    pub(super) token_files: Vec<String>,
    /// The PEM file of the authorities that sign the certificates of clients.
    pub(super) client_ca: Option<String>,
}

impl Credentials {
    /// Reads the values of the option `auth`, and checks the files of tokens.
    pub(super) fn read(auth: &[String]) -> Result<Self, ConfigError> {
        let mut this = Self::default();
        for entry in auth {
            match entry.split_once('=') {
                Some(("token-file", file)) => {
                    read_secret("auth", file)?;
                    this.token_files.push(file.to_owned());
                }
                Some(("client-ca", file)) if this.client_ca.is_none() => {
                    this.client_ca = Some(file.to_owned());
                }
                Some(("client-ca", _)) => {
                    return Err(ConfigError::value(
                        "auth",
                        "client-ca is given twice; put both into one file",
                    ));
                }
                _ => {
                    return Err(ConfigError::value(
                        "auth",
                        format!("{entry:?} is neither token-file=FILE nor client-ca=FILE"),
                    ));
                }
            }
        }
        Ok(this)
    }

    const fn is_empty(&self) -> bool {
        self.token_files.is_empty() && self.client_ca.is_none()
    }
}

impl NearOptions {
    /// Returns whether the role admits all clients. The rights decide about each submission.
    pub(super) fn admits_all(
        &self,
        role: RoleName,
        credentials: &Credentials,
        is_for_submissions: bool,
        transports: &Transports,
    ) -> Result<bool, ConfigError> {
        let open = self.open.unwrap_or(is_for_submissions);
        if !open && credentials.is_empty() {
            return Err(ConfigError::value(
                "auth",
                format!(
                    "the {role} would let no one in: give --auth token-file=FILE, \
                     --auth client-ca=FILE, or --open"
                ),
            ));
        }
        if open && !is_for_submissions && !credentials.is_empty() {
            return Err(ConfigError::value(
                "open",
                "--open and --auth contradict each other",
            ));
        }
        let mut by_certificate = true;
        for endpoint in &self.listen {
            by_certificate &= transports.to_listen(endpoint)?.has_client_certificates();
        }
        if credentials.client_ca.is_some() && credentials.token_files.is_empty() && !by_certificate
        {
            return Err(ConfigError::value(
                "auth",
                "client certificates need listeners over tls, quic or dtls",
            ));
        }
        Ok(open)
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{ClientOptions, GatewayOptions};

    #[test]
    fn debug_form_of_a_configuration_contains_no_secret() {
        let name = format!("tandem-shown-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, "correct-horse-battery\n").expect("a file");
        let gateway = GatewayOptions {
            listen: vec!["h2+tcp://127.0.0.1:0".parse().expect("an endpoint")],
            auth: vec![format!("token-file={}", file.display())],
            ..GatewayOptions::default()
        };
        let client = ClientOptions {
            gateway: vec!["h2+tcp://127.0.0.1:1".parse().expect("a gateway")],
            via: Some("tor://127.0.0.1:9051".parse().expect("a proxy")),
            tor_password_file: Some(file.display().to_string()),
            ..ClientOptions::default()
        };
        let gateway = gateway.typed().expect("a gateway");
        let client = client.typed().expect("a client");
        assert_eq!(
            client.tor_password.as_deref(),
            Some("correct-horse-battery")
        );
        for shown in [format!("{gateway:?}"), format!("{client:?}")] {
            assert!(!shown.contains("horse"), "{shown}");
        }
        std::fs::remove_file(file).expect("removed");
    }
}
