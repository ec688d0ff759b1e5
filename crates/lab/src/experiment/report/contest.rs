//! The pair against its peers: wins, losses and their reasons.

use std::fmt::Write as _;

use tandem_net::stats::Summary;

use super::table::Table;
use super::text::{escaped, signed};
use super::{ExperimentReport, common, name_of};
use crate::experiment::file::Sweep;
use crate::experiment::summary::{Contest, Verdict};

impl ExperimentReport<'_> {
    /// Counts the points at which the pair wins against the baseline, and lists the others.
    pub(super) fn contest(&self) -> String {
        let (table, others) = self.counts();
        let baseline = escaped(self.experiment.setups[self.experiment.baseline].label());
        let mut out = format!("<h2>Our pair against {baseline}</h2>\n");
        if table.is_empty() {
            return out + "<p>No point has measurements of both yet.</p>\n";
        }
        out += "<p>The best of our set-ups at each point; the gain is the saved share of the \
                other's time. It wins where it was faster in every pass, by at least 1 %.</p>\n";
        out += &table.html();
        out += &self.peers();
        if others.is_empty() {
            let _ = writeln!(
                out,
                "<p>Against {baseline} the pair wins at every point that was measured.</p>"
            );
            return out;
        }
        let _ = writeln!(
            out,
            "<h3>Where the pair does not win against {baseline}</h3>"
        );
        out + &self.not_won(others).html()
    }

    /// Returns the table of all sweeps, and the points at which the pair does not win.
    fn counts(&self) -> (Table, Vec<(&Sweep, Contest)>) {
        let mut table = Table::new(&[
            "sweep",
            "points",
            "wins",
            "even",
            "loses",
            "median gain",
            "least gain",
            "greatest gain",
        ]);
        let mut others: Vec<(&Sweep, Contest)> = Vec::new();
        for sweep in &self.experiment.sweeps {
            let points = self.cells.points(self.experiment, sweep);
            let contests: Vec<Contest> = points
                .iter()
                .filter_map(|point| self.cells.contest(self.experiment, sweep, point))
                .collect();
            let gains: Vec<f64> = contests.iter().map(|contest| contest.gain.median).collect();
            let Some(gain) = Summary::of(&gains) else {
                continue;
            };
            let count = |verdict| {
                contests
                    .iter()
                    .filter(|contest| contest.verdict == verdict)
                    .count()
            };
            table.row(vec![
                escaped(&sweep.title),
                contests.len().to_string(),
                count(Verdict::Wins).to_string(),
                count(Verdict::Even).to_string(),
                count(Verdict::Loses).to_string(),
                signed(gain.median * 100.0),
                signed(gain.min * 100.0),
                signed(gain.max * 100.0),
            ]);
            others.extend(
                contests
                    .into_iter()
                    .filter(|contest| contest.verdict != Verdict::Wins)
                    .map(|c| (sweep, c)),
            );
        }
        (table, others)
    }

    /// Returns the table of the points at which the pair does not win, with the reasons.
    fn not_won(&self, mut others: Vec<(&Sweep, Contest)>) -> Table {
        others.sort_by(|a, b| (a.1.gain.median).total_cmp(&b.1.gain.median));
        let mut table = Table::new(&[
            "point",
            "best of ours",
            "gain",
            "least to greatest",
            "",
            "why",
        ])
        .text_columns(&[1, 4, 5]);
        for (sweep, contest) in &others {
            let why = self.experiment.reason(&sweep.name, &contest.point);
            let (class, word) = word(contest.verdict);
            table.row(vec![
                format!(
                    "{}: {}",
                    escaped(&sweep.title),
                    name_of(
                        &contest.point,
                        &common(&self.cells.points(self.experiment, sweep))
                    )
                ),
                escaped(self.experiment.setups[contest.best].label()),
                signed(contest.gain.median * 100.0),
                format!(
                    "{} to {}",
                    signed(contest.gain.min * 100.0),
                    signed(contest.gain.max * 100.0)
                ),
                format!("<span class=\"{class}\">{word}</span>"),
                escaped(why.unwrap_or("not explained yet")),
            ]);
        }
        table
    }

    /// The best of our set-ups against each of the other set-ups, and the points at which one of
    /// them is faster. The other tables know only one baseline.
    fn peers(&self) -> String {
        let heads = [
            "against",
            "points",
            "pair faster",
            "peer faster",
            "median gain",
            "least gain",
        ];
        let mut table = Table::new(&heads);
        let mut faster = Vec::new();
        let setups = self.experiment.setups.iter().enumerate();
        for (peer, setup) in setups.filter(|(_, setup)| !setup.is_ours()) {
            let gains = self.gains_over(peer, &mut faster);
            let Some(all) = Summary::of(&gains) else {
                continue;
            };
            let behind = gains.iter().filter(|gain| **gain < 0.0).count();
            table.row(vec![
                escaped(setup.label()),
                all.count.to_string(),
                gains.iter().filter(|gain| **gain > 0.0).count().to_string(),
                behind.to_string(),
                signed(all.median * 100.0),
                signed(all.min * 100.0),
            ]);
        }
        if table.is_empty() {
            return String::new();
        }
        let mut out = format!(
            "<h3>Against every peer</h3>\n<p><small>At each point the best of our set-ups, by the \
             median of the passes.</small></p>\n{}",
            table.html()
        );
        if faster.is_empty() {
            out += "<p>No peer was faster at any point.</p>\n";
        } else {
            let mut table = Table::new(&["peer", "point", "best of ours", "gain of the pair"])
                .text_columns(&[1, 2]);
            faster.into_iter().for_each(|row| table.row(row));
            let _ = write!(out, "<h3>Where a peer wins</h3>\n{}", table.html());
        }
        out
    }

    /// Returns the median gains over one peer at each point, and adds the points at which the peer
    /// is faster to `faster`.
    fn gains_over(&self, peer: usize, faster: &mut Vec<Vec<String>>) -> Vec<f64> {
        let mut gains = Vec::new();
        for sweep in &self.experiment.sweeps {
            let points = self.cells.points(self.experiment, sweep);
            let common = common(&points);
            for point in &points {
                let contest = self.cells.contest_with(self.experiment, sweep, point, peer);
                let Some(contest) = contest else {
                    continue;
                };
                gains.push(contest.gain.median);
                if contest.gain.median < 0.0 {
                    faster.push(vec![
                        escaped(self.experiment.setups[peer].label()),
                        format!("{}: {}", escaped(&sweep.title), name_of(point, &common)),
                        escaped(self.experiment.setups[contest.best].label()),
                        signed(contest.gain.median * 100.0),
                    ]);
                }
            }
        }
        gains
    }
}

const fn word(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Wins => ("wins", "wins"),
        Verdict::Even => ("even", "even"),
        Verdict::Loses => ("loses", "loses"),
    }
}
