//! Files of experiments. Errors name their place, and the repository's own files are right.

use std::path::PathBuf;

use proptest::prelude::*;
use tandem_lab::chain;
use tandem_lab::chain::ChainStudy;
use tandem_lab::experiment::plan::Selection;
use tandem_lab::experiment::{Axis, Experiment, ExperimentError, plan, report, run};
use tandem_lab::forward;

use crate::reports::well_formed;
use crate::{TINY, repository};

/// Changes of the tiny file, and the key and text that the error must contain.
const WRONG: [(&str, &str, &str); 26] = [
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
        "way = \"https\"",
        "way = \"https\"\nresume = true",
        "setups.https2.way: ",
    ),
    (
        "session = \"spdy3.1\"",
        "session = \"spdy3.1\"\nresume = true",
        "setups.visited.resume: ",
    ),
    (
        "tls = true",
        "tls = true\nsession = \"h3+quic\"",
        "setups.pair.tls: ",
    ),
    (
        "way = \"http\"",
        "way = \"other\"\nnear = \"program\"",
        "setups.http2.near: ",
    ),
    (
        "way = \"http\"",
        "way = \"http\"\ninstall = \"make\"",
        "setups.http2.install: ",
    ),
    (
        "parallel = [3]",
        "parallel = [3], bulk = [0, 1]",
        "sweeps.all.bulk: \"https2\" has no plain origins",
    ),
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
        "way = \"h2\"",
        "way = \"h2\"\nahead = \"page\"",
        "setups.h2.ahead: only for",
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
        ("shards=3", "no page load matches"),
    ] {
        let error = trials(&[only]).expect_err(only).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn pages_replace_those_of_every_sweep() {
    for file in ["today.toml", "resume.toml"] {
        let text = std::fs::read_to_string(repository().join(file)).expect("a file");
        let text = format!("pages = [\"demo\", \"thesis\"]\n{text}");
        let experiment = Experiment::parse(&text)
            .expect("valid")
            .at(&repository().join(file));
        for full in [false, true] {
            let selection = Selection {
                full,
                ..Selection::default()
            };
            let trials = plan::trials(&experiment, &selection).expect("a plan");
            for name in ["demo", "thesis"] {
                let mut pages = trials.iter().map(|trial| trial.point.get(Axis::Page));
                assert!(pages.any(|page| page == Some(name)), "{file} {name}");
            }
            let mut pages = trials.iter().map(|trial| trial.point.get(Axis::Page));
            let is_given = |page| matches!(page, Some("demo" | "thesis"));
            assert!(pages.all(is_given), "{file}");
        }
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
        if forward::file::is_forwarding(&text) {
            forward::ForwardStudy::parse(&text)
                .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            continue;
        }
        if chain::file::is_chain(&text) {
            let study = ChainStudy::parse(&text);
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
            run::check_traces(&experiment, &trials).expect("traces");
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
