//! The settings of the predictor: which pushes are worth making, and its limits.

/// When a push is worth making.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Worth {
    /// Pushes pay when their probability exceeds 1 - omega: the value of a saved request against a
    /// wasted response.
    Omega(f64),
    /// When the seconds it saves if wanted outweigh the seconds its bytes take on the path if not.
    Path {
        /// Round trip in seconds.
        round_trip: f64,
        /// Rate in bytes per second.
        rate: f64,
    },
}

impl Worth {
    /// The least probability at which a body of `size` bytes is pushed.
    #[must_use]
    pub fn threshold(self, size: f64) -> f64 {
        match self {
            Self::Omega(omega) => 1.0 - omega,
            Self::Path { round_trip, rate } => {
                // Heads and unknown sizes cost something as well.
                let wasted = size.max(1024.0) / rate.max(1.0);
                if wasted + round_trip <= 0.0 {
                    1.0
                } else {
                    wasted / (wasted + round_trip)
                }
            }
        }
    }
}

/// The pushes that are of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Aim {
    /// Pushes that save the transfer of a body: the resource is requested within a page load, and
    /// the answer would not have been 304.
    #[default]
    Transfers,
    /// Pushes of resources that are requested, as the thesis counts them.
    Requests,
}

/// The settings of an operator.
#[derive(Debug, Clone, PartialEq)]
pub struct AutoConfig {
    /// When a push is worth making. Default omega 0.5.
    pub worth: Worth,
    /// The pushes that are of use. Default: those that save a transfer.
    pub aim: Aim,
    /// Bytes of memory, roughly. Default 64 MiB.
    pub max_memory: usize,
    /// Different users that must have asked for a URL before it is offered, 1 to 4. Default 3.
    pub min_users: u8,
    /// The loss that all offers together may make before any gain, in requests. With the default of
    /// 0, no log and no part of one has a PushCost above 1.003. A higher value lets a large page be
    /// offered completely sooner.
    pub credit: f64,
}

impl Default for AutoConfig {
    fn default() -> Self {
        Self {
            worth: Worth::Omega(0.5),
            aim: Aim::default(),
            max_memory: 64 << 20,
            min_users: 3,
            credit: 0.0,
        }
    }
}
