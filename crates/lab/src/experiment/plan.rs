//! The trials of an experiment in their order: pass by pass, point by point, with set-ups in turns
//! at each.

use std::collections::HashSet;

use serde::Serialize;

use super::ExperimentError;
use super::file::{Experiment, Setup, Sweep};
use super::point::{Axis, Point};
use crate::bench::turns;

/// Most page loads of one experiment.
const MOST: usize = 100_000;

/// A page load to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The point of the trial.
    pub point: Point,
    /// The set-up, as an index.
    pub setup: usize,
    /// The pass, from 0.
    pub pass: usize,
    /// The identity of the trial: two trials with the same key need to be made only once.
    pub key: String,
}

/// Everything that has an influence on a trial's result.
#[derive(Serialize)]
struct Key<'a> {
    point: &'a Point,
    setup: &'a Setup,
    pass: usize,
    seed: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    same_seed: bool,
    deadline_ms: u128,
    list: bool,
}

/// The selected part of an experiment.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The large grid.
    pub full: bool,
    /// Turns of every set-up, instead of the experiment's.
    pub passes: Option<usize>,
    /// Names of sweeps, of set-ups, or `axis=value`; of each kind one must fit. Empty: everything.
    pub only: Vec<String>,
}

/// The trials of an experiment.
pub fn trials(
    experiment: &Experiment,
    selection: &Selection,
) -> Result<Vec<Trial>, ExperimentError> {
    let only = Only::parse(experiment, selection)?;
    let mut trials = Vec::new();
    let mut seen = HashSet::new();
    let turns_of = |sweep: &Sweep| {
        selection
            .passes
            .unwrap_or_else(|| sweep.passes(selection.full))
    };
    let passes = experiment.sweeps.iter().map(turns_of).max().unwrap_or(0);
    for pass in 0..passes {
        for sweep in &experiment.sweeps {
            if pass >= turns_of(sweep) || !only.sweep(sweep) {
                continue;
            }
            let setups: Vec<usize> = sweep
                .setups
                .iter()
                .copied()
                .filter(|&at| only.setup(experiment, at))
                .collect();
            for point in points(sweep, selection.full)
                .into_iter()
                .filter(|point| only.point(point))
            {
                let in_turn =
                    turns(pass, setups.len()).map(|at| trial(experiment, &point, setups[at], pass));
                trials.extend(in_turn.filter(|trial| seen.insert(trial.key.clone())));
            }
        }
    }
    if trials.is_empty() {
        return Err(ExperimentError::value(
            "--only",
            "no page load matches all of these: the file lists the values of each axis, and --full \
             adds some",
        ));
    }
    Ok(trials)
}

/// Returns a trial of an experiment.
pub fn trial(experiment: &Experiment, point: &Point, setup: usize, pass: usize) -> Trial {
    let key = Key {
        point,
        setup: &experiment.setups[setup],
        pass,
        seed: experiment.seed,
        same_seed: experiment.same_seed,
        deadline_ms: experiment.deadline.as_millis(),
        list: experiment.list,
    };
    // Text, numbers and maps with names as keys: nothing that JSON cannot write.
    let key = serde_json::to_string(&key).unwrap_or_default();
    Trial {
        point: point.clone(),
        setup,
        pass,
        key,
    }
}

/// Returns all points of a sweep; its `x` varies fastest.
pub fn points(sweep: &Sweep, full: bool) -> Vec<Point> {
    let mut axes = sweep.axes(full);
    axes.sort_by_key(|(axis, _)| (*axis == sweep.x, Some(*axis) == sweep.y));
    let mut points = vec![sweep.base.clone()];
    for (axis, values) in axes {
        points = points
            .iter()
            .flat_map(|point| values.iter().map(move |value| point.with(axis, value)))
            .collect();
    }
    points
}

/// Checks every point, and that there are not too many.
pub(super) fn check(experiment: &Experiment) -> Result<(), ExperimentError> {
    for sweep in &experiment.sweeps {
        for full in [false, true] {
            let key = format!("sweeps.{}", sweep.name);
            let axes = sweep.axes(full);
            let points = axes.iter().fold(1usize, |product, (_, values)| {
                product.saturating_mul(values.len())
            });
            if points
                .saturating_mul(sweep.setups.len())
                .saturating_mul(sweep.passes(full))
                > MOST
            {
                return Err(ExperimentError::value(
                    key,
                    format!("more than {MOST} page loads"),
                ));
            }
            // Combines each value with the first of the other axes: errors in one value do not
            // depend on the rest.
            let first = axes
                .iter()
                .fold(sweep.base.clone(), |point, (axis, values)| {
                    point.with(*axis, &values[0])
                });
            for (axis, values) in &axes {
                for value in *values {
                    first.with(*axis, value).conditions(&key)?;
                }
            }
            check_bulk(experiment, sweep, &key, full)?;
            let open = |setup: &&usize| experiment.setups[**setup].parallel.is_none();
            if let Some(setup) = sweep
                .setups
                .iter()
                .find(open)
                .filter(|_| first.get(Axis::Parallel).is_none())
            {
                let name = &experiment.setups[*setup].name;
                return Err(ExperimentError::value(
                    key,
                    format!("parallel is given neither here nor for {name:?}"),
                ));
            }
        }
    }
    Ok(())
}

/// Checks that the downloads beside a page have a way.
fn check_bulk(
    experiment: &Experiment,
    sweep: &Sweep,
    key: &str,
    full: bool,
) -> Result<(), ExperimentError> {
    let of_axes = sweep.axes(full);
    let values = of_axes.iter().filter(|(axis, _)| *axis == Axis::Bulk);
    let mut values = values.flat_map(|(_, values)| values.iter().map(String::as_str));
    let is_some = |value: &str| Axis::Bulk.number(value) != Some(0.0);
    if !values.any(is_some) && !sweep.base.get(Axis::Bulk).is_some_and(is_some) {
        return Ok(());
    }
    let mut setups = sweep.setups.iter().map(|setup| &experiment.setups[*setup]);
    match setups.find(|setup| setup.is_secure()) {
        Some(setup) => Err(ExperimentError::value(
            format!("{key}.bulk"),
            format!("{:?} has no plain origins for downloads", setup.name),
        )),
        None => Ok(()),
    }
}

/// `--only`, understood.
#[derive(Default)]
struct Only {
    sweeps: Vec<String>,
    setups: Vec<String>,
    points: Vec<(Axis, Point)>,
}

impl Only {
    fn parse(experiment: &Experiment, selection: &Selection) -> Result<Self, ExperimentError> {
        let mut only = Self::default();
        for term in &selection.only {
            let mut known = false;
            if experiment.sweeps.iter().any(|sweep| sweep.name == *term) {
                only.sweeps.push(term.clone());
                known = true;
            }
            if !known && experiment.setups.iter().any(|setup| setup.name == *term) {
                only.setups.push(term.clone());
                known = true;
            }
            if let Some((axis, value)) = term
                .split_once('=')
                .and_then(|(n, v)| Some((Axis::named(n)?, v)))
            {
                only.points.push((axis, Point::default().with(axis, value)));
                known = true;
            }
            if !known {
                return Err(ExperimentError::value("--only", unknown(experiment, term)));
            }
        }
        Ok(only)
    }

    fn sweep(&self, sweep: &Sweep) -> bool {
        self.sweeps.is_empty() || self.sweeps.contains(&sweep.name)
    }

    fn setup(&self, experiment: &Experiment, at: usize) -> bool {
        self.setups.is_empty() || self.setups.contains(&experiment.setups[at].name)
    }

    fn point(&self, point: &Point) -> bool {
        // Several values of one axis are alternatives.
        Axis::ALL.into_iter().all(|axis| {
            let mut given = self
                .points
                .iter()
                .filter(|(own, _)| *own == axis)
                .peekable();
            given.peek().is_none() || given.any(|(_, part)| point.lies_in(part))
        })
    }
}

fn unknown(experiment: &Experiment, term: &str) -> String {
    let sweeps = experiment.sweeps.iter().map(|sweep| sweep.name.as_str());
    let setups = experiment.setups.iter().map(|setup| setup.name.as_str());
    let known: Vec<&str> = sweeps.chain(setups).collect();
    format!(
        "nothing is called {term:?}; there are: {}, and axis=value such as rtt=100ms",
        known.join(", ")
    )
}
