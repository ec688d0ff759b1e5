//! `tandem predict tune`: every combination of the documented algorithms' parameters on every
//! sample, on all cores.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tandem_replay::Tally;
use tandem_replay::grid::{Combination, Grid, Group};
use tandem_replay::log::AccessLog;

use super::input::{LoadedLog, LogSample, load, names, samples};
use super::plot;
use super::report::{counts, print_table};
use super::{Combinations, PredictError, TuneArgs};

/// The results of each sample under each combination.
pub(super) struct TuneResults {
    pub(super) logs: Vec<LoadedLog>,
    pub(super) samples: Vec<LogSample>,
    pub(super) combinations: Vec<Combination>,
    /// The results by sample, then by combination.
    pub(super) tallies: Vec<Vec<Tally>>,
    pub(super) omega: f64,
}

/// How much dearer pushing gets, on average, when one parameter of the best combination takes
/// another value.
pub(super) struct Effect {
    pub(super) parameter: usize,
    pub(super) value: String,
    pub(super) increase: f64,
}

pub(super) fn run(args: &TuneArgs) -> Result<(), PredictError> {
    let threads = args.threads.map_or_else(cores, usize::from);
    let bar = progress("reading", args.input.logs.len());
    let paths: Vec<_> = (args.input.logs.iter().zip(names(&args.input.logs))).collect();
    let logs = parallel(threads, &paths, &bar, |(path, name)| {
        load(path, name.clone(), &args.input, AccessLog::finish)
    });
    let logs = logs.into_iter().collect::<Result<Vec<_>, _>>()?;
    let grid = match args.grid {
        Combinations::Standard => Grid::standard(),
        Combinations::Full => Grid::full(),
    };
    let results = search(logs, args.input.daily, &grid, threads, args.omega);
    if let Some(directory) = &args.out {
        write_files(&results, directory)?;
    }
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{:#}", results.json())?
    } else {
        results.print(&mut out)?
    }
    Ok(out.flush()?)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn progress(what: &'static str, length: usize) -> ProgressBar {
    let bar = ProgressBar::new(length as u64).with_message(what);
    // A bad template would only cost the bar its looks.
    if let Ok(style) = ProgressStyle::with_template("{msg:10} {bar:40} {pos}/{len} {elapsed}") {
        bar.set_style(style);
    }
    bar
}

/// Maps `items` on `threads` threads, keeping their order.
fn parallel<T: Sync, R: Send>(
    threads: usize,
    items: &[T],
    bar: &ProgressBar,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { return };
                    let result = work(item);
                    // A worker that panicked ends the whole run when the scope does.
                    done.lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .push((at, result));
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut done = done
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

fn search(
    logs: Vec<LoadedLog>,
    daily: bool,
    grid: &Grid,
    threads: usize,
    omega: f64,
) -> TuneResults {
    let samples = samples(&logs, daily);
    let mut items: Vec<(usize, Group)> = (0..samples.len())
        .flat_map(|at| grid.groups().into_iter().map(move |group| (at, group)))
        .collect();
    // The longest first, so that no core is left with it at the end.
    items.sort_by_key(|&(at, _)| std::cmp::Reverse(samples[at].records(&logs).len()));
    let bar = progress("evaluating", items.len());
    let done = parallel(threads, &items, &bar, |&(at, group)| {
        grid.run(
            &logs[samples[at].log].log,
            samples[at].records(&logs),
            group,
        )
    });
    let mut tallies: Vec<Vec<Tally>> = vec![Vec::new(); samples.len()];
    let mut combinations = Vec::new();
    for group in grid.groups() {
        for (&(at, _), run) in items.iter().zip(&done).filter(|((_, of), _)| *of == group) {
            if at == 0 {
                combinations.extend(run.iter().map(|(combination, _)| *combination));
            }
            tallies[at].extend(run.iter().map(|(_, tally)| tally.clone()));
        }
    }
    TuneResults {
        logs,
        samples,
        combinations,
        tallies,
        omega,
    }
}

impl TuneResults {
    fn cost(&self, sample: usize, combination: usize) -> f64 {
        self.tallies[sample][combination].push_cost(self.omega)
    }

    /// Samples in which there was anything to push.
    fn useful(&self, log: Option<usize>) -> Vec<usize> {
        let of_log = |&at: &usize| log.is_none_or(|log| self.samples[at].log == log);
        let has_assets = |&at: &usize| {
            self.tallies[at]
                .first()
                .is_some_and(|tally| tally.assets > 0)
        };
        (0..self.samples.len())
            .filter(of_log)
            .filter(has_assets)
            .collect()
    }

    fn mean_cost(&self, samples: &[usize], combination: usize) -> f64 {
        samples
            .iter()
            .map(|&sample| self.cost(sample, combination))
            .sum::<f64>()
            / samples.len().max(1) as f64
    }

    /// The sample and combination with the least cost.
    pub(super) fn best_single(&self, log: Option<usize>) -> Option<(usize, usize)> {
        let pairs = self
            .useful(log)
            .into_iter()
            .flat_map(|at| (0..self.combinations.len()).map(move |c| (at, c)));
        pairs.min_by(|&(at, c), &(bt, d)| self.cost(at, c).total_cmp(&self.cost(bt, d)))
    }

    /// The combination with the least mean cost.
    pub(super) fn best_average(&self, log: Option<usize>) -> Option<usize> {
        let samples = self.useful(log);
        if samples.is_empty() {
            return None;
        }
        let costs: Vec<f64> = (0..self.combinations.len())
            .map(|c| self.mean_cost(&samples, c))
            .collect();
        (0..costs.len()).min_by(|&c, &d| costs[c].total_cmp(&costs[d]))
    }

    /// Returns the effect of changing one parameter of the best average combination, over the
    /// samples of `log` or all.
    pub(super) fn effects(&self, log: Option<usize>) -> Vec<Effect> {
        let Some(best) = self.best_average(log) else {
            return Vec::new();
        };
        let samples = self.useful(log);
        let reference = self.mean_cost(&samples, best);
        let mut effects = Vec::new();
        for (at, combination) in self.combinations.iter().enumerate() {
            // A threshold of 0 pushes everything ever seen; it would dwarf all other effects.
            if let [parameter] = combination.differences(&self.combinations[best])[..]
                && combination.threshold > 0.0
            {
                let value = parameters(combination)[parameter].clone();
                effects.push(Effect {
                    parameter,
                    value,
                    increase: self.mean_cost(&samples, at) - reference,
                });
            }
        }
        effects.sort_by_key(|effect| effect.parameter);
        effects
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let logs: Vec<usize> = (0..self.logs.len()).collect();
        writeln!(
            out,
            "{} combinations, {} samples, omega {:.3}",
            self.combinations.len(),
            self.samples.len(),
            self.omega
        )?;
        writeln!(out, "\nBest single result")?;
        let best = logs.iter().filter_map(|&log| self.best_single(Some(log)));
        let rows = best.map(|(sample, c)| self.row(&self.samples[sample].name, &[sample], c));
        print_table(out, &HEAD, rows)?;
        writeln!(out, "\nBest average result")?;
        let best = logs
            .iter()
            .filter_map(|&log| Some((log, self.best_average(Some(log))?)));
        let mut rows: Vec<_> = best
            .map(|(log, c)| self.row(&self.logs[log].name, &self.useful(Some(log)), c))
            .collect();
        rows.extend(
            self.best_average(None)
                .map(|c| self.row("all together", &self.useful(None), c)),
        );
        print_table(out, &HEAD, rows.into_iter())?;
        writeln!(
            out,
            "\nIncrease of the average cost when one parameter changes (all together)"
        )?;
        let rows = self.effects(None).into_iter().map(|effect| {
            vec![
                format!("P{} = {}", effect.parameter + 1, effect.value),
                format!("{:+.4}", effect.increase),
            ]
        });
        print_table(out, &["", "increase"], rows)
    }

    fn row(&self, name: &str, samples: &[usize], combination: usize) -> Vec<String> {
        let mean = |value: &dyn Fn(&Tally) -> f64| {
            let sum: f64 = samples
                .iter()
                .map(|&sample| value(&self.tallies[sample][combination]))
                .sum();
            format!("{:.4}", sum / samples.len().max(1) as f64)
        };
        let mut row = vec![name.to_owned()];
        row.extend(parameters(&self.combinations[combination]));
        row.extend([
            mean(&|tally| tally.per_asset(tally.pushes)),
            mean(&|tally| tally.per_asset(tally.hits)),
            mean(&|tally| tally.per_asset(tally.mistakes)),
            mean(&|tally| tally.push_cost(self.omega)),
        ]);
        row
    }

    fn json(&self) -> Value {
        let single = |(sample, c): (usize, usize)| {
            let mut object = counts(&self.tallies[sample][c], self.omega);
            object.insert("sample".into(), json!(self.samples[sample].name));
            object.insert("parameters".into(), combination_json(&self.combinations[c]));
            Value::Object(object)
        };
        let average = |log: Option<usize>| {
            self.best_average(log).map(|c| {
                json!({
                    "log": log.map(|log| self.logs[log].name.clone()),
                    "push_cost": self.mean_cost(&self.useful(log), c),
                    "parameters": combination_json(&self.combinations[c]),
                    "effects": self.effects(log).into_iter().map(|effect| json!({
                        "parameter": format!("P{}", effect.parameter + 1),
                        "value": effect.value,
                        "increase": effect.increase,
                    })).collect::<Vec<_>>(),
                })
            })
        };
        let logs = 0..self.logs.len();
        json!({
            "omega": self.omega,
            "combinations": self.combinations.len(),
            "best_single": logs.clone().filter_map(|log| self.best_single(Some(log))).map(single).collect::<Vec<_>>(),
            "best_average": logs.filter_map(|log| average(Some(log))).collect::<Vec<_>>(),
            "best_average_of_all": average(None),
        })
    }

    fn table_json(&self) -> Value {
        let rows = (0..self.samples.len())
            .flat_map(|at| (0..self.combinations.len()).map(move |c| (at, c)));
        rows.map(|(at, c)| {
            let mut object = counts(&self.tallies[at][c], self.omega);
            object.insert("sample".into(), json!(self.samples[at].name));
            object.insert("parameters".into(), combination_json(&self.combinations[c]));
            Value::Object(object)
        })
        .collect()
    }

    fn table_csv(&self) -> String {
        let mut csv = String::from(
            "sample,algorithm,max_size,clients,keep_history,session_timeout,threshold,sessions,pages,assets,pushes,hits,\
             mistakes,delayed_hits,hits_on_pages,hits_not_modified,avg_mistake_bytes,push_cost\n",
        );
        for (sample, tallies) in self.samples.iter().zip(&self.tallies) {
            for (combination, tally) in self.combinations.iter().zip(tallies) {
                let name = sample.name.replace('"', "\"\"");
                csv.push_str(&format!(
                    "\"{name}\",{},",
                    parameters(combination).join(",")
                ));
                csv.push_str(&format!(
                    "{},{},{},",
                    tally.sessions, tally.pages, tally.assets
                ));
                csv.push_str(&format!(
                    "{},{},{},",
                    tally.pushes, tally.hits, tally.mistakes
                ));
                csv.push_str(&format!(
                    "{},{},{},",
                    tally.delayed_hits, tally.hits_on_pages, tally.hits_not_modified
                ));
                csv.push_str(&format!(
                    "{},{}\n",
                    tally.mean_mistake_bytes(),
                    tally.push_cost(self.omega)
                ));
            }
        }
        csv
    }
}

const HEAD: [&str; 11] = [
    "", "P1", "P2", "P3", "P4", "P5", "P6", "pushes", "hits", "mistakes", "PushCost",
];

/// P1 to P6 as text.
pub(super) fn parameters(combination: &Combination) -> [String; 6] {
    [
        combination.algorithm.to_string(),
        combination
            .max_size
            .map_or_else(|| "-1".into(), |size| size.to_string()),
        combination.clients.letter().to_string(),
        if combination.keep_history {
            "T".into()
        } else {
            "F".into()
        },
        (combination.session_timeout / 1000).to_string(),
        combination.threshold.to_string(),
    ]
}

fn combination_json(combination: &Combination) -> Value {
    json!({
        "algorithm": combination.algorithm.name(),
        "max_asset_size": combination.max_size.map_or(-1.0, |size| size as f64),
        "clients": combination.clients.letter().to_string(),
        "keep_history": combination.keep_history,
        "session_timeout": combination.session_timeout / 1000,
        "threshold": combination.threshold,
    })
}

/// Writes the tables and the plots.
fn write_files(results: &TuneResults, directory: &Path) -> Result<(), PredictError> {
    let write = |name: &str, content: String| {
        let path = directory.join(name);
        fs::write(&path, content).map_err(|source| PredictError::Write { path, source })
    };
    fs::create_dir_all(directory).map_err(|source| PredictError::Write {
        path: directory.to_owned(),
        source,
    })?;
    write("table.csv", results.table_csv())?;
    write("table.json", format!("{:#}\n", results.table_json()))?;
    for (name, svg) in plot::all(results) {
        write(&name, svg)?;
    }
    Ok(())
}
