//! The report of a study: JSON, plots as SVG, and one HTML page with both and the published
//! figures.

use std::fmt::Write as _;
use std::path::Path;

use super::HeadersError;
use super::study::{Distribution, HeaderStudy, Ratios, Sizes, TWENTIETHS};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 44.0;

/// Colours that people with colour blindness can distinguish.
const COLOURS: [&str; 9] = [
    "#444444", "#0072b2", "#56b4e9", "#cc79a7", "#999933", "#009e73", "#d55e00", "#e69f00",
    "#882255",
];

/// The greatest ratio of a plot.
const MOST: f64 = 1.4;

/// The figures of published studies, as rows of a table.
const PUBLISHED: &str = "<tr><td>HPACK, first request of a page<td>0.625\
    <tr><td>HPACK, second request<td>0.114\
    <tr><td>HPACK, ten requests at each of ten sites<td>0.201\
    <tr><td>median request head, bytes<td>384 (GET with status 200: 380)\
    <tr><td>median response head, bytes<td>338 (335)\
    <tr><td>median body, bytes<td>4,162 (4,357)\
    <tr><td>saving of a hit, bytes<td>71\
    <tr><td>cost of a mistake, bytes<td>4,457\
    <tr><td>&#969;<td>1/63";

/// Writes `headers.json`, three plots and `headers.html` to a directory.
pub(super) fn write(study: &HeaderStudy, directory: &Path) -> Result<(), HeadersError> {
    let put = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).map_err(|error| failed(&path, error))
    };
    std::fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
    let json = serde_json::to_string_pretty(study)
        .map_err(|error| failed(Path::new("headers.json"), error))?;
    put("headers.json", &json)?;
    let plots = plots(study);
    for (name, plot) in &plots {
        put(name, plot)?;
    }
    put("headers.html", &html(study, &plots))
}

fn failed(path: &Path, error: impl Into<std::io::Error>) -> HeadersError {
    HeadersError::Write {
        path: path.display().to_string(),
        source: error.into(),
    }
}

fn plots(study: &HeaderStudy) -> [(&'static str, String); 3] {
    [
        ("headers-sizes.svg", sizes_plot(&study.all)),
        (
            "headers-requests.svg",
            plot("Request heads: compressed bytes over text", &study.requests),
        ),
        (
            "headers-responses.svg",
            plot(
                "Response heads: compressed bytes over text",
                &study.responses,
            ),
        ),
    ]
}

/// The greatest number of bytes of the plot of sizes.
const MOST_BYTES: f64 = 1e7;

/// Plots the share of exchanges with at most a number of bytes, which has a logarithmic scale. A
/// circle marks each published median.
fn sizes_plot(sizes: &Sizes) -> String {
    let x = |bytes: f64| {
        let at = bytes.clamp(1.0, MOST_BYTES).log10() / MOST_BYTES.log10();
        LEFT + at * (WIDTH - LEFT - RIGHT)
    };
    let y = |share: f64| HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\"><text x=\"{LEFT}\" y=\"20\">Share of \
         exchanges with at most these bytes</text>"
    );
    for quarter in 0..=4 {
        let (at, right) = (y(f64::from(quarter) / 4.0), WIDTH - RIGHT);
        let _ = write!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#ddd\"/><text x=\"{:.0}\" y=\"{:.1}\" \
             text-anchor=\"end\">{} %</text>",
            LEFT - 6.0,
            at + 4.0,
            quarter * 25
        );
    }
    for power in 0..=7 {
        let bytes = 10_f64.powi(power);
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{bytes}</text>",
            x(bytes),
            HEIGHT - BOTTOM + 16.0
        );
    }
    let parts = [
        ("request heads", &sizes.request, 384.0),
        ("response heads", &sizes.response, 338.0),
        ("bodies", &sizes.body, 4162.0),
    ];
    for (index, (label, values, published)) in parts.into_iter().enumerate() {
        let colour = COLOURS[index + 1];
        let mut path = String::new();
        for (step, bytes) in values.twentieths.iter().enumerate() {
            let command = if path.is_empty() { 'M' } else { 'L' };
            let share = step as f64 / (TWENTIETHS - 1) as f64;
            let _ = write!(path, "{command}{:.1} {:.1}", x(*bytes as f64), y(share));
        }
        let legend = TOP + 18.0 * index as f64;
        let _ = write!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\
             <circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"none\" stroke=\"{colour}\"/>\
             <text x=\"{:.0}\" y=\"{legend:.0}\" fill=\"{colour}\">{label}</text>",
            x(published),
            y(0.5),
            WIDTH - RIGHT + 8.0
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Plots the cumulative ratio of each codec over the position in the session, which has a
/// logarithmic scale.
fn plot(title: &str, ratios: &[Ratios]) -> String {
    let last = ratios.iter().map(|each| each.positions.len()).max();
    let span = (last.unwrap_or(1).max(2) as f64).ln();
    let x = |position: usize| LEFT + (position as f64).ln() / span * (WIDTH - LEFT - RIGHT);
    let y = |ratio: f64| HEIGHT - BOTTOM - ratio.min(MOST) / MOST * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\"><text x=\"{LEFT}\" y=\"20\">{title}</text>"
    );
    for tenths in (0..=14).step_by(2) {
        let (at, right) = (y(f64::from(tenths) / 10.0), WIDTH - RIGHT);
        let _ = write!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#ddd\"/><text x=\"{:.0}\" y=\"{:.1}\" \
             text-anchor=\"end\">{:.1}</text>",
            LEFT - 6.0,
            at + 4.0,
            f64::from(tenths) / 10.0
        );
    }
    let mut tick = 1;
    while tick <= last.unwrap_or(1) {
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick}</text>",
            x(tick),
            HEIGHT - BOTTOM + 16.0
        );
        tick *= 10;
    }
    let _ = write!(
        svg,
        "<text x=\"{LEFT}\" y=\"{:.1}\">position in the session</text>",
        HEIGHT - 8.0
    );
    for (index, each) in ratios.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let mut path = String::new();
        for position in &each.positions {
            let command = if path.is_empty() { 'M' } else { 'L' };
            let (x, y) = (x(position.position), y(position.cumulative));
            let _ = write!(path, "{command}{x:.1} {y:.1}");
        }
        let legend = TOP + 18.0 * index as f64;
        let _ = write!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\
             <text x=\"{:.0}\" y=\"{legend:.0}\" fill=\"{colour}\">{}</text>",
            WIDTH - RIGHT + 8.0,
            each.codec.label()
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn html(study: &HeaderStudy, plots: &[(&'static str, String)]) -> String {
    let mut page = String::from(
        "<!doctype html><meta charset=utf-8><title>Heads and bodies</title><style>body{font:15px \
         sans-serif;max-width:70em;margin:2em auto}table{border-collapse:collapse}td,th{padding:\
         .2em .6em;border-bottom:1px solid #ddd;text-align:right}td:first-child,th:first-child{\
         text-align:left}</style><h1>Heads and bodies</h1>",
    );
    let _ = write!(
        page,
        "<p>{} sessions with {} exchanges. A ratio is the bytes of compressed heads over the bytes \
         of their names and values. Each session has its own tables.</p>",
        study.sessions, study.exchanges
    );
    page.push_str(&ratios(study));
    page.push_str(&sites(study));
    for (_, plot) in plots {
        page.push_str(plot);
    }
    page.push_str(&sizes(study));
    page.push_str(&worth(study));
    let _ = write!(
        page,
        "<h2>Published figures</h2><p>The sizes are those of 54 popular sites in 2013, and the \
         ratios those of nghttp2 in 2016.</p><table>{PUBLISHED}</table>"
    );
    page
}

/// Returns the tables of compression ratios.
fn ratios(study: &HeaderStudy) -> String {
    let mut page = String::new();
    for (title, ratios) in [
        ("Request heads", &study.requests),
        ("Response heads", &study.responses),
    ] {
        let _ = write!(
            page,
            "<h2>{title}</h2><table><tr><th>codec<th>first<th>second<th>first ten<th>all"
        );
        for each in ratios {
            let ratios = [each.first, each.second, each.ten, each.all];
            page.push_str(&row(
                each.codec.label(),
                ratios.map(|it| format!("{it:.3}")),
            ));
        }
        page.push_str("</table>");
    }
    page
}

/// Returns the table of sizes.
fn sizes(study: &HeaderStudy) -> String {
    let mut page = String::from(
        "<h2>Sizes in bytes</h2><table><tr><th><th>count<th>mean<th>least<th>10 %<th>median\
         <th>90 %<th>greatest",
    );
    for (name, sizes) in [
        ("all", &study.all),
        ("GET with status 200", &study.pushable),
    ] {
        for (part, values) in [
            ("request heads", &sizes.request),
            ("response heads", &sizes.response),
            ("bodies", &sizes.body),
        ] {
            page.push_str(&row(&format!("{part}, {name}"), cells(values)));
        }
    }
    page.push_str("</table>");
    page
}

/// Returns the table of the bytes that a push saves or costs.
fn worth(study: &HeaderStudy) -> String {
    let mut page = String::from(
        "<h2>Worth of a push</h2><p>Medians of exchanges that could be pushed, in bytes. A \
         hit saves a request. A mistake costs a promise, a response head and a body. Below \
         &#969;, the share of mistakes saves bytes.</p><table><tr><th>codec<th>saving of a hit\
         <th>promise<th>cost of a mistake<th>&#969;<th>&#969; without the body",
    );
    for each in &study.push {
        let cells = [
            each.saving.to_string(),
            each.promise.to_string(),
            each.mistake.to_string(),
            format!("1/{:.0}", 1.0 / each.omega.max(f64::MIN_POSITIVE)),
            format!(
                "1/{:.1}",
                1.0 / each.omega_without_body.max(f64::MIN_POSITIVE)
            ),
        ];
        page.push_str(&row(each.codec.label(), cells));
    }
    page.push_str("</table>");
    page
}

/// Returns the table of the first ten requests of each site.
fn sites(study: &HeaderStudy) -> String {
    let mut table = String::from(
        "<h2>The first ten requests of each site</h2><p>The least ratio is that of an encoder \
         whose table keeps all fields.</p><table><tr><th>site<th>text<th>HPACK<th>least",
    );
    let cells = |[size, ratio, least]: [f64; 3]| {
        [
            format!("{size:.0}"),
            format!("{ratio:.3}"),
            format!("{least:.3}"),
        ]
    };
    for site in &study.sites {
        let name: String = site
            .name
            .chars()
            .filter(|it| !"<>&".contains(*it))
            .collect();
        let figures = [site.text as f64, site.ratio(), site.least_ratio()];
        table.push_str(&row(&name, cells(figures)));
    }
    if let Some(means) = study.ten_requests() {
        table.push_str(&row("mean", cells(means)));
    }
    table.push_str("</table>");
    table
}

/// Returns a row of a table.
fn row<const N: usize>(label: &str, cells: [String; N]) -> String {
    format!("<tr><td>{label}<td>{}", cells.join("<td>"))
}

fn cells(values: &Distribution) -> [String; 7] {
    let Distribution {
        count,
        mean,
        least,
        tenth,
        median,
        ninetieth,
        greatest,
        ..
    } = values;
    [
        count.to_string(),
        format!("{mean:.0}"),
        least.to_string(),
        tenth.to_string(),
        median.to_string(),
        ninetieth.to_string(),
        greatest.to_string(),
    ]
}

/// Returns the main figures as lines of text.
pub(super) fn text(study: &HeaderStudy) -> String {
    let mut text = format!(
        "{} sessions, {} exchanges\n\n{:22} {:>7} {:>7} {:>7} {:>7} | {:>7} {:>7} {:>7} | {:>6}\n",
        study.sessions,
        study.exchanges,
        "ratio",
        "first",
        "second",
        "ten",
        "all",
        "first",
        "ten",
        "all",
        "omega"
    );
    let rows = study.requests.iter().zip(&study.responses).zip(&study.push);
    for ((up, down), push) in rows {
        let _ = writeln!(
            text,
            "{:22} {:7.3} {:7.3} {:7.3} {:7.3} | {:7.3} {:7.3} {:7.3} | 1/{:.0}",
            up.codec.label(),
            up.first,
            up.second,
            up.ten,
            up.all,
            down.first,
            down.ten,
            down.all,
            1.0 / push.omega.max(f64::MIN_POSITIVE)
        );
    }
    let all = &study.all;
    let _ = writeln!(
        text,
        "\nmedian bytes: request head {}, response head {}, body {}",
        all.request.median, all.response.median, all.body.median
    );
    if let Some([size, ratio, least]) = study.ten_requests() {
        let sites = study.sites.len();
        let _ = writeln!(
            text,
            "\nten requests at each of {sites} sites, means: text {size:.0} bytes, \
             HPACK {ratio:.3}, the least possible {least:.3}"
        );
        for site in &study.sites {
            let (name, size) = (&site.name, site.text);
            let (ratio, least) = (site.ratio(), site.least_ratio());
            let _ = writeln!(text, "  {name:32} {size:6} {ratio:7.3} {least:7.3}");
        }
    }
    text
}
