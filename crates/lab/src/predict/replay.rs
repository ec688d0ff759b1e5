//! `tandem predict replay`: one predictor over each sample.

use std::io::{self, Write};

use tandem_predict::Auto;
use tandem_replay::log::{AccessLog, LeftOut};
use tandem_replay::{AutoReplay, BasicReplay, Sessions, Tally, replay};

use super::input::{LoadedLog, LogSample, load, names, samples};
use super::learn::read_state;
use super::report::{ReplayRow, print_json, print_tables};
use super::{AimArg, PredictError, ReplayArgs, milliseconds};

pub(super) fn run(args: &ReplayArgs) -> Result<(), PredictError> {
    args.check()?;
    // To sort the URLs takes a twentieth of the time.
    let finish = match args.algorithm.documented() {
        Some(_) => AccessLog::finish,
        None => AccessLog::put_in_order,
    };
    let mut rows = Vec::new();
    for (path, name) in args.input.logs.iter().zip(names(&args.input.logs)) {
        // One log at a time is in memory.
        let logs = [load(path, name, &args.input, finish)?];
        for sample in samples(&logs, args.input.daily) {
            rows.push(row(&logs, &sample, args)?);
        }
    }
    let mut out = io::stdout().lock();
    if args.json {
        print_json(&mut out, &rows, args.omega)?
    } else {
        print_tables(&mut out, &rows, args.omega)?
    }
    Ok(out.flush()?)
}

fn row(
    logs: &[LoadedLog],
    sample: &LogSample,
    args: &ReplayArgs,
) -> Result<ReplayRow, PredictError> {
    let LeftOut { unparsable, noise } = sample.left_out(logs);
    let (unparsable, noise) = (u64::from(unparsable), u64::from(noise));
    Ok(ReplayRow {
        name: sample.name.clone(),
        predictor: args.algorithm.name(),
        lines: sample.records(logs).len() as u64 + unparsable + noise,
        unparsable,
        noise,
        tally: tally(logs, sample, args)?,
    })
}

fn tally(logs: &[LoadedLog], sample: &LogSample, args: &ReplayArgs) -> Result<Tally, PredictError> {
    let log = &logs[sample.log].log;
    let records = sample.records(logs);
    let options = args.options();
    let sessions = Sessions::cut(
        log,
        records,
        milliseconds(args.sessions.session_timeout),
        args.ignore_mobile,
    );
    if args.algorithm.documented().is_some() {
        return Ok(replay(
            log,
            records,
            &sessions,
            &mut BasicReplay::new(log, &options),
            |_| {},
        ));
    }
    let config = args.auto.config(args.omega, AimArg::Requests);
    let auto = match &args.predict_state {
        Some(path) => read_state(path, config)?,
        None => Auto::new(config),
    };
    Ok(replay(
        log,
        records,
        &sessions,
        &mut AutoReplay::new(log, &options, auto),
        |_| {},
    ))
}
