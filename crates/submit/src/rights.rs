//! The rights of clients, as the operator's file states them.
//!
//! ```toml
//! [[client]]
//! name = "surveyors"
//! token-sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
//! paths = ["/reports"]
//! types = ["application/json", "image/*"]
//! max-bytes = 1048576
//! per-day = 100
//! bytes-per-day = 10485760
//! ```

use std::collections::HashSet;

use data_encoding::HEXLOWER_PERMISSIVE;
use serde::Deserialize;

use crate::media_type;
use crate::problem::Problem;

/// The largest body of a client without `max-bytes`: 1 MiB.
pub const DEFAULT_MAX_BYTES: u64 = 1 << 20;

/// The largest value of `max-bytes`: 64 MiB. The gateway holds a body in memory.
pub const LARGEST_MAX_BYTES: u64 = 64 << 20;

/// The reason why the file of rights cannot be used. The text goes to a log, so that it holds no
/// name and no value of the file. Clients are numbered from 1, in the order of the file.
#[derive(Debug, thiserror::Error)]
pub enum RightsError {
    /// The file is not valid TOML, or has an unknown key or a wrong value.
    #[error("line {line}: {problem}")]
    Toml {
        /// The number of the line, from 1.
        line: usize,
        /// The problem, without the text of the line.
        problem: String,
    },
    /// The file has no client.
    #[error("the file has no [[client]]")]
    Empty,
    /// The file has no issuer.
    #[error("the file has no [[issuer]]")]
    NoIssuer,
    /// A value of an issuer is not valid.
    #[error("issuer {issuer}: {problem}")]
    Issuer {
        /// The number of the issuer.
        issuer: usize,
        /// The problem and the remedy.
        problem: ClientError,
    },
    /// Two clients have the same name or the same credential.
    #[error("client {0}: the name or a credential is given twice")]
    Twice(usize),
    /// A value of a client is missing or not valid.
    #[error("client {client}: {problem}")]
    Client {
        /// The number of the client.
        client: usize,
        /// The problem and the remedy.
        problem: ClientError,
    },
}

/// The problem of one client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The client has no credential.
    #[error("give token-sha256 or certificate-sha256")]
    NoCredential,
    /// A value is not valid.
    #[error("{key}: {problem}")]
    Value {
        /// The key.
        key: &'static str,
        /// The problem and the remedy.
        problem: &'static str,
    },
}

/// The keys that an error may name. Another word of the file may be a misplaced token.
const KEYS: [&str; 11] = [
    "name",
    "token-sha256",
    "certificate-sha256",
    "paths",
    "types",
    "max-bytes",
    "per-day",
    "bytes-per-day",
    "origin",
    "directory",
    "epoch-hours",
];

impl RightsError {
    pub(crate) fn toml(text: &str, error: &toml::de::Error) -> Self {
        let start = error.span().map_or(0, |span| span.start);
        let before = text.get(..start).unwrap_or(text);
        // The message quotes keys and values of the file, which may be misplaced tokens.
        let message = error.message();
        let end = message
            .find(['`', '"', '\'', '\n'])
            .unwrap_or(message.len());
        let line = before.matches('\n').count();
        let source = text.lines().nth(line).unwrap_or_default();
        let given = source.split('=').next().unwrap_or_default().trim();
        let key = KEYS.iter().find(|&&key| key == given);
        let key = key.map_or_else(String::new, |key| format!("{key}: "));
        Self::Toml {
            line: line + 1,
            problem: format!("{key}{}", message[..end].trim_end()),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    client: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Entry {
    name: String,
    token_sha256: Option<String>,
    certificate_sha256: Option<String>,
    #[serde(default)]
    paths: Vec<String>,
    #[serde(default)]
    types: Vec<String>,
    max_bytes: Option<u64>,
    per_day: Option<u64>,
    bytes_per_day: Option<u64>,
}

/// The amounts that a client may send on a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// The number of submissions; `None` for no limit.
    pub submissions: Option<u64>,
    /// The bytes of their bodies; `None` for no limit.
    pub bytes: Option<u64>,
}

impl Quota {
    /// Returns true if the quota allows these totals of a day.
    pub fn allows(&self, submissions: u64, bytes: u64) -> bool {
        self.submissions.is_none_or(|most| submissions <= most)
            && self.bytes.is_none_or(|most| bytes <= most)
    }
}

/// A client and its rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The name, which only the operator sees.
    pub name: String,
    token: Option<[u8; 32]>,
    certificate: Option<[u8; 32]>,
    paths: Vec<String>,
    types: Vec<String>,
    /// The largest body in bytes.
    pub max_bytes: u64,
    /// The amounts for a day.
    pub quota: Quota,
}

/// The rights of all clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    clients: Vec<Client>,
}

impl Rights {
    /// Returns rights without clients, for a gateway that accepts tokens only.
    pub const fn none() -> Self {
        Self {
            clients: Vec::new(),
        }
    }

    /// Reads the file of rights.
    ///
    /// # Errors
    /// Returns the first problem of the file.
    pub fn parse(text: &str) -> Result<Self, RightsError> {
        let file: File = toml::from_str(text).map_err(|error| RightsError::toml(text, &error))?;
        if file.client.is_empty() {
            return Err(RightsError::Empty);
        }
        let (mut names, mut credentials) = (HashSet::new(), HashSet::new());
        let mut clients = Vec::new();
        for (at, entry) in file.client.into_iter().enumerate() {
            let number = at + 1;
            let client = entry.checked().map_err(|problem| RightsError::Client {
                client: number,
                problem,
            })?;
            let is_new = names.insert(client.name.clone())
                && client.token.is_none_or(|hash| credentials.insert(hash))
                && client
                    .certificate
                    .is_none_or(|hash| credentials.insert(hash));
            if !is_new {
                return Err(RightsError::Twice(number));
            }
            clients.push(client);
        }
        Ok(Self { clients })
    }

    /// Returns the client whose token has this SHA-256 hash.
    pub fn by_token(&self, sha256: &[u8; 32]) -> Option<&Client> {
        let mut clients = self.clients.iter();
        clients.find(|client| client.token.as_ref() == Some(sha256))
    }

    /// Returns the client whose certificate has this SHA-256 hash.
    pub fn by_certificate(&self, sha256: &[u8; 32]) -> Option<&Client> {
        let mut clients = self.clients.iter();
        clients.find(|client| client.certificate.as_ref() == Some(sha256))
    }

    /// Returns the number of clients.
    pub const fn count(&self) -> usize {
        self.clients.len()
    }

    /// Returns true if a client has a certificate as its credential.
    pub fn has_certificates(&self) -> bool {
        self.clients.iter().any(|it| it.certificate.is_some())
    }

    /// Returns the largest body that a client may send, in bytes.
    pub fn largest_body(&self) -> u64 {
        let sizes = self.clients.iter().map(|client| client.max_bytes);
        sizes.max().unwrap_or_default()
    }
}

impl Entry {
    fn checked(self) -> Result<Client, ClientError> {
        let wrong = |key, problem| Err(ClientError::Value { key, problem });
        let hash = |text: &Option<String>| text.as_deref().map(sha256_of);
        let (token, certificate) = (hash(&self.token_sha256), hash(&self.certificate_sha256));
        let digits = "must be 64 hexadecimal digits";
        let limited = Client::limited(self.name, self.paths, self.types, self.max_bytes)?;
        let (token, certificate) = match (token, certificate) {
            (None, None) => return Err(ClientError::NoCredential),
            (Some(None), _) => return wrong("token-sha256", digits),
            (_, Some(None)) => return wrong("certificate-sha256", digits),
            (token, certificate) => (token.flatten(), certificate.flatten()),
        };
        Ok(Client {
            token,
            certificate,
            quota: Quota {
                submissions: self.per_day,
                bytes: self.bytes_per_day,
            },
            ..limited
        })
    }
}

impl Client {
    /// Returns a client without a credential and without a quota.
    pub(crate) fn limited(
        name: String,
        paths: Vec<String>,
        types: Vec<String>,
        max_bytes: Option<u64>,
    ) -> Result<Self, ClientError> {
        let wrong = |key, problem| Err(ClientError::Value { key, problem });
        let is_name = |name: &str| {
            (1..=128).contains(&name.len()) && name.chars().all(|letter| !letter.is_control())
        };
        if !is_name(&name) {
            return wrong("name", "must have 1 to 128 characters");
        }
        if !paths.iter().all(|path| is_plain(path)) {
            return wrong(
                "paths",
                "must be plain paths that begin with /, such as /reports",
            );
        }
        if !types.iter().all(|kind| media_type::is_range(kind)) {
            return wrong("types", "must be media types, such as image/png or image/*");
        }
        let max_bytes = max_bytes.unwrap_or(DEFAULT_MAX_BYTES);
        if max_bytes == 0 || max_bytes > LARGEST_MAX_BYTES {
            return wrong("max-bytes", "must be from 1 to 67108864 (64 MiB)");
        }
        let lower = |kind: &String| kind.to_ascii_lowercase();
        Ok(Self {
            name,
            token: None,
            certificate: None,
            types: types.iter().map(lower).collect(),
            paths,
            max_bytes,
            quota: Quota::default(),
        })
    }

    /// Checks the rights to a request, except the quota. The path has no query. `media_type` is the
    /// value of `Content-Type`, which must be one valid media type if the rights limit the types.
    /// `length` is the size of the body in bytes, if it is known.
    ///
    /// # Errors
    /// Returns the problem of a request beyond the rights.
    pub fn check(
        &self,
        path: &str,
        media_type: Option<&[u8]>,
        length: Option<u64>,
    ) -> Result<(), Problem> {
        let is_below = |granted: &String| {
            let granted = granted.strip_suffix('/').unwrap_or(granted);
            let rest = path.strip_prefix(granted);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let is_granted = self.paths.is_empty() || self.paths.iter().any(is_below);
        if !is_granted || !(path.is_empty() || is_plain(path)) {
            return Err(Problem::PathNotAllowed);
        }
        if !self.types.is_empty() && !self.takes(media_type.unwrap_or_default()) {
            return Err(Problem::TypeNotAllowed);
        }
        match length.is_some_and(|length| length > self.max_bytes) {
            true => Err(Problem::TooLarge),
            false => Ok(()),
        }
    }

    fn takes(&self, media_type: &[u8]) -> bool {
        let Some(essence) = media_type::essence(media_type) else {
            return false;
        };
        self.types
            .iter()
            .any(|granted| match granted.strip_suffix('*') {
                Some(prefix) => essence.starts_with(prefix),
                None => *granted == essence,
            })
    }
}

/// Returns true if the path begins with `/` and means the same to every server, also to one that
/// removes parameters (`;`), decodes twice or merges slashes. Only a trailing slash may follow a
/// slash or an encoded character.
pub fn is_plain(path: &str) -> bool {
    let Some(path) = path.strip_prefix('/') else {
        return false;
    };
    let path = path.strip_suffix('/').unwrap_or(path);
    path.is_empty() || path.split('/').all(is_plain_segment)
}

/// Returns true for a segment of `pchar` without `;` (RFC 3986 section 3.3) that is not empty and
/// no dot segment. It has no encoded separators, dots, percent signs or control characters.
fn is_plain_segment(segment: &str) -> bool {
    let mut bytes = segment.bytes();
    while let Some(byte) = bytes.next() {
        let is_plain = match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                let decoded = digit().zip(digit()).map(|(high, low)| high << 4 | low);
                decoded
                    .and_then(|decoded| u8::try_from(decoded).ok())
                    .is_some_and(|byte| byte == b' ' || byte >= 0x80 || is_pchar(byte))
            }
            b'.' => true,
            _ => is_pchar(byte),
        };
        if !is_plain {
            return false;
        }
    }
    !matches!(segment, "" | "." | "..")
}

/// Returns true for the characters of a segment, except `;`, `.` and `%`.
const fn is_pchar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'-' | b'_'
                | b'~'
                | b'!'
                | b'$'
                | b'&'
                | b'\''
                | b'('
                | b')'
                | b'*'
                | b'+'
                | b','
                | b'='
                | b':'
                | b'@'
        )
}

fn sha256_of(text: &str) -> Option<[u8; 32]> {
    let digits = text.trim().replace(':', "");
    let hash = HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).ok()?;
    hash.try_into().ok()
}

#[cfg(test)]
mod tests;
