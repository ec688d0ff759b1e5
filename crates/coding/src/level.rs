//! The effort of the encoder: the slower the path, the more time a byte is worth.
//!
//! The gateway asks with the rate that its connection measures (`tandem::path_speed`).

/// The rate in bytes per second above which bodies are not compressed: 50 Mbit/s. The encoder
/// would take longer there than the path takes for the bytes that it saves.
const FASTEST: f64 = 6_250_000.0;

/// The zstd levels of fast, usual and slow paths.
pub const LEVELS: [i32; 3] = [FAST, USUAL, SLOW];

const FAST: i32 = 5;
const USUAL: i32 = 9;
const SLOW: i32 = 12;

/// The level for a path of unknown rate, such as one through Tor on this machine.
const UNKNOWN: i32 = USUAL;

/// Returns the zstd level for a path that delivers `rate` bytes per second, or `None` if its bodies
/// are not compressed.
pub fn level(rate: Option<f64>) -> Option<i32> {
    match rate {
        None => Some(UNKNOWN),
        Some(rate) if rate < 125_000.0 => Some(SLOW),
        Some(rate) if rate < 1_250_000.0 => Some(USUAL),
        Some(rate) if rate < FASTEST => Some(FAST),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_falls_with_the_rate() {
        let levels = [1e3, 124e3, 126e3, 1e6, 2e6, 6e6].map(|rate| level(Some(rate)));
        assert_eq!(levels, [12, 12, 9, 9, 5, 5].map(Some));
        assert_eq!(level(Some(FASTEST)), None);
        assert_eq!(level(None), Some(UNKNOWN));
    }
}
