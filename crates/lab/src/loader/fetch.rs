//! One request of a browser and its answer.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Buf;
use tandem_http::Method;
use tandem_http::h1::{Decoder, Limits, Response, parse_response};
use tandem_http::message::is_token;
use tokio::sync::mpsc::UnboundedSender;

use super::connection::{Connection, Traffic};
use super::{Discovery, Fault, Load, Loader, Timing, Via};
use crate::page::{Kind, Site};

const USER_AGENT: &str =
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/143.0.0.0 Safari/537.36";

/// What a request needs.
pub(super) struct Job {
    pub(super) loader: Arc<Loader>,
    pub(super) site: Site,
    pub(super) resource: usize,
    /// A kept connection, or none.
    pub(super) connection: Option<Connection>,
    /// Where references go as they arrive.
    pub(super) found: UnboundedSender<usize>,
    /// Start of the load.
    pub(super) origin: Instant,
    /// When the resource became known.
    pub(super) known: Instant,
}

/// A request that was answered rightly.
pub(super) struct Done {
    pub(super) timing: Timing,
    pub(super) traffic: Traffic,
    /// Still usable.
    pub(super) connection: Option<Connection>,
    pub(super) opened: usize,
    pub(super) retried: bool,
}

/// When which phase ended.
#[derive(Clone, Copy)]
struct Marks {
    start: Instant,
    connected: Option<Instant>,
    sent: Instant,
    answered: Instant,
}

impl Job {
    /// Does it; sends again on a new connection when a kept one turns out to be closed before it answers.
    pub(super) async fn run(mut self) -> Result<Done, Fault> {
        let start = Instant::now();
        let request = request(&self.loader, &self.site, self.resource);
        let mut spent = Traffic::default();
        let mut retried = false;
        if let Some(mut connection) = self.connection.take() {
            match self.exchange(&mut connection, &request, start, None).await {
                Err(Stop::Stale) => {
                    spent = connection.take_traffic();
                    retried = true;
                }
                Err(Stop::Fault(fault)) => return Err(fault),
                Ok(answer) => return Ok(self.done(connection, answer, spent, retried)),
            }
        }
        let authority = self.site.authority(self.resource);
        let mut connection = Connection::open(&self.loader.via, authority, self.loader.optimistic).await?;
        match self.exchange(&mut connection, &request, start, Some(Instant::now())).await {
            Ok(answer) => Ok(self.done(connection, answer, spent, retried)),
            Err(Stop::Stale) => Err(Fault::Closed),
            Err(Stop::Fault(fault)) => Err(fault),
        }
    }

    fn done(&self, mut connection: Connection, answer: Answer, spent: Traffic, retried: bool) -> Done {
        let traffic = connection.take_traffic().and(spent);
        let Answer { marks, end, keep_alive, status, body } = answer;
        let ready = marks.connected.unwrap_or(marks.start);
        let timing = Timing {
            resource: self.resource,
            status,
            known: self.known - self.origin,
            start: marks.start - self.origin,
            connect: marks.connected.map(|at| at - marks.start),
            send: marks.sent - ready,
            wait: marks.answered - marks.sent,
            receive: end - marks.answered,
            bytes_up: traffic.up,
            bytes_down: traffic.down,
            body,
        };
        let opened = usize::from(marks.connected.is_some());
        Done { timing, traffic, connection: keep_alive.then_some(connection), opened, retried }
    }

    async fn exchange(
        &self,
        connection: &mut Connection,
        request: &[u8],
        start: Instant,
        connected: Option<Instant>,
    ) -> Result<Answer, Stop> {
        connection.send(request).await.map_err(Stop::stale)?;
        let sent = Instant::now();
        while connection.input.is_empty() {
            if connection.receive().await.map_err(Stop::from)? == 0 {
                return Err(Stop::Stale);
            }
        }
        let marks = Marks { start, connected, sent, answered: Instant::now() };
        let response = self.head(connection).await?;
        self.check_status(&response)?;
        let body = self.body(connection, &response).await?;
        let keep_alive = response.keep_alive && connection.input.is_empty();
        Ok(Answer { marks, end: Instant::now(), keep_alive, status: response.head.status, body })
    }

    /// The final head; interim ones are passed over.
    async fn head(&self, connection: &mut Connection) -> Result<Response, Fault> {
        loop {
            match parse_response(&connection.input, &Method::Get, &Limits::default())? {
                Some((response, used)) => {
                    connection.input.advance(used);
                    if !response.head.is_informational() {
                        return Ok(response);
                    }
                }
                None if connection.receive().await? == 0 => return Err(Fault::Closed),
                None => {}
            }
        }
    }

    fn check_status(&self, response: &Response) -> Result<(), Fault> {
        let wanted = self.site.page().resources[self.resource].status;
        let got = response.head.status;
        if got == wanted {
            return Ok(());
        }
        let said = response.head.fields.get("proxy-status").map(String::from_utf8_lossy);
        let detail = said.map_or_else(String::new, |said| format!(" ({said})"));
        Err(Fault::Status { wanted, got, detail })
    }

    /// Reads the body and compares it with the page's as it comes; gives its length.
    async fn body(&self, connection: &mut Connection, response: &Response) -> Result<u64, Fault> {
        let right = &self.site.asset(self.resource).body;
        let mut decoder = Decoder::new(response.framing);
        let mut at = 0;
        let mut mentioned = 0;
        while !decoder.is_done() {
            if connection.input.is_empty() && connection.receive().await? == 0 {
                decoder.finish()?;
                break;
            }
            let decoded = decoder.decode(&connection.input)?;
            let piece = &connection.input[decoded.data];
            let same = right[at..].iter().zip(piece).take_while(|(a, b)| a == b).count();
            if same < piece.len() {
                return Err(Fault::Content { at: at + same, len: right.len() });
            }
            at += same;
            connection.input.advance(decoded.consumed);
            self.report(at, &mut mentioned);
        }
        if at == right.len() { Ok(at as u64) } else { Err(Fault::Content { at, len: right.len() }) }
    }

    /// Tells the plan what a document's beginning mentions; everything else speaks when it is complete.
    fn report(&self, arrived: usize, mentioned: &mut usize) {
        let kind = self.site.page().resources[self.resource].kind;
        if kind != Kind::Html || self.loader.discovery == Discovery::List {
            return;
        }
        let references = &self.site.asset(self.resource).references;
        while let Some(reference) = references.get(*mentioned).filter(|r| r.end <= arrived) {
            // Nobody listens any more once another resource has failed.
            let _ = self.found.send(reference.child);
            *mentioned += 1;
        }
    }
}

/// What came back.
struct Answer {
    marks: Marks,
    end: Instant,
    keep_alive: bool,
    status: u16,
    body: u64,
}

/// Why an exchange stopped.
enum Stop {
    /// The connection was closed before a byte of the answer.
    Stale,
    Fault(Fault),
}

impl Stop {
    fn stale(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted => {
                Self::Stale
            }
            _ => Self::Fault(error.into()),
        }
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Broken(error) => Self::stale(error),
            fault => Self::Fault(fault),
        }
    }
}

/// The bytes of a request as Chromium writes it, in absolute form for a proxy.
fn request(loader: &Loader, site: &Site, index: usize) -> Vec<u8> {
    let resource = &site.page().resources[index];
    let authority = site.authority(index);
    let (target, connection) = match loader.via {
        Via::Http { .. } => (site.url(index), "Proxy-Connection"),
        Via::Direct | Via::Socks5 { .. } => (resource.path.clone(), "Connection"),
    };
    let mut text = format!("GET {target} HTTP/1.1\r\nHost: {authority}\r\n{connection}: keep-alive\r\n");
    if resource.kind == Kind::Html {
        text.push_str("Upgrade-Insecure-Requests: 1\r\n");
    }
    text.push_str(&format!("User-Agent: {USER_AGENT}\r\nAccept: {}\r\n", accept(resource.kind)));
    if let Some(referer) = referer(site, index) {
        text.push_str(&format!("Referer: {referer}\r\n"));
    }
    text.push_str("Accept-Encoding: gzip, deflate\r\nAccept-Language: en-US,en;q=0.9\r\n");
    for (name, value) in &loader.headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    text.into_bytes()
}

const fn accept(kind: Kind) -> &'static str {
    match kind {
        Kind::Html => {
            "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8,\
             application/signed-exchange;v=b3;q=0.7"
        }
        Kind::Css => "text/css,*/*;q=0.1",
        Kind::Image => "image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8",
        Kind::Script | Kind::Font | Kind::Fetch => "*/*",
    }
}

/// The whole address of what mentions it on the same authority, only the origin elsewhere.
fn referer(site: &Site, index: usize) -> Option<String> {
    let parent = site.page().resources[index].parent?;
    if site.authority(parent) == site.authority(index) {
        Some(site.url(parent))
    } else {
        Some(format!("http://{}/", site.authority(parent)))
    }
}

/// Whether a field can be written as it is.
pub(super) fn is_field(name: &str, value: &str) -> bool {
    !name.is_empty() && name.bytes().all(is_token) && value.bytes().all(|b| b == b' ' || b.is_ascii_graphic())
}

impl Load {
    /// Adds what a request brought.
    pub(super) fn add(&mut self, done: &Done) {
        self.bytes_up += done.traffic.up;
        self.bytes_down += done.traffic.down;
        self.connections += done.opened;
        self.retries += usize::from(done.retried);
        self.requests.push(done.timing);
    }

    /// Nothing loaded yet.
    pub(super) fn empty(page: String) -> Self {
        Self {
            page,
            started: std::time::SystemTime::now(),
            time: Duration::ZERO,
            bytes_up: 0,
            bytes_down: 0,
            connections: 0,
            retries: 0,
            requests: Vec::new(),
        }
    }
}
