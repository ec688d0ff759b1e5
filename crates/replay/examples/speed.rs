//! Measures how fast a plain access log is read and replayed with the gateway's predictor:
//!
//! ```sh
//! cargo run --release -p tandem-replay --example speed -- LOG [REPEATS]
//! ```

#![expect(clippy::print_stdout, reason = "the figures are the output")]

use std::env;
use std::error::Error;
use std::time::Instant;

use tandem_predict::Auto;
use tandem_predict::auto::{Aim, AutoConfig};
use tandem_replay::log::{AccessLog, Filter};
use tandem_replay::{AutoReplay, Options, Sessions, replay};

/// The pause in milliseconds after which a user's next request begins another session.
const TIMEOUT: i64 = 3_600_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let path = arguments.next().ok_or("the path of a log is missing")?;
    let repeats: u32 = arguments.next().map_or(Ok(5), |count| count.parse())?;
    let text = std::fs::read(path)?;
    for _ in 0..repeats {
        let began = Instant::now();
        let mut log = AccessLog::default();
        for line in text
            .strip_suffix(b"\n")
            .unwrap_or(&text)
            .split(|&byte| byte == b'\n')
        {
            log.push_line(line, Filter::default());
        }
        log.put_in_order();
        let read = began.elapsed().as_secs_f64();
        let options = Options::default();
        let sessions = Sessions::cut(&log, &log.records, TIMEOUT, options.ignore_mobile);
        let auto = Auto::new(AutoConfig {
            aim: Aim::Requests,
            ..AutoConfig::default()
        });
        let mut predictor = AutoReplay::new(&log, &options, auto);
        let tally = replay(&log, &log.records, &sessions, &mut predictor, |_| {});
        let total = began.elapsed().as_secs_f64();
        println!(
            "{} lines, {} pushes: read in {read:.3} s, replayed in {:.3} s, {:.0} lines a second",
            log.lines,
            tally.pushes,
            total - read,
            f64::from(log.lines) / total
        );
    }
    Ok(())
}
