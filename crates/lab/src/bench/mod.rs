//! The cost of the pair, measured beside its peers on this machine. The programs alternate in all
//! measurements, so that disturbances affect each of them.
//!
//! - [`testbed`]: a private directory and the programs of one measurement, removed when it ends.
//!   [`usage`]: their CPU time and memory. [`programs`]: the start of origins, proxies and load
//!   programs.
//! - [`client`]: our client of every session protocol. [`browser`]: the request of a browser and
//!   the response of a web server.
//! - [`proxy`]: a gateway's CPU and memory beside other proxies. [`sessions`]: the same with many
//!   sessions. [`session`]: the session protocols beside each other.
//! - [`bridge`]: the times of the bridge between HTTP/1.1 and HTTP/2 beside other proxies.
//! - [`quiet`]: the delay of a small response beside bulk, over an emulated link. [`bulk`]: the
//!   processor time of a byte of bulk. [`steady`]: downloads that never end.

pub mod bridge;
pub mod browser;
pub mod bulk;
pub mod client;
pub mod programs;
pub mod proxy;
pub mod quiet;
mod rig;
pub mod session;
pub mod sessions;
pub mod steady;
pub mod testbed;
pub mod usage;

use std::io;
use std::str::FromStr;

use tandem_net::stats::Summary;

/// An error of a measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A program is not installed.
    #[error("{program} is not installed: apt-get install {package}")]
    Missing {
        /// The name of the program.
        program: &'static str,
        /// The Debian package that contains it.
        package: &'static str,
    },
    /// A program of other people is not on the search path.
    #[error("{program} is not on the search path: {remedy}")]
    NotFound {
        /// The first word of the program's command.
        program: String,
        /// The way to get it.
        remedy: String,
    },
    /// The program under test is not built.
    #[error(
        "no program {0}: build it with `cargo build --release --locked -p tandem-cli`, or name \
         another with --tandem"
    )]
    NoTandem(String),
    /// The system refused something.
    #[error("cannot {action}: {source}")]
    System {
        /// The action that failed.
        action: String,
        /// The cause.
        source: io::Error,
    },
    /// A program ended, or never began to listen.
    #[error("{program} {problem}: {log}")]
    Program {
        /// The program's name in this measurement.
        program: String,
        /// The program's failure.
        problem: String,
        /// The end of the program's log.
        log: String,
    },
    /// The other end broke the protocol or the connection.
    #[error("session: {0}")]
    Session(String),
    /// The network could not be set up.
    #[error(transparent)]
    Network(#[from] tandem_net::emulator::network::NetworkError),
    /// A value that does not fit.
    #[error("{0}")]
    Value(String),
}

impl BenchError {
    /// Returns a conversion for `map_err`.
    pub fn system(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        |source| Self::System { action, source }
    }
}

/// A size in bytes; as text a number, with `k` (1024) or `M` (1024²) behind it or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub usize);

impl FromStr for Size {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Self, BenchError> {
        let bad = || {
            BenchError::Value(format!(
                "not a size from 1 to 64M: {text:?} (write 512, 10k or 1M)"
            ))
        };
        let (number, unit) = match text.as_bytes().last() {
            Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
            Some(b'M' | b'm') => (&text[..text.len() - 1], 1 << 20),
            _ => (text, 1),
        };
        let size = number
            .parse::<usize>()
            .ok()
            .and_then(|number| number.checked_mul(unit));
        size.filter(|size| (1..=64 << 20).contains(size))
            .map(Self)
            .ok_or_else(bad)
    }
}

/// Returns the order of turns: every other pass goes backwards, so that no program always follows
/// the same one.
pub fn turns(pass: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |turn| {
        if pass.is_multiple_of(2) {
            turn
        } else {
            count - 1 - turn
        }
    })
}

/// The ratios of two rows pass by pass.
pub fn ratios(of: &[f64], to: &[f64]) -> Option<Summary> {
    let each: Vec<f64> = of.iter().zip(to).map(|(of, to)| of / to).collect();
    Summary::of(&each)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, size) in [("512", 512), ("1k", 1024), ("10K", 10_240), ("1M", 1 << 20)] {
            assert_eq!(text.parse::<Size>().expect(text), Size(size));
        }
        for text in [
            "",
            "k",
            "0",
            "-1",
            "1.5k",
            "65M",
            "99999999999999999999",
            "1kB",
        ] {
            let error = text.parse::<Size>().expect_err(text).to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn every_other_pass_goes_backwards() {
        assert_eq!(turns(0, 3).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(turns(1, 3).collect::<Vec<_>>(), [2, 1, 0]);
    }

    #[test]
    fn ratios_are_taken_pass_by_pass() {
        let summary = ratios(&[2.0, 30.0, 5.0], &[1.0, 10.0, 5.0]).expect("finite");
        assert_eq!((summary.min, summary.median, summary.max), (1.0, 2.0, 3.0));
        assert_eq!(ratios(&[1.0], &[0.0]), None);
    }
}
