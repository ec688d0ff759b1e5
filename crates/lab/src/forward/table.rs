//! The figures of a study as a table in Markdown.

use std::fmt::Write as _;

use super::file::{ForwardCell, ForwardSetup, ForwardStudy};
use super::trial::{self, ForwardFigures};
use crate::experiment::ExperimentError;

/// Runs a study, with a call of `tell` after each set-up of a cell. Returns its table.
///
/// # Errors
/// Fails if a property of a link is not valid.
pub fn run(study: &ForwardStudy, tell: &mut dyn FnMut(&str)) -> Result<String, ExperimentError> {
    let mut table = String::from(
        "| chain | set-up | Mbit/s | stamp, median | 99 % | bytes on links | held by relays |\n\
         |---|---|---:|---:|---:|---:|---:|\n",
    );
    for cell in &study.cells {
        for setup in &study.setups {
            let passes = (0..study.passes).map(|pass| {
                let seed = study.seed.wrapping_add(pass);
                trial::run(study, setup, cell, seed)
            });
            let passes = passes.collect::<Result<Vec<_>, _>>()?;
            let row = row(cell, setup, &passes);
            tell(&row);
            table.push_str(&row);
            table.push('\n');
        }
    }
    Ok(table)
}

/// Returns the row of a set-up in a cell, with the means of all passes.
fn row(cell: &ForwardCell, setup: &ForwardSetup, passes: &[ForwardFigures]) -> String {
    let mean = |pick: &dyn Fn(&ForwardFigures) -> f64| {
        let sum: f64 = passes.iter().map(pick).sum();
        sum / passes.len() as f64
    };
    let mut row = format!("| {} | {} |", cell.label(), setup.label());
    // Writing to a string cannot fail.
    let _ = write!(
        row,
        " {:.2} | {:.0} ms | {:.0} ms | {:.3} | {:.0} kB |",
        mean(&|it| it.mbit),
        mean(&|it| it.delay(0.5)),
        mean(&|it| it.delay(0.99)),
        mean(&|it| it.carried),
        mean(&|it| it.held as f64 / 1e3),
    );
    row
}
