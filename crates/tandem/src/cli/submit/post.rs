//! `tandem submit post`.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tandem_http::{Fields, Method};
use tandem_submit::problem::Problem;
use tandem_submit::rights::is_plain;
use tandem_submit::submission::{IDEMPOTENCY_KEY, IdempotencyKey, State as SubmissionState};
use tandem_tokens::sha256;

use super::StateDirectory;
use super::network::{Destination, Outgoing, Received};
use super::state::{ClientFiles, JournalEntry, Settings, key_of};
use crate::cli::{Failure, tell};
use crate::config::read_secret;
use crate::exchange::Isolation;
use crate::middle::submit::SUBMISSIONS;
use crate::transport::registry::Transports;

/// The tokens that a submission tries: the first ones may be spent or over.
const ATTEMPTS: usize = 4;

/// The rule of [`check_path`], for the user.
const PLAIN_PATH: &str = "the path must begin with / and have no dot segments, empty segments, \
                          semicolons or encoded separators";

/// Arguments of `tandem submit post`.
#[derive(Debug, clap::Args)]
pub struct PostArgs {
    /// File to send, or directory whose files are sent (repeatable)
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Path at the server, below its base
    #[arg(long, value_name = "PATH", default_value = "")]
    to: String,
    /// Media type of the files [default: by the end of the file's name]
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    #[command(flatten)]
    directory: StateDirectory,
}

pub(super) async fn post(args: &PostArgs, transports: &Transports) -> Result<(), Failure> {
    check_path(&args.to)?;
    let state = args.directory.open_enrolled()?;
    let settings = state.settings()?;
    let way = Destination::to_gateway(&settings, transports)?;
    let mut files = Vec::new();
    for path in &args.paths {
        collect(path, &mut files)?;
    }
    files.sort();
    let mut refused = 0;
    for file in &files {
        let sent = send_file(args, file, &state, &settings, &way).await;
        match sent {
            Ok(text) => tell(format_args!("{}: {text}", file.display())),
            Err(error) => {
                refused += 1;
                tell(format_args!("{}: not sent: {error}", file.display()));
            }
        }
    }
    match refused {
        0 => Ok(()),
        _ => Err(format!(
            "{refused} of {} files were not sent; post them again",
            files.len()
        )
        .into()),
    }
}

/// Refuses a path that every gateway refuses, before a token belongs to it.
fn check_path(path: &str) -> Result<(), Failure> {
    let bare = path.split('?').next().unwrap_or_default();
    let has_plain_rest = path[bare.len()..]
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'#');
    if !(bare.is_empty() || is_plain(bare)) {
        return Err(format!("--to {path:?}: {PLAIN_PATH}").into());
    }
    match has_plain_rest {
        true => Ok(()),
        false => Err(format!(
            "--to {path:?}: encode other characters than those of URLs in the query, such as %20"
        )
        .into()),
    }
}

/// Adds a file, or the files of a directory and those below it.
fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let wrong = |error: std::io::Error| format!("{}: {error}", path.display());
    if !std::fs::metadata(path).map_err(wrong)?.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in std::fs::read_dir(path).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        let kind = entry.file_type().map_err(wrong)?;
        // A symbolic link could lead to a file that the user does not mean to send.
        if kind.is_dir() {
            collect(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

async fn send_file(
    args: &PostArgs,
    file: &Path,
    state: &ClientFiles,
    settings: &Settings,
    way: &Destination,
) -> Result<String, Failure> {
    let content = Bytes::from(std::fs::read(file)?);
    let digest = URL_SAFE_NO_PAD.encode(sha256(&[&content]));
    let name = std::path::absolute(file)?.display().to_string();
    let kind = args
        .kind
        .clone()
        .unwrap_or_else(|| media_type(file).to_owned());
    let is_same = |entry: &JournalEntry| {
        let has_kind = entry.kind.as_ref().is_none_or(|known| *known == kind);
        entry.file == name && entry.digest == digest && entry.path == args.to && has_kind
    };
    let journal = state.journal()?;
    let known = journal.iter().find(|entry| is_same(entry)).cloned();
    let mut entry = match known {
        None => JournalEntry::new(name, digest, &args.to)?,
        Some(entry) => match entry.state {
            None => entry,
            Some(SubmissionState::NotDelivered) => entry.renewed()?,
            Some(state) => return Ok(format!("was sent before ({})", word(state))),
        },
    };
    entry.kind = Some(kind.clone());
    if entry.token.is_none() && entry.shown_tokens.is_empty() {
        state.take_from_refused(&mut entry, journal)?;
    }
    // The gateway may not have the new keys of the issuer yet. It has seen such a token with this
    // content, so the token stays with this entry, and other tokens of its key stay unused.
    let mut unknown = Vec::new();
    for _ in 0..ATTEMPTS {
        if entry.token.is_none() {
            entry.take_up_token(&unknown);
        }
        if settings.unlinkable.is_some() && entry.token.is_none() {
            let (token, kept) = state.token(&unknown)?;
            entry.token = Some(token);
            state.record(&entry)?;
            state.remove_token(&kept)?;
        } else {
            state.record(&entry)?;
        }
        let response = send(&entry, &kind, content.clone(), settings, way).await?;
        match response.submission_state() {
            // An earlier request of this entry arrived, and the gateway has given it up since.
            Some(SubmissionState::NotDelivered) => {
                entry = entry.renewed()?;
                continue;
            }
            Some(outcome) => return finish(entry, outcome, &response, state),
            None => {}
        }
        let problem = response.problem().and_then(|document| document.problem());
        let key = entry.token.as_deref().and_then(key_of);
        match (problem, key) {
            (Some(Problem::TokenSpent), _) => {}
            (Some(Problem::EpochOver), Some(key)) => state.remove_tokens(key)?,
            (Some(Problem::UnknownIssuer), Some(key)) => {
                entry.set_token_aside();
                unknown.push(key);
            }
            (Some(Problem::PathNotAllowed | Problem::TypeNotAllowed), _) => {
                // The token is not spent, and can pay for this content with another path or type.
                entry.set_token_aside();
                state.record(&entry)?;
                return Err(response.refusal().into());
            }
            _ => return Err(response.refusal().into()),
        }
        entry.token = None;
        state.record(&entry)?;
    }
    Err(match unknown.is_empty() {
        true => "the tokens are spent or over: run tandem submit tokens",
        false => {
            "the gateway takes none of the tokens: wait until it has the new keys of the issuer, \
             or run tandem submit tokens"
        }
    }
    .into())
}

/// Sends the content of an entry of the journal.
async fn send(
    entry: &JournalEntry,
    kind: &str,
    content: Bytes,
    settings: &Settings,
    way: &Destination,
) -> Result<Received, Failure> {
    let path = format!("{SUBMISSIONS}{}", entry.path);
    let mut fields = Fields::new();
    let key = IdempotencyKey(sha256(&[&entry.secret()]));
    fields.push(IDEMPOTENCY_KEY, key.value());
    fields.push("content-type", kind);
    let progress = progress(&entry.file, content.len() as u64);
    if let Some(unlinkable) = &settings.unlinkable {
        fields.push("authorization", entry.token.as_deref().unwrap_or_default());
        let request = Outgoing {
            method: Method::Post,
            path: &path,
            fields,
            body: content,
        };
        return way
            .send_obliviously(request, &unlinkable.keys(), Some(progress))
            .await;
    }
    if let Some(file) = &settings.token_file {
        let token = read_secret("token-file", file)?;
        fields.push("authorization", format!("Bearer {token}"));
    }
    fields.push("prefer", "respond-async");
    let request = Outgoing {
        method: Method::Post,
        path: &path,
        fields,
        body: content,
    };
    way.send(request, Isolation::none(), Some(progress)).await
}

/// Writes the outcome of a submission, which the gateway has taken, to the journal.
fn finish(
    mut entry: JournalEntry,
    outcome: SubmissionState,
    response: &Received,
    state: &ClientFiles,
) -> Result<String, Failure> {
    let location = response.text("location");
    let Some(location) = location.filter(|path| path.starts_with(SUBMISSIONS)) else {
        return Err(response.refusal().into());
    };
    entry.location = Some(location);
    entry.token = None;
    entry.shown_tokens.clear();
    let is_answered = outcome == SubmissionState::Answered;
    entry.state = Some(outcome);
    entry.status = is_answered.then_some(response.status);
    state.record(&entry)?;
    Ok(match is_answered {
        true => format!("the server has answered with status {}", response.status),
        false => "accepted".to_owned(),
    })
}

/// Returns the word for a state.
pub(super) const fn word(state: SubmissionState) -> &'static str {
    match state {
        SubmissionState::Accepted => "accepted",
        SubmissionState::Answered => "answered",
        SubmissionState::NotDelivered => "not delivered",
    }
}

/// Returns a progress bar on the terminal, or a hidden one without a terminal.
fn progress(file: &str, length: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    let template = "{msg} [{bar:30}] {bytes}/{total_bytes} {eta}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    let name = Path::new(file).file_name().unwrap_or_default();
    bar.set_message(name.to_string_lossy().into_owned());
    bar
}

/// Returns the media type of a file by the end of its name.
fn media_type(file: &Path) -> &'static str {
    let end = file.extension().map(|end| end.to_ascii_lowercase());
    match end.as_deref().and_then(std::ffi::OsStr::to_str) {
        Some("json" | "geojson") => "application/json",
        Some("txt" | "log") => "text/plain",
        Some("csv") => "text/csv",
        Some("html" | "htm") => "text/html",
        Some("xml" | "gpx" | "kml") => "application/xml",
        Some("pdf") => "application/pdf",
        Some("zip") => "application/zip",
        Some("png") => "image/png",
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("webp") => "image/webp",
        Some("mp4") => "video/mp4",
        _ => "application/octet-stream",
    }
}
