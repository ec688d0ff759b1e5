//! Tests of forwarding studies: errors of files name the key, and the figures of short chains.

use tandem_lab::chain::file::is_chain;
use tandem_lab::forward::file::is_forwarding;
use tandem_lab::forward::trial::{self, ForwardFigures};
use tandem_lab::forward::{ForwardStudy, table};

const TINY: &str = r#"
kind = "forwarding"
name = "tiny"
title = "Small"
source = "this test"
passes = 1
hops = 3
circuits = 2
times = { warm-up = "4s", measured = "6s" }
link = { delay = "20ms", rate = "10mbit", queue = "34" }

[[setups]]
name = "hop"
termination = "hop"
algorithm = "cubic"

[[setups]]
name = "end"
termination = "end"
algorithm = "cubic"

[[cells]]
name = "none"

[[cells]]
name = "loss"
hop = 2
change = { loss = "1%" }
"#;

#[test]
fn errors_of_files_name_the_key() {
    ForwardStudy::parse(TINY).expect("valid as it is");
    assert!(is_forwarding(TINY) && !is_chain(TINY));
    for (text, changed, part) in [
        ("hops = 3", "hops = 0", "hops: "),
        ("circuits = 2", "circuits = 65", "circuits: "),
        ("passes = 1", "passes = 0", "passes: "),
        ("warm-up = \"4s\"", "warm-up = \"soon\"", "times.warm-up: "),
        ("hop = 2", "hop = 4", "cells.loss.hop: "),
        ("loss = \"1%\"", "loss = \"101%\"", "cells.loss: "),
        (
            "delay = \"20ms\"",
            "dela = \"20ms\"",
            "unknown key \"dela\"",
        ),
        ("algorithm = \"cubic\"", "algorithm = \"reno\"", "reno"),
    ] {
        assert!(TINY.contains(text), "{text}");
        let error = ForwardStudy::parse(&TINY.replacen(text, changed, 1)).expect_err(changed);
        assert!(error.to_string().contains(part), "{changed}: {error}");
    }
}

/// Returns the figures of the first set-up and of the second one in a cell.
fn figures(study: &ForwardStudy, cell: usize, seed: u64) -> [ForwardFigures; 2] {
    [0, 1].map(|setup| {
        let measured = trial::run(study, &study.setups[setup], &study.cells[cell], seed);
        measured.expect("a valid study")
    })
}

#[test]
fn both_kinds_of_relay_fill_a_chain_without_loss() {
    let study = ForwardStudy::parse(TINY).expect("valid");
    for (measured, label) in figures(&study, 0, 1).iter().zip(["hop", "end"]) {
        // The headers take 4 % of the rate.
        assert!((8.5..9.7).contains(&measured.mbit), "{label}: {measured:?}");
        // Three hops take 120 ms there and back, and each has a queue of 40 ms.
        assert!(measured.delay(0.0) >= 120.0, "{label}: {measured:?}");
        assert!(measured.delay(1.0) < 600.0, "{label}: {measured:?}");
        assert_eq!(measured.delays.len(), 60, "{label}");
        assert!(
            (1.0..1.15).contains(&measured.carried),
            "{label}: {measured:?}"
        );
    }
}

#[test]
fn termination_repairs_losses_on_their_hop() {
    let study = ForwardStudy::parse(TINY).expect("valid");
    let [hop, end] = figures(&study, 1, 1);
    assert!(hop.mbit > 1.3 * end.mbit, "{} and {}", hop.mbit, end.mbit);
    assert!(hop.held > 0);
    assert_eq!(end.held, 0, "relays without tunnels hold nothing");
}

#[test]
fn one_seed_gives_the_same_figures() {
    let study = ForwardStudy::parse(TINY).expect("valid");
    assert_eq!(figures(&study, 1, 1), figures(&study, 1, 1));
    assert_ne!(figures(&study, 1, 1), figures(&study, 1, 2));
}

#[test]
fn table_has_a_row_for_each_set_up_of_a_cell() {
    let short = TINY.replace("\"4s\"", "\"1s\"").replace("\"6s\"", "\"1s\"");
    let study = ForwardStudy::parse(&short).expect("valid");
    let mut told = 0;
    let table = table::run(&study, &mut |_| told += 1).expect("a valid study");
    assert_eq!((told, table.lines().count()), (4, 6));
    assert!(table.contains("\n| loss | end | "), "{table}");
}
