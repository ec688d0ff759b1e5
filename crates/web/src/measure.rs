//! Measured page loads, for experiments and `tandem-measure`.
//!
//! ```text
//!  Page ──▶ Served: origins on free ports, the site they serve
//!                     │
//!  Client (loader or browser, any proxy)  ──▶ load(&site) ──▶ Outcome: times, counts, HAR
//!                                                                │
//!  Run (command, versions, seed, machine) ──────────────────▶ Report ──▶ JSON, CSV, text
//! ```
//!
//! - [`Served::start`] serves a page here, and a [`Client`] loads [`Served::site`]. If origin and
//!   client run in different namespaces or programs, each makes the same [`crate::page::Site`] from
//!   the same page and authorities.
//! - [`Client::load`] loads it once, cold: with a new browser and profile, or new connections. With
//!   [`Settings::earlier`](crate::browser::Settings), the same browser loads it before.
//!   Every status and size (with the loader, every byte) is compared with the model's.
//!   [`Outcome::is_complete`] returns true if the whole page was loaded.
//! - [`Report::add`] collects loads; [`Report::json`], [`Report::csv`] and [`Report::text`] write
//!   them. [`crate::har::Har::to_json`] writes [`Outcome::har`] to a separate file.
//!
//! Times are in milliseconds, as in HAR files.

mod link;
mod outcome;
mod report;
mod run;
mod served;

pub use self::link::Wire;
pub use self::outcome::loader_har;
pub use self::outcome::{Outcome, Phases};
pub use self::report::{METRICS, Metric, Report};
pub use self::run::{Machine, Run};
pub use self::served::{Listen, Served};

use std::collections::HashSet;
use std::time::Duration;

use self::link::Before;
use crate::browser::{self, Browser, BrowserError};
use crate::loader::{LoadError, Loader};
use crate::origin::TlsError;
use crate::page::{PageError, Site};

/// The time between two loads in the same browser.
const BETWEEN: Duration = Duration::from_secs(2);

/// How often a load is made again that something else on the machine disturbed.
const DISTURBANCES: usize = 5;

/// The client that loads pages.
#[derive(Clone, Debug)]
pub enum Client {
    /// The lab's own loader.
    Loader(Loader),
    /// A headless browser, a new one for each load.
    Browser(browser::Settings),
}

/// An error of a measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// The page.
    #[error(transparent)]
    Page(#[from] PageError),
    /// The browser.
    #[error(transparent)]
    Browser(#[from] BrowserError),
    /// The loader.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// TLS of the origin failed.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An origin could not listen.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// The surrounding link gives no counters.
    #[error("the surrounding link gives no counters: {0}")]
    Link(std::io::Error),
    /// A result cannot be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
}

impl Client {
    /// Loads the site once, with nothing kept from earlier calls. Behind `tandem-link` the link's
    /// counters are read before and after.
    pub async fn load(&self, site: &Site) -> Result<Outcome, MeasureError> {
        let before = Before::load().await?;
        let outcome = match self {
            Self::Loader(loader) => {
                Outcome::of_loader(loader.load(site).await?, loader.protocol, site)
            }
            Self::Browser(settings) => {
                site.page().check_browsable()?;
                let wanted = (0..site.page().resources.len())
                    .map(|index| site.url(index))
                    .collect();
                Outcome::of_visit(visit(settings, &site.url(0), &wanted).await?, Some(site))
            }
        };
        with_wire(outcome, before).await
    }
}

/// Loads whatever is at a URL with a browser.
pub async fn load_url(settings: &browser::Settings, url: &str) -> Result<Outcome, MeasureError> {
    let before = Before::load().await?;
    let outcome = Outcome::of_visit(visit(settings, url, &HashSet::new()).await?, None);
    with_wire(outcome, before).await
}

async fn with_wire(outcome: Outcome, before: Option<Before>) -> Result<Outcome, MeasureError> {
    let wire = match before {
        Some(before) => before.until_quiet().await?,
        None => None,
    };
    Ok(Outcome { wire, ..outcome })
}

/// Loads a page after a number of earlier loads in the same browser.
async fn load_again(
    browser: &mut Browser,
    earlier: usize,
    url: &str,
    wanted: &HashSet<String>,
) -> Result<browser::Visit, BrowserError> {
    for _ in 0..earlier {
        browser.load(url, wanted).await?;
        browser.empty_cache().await?;
        // Requests that follow a page, and reports on it, end before the next visit.
        tokio::time::sleep(BETWEEN).await;
    }
    browser.load(url, wanted).await
}

/// A load that something else on the machine disturbed says nothing, and is made again.
async fn visit(
    settings: &browser::Settings,
    url: &str,
    wanted: &HashSet<String>,
) -> Result<browser::Visit, BrowserError> {
    let mut left = DISTURBANCES;
    loop {
        let mut browser = Browser::start(settings).await?;
        let visit = load_again(&mut browser, settings.earlier, url, wanted).await;
        browser.close().await;
        match visit {
            Err(BrowserError::NetworkChanged) if left > 0 => left -= 1,
            visit => return visit,
        }
    }
}
