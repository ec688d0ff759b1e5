//! Headless Chromium, driven over its DevTools protocol through a pipe, without a port. It uses
//! only the network of the thread that starts it.
//!
//! ```text
//!  process: Chromium, its pipe, its profile ──▶ protocol: commands and events ──▶ record: requests ──▶ Visit
//! ```

mod protocol;
mod record;

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::Path;

use serde_json::{Value, json};

use self::protocol::{DevTools, DevToolsMessage};
use self::record::{ChromiumRecord, ResourceTiming};
use super::load::{self, LoadingPage, Requests};
use super::process::Process;
use super::{BrowserError, PageState, STATE, Settings, Visit};
use crate::har::Entry;

/// Chromium's name for a failed load by a network change.
const NETWORK_CHANGED: &str = "net::ERR_NETWORK_CHANGED";

/// The script of the shell that runs Chromium: descriptors 3 and 4 are the pipe. `$0` is the
/// profile, the rest is Chromium's command line. Signals that the shell ignores (by a command,
/// since children inherit ignored signals) end Chromium's children.
const SHELL: &str = r#"
trap : INT TERM HUP
"$@" 3<&0 4>&1 </dev/null >/dev/null
kill -TERM 0
"#;

/// A running Chromium with one page.
#[derive(Debug)]
pub(super) struct Chromium {
    process: Process,
    protocol: DevTools,
    proxied: bool,
    /// Name and version.
    pub(super) product: (String, String),
    /// The page's session.
    session: String,
    record: ChromiumRecord,
}

impl Chromium {
    /// Starts Chromium on an empty page.
    pub(super) async fn start(settings: &Settings) -> Result<Self, BrowserError> {
        let program = settings.find_program()?;
        let (process, pipe) =
            Process::start(&program, SHELL, |profile| Ok(arguments(settings, profile)))?;
        let mut browser = Self {
            process,
            protocol: DevTools::new(pipe),
            proxied: settings.proxy.is_some(),
            product: Default::default(),
            session: String::new(),
            record: ChromiumRecord::default(),
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
        self.record = ChromiumRecord::default();
        let page = match self.navigate(url, wanted).await {
            Ok(page) => page,
            Err(error) => return Err(self.process.explain(error).await),
        };
        let har = std::mem::take(&mut self.record).into_har(self.proxied);
        let has_changed = |entry: &Entry| entry.error.as_deref() == Some(NETWORK_CHANGED);
        if har.entries.iter().any(has_changed) {
            return Err(BrowserError::NetworkChanged);
        }
        Ok(Visit { page, har })
    }

    /// Leaves the page and empties the cache, without a time limit.
    pub(super) async fn empty_cache(&mut self) -> Result<(), BrowserError> {
        let session = self.session.clone();
        let blank = json!({ "url": "about:blank" });
        self.call(Some(&session), "Page.navigate", blank).await?;
        self.call(Some(&session), "Network.clearBrowserCache", json!({}))
            .await
            .map(drop)
    }

    /// Ends Chromium and waits until it is gone.
    pub(super) async fn close(mut self) {
        let _ = self.protocol.send(None, "Browser.close", json!({})).await;
        self.process.end(self.protocol.into_pipe()).await;
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
        while !self.requests().is_loaded() {
            self.step().await?;
        }
        load::complete(self, wanted).await?;
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

    async fn take(&mut self, message: DevToolsMessage) -> Result<(), BrowserError> {
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
                self.record.requests.loaded()
            }
            method => self.record.handle(method, &message.params),
        }
        Ok(())
    }
}

impl LoadingPage for Chromium {
    type Phases = Option<ResourceTiming>;

    fn requests(&self) -> &Requests<Self::Phases> {
        &self.record.requests
    }

    async fn step(&mut self) -> Result<(), BrowserError> {
        let message = self.protocol.receive().await?;
        self.take(message).await
    }
}

/// Returns Chromium's command line: no background traffic, no prompts, no upgrades of schemes.
fn arguments(settings: &Settings, profile: &Path) -> Vec<OsString> {
    const FIXED: [&str; 23] = [
        "--headless",
        "--remote-debugging-pipe",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-quic",
        "--no-first-run",
        "--no-default-browser-check",
        "--no-pings",
        "--no-service-autorun",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-client-side-phishing-detection",
        "--disable-domain-reliability",
        "--disable-default-apps",
        "--disable-extensions",
        "--disable-sync",
        "--disable-breakpad",
        "--metrics-recording-only",
        "--mute-audio",
        "--password-store=basic",
        "--ignore-certificate-errors",
        "--disable-features=HttpsUpgrades,HttpsFirstBalancedModeAutoEnable,OptimizationHints,MediaRouter,Translate,\
         LocalNetworkAccessChecks,DnsOverHttpsUpgrade,NetworkTimeServiceQuerying",
    ];
    let mut arguments: Vec<OsString> = FIXED.iter().map(OsString::from).collect();
    let mut folder = OsString::from("--user-data-dir=");
    folder.push(profile);
    arguments.push(folder);
    match &settings.proxy {
        None => arguments.push("--no-proxy-server".into()),
        Some(proxy) => {
            arguments.push(format!("--proxy-server={proxy}").into());
            arguments.push("--proxy-bypass-list=<-loopback>".into());
        }
    }
    if !settings.resolve.is_empty() {
        let rules = settings
            .resolve
            .iter()
            .map(|(name, to)| format!("MAP {name} {to}"))
            .collect::<Vec<_>>();
        arguments.push(format!("--host-resolver-rules={}", rules.join(",")).into());
    }
    arguments.extend(settings.arguments.iter().map(OsString::from));
    arguments.push("about:blank".into());
    arguments
}
