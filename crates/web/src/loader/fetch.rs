//! A browser's request and its response.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Buf;
use tandem_http::h1::{Decoder, Limits, Response, parse_response};
use tandem_http::{Method, Priority, ResponseHead};
use tokio::sync::OnceCell;
use tokio::sync::mpsc::UnboundedSender;
use tokio_rustls::TlsConnector;

use super::connection::{Goal, LoaderConnection};
use super::cookies::Cookies;
use super::metered::Traffic;
use super::request::Asked;
use super::session::{LoaderSession, Piece};
use super::{Discovery, Fault, Load, Loader, Protocol, Timing, request};
use crate::page::{ResourceKind, Site};

/// A request with everything that it needs.
pub(super) struct Job {
    pub(super) loader: Arc<Loader>,
    pub(super) site: Site,
    pub(super) resource: usize,
    /// The browser has a copy that must be validated.
    pub(super) is_conditional: bool,
    /// The browser's cookies.
    pub(super) cookies: Arc<Cookies>,
    /// A kept connection, or none.
    pub(super) connection: Option<LoaderConnection>,
    /// The authority's session, once there is one.
    pub(super) session: Arc<OnceCell<LoaderSession>>,
    pub(super) tls: TlsConnector,
    /// The channel for references as they arrive.
    pub(super) found: UnboundedSender<usize>,
    /// Start of the load.
    pub(super) origin: Instant,
    /// The time at which the resource became known.
    pub(super) known: Instant,
}

/// A request that was answered rightly.
pub(super) struct Done {
    pub(super) timing: Timing,
    pub(super) traffic: Traffic,
    /// The connection, if it is still usable.
    pub(super) connection: Option<LoaderConnection>,
    pub(super) opened: usize,
    pub(super) retried: bool,
}

/// The end times of the phases.
#[derive(Clone, Copy)]
struct Marks {
    start: Instant,
    connected: Option<Instant>,
    tls: Option<Duration>,
    sent: Instant,
    answered: Instant,
}

impl Job {
    /// Does it.
    pub(super) async fn run(self) -> Result<Done, Fault> {
        match self.loader.protocol {
            Protocol::Http1 => self.run_alone().await,
            Protocol::H2 => self.run_in_session().await,
        }
    }

    /// Runs the request on its own connection. Sends it again on a new connection if a kept one
    /// turns out to be closed before the response.
    async fn run_alone(mut self) -> Result<Done, Fault> {
        let start = Instant::now();
        let request = request::bytes(&self.loader, &self.site, &self.asked());
        let mut spent = Traffic::default();
        let mut retried = false;
        if let Some(mut connection) = self.connection.take() {
            match self.exchange(&mut connection, &request, start, None).await {
                Err(Stop::Stale) => {
                    spent = connection.meter.take();
                    retried = true;
                }
                Err(Stop::Fault(fault)) => return Err(fault),
                Ok(answer) => return Ok(self.done(connection, answer, spent, retried)),
            }
        }
        let mut connection = self.connect().await?;
        match self
            .exchange(&mut connection, &request, start, Some(Instant::now()))
            .await
        {
            Ok(answer) => Ok(self.done(connection, answer, spent, retried)),
            Err(Stop::Stale) => Err(Fault::Closed),
            Err(Stop::Fault(fault)) => Err(fault),
        }
    }

    fn asked(&self) -> Asked {
        Asked {
            resource: self.resource,
            is_conditional: self.is_conditional,
            cookies: self.cookies.field(&self.site, self.resource),
        }
    }

    async fn connect(&self) -> Result<LoaderConnection, Fault> {
        let goal = Goal {
            scheme: self.site.scheme(),
            authority: self.site.authority(self.resource),
        };
        LoaderConnection::open(&self.loader, &self.tls, goal).await
    }

    /// On a stream of the authority's session, which the first request opens while others wait.
    async fn run_in_session(self) -> Result<Done, Fault> {
        let began = Instant::now();
        let mut opened = None;
        let open = async {
            let connection = self.connect().await?;
            opened = Some((Instant::now(), connection.tls));
            Ok::<_, Fault>(LoaderSession::start(connection))
        };
        let cell = Arc::clone(&self.session);
        let session = cell.get_or_try_init(|| open).await?;
        // A request that did not open the session has waited for it.
        let start = if opened.is_some() {
            began
        } else {
            Instant::now()
        };
        let head = request::head(&self.loader, &self.site, &self.asked());
        let priority = Priority(self.site.page().resources[self.resource].kind.rank());
        let mut pieces = session.request(head, priority);
        let (mut sent, mut answered, mut status, mut note) = (None, None, 0, None);
        let mut check = Check::new(&self);
        let end = loop {
            match pieces.recv().await.ok_or(Fault::Closed)? {
                Piece::Sent(at) => sent = Some(at),
                Piece::Head(head, at) => {
                    self.check_status(&head)?;
                    self.cookies.take(&self.site, self.resource, &head.fields);
                    (answered, status, note) = (Some(at), head.status, note_of(&head));
                }
                Piece::Data(data, last, at) => {
                    check.take(&data)?;
                    if last {
                        break at;
                    }
                }
                Piece::Failed(reason) => return Err(Fault::Reset(reason)),
            }
        };
        let body = check.finish(status)?;
        let connected = opened.map(|(at, _)| at);
        let answered = answered.unwrap_or(end);
        let sent = sent
            .unwrap_or(answered)
            .max(connected.unwrap_or(start))
            .min(answered);
        let marks = Marks {
            start,
            connected,
            tls: opened.and_then(|(_, tls)| tls),
            sent,
            answered,
        };
        let answer = FetchAnswer {
            marks,
            end,
            keep_alive: false,
            status,
            body,
            note,
        };
        Ok(self.report(answer, session.meter.take(), None, false))
    }

    fn done(
        &self,
        connection: LoaderConnection,
        answer: FetchAnswer,
        spent: Traffic,
        retried: bool,
    ) -> Done {
        let traffic = connection.meter.take().and(spent);
        let connection = answer.keep_alive.then_some(connection);
        self.report(answer, traffic, connection, retried)
    }

    fn report(
        &self,
        answer: FetchAnswer,
        traffic: Traffic,
        connection: Option<LoaderConnection>,
        retried: bool,
    ) -> Done {
        let FetchAnswer {
            marks,
            end,
            status,
            body,
            note,
            ..
        } = answer;
        let ready = marks.connected.unwrap_or(marks.start);
        let timing = Timing {
            resource: self.resource,
            status,
            known: self.known - self.origin,
            start: marks.start - self.origin,
            connect: marks.connected.map(|at| at - marks.start),
            tls: marks.tls,
            send: marks.sent - ready,
            wait: marks.answered - marks.sent,
            receive: end - marks.answered,
            bytes_up: traffic.up,
            bytes_down: traffic.down,
            body,
            note,
        };
        Done {
            timing,
            traffic,
            connection,
            opened: usize::from(marks.connected.is_some()),
            retried,
        }
    }

    async fn exchange(
        &self,
        connection: &mut LoaderConnection,
        request: &[u8],
        start: Instant,
        connected: Option<Instant>,
    ) -> Result<FetchAnswer, Stop> {
        connection.send(request).await.map_err(Stop::stale)?;
        let sent = Instant::now();
        while connection.input.is_empty() {
            if connection.receive().await.map_err(Stop::from)? == 0 {
                return Err(Stop::Stale);
            }
        }
        let tls = connected.and(connection.tls);
        let marks = Marks {
            start,
            connected,
            tls,
            sent,
            answered: Instant::now(),
        };
        let response = self.head(connection).await?;
        self.check_status(&response.head)?;
        let set = &response.head.fields;
        self.cookies.take(&self.site, self.resource, set);
        let body = self.body(connection, &response).await?;
        let keep_alive = response.keep_alive && connection.input.is_empty();
        let (status, note) = (response.head.status, note_of(&response.head));
        Ok(FetchAnswer {
            marks,
            end: Instant::now(),
            keep_alive,
            status,
            body,
            note,
        })
    }

    /// The final head; interim ones are passed over.
    async fn head(&self, connection: &mut LoaderConnection) -> Result<Response, Fault> {
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

    fn check_status(&self, head: &ResponseHead) -> Result<(), Fault> {
        let wanted = self.site.page().resources[self.resource].status;
        let got = head.status;
        if got == wanted || (got == 304 && self.is_conditional) {
            return Ok(());
        }
        let said = head.fields.get("proxy-status").map(String::from_utf8_lossy);
        let detail = said.map_or_else(String::new, |said| format!(" ({said})"));
        Err(Fault::Status {
            wanted,
            got,
            detail,
        })
    }

    /// Reads the body and compares it with the page's as it comes; gives its length.
    async fn body(
        &self,
        connection: &mut LoaderConnection,
        response: &Response,
    ) -> Result<u64, Fault> {
        let mut decoder = Decoder::new(response.framing);
        let mut check = Check::new(self);
        while !decoder.is_done() {
            if connection.input.is_empty() && connection.receive().await? == 0 {
                decoder.finish()?;
                break;
            }
            let decoded = decoder.decode(&connection.input)?;
            check.take(&connection.input[decoded.data])?;
            connection.input.advance(decoded.consumed);
        }
        check.finish(response.head.status)
    }
}

/// Compares a body with the page's as it arrives, and tells the plan the references in it.
struct Check<'a> {
    job: &'a Job,
    right: &'a [u8],
    at: usize,
    mentioned: usize,
}

impl<'a> Check<'a> {
    fn new(job: &'a Job) -> Self {
        Self {
            job,
            right: &job.site.asset(job.resource).body,
            at: 0,
            mentioned: 0,
        }
    }

    fn take(&mut self, piece: &[u8]) -> Result<(), Fault> {
        let same = self.right[self.at..]
            .iter()
            .zip(piece)
            .take_while(|(a, b)| a == b)
            .count();
        self.at += same;
        if same < piece.len() {
            return Err(Fault::Content {
                at: self.at,
                len: self.right.len(),
            });
        }
        self.report();
        Ok(())
    }

    /// Tells the plan the references in the part of a document that has arrived. Other resources
    /// report theirs when they are complete.
    fn report(&mut self) {
        let Job {
            site,
            resource,
            loader,
            found,
            ..
        } = self.job;
        if site.page().resources[*resource].kind != ResourceKind::Html
            || loader.discovery == Discovery::List
        {
            return;
        }
        let references = &site.asset(*resource).references;
        while let Some(reference) = references.get(self.mentioned).filter(|r| r.end <= self.at) {
            // The receiver is gone once another resource has failed.
            let _ = found.send(reference.child);
            self.mentioned += 1;
        }
    }

    /// The body's length, if it is all there. A 304 has none: the browser has the body.
    fn finish(self, status: u16) -> Result<u64, Fault> {
        let (at, len) = (self.at, self.right.len());
        if at == len || (at == 0 && status == 304) {
            Ok(at as u64)
        } else {
            Err(Fault::Content { at, len })
        }
    }
}

/// A response and its timing.
struct FetchAnswer {
    marks: Marks,
    end: Instant,
    keep_alive: bool,
    status: u16,
    body: u64,
    note: Option<String>,
}

fn note_of(head: &ResponseHead) -> Option<String> {
    head.fields
        .get("cache-status")
        .map(|note| String::from_utf8_lossy(note).into_owned())
}

/// The reason for the end of an exchange.
enum Stop {
    /// The connection was closed before a byte of the answer.
    Stale,
    Fault(Fault),
}

impl Stop {
    fn stale(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionAborted => Self::Stale,
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

impl Load {
    /// Adds the results of a request.
    pub(super) fn add(&mut self, done: &Done) {
        self.bytes_up += done.traffic.up;
        self.bytes_down += done.traffic.down;
        self.connections += done.opened;
        self.retries += usize::from(done.retried);
        self.requests.push(done.timing.clone());
    }

    /// Returns a load without requests.
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
