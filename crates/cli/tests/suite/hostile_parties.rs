//! Parties of unlinkable submissions that do what they should not: a relay that answers in place of
//! the gateway, and a gateway that tries to link two submissions.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use tandem_submit::problem::Problem;
use tandem_tokens::oblivious;

use crate::certificates::Certificates;
use crate::harness::{Asked, Client, Scene};
use crate::process::{Process, run};
use crate::unlinkable::{Parties, contains, content, start, tandem, words};

/// A list with a key whose private half the relay has.
fn false_keys() -> Vec<u8> {
    [&[0, 41, 1, 0, 32][..], &[9; 32], &[0, 4, 0, 1, 0, 1]].concat()
}

/// Runs curl with the URL of a party, and returns the output.
fn curl(party: &Process, arguments: &[&str], path: &str) -> Vec<u8> {
    let output = Command::new("curl")
        // OpenSSL takes the certificates of the tests for self-signed ones.
        .args(["--silent", "--insecure"])
        .args(arguments)
        .arg(format!("https://{}{path}", party.address))
        .output()
        .expect("curl: apt-get install curl");
    assert!(output.status.success());
    output.stdout
}

/// Returns the challenge of a gateway.
fn challenge(gateway: &Process) -> String {
    let head = curl(gateway, &["-i", "-X", "POST"], "/submissions");
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let line = lines.find(|line| line.starts_with("www-authenticate: PrivateToken"));
    line.unwrap().split_once(": ").unwrap().1.to_owned()
}

/// Returns the names of the kept tokens, and the entries of the journal.
fn kept(state: &str) -> (usize, Vec<serde_json::Value>) {
    let directory = PathBuf::from(state);
    let tokens = std::fs::read_dir(directory.join("tokens")).unwrap().count();
    let mut files: Vec<_> = std::fs::read_dir(directory.join("journal"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    let entries = files
        .iter()
        .map(|file| serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap());
    (tokens, entries.collect())
}

/// Returns the entry of a file in the journal.
fn entry(state: &str, name: &str) -> serde_json::Value {
    let mut entries = kept(state).1.into_iter();
    let found = entries.find(|entry| entry["file"].as_str().unwrap().ends_with(name));
    found.unwrap()
}

/// Changes the settings of the client.
fn change_settings(state: &str, change: impl FnOnce(&mut serde_json::Value)) {
    let file = PathBuf::from(state).join("settings.json");
    let mut settings = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    change(&mut settings);
    std::fs::write(&file, settings.to_string()).unwrap();
}

type Script = Box<dyn Fn(&Asked) -> Vec<u8> + Send>;

/// A relay that answers requests by itself.
struct FalseRelay {
    process: Process,
    script: Arc<Mutex<Script>>,
    /// The lines of the requests that it has read.
    seen: Arc<Mutex<Vec<String>>>,
    _scene: Scene,
}

impl FalseRelay {
    fn new(parties: &Parties) -> Self {
        let first: Script = Box::new(|_| response(404, "", b""));
        let script = Arc::new(Mutex::new(first));
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let (answering, noting) = (Arc::clone(&script), Arc::clone(&seen));
        let scene = Scene::new(move |_, mut client: Client| {
            while let Some(asked) = client.request() {
                let length = asked.field("content-length").unwrap_or("0");
                client.read_exact(length.parse().unwrap());
                noting.lock().unwrap().push(asked.line.clone());
                let answer = answering.lock().unwrap()(&asked);
                client.send(answer);
            }
        });
        let process = start(&words(&format!(
            "gateway --listen h2+tls://127.0.0.1:0?{} --mode reverse={} --open --workers 1",
            parties.certificates.identity(),
            scene.url("").trim_end_matches('/'),
        )));
        Self {
            process,
            script,
            seen,
            _scene: scene,
        }
    }

    fn answers(&self, script: impl Fn(&Asked) -> Vec<u8> + Send + 'static) {
        *self.script.lock().unwrap() = Box::new(script);
    }
}

fn response(status: u16, fields: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} OK\r\nContent-Length: {length}\r\n{fields}\r\n");
    [head.as_bytes(), body].concat()
}

#[test]
fn relay_cannot_choose_the_key_of_the_gateway() {
    let parties = Parties::new("hostile-key");
    let (gateway, relay) = (parties.url(&parties.gateway), FalseRelay::new(&parties));
    let real = challenge(&parties.gateway);
    relay.answers(move |asked| match asked.line.starts_with("GET") {
        true => {
            let fields = format!("Content-Type: {}\r\n", oblivious::KEYS_TYPE);
            response(200, &fields, &false_keys())
        }
        false => response(401, &format!("WWW-Authenticate: {real}\r\n"), b""),
    });
    let url = parties.url(&relay.process);
    let (succeeded, output, errors) = parties.enrol_at(&gateway, &url, "1", &[]);
    assert!(!succeeded, "{output}");
    assert!(errors.contains("give --oblivious-key"), "{errors}");
    let settings = PathBuf::from(parties.state()).join("settings.json");
    assert!(!settings.exists(), "nothing was kept");
    // The relay has read the question for the challenge, and none for the key.
    let seen = relay.seen.lock().unwrap().clone();
    assert!(!seen.is_empty());
    for line in &seen {
        assert!(line.starts_with("POST /submissions "), "{seen:?}");
    }
    // A gateway that shows no certificate is contacted only with a file.
    let plain = format!("h2+tcp://{}", parties.gateway.address);
    let (succeeded, _, errors) = parties.enrol_at(&plain, &url, "1", &[]);
    assert!(
        !succeeded && errors.contains("shows no certificate"),
        "{errors}"
    );
    assert_eq!(relay.seen.lock().unwrap().len(), seen.len());
    // The file gives the key without a way to the gateway itself.
    let file = parties.files.path("oblivious.keys");
    std::fs::write(&file, curl(&parties.gateway, &[], oblivious::PATH)).unwrap();
    let mode = format!("reverse=https://{}", parties.gateway.address);
    let fixed = start(&words(&format!(
        "gateway --listen h2+tls://127.0.0.1:0?{} --mode {mode} --open --workers 1 --origin-ca {}",
        parties.certificates.identity(),
        parties.certificates.path("ca.pem"),
    )));
    let further = ["--oblivious-key", &file];
    let enrolled = parties.enrol_at(&gateway, &parties.url(&fixed), "1", &further);
    assert!(
        enrolled.0 && enrolled.1.contains("1 tokens"),
        "{enrolled:?}"
    );
    assert!(enrolled.1.contains("SHA-256"), "{enrolled:?}");
    let posted = tandem(&["submit", "post", &file, "--state", &parties.state()]);
    assert!(posted.contains(": accepted"), "{posted}");
    // A key of an earlier version came through the relay, and is not used any more.
    change_settings(&parties.state(), |settings| {
        let unlinkable = settings["unlinkable"].as_object_mut().unwrap();
        unlinkable.remove("key-source").unwrap();
    });
    let (succeeded, _, errors) = run(&["submit", "state", "--state", &parties.state()]);
    assert!(!succeeded && errors.contains("enrol again"), "{errors}");
    parties.enrol("1");
    tandem(&["submit", "state", "--state", &parties.state()]);
}

#[test]
fn tunnel_of_a_relay_must_lead_to_the_gateway() {
    let parties = Parties::new("hostile-tunnel");
    // The relay leads to a gateway with the certificate of an authority that only it trusts.
    let others = Certificates::new("hostile-tunnel-others");
    let gateway = start(&words(&format!(
        "gateway --listen h2+tls://127.0.0.1:0?{} --mode submit={} --submit-issuers {} \
         --submit-oblivious-key {} --submit-key {} --submit-store sqlite:{} --workers 1",
        others.identity(),
        parties.server.url("/in"),
        parties.files.path("issuers.toml"),
        parties.files.path("oblivious.pem"),
        parties.files.path("key.pem"),
        parties.files.path("false-submissions"),
    )));
    let relay = start(&words(&format!(
        "gateway --listen h2+tls://127.0.0.1:0?{} --open --workers 1 --allow-dest 127.0.0.0/8 \
         --allow-port {} --origin-ca {}",
        parties.certificates.identity(),
        gateway.address.port(),
        others.path("ca.pem"),
    )));
    let enrolled = parties.enrol_at(&parties.url(&gateway), &parties.url(&relay), "1", &[]);
    assert!(
        !enrolled.0 && enrolled.2.contains("certificate"),
        "{enrolled:?}"
    );
    let settings = PathBuf::from(parties.state()).join("settings.json");
    assert!(!settings.exists(), "nothing was kept");
}

#[test]
fn responses_of_a_relay_in_clear_change_nothing() {
    let parties = Parties::new("hostile-answers");
    parties.enrol("3");
    let (state, answers) = (parties.state(), parties.files.path("answers"));
    let [first, second] = ["first.txt", "second.txt"].map(|name| parties.files.path(name));
    std::fs::write(&first, "a report").unwrap();
    std::fs::write(&second, "another report").unwrap();
    let posted = tandem(&["submit", "post", &first, "--state", &state]);
    assert!(posted.contains(": accepted"), "{posted}");
    let before = entry(&state, "first.txt");
    let (relay, honest) = (FalseRelay::new(&parties), parties.url(&parties.relay));
    let url = parties.url(&relay.process);
    change_settings(&state, |settings| settings["relay"] = url.into());
    let id = "00112233445566778899aabbccddeeff";
    let taken = format!("Location: /submissions/{id}\r\nSubmission-Id: {id}\r\n");
    let mut scripts = vec![
        response(200, &taken, b"a forged answer"),
        response(202, &taken, b"{}"),
        response(200, "Content-Type: message/ohttp-res\r\n", &[7; 4160]),
    ];
    for problem in Problem::ALL {
        let fields = "Content-Type: application/problem+json\r\n";
        scripts.push(response(
            problem.status(),
            fields,
            problem.json().as_bytes(),
        ));
    }
    let document = format!("{{\"id\":\"{id}\",\"state\":\"answered\",\"status\":200}}");
    scripts.push(response(200, &taken, document.as_bytes()));
    for script in scripts {
        let text = String::from_utf8_lossy(&script).into_owned();
        relay.answers(move |_| script.clone());
        let (succeeded, output, errors) = run(&["submit", "post", &second, "--state", &state]);
        assert!(
            !succeeded && output.contains("not sent"),
            "{text}: {output}{errors}"
        );
        let post = entry(&state, "second.txt");
        assert!(post["token"].is_string(), "{text}: {post}");
        assert_eq!(post["state"], serde_json::Value::Null, "{text}");
        assert_eq!(post["location"], serde_json::Value::Null, "{text}");
        assert_eq!(kept(&state).0, 1, "{text}: the last token");
    }
    // Neither is a response to a question about a submission.
    let document = format!("{{\"id\":\"{id}\",\"state\":\"not-delivered\"}}");
    for script in [
        response(200, &taken, b"a forged answer"),
        response(200, &taken, document.as_bytes()),
    ] {
        relay.answers(move |_| script.clone());
        for command in ["answers", "state"] {
            let mut arguments = vec!["submit", command, "--state", &state];
            if command == "answers" {
                arguments.extend(["--output", &answers]);
            }
            let (succeeded, output, errors) = run(&arguments);
            assert!(!succeeded, "{output}");
            assert!(
                errors.contains("in place of an encapsulated response"),
                "{errors}"
            );
        }
    }
    assert!(!contains(&content(answers.as_ref()), "forged"));
    assert_eq!(entry(&state, "first.txt"), before);
    // The honest relay delivers the submission with the token that it had from the beginning.
    change_settings(&state, |settings| settings["relay"] = honest.into());
    let posted = tandem(&["submit", "post", &second, "--state", &state]);
    assert!(posted.contains(": accepted"), "{posted}");
    assert_eq!(kept(&state).0, 1);
}

#[test]
fn gateway_links_no_submissions_by_an_unknown_issuer() {
    let parties = Parties::new("hostile-gateway");
    parties.enrol("2");
    let state = parties.state();
    let (directory, before) = (
        parties.files.path("issuer.json"),
        challenge(&parties.gateway),
    );
    let known = std::fs::read(&directory).unwrap();
    // The gateway does not know the key of the tokens, or says so.
    let other = start(&words(&format!(
        "issuer --listen h2+tls://127.0.0.1:0?{} --accounts {} --keys {} --workers 1",
        parties.certificates.identity(),
        parties.files.path("accounts.toml"),
        parties.files.path("other-issuer"),
    )));
    let path = "/.well-known/private-token-issuer-directory";
    std::fs::write(&directory, curl(&other, &[], path)).unwrap();
    let wait = |changed: bool| {
        for _ in 0..600 {
            if (challenge(&parties.gateway) != before) == changed {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        panic!("the challenge of the gateway does not follow the directory of the issuer");
    };
    wait(true);
    let [first, second] = ["first.txt", "second.txt"].map(|name| parties.files.path(name));
    std::fs::write(&first, "a report").unwrap();
    std::fs::write(&second, "another report").unwrap();
    let token = |name: &str| {
        let entry = entry(&state, name);
        let shown = entry["shown-tokens"].as_array().unwrap().clone();
        assert_eq!(
            (shown.len(), entry["token"].is_null()),
            (1, true),
            "{entry}"
        );
        shown[0].as_str().unwrap().to_owned()
    };
    // Each token stays with the content that the gateway has seen it with.
    for (number, file) in [&first, &second, &first, &second].into_iter().enumerate() {
        let (succeeded, output, _) = run(&["submit", "post", file, "--state", &state]);
        assert!(!succeeded && output.contains("not sent"), "{output}");
        assert_eq!(
            kept(&state).0,
            1_usize.saturating_sub(number),
            "of two tokens"
        );
    }
    assert_ne!(token("first.txt"), token("second.txt"));
    std::fs::write(&directory, known).unwrap();
    wait(false);
    for file in [&first, &second] {
        let posted = tandem(&["submit", "post", file, "--state", &state]);
        assert!(posted.contains(": accepted"), "{posted}");
    }
}
