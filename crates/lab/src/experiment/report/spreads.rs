//! The difference between the passes of one set-up at one point.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::table::Table;
use super::text::{escaped, percent};
use super::{ExperimentReport, common, name_of, spread_in_total, unique};
use crate::experiment::point::Point;

impl ExperimentReport<'_> {
    /// Shows the difference between passes, by point and in total.
    pub(super) fn spreads(&self) -> String {
        let spreads = self.cells.spreads();
        let setups: Vec<usize> = unique(
            spreads
                .iter()
                .map(|spread| spread.setup)
                .collect::<BTreeSet<_>>()
                .into_iter(),
        );
        let points: Vec<Point> = unique(spreads.iter().map(|spread| spread.point.clone()));
        let labels = setups
            .iter()
            .map(|&setup| escaped(self.experiment.setups[setup].label()));
        let mut table = Table::new(
            &std::iter::once("point".to_owned())
                .chain(labels)
                .collect::<Vec<_>>(),
        );
        let own = common(&points);
        for point in &points {
            let mut row = vec![name_of(point, &own)];
            row.extend(setups.iter().map(|setup| {
                let here = spreads
                    .iter()
                    .find(|spread| spread.setup == *setup && spread.point == *point);
                here.map_or_else(|| "–".into(), |spread| percent(spread.share * 100.0))
            }));
            table.row(row);
        }
        let Some(total) = spread_in_total(&spreads) else {
            return String::new();
        };
        let mut out = String::from("<h2>How far passes differ</h2>\n");
        let seeds = if self.experiment.same_seed {
            "All passes of a page have one seed: they lose the same packets, if they send the same."
        } else {
            "Each pass and page has a different seed, so that different packets are lost."
        };
        let _ = writeln!(
            out,
            "<p>The difference between the longest and the shortest page load. Passes on a machine too busy for the emulated link are left out. \
             {seeds} In total: {}.</p>",
            escaped(&total)
        );
        out + &table.html()
    }
}
