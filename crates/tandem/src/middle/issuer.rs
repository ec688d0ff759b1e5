//! The issuer of tokens (`tandem issuer`): the last stage of its sessions (RFC 9578).
//!
//! ```text
//!  POST /token-request ─▶ account ─▶ quota of the epoch ─▶ blind signature ─▶ next tick
//!  GET  /.well-known/private-token-issuer-directory
//! ```
//!
//! The issuer knows accounts, and never sees a token. It answers at ticks of
//! [`TICK`](crate::issuer::TICK), so that the time of an answer tells little about the private
//! operation. The log names no account.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tandem_http::Method;
use tandem_submit::problem::{self, Problem};
use tandem_tokens::directory;
use tandem_tokens::token::{REQUEST_LENGTH, REQUEST_TYPE, RESPONSE_TYPE, TokenRequest};

use super::submit::accept::Credential;
use super::submit::respond::Response;
use crate::exchange::{Body, Chunk, Exchange, Reply};
use crate::issuer::{Issuer, WaitingIssue, now};
use crate::metrics::METRICS;
use crate::stage::Stage;

/// The path of token requests.
pub const TOKEN_REQUEST: &str = "/token-request";

/// The time limit for the body of a token request.
const BODY_TIME: Duration = Duration::from_secs(30);

impl Issuer {
    async fn respond(
        self: Arc<Self>,
        exchange: Exchange,
        certificate: Option<[u8; 32]>,
    ) -> Response {
        let target = exchange.request.path.clone();
        let path = target.split('?').next().unwrap_or_default();
        match (&exchange.request.method, path) {
            (Method::Post, TOKEN_REQUEST) => {
                let issued = Arc::clone(&self).issue(exchange, certificate).await;
                self.wait_for_tick().await;
                match issued {
                    Ok(signature) => {
                        METRICS.tokens_issued.add(1);
                        Response::private(RESPONSE_TYPE, signature)
                    }
                    Err(problem) => {
                        METRICS.token_requests_refused.add(1);
                        if problem == Problem::NoTokensLeft {
                            METRICS.token_requests_over_quota.add(1);
                        }
                        self.refusal(problem)
                    }
                }
            }
            (Method::Get, directory::PATH) => {
                let keys = self.keys.directory(TOKEN_REQUEST).write();
                Response::document(directory::MEDIA_TYPE, keys)
            }
            (Method::Get, _) if path.starts_with(problem::PATH) => {
                Problem::of(&path[problem::PATH.len()..]).map_or_else(
                    || Response::problem(Problem::NotFound),
                    Response::explanation,
                )
            }
            (_, TOKEN_REQUEST) => Response::method_not_allowed("POST"),
            (_, directory::PATH) => Response::method_not_allowed("GET"),
            _ => Response::problem(Problem::NotFound),
        }
    }

    fn refusal(&self, problem: Problem) -> Response {
        match problem {
            Problem::NoTokensLeft => {
                let (epochs, now) = (self.keys.epochs, now());
                let next = epochs.start(epochs.at(now).saturating_add(1));
                Response::retry_after(problem, next.saturating_sub(now).max(1))
            }
            _ => Response::problem(problem),
        }
    }

    /// Checks a token request and signs it. The account is charged before the signature.
    async fn issue(
        self: Arc<Self>,
        exchange: Exchange,
        certificate: Option<[u8; 32]>,
    ) -> Result<Vec<u8>, Problem> {
        let request = &exchange.request;
        let credential = Credential::of(request, certificate)?;
        let accounts = self.accounts.get();
        let account = credential.client(&accounts)?;
        let most = account.quota.submissions.unwrap_or(self.tokens);
        let account = tandem_tokens::sha256(&[b"tandem account", account.name.as_bytes()]);
        if !request.fields.get("content-type").is_some_and(|kind| {
            let essence = kind.split(|byte| *byte == b';').next().unwrap_or_default();
            essence
                .trim_ascii()
                .eq_ignore_ascii_case(REQUEST_TYPE.as_bytes())
        }) {
            return Err(Problem::BadTokenRequest);
        }
        let waiting = WaitingIssue::of(&self, account).ok_or(Problem::Busy)?;
        let body = tokio::time::timeout(BODY_TIME, read(exchange.body.share()));
        let body = body.await.map_err(|_| Problem::SlowBody)??;
        let request = TokenRequest::read(&body).map_err(|_| Problem::BadTokenRequest)?;
        // A client that sends no body holds no place of the others.
        let permit = Arc::clone(&self.signing).try_acquire_owned();
        let permit = permit.map_err(|_| Problem::Busy)?;
        let signed = tokio::task::spawn_blocking(move || {
            let _held = (permit, waiting);
            self.charge_and_sign(&request, &account, most)
        });
        signed.await.map_err(|_| Problem::StoreFailed)?
    }
}

/// Reads the body of a token request, which has one length.
async fn read(mut body: Body) -> Result<Bytes, Problem> {
    let mut bytes = BytesMut::new();
    while let Some(chunk) = poll_fn(|cx| body.poll_chunk(cx)).await {
        if let Chunk::Data(data) = chunk.map_err(|_| Problem::IncompleteBody)? {
            bytes.extend_from_slice(&data);
        }
        if bytes.len() > REQUEST_LENGTH {
            return Err(Problem::BadTokenRequest);
        }
    }
    Ok(bytes.freeze())
}

/// The stage of one connection.
pub struct Issue {
    /// The issuer.
    pub issuer: Arc<Issuer>,
    /// The SHA-256 hash of the client's certificate.
    pub certificate: Option<[u8; 32]>,
}

impl Stage for Issue {
    fn call(&self, exchange: Exchange) -> Reply {
        let (issuer, certificate) = (Arc::clone(&self.issuer), self.certificate);
        Reply::generate(|sink| async move {
            let response = issuer.respond(exchange, certificate).await;
            response.send(sink).await;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use tandem_http::{RequestHead, Scheme};
    use tandem_store::issued::IssuedTokens;
    use tandem_submit::rights::Rights;
    use tandem_tokens::epoch::Epochs;

    use super::*;
    use crate::error::Error;
    use crate::exchange::Chunks;
    use crate::issuer::keys::EpochKeys;
    use crate::issuer::{SIGNING, WAITING};
    use crate::renewal::Renewable;

    /// A body that never arrives.
    struct Silent;

    impl Chunks for Silent {
        fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
            Poll::Pending
        }
    }

    fn issuer(directory: &std::path::Path) -> Issuer {
        let entry = |name: &str| {
            let digest = tandem_tokens::sha256(&[name.as_bytes()]);
            let hash = data_encoding::HEXLOWER.encode(&digest);
            format!("[[client]]\nname = \"{name}\"\ntoken-sha256 = \"{hash}\"\n")
        };
        let text = entry("one") + &entry("two");
        let accounts = Renewable::new("accounts".into(), Vec::new(), move || Rights::parse(&text));
        Issuer::new(
            EpochKeys::open(directory, Epochs::new(86_400), now()).expect("keys"),
            Arc::new(accounts.expect("accounts")),
            IssuedTokens::open(&directory.join("issued")).expect("a file"),
            10,
        )
    }

    fn request(account: &str, body: Body) -> Exchange {
        let mut head = RequestHead::get(Scheme::Https, "issuer", TOKEN_REQUEST);
        head.method = Method::Post;
        let fields = &mut head.fields;
        fields.push("authorization", format!("Bearer {account}"));
        fields.push("content-type", REQUEST_TYPE);
        Exchange {
            body,
            ..Exchange::internal(head)
        }
    }

    #[tokio::test]
    async fn account_without_bodies_leaves_room_for_others() {
        let name = format!("tandem-test-issuer-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory");
        let issuer = Arc::new(issuer(&directory));
        let mut silent = Vec::new();
        let mut refused = 0;
        for _ in 0..SIGNING {
            let body = Body::new(Silent, Some(REQUEST_LENGTH as u64));
            let mut issue = Box::pin(Arc::clone(&issuer).issue(request("one", body), None));
            match poll_once(&mut issue) {
                Poll::Ready(result) => {
                    assert_eq!(result, Err(Problem::Busy));
                    refused += 1;
                }
                Poll::Pending => silent.push(issue),
            }
        }
        assert_eq!((silent.len(), refused), (WAITING, SIGNING - WAITING));
        let other = Arc::clone(&issuer).issue(request("two", Body::empty()), None);
        assert_eq!(other.await, Err(Problem::BadTokenRequest));
        drop(silent);
        assert!(issuer.is_idle());
        let first = Arc::clone(&issuer).issue(request("one", Body::empty()), None);
        assert_eq!(first.await, Err(Problem::BadTokenRequest));
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    /// Polls a future once.
    fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
        let waker = std::task::Waker::noop();
        std::pin::Pin::new(future).poll(&mut Context::from_waker(waker))
    }
}
