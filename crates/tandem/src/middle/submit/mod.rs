//! Anonymous submissions: the last stage of a gateway with `--mode submit=URL`, before the way to
//! the server.
//!
//! ```text
//!  POST /submissions ─▶ accept ─▶ store ─▶ deliver ─▶ back ─▶ server
//!  GET  /submissions/ID ────────▶ store
//! ```
//!
//! - `accept` checks the credential and the rights, reads the body and stores the submission.
//! - `budget` bounds the memory of bodies and the number of deliveries.
//! - `oblivious` takes submissions of clients without accounts, which spend tokens.
//! - [`deliver`] signs a submission and sends it to the server, until the server answers.
//! - [`signer`] holds the key of the gateway, and `respond` builds the responses.
//!
//! A submission is stored before it is sent and before the client gets a response. After a crash,
//! the gateway sends it again with the same identifier. `tandem_submit` holds the formats.

pub(super) mod accept;
mod budget;
pub mod deliver;
#[cfg(feature = "submit")]
pub mod oblivious;
pub(super) mod respond;
pub mod signer;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tandem_http::{Fields, Method, Scheme};
use tandem_submit::problem::{self, Problem};
use tandem_submit::rights::Rights;
use tandem_submit::store::{Admission, Millis, NewSubmission, Store, StoreError};
use tandem_submit::submission::{SubmissionId, secret};
use tandem_submit::{directory, submission};
use tokio::time::Instant;

use crate::exchange::{Exchange, Reply};
use crate::journal::Problems;
use crate::log_limit::LogLimit;
use crate::metrics::METRICS;
use crate::renewal::Renewable;
use crate::stage::Stage;
use budget::Budget;
use respond::Response;
use signer::Signer;

/// The path of submissions.
pub const SUBMISSIONS: &str = "/submissions";

static STORE_FAILURES: LogLimit = LogLimit::new();

/// The server that gets the submissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmissionServer {
    /// The scheme of requests.
    pub scheme: Scheme,
    /// The host, with the port unless it is the default port of the scheme.
    pub authority: String,
    /// The path of the server's resource, without a slash at its end.
    pub base: String,
}

impl SubmissionServer {
    /// Returns the URL, by which the store knows the server.
    pub fn url(&self) -> String {
        let scheme = self.scheme.as_str();
        format!("{scheme}://{}{}", self.authority, self.base)
    }
}

/// The store of submissions, as a gateway uses it.
pub struct StorePlace {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The bytes that it may hold.
    pub max_stored: u64,
    /// The place for the fault of a store that cannot be used.
    pub faults: Arc<Problems>,
}

/// The name of that fault.
const FAULT: &str = "submit-store";

/// The times of submissions.
#[derive(Clone, Copy, Debug)]
pub struct SubmissionTimes {
    /// The time for which a client waits for the server's answer before it gets status 202.
    pub wait: Duration,
    /// The time limit of one attempt at delivery, for an empty body.
    pub attempt: Duration,
    /// The time for which deliveries are tried.
    pub retry: Duration,
    /// The time for which answers are kept.
    pub keep: Duration,
    /// The time limit of a pause within the body of a request.
    pub pause: Duration,
}

/// The submissions of one thread.
pub struct Submissions {
    server: SubmissionServer,
    times: SubmissionTimes,
    rights: Arc<Renewable<Rights>>,
    signer: Arc<Signer>,
    store: Arc<dyn Store>,
    /// The way to the server.
    next: Rc<dyn Stage>,
    budget: Rc<Budget>,
    /// The memory of encapsulated requests, whose clients have shown no right to any memory.
    #[cfg(feature = "submit")]
    encapsulated: Rc<Budget>,
    /// The bytes that the store may hold.
    max_stored: u64,
    faults: Arc<Problems>,
    /// The bytes that the store held at the last look.
    stored: Cell<u64>,
    /// True after the warning about submissions for other servers.
    has_warned: Cell<bool>,
    /// The unlinkable mode, if the gateway has issuers.
    #[cfg(feature = "submit")]
    unlinkable: Option<Arc<oblivious::Unlinkable>>,
}

impl Submissions {
    /// Creates the submissions of a thread. Stored submissions are delivered as long as the result
    /// exists.
    pub fn new(
        server: SubmissionServer,
        times: SubmissionTimes,
        rights: Arc<Renewable<Rights>>,
        signer: Arc<Signer>,
        place: StorePlace,
        next: Rc<dyn Stage>,
        #[cfg(feature = "submit")] unlinkable: Option<Arc<oblivious::Unlinkable>>,
    ) -> Rc<Self> {
        Self::start(Self {
            server,
            times,
            rights,
            signer,
            store: place.store,
            next,
            budget: Rc::default(),
            #[cfg(feature = "submit")]
            encapsulated: Rc::default(),
            max_stored: place.max_stored,
            faults: place.faults,
            stored: Cell::new(0),
            has_warned: Cell::new(false),
            #[cfg(feature = "submit")]
            unlinkable,
        })
    }

    fn start(submissions: Self) -> Rc<Self> {
        METRICS.submission_store.set(1);
        let submissions = Rc::new(submissions);
        tokio::task::spawn_local(deliver::recover(Rc::downgrade(&submissions)));
        submissions
    }

    /// Stores a submission, and measures the time of the commit. A failure is logged and counted.
    async fn commit(&self, new: NewSubmission) -> Result<Admission, Problem> {
        let begun = Instant::now();
        let admission = self.store.admit(new).await;
        let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        METRICS.submission_commits.add(1);
        METRICS.submission_commit_us.add(micros);
        admission.map_err(|error| {
            METRICS.submission_commit_failures.add(1);
            self.note(&error);
            Problem::StoreFailed
        })
    }

    /// Logs a failure of the store, which concerns the operator and no client.
    fn note(&self, error: &StoreError) {
        if let Some(held_back) = STORE_FAILURES.admit() {
            tracing::error!(
                %error,
                "submissions cannot be stored ({held_back} more since the last line): check that \
                 the store can be reached, and has space and permissions"
            );
        }
    }

    /// Shows that the store cannot be used, or that it can again.
    fn show_fault(&self, error: Option<&StoreError>) {
        let fault = error.map(|error| {
            format!(
                "the store of submissions cannot be used ({}): check that it can be reached, \
                 and has space and permissions",
                error.0
            )
        });
        self.faults.set(FAULT, fault.as_deref());
    }

    /// Answers a question about the submission with this path below [`SUBMISSIONS`].
    async fn state_of(&self, fields: &Fields, path: &str) -> Response {
        let (id, wants_answer) = match path.strip_suffix("/answer") {
            Some(id) => (id, true),
            None => (path, false),
        };
        let (Some(id), Some(secret)) = (SubmissionId::parse(id), secret(fields)) else {
            return Response::problem(Problem::UnknownSubmission);
        };
        let record = match wants_answer {
            true => self.store.find(id),
            false => self.store.state(id),
        };
        match record.await {
            Err(error) => {
                self.note(&error);
                Response::problem(Problem::StoreFailed)
            }
            Ok(Some(record)) if record.key.0 == signer::sha256(&[&secret]) => match wants_answer {
                true => Response::answer(record),
                false => Response::state(&record),
            },
            Ok(_) => Response::problem(Problem::UnknownSubmission),
        }
    }

    /// Returns the response to a request without encapsulation that is refused.
    fn refusal(&self, problem: Problem) -> Response {
        #[cfg(feature = "submit")]
        if let (Problem::MissingCredential, Some(unlinkable)) = (problem, &self.unlinkable) {
            return Response::challenges(problem, unlinkable.challenges());
        }
        count_refusal(problem);
        Response::problem(problem)
    }

    async fn respond(
        self: Rc<Self>,
        exchange: Exchange,
        certificate: Option<[u8; 32]>,
    ) -> Response {
        let target = exchange.request.path.clone();
        let path = target.split('?').next().unwrap_or_default();
        let method = exchange.request.method.clone();
        #[cfg(feature = "submit")]
        if let Some(unlinkable) = self.unlinkable.clone()
            && path == tandem_tokens::oblivious::PATH
        {
            return match method {
                Method::Post => self.respond_obliviously(exchange, unlinkable).await,
                Method::Get => unlinkable.keys(),
                _ => Response::method_not_allowed("GET, POST"),
            };
        }
        let below = path
            .strip_prefix(SUBMISSIONS)
            .filter(|rest| rest.is_empty() || rest.starts_with('/'));
        match (&method, path, below) {
            (Method::Post, _, Some(_)) => {
                let content_path = target[SUBMISSIONS.len()..].to_owned();
                match Rc::clone(&self)
                    .accept(exchange, content_path, certificate)
                    .await
                {
                    Ok(response) => response,
                    Err(problem) => self.refusal(problem),
                }
            }
            (Method::Get, _, Some(rest)) if !rest.is_empty() => {
                let path = rest.trim_start_matches('/');
                self.state_of(&exchange.request.fields, path).await
            }
            (Method::Get, directory::PATH, _) => {
                Response::document(directory::MEDIA_TYPE, self.signer.directory())
            }
            (Method::Get, _, _) if path.starts_with(problem::PATH) => {
                match Problem::of(&path[problem::PATH.len()..]) {
                    Some(problem) => Response::explanation(problem),
                    None => Response::problem(Problem::NotFound),
                }
            }
            (_, directory::PATH, _) => Response::method_not_allowed("GET"),
            (_, _, Some("")) => Response::method_not_allowed("POST"),
            (_, _, Some(_)) => Response::method_not_allowed("GET, POST"),
            _ => Response::problem(Problem::NotFound),
        }
    }
}

/// The stage of one connection.
pub struct Submit {
    /// The submissions of the thread.
    pub submissions: Rc<Submissions>,
    /// The SHA-256 hash of the client's certificate.
    pub certificate: Option<[u8; 32]>,
}

impl Stage for Submit {
    fn call(&self, exchange: Exchange) -> Reply {
        let (submissions, certificate) = (Rc::clone(&self.submissions), self.certificate);
        Reply::generate(|sink| async move {
            let response = submissions.respond(exchange, certificate).await;
            response.send(sink).await;
            Ok(())
        })
    }
}

/// Counts a refusal. Limits count by themselves too.
fn count_refusal(problem: Problem) {
    METRICS.submissions_refused.add(1);
    match problem {
        Problem::OverQuota => METRICS.submissions_over_quota.add(1),
        Problem::Busy => METRICS.submissions_over_memory.add(1),
        Problem::StoreFull => METRICS.submissions_over_store.add(1),
        _ => {}
    }
}

/// Returns the present time.
fn now() -> Millis {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, millis)
}

fn millis(time: Duration) -> Millis {
    Millis::try_from(time.as_millis()).unwrap_or(Millis::MAX)
}

/// Returns the field that asks the gateway not to wait for the server (RFC 7240).
fn is_async(exchange: &Exchange) -> bool {
    exchange.request.fields.has_token("prefer", "respond-async")
}

/// Returns the location of a submission at the gateway.
fn location(id: submission::SubmissionId) -> String {
    format!("{SUBMISSIONS}/{id}")
}
