//! Plots (SVG): requests, responses and mistakes over the push rate, and the effect of each
//! parameter alone.

use std::fmt::Write;

use tandem_replay::Tally;
use tandem_replay::grid::{Combination, Grid, Group};

use super::tune::{Effect, TuneResults};
use crate::experiment::report::text::escaped;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 52.0;
const COLOURS: [&str; 4] = ["#1b6ca8", "#c0392b", "#2e8b57", "#7d5ba6"];

/// Every plot with the name of its file.
pub(super) fn all(results: &TuneResults) -> Vec<(String, String)> {
    let mut plots = Vec::new();
    for (log, loaded) in results.logs.iter().enumerate() {
        let stem = file_stem(&loaded.name);
        if let Some((sample, best)) = results.best_single(Some(log)) {
            let points = by_threshold(results, &[sample], &results.combinations[best]);
            let title = format!("Best single result: {}", results.samples[sample].name);
            plots.push((
                format!("{stem}-single.svg"),
                push_rate(&title, &points, results.omega),
            ));
        }
        if let Some(best) = results.best_average(Some(log)) {
            let samples: Vec<usize> = (0..results.samples.len())
                .filter(|&at| results.samples[at].log == log)
                .collect();
            let points = by_threshold(results, &samples, &results.combinations[best]);
            let title = format!("Best average result: {}", loaded.name);
            plots.push((
                format!("{stem}-average.svg"),
                push_rate(&title, &points, results.omega),
            ));
            let title = format!("One parameter changed: {}", loaded.name);
            plots.push((
                format!("{stem}-effects.svg"),
                effects(&title, &results.effects(Some(log))),
            ));
        }
    }
    plots.push((
        "all-effects.svg".into(),
        effects(
            "One parameter changed: all together",
            &results.effects(None),
        ),
    ));
    plots
}

fn file_stem(name: &str) -> String {
    name.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') {
                c
            } else {
                '_'
            }
        })
        .collect()
}

/// A mean over samples at one threshold.
struct PlotPoint {
    threshold: f64,
    pushes: f64,
    requests: f64,
    responses: f64,
    mistakes: f64,
    cost: f64,
}

/// The combination with each threshold from 0 to 1, by push rate.
fn by_threshold(results: &TuneResults, samples: &[usize], best: &Combination) -> Vec<PlotPoint> {
    let group = Group {
        clients: best.clients,
        session_timeout: best.session_timeout,
    };
    let mut runs: Vec<Vec<(Combination, Tally)>> = Vec::new();
    for &at in samples {
        let sample = &results.samples[at];
        let log = &results.logs[sample.log].log;
        let mut run = Grid::full().run(log, sample.records(&results.logs), group);
        run.retain(|(combination, tally)| {
            combination.differences(best).iter().all(|&at| at == 5) && tally.assets > 0
        });
        runs.push(run);
    }
    runs.retain(|run| !run.is_empty());
    let count = runs.first().map_or(0, Vec::len);
    let mean = |at: usize, value: &dyn Fn(&Tally) -> f64| {
        runs.iter().map(|run| value(&run[at].1)).sum::<f64>() / runs.len().max(1) as f64
    };
    let point = |at: usize| PlotPoint {
        threshold: runs[0][at].0.threshold,
        pushes: mean(at, &|tally| tally.per_asset(tally.pushes)),
        requests: mean(at, &|tally| tally.push_cost(1.0)),
        responses: mean(at, &|tally| tally.push_cost(0.0)),
        mistakes: mean(at, &|tally| tally.per_asset(tally.mistakes)),
        cost: mean(at, &|tally| tally.push_cost(results.omega)),
    };
    (0..count).map(point).collect()
}

/// A step of 1, 2 or 5 times a power of ten that divides `span` into at most eight parts.
fn step(span: f64) -> f64 {
    let decade = 10f64.powf((span.max(1e-9) / 8.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * decade)
        .find(|step| span / step <= 8.0)
        .unwrap_or(span)
}

/// A plot under construction, with a linear scale on both axes.
struct Canvas {
    svg: String,
    x: (f64, f64),
    y: (f64, f64),
}

impl Canvas {
    fn new(title: &str, x: (f64, f64), y: (f64, f64)) -> Self {
        let mut canvas = Self {
            svg: String::new(),
            x,
            y,
        };
        canvas.add(format_args!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/><text x="{LEFT}" y="20" font-size="14">{}</text>"##,
            escaped(title)
        ));
        canvas
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.svg, "{element}");
    }

    fn px(&self, x: f64) -> f64 {
        LEFT + (x - self.x.0) / (self.x.1 - self.x.0) * (WIDTH - LEFT - RIGHT)
    }

    fn py(&self, y: f64) -> f64 {
        HEIGHT - BOTTOM - (y - self.y.0) / (self.y.1 - self.y.0) * (HEIGHT - TOP - BOTTOM)
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        self.add(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#,
            escaped(text)
        ));
    }

    fn grid_y(&mut self) {
        let step = step(self.y.1 - self.y.0);
        let mut value = (self.y.0 / step).ceil() * step;
        while value <= self.y.1 + step * 1e-6 {
            let y = self.py(value);
            let right = WIDTH - RIGHT;
            self.add(format_args!(
                r##"<path d="M{LEFT} {y:.1}H{right}" stroke="#ddd"/>"##
            ));
            self.text(LEFT - 6.0, y + 4.0, "end", &tick(value, step));
            value += step;
        }
    }

    fn grid_x(&mut self, label: &str) {
        let step = step(self.x.1 - self.x.0);
        let mut value = (self.x.0 / step).ceil() * step;
        while value <= self.x.1 + step * 1e-6 {
            let x = self.px(value);
            let bottom = HEIGHT - BOTTOM;
            self.add(format_args!(
                r##"<path d="M{x:.1} {TOP}V{bottom}" stroke="#ddd"/>"##
            ));
            self.text(x, bottom + 16.0, "middle", &tick(value, step));
            value += step;
        }
        self.text((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14.0, "middle", label);
    }

    fn line(&mut self, at: usize, name: &str, points: &[(f64, f64)]) {
        let colour = COLOURS[at % COLOURS.len()];
        let path: Vec<String> = points
            .iter()
            .map(|&(x, y)| format!("{:.1},{:.1}", self.px(x), self.py(y)))
            .collect();
        self.add(format_args!(
            r#"<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{}"/>"#,
            path.join(" ")
        ));
        for &(x, y) in points {
            let (x, y) = (self.px(x), self.py(y));
            self.add(format_args!(
                r#"<circle cx="{x:.1}" cy="{y:.1}" r="2.5" fill="{colour}"/>"#
            ));
        }
        let x = LEFT + 12.0 + at as f64 * 120.0;
        let bar = x + 18.0;
        let y = TOP - 6.0;
        self.add(format_args!(
            r#"<path d="M{x} {y}H{bar}" stroke="{colour}" stroke-width="3"/>"#
        ));
        self.text(bar + 4.0, TOP - 2.0, "start", name);
    }

    fn finish(mut self) -> String {
        self.svg.push_str("</svg>\n");
        self.svg
    }
}

fn tick(value: f64, step: f64) -> String {
    let decimals = (-step.log10().floor()).clamp(0.0, 6.0) as usize;
    format!(
        "{:.decimals$}",
        if value.abs() < step * 1e-6 {
            0.0
        } else {
            value
        }
    )
}

/// Requests, responses, mistakes and cost for each asset over pushes for each asset.
fn push_rate(title: &str, points: &[PlotPoint], omega: f64) -> String {
    // Without a threshold the push rate can become very large; only the readable range is kept.
    let shown: Vec<&PlotPoint> = points
        .iter()
        .filter(|point| point.pushes <= 4.0 || point.threshold > 0.0)
        .collect();
    let far = shown.iter().map(|point| point.pushes).fold(0.05, f64::max);
    let high = shown
        .iter()
        .map(|point| point.responses.max(point.cost))
        .fold(1.0, f64::max);
    let low = shown.iter().map(|point| point.requests).fold(0.0, f64::min);
    let mut canvas = Canvas::new(title, (0.0, far * 1.05), (low, high * 1.05));
    canvas.grid_y();
    canvas.grid_x("pushes for each asset (threshold from 1 on the left to 0 on the right)");
    let series = |value: fn(&PlotPoint) -> f64| -> Vec<(f64, f64)> {
        shown
            .iter()
            .rev()
            .map(|point| (point.pushes, value(point)))
            .collect()
    };
    canvas.line(0, "requests", &series(|point| point.requests));
    canvas.line(1, "responses", &series(|point| point.responses));
    canvas.line(2, "mistakes", &series(|point| point.mistakes));
    canvas.line(
        3,
        &format!("cost at {omega:.3}"),
        &series(|point| point.cost),
    );
    canvas.finish()
}

/// Draws a bar for each changed parameter.
fn effects(title: &str, effects: &[Effect]) -> String {
    let high = effects
        .iter()
        .map(|effect| effect.increase)
        .fold(1e-4, f64::max);
    let mut canvas = Canvas::new(
        title,
        (0.0, effects.len().max(1) as f64),
        (0.0, high * 1.05),
    );
    canvas.grid_y();
    let bottom = HEIGHT - BOTTOM;
    for (at, effect) in effects.iter().enumerate() {
        let (left, right) = (canvas.px(at as f64 + 0.15), canvas.px(at as f64 + 0.85));
        let top = canvas.py(effect.increase.max(0.0));
        let colour = COLOURS[effect.parameter % COLOURS.len()];
        let (width, height) = (right - left, bottom - top);
        canvas.add(format_args!(
            r#"<rect x="{left:.1}" y="{top:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}"/>"#
        ));
        let middle = (left + right) / 2.0;
        canvas.text(
            middle,
            bottom + 16.0,
            "middle",
            &format!("P{}", effect.parameter + 1),
        );
        canvas.text(middle, bottom + 30.0, "middle", short(&effect.value));
    }
    canvas.text(
        LEFT,
        HEIGHT - 6.0,
        "start",
        "increase of PushCost over the best combination",
    );
    canvas.finish()
}

/// A value short enough for its bar.
fn short(value: &str) -> &str {
    match value {
        "basic" => "B",
        "basic-less" => "L",
        "basic-more" => "M",
        other => other,
    }
}
