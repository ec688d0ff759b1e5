//! The directory of `tandem submit`: settings, tokens and the journal of submissions.
//!
//! Only its owner may read it. Files are replaced as a whole, and are on the disk before a request
//! is sent. One process at a time uses the directory: two of them could send one token with two
//! files, which would link both.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tandem_submit::problem::Problem;
use tandem_submit::submission::State as SubmissionState;
use tandem_tokens::token::Token;

use super::random;
use crate::cli::Failure;
use crate::files;

/// The file with the settings of a gateway.
const SETTINGS: &str = "settings.json";

/// The settings of a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Settings {
    /// The URL of the gateway.
    pub(super) gateway: String,
    /// The URL of the relay, if there is one.
    pub(super) relay: Option<String>,
    /// The file with the access token of the relay.
    pub(super) relay_token_file: Option<String>,
    /// The proxy on the way to all of them.
    pub(super) via: Option<String>,
    /// The file with the token of the account.
    pub(super) token_file: Option<String>,
    /// The settings of the unlinkable mode.
    pub(super) unlinkable: Option<UnlinkableSettings>,
}

/// The settings of the unlinkable mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct UnlinkableSettings {
    /// The URL of the issuer.
    pub(super) issuer: String,
    /// The gateway's key for encapsulated requests, in base64url.
    pub(super) oblivious_keys: String,
    /// The source of that key. Settings of earlier versions have none.
    #[serde(default)]
    pub(super) key_source: Option<KeySource>,
}

/// The source of the gateway's key. Neither lets a relay choose the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum KeySource {
    /// The gateway itself, which has shown its identity.
    Gateway,
    /// A file of the user.
    File,
}

impl UnlinkableSettings {
    pub(super) fn keys(&self) -> Vec<u8> {
        URL_SAFE_NO_PAD
            .decode(&self.oblivious_keys)
            .unwrap_or_default()
    }

    pub(super) fn encode_keys(keys: &[u8]) -> String {
        URL_SAFE_NO_PAD.encode(keys)
    }
}

/// A submission in the journal.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct JournalEntry {
    /// The name of the entry.
    #[serde(skip)]
    pub(super) name: String,
    /// The file that was sent.
    pub(super) file: String,
    /// The SHA-256 hash of its content, in base64url.
    pub(super) digest: String,
    /// The path at the server.
    pub(super) path: String,
    /// The media type of the content. Entries of earlier versions have none.
    #[serde(default)]
    pub(super) kind: Option<String>,
    /// The secret of the submission, in base64url.
    pub(super) secret: String,
    /// The token that pays for it, as the value of a field.
    pub(super) token: Option<String>,
    /// The tokens whose key the gateway did not know when it received them with this content. With
    /// other content, they would link both submissions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) shown_tokens: Vec<String>,
    /// The path of the submission at the gateway.
    pub(super) location: Option<String>,
    /// The last known state.
    pub(super) state: Option<SubmissionState>,
    /// The status code of the server.
    pub(super) status: Option<u16>,
    /// True if the answer was written to a file.
    #[serde(default)]
    pub(super) has_answer: bool,
}

impl JournalEntry {
    /// Creates the entry of a submission that has not been sent.
    pub(super) fn new(file: String, digest: String, path: &str) -> Result<Self, Failure> {
        Ok(Self {
            name: format!("{}.json", URL_SAFE_NO_PAD.encode(random::<12>()?)),
            file,
            digest,
            path: path.to_owned(),
            kind: None,
            secret: URL_SAFE_NO_PAD.encode(random::<32>()?),
            token: None,
            shown_tokens: Vec::new(),
            location: None,
            state: None,
            status: None,
            has_answer: false,
        })
    }

    /// Returns the entry of a new submission with the same content, in place of this one, which
    /// the gateway has given up. It has another secret.
    pub(super) fn renewed(&self) -> Result<Self, Failure> {
        Ok(Self {
            name: self.name.clone(),
            kind: self.kind.clone(),
            ..Self::new(self.file.clone(), self.digest.clone(), &self.path)?
        })
    }

    /// Mends an entry of earlier versions, which took the gateway's problem with this status for
    /// the answer. The gateway passes no answer with this status on.
    fn mend(&mut self) {
        let is_answered = self.state == Some(SubmissionState::Answered);
        if is_answered && self.status == Some(Problem::NotDelivered.status()) {
            self.state = Some(SubmissionState::NotDelivered);
            (self.status, self.has_answer) = (None, false);
        }
    }

    pub(super) fn secret(&self) -> Vec<u8> {
        URL_SAFE_NO_PAD.decode(&self.secret).unwrap_or_default()
    }

    /// Returns true if a token belongs to this submission.
    fn has_token(&self, token: &str) -> bool {
        let mut tokens = self.token.iter().chain(&self.shown_tokens);
        tokens.any(|own| own == token)
    }

    /// Keeps the present token for this content only, since the gateway did not know its key.
    pub(super) fn set_token_aside(&mut self) {
        self.shown_tokens.extend(self.token.take());
    }

    /// Takes up a token that was set aside, and has none of these keys.
    pub(super) fn take_up_token(&mut self, but: &[KeyId]) {
        let is_other = |token: &String| key_of(token).is_some_and(|key| !but.contains(&key));
        let found = self.shown_tokens.iter().position(is_other);
        self.token = found.map(|at| self.shown_tokens.swap_remove(at));
    }
}

/// The identifier of an issuer's key, which stands for its epoch.
pub(super) type KeyId = [u8; 32];

/// Returns the key of a token in the form of a field.
pub(super) fn key_of(token: &str) -> Option<KeyId> {
    let token = Token::from_authorization(token.as_bytes()).ok()??;
    Some(token.key_id)
}

/// The directory.
pub(super) struct ClientFiles {
    directory: PathBuf,
    /// Held until the process ends.
    _lock: File,
}

impl ClientFiles {
    pub(super) fn open(directory: PathBuf) -> Result<Self, Failure> {
        let wrong = |error: std::io::Error| format!("{}: {error}", directory.display());
        for part in ["tokens", "journal"] {
            let mut builder = std::fs::DirBuilder::new();
            let made = builder
                .recursive(true)
                .mode(0o700)
                .create(directory.join(part));
            made.map_err(wrong)?;
        }
        let lock = files::open_locked(&directory.join("lock")).map_err(|error| match error {
            TryLockError::WouldBlock => {
                let directory = directory.display();
                format!("{directory}: another tandem submit uses it: wait until that has ended")
            }
            TryLockError::Error(error) => wrong(error),
        })?;
        let this = Self {
            directory,
            _lock: lock,
        };
        this.remove_taken_tokens()?;
        Ok(this)
    }

    /// Removes the files of tokens that the journal has. A crash leaves such a file, and the entry
    /// forgets its token once the submission has ended.
    fn remove_taken_tokens(&self) -> Result<(), Failure> {
        let journal = self.journal()?;
        for entry in std::fs::read_dir(self.directory.join("tokens"))? {
            let file = entry?.path();
            let text = std::fs::read_to_string(&file)?;
            if journal.iter().any(|entry| entry.has_token(&text)) {
                self.remove_token(&file)?;
            }
        }
        Ok(())
    }

    /// Removes the file of a token, so that it does not come back after a loss of power.
    pub(super) fn remove_token(&self, file: &Path) -> Result<(), Failure> {
        std::fs::remove_file(file)?;
        File::open(self.directory.join("tokens"))?.sync_all()?;
        Ok(())
    }

    /// Returns the directory.
    pub(super) fn path(&self) -> &Path {
        &self.directory
    }

    pub(super) fn settings(&self) -> Result<Settings, Failure> {
        match is_enrolled(&self.directory) {
            true => read(&self.directory.join(SETTINGS)),
            false => Err(no_settings(&self.directory)),
        }
    }

    /// Returns the settings of an earlier enrolment.
    pub(super) fn kept_settings(&self) -> Result<Option<Settings>, Failure> {
        let file = self.directory.join(SETTINGS);
        file.exists().then(|| read(&file)).transpose()
    }

    pub(super) fn write_settings(&self, settings: &Settings) -> Result<(), Failure> {
        write(
            &self.directory.join(SETTINGS),
            &serde_json::to_vec_pretty(settings)?,
        )
    }

    /// Keeps a token.
    pub(super) fn add_token(&self, token: &Token) -> Result<(), Failure> {
        let name = URL_SAFE_NO_PAD.encode(random::<12>()?);
        let file = self.directory.join("tokens").join(name);
        write(&file, token.authorization().as_bytes())
    }

    /// Returns the number of kept tokens.
    pub(super) fn count_tokens(&self) -> Result<usize, Failure> {
        Ok(std::fs::read_dir(self.directory.join("tokens"))?.count())
    }

    /// Returns a kept token with its file, and none of these keys. The file is removed once the
    /// journal has the token. After a crash between both, the token belongs to its submission, and
    /// [`ClientFiles::open`] removes the file.
    pub(super) fn token(&self, but: &[KeyId]) -> Result<(String, PathBuf), Failure> {
        self.remove_taken_tokens()?;
        for entry in std::fs::read_dir(self.directory.join("tokens"))? {
            let file = entry?.path();
            let text = std::fs::read_to_string(&file)?;
            match key_of(&text) {
                Some(key) if !but.contains(&key) => return Ok((text, file)),
                Some(_) => {}
                // A crash interrupted the writing of the file.
                None => std::fs::remove_file(&file)?,
            }
        }
        Err(match but {
            [] => "no tokens are left: run tandem submit tokens",
            _ => {
                "the gateway knows no key of the tokens that are left: run tandem submit tokens, \
                  or wait until the gateway has the new keys of the issuer"
            }
        }
        .into())
    }

    /// Moves a token that was set aside for the same content to a new entry, and records both. The
    /// gateway has seen the token with this content, so that it links nothing else. After a crash
    /// both entries may have it, and the second use gets the answer that it is spent.
    pub(super) fn take_from_refused(
        &self,
        entry: &mut JournalEntry,
        journal: Vec<JournalEntry>,
    ) -> Result<(), Failure> {
        let has_one = |other: &JournalEntry| {
            let is_open = other.location.is_none() && other.state.is_none();
            // Another file with the same content would be linked to the first one.
            let is_same = other.file == entry.file && other.digest == entry.digest;
            is_open && is_same && !other.shown_tokens.is_empty()
        };
        let Some(mut refused) = journal.into_iter().find(has_one) else {
            return Ok(());
        };
        entry.shown_tokens.extend(refused.shown_tokens.pop());
        self.record(entry)?;
        self.record(&refused)
    }

    /// Removes the tokens of a key after its epoch.
    pub(super) fn remove_tokens(&self, of: KeyId) -> Result<(), Failure> {
        for entry in std::fs::read_dir(self.directory.join("tokens"))? {
            let file = entry?.path();
            if key_of(&std::fs::read_to_string(&file)?) == Some(of) {
                std::fs::remove_file(&file)?;
            }
        }
        Ok(())
    }

    /// Returns the file of an entry of the journal.
    pub(super) fn file_of(&self, entry: &JournalEntry) -> PathBuf {
        self.directory.join("journal").join(&entry.name)
    }

    /// Writes an entry of the journal.
    pub(super) fn record(&self, entry: &JournalEntry) -> Result<(), Failure> {
        write(&self.file_of(entry), &serde_json::to_vec_pretty(entry)?)
    }

    /// Returns the entries of the journal, in the order of the files that were sent.
    pub(super) fn journal(&self) -> Result<Vec<JournalEntry>, Failure> {
        let mut entries = Vec::new();
        for file in std::fs::read_dir(self.directory.join("journal"))? {
            let file = file?.path();
            if file.extension().is_some_and(|end| end == "json") {
                let mut entry: JournalEntry = read(&file)?;
                let name = file.file_name().unwrap_or_default();
                entry.name = name.to_string_lossy().into_owned();
                entry.mend();
                entries.push(entry);
            }
        }
        entries.sort_by(|one, other| (&one.file, &one.name).cmp(&(&other.file, &other.name)));
        Ok(entries)
    }
}

/// Returns whether a directory has the settings of an enrolment.
pub(super) fn is_enrolled(directory: &Path) -> bool {
    directory.join(SETTINGS).exists()
}

/// Returns the error for a directory without settings.
pub(super) fn no_settings(directory: &Path) -> Failure {
    let directory = directory.display();
    format!("{directory} has no settings: run tandem submit enrol").into()
}

fn read<T: DeserializeOwned>(file: &Path) -> Result<T, Failure> {
    let wrong = |problem: String| format!("{}: {problem}", file.display());
    let text = std::fs::read(file).map_err(|error| wrong(error.to_string()))?;
    Ok(serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?)
}

fn write(file: &Path, content: &[u8]) -> Result<(), Failure> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let new = files::beside(file, ".new");
    files::replace(file, &new, &options, content)
        .map_err(|error| format!("{}: {error}", file.display()).into())
}

#[cfg(test)]
mod tests {
    use tandem_tokens::issuance::{IssuerKey, Unsigned};

    use super::*;

    fn token(key: &IssuerKey) -> Token {
        let (request, unsigned) = Unsigned::new(key.public(), [0; 32]).expect("a request");
        let signed = key.sign(&request).expect("a signature");
        unsigned.sign(&signed).expect("a token")
    }

    fn directory(name: &str) -> PathBuf {
        let name = format!("tandem-test-client-{name}-{}", std::process::id());
        std::env::temp_dir().join(name)
    }

    fn entry(name: &str) -> JournalEntry {
        JournalEntry::new(name.to_owned(), String::new(), "").expect("random numbers")
    }

    #[test]
    fn token_belongs_to_its_submission_after_a_crash() {
        let directory = directory("crash");
        let files = ClientFiles::open(directory.clone()).expect("a directory");
        let key = IssuerKey::generate().expect("a key");
        for _ in 0..2 {
            files.add_token(&token(&key)).expect("kept");
        }
        let mut first = entry("first");
        // The process ends before it removes the file of the token.
        let (text, _) = files.token(&[]).expect("a token");
        first.token = Some(text.clone());
        files.record(&first).expect("recorded");
        let (other, file) = files.token(&[]).expect("another token");
        assert_ne!(other, text);
        assert_eq!(files.count_tokens().expect("a directory"), 1);
        std::fs::remove_file(file).expect("removed");
        assert!(files.token(&[]).is_err(), "both tokens are taken");
        // A token that was set aside stays with its submission too.
        first.set_token_aside();
        files.record(&first).expect("recorded");
        std::fs::write(directory.join("tokens/again"), &text).expect("written");
        assert!(files.token(&[]).is_err(), "the gateway has seen it");
        let key = key_of(&text).expect("a token");
        first.take_up_token(&[key]);
        assert_eq!(first.token, None, "its key is unknown in this attempt");
        first.take_up_token(&[]);
        assert_eq!(first.token, Some(text));
        assert!(first.shown_tokens.is_empty());
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn token_of_a_refused_path_pays_for_the_same_content() {
        let directory = directory("refused");
        let files = ClientFiles::open(directory.clone()).expect("a directory");
        let text = token(&IssuerKey::generate().expect("a key")).authorization();
        let mut refused = entry("file");
        refused.token = Some(text.clone());
        refused.set_token_aside();
        files.record(&refused).expect("recorded");
        let other = |digest: &str| {
            let mut other = JournalEntry {
                digest: digest.to_owned(),
                ..entry("file")
            };
            let journal = files.journal().expect("a journal");
            files
                .take_from_refused(&mut other, journal)
                .expect("recorded");
            other.take_up_token(&[]);
            files.record(&other).expect("recorded");
            other.token
        };
        assert_eq!(other("other content"), None);
        assert_eq!(other(""), Some(text));
        assert_eq!(other(""), None, "it has moved");
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn token_file_is_removed_before_its_submission_ends() {
        let directory = directory("left");
        let files = ClientFiles::open(directory.clone()).expect("a directory");
        let key = IssuerKey::generate().expect("a key");
        files.add_token(&token(&key)).expect("kept");
        let mut first = entry("first");
        // The process ends before it removes the file of the token.
        first.token = Some(files.token(&[]).expect("a token").0);
        files.record(&first).expect("recorded");
        drop(files);
        // The next process sends the same file to the end, without another token.
        let files = ClientFiles::open(directory.clone()).expect("a directory");
        first.token = None;
        files.record(&first).expect("recorded");
        let error = files.token(&[]).expect_err("it was used").to_string();
        assert!(error.contains("no tokens are left"), "{error}");
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn journal_mends_problems_taken_for_answers() {
        let directory = directory("mended");
        let files = ClientFiles::open(directory.clone()).expect("a directory");
        for (name, status) in [("lost", 502), ("refused", 400)] {
            let mut entry = entry(name);
            (entry.state, entry.status) = (Some(SubmissionState::Answered), Some(status));
            entry.has_answer = true;
            files.record(&entry).expect("recorded");
        }
        let journal = files.journal().expect("a journal");
        let states: Vec<_> = journal
            .iter()
            .map(|entry| (entry.state, entry.status, entry.has_answer))
            .collect();
        let expected = [
            (Some(SubmissionState::NotDelivered), None, false),
            (Some(SubmissionState::Answered), Some(400), true),
        ];
        assert_eq!(states, expected);
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn one_process_at_a_time_uses_the_directory() {
        let directory = directory("lock");
        let files = ClientFiles::open(directory.clone()).expect("a directory");
        let error = ClientFiles::open(directory.clone()).err().expect("locked");
        assert!(error.to_string().contains("another tandem submit"));
        drop(files);
        ClientFiles::open(directory.clone()).expect("free again");
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn tokens_of_an_ended_epoch_are_removed_together() {
        let directory = directory("files");
        let files = ClientFiles::open(directory.clone()).expect("a directory");
        let [old, new] = [(); 2].map(|()| IssuerKey::generate().expect("a key"));
        for key in [&old, &old, &new] {
            files.add_token(&token(key)).expect("kept");
        }
        std::fs::write(directory.join("tokens/broken"), "PrivateToken").expect("written");
        let [old, new] = [old, new].map(|key| token(&key).key_id);
        let (text, _) = files.token(&[old]).expect("a token");
        assert_eq!(key_of(&text), Some(new));
        files.remove_tokens(old).expect("removed");
        let (text, file) = files.token(&[]).expect("a token");
        assert_eq!(key_of(&text), Some(new));
        let error = files.token(&[new]).expect_err("no other key").to_string();
        assert!(error.contains("knows no key"), "{error}");
        std::fs::remove_file(file).expect("removed");
        let error = files.token(&[]).expect_err("no token").to_string();
        assert!(error.contains("no tokens are left"), "{error}");
        std::fs::remove_dir_all(&directory).expect("removed");
    }
}
