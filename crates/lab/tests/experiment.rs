//! Tests of experiments. Errors in files name their place, and the repository's own files are
//! right. One experiment runs end to end with whole programs, resumes after a stop, reports missing
//! programs, and leaves no processes behind.

mod lab;
#[path = "../../web/tests/programs/mod.rs"]
mod programs;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use lab::{LAB, run};
use programs::{Scratch, output, require, wait};
use proptest::prelude::*;
use tandem_lab::chain::{self, Study};
use tandem_lab::experiment::plan::{self, Selection};
use tandem_lab::experiment::results::{self, Line, Measured, Outcome, Record};
use tandem_lab::experiment::{Axis, Experiment, ExperimentError, report};
use tandem_net::emulator::sys;

/// Every way, on a page that is soon there.
const TINY: &str = r#"
name = "tiny"
title = "Small & <quick>"
source = "this test"
about = "All ways."
baseline = "https2"
passes = 1
deadline = "60s"
base = { rtt = "10ms", loss = "0", rate = "20mbit", queue = "256", initial-window = 10, congestion = "cubic" }

[[setups]]
name = "http2"
way = "http"
parallel = 2

[[setups]]
name = "https2"
label = "HTTPS, 2 connections"
way = "https"
parallel = 2

[[setups]]
name = "h2"
way = "h2"

[[setups]]
name = "pair"
way = "pair"
parallel = 2
tls = true
warm = true

[[setups]]
name = "visited"
way = "pair"
session = "spdy3.1"
parallel = 2
push = true
visits = 1
gateway-options = ["--predict-users=1"]

[[setups]]
name = "nghttpx"
way = "nghttpx"
tls = true
parallel = 2

[[sweeps]]
name = "all"
x = "shards"
axes = { shards = [1, 2], page = ["gallery:5x2000"], parallel = [3] }
documents = [{ what = "a figure", setup = "pair", measure = "bytes", value = 81.1 }]

[[why]]
text = "too small & too near"
"#;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments")
}

fn records(directory: &Path) -> Vec<Record> {
    let lines = results::read(directory).expect("results");
    let record = |line| match line {
        Line::Load(record) => Some(*record),
        Line::Run(_) => None,
    };
    lines.into_iter().filter_map(record).collect()
}

fn measured(record: &Record) -> &Measured {
    match &record.outcome {
        Outcome::Measured(measured) => measured,
        Outcome::Failed(why) => panic!("{} at {}: {why}", record.setup, record.point),
    }
}

#[test]
fn runs_reports_and_goes_on_where_it_stopped() {
    require(&[("nghttpx", "nghttp2-proxy")]);
    let scratch = Scratch::new("experiment-run");
    let (file, out) = (scratch.file("tiny.toml"), scratch.file("out"));
    std::fs::write(&file, TINY).expect("room");
    output(&mut run(&file, &out, &["--quiet"]));
    let all = records(&out);
    assert_eq!(all.len(), 12);
    for record in &all {
        let measured = measured(record);
        assert_eq!(measured.requests, 6, "{}", record.setup);
        assert!(
            measured.body_bytes >= 12_000 && measured.down.bytes > measured.body_bytes,
            "{}",
            record.setup
        );
        // At the very least there and back once.
        assert!(
            measured.page_load_ms >= 10.0,
            "{}: {}",
            record.setup,
            measured.page_load_ms
        );
        assert_eq!(measured.lost, 0);
    }
    let visited = all
        .iter()
        .find(|record| record.setup == "visited")
        .map(measured)
        .expect("measured");
    let push = visited.push.expect("counters of the client");
    assert!(push.received >= push.used && push.used > 0, "{push:?}");
    assert!(
        all.iter()
            .map(measured)
            .all(|measured| measured.served_bytes >= measured.body_bytes)
    );

    // Nothing is left to be done, and nothing is done.
    let before = std::fs::read(out.join(results::RESULTS)).expect("results");
    output(&mut run(&file, &out, &["--quiet"]));
    assert_eq!(
        std::fs::read(out.join(results::RESULTS)).expect("results"),
        before
    );

    // A killed run: the last result is there in part, the one before not at all.
    let text = String::from_utf8(before).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    let (kept, broken) = (lines[..11].join("\n"), &lines[12][..40]);
    std::fs::write(out.join(results::RESULTS), format!("{kept}\n{broken}")).expect("room");
    output(&mut run(&file, &out, &["--quiet"]));
    let again = records(&out);
    let keys = |records: &[Record]| {
        let mut keys: Vec<String> = records.iter().map(|record| record.key.clone()).collect();
        keys.sort();
        keys
    };
    assert_eq!(keys(&again), keys(&all));

    output(Command::new(LAB).arg("report").arg(&out));
    let html = std::fs::read_to_string(out.join("report.html")).expect("a report");
    well_formed(&html);
    for part in [
        "Small &amp; &lt;quick&gt;",
        "HTTPS, 2 connections",
        "<svg",
        "81.1 %",
        "--quiet",
        "pushed",
    ] {
        assert!(html.contains(part), "no {part:?} in the report");
    }
    assert!(!html.contains("<script") && !html.contains("not explained"));
}

/// Two passes of one seed: the same packets are lost, and both the run and the report say how far
/// the times differ.
#[test]
fn repeated_passes_are_alike_and_their_spread_is_said() {
    require(&[]);
    let scratch = Scratch::new("experiment-repeat");
    let (file, out) = (scratch.file("tiny.toml"), scratch.file("out"));
    let text = TINY
        .replace("passes = 1", "passes = 2\nsame-seed = true")
        .replace("loss = \"0\"", "loss = \"every:10/0\"");
    std::fs::write(&file, text).expect("room");
    let ended = run(&file, &out, &["--only", "http2", "--only", "shards=1"])
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(
        ended.status.success() && said.contains("1 set-ups at points, 2 to 2 passes each"),
        "{said}"
    );
    let all = records(&out);
    assert_eq!(all.len(), 2);
    assert!(
        all.iter().all(|record| measured(record).lost > 0),
        "the same packets were lost in both"
    );
    output(Command::new(LAB).arg("report").arg(&out));
    let html = std::fs::read_to_string(out.join("report.html")).expect("a report");
    well_formed(&html);
    assert!(
        html.contains("How far passes differ") && html.contains("All passes have one seed"),
        "{html}"
    );
}

/// A run that is told to end takes its programs and files with it. One that is killed cannot: the
/// kernel ends its programs, the next run removes its files and goes on.
#[test]
fn a_stopped_run_leaves_nothing() {
    require(&[]);
    let scratch = Scratch::new("experiment-stop");
    let (file, out, temporary) = (
        scratch.file("slow.toml"),
        scratch.file("out"),
        scratch.file("tmp"),
    );
    std::fs::create_dir(&temporary).expect("room");
    let slow = TINY
        .replace("20mbit", "20kbit")
        .replace("deadline = \"60s\"", "deadline = \"600s\"");
    std::fs::write(&file, slow).expect("room");
    let mut command = run(&file, &out, &["--only", "visited"]);
    command
        .env("TMPDIR", &temporary)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut running = programs::Running(command.spawn().expect("the program starts"));
    let ours = || programs_under(&temporary);
    let limit = Duration::from_secs(60);
    wait("gateway and client", limit, || {
        (ours().len() >= 2).then_some(())
    });
    sys::kill(running.0.id(), 15).expect("it runs");
    wait("the end", limit, || {
        running.0.try_wait().expect("ours").map(drop)
    });
    assert_eq!(ours(), Vec::<String>::new());
    assert_eq!(std::fs::read_dir(&temporary).expect("there").count(), 0);

    let mut running = programs::Running(command.spawn().expect("the program starts"));
    wait("gateway and client", limit, || {
        (ours().len() >= 2).then_some(())
    });
    sys::kill(running.0.id(), libc::SIGKILL).expect("it runs");
    running.0.wait().expect("ours");
    wait("the end of the programs", limit, || {
        ours().is_empty().then_some(())
    });
    std::fs::write(&file, TINY).expect("room");
    output(run(&file, &out, &["--quiet", "--only", "visited"]).env("TMPDIR", &temporary));
    assert_eq!(std::fs::read_dir(&temporary).expect("there").count(), 0);
}

/// Returns the command lines of programs that have their logs in a directory.
fn programs_under(directory: &Path) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").expect("procfs").flatten();
    let is_ours = |process: &PathBuf| {
        std::fs::read_link(process.join("fd/1")).is_ok_and(|log| log.starts_with(directory))
    };
    let line =
        |process: PathBuf| std::fs::read_to_string(process.join("cmdline")).unwrap_or_default();
    processes
        .map(|entry| entry.path())
        .filter(is_ours)
        .map(line)
        .collect()
}

#[test]
fn missing_programs_are_named() {
    require(&[]);
    let scratch = Scratch::new("experiment-missing");
    let (file, out) = (scratch.file("tiny.toml"), scratch.file("out"));
    std::fs::write(&file, TINY).expect("room");
    let failure = |command: &mut Command| {
        let Output { status, stderr, .. } = command
            .stdin(Stdio::null())
            .output()
            .expect("the program starts");
        assert!(!status.success());
        String::from_utf8_lossy(&stderr).into_owned()
    };
    // Root without the capability to make namespaces.
    let mut bound = Command::new("setpriv");
    bound.args([
        "--bounding-set=-sys_admin,-net_admin",
        "--inh-caps=-sys_admin,-net_admin",
    ]);
    let inner = run(&file, &out, &["--quiet"]);
    bound.arg(inner.get_program()).args(inner.get_args());
    let error = failure(&mut bound);
    assert!(
        error.contains("network namespace") && error.contains("needs root or CAP_NET_ADMIN"),
        "{error}"
    );

    // A disk with room for the file of the experiment and nothing more.
    let disk = scratch.file("disk");
    std::fs::create_dir(&disk).expect("room");
    let mut full = Command::new("unshare");
    full.args([
        "-m",
        "/bin/sh",
        "-c",
        "mount -t tmpfs -o size=4k none \"$0\" && exec \"$@\"",
    ])
    .arg(&disk);
    let inner = run(&file, &disk, &["--quiet", "--only", "http2"]);
    full.arg(inner.get_program()).args(inner.get_args());
    let error = failure(&mut full);
    assert!(
        error.contains("cannot write") && error.contains("results.jsonl: No space left"),
        "{error}"
    );

    std::fs::write(
        &file,
        TINY.replace("congestion = \"cubic\"", "congestion = \"unheard-of\""),
    )
    .expect("room");
    let error = failure(&mut run(&file, &out, &["--quiet"]));
    assert!(
        error.contains("no congestion control \"unheard-of\""),
        "{error}"
    );

    std::fs::write(&file, TINY.replace("gallery:5x2000", "absent.json")).expect("room");
    let error = failure(&mut run(&file, &out, &["--quiet"]));
    assert!(error.contains("page \"absent.json\""), "{error}");

    std::fs::write(&file, TINY.replace("way = \"h2\"", "way = \"h4\"")).expect("room");
    let error = failure(&mut run(&file, &out, &["--quiet"]));
    assert!(
        error.contains("tiny.toml") && error.contains("way = \"h4\""),
        "{error}"
    );
    let error = failure(&mut run(&file.with_file_name("none.toml"), &out, &[]));
    assert!(
        error.contains("cannot read") && error.contains("none.toml"),
        "{error}"
    );
    let error = failure(Command::new(LAB).arg("report").arg(scratch.file("nothing")));
    assert!(error.contains("experiment.toml"), "{error}");
}

/// Changes of the tiny file, and the key and text that the error must contain.
const WRONG: [(&str, &str, &str); 19] = [
    ("title = ", "tittle = ", "tittle"),
    (
        "baseline = \"https2\"",
        "baseline = \"nobody\"",
        "baseline: no set-up \"nobody\"; there are: http2, https2",
    ),
    ("name = \"tiny\"", "name = \"../tiny\"", "name: \"../tiny\""),
    ("deadline = \"60s\"", "deadline = \"soon\"", "deadline: "),
    ("rtt = \"10ms\"", "rtt = \"10 parsecs\"", "sweeps.all.rtt: "),
    ("loss = \"0\"", "loss = \"200%\"", "sweeps.all.loss: "),
    (
        "rtt = \"10ms\"",
        "lag = \"10ms\"",
        "base.lag: no such axis; there are: page, rtt",
    ),
    (
        "rtt = \"10ms\"",
        "rtt = [1]",
        "base.rtt: neither text nor a whole number",
    ),
    (
        "name = \"h2\"",
        "name = \"pair\"",
        "setups: \"pair\" is there twice",
    ),
    ("session = \"spdy3.1\"", "session = \"spdy4\"", "spdy4"),
    (
        "way = \"nghttpx\"",
        "way = \"nghttpx\"\npush = true",
        "setups.nghttpx.way: ",
    ),
    (
        "way = \"https\"",
        "way = \"https\"\nwarm = true",
        "setups.https2.warm: ",
    ),
    ("visits = 1", "visits = 1000", "setups.visited.visits: "),
    (
        "shards = [1, 2]",
        "shards = [1, 0]",
        "sweeps.all.shards: \"0\"",
    ),
    (
        "shards = [1, 2]",
        "shards = []",
        "sweeps.all.axes.shards: no values",
    ),
    (
        "x = \"shards\"",
        "x = \"rate\"",
        "sweeps.all: axes.rate is missing",
    ),
    (
        ", parallel = [3]",
        "",
        "sweeps.all: parallel is given neither here nor for \"h2\"",
    ),
    (
        "setup = \"pair\"",
        "setup = \"pear\"",
        "sweeps.all.documents.0.setup: no set-up \"pear\"",
    ),
    (
        "[[why]]",
        "[[why]]\nsweep = \"none\"",
        "why.0.sweep: no sweep \"none\"",
    ),
];

#[test]
fn wrong_files_name_the_key() {
    Experiment::parse(TINY).expect("valid as it is");
    for (right, wrong, expected) in WRONG {
        let text = TINY.replacen(right, wrong, 1);
        assert_ne!(text, TINY, "{right} is not in the file");
        let error = Experiment::parse(&text).expect_err(wrong).to_string();
        assert!(
            error.contains(expected),
            "{wrong}: {error:?} should contain {expected:?}"
        );
    }
    let many = format!("shards = [{}]", "1, ".repeat(20_000));
    let error = Experiment::parse(&TINY.replacen("shards = [1, 2]", &many, 1))
        .expect_err("too many")
        .to_string();
    assert!(error.contains("sweeps.all: more than"), "{error}");
}

#[test]
fn parts_of_an_experiment() {
    let experiment = Experiment::parse(TINY).expect("valid");
    let trials = |only: &[&str]| {
        let only = only.iter().map(|term| (*term).to_owned()).collect();
        plan::trials(
            &experiment,
            &Selection {
                only,
                ..Selection::default()
            },
        )
    };
    assert_eq!(trials(&[]).expect("all").len(), 12);
    assert_eq!(trials(&["pair", "h2"]).expect("two set-ups").len(), 4);
    assert_eq!(trials(&["all", "pair", "shards=2"]).expect("one").len(), 1);
    assert_eq!(trials(&["shards=1", "shards=2"]).expect("both").len(), 12);
    let twice = Selection {
        passes: Some(2),
        ..Selection::default()
    };
    assert_eq!(
        plan::trials(&experiment, &twice).expect("all, twice").len(),
        24
    );
    for (only, expected) in [
        ("pears", "\"pears\"; there are: all, http2"),
        ("shards=3", "nothing is left"),
    ] {
        let error = trials(&[only]).expect_err(only).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Every file of the repository can be read, its pages too, and its report before anything is
/// measured.
#[test]
fn the_repositorys_experiments_are_valid() {
    let files = std::fs::read_dir(repository())
        .expect("experiments")
        .flatten()
        .map(|entry| entry.path());
    let files: Vec<PathBuf> = files
        .filter(|file| file.extension().is_some_and(|kind| kind == "toml"))
        .collect();
    assert!(files.len() >= 3);
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a file");
        if chain::file::is_chain(&text) {
            let study = Study::parse(&text);
            study.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            continue;
        }
        let (experiment, _) =
            Experiment::open(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let [small, full] = [false, true].map(|full| {
            let trials = plan::trials(
                &experiment,
                &Selection {
                    full,
                    ..Selection::default()
                },
            )
            .expect("something to measure");
            for trial in &trials {
                let page = trial.point.get(Axis::Page).expect("checked");
                let page = experiment.page(page).expect("a page");
                assert!(experiment.list || page.check_browsable().is_ok());
            }
            trials.len()
        });
        assert!(small < full);
        well_formed(&report::html(&experiment, &[], None));
    }
}

#[test]
fn a_report_takes_in_what_was_measured_over_tor() {
    let experiment = Experiment::parse(TINY).expect("valid");
    let tor = serde_json::json!({ "rows": [{ "page": "<a>", "time": { "median": 1.5 }, "all": [1] }, { "page": "b" }] });
    let html = report::html(&experiment, &[], Some(&tor));
    well_formed(&html);
    for part in ["private Tor network", "&lt;a&gt;", "time median", "1.50"] {
        assert!(html.contains(part), "{part}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// A file with any part replaced by anything is an error or an experiment that can be planned.
    #[test]
    fn any_change_is_an_error_or_an_experiment(at in 0..TINY.len(), len in 0..60usize, new in "[ -~\n]{0,40}") {
        let end = (at + len).min(TINY.len());
        usable(&format!("{}{new}{}", &TINY[..at], &TINY[end..]))?;
    }

    /// As any value in place of another.
    #[test]
    fn any_value_is_an_error_or_one_that_can_be(key in 0..40usize, value in "\\PC{0,30}|-?[0-9]{1,25}|true|\\[\\]|\\{\\}") {
        let line = TINY.lines().filter(|line| line.contains(" = ")).nth(key % 38).unwrap_or_default();
        let name = line.split(" = ").next().unwrap_or_default();
        for value in [value.clone(), format!("{value:?}"), format!("[{value:?}]")] {
            usable(&TINY.replacen(line, &format!("{name} = {value}"), 1))?;
        }
    }
}

fn usable(text: &str) -> Result<(), TestCaseError> {
    match Experiment::parse(text) {
        Err(error) => prop_assert!(!error.to_string().is_empty()),
        Ok(experiment) => {
            let planned = plan::trials(
                &experiment,
                &Selection {
                    full: true,
                    ..Selection::default()
                },
            );
            let most = 100_000 * experiment.sweeps.len();
            let bounded = planned.is_ok_and(|trials| (1..=most).contains(&trials.len()));
            prop_assert!(bounded);
            well_formed(&report::html(&experiment, &[], None));
        }
    }
    Ok(())
}

#[test]
fn errors_keep_their_causes() {
    let error = Experiment::parse("name = 1").expect_err("not text");
    assert!(matches!(error, ExperimentError::Toml(_)), "{error}");
}

/// Fails unless every element is closed in order, attributes are quoted and references are known.
/// XML requires that, and HTML requires less.
fn well_formed(html: &str) {
    let mut rest = html
        .strip_prefix("<!DOCTYPE html>\n")
        .expect("a document type");
    let mut open: Vec<&str> = Vec::new();
    while let Some(at) = rest.find('<') {
        references(&rest[..at]);
        let end = rest[at..]
            .find('>')
            .map(|end| at + end)
            .expect("a tag that ends");
        let tag = &rest[at + 1..end];
        assert!(!tag.contains('<'), "{tag}");
        rest = &rest[end + 1..];
        let name = tag
            .trim_start_matches('/')
            .split([' ', '/'])
            .next()
            .unwrap_or_default();
        assert!(
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric()),
            "{tag}"
        );
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
        } else {
            attributes(&tag[name.len()..]);
            if !tag.ends_with('/') {
                open.push(name);
            }
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
}

fn attributes(mut text: &str) {
    loop {
        text = text.trim_start();
        if text.is_empty() || text == "/" {
            return;
        }
        let (name, rest) = text.split_once("=\"").expect("a quoted attribute");
        assert!(
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'),
            "{name}"
        );
        let (value, rest) = rest.split_once('"').expect("an attribute that ends");
        references(value);
        text = rest;
    }
}

fn references(text: &str) {
    for part in text.split('&').skip(1) {
        let known = ["amp;", "lt;", "gt;", "quot;"];
        assert!(known.iter().any(|known| part.starts_with(known)), "&{part}");
    }
    assert!(
        !text.chars().any(|c| c.is_control() && c != '\n'),
        "{text:?}"
    );
}
