//! The address of a store in PostgreSQL: a URL as other programs of PostgreSQL take it, with the
//! parameters `schema`, `password-file`, `sslmode` and `sslrootcert`, which this module reads.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tandem_http::onion::is_onion;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use super::tls::Tls;

/// The schema of the tables, unless the address names another one.
const SCHEMA: &str = "tandem";

/// The time limit of a connection attempt to one host.
const CONNECT: Duration = Duration::from_secs(5);

/// The checked form of an address.
pub(super) struct Address {
    /// The settings without the password.
    pub(super) config: Config,
    /// The schema of the tables, which is an identifier without special characters.
    pub(super) schema: String,
    /// The file with the password.
    pub(super) password_file: Option<PathBuf>,
    /// The PEM file of the authorities that certify the server.
    authorities: Option<PathBuf>,
}

impl Address {
    /// Reads a URL. The text of an error repeats no part of it that could hold a password.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut others = Vec::new();
        let (mut schema, mut password_file) = (SCHEMA.to_owned(), None);
        let (mut authorities, mut verify) = (None, None);
        for parameter in query.split('&').filter(|it| !it.is_empty()) {
            match parameter.split_once('=') {
                Some(("schema", name)) => schema = identifier(name)?,
                Some(("password-file", file)) => password_file = Some(PathBuf::from(file)),
                Some(("sslrootcert", file)) => authorities = Some(PathBuf::from(file)),
                Some(("sslmode", mode)) => verify = Some(verifies(mode)?),
                Some(("password", _)) => return Err(NO_PASSWORD.to_owned()),
                _ => others.push(parameter),
            }
        }
        let mut rest = base.to_owned();
        if !others.is_empty() {
            rest = format!("{base}?{}", others.join("&"));
        }
        // The error of the library can repeat a part of the password.
        let mut config: Config = rest.parse().map_err(|_| MALFORMED.to_owned())?;
        if config.get_password().is_some() {
            return Err(NO_PASSWORD.to_owned());
        }
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err("it names no host: add one, or the directory of a socket \
                        (?host=/run/postgresql)"
                .to_owned());
        }
        let is_at_onion = |host: &Host| matches!(host, Host::Tcp(name) if is_onion(name));
        if config.get_hosts().iter().any(is_at_onion) {
            return Err(
                "it names an onion service, which no resolver may be asked for: name an \
                        address, or the directory of a socket"
                    .to_owned(),
            );
        }
        if config.get_dbname().is_none() {
            return Err("it names no database: write postgres://USER@HOST/DATABASE".to_owned());
        }
        let is_local = config.get_hosts().iter().all(is_local)
            && config.get_hostaddrs().iter().all(IpAddr::is_loopback);
        let verify = verify.unwrap_or_else(|| !is_local || authorities.is_some());
        config.ssl_mode(match verify {
            true => SslMode::Require,
            false => SslMode::Disable,
        });
        config.connect_timeout(CONNECT);
        if config.get_application_name().is_none() {
            config.application_name("tandem");
        }
        Ok(Self {
            config,
            schema,
            password_file,
            authorities,
        })
    }

    /// Reads the files that the address names. Returns the settings with the password, and TLS.
    pub(super) fn load(&self) -> Result<(Config, Tls), String> {
        let mut config = self.config.clone();
        if let Some(file) = &self.password_file {
            config.password(read_password(file)?);
        }
        Ok((config, Tls::new(self.authorities.as_deref())?))
    }
}

const NO_PASSWORD: &str = "a password in the address can be seen by other users: write it into a \
                           file, and add ?password-file=FILE";

const MALFORMED: &str = "it is malformed: write postgres://USER@HOST:PORT/DATABASE, or postgres://USER@/DATABASE?\
     host=DIRECTORY for a socket";

fn read_password(file: &Path) -> Result<String, String> {
    let wrong = |problem: &str| format!("{}: {problem}", file.display());
    let text = std::fs::read_to_string(file).map_err(|error| wrong(&error.to_string()))?;
    let mut lines = text.lines();
    match (lines.next(), lines.next()) {
        (Some(password), None) if !password.is_empty() => Ok(password.to_owned()),
        _ => Err(wrong("it must hold one line with the password")),
    }
}

/// Checks a name that becomes part of statements.
fn identifier(name: &str) -> Result<String, String> {
    let is_valid = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
    let begins = name.bytes().next().is_some_and(|it| !it.is_ascii_digit());
    match begins && name.len() <= 63 && name.bytes().all(is_valid) && !name.starts_with("pg_") {
        true => Ok(name.to_owned()),
        false => Err("schema= needs lower-case letters, digits and _".to_owned()),
    }
}

/// Returns true for the mode of TLS that verifies the server.
fn verifies(mode: &str) -> Result<bool, String> {
    match mode {
        "verify-full" => Ok(true),
        "disable" => Ok(false),
        _ => Err(
            "sslmode= is verify-full, or disable on a protected network; the other modes do not \
             authenticate the server"
                .to_owned(),
        ),
    }
}

/// Returns true for a host on this machine.
fn is_local(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => {
            name == "localhost" || name.parse::<IpAddr>().is_ok_and(|it| it.is_loopback())
        }
        Host::Unix(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(url: &str) -> String {
        Address::parse(url).map(drop).expect_err(url)
    }

    #[test]
    fn address_chooses_tls_by_the_host() {
        for (url, mode) in [
            ("postgres://a@db.example/b", SslMode::Require),
            (
                "postgres://a@db.example/b?sslmode=disable",
                SslMode::Disable,
            ),
            ("postgresql://a@192.0.2.1:5433/b", SslMode::Require),
            ("postgres://a@127.0.0.1/b", SslMode::Disable),
            ("postgres://a@[::1]/b", SslMode::Disable),
            (
                "postgres://a@localhost/b?sslmode=verify-full",
                SslMode::Require,
            ),
            (
                "postgres://a@localhost/b?sslrootcert=x.pem",
                SslMode::Require,
            ),
            ("postgres://a@localhost,db.example/b", SslMode::Require),
            ("postgres://a@/b?host=/run/postgresql", SslMode::Disable),
        ] {
            let address = Address::parse(url).unwrap_or_else(|problem| panic!("{url}: {problem}"));
            assert_eq!(address.config.get_ssl_mode(), mode, "{url}");
        }
    }

    #[test]
    fn address_has_a_schema_and_a_password_file() {
        let address = Address::parse("postgres://a@/b?host=/run&schema=two_2&password-file=/x/y");
        let address = address.expect("an address");
        assert_eq!(address.schema, "two_2");
        assert_eq!(address.password_file, Some("/x/y".into()));
        let address = Address::parse("postgres://a@localhost/b?target_session_attrs=read-write");
        assert_eq!(address.expect("an address").schema, SCHEMA);
    }

    #[test]
    fn address_errors_reveal_no_password() {
        for url in [
            "postgres://a:hunter2@localhost/b",
            "postgres://a@localhost/b?password=hunter2",
            "postgres://a:hunt?er2hunter2@localhost/b",
            "postgres://a:hunter2@localhost:port/b",
            "postgres://a:%hunter2@localhost/b",
        ] {
            let problem = problem(url);
            assert!(!problem.contains("hunt"), "{problem}");
        }
        assert!(problem("postgres://a:b@localhost/b").contains("password-file="));
    }

    #[test]
    fn address_errors_name_the_remedy() {
        for (url, remedy) in [
            ("postgres://", "names no host"),
            ("postgres:///b", "names no host"),
            ("postgres://a@localhost", "names no database"),
            ("postgres://a@localhost:x/b", "postgres://USER@HOST"),
            ("postgres://a@x.ONION./b", "onion service"),
            ("postgres://a@localhost/b?unknown=1", "postgres://USER@HOST"),
            ("postgres://a@localhost/b?sslmode=require", "verify-full"),
            ("postgres://a@localhost/b?schema=A", "schema="),
            ("postgres://a@localhost/b?schema=a;b", "schema="),
            ("postgres://a@localhost/b?schema=", "schema="),
        ] {
            assert!(problem(url).contains(remedy), "{url}: {}", problem(url));
        }
    }
}
