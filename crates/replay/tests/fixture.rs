//! The published counts, orders and event traces for three pieces of real logs, met exactly.

use serde_json::{Value, json};
use tandem_replay::learn::Class;
use tandem_replay::log::{AccessLog, Filter};
use tandem_replay::run::Event;
use tandem_replay::{Algorithm, Options, Tally, replay_basic};

const FILES: [&str; 3] = ["combined.log", "combined2.log", "common.log"];

fn fixture(name: &str) -> Vec<u8> {
    let path = format!(
        "{}/../../vectors/predict/{name}",
        env!("CARGO_MANIFEST_DIR")
    );
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn expected() -> Value {
    serde_json::from_slice(&fixture("expected.json")).expect("the fixture is JSON")
}

fn log(name: &str) -> AccessLog {
    let mut log = AccessLog::default();
    let bytes = fixture(name);
    for line in bytes
        .strip_suffix(b"\n")
        .unwrap_or(&bytes)
        .split(|&byte| byte == b'\n')
    {
        log.push_line(line, Filter::default());
    }
    log.finish();
    log
}

fn options(config: &Value) -> (Options, i64) {
    let number = |key: &str, default: i64| config[key].as_i64().unwrap_or(default);
    let flag = |key: &str| config[key].as_bool().unwrap_or(false);
    let options = Options {
        algorithm: config["alg"]
            .as_str()
            .and_then(|name| name.parse().ok())
            .expect("a known algorithm"),
        threshold: config["threshold"].as_f64().expect("a threshold"),
        max_size: u64::try_from(number("max_size", -1)).ok(),
        max_assets: usize::try_from(number("max_assets", -1)).ok(),
        min_history: number("min_history", 1) as u32,
        page_load_timeout: number("page_load_timeout", 1) * 1000,
        max_page_load_timeout: number("max_page_load_timeout", 20) * 1000,
        keep_history: flag("keep_history"),
        ignore_mobile: flag("ignore_mobile"),
        consider_browser: flag("consider_browser"),
        assume_hits: false,
    };
    (options, number("session_timeout", 3600) * 1000)
}

fn assert_counts(tally: &Tally, expect: &Value, context: &str) {
    let counts = json!({
        "considered": tally.considered, "ignored": tally.ignored, "sessions": tally.sessions, "pages": tally.pages,
        "assets": tally.assets, "pushes": tally.pushes, "hits": tally.hits, "mistakes": tally.mistakes,
        "delayed_hits": tally.delayed_hits, "hits_on_pages": tally.hits_on_pages,
        "unique_pages": tally.unique_pages, "unique_assets": tally.unique_assets,
    });
    let mut whole = expect.as_object().expect("an object").clone();
    let mut near = |key: &str, got: f64, tolerance: f64| {
        let want = whole
            .remove(key)
            .and_then(|value| value.as_f64())
            .expect("a number");
        assert!(
            (got - want).abs() <= tolerance * want.abs().max(1.0),
            "{context} {key}: {got}, not {want}"
        );
    };
    near("push_cost_omega_0.5", tally.push_cost(0.5), 1e-9);
    near("avg_mistake_bytes", tally.mean_mistake_bytes(), 1e-6);
    near("avg_session_seconds", tally.mean_session_seconds(), 1e-6);
    assert_eq!(counts, Value::Object(whole), "{context}");
}

#[test]
fn counts_of_every_configuration() {
    let expected = expected();
    for name in FILES {
        let log = log(name);
        let results = expected[name]["results"].as_array().expect("results");
        assert!(results.len() >= 60, "{name} has all its results");
        for result in results {
            let (options, timeout) = options(&result["config"]);
            let tally = replay_basic(&log, &options, timeout, |_| {});
            assert_counts(
                &tally,
                &result["expect"],
                &format!("{name} {}", result["config"]),
            );
        }
    }
}

#[test]
fn order_and_selection_of_lines() {
    let expected = expected();
    for name in FILES {
        let log = log(name);
        let lines: Vec<u32> = log.records.iter().map(|record| record.line).collect();
        assert_eq!(json!(lines), expected[name]["order"], "{name}");
        assert_eq!(
            json!([log.lines, log.unparsable]),
            json!([expected[name]["lines"], expected[name]["unparsable"]])
        );
        let considered = |record: &&tandem_replay::log::Record| {
            log.agents[record.agent as usize].known && !log.favicons[record.url as usize]
        };
        let mut dropped: Vec<u32> = log
            .records
            .iter()
            .filter(|r| !considered(r))
            .map(|r| r.line)
            .collect();
        dropped.sort_unstable();
        assert_eq!(json!(dropped), expected[name]["not_considered"], "{name}");
        let mobile = log
            .records
            .iter()
            .filter(considered)
            .filter(|r| log.agents[r.agent as usize].mobile);
        let mut mobile: Vec<u32> = mobile.map(|record| record.line).collect();
        mobile.sort_unstable();
        assert_eq!(json!(mobile), expected[name]["mobile"], "{name}");
    }
}

#[test]
fn trace_of_events() {
    let expected = expected();
    let options = Options {
        algorithm: Algorithm::Basic,
        threshold: 0.3,
        ..Options::default()
    };
    for name in FILES {
        let log = log(name);
        let url = |id| String::from_utf8_lossy(log.urls.name(id)).into_owned();
        let mut events = Vec::new();
        replay_basic(&log, &options, 3_600_000, |event| {
            events.push(match event {
                Event::Push {
                    session,
                    line,
                    asset,
                } => json!(["push", session, line, url(asset)]),
                Event::Mistake {
                    session,
                    line,
                    asset,
                } => json!(["mistake", session, line, url(asset)]),
                Event::Request {
                    session,
                    line,
                    url: id,
                    class,
                    hit,
                } => {
                    let class = if class == Class::Page {
                        "page"
                    } else {
                        "asset"
                    };
                    let mut event = vec![json!(class), json!(session), json!(line), json!(url(id))];
                    event.extend(hit.then(|| json!("hit")));
                    Value::Array(event)
                }
            });
        });
        let want = expected[name]["events_basic_0.3_3600"]
            .as_array()
            .expect("events");
        for (at, (got, want)) in events.iter().zip(want).enumerate() {
            assert_eq!(got, want, "{name} event {at}");
        }
        assert_eq!(events.len(), want.len(), "{name}");
    }
}

#[test]
fn grid_counts_what_single_runs_count() {
    use tandem_replay::grid::Grid;
    for name in FILES {
        let log = log(name);
        for grid in [Grid::standard(), Grid::full()] {
            let mut combinations = 0;
            for (at, (combination, tally)) in grid
                .groups()
                .into_iter()
                .flat_map(|group| grid.run(&log, &log.records, group))
                .enumerate()
            {
                combinations += 1;
                if at % 7 != 0 {
                    continue;
                }
                let single = replay_basic(
                    &log,
                    &combination.options(),
                    combination.session_timeout,
                    |_| {},
                );
                let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(1.0);
                assert!(
                    near(single.mistake_bytes, tally.mistake_bytes),
                    "{name} {combination:?}"
                );
                let bytes = (single.mistake_bytes, single.hit_bytes);
                assert!(near(bytes.1, tally.hit_bytes), "{name} {combination:?}");
                let tally = Tally {
                    mistake_bytes: bytes.0,
                    hit_bytes: bytes.1,
                    ..tally
                };
                assert_eq!(tally, single, "{name} {combination:?}");
            }
            assert_eq!(combinations, grid.len());
        }
        assert_eq!((Grid::standard().len(), Grid::full().len()), (180, 1188));
    }
}
