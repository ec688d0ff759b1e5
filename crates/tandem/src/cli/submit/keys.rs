//! The gateway's key for encapsulated requests, and the ways on which it may come.
//!
//! Whoever chooses this key reads the submissions, so no relay may choose it. RFC 9458 leaves the
//! way of the key to its users.
//!
//! ```text
//!  without a relay   client ═════ TLS, or an onion service ═════▶ gateway
//!  with a relay      client ══ TLS in a tunnel ══▶ relay ═══════▶ gateway
//!  otherwise         a file of the user
//! ```

use std::io::Read as _;

use data_encoding::HEXLOWER;
use tandem_http::Scheme;
use tandem_tokens::oblivious::{self, KeyConfig};
use tandem_tokens::sha256;

use super::consistency::{KeptKeys, check_oblivious_keys};
use super::enrol::get;
use super::network::{Destination, isolated};
use super::state::{KeySource, Settings, UnlinkableSettings};
use crate::cli::{Failure, tell};
use crate::endpoint::{Endpoint, Usage, is_onion};
use crate::transport::registry::Transports;

/// The largest list of keys, in bytes.
const MAX_LENGTH: u64 = 16 << 10;

/// The connection over which the gateway itself gives its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyConnection {
    /// The connection to the gateway, which shows its identity.
    Direct,
    /// TLS to the gateway in a tunnel through the relay.
    Tunnel,
}

/// Returns the connection over which the gateway can give its key, if there is one that no other
/// party can change.
fn key_connection(
    settings: &Settings,
    transports: &Transports,
) -> Result<Option<KeyConnection>, Failure> {
    let gateway = Usage::Gateway.parse(&settings.gateway)?;
    Ok(match &settings.relay {
        // The relay reads what the connection to itself protects.
        Some(_) => is_encrypted(&gateway, transports)?.then_some(KeyConnection::Tunnel),
        None => is_authenticated(&gateway, settings.via.as_deref(), transports)?
            .then_some(KeyConnection::Direct),
    })
}

fn is_encrypted(endpoint: &Endpoint, transports: &Transports) -> Result<bool, Failure> {
    Ok(transports.to_dial(endpoint)?.scheme() == Scheme::Https)
}

/// Returns true if nobody on the way to the endpoint can answer in its place: it shows a
/// certificate, is an onion service, or is on this machine.
pub(super) fn is_authenticated(
    endpoint: &Endpoint,
    via: Option<&str>,
    transports: &Transports,
) -> Result<bool, Failure> {
    let address = match endpoint.option("ip") {
        Some(address) => address.parse().ok(),
        None => endpoint.ip(),
    };
    Ok(is_encrypted(endpoint, transports)?
        || match via {
            Some(_) => is_onion(&endpoint.host),
            None => address.is_some_and(|address| address.is_loopback()),
        })
}

/// Checks that the key in the settings did not come through a relay in clear, as it did in earlier
/// versions.
pub(super) fn check_source(settings: &Settings, transports: &Transports) -> Result<(), Failure> {
    let Some(unlinkable) = &settings.unlinkable else {
        return Ok(());
    };
    match is_trusted(settings, unlinkable, transports)? {
        true => Ok(()),
        false => Err(
            "the gateway's key for encapsulated requests is from an earlier version, \
                      which took it from the relay or the network without a check: run tandem \
                      submit enrol again before you send anything (with --tokens 0, the \
                      present tokens stay)"
                .into(),
        ),
    }
}

fn is_trusted(
    settings: &Settings,
    unlinkable: &UnlinkableSettings,
    transports: &Transports,
) -> Result<bool, Failure> {
    let way = key_connection(settings, transports)?;
    Ok(unlinkable.key_source.is_some() || way == Some(KeyConnection::Direct))
}

/// The gateway's key, once it may be used.
pub(super) struct OwnKeys<'a> {
    /// The file with the key, if the user has given one.
    pub(super) file: Option<&'a str>,
    /// The settings of an earlier enrolment.
    pub(super) kept: Option<Settings>,
    /// True if the user accepts another key than the kept one.
    pub(super) is_new_accepted: bool,
}

impl OwnKeys<'_> {
    /// Checks that the key can come on a way that the relay cannot change, before any connection.
    pub(super) fn check_way(
        &self,
        settings: &Settings,
        transports: &Transports,
    ) -> Result<(), Failure> {
        if self.file.is_some() || key_connection(settings, transports)?.is_some() {
            return Ok(());
        }
        Err(
            "the gateway shows no certificate, so that others on the way could give a false key \
             for encapsulated requests and read the submissions: give --gateway a URL with TLS, \
             or --oblivious-key a file with the key, which the operator of the gateway publishes"
                .into(),
        )
    }

    /// Returns the key with its source.
    pub(super) async fn get(
        self,
        settings: &Settings,
        transports: &Transports,
    ) -> Result<(Vec<u8>, KeySource), Failure> {
        self.check_way(settings, transports)?;
        let (keys, again, source) = match self.file {
            Some(file) => {
                let keys = read(file)?;
                (keys.clone(), keys, KeySource::File)
            }
            None => {
                let way = Destination::for_keys(settings, transports)?;
                let (keys, again) = (fetch(&way).await?, fetch(&way).await?);
                (keys, again, KeySource::Gateway)
            }
        };
        let kept = match &self.kept {
            Some(kept) => match &kept.unlinkable {
                Some(unlinkable) => Some(KeptKeys {
                    keys: unlinkable.keys(),
                    is_trusted: is_trusted(kept, unlinkable, transports)?,
                }),
                None => None,
            },
            None => None,
        };
        check_oblivious_keys([&keys, &again], kept.as_ref(), self.is_new_accepted)?;
        KeyConfig::read_list(&keys)?;
        let hash = HEXLOWER.encode(&sha256(&[&keys]));
        tell(format_args!(
            "key for encapsulated requests: SHA-256 {hash}"
        ));
        Ok((keys, source))
    }
}

/// Gets the list of keys in a separate session.
async fn fetch(way: &Destination) -> Result<Vec<u8>, Failure> {
    let remedy = |error: Failure| {
        format!("{error}; if no way to the gateway itself is possible, give --oblivious-key")
    };
    let response = get(way, oblivious::PATH, isolated()?).await;
    let response = response.map_err(remedy)?;
    match response.text("content-type").as_deref() {
        Some(oblivious::KEYS_TYPE) => Ok(response.body.to_vec()),
        _ => {
            let path = oblivious::PATH;
            Err(format!("{path}: the gateway has no key for encapsulated requests").into())
        }
    }
}

/// Reads a list of keys from a file.
fn read(file: &str) -> Result<Vec<u8>, Failure> {
    let wrong = |problem: String| format!("--oblivious-key {file}: {problem}");
    let opened = std::fs::File::open(file).map_err(|error| wrong(error.to_string()))?;
    let mut keys = Vec::new();
    let read = opened.take(MAX_LENGTH).read_to_end(&mut keys);
    read.map_err(|error| wrong(error.to_string()))?;
    let checked = KeyConfig::read_list(&keys);
    checked.map_err(|error| {
        let path = oblivious::PATH;
        wrong(format!(
            "{error}: give the bytes that the gateway has at {path}"
        ))
    })?;
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(gateway: &str, relay: Option<&str>, via: Option<&str>) -> Settings {
        Settings {
            gateway: gateway.to_owned(),
            relay: relay.map(str::to_owned),
            relay_token_file: None,
            via: via.map(str::to_owned),
            token_file: None,
            unlinkable: Some(UnlinkableSettings {
                issuer: String::new(),
                oblivious_keys: String::new(),
                key_source: None,
            }),
        }
    }

    const TOR: Option<&str> = Some("socks5://127.0.0.1:9050");
    const RELAY: Option<&str> = Some("h2+tls://relay.example:443");

    #[test]
    fn keys_come_only_on_ways_that_nobody_can_change() {
        let transports = Transports::default();
        for (gateway, relay, via, expected) in [
            (
                "h2+tls://gw.example:443",
                None,
                None,
                Some(KeyConnection::Direct),
            ),
            (
                "h2+tls://gw.example:443",
                None,
                TOR,
                Some(KeyConnection::Direct),
            ),
            (
                "h2+tls://gw.example:443",
                RELAY,
                None,
                Some(KeyConnection::Tunnel),
            ),
            (
                "h2+tls://gw.example:443",
                RELAY,
                TOR,
                Some(KeyConnection::Tunnel),
            ),
            (
                "h2+tcp://gw.onion:80",
                None,
                TOR,
                Some(KeyConnection::Direct),
            ),
            ("h2+tcp://gw.onion:80", RELAY, TOR, None),
            ("h2+tcp://gw.example:80", None, None, None),
            ("h2+tcp://gw.example:80", None, TOR, None),
            ("h2+tcp://gw.example:80?ip=203.0.113.5", None, None, None),
            ("h2+tcp://203.0.113.5:80", RELAY, None, None),
            (
                "h2+tcp://127.0.0.1:80",
                None,
                None,
                Some(KeyConnection::Direct),
            ),
            (
                "h2+tcp://gw.example:80?ip=127.0.0.1",
                None,
                None,
                Some(KeyConnection::Direct),
            ),
            ("h2+tcp://127.0.0.1:80?ip=203.0.113.5", None, None, None),
            ("h2+tcp://127.0.0.1:80", RELAY, None, None),
            ("h2+tcp://127.0.0.1:80", None, TOR, None),
            ("h2+tcp://192.0.2.80:9980?exit=auto", None, TOR, None),
        ] {
            let way = key_connection(&settings(gateway, relay, via), &transports);
            assert_eq!(way.expect("a URL"), expected, "{gateway} {relay:?} {via:?}");
        }
    }

    #[test]
    fn keys_of_earlier_versions_need_no_relay() {
        let transports = Transports::default();
        let check = |settings: &Settings| check_source(settings, &transports);
        let mut behind = settings("h2+tls://gw.example:443", RELAY, None);
        let error = check(&behind).expect_err("the relay could choose it");
        assert!(error.to_string().contains("enrol again"), "{error}");
        for source in [KeySource::Gateway, KeySource::File] {
            if let Some(unlinkable) = &mut behind.unlinkable {
                unlinkable.key_source = Some(source);
            }
            assert!(check(&behind).is_ok());
        }
        assert!(check(&settings("h2+tls://gw.example:443", None, TOR)).is_ok());
        assert!(check(&settings("h2+tcp://gw.example:80", None, TOR)).is_err());
        behind.unlinkable = None;
        assert!(check(&behind).is_ok(), "the simple mode has no such key");
    }

    #[test]
    fn key_files_are_checked() {
        let name = format!("tandem-test-oblivious-keys-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        let path = file.display().to_string();
        let error = read(&path).expect_err("no file").to_string();
        assert!(error.contains("--oblivious-key"), "{error}");
        std::fs::write(&file, "<html>").expect("written");
        let error = read(&path).expect_err("no keys").to_string();
        assert!(error.contains(oblivious::PATH), "{error}");
        let keys = [&[0, 41, 1, 0, 32][..], &[7; 32], &[0, 4, 0, 1, 0, 1]].concat();
        std::fs::write(&file, &keys).expect("written");
        assert_eq!(read(&path).expect("keys"), keys);
        std::fs::remove_file(&file).expect("removed");
    }
}
