//! The whole path of unlinkable submissions with the program: an issuer, a relay, a gateway, a
//! server, and `tandem submit`.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use data_encoding::HEXLOWER;

use crate::certificates::Certificates;
use crate::process::{Process, run};
use crate::submission_server::{Files, SubmissionServer, sha256};

const ACCOUNT_TOKEN: &str = "token-of-the-account-of-carol";
const RELAY_TOKEN: &str = "token-of-the-relay-for-all";

/// Runs the program and returns its output.
pub(crate) fn tandem(arguments: &[&str]) -> String {
    let (succeeded, output, errors) = run(arguments);
    assert!(succeeded, "{arguments:?}: {output}{errors}");
    format!("{output}{errors}")
}

pub(crate) fn start(arguments: &[String]) -> Process {
    Process::start(arguments)
}

pub(crate) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Returns the options that log and show the most.
fn watched(files: &Files, control: &str) -> String {
    format!(
        "--log trace --metrics 127.0.0.1:0 --admin 127.0.0.1:0 --control {}",
        files.path(control)
    )
}

/// The parties of the path, which stop when they are dropped.
pub(crate) struct Parties {
    pub(crate) files: Files,
    pub(crate) certificates: Certificates,
    pub(crate) server: SubmissionServer,
    pub(crate) issuer: Process,
    pub(crate) relay: Process,
    pub(crate) gateway: Process,
    /// The threads that read the logs.
    logs: Vec<std::thread::JoinHandle<String>>,
}

impl Parties {
    pub(crate) fn new(name: &str) -> Self {
        Self::with_rights(name, "")
    }

    /// Starts the parties, with further lines for the rights of the issuer's tokens.
    fn with_rights(name: &str, rights: &str) -> Self {
        let (files, server) = (Files::new(name, ""), SubmissionServer::new());
        let certificates = Certificates::new(&format!("{name}-tls"));
        let write = |name: &str, text: &str| {
            std::fs::write(files.directory().join(name), text).unwrap();
        };
        let hash = HEXLOWER.encode(&sha256(ACCOUNT_TOKEN.as_bytes()));
        write(
            "accounts.toml",
            &format!("[[client]]\nname = \"carol\"\ntoken-sha256 = \"{hash}\"\nper-day = 7\n"),
        );
        write("account.token", ACCOUNT_TOKEN);
        write("relay.token", RELAY_TOKEN);
        let made = Command::new("openssl")
            .args(["genpkey", "-algorithm", "x25519", "-out"])
            .arg(files.path("oblivious.pem"))
            .status()
            .expect("openssl: apt-get install openssl");
        assert!(made.success());
        let tls = format!("h2+tls://127.0.0.1:0?{}", certificates.identity());
        let table = format!(
            "[issuer]\nlisten = [\"{tls}\"]\naccounts = \"{}\"\nkeys = \"{}\"\n",
            files.path("accounts.toml"),
            files.path("issuer")
        );
        write("issuer.toml", &table);
        let issuer = start(&words(&format!(
            "issuer --config {} --workers 1 {}",
            files.path("issuer.toml"),
            watched(&files, "issuer.control"),
        )));
        // The operator of the gateway gets the keys of the issuer.
        let directory = Command::new("curl")
            // OpenSSL takes the certificates of the tests for self-signed ones.
            .args(["--silent", "--fail", "--insecure"])
            .args(["-o", &files.path("issuer.json")])
            .arg(format!(
                "https://{}/.well-known/private-token-issuer-directory",
                issuer.address
            ))
            .status()
            .expect("curl: apt-get install curl");
        assert!(directory.success());
        write(
            "issuers.toml",
            &format!(
                "[[issuer]]\nname = \"127.0.0.1\"\norigin = \"127.0.0.1\"\n\
                 directory = \"issuer.json\"\n{rights}"
            ),
        );
        let gateway = start(&words(&format!(
            "gateway --listen {tls} --mode submit={} --submit-issuers {} --submit-oblivious-key {} \
             --submit-key {} --submit-store {} --submit-batch 2 --submit-batch-wait 1h --workers 2 \
             {}",
            server.url("/in"),
            files.path("issuers.toml"),
            files.path("oblivious.pem"),
            files.path("key.pem"),
            files.store(),
            watched(&files, "gateway.control"),
        )));
        let relay = start(&words(&format!(
            "gateway --listen {tls} --auth token-file={} --allow-dest 127.0.0.0/8 --workers 1 \
             --origin-ca {} --allow-port {} {}",
            files.path("relay.token"),
            certificates.path("ca.pem"),
            gateway.address.port(),
            watched(&files, "relay.control"),
        )));
        let logs = [&issuer, &relay, &gateway].map(Process::collect_log);
        Self {
            files,
            certificates,
            server,
            issuer,
            relay,
            gateway,
            logs: logs.into(),
        }
    }

    pub(crate) fn url(&self, process: &Process) -> String {
        let ca = self.certificates.path("ca.pem");
        format!("h2+tls://{}?ca={ca}", process.address)
    }

    pub(crate) fn state(&self) -> String {
        self.files.path("client")
    }

    pub(crate) fn enrol(&self, tokens: &str) -> String {
        let (gateway, relay) = (self.url(&self.gateway), self.url(&self.relay));
        let (succeeded, output, errors) = self.enrol_at(&gateway, &relay, tokens, &[]);
        assert!(succeeded, "{output}{errors}");
        format!("{output}{errors}")
    }

    /// Enrols at a gateway behind a relay, with further arguments.
    pub(crate) fn enrol_at(
        &self,
        gateway: &str,
        relay: &str,
        tokens: &str,
        further: &[&str],
    ) -> (bool, String, String) {
        let (issuer, state) = (self.url(&self.issuer), self.state());
        let [relay_token, token] =
            ["relay.token", "account.token"].map(|name| self.files.path(name));
        let mut arguments = vec!["submit", "enrol", "--gateway", gateway, "--relay", relay];
        arguments.extend(["--relay-token-file", &relay_token, "--issuer", &issuer]);
        arguments.extend([
            "--token-file",
            &token,
            "--tokens",
            tokens,
            "--state",
            &state,
        ]);
        arguments.extend(further);
        run(&arguments)
    }

    /// Returns the metrics of a party, and the data of its page.
    fn shown(&self, process: &Process, control: &str) -> (String, serde_json::Value) {
        let mut lines = process.before.lines();
        let line = lines.find(|line| line.contains("metrics on"));
        let url = line.unwrap().rsplit(' ').next().unwrap();
        let output = Command::new("curl").args(["-sf", url]).output().unwrap();
        assert!(output.status.success());
        let mut socket = UnixStream::connect(self.files.path(control)).unwrap();
        socket.write_all(b"overview\n").unwrap();
        let answer: serde_json::Value = serde_json::from_reader(socket).unwrap();
        let metrics = String::from_utf8(output.stdout).unwrap();
        (metrics, answer["overview"].clone())
    }

    /// Stops all parties and returns their logs.
    fn logs(&mut self) -> Vec<String> {
        for party in [&self.issuer, &self.relay, &self.gateway] {
            party.signal("TERM");
        }
        let logs = self.logs.drain(..);
        logs.map(|log| log.join().unwrap()).collect()
    }
}

/// Returns the text of all files below a directory.
pub(crate) fn content(directory: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(content(&path)),
            false => all.extend(std::fs::read(path).unwrap()),
        }
    }
    all
}

pub(crate) fn contains(text: &[u8], part: &str) -> bool {
    text.windows(part.len())
        .any(|window| window == part.as_bytes())
}

/// Returns the addresses of this machine in a text, with their ports.
fn addresses(text: &str) -> Vec<&str> {
    let is_end = |letter: char| !letter.is_ascii_digit() && letter != '.' && letter != ':';
    let words = text.split(is_end).filter(|word| word.starts_with("127."));
    words.map(|word| word.trim_end_matches(':')).collect()
}

#[test]
fn submissions_travel_through_all_parties() {
    let mut parties = Parties::new("unlinkable-path");
    assert!(parties.enrol("3").contains("3 tokens are ready"));
    let photos = parties.files.directory().join("photos");
    std::fs::create_dir_all(&photos).unwrap();
    std::fs::write(photos.join("one.txt"), "the first confession").unwrap();
    std::fs::write(photos.join("two.txt"), "the second confession").unwrap();
    let (photos, state) = (photos.display().to_string(), parties.state());
    let answers = parties.files.path("answers");
    let posted = tandem(&[
        "submit", "post", &photos, "--to", "/reports", "--state", &state,
    ]);
    assert_eq!(posted.matches(": accepted").count(), 2, "{posted}");
    // A second post of the same files sends nothing.
    let again = tandem(&[
        "submit", "post", &photos, "--to", "/reports", "--state", &state,
    ]);
    assert_eq!(again.matches("was sent before").count(), 2, "{again}");
    loop {
        let (succeeded, output, _) =
            run(&["submit", "answers", "--output", &answers, "--state", &state]);
        if succeeded {
            break;
        }
        assert!(output.contains(": accepted"), "{output}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    // The answers belong to their reader only, like the state.
    let directory = Path::new(&answers);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(directory), 0o700);
    for entry in std::fs::read_dir(directory).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
    let text = content(directory);
    assert!(contains(&text, "took 20 bytes") && contains(&text, "took 21 bytes"));
    let states = tandem(&["submit", "state", "--state", &state]);
    assert_eq!(
        states.matches("answered with status 201").count(),
        2,
        "{states}"
    );
    let mut bodies: Vec<_> = parties
        .server
        .processed()
        .into_iter()
        .map(|it| it.body)
        .collect();
    bodies.sort();
    assert_eq!(
        bodies,
        [
            b"the first confession".to_vec(),
            b"the second confession".to_vec()
        ]
    );
    // The account has a bound.
    let (succeeded, output, errors) = run(&["submit", "tokens", "9", "--state", &state]);
    assert!(
        !succeeded && errors.contains("has got all its tokens"),
        "{output}{errors}"
    );
    // The pages of the operators have the numbers.
    let gateway = parties.shown(&parties.gateway, "gateway.control");
    let issuer = parties.shown(&parties.issuer, "issuer.control");
    let relay = parties.shown(&parties.relay, "relay.control");
    for (page, role, name, number) in [
        (&gateway, "gateway", "submissions_answered", 2),
        (&gateway, "gateway", "submissions_refused", 0),
        (&gateway, "gateway", "submission_batch_size", 2),
        (&gateway, "gateway", "submission_commits", 2),
        (&gateway, "gateway", "tokens_spent_latest", 2),
        (&issuer, "issuer", "issuer_accounts", 1),
        (&issuer, "issuer", "tokens_issued", 7),
        (&issuer, "issuer", "token_requests_over_quota", 1),
        (&relay, "gateway", "submission_store", 0),
    ] {
        assert_eq!(page.1["role"], role);
        assert_eq!(page.1["status"]["counters"][name], number, "{name}");
    }
    assert!(
        gateway
            .0
            .contains("\ntandem_submissions_answered_total 2\n")
    );
    // No log, page or file of a party contains a secret of another one.
    let mut logs: Vec<String> = [gateway, issuer, relay]
        .iter()
        .flat_map(|(metrics, page)| [metrics.clone(), page.to_string()])
        .collect();
    logs.extend(parties.logs());
    for log in &logs {
        for secret in [
            "carol",
            "confession",
            ACCOUNT_TOKEN,
            RELAY_TOKEN,
            "/reports",
            "PrivateToken",
        ] {
            assert!(!log.contains(secret), "{secret}: {log}");
        }
    }
    // Each address in them is that of a listener, and none is a client's.
    let started = logs.iter().flat_map(|log| log.lines());
    let started = started.filter(|line| [" on http", " on h2"].iter().any(|on| line.contains(on)));
    let listeners: Vec<_> = started.flat_map(addresses).collect();
    assert_eq!(
        listeners.len(),
        9,
        "listener, metrics and dashboard of each"
    );
    for log in &logs {
        for address in addresses(log) {
            assert!(listeners.contains(&address), "{address}: {log}");
        }
    }
    let issued = content(&parties.files.directory().join("issuer"));
    for secret in ["carol", "confession", ACCOUNT_TOKEN] {
        assert!(!contains(&issued, secret), "{secret}");
    }
}

#[test]
fn submissions_fail_closed_without_their_proxy() {
    let parties = Parties::new("unlinkable-closed");
    // Nothing listens there.
    let via = "socks5://127.0.0.1:1";
    let (succeeded, _, errors) = run(&[
        "submit",
        "enrol",
        "--gateway",
        &parties.url(&parties.gateway),
        "--via",
        via,
        "--issuer",
        &parties.url(&parties.issuer),
        "--token-file",
        &parties.files.path("account.token"),
        "--state",
        &parties.state(),
    ]);
    assert!(
        !succeeded && errors.contains("the proxy on the way to gateway"),
        "{errors}"
    );
}

/// The account has seven tokens, and the usual number is ten.
#[test]
fn enrolment_gets_the_tokens_that_the_account_has() {
    let parties = Parties::new("unlinkable-few");
    let enrol = |further: &[&str]| {
        let (gateway, issuer) = (parties.url(&parties.gateway), parties.url(&parties.issuer));
        let (token, state) = (parties.files.path("account.token"), parties.state());
        let mut arguments = vec![
            "submit",
            "enrol",
            "--gateway",
            &gateway,
            "--issuer",
            &issuer,
        ];
        arguments.extend(["--token-file", &token, "--state", &state]);
        arguments.extend(further);
        run(&arguments)
    };
    let (succeeded, output, errors) = enrol(&[]);
    assert!(succeeded, "{output}{errors}");
    assert!(output.contains("7 tokens are ready"), "{output}");
    // A number that was asked for, or no token at all, is an error.
    for further in [&["--tokens", "1"][..], &[]] {
        let (succeeded, output, errors) = enrol(further);
        assert!(
            !succeeded && errors.contains("has got all its tokens"),
            "{output}{errors}"
        );
    }
}

#[test]
fn enrolment_names_the_party_that_refuses() {
    let parties = Parties::new("unlinkable-blame");
    let (gateway, relay) = (parties.url(&parties.gateway), parties.url(&parties.relay));
    // The relay permits no request to this port.
    let elsewhere = "h2+tls://127.0.0.1:1";
    let (succeeded, output, errors) = parties.enrol_at(elsewhere, &relay, "1", &[]);
    assert!(
        !succeeded && errors.contains("the relay 127.0.0.1 has not reached the gateway"),
        "{output}{errors}"
    );
    std::fs::write(
        parties.files.path("relay.token"),
        "another-token-of-the-relay",
    )
    .unwrap();
    let (succeeded, output, errors) = parties.enrol_at(&gateway, &relay, "1", &[]);
    assert!(!succeeded, "{output}{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(
        errors.contains("--relay-token-file") && errors.contains("407"),
        "{errors}"
    );
}

#[test]
fn refused_path_costs_no_token() {
    let parties = Parties::with_rights("unlinkable-refused", "paths = [\"/ok\"]\n");
    parties.enrol("1");
    let file = parties.files.path("report.json");
    std::fs::write(&file, "{}").unwrap();
    let state = parties.state();
    let post = |to: &str| run(&["submit", "post", &file, "--to", to, "--state", &state]);
    for to in ["/../x", "today"] {
        let (succeeded, output, errors) = post(to);
        assert!(
            !succeeded && errors.contains("the path must begin"),
            "{output}{errors}"
        );
    }
    // The gateway refuses this one, with the only token.
    let (succeeded, output, errors) = post("/other");
    assert!(
        !succeeded && output.contains("must not send to this path"),
        "{output}{errors}"
    );
    let (succeeded, output, errors) = post("/ok");
    assert!(succeeded, "{output}{errors}");
}
