//! Headless Firefox, driven over WebDriver BiDi. The WebSocket is on a free port of the loopback
//! interface, in the network of the thread that starts Firefox.
//!
//! ```text
//!  process: Firefox, its profile ──▶ socket: messages ──▶ record: requests ──▶ Visit
//! ```

mod preferences;
mod record;
mod socket;

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use self::record::{FetchTiming, FirefoxRecord};
use self::socket::Socket;
use super::load::{self, LoadingPage, Requests};
use super::process::{Pipe, Process};
use super::{BrowserError, PageState, STATE, Settings, Visit};

/// The script of the shell that runs Firefox until the pipe is closed. `$0` is the profile, the
/// rest is Firefox's command line.
const SHELL: &str = r#"
trap : INT TERM HUP
"$@" </dev/null >/dev/null &
exec 2>/dev/null
cat >/dev/null
kill -TERM 0
wait
"#;
/// The file in which Firefox names its port.
const SERVER: &str = "WebDriverBiDiServer.json";
/// The polling interval for that file.
const PAUSE: Duration = Duration::from_millis(20);

/// A running Firefox with one page.
#[derive(Debug)]
pub(super) struct Firefox {
    process: Process,
    pipe: Pipe,
    socket: Socket,
    last_id: u64,
    /// Name and version.
    pub(super) product: (String, String),
    /// The browsing context of the page.
    context: String,
    record: FirefoxRecord,
}

/// A message from Firefox: an answer has an `id`, an event a `method`.
#[derive(Debug, Deserialize)]
struct BiDiMessage {
    id: Option<u64>,
    #[serde(default)]
    method: String,
    #[serde(default)]
    params: Value,
    #[serde(default)]
    result: Value,
    error: Option<String>,
    #[serde(default)]
    message: String,
}

impl Firefox {
    /// Starts Firefox on an empty page.
    pub(super) async fn start(settings: &Settings) -> Result<Self, BrowserError> {
        let program = settings.find_program()?;
        let preferences = preferences::of(settings)?;
        let (mut process, pipe) = Process::start(&program, SHELL, |profile| {
            std::fs::write(profile.join("user.js"), preferences)?;
            let fixed = [
                "--headless",
                "--no-remote",
                "--remote-debugging-port=0",
                "--profile",
            ];
            let mut arguments: Vec<_> = fixed.map(Into::into).into();
            arguments.push(profile.into());
            arguments.extend(settings.arguments.iter().map(Into::into));
            Ok(arguments)
        })?;
        let socket = match connect(&mut process).await {
            Ok(socket) => socket,
            Err(error) => return Err(process.explain(error).await),
        };
        let mut browser = Self {
            process,
            pipe,
            socket,
            last_id: 0,
            product: Default::default(),
            context: String::new(),
            record: FirefoxRecord::default(),
        };
        match browser.prepare().await {
            Ok(()) => Ok(browser),
            Err(error) => Err(browser.process.explain(error).await),
        }
    }

    pub(super) fn profile(&self) -> &Path {
        self.process.profile()
    }

    /// Loads a page, without a time limit.
    pub(super) async fn load(
        &mut self,
        url: &str,
        wanted: &HashSet<String>,
    ) -> Result<Visit, BrowserError> {
        self.record = FirefoxRecord::default();
        match self.navigate(url, wanted).await {
            Ok(visit) => Ok(visit),
            Err(error) => Err(self.process.explain(error).await),
        }
    }

    /// Ends Firefox and waits until it is gone.
    pub(super) async fn close(mut self) {
        let _ = self.send("browser.close", json!({})).await;
        self.process.end(self.pipe).await;
    }

    /// Opens a page, and asks to be told everything that happens in it.
    async fn prepare(&mut self) -> Result<(), BrowserError> {
        let wanted = json!({ "capabilities": { "alwaysMatch": { "acceptInsecureCerts": true } } });
        let session = self.call("session.new", wanted).await?;
        let of = |name: &str| {
            let value = session["capabilities"][name].as_str();
            value.unwrap_or_default().to_owned()
        };
        self.product = ("Firefox".to_owned(), of("browserVersion"));
        let events = json!({ "events": ["network", "browsingContext.load"] });
        self.call("session.subscribe", events).await?;
        let tab = self
            .call("browsingContext.create", json!({ "type": "tab" }))
            .await?;
        tab["context"]
            .as_str()
            .unwrap_or_default()
            .clone_into(&mut self.context);
        Ok(())
    }

    async fn navigate(
        &mut self,
        url: &str,
        wanted: &HashSet<String>,
    ) -> Result<Visit, BrowserError> {
        let parameters = json!({ "context": self.context, "url": url, "wait": "none" });
        let navigated = self.call("browsingContext.navigate", parameters).await;
        navigated.map_err(|error| match error {
            BrowserError::Refused { why, .. } => BrowserError::Navigation {
                url: url.to_owned(),
                why,
            },
            error => error,
        })?;
        while !self.requests().is_loaded() {
            self.step().await?;
            if let Some(why) = self.record.failure_of(url) {
                return Err(BrowserError::Navigation {
                    url: url.to_owned(),
                    why: why.to_owned(),
                });
            }
        }
        load::complete(self, wanted).await?;
        // Events that arrive with the answer to the next command are no part of the page load.
        let har = std::mem::take(&mut self.record).into_har();
        let page = self.state().await?;
        Ok(Visit { page, har })
    }

    /// Asks the page for its times and images.
    async fn state(&mut self) -> Result<PageState, BrowserError> {
        let expression = format!("{STATE}.then(JSON.stringify)");
        let target = json!({ "context": self.context });
        let ask = json!({ "expression": expression, "target": target, "awaitPromise": true });
        let answer = self.call("script.evaluate", ask).await?;
        let text = answer["result"]["value"].as_str().unwrap_or_default();
        serde_json::from_str(text).map_err(BrowserError::Message)
    }

    async fn send(&mut self, method: &str, params: Value) -> Result<u64, BrowserError> {
        self.last_id += 1;
        let message = json!({ "id": self.last_id, "method": method, "params": params });
        self.socket.send(&message.to_string()).await?;
        Ok(self.last_id)
    }

    /// Sends a command and waits for its result, and records the events that come before it.
    async fn call(&mut self, method: &'static str, params: Value) -> Result<Value, BrowserError> {
        let id = self.send(method, params).await?;
        loop {
            let message = self.receive().await?;
            if message.id == Some(id) {
                return match message.error {
                    Some(error) => Err(BrowserError::Refused {
                        method,
                        why: format!("{error}: {}", message.message),
                    }),
                    None => Ok(message.result),
                };
            }
            self.take(&message);
        }
    }

    async fn receive(&mut self) -> Result<BiDiMessage, BrowserError> {
        let text = self.socket.receive().await?;
        serde_json::from_slice(&text).map_err(BrowserError::Message)
    }

    fn take(&mut self, message: &BiDiMessage) {
        let is_page = message.params["context"].as_str() == Some(&self.context);
        match message.method.as_str() {
            "browsingContext.load" if is_page => self.record.requests.loaded(),
            method => self.record.handle(method, &message.params),
        }
    }
}

impl LoadingPage for Firefox {
    type Phases = FetchTiming;

    fn requests(&self) -> &Requests<Self::Phases> {
        &self.record.requests
    }

    async fn step(&mut self) -> Result<(), BrowserError> {
        let message = self.receive().await?;
        self.take(&message);
        Ok(())
    }
}

/// Connects once Firefox has named its port, and fails if it ends before that.
async fn connect(process: &mut Process) -> Result<Socket, BrowserError> {
    let file = process.profile().join(SERVER);
    loop {
        // The file may be incomplete for a moment.
        let text = std::fs::read(&file).unwrap_or_default();
        let server: Value = serde_json::from_slice(&text).unwrap_or_default();
        let port = server["ws_port"].as_u64();
        if let Some(port) = port.and_then(|port| u16::try_from(port).ok()) {
            return Socket::connect(port, "/session").await;
        }
        if process.has_closed_errors() {
            return Err(BrowserError::Ended {
                complaint: String::new(),
            });
        }
        tokio::time::sleep(PAUSE).await;
    }
}
