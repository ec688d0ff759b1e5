//! The verdict on push, over all pages: its comparison with the same pair without it and with plain
//! HTTP/1.1, the pages on which it was slower, and its waste. The early requests of a client
//! without a gateway are compared with plain HTTP/1.1 alone.

use std::fmt::Write as _;

use serde::Serialize;

use super::report::MeasureRow;
use super::{LoadedPage, Pushes};
use tandem_net::stats::median;

/// The results of a setup with push or early requests, over all pages that have it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeasureVerdict {
    /// The setup.
    pub setup: String,
    /// Pages that were loaded with it.
    pub pages: usize,
    /// Median over pages of the time as a share of the same pair's without push.
    pub ratio_without_push: Option<f64>,
    /// The same, of plain HTTP/1.1's.
    pub ratio_plain: Option<f64>,
    /// Bytes of unrequested bodies, as a share of all received bytes, over all loads.
    pub waste: f64,
    /// Pages that no load with push brought as fast as the slowest without.
    pub slower: Vec<String>,
    /// Pages of which more than a tenth of the bytes were for nothing.
    pub wasteful: Vec<String>,
}

/// Share of wasted bytes that a page is named for.
const MOST_WASTE: f64 = 0.1;

/// A verdict for each setup with push or early requests.
pub(super) fn verdicts(rows: &[MeasureRow]) -> Vec<MeasureVerdict> {
    let mut setups: Vec<&str> = Vec::new();
    let is_early = |row: &&MeasureRow| row.without_push.is_some() || row.used.is_some();
    for row in rows.iter().filter(is_early) {
        if !setups.contains(&row.setup.as_str()) {
            setups.push(&row.setup);
        }
    }
    setups
        .into_iter()
        .map(|setup| verdict(setup, rows))
        .collect()
}

fn verdict(setup: &str, rows: &[MeasureRow]) -> MeasureVerdict {
    let own: Vec<&MeasureRow> = rows.iter().filter(|row| row.setup == setup).collect();
    let middle = |value: fn(&MeasureRow) -> Option<f64>| {
        median(&own.iter().filter_map(|row| value(row)).collect::<Vec<_>>())
    };
    let named = |which: &dyn Fn(&MeasureRow) -> bool| {
        own.iter()
            .filter(|row| which(row))
            .map(|row| format!("{} ({})", row.page, row.way))
            .collect::<Vec<_>>()
    };
    let slower = |row: &MeasureRow| {
        let base = rows.iter().find(|other| {
            other.page == row.page
                && other.way == row.way
                && Some(&other.setup) == row.without_push.as_ref()
        });
        row.time_s
            .zip(base.and_then(|base| base.time_s))
            .is_some_and(|(own, base)| own.min > base.max)
    };
    MeasureVerdict {
        setup: setup.to_owned(),
        pages: own.len(),
        ratio_without_push: middle(|row| row.ratio_without_push),
        ratio_plain: middle(|row| row.ratio_time),
        waste: waste(own.iter().flat_map(|row| &row.loads)),
        slower: named(&slower),
        wasteful: named(&|row| row.waste.is_some_and(|waste| waste > MOST_WASTE)),
    }
}

/// The share of wasted bytes over several loads.
fn waste<'a>(loads: impl Iterator<Item = &'a LoadedPage>) -> f64 {
    let pushes = loads.filter_map(|load| load.pushes);
    let (wasted, all) = pushes.fold((0, 0), |(wasted, all), pushes: Pushes| {
        (
            wasted + pushes.wasted(),
            all + pushes.wasted() + pushes.body_bytes,
        )
    });
    if all == 0 {
        0.0
    } else {
        wasted as f64 / all as f64
    }
}

impl MeasureVerdict {
    /// A few lines for people.
    pub(super) fn text(&self) -> String {
        let share = |value: Option<f64>| {
            value.map_or_else(|| "-".into(), |value| format!("{:.1} %", value * 100.0))
        };
        let mut out = format!(
            "{}, medians over {} pages: {} of the time without push, {} of HTTP/1.1 x6; {:.1} % of bytes wasted\n",
            self.setup,
            self.pages,
            share(self.ratio_without_push),
            share(self.ratio_plain),
            self.waste * 100.0
        );
        for (what, pages) in [
            ("slower than without push", &self.slower),
            ("over a tenth wasted", &self.wasteful),
        ] {
            if !pages.is_empty() {
                let _ = writeln!(out, "{}, {what}: {}", self.setup, pages.join(", "));
            }
        }
        out
    }
}
