//! The options of the three documented algorithms (the thesis's table 3.3).

use std::fmt;
use std::str::FromStr;

/// How the probability of an asset is computed from the counts of its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Share of the page's loads in which the asset appeared.
    Basic,
    /// The same, trusted less while the page was seen rarely.
    BasicLess,
    /// The same, raised by how often the asset came earlier in the session.
    BasicMore,
}

impl Algorithm {
    /// All three, in the order of the document's tables.
    pub const ALL: [Self; 3] = [Self::Basic, Self::BasicLess, Self::BasicMore];

    /// Name used on the command line and in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Basic => "basic",
            Self::BasicLess => "basic-less",
            Self::BasicMore => "basic-more",
        }
    }

    /// The probability, from how often the page was seen (`page`, not 0), the asset in its loads
    /// (`asset`), the page after another page of its session (`page_later`) and the asset before it
    /// (`asset_earlier`).
    #[must_use]
    pub fn probability(self, asset: u32, page: u32, asset_earlier: u32, page_later: u32) -> f64 {
        let pages = f64::from(page);
        let basic = f64::from(asset) / pages;
        match self {
            Self::Basic => basic,
            Self::BasicLess => basic * (1.0 - 1.0 / pages),
            Self::BasicMore => {
                let earlier = if page_later == 0 {
                    0.0
                } else {
                    (f64::from(asset_earlier) / f64::from(page_later)).min(1.0)
                };
                basic + (1.0 - basic) * earlier
            }
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name() == name)
            .ok_or(UnknownAlgorithm)
    }
}

/// The name is none of basic, basic-less and basic-more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown algorithm: use basic, basic-less or basic-more")]
pub struct UnknownAlgorithm;

/// Everything an operator can set for the documented algorithms.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Algorithm used.
    pub algorithm: Algorithm,
    /// A request after a longer pause than this starts a page load, whatever its URL. Milliseconds,
    /// default 20,000.
    pub max_page_load_timeout: i64,
    /// A request after a longer pause than this starts one unless its URL is mostly an asset.
    /// Milliseconds, default 1,000.
    pub page_load_timeout: i64,
    /// Least probability to push, 0 to 1.
    pub threshold: f64,
    /// The views of a page below which it gets no pushes. Default 1.
    pub min_history: u32,
    /// Most pushes for one page; `None` for no limit.
    pub max_assets: Option<usize>,
    /// Requests of mobile browsers are neither learned from nor answered with pushes.
    pub ignore_mobile: bool,
    /// Separate statistics for each browser name.
    pub consider_browser: bool,
    /// Largest mean size of an asset to push, in bytes; `None` for no limit.
    pub max_size: Option<u64>,
    /// Resources that a user requested in earlier sessions are not pushed to that user again.
    pub keep_history: bool,
    /// At the end of a session its pushes that were not cancelled count as requested.
    pub assume_hits: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::Basic,
            max_page_load_timeout: 20_000,
            page_load_timeout: 1_000,
            threshold: 0.5,
            min_history: 1,
            max_assets: None,
            ignore_mobile: false,
            consider_browser: false,
            max_size: None,
            keep_history: false,
            assume_hits: false,
        }
    }
}
