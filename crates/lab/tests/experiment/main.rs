//! Tests of experiments: their files, their runs with whole programs, and their reports.

mod files;
#[path = "../lab/mod.rs"]
mod lab;
#[path = "../../../web/tests/programs/mod.rs"]
mod programs;
mod reports;
mod runs;

use std::path::{Path, PathBuf};

use tandem_lab::experiment::results;
use tandem_lab::experiment::results::{Line, Measured, Outcome, Record};

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
