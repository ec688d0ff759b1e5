//! Counts of a run and the PushCost function (the thesis's equation 3.6).

/// The price of pushing: 1 without push, below 1 where push pays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PushCost {
    /// The value of a saved request against a wasted response, strictly between 0 and 1.
    pub omega: f64,
}

impl PushCost {
    /// 1 + (mistakes - omega x pushes) / assets; 1 where nothing could have been pushed.
    #[must_use]
    pub fn of(self, pushes: u64, mistakes: u64, assets: u64) -> f64 {
        if assets == 0 {
            return 1.0;
        }
        1.0 + (mistakes as f64 - self.omega * pushes as f64) / assets as f64
    }

    /// The least probability at which a push pays.
    #[must_use]
    pub fn threshold(self) -> f64 {
        1.0 - self.omega
    }
}

/// The result of a run over a log.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    /// Lines that count.
    pub considered: u64,
    /// Parsed lines that do not.
    pub ignored: u64,
    /// Considered lines of mobile browsers.
    pub mobile: u64,
    /// Sessions.
    pub sessions: u64,
    /// Requests that started a page load.
    pub pages: u64,
    /// All other considered requests.
    pub assets: u64,
    /// Pushes.
    pub pushes: u64,
    /// Pushes whose URL was requested later in the session.
    pub hits: u64,
    /// Pushes whose URL was not.
    pub mistakes: u64,
    /// Hits in a later page load than the one that pushed.
    pub delayed_hits: u64,
    /// Hits whose request was classed as a page.
    pub hits_on_pages: u64,
    /// Hits answered 304: the client had it, so the push saved only a round trip of revalidation.
    pub hits_not_modified: u64,
    /// Hits that saved no transfer: on a page, or answered 304.
    pub hits_without_transfer: u64,
    /// Different URLs that started page loads.
    pub unique_pages: u64,
    /// Different URLs among the assets.
    pub unique_assets: u64,
    /// Body bytes of all mistakes.
    pub mistake_bytes: f64,
    /// Body bytes of all hits.
    pub hit_bytes: f64,
    /// Sum of the sessions' lengths from first to last request, milliseconds.
    pub session_ms: i64,
}

impl Tally {
    /// PushCost at `omega`.
    #[must_use]
    pub fn push_cost(&self, omega: f64) -> f64 {
        PushCost { omega }.of(self.pushes, self.mistakes, self.assets)
    }

    /// PushCost at `omega` if a hit that saved no transfer counts as a mistake.
    #[must_use]
    pub fn strict_push_cost(&self, omega: f64) -> f64 {
        let mistakes = self.mistakes + self.hits_without_transfer;
        PushCost { omega }.of(self.pushes, mistakes, self.assets)
    }

    /// Mean size of a mistake in bytes, 0 without mistakes.
    #[must_use]
    pub fn mean_mistake_bytes(&self) -> f64 {
        if self.mistakes == 0 {
            0.0
        } else {
            self.mistake_bytes / self.mistakes as f64
        }
    }

    /// Mean length of a session in seconds.
    #[must_use]
    pub fn mean_session_seconds(&self) -> f64 {
        if self.sessions == 0 {
            0.0
        } else {
            self.session_ms as f64 / 1000.0 / self.sessions as f64
        }
    }

    /// Mean number of page loads in a session.
    #[must_use]
    pub fn pages_per_session(&self) -> f64 {
        ratio(self.pages, self.sessions)
    }

    /// Mean number of assets in a page load.
    #[must_use]
    pub fn assets_per_page(&self) -> f64 {
        ratio(self.assets, self.pages)
    }

    /// `count` for each asset, as the document's tables state pushes, hits and mistakes.
    #[must_use]
    pub fn per_asset(&self, count: u64) -> f64 {
        ratio(count, self.assets)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}
