//! The issuers whose tokens a gateway accepts, as the operator's file states them.
//!
//! ```toml
//! [[issuer]]
//! name = "issuer.example"
//! origin = "submissions.example"
//! directory = "issuer.json"
//! paths = ["/reports"]
//! types = ["application/json"]
//! max-bytes = 65536
//! ```

use std::collections::HashSet;

use serde::Deserialize;

use crate::rights::{Client, ClientError, RightsError};

/// The hours of an epoch without `epoch-hours`.
const DEFAULT_HOURS: u64 = 24;

/// The hours of the longest epoch: 31 days.
const MOST_HOURS: u64 = 744;

/// The longest epoch that a file may state, in seconds.
pub const LONGEST_EPOCH: u64 = MOST_HOURS * 3600;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    issuer: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Entry {
    name: String,
    origin: String,
    directory: String,
    epoch_hours: Option<u64>,
    #[serde(default)]
    paths: Vec<String>,
    #[serde(default)]
    types: Vec<String>,
    max_bytes: Option<u64>,
}

/// An issuer, and the rights of its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// The name of the issuer in challenges.
    pub name: String,
    /// The name of the gateway in challenges.
    pub origin: String,
    /// The file with the directory of the issuer's keys.
    pub directory: String,
    /// The length of an epoch in seconds.
    pub epoch: u64,
    /// The rights of each token. The name is that of the issuer.
    pub rights: Client,
}

/// Reads the file of issuers. Errors count the issuers from 1.
///
/// # Errors
/// Returns the first problem of the file.
pub fn parse(text: &str) -> Result<Vec<Issuer>, RightsError> {
    let file: File = toml::from_str(text).map_err(|error| RightsError::toml(text, &error))?;
    if file.issuer.is_empty() {
        return Err(RightsError::NoIssuer);
    }
    let mut names = HashSet::new();
    let mut issuers = Vec::new();
    for (at, entry) in file.issuer.into_iter().enumerate() {
        let number = at + 1;
        let issuer = entry.checked().map_err(|problem| RightsError::Issuer {
            issuer: number,
            problem,
        })?;
        if !names.insert(issuer.name.clone()) {
            return Err(RightsError::Issuer {
                issuer: number,
                problem: ClientError::Value {
                    key: "name",
                    problem: "is given twice",
                },
            });
        }
        issuers.push(issuer);
    }
    Ok(issuers)
}

impl Entry {
    fn checked(self) -> Result<Issuer, ClientError> {
        let wrong = |key, problem| Err(ClientError::Value { key, problem });
        let is_host = |name: &str| {
            (1..=255).contains(&name.len())
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_graphic() && byte != b',')
        };
        if !is_host(&self.name) {
            return wrong("name", "must be the host name of the issuer");
        }
        if !is_host(&self.origin) {
            return wrong("origin", "must be the host name of this gateway");
        }
        if self.directory.is_empty() {
            return wrong(
                "directory",
                "must be a file with the issuer's directory of keys",
            );
        }
        let hours = self.epoch_hours.unwrap_or(DEFAULT_HOURS);
        if !(1..=MOST_HOURS).contains(&hours) {
            return wrong("epoch-hours", "must be from 1 to 744");
        }
        Ok(Issuer {
            rights: Client::limited(self.name.clone(), self.paths, self.types, self.max_bytes)?,
            name: self.name,
            origin: self.origin,
            directory: self.directory,
            epoch: hours * 3600,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::problem::Problem;

    const ENTRY: &str = "[[issuer]]\nname = \"issuer.example\"\norigin = \"gw.example\"\n\
                         directory = \"keys.json\"\n";

    #[test]
    fn issuers_have_rights_and_epochs() {
        let text = format!("{ENTRY}paths = [\"/a\"]\nmax-bytes = 10\nepoch-hours = 2\n");
        let issuer = parse(&text).expect("valid").remove(0);
        assert_eq!((issuer.epoch, issuer.rights.max_bytes), (7200, 10));
        assert_eq!(issuer.rights.check("/a", None, Some(10)), Ok(()));
        let refused = issuer.rights.check("/b", None, None);
        assert_eq!(refused, Err(Problem::PathNotAllowed));
    }

    #[test]
    fn issuer_errors_name_the_key() {
        let wrong = |text: &str| parse(text).expect_err(text).to_string();
        assert_eq!(wrong(""), "the file has no [[issuer]]");
        for (line, key) in [
            ("epoch-hours = 0", "issuer 1: epoch-hours"),
            ("max-bytes = 0", "issuer 1: max-bytes"),
            ("paths = [\"x\"]", "issuer 1: paths"),
            ("other = 1", "line 5: unknown field"),
        ] {
            let error = wrong(&format!("{ENTRY}{line}\n"));
            assert!(error.contains(key), "{error}");
        }
        assert!(wrong(&ENTRY.repeat(2)).contains("issuer 2: name: is given twice"));
        let empty = ENTRY.replace("gw.example", "");
        assert!(wrong(&empty).contains("origin"));
    }

    proptest! {
        #[test]
        fn issuer_parser_survives_any_text(text in "\\PC{0,200}") {
            let _ = parse(&text);
        }
    }
}
