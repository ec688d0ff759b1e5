//! Statistics of a few repeated measurements: median, mean with its 95 % Student-t interval,
//! percentiles.

/// Summary of a sample.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Summary {
    /// Number of values.
    pub count: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Half the width of the 95 % interval of the mean; 0 for a single value, of which nothing is
    /// known.
    pub interval: f64,
    /// Standard deviation of the sample (divisor `count - 1`); 0 for a single value.
    pub deviation: f64,
    /// Middle value.
    pub median: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
}

impl Summary {
    /// Summarises `values`; `None` when there are none or one is not a finite number.
    pub fn of(values: &[f64]) -> Option<Self> {
        let sorted = sorted(values)?;
        let count = sorted.len();
        let mean = sorted.iter().sum::<f64>() / count as f64;
        let (deviation, interval) = if count > 1 {
            let squares: f64 = sorted.iter().map(|x| (x - mean).powi(2)).sum();
            let deviation = (squares / (count - 1) as f64).sqrt();
            (
                deviation,
                student_t_95(count - 1) * deviation / (count as f64).sqrt(),
            )
        } else {
            (0.0, 0.0)
        };
        let median = quantile(&sorted, 0.5);
        Some(Self {
            count,
            mean,
            interval,
            deviation,
            median,
            min: sorted[0],
            max: sorted[count - 1],
        })
    }
}

/// The `percent`th percentile of `values`, linear between neighbours; `None` when there are no
/// values, one is not a finite number, or `percent` is not within 0 to 100.
pub fn percentile(values: &[f64], percent: f64) -> Option<f64> {
    let sorted = sorted(values)?;
    (0.0..=100.0)
        .contains(&percent)
        .then(|| quantile(&sorted, percent / 100.0))
}

/// The middle value.
pub fn median(values: &[f64]) -> Option<f64> {
    percentile(values, 50.0)
}

fn sorted(values: &[f64]) -> Option<Vec<f64>> {
    if values.is_empty() || !values.iter().all(|x| x.is_finite()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some(sorted)
}

fn quantile(sorted: &[f64], at: f64) -> f64 {
    let place = at * (sorted.len() - 1) as f64;
    let below = place.floor() as usize;
    let above = place.ceil() as usize;
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

/// Returns the 0.975 quantile of Student's t distribution: the half width, in standard errors, of
/// the interval that contains 95 % of means.
pub fn student_t_95(freedom: usize) -> f64 {
    const SMALL: [f64; 12] = [
        12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157,
        2.228139, 2.200985, 2.178813,
    ];
    match SMALL.get(freedom.wrapping_sub(1)) {
        Some(t) => *t,
        None => expanded_t(freedom as f64),
    }
}

/// Expansion of the quantile in powers of 1/freedom (Abramowitz and Stegun 26.7.5); good to 5
/// digits from 13 on.
fn expanded_t(freedom: f64) -> f64 {
    let z = 1.959_963_985_f64;
    let (z3, z5, z7, z9) = (z.powi(3), z.powi(5), z.powi(7), z.powi(9));
    let first = (z3 + z) / 4.0;
    let second = (5.0 * z5 + 16.0 * z3 + 3.0 * z) / 96.0;
    let third = (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / 384.0;
    let fourth = (79.0 * z9 + 776.0 * z7 + 1482.0 * z5 - 1920.0 * z3 - 945.0 * z) / 92_160.0;
    z + first / freedom
        + second / freedom.powi(2)
        + third / freedom.powi(3)
        + fourth / freedom.powi(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64, by: f64) {
        assert!((a - b).abs() <= by, "{a} is not {b}");
    }

    #[test]
    fn summary() {
        let summary = Summary::of(&[5.0, 3.0, 4.0, 8.0]).expect("finite");
        assert_eq!(
            (
                summary.count,
                summary.mean,
                summary.median,
                summary.min,
                summary.max
            ),
            (4, 5.0, 4.5, 3.0, 8.0)
        );
        close(summary.deviation, 2.160_247, 1e-6);
        close(summary.interval, 3.437_4, 1e-3);
        let single = Summary::of(&[7.0]).expect("finite");
        assert_eq!(
            (
                single.mean,
                single.median,
                single.interval,
                single.deviation
            ),
            (7.0, 7.0, 0.0, 0.0)
        );
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn percentiles() {
        let values = [40.0, 10.0, 30.0, 20.0];
        assert_eq!(percentile(&values, 0.0), Some(10.0));
        assert_eq!(percentile(&values, 100.0), Some(40.0));
        assert_eq!(median(&values), Some(25.0));
        close(percentile(&values, 90.0).expect("finite"), 37.0, 1e-9);
        assert_eq!(percentile(&values, 101.0), None);
        assert_eq!(percentile(&[], 50.0), None);
    }

    /// Values of printed tables.
    #[test]
    fn student_t() {
        for (freedom, t) in [
            (1, 12.706_205),
            (5, 2.570_582),
            (12, 2.178_813),
            (13, 2.160_369),
            (30, 2.042_272),
        ] {
            close(student_t_95(freedom), t, 2e-5);
        }
        close(student_t_95(100), 1.983_972, 1e-6);
        close(student_t_95(1_000_000), 1.959_966, 1e-6);
    }
}
