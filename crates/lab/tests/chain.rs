//! Tests of chain experiments: errors of files name the key, and a small chain runs end to end with
//! whole programs.

mod lab;
#[path = "../../web/tests/programs/mod.rs"]
mod programs;

use std::process::{Command, Stdio};

use lab::LAB;
use programs::{Scratch, output, require};
use tandem_lab::chain::ChainStudy;
use tandem_lab::chain::run::{self, ChainLine, ChainOutcome};
use tandem_lab::chain::trial::ChainFigures;

const TINY: &str = r#"
kind = "chain"
name = "tiny"
title = "Small & <quick>"
source = "this test"
passes = 1
full-passes = 2
times = { base = "1s", warm-up = "1s", measured = "3s" }
full-times = { base = "1s", warm-up = "1s", measured = "1s" }
link = { delay = "5ms", rate = "8mbit", queue = "67" }

[[setups]]
name = "tcp"
scheme = "h2+tls"
congestion = "cubic"

[[setups]]
name = "dtls"
label = "DTLS & streams"
scheme = "http+dtls"
congestion = "cubic"
options = ["coupling=stream"]

[[cells]]
name = "none"
network = "short"

[[cells]]
name = "reset"
network = "short"
shared = { reset = "9980:after=50" }

[[tables]]
title = "Resets"
cells = ["none", "reset"]
documents = [{ what = "Tor", cell = "none", setup = "tcp", throughput = 176, delay = 1026 }]
"#;

#[test]
fn errors_of_files_name_the_key() {
    for (text, changed, part) in [
        (
            "[[cells]]\nname = \"none\"",
            "[[cells]]\nnam = \"none\"",
            "nam",
        ),
        ("network = \"short\"", "network = \"ring\"", "ring"),
        ("base = \"1s\"", "base = \"soon\"", "times.base"),
        ("passes = 1", "passes = 0", "passes: must be"),
        ("delay = \"5ms\"", "dela = \"5ms\"", "unknown key \"dela\""),
        ("after=50", "since=50", "cells.reset"),
        (
            "cells = [\"none\"",
            "cells = [\"nothing\"",
            "no cell \"nothing\"",
        ),
        ("setup = \"tcp\"", "setup = \"sctp\"", "no set-up \"sctp\""),
        (
            "name = \"tiny\"",
            "name = \"a/b\"",
            "\"a/b\" is not letters",
        ),
    ] {
        assert!(TINY.contains(text), "{text}");
        let error = ChainStudy::parse(&TINY.replacen(text, changed, 1)).expect_err(changed);
        assert!(error.to_string().contains(part), "{changed}: {error}");
    }
}

/// Returns the figures of a set-up in a cell.
fn figures(lines: &[ChainLine], setup: &str, cell: &str) -> ChainFigures {
    let figures = lines.iter().find_map(|line| match line {
        ChainLine::Trial(record)
            if (&*record.trial.setup.name, &*record.trial.cell.name) == (setup, cell) =>
        {
            Some(record.outcome.clone())
        }
        _ => None,
    });
    match figures {
        Some(ChainOutcome::Measured(measured)) => measured,
        other => panic!("{setup} {cell}: {other:?}"),
    }
}

#[test]
fn chain_runs_and_resets_break_tcp_only() {
    let scratch = Scratch::new("chain");
    require(&[]);
    let (file, out) = (scratch.file("tiny.toml"), scratch.file("out"));
    std::fs::write(&file, TINY).expect("room");
    let lab = |only: &str| lab::run(&file, &out, &["--only", only]);
    let wrong = lab("sctp").stdin(Stdio::null()).output();
    let wrong = wrong.expect("the program starts");
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(
        !wrong.status.success() && said.contains("\"sctp\" is neither"),
        "{said}"
    );
    output(&mut lab("dtls"));
    output(&mut lab("tcp,reset"));
    let lines = run::read(&out).expect("results");
    for cell in ["none", "reset"] {
        let measured = figures(&lines, "dtls", cell);
        assert_eq!(measured.circuits.len(), 1, "{cell}");
        assert!(measured.throughput() > 0.0, "{cell}: {measured:?}");
        // A stamp passes two links with a round trip of 10 ms each.
        let base = measured.base.expect("stamps");
        assert!(base.count > 0 && base.p50 >= 20.0, "{cell}: {base:?}");
        assert!(measured.beside.is_some(), "{cell}");
    }
    let reset = figures(&lines, "tcp", "reset");
    assert!(reset.throughput() == 0.0 && reset.resets > 0, "{reset:?}");
    assert_eq!(reset.alive(), 0);
    // Trials with a result are not repeated.
    output(&mut lab("dtls"));
    assert_eq!(run::read(&out).expect("results").len(), lines.len());
    let html = output(Command::new(LAB).arg("report").arg(&out).args(["-o", "-"]));
    for part in ["DTLS &amp; streams", "<svg", "1026", "0 of 1"] {
        assert!(html.contains(part), "{part}: {html}");
    }
}
