//! Tests of `tandem submit` in the simple mode: submissions that the gateway has given up or
//! forgotten, media types, and answers with status 202.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::PATIENCE;
use crate::process::{Process, run};
use crate::submission_server::{Files, SubmissionServer, TOKEN};
use crate::submissions::arguments;

/// A user of `tandem submit`, and the gateway.
struct User<'a> {
    files: &'a Files,
    _gateway: Process,
}

impl<'a> User<'a> {
    /// Starts a gateway for a server with a store of this name, and enrols at it. The journal of an
    /// earlier user of the same files stays.
    fn new(files: &'a Files, server: &SubmissionServer, store: &str) -> Self {
        let mut arguments = arguments(files, server);
        arguments.extend(["--submit-retry", "1s"].map(str::to_owned));
        for argument in &mut arguments {
            if *argument == files.store() {
                *argument = format!("sqlite:{}", files.path(store));
            }
            *argument = argument.replace("http+tcp:", "h2+tcp:");
        }
        let gateway = Process::start(&arguments);
        let url = format!("h2+tcp://{}", gateway.address);
        std::fs::write(files.path("token"), TOKEN).unwrap();
        let user = Self {
            files,
            _gateway: gateway,
        };
        let token = files.path("token");
        user.succeed(&["enrol", "--gateway", &url, "--token-file", &token]);
        user
    }

    /// Runs a command of `tandem submit`. Returns true if it succeeds, with its output.
    fn submit(&self, command: &[&str]) -> (bool, String) {
        let state = self.files.path("client");
        let arguments = [&["submit"], command, &["--state", &state]].concat();
        let (succeeded, output, errors) = run(&arguments);
        (succeeded, output + &errors)
    }

    fn succeed(&self, command: &[&str]) -> String {
        let (succeeded, output) = self.submit(command);
        assert!(succeeded, "{output}");
        output
    }

    fn answers(&self) -> (bool, String) {
        self.submit(&["answers", "--output", &self.files.path("answers")])
    }

    /// Asks for the answers until the condition holds for the result.
    fn await_answers(&self, is_expected: impl Fn(&(bool, String)) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let result = self.answers();
            if is_expected(&result) {
                return result.1;
            }
            assert!(begun.elapsed() < PATIENCE, "{}", result.1);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Writes a file and returns its path.
    fn file(&self, name: &str) -> String {
        let path = self.files.path(name);
        std::fs::write(&path, format!("content of {name}")).unwrap();
        path
    }

    /// Returns the files of the journal.
    fn journal(&self) -> Vec<PathBuf> {
        let journal = self.files.directory().join("client/journal");
        let files = std::fs::read_dir(journal).unwrap();
        files.map(|file| file.unwrap().path()).collect()
    }
}

#[test]
fn given_up_submissions_are_sent_again() {
    let files = Files::new("client-given-up", "");
    let failing = SubmissionServer::failing_first(vec![503; 1000]);
    let user = User::new(&files, &failing, "store");
    let [one, two] = ["one.txt", "two.txt"].map(|name| user.file(name));
    let posted = user.succeed(&["post", &one, &two]);
    assert_eq!(posted.matches(": accepted").count(), 2, "{posted}");
    // The problem of the gateway is no answer of the server.
    let output = user.await_answers(|(_, output)| output.contains("2 submissions have not been"));
    assert!(!output.contains("written to"), "{output}");
    let answers = std::fs::read_dir(files.path("answers")).unwrap();
    assert_eq!(answers.count(), 0);
    let states = user.succeed(&["state"]);
    assert_eq!(states.matches("not delivered").count(), 2, "{states}");
    // A crash took the response to the second request.
    for file in user.journal() {
        let mut entry: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        if entry["file"] == *two {
            (entry["state"], entry["location"]) = (Value::Null, Value::Null);
            std::fs::write(&file, entry.to_string()).unwrap();
        }
    }
    drop(user);
    let server = SubmissionServer::new();
    let user = User::new(&files, &server, "store");
    let posted = user.succeed(&["post", &one, &two]);
    assert_eq!(posted.matches(": accepted").count(), 2, "{posted}");
    let output = user.await_answers(|(succeeded, _)| *succeeded);
    assert!(output.contains("status 201, written to"), "{output}");
    assert_eq!((server.processed().len(), user.journal().len()), (2, 2));
    let posted = user.succeed(&["post", &one, &two]);
    assert_eq!(posted.matches("was sent before").count(), 2, "{posted}");
    assert_eq!(server.requests(), 2);
}

#[test]
fn file_with_another_type_is_another_submission() {
    let files = Files::new("client-types", "");
    let server = SubmissionServer::new();
    let user = User::new(&files, &server, "store");
    let file = user.file("data.txt");
    for kind in ["text/plain", "image/png"] {
        let posted = user.succeed(&["post", &file, "--type", kind]);
        assert!(posted.contains(": accepted"), "{posted}");
    }
    // `text/plain` is the type of the name's end.
    for arguments in [
        &["post", &*file][..],
        &["post", &file, "--type", "image/png"],
    ] {
        let posted = user.succeed(arguments);
        assert!(posted.contains("was sent before"), "{posted}");
    }
    user.await_answers(|(succeeded, _)| *succeeded);
    let mut types: Vec<_> = server
        .processed()
        .iter()
        .map(|it| it.field("content-type").unwrap().to_owned())
        .collect();
    types.sort();
    assert_eq!(types, ["image/png", "text/plain"]);
}

#[test]
fn forgotten_submission_holds_no_other_back() {
    let files = Files::new("client-forgotten", "");
    let server = SubmissionServer::new();
    let user = User::new(&files, &server, "old-store");
    let [old, new] = ["a-old.txt", "b-new.txt"].map(|name| user.file(name));
    user.succeed(&["post", &old]);
    drop(user);
    let user = User::new(&files, &server, "new-store");
    user.succeed(&["post", &new]);
    let (succeeded, output) = user.submit(&["state"]);
    assert!(!succeeded, "{output}");
    let unknown = format!("{old}: There is no such submission");
    assert!(output.contains(&unknown), "{output}");
    assert!(output.contains(&format!("{new}: a")), "{output}");
    let written = format!("{new}: status 201, written to");
    let output = user.await_answers(|(_, output)| output.contains(&written));
    assert!(output.contains(&unknown), "{output}");
    // Without its entry, the old submission is no failure any more.
    assert!(!user.answers().0);
    let entry = output
        .split_whitespace()
        .find(|word| word.ends_with(".json"));
    std::fs::remove_file(entry.unwrap()).unwrap();
    assert!(user.answers().0);
}

#[test]
fn answer_of_the_server_with_status_202_is_written() {
    let files = Files::new("client-accepted", "");
    let server = SubmissionServer::failing_first(vec![202]);
    let user = User::new(&files, &server, "store");
    user.succeed(&["post", &user.file("data.txt")]);
    let output = user.await_answers(|(succeeded, _)| *succeeded);
    assert!(output.contains("status 202, written to"), "{output}");
}

#[test]
fn commands_before_the_enrolment_create_nothing() {
    let files = Files::new("client-not-enrolled", "");
    let state = files.path("absent");
    let file = files.path("token");
    std::fs::write(&file, TOKEN).unwrap();
    for command in [&["post", &*file][..], &["state"], &["tokens"]] {
        let (succeeded, _, errors) = run(&[&["submit"], command, &["--state", &state]].concat());
        assert!(!succeeded && errors.contains("has no settings"), "{errors}");
    }
    let enrol = ["submit", "enrol", "--gateway", "foo", "--state", &state];
    let (succeeded, _, errors) = run(&enrol);
    assert!(!succeeded, "{errors}");
    assert!(!files.directory().join("absent").exists());
}
