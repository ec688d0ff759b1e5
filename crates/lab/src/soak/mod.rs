//! A soak of the proxies: hours of visitors with kills, reloads and suspensions, and proof at the
//! end that no resource has grown and no byte was wrong.
//!
//! ```text
//!  visitors ─▶ client "steady"   ─▶ gateway "steady" ─▶ origin   both measured, never killed
//!  visitors ─▶ client "bereaved" ─▶ gateway "mortal" ─▶ origin   client measured, gateway killed
//!  visitors ─▶ client "mortal"   ─▶ gateway "steady" ─▶ origin   client killed
//! ```
//!
//! [`origin`] serves bodies that their URLs determine, so that [`visitor`] can check every byte.
//! [`cast`] starts the programs and plays the faults, [`watch`] samples and judges, and [`report`]
//! writes the JSON and the plot. The lab's [`crate::bench::testbed`] holds the programs.

pub mod cast;
pub mod origin;
pub mod pattern;
pub mod report;
pub mod visitor;
pub mod watch;
mod wire;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bench::BenchError;
use crate::bench::testbed::Testbed;
use cast::Cast;
use origin::SoakOrigin;
use report::Soak;
use visitor::Counts;
use watch::Watch;

/// The time that the programs have to close the connections of departed visitors. Kept connections
/// to origins last 45 s.
const SETTLE: Duration = Duration::from_secs(90);

/// The settings of a soak.
#[derive(Clone, Debug)]
pub struct SoakOptions {
    /// The program under test.
    pub tandem: PathBuf,
    /// The time for which visitors come.
    pub time: Duration,
    /// Visitors at once on each of the three ways.
    pub visitors: usize,
    /// Seed of all choices.
    pub seed: u64,
    /// The library of libfaketime, where wall clocks are to jump.
    pub faketime: Option<PathBuf>,
}

/// A progress message of a running soak.
#[derive(Clone, Copy, Debug)]
pub struct SoakProgress<'a> {
    /// Time since the first visitor.
    pub elapsed: Duration,
    /// The counts so far.
    pub counts: &'a Counts,
    /// Faults played so far.
    pub faults: u64,
}

/// Runs a soak; `tell` is called about once a second.
pub async fn run(
    testbed: &Testbed,
    options: &SoakOptions,
    mut tell: impl FnMut(SoakProgress<'_>),
) -> Result<Soak, BenchError> {
    let origin = SoakOrigin::start()
        .await
        .map_err(BenchError::system("start the origin"))?;
    let mut cast = Cast::start(testbed, options)?;
    let counts = Arc::new(Counts::default());
    let mut watch = Watch::new(cast.measured());
    watch.note_base().await?;
    let begun = Instant::now();
    let until = begun + options.time;
    let mut visitors = Vec::new();
    for (way, number) in
        (0..cast::WAYS).flat_map(|way| (0..options.visitors).map(move |n| (way, n)))
    {
        let visitor = visitor::Visitor {
            way: cast.way(way),
            origin: origin.addresses(),
            counts: Arc::clone(&counts),
            seed: options.seed ^ ((way as u64) << 32 | number as u64),
        };
        visitors.push(tokio::spawn(visitor.stay(until)));
    }
    let mut faults = 0;
    let mut next = tokio::time::interval(Duration::from_millis(500));
    while Instant::now() < until {
        next.tick().await;
        let elapsed = begun.elapsed();
        faults += u64::from(cast.play(elapsed)?);
        watch.sample(elapsed).await;
        tell(SoakProgress {
            elapsed,
            counts: &counts,
            faults,
        });
    }
    // A program that stays suspended would keep its visitors.
    cast.rest()?;
    for visitor in visitors {
        visitor
            .await
            .map_err(|error| BenchError::Value(format!("a visitor panicked: {error}")))?;
    }
    let settled = watch.settle(SETTLE).await;
    Ok(watch.judge(options, begun.elapsed(), &counts, faults, settled))
}
