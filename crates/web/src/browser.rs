//! Headless Chromium, driven over its DevTools protocol: loads a page with a fresh profile, through
//! any proxy or none, and records every request.
//!
//! ```text
//!  process: Chromium, its pipe, its profile ──▶ protocol: commands and events ──▶ record: requests ──▶ Visit
//! ```
//!
//! Chromium is controlled without a port. It uses only the network of the thread that starts it.
//! Chromium and its profile are removed when a [`Browser`] is closed or dropped, and also when this
//! process is killed.

mod process;
mod protocol;
mod record;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use self::process::Process;
use self::protocol::{Message, Protocol};
use self::record::Record;
use crate::har::Har;

/// Names that Chromium goes by.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];
/// Names the program to use instead.
const PROGRAM: &str = "TANDEM_CHROMIUM";
/// A loaded page that asks for nothing more for so long is complete.
const QUIET: Duration = Duration::from_secs(1);

/// Chromium's name for a failed load by a network change.
const NETWORK_CHANGED: &str = "net::ERR_NETWORK_CHANGED";

/// The settings of Chromium.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program; by default `$TANDEM_CHROMIUM`, or the first of its usual names in `$PATH`.
    pub program: Option<PathBuf>,
    /// The proxy for everything, loopback included, as Chromium writes it: `http://HOST:PORT`,
    /// `https://…`, `socks5://…`.
    pub proxy: Option<String>,
    /// Names (`*` stands for any text) and the address, perhaps with a port, that they mean.
    pub resolve: Vec<(String, String)>,
    /// Time for the whole page. Default 300 s.
    pub deadline: Duration,
    /// Further arguments for Chromium.
    pub arguments: Vec<String>,
}

/// A running Chromium with one page.
#[derive(Debug)]
pub struct Browser {
    process: Process,
    protocol: Protocol,
    deadline: Duration,
    proxied: bool,
    /// Name and version.
    product: (String, String),
    /// The page's session.
    session: String,
    record: Record,
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

/// An error of a page load in Chromium.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrowserError {
    /// Chromium is not installed.
    #[error(
        "there is no Chromium: install it (Debian: apt-get install chromium) or name it in TANDEM_CHROMIUM; looked for {0}"
    )]
    Missing(String),
    /// It could not be started.
    #[error("cannot start {}: {source}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A directory for the profile could not be made.
    #[error("cannot make a profile for Chromium: {0}")]
    Profile(io::Error),
    /// It ended.
    #[error("Chromium ended unexpectedly{}{complaint}", if complaint.is_empty() { "" } else { ": " })]
    Ended {
        /// The last lines of its standard error.
        complaint: String,
    },
    /// The pipe broke.
    #[error("the pipe to Chromium broke: {0}")]
    Pipe(io::Error),
    /// A message that is not understood.
    #[error("Chromium sent an invalid DevTools message: {0}")]
    Message(serde_json::Error),
    /// A message without end.
    #[error("Chromium sent a message of unreasonable length")]
    TooLong,
    /// Chromium refuses a command.
    #[error("Chromium refuses {method}: {why}")]
    Refused {
        /// The command.
        method: &'static str,
        /// The reason that Chromium gives.
        why: String,
    },
    /// The document cannot be loaded.
    #[error("Chromium cannot load {url}: {why}")]
    Navigation {
        /// The document.
        url: String,
        /// The reason in Chromium's words.
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
            program: None,
            proxy: None,
            resolve: Vec::new(),
            deadline: Duration::from_secs(300),
            arguments: Vec::new(),
        }
    }
}

impl Settings {
    /// Returns the path of the program.
    pub fn find_program(&self) -> Result<PathBuf, BrowserError> {
        if let Some(given) = self
            .program
            .clone()
            .or_else(|| std::env::var_os(PROGRAM).map(PathBuf::from))
        {
            return if given.is_file() {
                Ok(given)
            } else {
                Err(BrowserError::Missing(given.display().to_string()))
            };
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut places =
            std::env::split_paths(&path).flat_map(|folder| NAMES.map(|name| folder.join(name)));
        places
            .find(|place| place.is_file())
            .ok_or_else(|| BrowserError::Missing(NAMES.join(", ")))
    }
}

impl Browser {
    /// Starts Chromium. Must be called within a runtime of tokio.
    pub async fn start(settings: &Settings) -> Result<Self, BrowserError> {
        let (process, pipe) = Process::start(settings)?;
        let mut browser = Self {
            process,
            protocol: Protocol::new(pipe),
            deadline: settings.deadline,
            proxied: settings.proxy.is_some(),
            product: Default::default(),
            session: String::new(),
            record: Record::default(),
        };
        let limit = Instant::now() + settings.deadline;
        match timeout_at(limit, browser.prepare()).await {
            Ok(Ok(())) => Ok(browser),
            Ok(Err(error)) => Err(browser.explain(error).await),
            Err(_) => Err(browser.late()),
        }
    }

    /// Name and version.
    pub fn product(&self) -> (&str, &str) {
        (&self.product.0, &self.product.1)
    }

    /// Returns the directory of the profile, which exists while Chromium runs.
    pub fn profile(&self) -> &Path {
        self.process.profile()
    }

    /// Loads a page. It is complete when its load event is over and all of `wanted` have ended, or
    /// nothing more was asked for within a second.
    pub async fn load(
        &mut self,
        url: &str,
        wanted: &HashSet<String>,
    ) -> Result<Visit, BrowserError> {
        self.record = Record::default();
        let limit = Instant::now() + self.deadline;
        match timeout_at(limit, self.navigate(url, wanted)).await {
            Ok(Ok(page)) => {
                let mut har = std::mem::take(&mut self.record).into_har(self.proxied);
                if har
                    .entries
                    .iter()
                    .any(|entry| entry.error.as_deref() == Some(NETWORK_CHANGED))
                {
                    return Err(BrowserError::NetworkChanged);
                }
                har.client = self.product.clone();
                har.title = url.to_owned();
                (har.on_content_load, har.on_load) =
                    (Some(page.dom_content_loaded), Some(page.load));
                Ok(Visit { page, har })
            }
            Ok(Err(error)) => Err(self.explain(error).await),
            Err(_) => Err(self.late()),
        }
    }

    /// Ends Chromium and waits until it is gone.
    pub async fn close(mut self) {
        let _ = self.protocol.send(None, "Browser.close", json!({})).await;
        self.process.end(self.protocol.into_pipe()).await;
    }

    fn late(&self) -> BrowserError {
        let (done, open) = self.record.counts();
        BrowserError::Deadline {
            done,
            open,
            loaded: self.record.is_loaded(),
            after: self.deadline,
        }
    }

    /// Adds Chromium's last words to the news of its end.
    async fn explain(&mut self, error: BrowserError) -> BrowserError {
        match error {
            BrowserError::Ended { .. } | BrowserError::Pipe(_) => BrowserError::Ended {
                complaint: self.process.complaint().await,
            },
            error => error,
        }
    }

    /// Opens a page, and asks to be told everything that happens in it.
    async fn prepare(&mut self) -> Result<(), BrowserError> {
        let version = self.call(None, "Browser.getVersion", json!({})).await?;
        let product = version["product"].as_str().unwrap_or_default();
        let (name, number) = product.split_once('/').unwrap_or((product, ""));
        self.product = (name.to_owned(), number.to_owned());
        // The page that Chromium opens at its start may not exist yet.
        let created = self
            .call(None, "Target.createTarget", json!({ "url": "about:blank" }))
            .await?;
        let target = &created["targetId"];
        let attached = json!({ "targetId": target, "flatten": true });
        let attached = self.call(None, "Target.attachToTarget", attached).await?;
        self.session = attached["sessionId"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let session = self.session.clone();
        self.call(Some(&session), "Page.enable", json!({})).await?;
        self.watch(&session).await?;
        // An answer to the last command means that the others have taken effect.
        self.call(Some(&session), "Runtime.runIfWaitingForDebugger", json!({}))
            .await
            .map(drop)
    }

    /// Asks for everything that happens in a session, and in those of its frames of other sites.
    async fn watch(&mut self, session: &str) -> Result<(), BrowserError> {
        let buffers = json!({ "maxTotalBufferSize": 1 << 20, "maxResourceBufferSize": 1 << 16 });
        self.protocol
            .send(Some(session), "Network.enable", buffers)
            .await?;
        let attach = json!({ "autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true });
        self.protocol
            .send(Some(session), "Target.setAutoAttach", attach)
            .await?;
        self.protocol
            .send(Some(session), "Runtime.runIfWaitingForDebugger", json!({}))
            .await
            .map(drop)
    }

    async fn navigate(
        &mut self,
        url: &str,
        wanted: &HashSet<String>,
    ) -> Result<PageState, BrowserError> {
        let session = self.session.clone();
        let answer = self
            .call(Some(&session), "Page.navigate", json!({ "url": url }))
            .await?;
        if let Some(why) = answer["errorText"].as_str() {
            return Err(match why {
                NETWORK_CHANGED => BrowserError::NetworkChanged,
                why => BrowserError::Navigation {
                    url: url.to_owned(),
                    why: why.to_owned(),
                },
            });
        }
        while !self.record.is_loaded() {
            self.step().await?;
        }
        // Between cause and request no time passes on the network, so silence means that nothing is
        // to come.
        let mut quiet = Instant::now() + QUIET;
        while !self.record.has_ended(wanted) {
            let limit = if self.record.counts().1 == 0 {
                quiet
            } else {
                Instant::now() + self.deadline
            };
            match timeout_at(limit, self.step()).await {
                Ok(result) => result?,
                Err(_) => break,
            }
            quiet = Instant::now() + QUIET;
        }
        self.state().await
    }

    /// Asks the page for its times and images.
    async fn state(&mut self) -> Result<PageState, BrowserError> {
        let session = self.session.clone();
        let ask = json!({ "expression": STATE, "returnByValue": true, "awaitPromise": true });
        let answer = self.call(Some(&session), "Runtime.evaluate", ask).await?;
        let value = answer.pointer("/result/value").cloned().unwrap_or_default();
        serde_json::from_value(value).map_err(BrowserError::Message)
    }

    /// Sends a command and waits for its result, and records the events that come before it.
    async fn call(
        &mut self,
        session: Option<&str>,
        method: &'static str,
        params: Value,
    ) -> Result<Value, BrowserError> {
        let id = self.protocol.send(session, method, params).await?;
        loop {
            let message = self.protocol.receive().await?;
            if message.id == Some(id) {
                return match message.error {
                    Some(refusal) => Err(BrowserError::Refused {
                        method,
                        why: refusal.message,
                    }),
                    None => Ok(message.result),
                };
            }
            self.take(message).await?;
        }
    }

    /// Takes the next message. Once dropped while it waits, nothing is lost.
    async fn step(&mut self) -> Result<(), BrowserError> {
        let message = self.protocol.receive().await?;
        self.take(message).await
    }

    async fn take(&mut self, message: Message) -> Result<(), BrowserError> {
        match message.method.as_str() {
            "Target.attachedToTarget" => {
                let session = message.params["sessionId"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                if session != self.session && !self.session.is_empty() {
                    self.watch(&session).await?;
                }
            }
            "Inspector.targetCrashed" | "Target.targetCrashed" => {
                return Err(BrowserError::Crashed);
            }
            "Page.loadEventFired" if message.session_id.as_deref() == Some(&self.session) => {
                self.record.loaded()
            }
            method => self.record.handle(method, &message.params),
        }
        Ok(())
    }
}

/// The load event's end is known only after it.
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
