//! The address of the engine: a URL as other programs of Valkey and Redis take it, with the
//! parameters `password-file` and `ca`, which this module reads.

use std::path::{Path, PathBuf};

use redis::{ConnectionAddr, IntoConnectionInfo as _, RedisConnectionInfo};

use crate::endpoint::is_onion;
use crate::transport::tls::ClientTls;

/// The checked form of an address. A gateway connects to this address only.
#[derive(Clone)]
pub struct EngineAddress {
    /// The URL, which may have a password.
    text: String,
    pub(super) place: EngineSocket,
    /// The TLS of `rediss` and `valkeys`.
    pub(super) tls: Option<ClientTls>,
    login: RedisConnectionInfo,
    password_file: Option<PathBuf>,
}

/// The end of the engine's connection.
#[derive(Clone, Debug)]
pub(super) enum EngineSocket {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// The schemes over TCP, each with and without TLS.
const SCHEMES: [(&str, &str); 2] = [("redis", "rediss"), ("valkey", "valkeys")];

const MALFORMED: &str = "it is malformed: write redis://USER@HOST:PORT/DB?password-file=FILE, rediss://… \
     with TLS, or redis+unix:///PATH?db=DB for a socket";

impl EngineAddress {
    /// Reads a URL. The text of an error repeats no part of it that could hold a password.
    ///
    /// # Errors
    /// Returns the problem and its remedy.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (base, query) = text.split_once('?').unwrap_or((text, ""));
        if text.contains('#') {
            return Err("it must not contain #: TLS always verifies the engine".to_owned());
        }
        let (mut password_file, mut ca, mut others) = (None, None, Vec::new());
        for parameter in query.split('&').filter(|it| !it.is_empty()) {
            match parameter.split_once('=') {
                Some(("password-file", file)) => password_file = Some(PathBuf::from(file)),
                Some(("ca", file)) => ca = Some(file.to_owned()),
                Some(("db" | "user", _)) => others.push(parameter),
                _ => {
                    return Err(
                        "its parameters are password-file, ca, and for a socket db and user".into(),
                    );
                }
            }
        }
        let (scheme, rest) = base.split_once(':').ok_or(MALFORMED)?;
        let secured = SCHEMES.iter().find(|(_, secured)| *secured == scheme);
        let is_socket = scheme.ends_with("unix");
        if ca.is_some() && secured.is_none() {
            return Err("ca= needs TLS: write rediss://".to_owned());
        }
        if !others.is_empty() && !is_socket {
            return Err(
                "db= and user= are for a socket: write redis://USER@HOST:PORT/DB".to_owned(),
            );
        }
        // The library is built without TLS, which this crate adds.
        let plain = secured.map_or(scheme, |(plain, _)| plain);
        let url = format!("{plain}:{rest}?{}", others.join("&"));
        // The error of the library can repeat a part of the password.
        let info = url
            .into_connection_info()
            .map_err(|_| MALFORMED.to_owned())?;
        let login = info.redis_settings().clone().set_skip_set_lib_name();
        if login.password().is_some() && password_file.is_some() {
            return Err("it has a password and a password-file".to_owned());
        }
        let place = match info.addr() {
            ConnectionAddr::Tcp(host, _) if is_onion(host) => {
                return Err(
                    "its host is an onion service, which no resolver may be asked for: \
                            name an address, or a socket"
                        .to_owned(),
                );
            }
            ConnectionAddr::Tcp(host, port) => EngineSocket::Tcp {
                host: host.clone(),
                port: *port,
            },
            ConnectionAddr::Unix(path) => EngineSocket::Unix(path.clone()),
            _ => return Err(MALFORMED.to_owned()),
        };
        Ok(Self {
            text: text.to_owned(),
            place,
            tls: secured.map(|_| ClientTls {
                ca,
                ..ClientTls::default()
            }),
            login,
            password_file,
        })
    }

    /// Returns the file with the password.
    pub fn password_file(&self) -> Option<&Path> {
        self.password_file.as_deref()
    }

    /// Checks the files that the address names.
    ///
    /// # Errors
    /// Returns the problem of a file.
    pub fn check(&self) -> Result<(), String> {
        self.login()?;
        match &self.tls {
            Some(tls) => tls.connector().map(drop).map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }

    /// Returns the login, with the password that its file has now.
    pub(super) fn login(&self) -> Result<RedisConnectionInfo, String> {
        let Some(file) = &self.password_file else {
            return Ok(self.login.clone());
        };
        let wrong = |problem: String| format!("{}: {problem}", file.display());
        let text = std::fs::read_to_string(file)
            .map_err(|error| wrong(crate::secret::unreadable(file, &error)))?;
        match text.trim_end_matches(['\r', '\n']) {
            "" => Err(wrong("it must hold the password".into())),
            password => Ok(self.login.clone().set_password(password)),
        }
    }

    /// Returns true if the login crosses a network in clear text.
    pub fn is_exposed(&self) -> bool {
        let is_near = match &self.place {
            EngineSocket::Unix(_) => true,
            EngineSocket::Tcp { host, .. } => {
                host == "localhost"
                    || host
                        .parse::<std::net::IpAddr>()
                        .is_ok_and(|address| address.is_loopback())
            }
        };
        !is_near && self.tls.is_none()
    }
}

impl PartialEq for EngineAddress {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

/// Shows no secret.
impl std::fmt::Debug for EngineAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineAddress")
            .field("place", &self.place)
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_names_one_place() {
        let place = |text: &str| {
            let address = EngineAddress::parse(text).unwrap();
            (format!("{:?}", address.place), address.tls.is_some())
        };
        for (text, host, port, tls) in [
            ("redis://db.example", "db.example", 6379, false),
            (
                "valkey://user:p%40ss@127.0.0.1:7000/3",
                "127.0.0.1",
                7000,
                false,
            ),
            (
                "rediss://db.example/1?ca=/etc/ca.pem",
                "db.example",
                6379,
                true,
            ),
            ("valkeys://[2001:db8::1]:6380", "2001:db8::1", 6380, true),
        ] {
            let expected = format!("Tcp {{ host: {host:?}, port: {port} }}");
            assert_eq!(place(text), (expected, tls), "{text}");
        }
        let socket = place("redis+unix:///run/redis.sock?db=2&user=tandem");
        assert_eq!(socket, ("Unix(\"/run/redis.sock\")".into(), false));
    }

    #[test]
    fn address_errors_hide_the_password() {
        for (text, problem) in [
            ("http://user:secret@db.example", "malformed"),
            ("redis://user:secret@db.example:port/", "malformed"),
            ("redis://user:secret@db.example/database", "malformed"),
            ("redis:", "malformed"),
            ("secret", "malformed"),
            ("redis://user:secret@", "malformed"),
            ("redis://user:secret@db.example?ca=/etc/ca.pem", "rediss://"),
            ("rediss://user:secret@db.example#insecure", "#"),
            (
                "redis://user:secret@db.example?password=secret",
                "password-file",
            ),
            (
                "redis://user:secret@db.example?password-file=/f",
                "password-file",
            ),
            ("redis://db.example?db=2", "socket"),
        ] {
            let error = EngineAddress::parse(text).unwrap_err();
            assert!(
                error.contains(problem) && !error.contains("secret"),
                "{text}: {error}"
            );
        }
        let address = EngineAddress::parse("redis://user:secret@db.example").unwrap();
        assert!(!format!("{address:?}").contains("secret"));
        assert!(address.is_exposed());
        let near = EngineAddress::parse("redis://user:secret@127.0.0.1").unwrap();
        assert!(!near.is_exposed());
    }

    #[test]
    fn password_comes_from_its_file() {
        let file = std::env::temp_dir().join(format!("tandem-engine-{}", std::process::id()));
        let url = format!("redis://user@db.example?password-file={}", file.display());
        let address = EngineAddress::parse(&url).unwrap();
        assert!(address.check().unwrap_err().contains("tandem-engine"));
        std::fs::write(&file, "secret\n").unwrap();
        assert_eq!(address.login().unwrap().password(), Some("secret"));
        std::fs::write(&file, "\n").unwrap();
        assert!(
            address
                .check()
                .unwrap_err()
                .contains("must hold the password")
        );
        std::fs::remove_file(file).unwrap();
    }
}
