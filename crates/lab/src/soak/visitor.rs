//! Visitors: each does one thing after the other until its time is over, and checks every byte.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tandem_http::Method;
use tokio::io::AsyncWriteExt;

use super::cast::VisitorListeners;
use super::origin::{self, Addresses};
use super::pattern::{self, Check, Choice};
use super::wire::Connection;

/// Isolation keys that visitors choose from: far more than a client keeps sessions for.
const KEYS: u64 = 5000;

/// The longest time for one action.
const ACTION_TIMEOUT: Duration = Duration::from_secs(60);

/// The pause after a failure, so that a proxy that is down is not asked without end.
const PAUSE: Duration = Duration::from_millis(200);

/// The actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// A page with its resources.
    Page,
    /// A large body.
    Download,
    /// A large body that is left halfway.
    Leave,
    /// An upload, of known length or in chunks.
    Upload,
    /// A tunnel by CONNECT or SOCKS5, echoed.
    Tunnel,
    /// An answer that breaks off at the origin.
    Break,
}

impl Action {
    const ALL: [Self; 6] = [
        Self::Page,
        Self::Download,
        Self::Leave,
        Self::Upload,
        Self::Tunnel,
        Self::Break,
    ];
}

/// The end of an action that did not go well.
#[derive(Debug)]
enum Trouble {
    /// The proxy failed, and said so.
    Failed(String),
    /// A byte was wrong, or an incomplete answer looked complete.
    Wrong(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// The counts of all visitors.
#[derive(Debug, Default)]
pub struct Counts {
    right: [AtomicU64; Action::ALL.len()],
    failed_where_killed: AtomicU64,
    bytes: AtomicU64,
    /// The first faults of those that should not have been, for the report.
    complaints: std::sync::Mutex<Vec<String>>,
    wrong: AtomicU64,
    failed_on_steady_way: AtomicU64,
}

/// Complaints that are kept.
const MAX_COMPLAINTS: usize = 50;

impl Counts {
    fn complain(&self, text: String) {
        // A poisoned list has lost nothing: a complaint is pushed whole.
        let mut complaints = self
            .complaints
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if complaints.len() < MAX_COMPLAINTS {
            complaints.push(text);
        }
    }

    /// The actions that went well, by kind.
    pub fn right(&self) -> impl Iterator<Item = (Action, u64)> {
        Action::ALL
            .into_iter()
            .zip(self.right.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Bytes that were checked.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Actions in which a byte was wrong.
    pub fn wrong(&self) -> u64 {
        self.wrong.load(Ordering::Relaxed)
    }

    /// Actions that failed on the way where nothing is killed.
    pub fn failed_on_steady_way(&self) -> u64 {
        self.failed_on_steady_way.load(Ordering::Relaxed)
    }

    /// Actions that failed where an end had been killed.
    pub fn failed_where_killed(&self) -> u64 {
        self.failed_where_killed.load(Ordering::Relaxed)
    }

    /// The first faults that should not have been, in words.
    pub fn complaints(&self) -> Vec<String> {
        let complaints = self
            .complaints
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        complaints.clone()
    }
}

/// A visitor.
#[derive(Debug)]
pub struct Visitor {
    /// The proxies that it goes through.
    pub way: VisitorListeners,
    /// The origin.
    pub origin: Addresses,
    /// Shared by all visitors.
    pub counts: Arc<Counts>,
    /// Seed of its choices.
    pub seed: u64,
}

impl Visitor {
    /// Acts until the time is over.
    pub async fn stay(self, until: Instant) {
        let mut choice = Choice::new(self.seed);
        while Instant::now() < until {
            let action = match choice.below(16) {
                0..=5 => Action::Page,
                6..=8 => Action::Download,
                9 => Action::Leave,
                10..=11 => Action::Upload,
                12..=14 => Action::Tunnel,
                _ => Action::Break,
            };
            let done = tokio::time::timeout(ACTION_TIMEOUT, self.act(action, &mut choice)).await;
            let done = done.unwrap_or_else(|_| Err(Trouble::Failed("no end in time".into())));
            self.note(action, done).await;
        }
    }

    async fn note(&self, action: Action, done: Result<u64, Trouble>) {
        let add = |count: &AtomicU64, number| count.fetch_add(number, Ordering::Relaxed);
        let steady = self.way.steady;
        match done {
            Ok(bytes) => {
                add(&self.counts.right[action as usize], 1);
                add(&self.counts.bytes, bytes);
                return;
            }
            Err(Trouble::Wrong(text)) => {
                add(&self.counts.wrong, 1);
                self.counts.complain(format!("wrong {action:?}: {text}"));
            }
            Err(Trouble::Failed(text)) if steady => {
                add(&self.counts.failed_on_steady_way, 1);
                self.counts.complain(format!("failed {action:?}: {text}"));
            }
            Err(Trouble::Failed(_)) => {
                add(&self.counts.failed_where_killed, 1);
            }
        }
        tokio::time::sleep(PAUSE).await;
    }

    async fn act(&self, action: Action, choice: &mut Choice) -> Result<u64, Trouble> {
        let key = choice.below(KEYS);
        match action {
            Action::Page => self.page(key, choice.number() >> 16).await,
            Action::Download => {
                let (seed, size) = (choice.number() >> 16, choice.below(2 << 20) as usize);
                let mut connection = Connection::open(self.way.http).await?;
                self.get(
                    &mut connection,
                    key,
                    &format!("/bytes/{seed}/{size}"),
                    seed,
                    size,
                )
                .await
            }
            Action::Leave => self.leave(key, choice.number() >> 16).await,
            Action::Upload => self.upload(key, choice).await,
            Action::Tunnel => self.tunnel(key, choice).await,
            Action::Break => self.broken(key, choice).await,
        }
    }

    fn request(&self, method: &str, key: u64, path: &str, fields: &str) -> String {
        let host = self.origin.http;
        format!(
            "{method} http://{host}{path} HTTP/1.1\r\nHost: {host}\r\n\
             Proxy-Authorization: Key {key}\r\nUser-Agent: soak\r\nAccept-Encoding: gzip\r\n{fields}\r\n"
        )
    }

    /// Gets a body and checks it, on another connection where this one was closed while it was
    /// idle.
    async fn get(
        &self,
        connection: &mut Connection,
        key: u64,
        path: &str,
        seed: u64,
        size: usize,
    ) -> Result<u64, Trouble> {
        let done = self.get_once(connection, key, path, seed, size).await;
        if matches!(done, Err(Trouble::Failed(_))) && connection.may_have_been_closed() {
            *connection = Connection::open(self.way.http).await?;
            return self.get_once(connection, key, path, seed, size).await;
        }
        done
    }

    async fn get_once(
        &self,
        connection: &mut Connection,
        key: u64,
        path: &str,
        seed: u64,
        size: usize,
    ) -> Result<u64, Trouble> {
        connection
            .send(self.request("GET", key, path, "Accept: */*\r\n").as_bytes())
            .await?;
        let mut check = Check::new(seed);
        let mut failed = false;
        let status = connection
            .answer(&Method::Get, |status, data| {
                if status == 200 {
                    check.take(data);
                } else {
                    failed = true;
                }
            })
            .await;
        let status = match status {
            Ok(status) => status,
            // The bytes before a break must be right too.
            Err(_) if check.length().is_none() => {
                return Err(Trouble::Wrong(format!("{path}: a wrong beginning")));
            }
            Err(error) => return Err(error.into()),
        };
        if failed || status != 200 {
            return Err(Trouble::Failed(format!("status {status}")));
        }
        if check.length() == Some(size as u64) {
            Ok(size as u64)
        } else {
            Err(Trouble::Wrong(format!(
                "{path}: {:?} of {size}",
                check.length()
            )))
        }
    }

    /// Loads a page as a browser does: its HTML, then its resources on a few connections.
    async fn page(&self, key: u64, number: u64) -> Result<u64, Trouble> {
        let mut first = Connection::open(self.way.http).await?;
        let path = format!("/page/{number}");
        let fields = "Accept: text/html\r\nSec-Fetch-Dest: document\r\n";
        first
            .send(self.request("GET", key, &path, fields).as_bytes())
            .await?;
        let mut html = Vec::new();
        let status = first
            .answer(&Method::Get, |_, data| html.extend_from_slice(data))
            .await?;
        if status != 200 {
            return Err(Trouble::Failed(format!("status {status}")));
        }
        if html != origin::page(number).as_bytes() {
            return Err(Trouble::Wrong(format!("{path}: other HTML")));
        }
        let resources: Vec<_> = origin::resources(number).collect();
        let mut second = Connection::open(self.way.http).await?;
        let half = resources.len() / 2;
        let load = async |connection: &mut Connection, part: &[(String, u64, usize)]| {
            let mut bytes = 0;
            for (path, seed, size) in part {
                bytes += self.get(connection, key, path, *seed, *size).await?;
            }
            Ok::<_, Trouble>(bytes)
        };
        let (one, other) = tokio::join!(
            load(&mut first, &resources[..half]),
            load(&mut second, &resources[half..])
        );
        Ok(html.len() as u64 + one? + other?)
    }

    /// Leaves a download in the middle.
    async fn leave(&self, key: u64, seed: u64) -> Result<u64, Trouble> {
        let mut connection = Connection::open(self.way.http).await?;
        let request = self.request("GET", key, &format!("/bytes/{seed}/4000000"), "");
        connection.send(request.as_bytes()).await?;
        let bytes = connection.raw(4000).await?;
        if bytes.starts_with(b"HTTP/1.1 ") {
            Ok(bytes.len() as u64)
        } else {
            Err(Trouble::Wrong("no status line".into()))
        }
    }

    async fn upload(&self, key: u64, choice: &mut Choice) -> Result<u64, Trouble> {
        let (seed, size) = (choice.number(), choice.below(500_000) as usize);
        let data = pattern::bytes(seed, 0, size);
        let chunked = choice.below(2) == 0;
        let framing = if chunked {
            "Transfer-Encoding: chunked\r\n".to_owned()
        } else {
            format!("Content-Length: {size}\r\n")
        };
        let mut connection = Connection::open(self.way.http).await?;
        connection
            .send(self.request("POST", key, "/sum", &framing).as_bytes())
            .await?;
        if chunked {
            for piece in data.chunks(20_000) {
                connection
                    .send(format!("{:x}\r\n", piece.len()).as_bytes())
                    .await?;
                connection.send(piece).await?;
                connection.send(b"\r\n").await?;
            }
            connection.send(b"0\r\n\r\n").await?;
        } else {
            connection.send(&data).await?;
        }
        let mut text = Vec::new();
        let status = connection
            .answer(&Method::Post, |_, data| text.extend_from_slice(data))
            .await?;
        if status != 200 {
            return Err(Trouble::Failed(format!("status {status}")));
        }
        let expected = format!("{size} {}", origin::sum(origin::EMPTY, &data));
        if text == expected.as_bytes() {
            Ok(size as u64)
        } else {
            Err(Trouble::Wrong(format!(
                "an upload of {size} bytes arrived otherwise"
            )))
        }
    }

    async fn tunnel(&self, key: u64, choice: &mut Choice) -> Result<u64, Trouble> {
        let target = self.origin.echo;
        let mut connection = if choice.below(2) == 0 {
            let mut connection = Connection::open(self.way.http).await?;
            let request = format!(
                "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Key {key}\r\n\r\n"
            );
            connection.send(request.as_bytes()).await?;
            let status = connection.answer(&Method::Connect, |_, _| {}).await?;
            if status != 200 {
                return Err(Trouble::Failed(format!("status {status}")));
            }
            connection
        } else {
            let mut connection = Connection::open(self.way.socks).await?;
            let reply = connection.socks(target, &key.to_string()).await?;
            if reply != 0 {
                return Err(Trouble::Failed(format!("SOCKS reply {reply}")));
            }
            connection
        };
        let mut bytes = 0;
        for _ in 0..choice.below(6) {
            let (seed, size) = (choice.number(), 1 + choice.below(30_000) as usize);
            let data = pattern::bytes(seed, 0, size);
            connection.send(&data).await?;
            if connection.raw(size).await? != data {
                return Err(Trouble::Wrong("the echo differs".into()));
            }
            bytes += size as u64;
        }
        if choice.below(2) == 0 {
            connection.stream.shutdown().await?;
        }
        Ok(bytes)
    }

    /// Gets an answer that breaks off. It must not look complete.
    async fn broken(&self, key: u64, choice: &mut Choice) -> Result<u64, Trouble> {
        let (seed, size) = (choice.number() >> 16, 1000 + choice.below(200_000));
        let mut connection = Connection::open(self.way.http).await?;
        let path = format!("/break/{seed}/{size}");
        connection
            .send(self.request("GET", key, &path, "").as_bytes())
            .await?;
        let mut check = Check::new(seed);
        let answer = connection
            .answer(&Method::Get, |status, data| {
                if status == 200 {
                    check.take(data);
                }
            })
            .await;
        match answer {
            Ok(200) => Err(Trouble::Wrong(format!("{path} looked complete"))),
            Ok(status) if status >= 500 => Ok(0),
            Ok(status) => Err(Trouble::Failed(format!("status {status}"))),
            Err(_) => check
                .length()
                .ok_or_else(|| Trouble::Wrong(format!("{path}: a wrong beginning"))),
        }
    }
}
