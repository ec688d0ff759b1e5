//! Headless browsers, Chromium and Firefox: each loads a page with a fresh profile, through any
//! proxy or none, and records every request.
//!
//! ```text
//!  Settings ──▶ chromium: DevTools protocol over a pipe ─┐
//!               firefox:  WebDriver BiDi over a WebSocket ┴─▶ Visit: state of the page, requests
//!                   ├── process: the program and its profile
//!                   └── load: the requests of a page, and its end
//! ```
//!
//! A browser uses only the network of the thread that starts it. It and its profile are removed
//! when a [`Browser`] is closed or dropped, and also when this process is killed.

mod chromium;
mod firefox;
mod load;
mod process;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use self::chromium::Chromium;
use self::firefox::Firefox;
use self::load::LoadingPage as _;
use crate::har::Har;

/// A browser that can be driven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Chromium, or a relative with the same DevTools protocol.
    #[default]
    Chromium,
    /// Firefox, preferably the ESR.
    Firefox,
}

impl Kind {
    /// Returns the names that its program goes by.
    const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Chromium => &["chromium", "chromium-browser", "google-chrome", "chrome"],
            Self::Firefox => &["firefox-esr", "firefox"],
        }
    }

    /// Returns the environment variable that names the program to use instead.
    const fn variable(self) -> &'static str {
        match self {
            Self::Chromium => "TANDEM_CHROMIUM",
            Self::Firefox => "TANDEM_FIREFOX",
        }
    }
}

/// The settings of a browser.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The browser.
    pub kind: Kind,
    /// The program; by default `$TANDEM_CHROMIUM` or `$TANDEM_FIREFOX`, or the first of its usual
    /// names in `$PATH`.
    pub program: Option<PathBuf>,
    /// The proxy for everything, loopback included: `http://HOST:PORT`, `https://…`, `socks5://…`.
    pub proxy: Option<String>,
    /// Names (`*` stands for any text) and the address that they mean, with Chromium perhaps with a
    /// port. With Firefox all names have one address.
    pub resolve: Vec<(String, String)>,
    /// Time for the whole page. Default 300 s.
    pub deadline: Duration,
    /// Further arguments for the program.
    pub arguments: Vec<String>,
    /// The loads in the same browser before the one that counts. Its connections stay open between
    /// them, and its cache is emptied. Only Chromium can empty its cache.
    pub earlier: usize,
}

/// A running browser with one page.
#[derive(Debug)]
pub struct Browser {
    driver: Driver,
    deadline: Duration,
}

#[derive(Debug)]
enum Driver {
    Chromium(Box<Chromium>),
    Firefox(Box<Firefox>),
}

/// A page load.
#[derive(Clone, Debug)]
pub struct Visit {
    /// The state of the page, as its own script interface reports it.
    pub page: PageState,
    /// Every request over HTTP.
    pub har: Har,
}

/// The state of the loaded page, as its own script interface reports it. Times in ms from the start
/// of the navigation.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all(deserialize = "camelCase"))]
pub struct PageState {
    /// First byte of the document.
    pub response_start: f64,
    /// The document is parsed and its handlers have run.
    pub dom_content_loaded: f64,
    /// The load event is over.
    pub load: f64,
    /// Something of the content was painted.
    pub first_paint: Option<f64>,
    /// Images of the document and of its frames of the same origin.
    pub images: usize,
    /// The number of images that were loaded and decoded.
    pub decoded: usize,
}

/// An error of a page load in a browser.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrowserError {
    /// The browser is not installed.
    #[error(
        "there is no {kind:?}: install it (Debian: apt-get install {}) or name it in {}; looked for {names}",
        kind.names()[0], kind.variable()
    )]
    Missing {
        /// The browser.
        kind: Kind,
        /// The names that were looked for.
        names: String,
    },
    /// The browser cannot be set up in this way.
    #[error("{0}")]
    Setting(String),
    /// It could not be started.
    #[error("cannot start {}: {source}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A directory for the profile could not be made.
    #[error("cannot make a profile for the browser: {0}")]
    Profile(io::Error),
    /// It ended.
    #[error("the browser ended unexpectedly{}{complaint}", if complaint.is_empty() { "" } else { ": " })]
    Ended {
        /// The last lines of its standard error.
        complaint: String,
    },
    /// The pipe or socket broke.
    #[error("the connection to the browser broke: {0}")]
    Pipe(io::Error),
    /// A message that is not understood.
    #[error("the browser sent an invalid message: {0}")]
    Message(serde_json::Error),
    /// A message without end.
    #[error("the browser sent a message of unreasonable length")]
    TooLong,
    /// The browser refuses a command.
    #[error("the browser refuses {method}: {why}")]
    Refused {
        /// The command.
        method: &'static str,
        /// The reason that it gives.
        why: String,
    },
    /// The document cannot be loaded.
    #[error("the browser cannot load {url}: {why}")]
    Navigation {
        /// The document.
        url: String,
        /// The reason in the browser's words.
        why: String,
    },
    /// Chromium drops its connections when an interface of the machine is added or removed, such as
    /// another program's tunnel. Behind a separate link it sees no such change.
    #[error("the machine's network changed during the load")]
    NetworkChanged,
    /// The page's process ended.
    #[error("the page crashed")]
    Crashed,
    /// The deadline passed.
    #[error("{done} requests ended and {open} are open after {after:?}; the page is {}loaded", if *loaded { "" } else { "not " })]
    Deadline {
        /// Requests that ended.
        done: usize,
        /// Requests that did not.
        open: usize,
        /// True once the load event came.
        loaded: bool,
        /// The deadline.
        after: Duration,
    },
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            kind: Kind::default(),
            program: None,
            proxy: None,
            resolve: Vec::new(),
            deadline: Duration::from_secs(300),
            arguments: Vec::new(),
            earlier: 0,
        }
    }
}

impl Settings {
    /// Returns the path of the program.
    pub fn find_program(&self) -> Result<PathBuf, BrowserError> {
        let missing = |names: String| BrowserError::Missing {
            kind: self.kind,
            names,
        };
        let given = self.program.clone();
        let named = || std::env::var_os(self.kind.variable()).map(PathBuf::from);
        if let Some(given) = given.or_else(named) {
            return match given.is_file() {
                true => Ok(given),
                false => Err(missing(given.display().to_string())),
            };
        }
        let names = self.kind.names();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders: Vec<_> = std::env::split_paths(&path).collect();
        let mut places = names
            .iter()
            .flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
        places
            .find(|place| place.is_file())
            .ok_or_else(|| missing(names.join(", ")))
    }
}

impl Browser {
    /// Starts the browser. Must be called within a runtime of tokio.
    pub async fn start(settings: &Settings) -> Result<Self, BrowserError> {
        if settings.earlier > 0 && settings.kind == Kind::Firefox {
            return Err(no_empty_cache());
        }
        let limit = Instant::now() + settings.deadline;
        let late = || BrowserError::Deadline {
            done: 0,
            open: 0,
            loaded: false,
            after: settings.deadline,
        };
        let started = async {
            Ok(match settings.kind {
                Kind::Chromium => Driver::Chromium(Box::new(Chromium::start(settings).await?)),
                Kind::Firefox => Driver::Firefox(Box::new(Firefox::start(settings).await?)),
            })
        };
        let driver = timeout_at(limit, started).await.map_err(|_| late())??;
        Ok(Self {
            driver,
            deadline: settings.deadline,
        })
    }

    /// Name and version.
    pub fn product(&self) -> (&str, &str) {
        let product = match &self.driver {
            Driver::Chromium(browser) => &browser.product,
            Driver::Firefox(browser) => &browser.product,
        };
        (&product.0, &product.1)
    }

    /// Returns the directory of the profile, which exists while the browser runs.
    pub fn profile(&self) -> &Path {
        match &self.driver {
            Driver::Chromium(browser) => browser.profile(),
            Driver::Firefox(browser) => browser.profile(),
        }
    }

    /// Loads a page. It is complete when its load event is over and all of `wanted` have ended, or
    /// nothing more was asked for within a second.
    pub async fn load(
        &mut self,
        url: &str,
        wanted: &HashSet<String>,
    ) -> Result<Visit, BrowserError> {
        let limit = Instant::now() + self.deadline;
        let loaded = match &mut self.driver {
            Driver::Chromium(browser) => timeout_at(limit, browser.load(url, wanted)).await,
            Driver::Firefox(browser) => timeout_at(limit, browser.load(url, wanted)).await,
        };
        let mut visit = loaded.map_err(|_| self.late())??;
        let (name, version) = self.product();
        visit.har.client = (name.to_owned(), version.to_owned());
        url.clone_into(&mut visit.har.title);
        visit.har.on_content_load = Some(visit.page.dom_content_loaded);
        visit.har.on_load = Some(visit.page.load);
        Ok(visit)
    }

    /// Leaves the page and empties the cache. The connections stay open.
    pub async fn empty_cache(&mut self) -> Result<(), BrowserError> {
        let limit = Instant::now() + self.deadline;
        let emptied = match &mut self.driver {
            Driver::Chromium(browser) => timeout_at(limit, browser.empty_cache()).await,
            Driver::Firefox(_) => return Err(no_empty_cache()),
        };
        emptied.map_err(|_| self.late())?
    }

    /// Ends the browser and waits until it is gone.
    pub async fn close(self) {
        match self.driver {
            Driver::Chromium(browser) => browser.close().await,
            Driver::Firefox(browser) => browser.close().await,
        }
    }

    fn late(&self) -> BrowserError {
        let ((done, open), loaded) = match &self.driver {
            Driver::Chromium(browser) => browser.progress(),
            Driver::Firefox(browser) => browser.progress(),
        };
        BrowserError::Deadline {
            done,
            open,
            loaded,
            after: self.deadline,
        }
    }
}

fn no_empty_cache() -> BrowserError {
    let problem = "Firefox does not empty its cache on command: use Chromium for earlier loads";
    BrowserError::Setting(problem.to_owned())
}

/// The script that asks a page for its state. The load event's end is known only after it.
const STATE: &str = r#"(async () => {
    const navigation = performance.getEntriesByType("navigation")[0];
    while (!(navigation.loadEventEnd > 0)) await new Promise(done => setTimeout(done, 1));
    let images = 0, decoded = 0;
    const count = part => {
        for (const image of part.images) {
            images++;
            if (image.complete && image.naturalWidth > 0) decoded++;
        }
        for (const frame of part.querySelectorAll("iframe")) if (frame.contentDocument) count(frame.contentDocument);
    };
    count(document);
    const paint = performance.getEntriesByName("first-contentful-paint")[0];
    return {
        responseStart: navigation.responseStart,
        domContentLoaded: navigation.domContentLoadedEventEnd,
        load: navigation.loadEventEnd,
        firstPaint: paint ? paint.startTime : null,
        images, decoded,
    };
})()"#;
