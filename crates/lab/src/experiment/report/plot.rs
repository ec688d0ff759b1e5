//! Plots as SVG: lines of medians with bars from the least to the greatest pass, and heat maps of
//! gains.

use std::fmt::Write as _;

use super::text::{escaped, number};
use crate::experiment::point::Axis;
use tandem_net::stats::Summary;

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 314.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 12.0;
/// Room for the title and, below it, the name of the vertical axis.
const TOP: f64 = 44.0;
const BOTTOM: f64 = 44.0;
/// Height of a line of the legend.
const LEGEND: f64 = 16.0;
/// From here on a logarithmic scale shows more.
const WIDE: f64 = 8.0;

/// Colours that people with colour blindness can distinguish.
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#444444", "#999933",
];

/// Seconds over one quantity.
pub(super) struct Plot<'a> {
    pub(super) title: &'a str,
    pub(super) x: Axis,
    /// Values along the axis.
    pub(super) labels: Vec<String>,
    pub(super) curves: Vec<PlotLine>,
}

/// The line of a set-up.
pub(super) struct PlotLine {
    pub(super) name: String,
    pub(super) colour: usize,
    /// Places along the axis, and seconds there.
    pub(super) points: Vec<(usize, Summary)>,
}

/// Gains in percent over two quantities.
pub(super) struct Heat<'a> {
    pub(super) title: &'a str,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<String>,
    pub(super) cells: Vec<Vec<Option<f64>>>,
}

/// The scale upwards.
struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Scale {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let high = values.clone().fold(f64::MIN_POSITIVE, f64::max);
        let low = values.fold(high, f64::min).max(high * 1e-6);
        let logarithmic = high / low > WIDE;
        // Small differences are invisible on a scale from zero.
        let from = if logarithmic || high / low < 2.0 {
            low * 0.9
        } else {
            0.0
        };
        Self {
            low: from,
            high: high * 1.05,
            logarithmic,
        }
    }

    fn place(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - share.clamp(0.0, 1.0))
    }

    /// Round values within.
    fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let first = self.low.log10().floor() as i32;
            let last = self.high.log10().ceil() as i32;
            let all = (first..=last)
                .flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
            return all
                .filter(|tick| (self.low..=self.high).contains(tick))
                .collect();
        }
        let rough = (self.high - self.low) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|digit| digit * power)
            .into_iter()
            .find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let first = (self.low / step).ceil();
        (0..=6)
            .map(|count| (first + f64::from(count)) * step)
            .filter(|tick| *tick <= self.high)
            .collect()
    }
}

/// Formats a number without trailing zeros.
fn tick_text(tick: f64) -> String {
    let text = format!("{tick:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Plot<'_> {
    pub(super) fn svg(&self) -> String {
        let spread = self
            .curves
            .iter()
            .flat_map(|line| line.points.iter().flat_map(|(_, all)| [all.min, all.max]));
        let scale = Scale::of(spread);
        let height = HEIGHT + LEGEND * self.curves.len() as f64;
        let mut out = begin(height, self.title);
        for tick in scale.ticks() {
            let y = scale.place(tick);
            let _ = write!(
                out,
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 5.0,
                y + 4.0,
                tick_text(tick)
            );
        }
        for (index, label) in self.labels.iter().enumerate() {
            let x = self.across(index);
            let _ = write!(
                out,
                "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                HEIGHT - BOTTOM + 16.0,
                escaped(label)
            );
        }
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        let scale_name = if scale.logarithmic {
            "seconds, logarithmic"
        } else {
            "seconds"
        };
        let _ = write!(
            out,
            "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text><text x=\"4\" y=\"{:.1}\">{scale_name}</text>",
            HEIGHT - BOTTOM + 33.0,
            escaped(self.x.name()),
            TOP - 12.0
        );
        for (place, line) in self.curves.iter().enumerate() {
            self.curve(line, place, &scale, &mut out);
        }
        out + "</svg>\n"
    }

    /// Even steps for words; numbers where they belong, if they are not too far apart.
    fn across(&self, index: usize) -> f64 {
        let width = WIDTH - LEFT - RIGHT - 40.0;
        let numbers: Option<Vec<f64>> = self
            .labels
            .iter()
            .map(|label| self.x.number(label))
            .collect();
        let even = index as f64 / (self.labels.len().max(2) - 1) as f64;
        let share = numbers
            .filter(|numbers| is_even(numbers))
            .map_or(even, |numbers| {
                let (low, high) = numbers
                    .iter()
                    .fold((f64::MAX, f64::MIN), |(l, h), n| (l.min(*n), h.max(*n)));
                (numbers[index] - low) / (high - low)
            });
        LEFT + 20.0 + width * share
    }

    fn curve(&self, line: &PlotLine, place: usize, scale: &Scale, out: &mut String) {
        let colour = COLOURS[line.colour % COLOURS.len()];
        // A little aside, so that bars do not hide each other.
        let aside = (place as f64 - (self.curves.len() - 1) as f64 / 2.0) * 2.0;
        let at = |index: usize| self.across(index) + aside;
        let mut sorted: Vec<&(usize, Summary)> = line.points.iter().collect();
        sorted.sort_by(|a, b| at(a.0).total_cmp(&at(b.0)));
        // Between words there is nothing to be on a line.
        if self
            .labels
            .iter()
            .all(|label| self.x.number(label).is_some())
        {
            let place = |(index, all): &&(usize, Summary)| {
                format!("{:.1},{:.1}", at(*index), scale.place(all.median))
            };
            let path: Vec<String> = sorted.iter().map(place).collect();
            let path = path.join(" ");
            let _ = write!(
                out,
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{path}\"/>"
            );
        }
        for (index, all) in sorted {
            let (x, y) = (at(*index), scale.place(all.median));
            let _ = write!(
                out,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/><circle cx=\"{x:.1}\" cy=\"{y:.1}\" \
                 r=\"3\" fill=\"{colour}\"><title>{} {}: {} s</title></circle>",
                scale.place(all.min),
                scale.place(all.max),
                escaped(&line.name),
                escaped(&self.labels[*index]),
                number(all.median)
            );
        }
        let y = HEIGHT + LEGEND * place as f64;
        let _ = write!(
            out,
            "<rect x=\"{LEFT}\" y=\"{:.1}\" width=\"12\" height=\"4\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
            y - 6.0,
            LEFT + 18.0,
            escaped(&line.name)
        );
    }
}

/// Returns true if the numbers are distinguishable on a linear scale.
fn is_even(numbers: &[f64]) -> bool {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let all = sorted
        .last()
        .zip(sorted.first())
        .map_or(0.0, |(last, first)| last - first);
    all > 0.0 && sorted.windows(2).all(|two| two[1] - two[0] >= all / 14.0)
}

impl Heat<'_> {
    pub(super) fn svg(&self) -> String {
        const CELL: (f64, f64) = (54.0, 30.0);
        const SIDE: f64 = 150.0;
        let width = SIDE + CELL.0 * self.columns.len() as f64 + 10.0;
        let height = TOP + CELL.1 * self.rows.len() as f64 + 44.0;
        let mut out = open(width, height, self.title);
        for (row, cells) in self
            .rows
            .iter()
            .zip(&self.cells)
            .enumerate()
            .map(|(at, (row, cells))| ((at, row), cells))
        {
            let y = TOP + CELL.1 * row.0 as f64;
            let _ = write!(
                out,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                SIDE - 6.0,
                y + 19.0,
                escaped(row.1)
            );
            for (column, cell) in cells.iter().enumerate() {
                let x = SIDE + CELL.0 * column as f64;
                let text = cell.map_or_else(|| "–".to_owned(), |gain| format!("{gain:+.0}"));
                let _ = write!(
                    out,
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{}\" height=\"{}\" fill=\"{}\" stroke=\"#fff\"/><text x=\"{:.1}\" y=\"{:.1}\" \
                     text-anchor=\"middle\">{text}</text>",
                    CELL.0,
                    CELL.1,
                    colour(*cell),
                    x + CELL.0 / 2.0,
                    y + 19.0
                );
            }
        }
        let under = TOP + CELL.1 * self.rows.len() as f64;
        for (column, label) in self.columns.iter().enumerate() {
            let x = SIDE + CELL.0 * (column as f64 + 0.5);
            let _ = write!(
                out,
                "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                under + 16.0,
                escaped(label)
            );
        }
        let _ = write!(
            out,
            "<text x=\"{SIDE}\" y=\"{:.1}\">{}; upwards {}; gain in %</text>",
            under + 34.0,
            escaped(self.x.name()),
            escaped(self.y.name())
        );
        out + "</svg>\n"
    }
}

/// Returns a colour from red over white to blue; full at 50 %.
fn colour(gain: Option<f64>) -> String {
    let Some(gain) = gain else {
        return "#eee".into();
    };
    let strength = (gain / 50.0).clamp(-1.0, 1.0);
    let fade = |strength: f64| (255.0 - 135.0 * strength) as u8;
    let other = fade(strength.abs());
    if strength < 0.0 {
        format!("#ff{other:02x}{other:02x}")
    } else {
        format!("#{other:02x}{:02x}ff", fade(strength * 0.5))
    }
}

fn begin(height: f64, title: &str) -> String {
    open(WIDTH, height, title)
}

fn open(width: f64, height: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\" role=\"img\"><text x=\"{LEFT}\" y=\"13\" font-weight=\"bold\">{}</text>",
        escaped(title)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_hold_what_they_show() {
        for values in [&[1.0, 2.0, 3.0][..], &[0.01, 90.0], &[5.0], &[]] {
            let scale = Scale::of(values.iter().copied());
            for value in values {
                let place = scale.place(*value);
                assert!(
                    (TOP..=HEIGHT - BOTTOM).contains(&place),
                    "{value} at {place}"
                );
            }
            assert!(scale.ticks().iter().all(|tick| *tick <= scale.high));
        }
        assert!(Scale::of([1.0, 100.0].into_iter()).logarithmic);
        assert_eq!(Scale::of([4.0, 10.0].into_iter()).ticks(), [0.0, 5.0, 10.0]);
        assert_eq!(
            Scale::of([9.0, 10.0].into_iter()).ticks(),
            [8.5, 9.0, 9.5, 10.0, 10.5]
        );
        assert_eq!(
            [0.0, 0.05, 2.5, 100.0].map(tick_text),
            ["0", "0.05", "2.5", "100"]
        );
    }

    #[test]
    fn gains_are_blue_and_losses_red() {
        assert_eq!(
            (colour(Some(0.0)).as_str(), colour(None).as_str()),
            ("#ffffff", "#eee")
        );
        assert!(colour(Some(60.0)).ends_with("ff") && colour(Some(-60.0)).starts_with("#ff"));
    }

    #[test]
    fn numbers_far_apart_stand_in_even_steps() {
        assert!(
            is_even(&[0.0, 100.0, 400.0]) && !is_even(&[64.0, 128.0, 8000.0]) && !is_even(&[3.0])
        );
    }
}
