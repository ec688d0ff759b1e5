//! `tandem submit state` and `tandem submit answers`.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tandem_http::{Fields, Method};
use tandem_submit::problem::Problem;
use tandem_submit::submission::{SUBMISSION_SECRET, State as SubmissionState, StateDocument};

use super::StateDirectory;
use super::network::{Destination, Outgoing, Received};
use super::post::word;
use super::state::{ClientFiles, JournalEntry, Settings};
use crate::cli::{Failure, tell};
use crate::exchange::Isolation;
use crate::files;
use crate::transport::registry::Transports;

/// Arguments of `tandem submit answers`.
#[derive(Debug, clap::Args)]
pub struct AnswersArgs {
    /// Directory for the answers, one file for each submission
    #[arg(long, value_name = "DIRECTORY", default_value = "answers")]
    output: PathBuf,
    #[command(flatten)]
    directory: StateDirectory,
}

pub(super) async fn states(
    directory: &StateDirectory,
    transports: &Transports,
) -> Result<(), Failure> {
    let state = directory.open_enrolled()?;
    let settings = state.settings()?;
    let way = Destination::to_gateway(&settings, transports)?;
    let mut refused = 0;
    for mut entry in state.journal()? {
        if entry.location.is_some() && entry.state == Some(SubmissionState::Accepted) {
            let response = get(&entry, "", &settings, &way).await?;
            let document = StateDocument::read(&response.body);
            let Some(document) = document.filter(|_| response.status == 200) else {
                refused += 1;
                tell(refusal(&entry, &response, &state));
                continue;
            };
            entry.state = Some(document.state);
            entry.status = document.status;
            state.record(&entry)?;
        }
        tell(describe(&entry));
    }
    summary(&[(refused, REFUSED)])
}

pub(super) async fn answers(args: &AnswersArgs, transports: &Transports) -> Result<(), Failure> {
    let state = args.directory.open_enrolled()?;
    let settings = state.settings()?;
    let way = Destination::to_gateway(&settings, transports)?;
    let mut private = std::fs::DirBuilder::new();
    private.recursive(true).mode(0o700).create(&args.output)?;
    let (mut waiting, mut given_up, mut refused) = (0, 0, 0);
    for mut entry in state.journal()? {
        if entry.has_answer || entry.location.is_none() {
            continue;
        }
        if entry.state == Some(SubmissionState::NotDelivered) {
            given_up += 1;
            tell(describe(&entry));
            continue;
        }
        let response = get(&entry, "/answer", &settings, &way).await?;
        match response.submission_state() {
            // A response about another thing than this submission is no answer.
            None => {
                refused += 1;
                tell(refusal(&entry, &response, &state));
            }
            Some(SubmissionState::Accepted) => {
                waiting += 1;
                tell(describe(&entry));
            }
            Some(SubmissionState::NotDelivered) => {
                given_up += 1;
                entry.state = Some(SubmissionState::NotDelivered);
                state.record(&entry)?;
                tell(describe(&entry));
            }
            Some(SubmissionState::Answered) => {
                let answer = keep(&mut entry, &response, &args.output, &state)?;
                let (file, status, answer) = (&entry.file, response.status, answer.display());
                tell(format_args!("{file}: status {status}, written to {answer}"));
            }
        }
    }
    summary(&[
        (waiting, "no answer yet: ask again later"),
        (given_up, "not been delivered: post the files again"),
        (refused, REFUSED),
    ])
}

/// The outcome of submissions for which the gateway refuses to answer.
const REFUSED: &str = "a state that the gateway does not tell";

/// Returns the error for the numbers of submissions without the wanted outcome, if there are any.
fn summary(numbers: &[(usize, &str)]) -> Result<(), Failure> {
    let numbers = numbers.iter().filter(|(number, _)| *number > 0);
    let parts: Vec<_> = numbers
        .map(|(number, outcome)| format!("{number} submissions have {outcome}"))
        .collect();
    match parts.is_empty() {
        true => Ok(()),
        false => Err(parts.join("; ").into()),
    }
}

/// Writes an answer to a file, and its status to the journal. Returns the file.
fn keep(
    entry: &mut JournalEntry,
    response: &Received,
    output: &Path,
    state: &ClientFiles,
) -> Result<PathBuf, Failure> {
    let name = Path::new(&entry.file).file_name().unwrap_or_default();
    let name = name.to_string_lossy();
    // Files of one name in several directories have distinct answers.
    let answer = output.join(format!("{name}.{}.answer", &entry.name[..6]));
    files::replace_private(&answer, &response.body)?;
    entry.status = Some(response.status);
    entry.state = Some(SubmissionState::Answered);
    entry.has_answer = true;
    state.record(entry)?;
    Ok(answer)
}

/// Describes the response to a question that tells nothing about the submission.
fn refusal(entry: &JournalEntry, response: &Received, state: &ClientFiles) -> String {
    let text = format!("{}: {}", entry.file, response.refusal());
    let problem = response.problem().and_then(|document| document.problem());
    match problem {
        Some(Problem::UnknownSubmission) => format!(
            "{text} Remove {} if you do not need this answer any more.",
            state.file_of(entry).display()
        ),
        _ => text,
    }
}

async fn get(
    entry: &JournalEntry,
    end: &str,
    settings: &Settings,
    way: &Destination,
) -> Result<Received, Failure> {
    let location = entry.location.as_deref().unwrap_or_default();
    let path = format!("{location}{end}");
    let mut fields = Fields::new();
    fields.push(SUBMISSION_SECRET, &entry.secret);
    let request = Outgoing {
        method: Method::Get,
        path: &path,
        fields,
        body: Bytes::new(),
    };
    match &settings.unlinkable {
        Some(unlinkable) => {
            way.send_obliviously(request, &unlinkable.keys(), None)
                .await
        }
        None => way.send(request, Isolation::none(), None).await,
    }
}

fn describe(entry: &JournalEntry) -> String {
    let state = entry.state.map_or("not sent", word);
    match entry.status {
        Some(status) => format!("{}: {state} with status {status}", entry.file),
        None => format!("{}: {state}", entry.file),
    }
}
