//! `tandem predict replay`: one predictor over each sample.

use std::io::{self, Write};

use tandem_predict::auto::AutoReplay;
use tandem_predict::replay::{BasicReplay, Sessions, replay};
use tandem_predict::Tally;

use super::input::{Loaded, Sample, load, samples};
use super::report::{Row, print_json, print_tables};
use super::{PredictError, ReplayArgs, milliseconds};

pub(super) fn run(args: &ReplayArgs) -> Result<(), PredictError> {
    let mut rows = Vec::new();
    for path in &args.input.logs {
        // One log at a time is in memory.
        let logs = [load(path, &args.input)?];
        for sample in samples(&logs, args.input.daily) {
            rows.push(row(&logs, &sample, args));
        }
    }
    let mut out = io::stdout().lock();
    if args.json { print_json(&mut out, &rows, args.omega)? } else { print_tables(&mut out, &rows, args.omega)? }
    Ok(out.flush()?)
}

fn row(logs: &[Loaded], sample: &Sample, args: &ReplayArgs) -> Row {
    let log = &logs[sample.log].log;
    Row {
        name: sample.name.clone(),
        predictor: args.algorithm.name(),
        lines: if sample.whole() { u64::from(log.lines) } else { sample.records(logs).len() as u64 },
        unparsable: if sample.whole() { u64::from(log.unparsable) } else { 0 },
        noise: if sample.whole() { u64::from(log.noise) } else { 0 },
        tally: tally(logs, sample, args),
    }
}

fn tally(logs: &[Loaded], sample: &Sample, args: &ReplayArgs) -> Tally {
    let log = &logs[sample.log].log;
    let records = sample.records(logs);
    let options = args.options();
    let sessions = Sessions::cut(log, records, milliseconds(args.session_timeout), args.ignore_mobile);
    match args.algorithm.documented() {
        Some(_) => replay(log, records, &sessions, &mut BasicReplay::new(log, &options), |_| {}),
        None => replay(log, records, &sessions, &mut AutoReplay::new(log, &options, args.omega), |_| {}),
    }
}
