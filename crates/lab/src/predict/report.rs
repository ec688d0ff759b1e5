//! The results of a replay as tables and as JSON.

use std::io::{self, Write};

use serde_json::{Map, Value, json};
use tandem_replay::Tally;

/// Seven characters of room for a share of the assets.
fn share(value: f64) -> String {
    format!("{value:.4}")
}

/// The results of a replayed sample.
pub(super) struct ReplayRow {
    pub(super) name: String,
    pub(super) predictor: &'static str,
    pub(super) lines: u64,
    pub(super) unparsable: u64,
    pub(super) noise: u64,
    pub(super) tally: Tally,
}

/// The counts under the names that other implementations of the replay use, and the cost.
pub(super) fn counts(tally: &Tally, omega: f64) -> Map<String, Value> {
    let Value::Object(counts) = json!({
        "considered": tally.considered,
        "ignored": tally.ignored,
        "mobile": tally.mobile,
        "sessions": tally.sessions,
        "pages": tally.pages,
        "assets": tally.assets,
        "pushes": tally.pushes,
        "hits": tally.hits,
        "mistakes": tally.mistakes,
        "delayed_hits": tally.delayed_hits,
        "hits_on_pages": tally.hits_on_pages,
        "hits_not_modified": tally.hits_not_modified,
        "hits_without_transfer": tally.hits_without_transfer,
        "unique_pages": tally.unique_pages,
        "unique_assets": tally.unique_assets,
        "omega": omega,
        "push_cost": tally.push_cost(omega),
        "push_cost_omega_0.5": tally.push_cost(0.5),
        "strict_push_cost": tally.strict_push_cost(omega),
        "avg_mistake_bytes": tally.mean_mistake_bytes(),
        "avg_session_seconds": tally.mean_session_seconds(),
    }) else {
        return Map::new();
    };
    counts
}

/// Prints one object for one sample, a list for several.
pub(super) fn print_json(out: &mut impl Write, rows: &[ReplayRow], omega: f64) -> io::Result<()> {
    let mut objects: Vec<Value> = rows
        .iter()
        .map(|row| {
            let mut object = Map::new();
            object.insert("log".into(), json!(row.name));
            object.insert("algorithm".into(), json!(row.predictor));
            object.insert("lines".into(), json!(row.lines));
            object.insert("unparsable".into(), json!(row.unparsable));
            object.insert("noise".into(), json!(row.noise));
            object.extend(counts(&row.tally, omega));
            Value::Object(object)
        })
        .collect();
    let value = if objects.len() == 1 {
        objects.remove(0)
    } else {
        Value::Array(objects)
    };
    writeln!(out, "{value:#}")
}

/// Prints the tables: results, characteristics, and the value of the pushes.
pub(super) fn print_tables(out: &mut impl Write, rows: &[ReplayRow], omega: f64) -> io::Result<()> {
    print_results(out, rows, omega)?;
    print_traffic(out, rows)?;
    print_worth(out, rows)
}

fn print_results(out: &mut impl Write, rows: &[ReplayRow], omega: f64) -> io::Result<()> {
    let cost = format!("PushCost({omega:.3})");
    let head = [
        "",
        "pushes",
        "hits",
        "mistakes",
        &cost,
        "strict",
        "requests",
        "responses",
    ];
    let shares = |tally: &Tally| {
        let (pushes, mistakes) = (
            tally.per_asset(tally.pushes),
            tally.per_asset(tally.mistakes),
        );
        [
            pushes,
            tally.per_asset(tally.hits),
            mistakes,
            tally.push_cost(omega),
            tally.strict_push_cost(omega),
            1.0 + mistakes - pushes,
            1.0 + mistakes,
        ]
    };
    let mut lines: Vec<_> = rows
        .iter()
        .map(|row| (row.name.as_str(), shares(&row.tally)))
        .collect();
    if lines.len() > 1 {
        let count = lines.len() as f64;
        let mean = |column| lines.iter().map(|(_, shares)| shares[column]).sum::<f64>() / count;
        lines.push(("mean", std::array::from_fn(mean)));
    }
    let body = lines.into_iter().map(|(name, shares)| {
        std::iter::once(name.to_owned())
            .chain(shares.map(share))
            .collect()
    });
    let predictor = rows.first().map_or("", |row| row.predictor);
    writeln!(
        out,
        "Result of {predictor}, for each asset; strict: a hit without a saved transfer is a mistake"
    )?;
    print_table(out, &head, body)
}

fn print_traffic(out: &mut impl Write, rows: &[ReplayRow]) -> io::Result<()> {
    writeln!(out, "\nTraffic")?;
    let head = [
        "",
        "lines",
        "unparsable",
        "considered",
        "sessions",
        "length (s)",
        "pages/session",
        "assets/page",
        "unique pages",
        "unique assets",
    ];
    let body = rows.iter().map(|row| {
        let tally = &row.tally;
        vec![
            row.name.clone(),
            row.lines.to_string(),
            row.unparsable.to_string(),
            tally.considered.to_string(),
            tally.sessions.to_string(),
            format!("{:.2}", tally.mean_session_seconds()),
            format!("{:.2}", tally.pages_per_session()),
            format!("{:.2}", tally.assets_per_page()),
            percent(tally.unique_pages, tally.pages),
            percent(tally.unique_assets, tally.assets),
        ]
    });
    print_table(out, &head, body)
}

fn print_worth(out: &mut impl Write, rows: &[ReplayRow]) -> io::Result<()> {
    writeln!(
        out,
        "\nWorth (a hit on a page or answered 304 saved no transfer)"
    )?;
    let head = [
        "",
        "hits",
        "delayed",
        "on pages",
        "answered 304",
        "hit bytes",
        "mistakes",
        "mean size",
        "mistake bytes",
    ];
    let body = rows.iter().map(|ReplayRow { name, tally, .. }| {
        vec![
            name.clone(),
            tally.hits.to_string(),
            percent(tally.delayed_hits, tally.hits),
            percent(tally.hits_on_pages, tally.hits),
            percent(tally.hits_not_modified, tally.hits),
            format!("{:.0}", tally.hit_bytes),
            tally.mistakes.to_string(),
            format!("{:.0}", tally.mean_mistake_bytes()),
            format!("{:.0}", tally.mistake_bytes),
        ]
    });
    print_table(out, &head, body)
}

pub(super) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        "-".into()
    } else {
        format!("{:.2} %", 100.0 * part as f64 / whole as f64)
    }
}

/// Prints columns as wide as their widest cell, the first to the left, the others to the right.
pub(super) fn print_table(
    out: &mut impl Write,
    head: &[&str],
    body: impl Iterator<Item = Vec<String>>,
) -> io::Result<()> {
    let mut rows: Vec<Vec<String>> = vec![head.iter().map(|&cell| cell.to_owned()).collect()];
    rows.extend(body);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
    };
    let widths: Vec<usize> = (0..head.len())
        .map(|column| width(column).unwrap_or(0))
        .collect();
    for row in &rows {
        let mut line = String::new();
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            match column {
                0 => line.push_str(&format!("{cell:width$}")),
                _ => line.push_str(&format!("  {cell:>width$}")),
            }
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
