//! Results of another measurement, the corpus over the private Tor network, as tables.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

use super::table::Table;
use super::text::{escaped, number};

/// Makes a table of each list of objects in the JSON of another measurement.
pub(super) fn tor(value: &Value) -> String {
    let mut out = String::from("<h2>Over the private Tor network</h2>\n");
    lists(value, "", &mut out);
    out
}

fn lists(value: &Value, name: &str, out: &mut String) {
    match value {
        Value::Object(members) => members
            .iter()
            .for_each(|(name, value)| lists(value, name, out)),
        Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_object) => {
            let rows: Vec<Vec<(String, String)>> =
                items.iter().map(|item| flat(item, "")).collect();
            let columns: BTreeSet<&String> = rows.iter().flatten().map(|(name, _)| name).collect();
            let columns: Vec<&String> = columns.into_iter().collect();
            let heads: Vec<String> = columns.iter().map(|name| escaped(name)).collect();
            let mut table = Table::new(&heads);
            for row in &rows {
                let cell = |name: &&String| row.iter().find(|(own, _)| own == *name);
                table.row(
                    columns
                        .iter()
                        .map(|n| cell(n).map_or_else(|| "–".into(), |(_, v)| escaped(v)))
                        .collect(),
                );
            }
            let _ = write!(out, "<h3>{}</h3>\n{}", escaped(name), table.html());
        }
        _ => {}
    }
}

fn flat(value: &Value, name: &str) -> Vec<(String, String)> {
    let join = |inner: &str| {
        if name.is_empty() {
            inner.to_owned()
        } else {
            format!("{name} {inner}")
        }
    };
    match value {
        Value::Object(members) => members
            .iter()
            .flat_map(|(inner, value)| flat(value, &join(inner)))
            .collect(),
        Value::Array(_) | Value::Null => Vec::new(),
        Value::String(text) => vec![(name.to_owned(), text.clone())],
        Value::Number(count) => vec![(
            name.to_owned(),
            count.as_f64().map_or_else(|| count.to_string(), number),
        )],
        Value::Bool(flag) => vec![(name.to_owned(), flag.to_string())],
    }
}
