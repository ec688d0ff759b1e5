//! The TOML file, with one table for each role; errors name the line and the nearest key.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::client::SoloMode;
use super::gateways::RouteOption;
use super::open::EarlyRequests;
use super::{BridgeOptions, ClientOptions, ConfigError, GatewayOptions, RelayOptions};
use crate::back::policy::AllowDest;
use crate::hosts::HostPattern;

/// A configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    /// The options of the table `[client]`.
    pub client: Option<ClientOptions>,
    /// The routes of the client, each a table `[[route]]`. Reading moves them to `client`.
    pub route: Vec<RouteOption>,
    /// The table `[solo]` of the client. Reading moves it to `client`.
    pub solo: Option<SoloTable>,
    /// The table `[open]` of the client. Reading moves it to `client`.
    pub open: Option<OpenTable>,
    /// The options of the table `[gateway]`.
    pub gateway: Option<GatewayOptions>,
    /// The options of the table `[relay]`.
    pub relay: Option<RelayOptions>,
    /// The options of the table `[bridge]`.
    pub bridge: Option<BridgeOptions>,
    /// The options of the table `[issuer]`.
    #[cfg(feature = "submit")]
    pub issuer: Option<super::IssuerOptions>,
}

/// The table `[solo]`: the options of the client whose names begin with `solo`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct SoloTable {
    /// The way of requests; a table without it means `via`.
    pub mode: SoloMode,
    /// `solo-connections`.
    pub connections: Option<usize>,
    /// `solo-pipelining`.
    pub pipelining: Option<bool>,
    /// `solo-except`.
    pub except: Vec<HostPattern>,
    /// `solo-allow-dest`.
    pub allow_dest: Vec<AllowDest>,
    /// `solo-hold-out`.
    pub hold_out: Option<f64>,
    /// `solo-state`.
    pub state: Option<PathBuf>,
}

impl From<SoloTable> for ClientOptions {
    fn from(table: SoloTable) -> Self {
        Self {
            solo: Some(table.mode),
            solo_connections: table.connections,
            solo_pipelining: table.pipelining,
            solo_except: table.except,
            solo_allow_dest: table.allow_dest,
            solo_hold_out: table.hold_out,
            solo_state: table.state,
            ..Self::default()
        }
    }
}

/// The table `[open]`: the hosts whose HTTPS the client opens.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct OpenTable {
    /// `open-https`.
    pub hosts: Vec<HostPattern>,
    /// `open-https-at-gateway`.
    pub at_gateway: Vec<HostPattern>,
    /// `open-https-port`.
    pub ports: Vec<u16>,
    /// `open-https-ca`.
    pub ca: Option<String>,
    /// `open-https-early`.
    pub early: Option<EarlyRequests>,
}

impl From<OpenTable> for ClientOptions {
    fn from(table: OpenTable) -> Self {
        Self {
            open_https: table.hosts,
            open_https_at_gateway: table.at_gateway,
            open_https_port: table.ports,
            open_https_ca: table.ca,
            open_https_early: table.early,
            ..Self::default()
        }
    }
}

impl File {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Read {
            file: file.clone(),
            error,
        })?;
        let read: Result<Self, _> = toml::from_str(&text);
        let problem = |error| ConfigError::Parse {
            file,
            problem: unknown_key(&error, &text).unwrap_or_else(|| without_source(&error, &text)),
        };
        let mut read = read.map_err(problem)?;
        if let Some(problem) = given_twice(&text) {
            let file = path.display().to_string();
            return Err(ConfigError::Parse { file, problem });
        }
        if !read.route.is_empty() {
            let routes = std::mem::take(&mut read.route);
            read.client.get_or_insert_default().route.extend(routes);
        }
        let tables = [
            read.solo.take().map(ClientOptions::from),
            read.open.take().map(ClientOptions::from),
        ];
        for table in tables.into_iter().flatten() {
            let client = read.client.take().unwrap_or_default();
            read.client = Some(client.or(table));
        }
        Ok(read)
    }
}

/// The keys of the tables of the client, each with the key in `[client]` that means the same.
const DOUBLES: [(&str, &str, &str); 12] = [
    ("solo", "mode", "solo"),
    ("solo", "connections", "solo-connections"),
    ("solo", "pipelining", "solo-pipelining"),
    ("solo", "except", "solo-except"),
    ("solo", "allow-dest", "solo-allow-dest"),
    ("solo", "hold-out", "solo-hold-out"),
    ("solo", "state", "solo-state"),
    ("open", "hosts", "open-https"),
    ("open", "at-gateway", "open-https-at-gateway"),
    ("open", "ports", "open-https-port"),
    ("open", "ca", "open-https-ca"),
    ("open", "early", "open-https-early"),
];

/// Formats the error about an option that a file gives in two tables: one value would be ignored.
fn given_twice(text: &str) -> Option<String> {
    let file: toml::Table = text.parse().ok()?;
    let has = |table: &str, key: &str| {
        let table = file.get(table).and_then(toml::Value::as_table);
        table.is_some_and(|table| table.contains_key(key))
    };
    let (table, key, client) = DOUBLES
        .iter()
        .find(|(table, key, client)| has(table, key) && has("client", client))?;
    Some(format!(
        "`{key}` in [{table}] and `{client}` in [client] are the same option: keep one of them"
    ))
}

/// Formats the error about an unknown key, with the known key that may be meant.
fn unknown_key(error: &toml::de::Error, text: &str) -> Option<String> {
    let mut quoted = error
        .message()
        .strip_prefix("unknown field ")?
        .split('`')
        .skip(1)
        .step_by(2);
    let (unknown, known) = (quoted.next()?, quoted.collect::<Vec<_>>());
    let line = line_of(error, text);
    let advice = if unknown == "issuer" && !cfg!(feature = "submit") {
        "; this program has no issuer: build it with `--features submit`".to_owned()
    } else {
        nearest(unknown, &known).map_or_else(
            || format!("; the keys are: {}", known.join(", ")),
            |key| format!("; did you mean `{key}`?"),
        )
    };
    Some(format!("line {line}: unknown key `{unknown}`{advice}"))
}

/// Returns the number of the line where the error is.
fn line_of(error: &toml::de::Error, text: &str) -> usize {
    let before = error.span().and_then(|span| text.get(..span.start));
    before.map_or(1, |before| before.matches('\n').count() + 1)
}

/// The tables that a file has once.
const SINGLE_TABLES: [&str; 7] = [
    "client", "gateway", "relay", "bridge", "issuer", "solo", "open",
];

/// Formats an error with the number of its line and the key there. The text of the line is left
/// out: the file may be one of secrets, given by mistake, and a URL may contain a password.
fn without_source(error: &toml::de::Error, text: &str) -> String {
    let line = line_of(error, text);
    let message = error.message().lines().collect::<Vec<_>>().join(": ");
    let message = in_words(without_value(&message));
    if text.parse::<toml::Table>().is_err() {
        return format!("line {line}: this is no TOML: {message}");
    }
    let source = text.lines().nth(line - 1).unwrap_or_default();
    let is_key = |key: &&str| key.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    let key = source.split_once('=').map(|(key, _)| key.trim());
    let key = key.filter(is_key).map(|key| format!("`{key}`: "));
    let is_in_table = text.lines().take(line).any(|it| it.starts_with('['));
    let array = source.trim().strip_prefix("[[");
    let array = array.and_then(|rest| rest.split(']').next());
    let single = array.filter(|name| SINGLE_TABLES.contains(name));
    if let Some(name) = single {
        return format!(
            "line {line}: there is one table of this name: write [{name}] for [[{name}]]"
        );
    }
    let advice = if !is_in_table {
        "; the options of a role stand below the name of its table, such as [client]"
    } else if message.ends_with("expected a sequence") {
        "; write the value in brackets, as a list"
    } else {
        ""
    };
    format!("line {line}: {}{message}{advice}", key.unwrap_or_default())
}

/// Removes a value of the file from a message of serde, which writes it as `string "…"`.
fn without_value(message: &str) -> String {
    const VALUE: &str = "string \"";
    match (message.find(VALUE), message.rfind('"')) {
        (Some(start), Some(end)) if end >= start + VALUE.len() => {
            format!("{}string{}", &message[..start], &message[end + 1..])
        }
        _ => message.to_owned(),
    }
}

/// Replaces the name of a type of numbers, with which a message of serde ends.
fn in_words(message: String) -> String {
    const TYPES: [(&str, &str); 5] = [
        ("expected u16", "expected a whole number from 0 to 65535"),
        (
            "expected u32",
            "expected a whole number from 0 to 4294967295",
        ),
        ("expected u64", "expected a whole number, 0 or more"),
        ("expected usize", "expected a whole number, 0 or more"),
        ("expected f64", "expected a number"),
    ];
    let known = TYPES.into_iter().find(|(name, _)| message.ends_with(name));
    match known {
        Some((name, words)) => message.replace(name, words),
        None => message,
    }
}

/// Returns the known key that is most similar to `unknown`, if any is similar.
fn nearest<'a>(unknown: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|key| (strsim::jaro_winkler(unknown, key), *key))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, key)| key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        let error = toml::from_str::<File>(text).expect_err("an unknown key");
        unknown_key(&error, text).expect("the error is about the key")
    }

    #[test]
    fn unknown_key_error_suggests_a_known_key() {
        assert_eq!(
            problem("# mine\n[client]\ngatway = []\n"),
            "line 3: unknown key `gatway`; did you mean `gateway`?"
        );
        assert!(problem("[gateway]\nallow-dests = []\n").ends_with("did you mean `allow-dest`?"));
        assert!(problem("[clinet]\n").ends_with("did you mean `client`?"));
        assert!(problem("[gateway]\nzzz = 1\n").contains("the keys are: "));
    }

    #[test]
    fn option_in_two_tables_is_an_error() {
        for (table, key, client) in DOUBLES {
            let text = format!("[client]\n{client} = []\n[{table}]\n{key} = []\n");
            let words = given_twice(&text).expect("an error");
            assert!(
                words.starts_with(&format!("`{key}` in [{table}]")),
                "{words}"
            );
        }
        let apart = "[client]\nsolo = \"direct\"\nopen-https-ca = \"a\"\n[solo]\nexcept = []\n";
        assert_eq!(given_twice(apart), None);
        // A new key of a table needs a line in the list.
        for table in ["solo", "open"] {
            let words = problem(&format!("[{table}]\nzzz = 1\n"));
            let (_, keys) = words.split_once("the keys are: ").expect("the keys");
            for key in keys.split(", ") {
                let mut listed = DOUBLES.iter();
                assert!(
                    listed.any(|it| (it.0, it.1) == (table, key)),
                    "{table} {key}"
                );
            }
        }
    }

    #[cfg(not(feature = "submit"))]
    #[test]
    fn table_of_an_issuer_names_the_missing_feature() {
        let words = problem("[issuer]\n");
        assert!(
            words.ends_with("build it with `--features submit`"),
            "{words}"
        );
    }

    #[test]
    fn errors_name_line_and_key_but_no_text_of_the_file() {
        let folder = crate::secret::token().expect("random numbers");
        let folder = std::env::temp_dir().join(format!("tandem-file-{folder}"));
        std::fs::create_dir(&folder).expect("a new directory");
        let path = folder.join("file");
        let problem = |text: &str| {
            std::fs::write(&path, text).expect("a writable directory");
            let error = File::read(&path).expect_err("a bad file").to_string();
            assert!(
                !error.contains("s3cret") && !error.contains('\n'),
                "{error}"
            );
            error
        };
        let token = problem("s3cretS3cretS3cretS3cret\n");
        assert!(token.contains("file: line 1: this is no TOML: "), "{token}");
        let list = problem("[client]\ngateway = \"tandem://h?token=\\\"s3cret\"\n");
        let words = "`gateway`: invalid type: string, expected a sequence; write the value";
        assert!(list.contains(words), "{list}");
        let user = problem("[client]\ngateway = [\"h2+tls://u:s3cret@host:x\"]\n");
        assert!(user.contains("…@host:x"), "{user}");
        let store = problem("[client]\npush-memory = [\"://u:s3cret@host\"]\n");
        assert!(
            store.contains("line 2: `push-memory`: invalid type"),
            "{store}"
        );
        let list = problem("[client]\nlisten = \"http://127.0.0.1:8118\"\n");
        assert!(
            list.contains("line 2: `listen`: ") && list.ends_with("as a list"),
            "{list}"
        );
        let twice = problem("[client]\nsolo-except = [\"s3cret.test\"]\n[solo]\nexcept = []\n");
        assert!(twice.contains("are the same option"), "{twice}");
        let array = problem("[[client]]\nlisten = []\n");
        assert!(array.ends_with("write [client] for [[client]]"), "{array}");
        let number = problem("[gateway]\nworkers = -1\n");
        let words = "line 2: `workers`: invalid value: integer `-1`, expected a whole number, 0 or";
        assert!(number.contains(words), "{number}");
        let outside = problem("# mine\ngateway = \"h2+tls://gw.example:443\"\n");
        assert!(outside.contains("line 2: `gateway`: "), "{outside}");
        assert!(outside.ends_with("such as [client]"), "{outside}");
        std::fs::remove_dir_all(folder).expect("the directory of the test");
    }
}
