//! The paths of `tandem submit`: the same sessions as those of the client. Nothing else is
//! connected to, and no name is looked up.

use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use indicatif::ProgressBar;
use tandem_http::{Fields, Method, RequestHead, Scheme};
use tandem_submit::problem::{Document, Problem};
use tandem_submit::submission::{SUBMISSION_ID, State as SubmissionState, StateDocument};
use tandem_tokens::message;
use tandem_tokens::oblivious::{self, KeyConfig};

use super::enrol::check_parties;
use super::state::Settings;
use super::{keys, random};
use crate::back::announce::explain;
use crate::cli::Failure;
use crate::config::{ClientConfig, ClientOptions};
use crate::endpoint::{Endpoint, Usage};
use crate::exchange::{Body, Chunk, Chunks, Exchange, Isolation, Part};
use crate::stage::Stage;
use crate::transport::registry::Transports;

/// The longest pause of a response.
const MAX_PAUSE: Duration = Duration::from_secs(120);

/// The largest response, in bytes.
const MAX_RESPONSE: usize = 4 << 20;

/// The largest piece of a body, in bytes.
const PIECE: usize = 16 << 10;

/// A response.
pub(super) struct Received {
    pub(super) status: u16,
    pub(super) fields: Fields,
    pub(super) body: Bytes,
}

impl Received {
    /// Returns the text of a field.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        let value = self.fields.get(name)?;
        Some(String::from_utf8_lossy(value).into_owned())
    }

    /// Returns the problem that the response describes.
    pub(super) fn problem(&self) -> Option<Document> {
        (self.status >= 400)
            .then(|| Document::read(&self.body))
            .flatten()
    }

    /// Returns the state of the submission to which the response belongs. Returns `None` for all
    /// other responses, such as refusals. The server may have written the rest of an answer, also
    /// one that looks like a refusal.
    pub(super) fn submission_state(&self) -> Option<SubmissionState> {
        let id = self.text(SUBMISSION_ID)?;
        let is_waiting = || {
            let document = StateDocument::read(&self.body);
            document.is_some_and(|it| it.id == id && it.state == SubmissionState::Accepted)
        };
        let given_up = Problem::NotDelivered;
        let is_given_up = || self.problem().and_then(|it| it.problem()) == Some(given_up);
        Some(match self.status {
            // A server may answer with this status too.
            202 if is_waiting() => SubmissionState::Accepted,
            // The gateway passes no answer with this status on.
            status if status == given_up.status() && is_given_up() => SubmissionState::NotDelivered,
            _ => SubmissionState::Answered,
        })
    }

    /// Describes a refusal in one line.
    pub(super) fn refusal(&self) -> String {
        match self.problem() {
            Some(problem) => format!(
                "{}: {}",
                printable(&problem.title),
                printable(&problem.detail)
            ),
            None => format!("status {}", self.status),
        }
    }
}

/// Removes control characters from the text of another program.
pub(super) fn printable(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).collect()
}

/// The stages that lead to a host, and the host's name in requests.
pub(super) struct Destination {
    stage: Rc<dyn Stage>,
    /// The first host on the path, for messages.
    hop: String,
    scheme: Scheme,
    authority: String,
}

/// A request.
pub(super) struct Outgoing<'a> {
    pub(super) method: Method,
    pub(super) path: &'a str,
    pub(super) fields: Fields,
    pub(super) body: Bytes,
}

impl Destination {
    /// Returns the path to the host with this URL.
    pub(super) fn to(
        url: &str,
        via: Option<&str>,
        transports: &Transports,
    ) -> Result<Self, Failure> {
        let endpoint = Usage::Gateway.parse(url)?;
        Self::through(&endpoint, None, via, &endpoint, transports)
    }

    /// Returns the path to the gateway of the settings: through the relay if there is one. The
    /// relay reads and can change all of it that is not encapsulated.
    ///
    /// Fails if the settings have a key that a relay could have chosen, or parties that
    /// [`check_parties`] refuses, as settings of earlier versions may.
    pub(super) fn to_gateway(
        settings: &Settings,
        transports: &Transports,
    ) -> Result<Self, Failure> {
        keys::check_source(settings, transports)?;
        if let Some(unlinkable) = &settings.unlinkable {
            check_parties(settings, &unlinkable.issuer, transports)?;
        }
        let gateway = Usage::Gateway.parse(&settings.gateway)?;
        let hop = match &settings.relay {
            Some(relay) => Usage::Gateway.parse(relay)?,
            None => gateway.clone(),
        };
        let token_file = settings.relay_token_file.clone();
        Self::through(
            &hop,
            token_file,
            settings.via.as_deref(),
            &gateway,
            transports,
        )
    }

    /// Returns the path on which the gateway gives its keys. Behind a relay, it is TLS in a tunnel:
    /// the relay sees only the bytes of TLS, and the gateway only the address of the relay.
    pub(super) fn for_keys(settings: &Settings, transports: &Transports) -> Result<Self, Failure> {
        let Some(relay) = &settings.relay else {
            return Self::to_gateway(settings, transports);
        };
        let gateway = Usage::Gateway.parse(&settings.gateway)?;
        let relay = Usage::Gateway.parse(relay)?;
        let token_file = settings.relay_token_file.clone();
        let via = settings.via.as_deref();
        let (config, way) = Self::configured(&relay, token_file, via, &gateway, transports)?;
        Ok(Self {
            stage: config.own_tls(&gateway, way.stage)?,
            hop: format!("{} behind the relay {}", gateway.authority(), way.hop),
            ..way
        })
    }

    fn through(
        hop: &Endpoint,
        token_file: Option<String>,
        via: Option<&str>,
        host: &Endpoint,
        transports: &Transports,
    ) -> Result<Self, Failure> {
        let configured = Self::configured(hop, token_file, via, host, transports)?;
        Ok(configured.1)
    }

    /// Returns the path to a host, and the settings of the client on it.
    fn configured(
        hop: &Endpoint,
        token_file: Option<String>,
        via: Option<&str>,
        host: &Endpoint,
        transports: &Transports,
    ) -> Result<(ClientConfig, Self), Failure> {
        let options = ClientOptions {
            gateway: vec![hop.clone().into()],
            via: via.map(str::parse).transpose()?,
            token_file,
            push: Some(false),
            preconnect: Some(false),
            ..ClientOptions::default()
        };
        let config = options.typed_with(transports)?;
        let gateway = config.gateways.first().ok_or("the path has no host")?;
        let scheme = transports.to_dial(host)?.scheme();
        let port = host.port;
        let way = Self {
            stage: config.path_to(gateway)?,
            hop: hop.authority(),
            scheme,
            authority: match port == scheme.default_port() {
                true => host.host.clone(),
                false => host.authority(),
            },
        };
        Ok((config, way))
    }

    /// Sends a request. Requests with different `isolation` use different sessions, and different
    /// circuits of Tor.
    pub(super) async fn send(
        &self,
        request: Outgoing<'_>,
        isolation: Isolation,
        progress: Option<ProgressBar>,
    ) -> Result<Received, Failure> {
        let length = request.body.len() as u64;
        let mut head = RequestHead {
            method: request.method,
            fields: request.fields,
            ..RequestHead::get(self.scheme, self.authority.clone(), request.path.to_owned())
        };
        if head.method == Method::Post {
            head.fields.set("content-length", length.to_string());
        }
        let body = ShownPieces {
            rest: request.body,
            progress,
        };
        let exchange = Exchange {
            body: match length {
                0 => Body::empty(),
                _ => Body::new(body, Some(length)),
            },
            isolation,
            ..Exchange::internal(head)
        };
        let mut reply = self.stage.call(exchange);
        let (mut head, mut body) = (None, BytesMut::new());
        loop {
            // An upload over a slow path takes its time before the response begins.
            let limit = MAX_PAUSE + Duration::from_secs(length >> 10);
            let part = tokio::time::timeout(limit, reply.part()).await;
            match part.map_err(|_| "no response in time")? {
                None => break,
                Some(part) => match part.map_err(|error| explain(&self.hop, &error))? {
                    Part::Head(response) => head = Some(response),
                    Part::Data(data) if body.len() + data.len() <= MAX_RESPONSE => {
                        body.extend_from_slice(&data);
                    }
                    Part::Data(_) => return Err("the response is larger than 4 MiB".into()),
                    _ => {}
                },
            }
        }
        let head = head.ok_or("the response has no head")?;
        Ok(Received {
            status: head.status,
            fields: head.fields,
            body: body.freeze(),
        })
    }

    /// Sends a request within an encapsulated one, in a separate session. The response is the
    /// gateway's: one that is not encapsulated for this request is an error, whatever it says.
    pub(super) async fn send_obliviously(
        &self,
        request: Outgoing<'_>,
        keys: &[u8],
        progress: Option<ProgressBar>,
    ) -> Result<Received, Failure> {
        let inner = message::Request {
            method: request.method.to_string(),
            authority: self.authority.clone(),
            path: request.path.to_owned(),
            fields: request.fields,
            body: request.body,
        };
        let config = KeyConfig::read_list(keys)?;
        let (sealed, state) = config.encapsulate(&inner.write()?)?;
        if let Some(progress) = &progress {
            progress.set_length(sealed.len() as u64);
        }
        let mut fields = Fields::new();
        fields.push("content-type", oblivious::REQUEST_TYPE);
        let outer = Outgoing {
            method: Method::Post,
            path: oblivious::PATH,
            fields,
            body: sealed.into(),
        };
        let response = self.send(outer, isolated()?, progress).await?;
        let kind = response.text("content-type").unwrap_or_default();
        if kind != oblivious::RESPONSE_TYPE {
            return Err(in_clear(&self.hop, &response).into());
        }
        let opened = state.decapsulate(&response.body).map_err(|error| {
            format!(
                "the response through {} is not the gateway's: {error}",
                self.hop
            )
        })?;
        let opened = message::Response::read(&opened)?;
        Ok(Received {
            status: opened.status,
            fields: opened.fields,
            body: opened.body,
        })
    }
}

/// The problems that a gateway has before it has opened a request, and tells of in clear.
const CLEAR_PROBLEMS: [Problem; 8] = [
    Problem::OhttpKey,
    Problem::BadEncapsulation,
    Problem::WrongMediaType,
    Problem::TooLarge,
    Problem::SlowBody,
    Problem::IncompleteBody,
    Problem::Replayed,
    Problem::Busy,
];

/// Returns the error for a response that is not encapsulated. Any party on the way can write one,
/// so its text is not shown, and nothing follows from it.
fn in_clear(hop: &str, response: &Received) -> String {
    let status = response.status;
    let problem = response.problem().and_then(|document| document.problem());
    match problem.filter(|problem| CLEAR_PROBLEMS.contains(problem)) {
        Some(Problem::OhttpKey) => format!(
            "{hop} says that the gateway has another key for encapsulated requests: ask the \
             operator of the gateway, and then run tandem submit enrol --accept-new-key"
        ),
        Some(problem) => format!("{hop} says: {}: {}", problem.title(), problem.remedy()),
        None => format!(
            "{hop} has sent status {status} in place of an encapsulated response: the gateway may \
             not have got the request; check --relay and its token"
        ),
    }
}

/// Returns a random isolation key: no session has two requests.
pub(super) fn isolated() -> Result<Isolation, Failure> {
    Ok(Isolation::new(b"submission", &random::<16>()?))
}

/// A body in pieces, whose progress is shown.
struct ShownPieces {
    rest: Bytes,
    progress: Option<ProgressBar>,
}

impl Chunks for ShownPieces {
    fn poll_chunk(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Chunk, crate::error::Error>>> {
        let piece = self.rest.split_to(self.rest.len().min(PIECE));
        if let Some(progress) = &self.progress {
            progress.inc(piece.len() as u64);
        }
        let piece = (!piece.is_empty()).then_some(Ok(Chunk::Data(piece)));
        std::task::Poll::Ready(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn submission_state_tells_the_gateway_from_the_server() {
        let id = "0f".repeat(16);
        let state = |status: u16, body: &str, has_id: bool| {
            let mut fields = Fields::new();
            if has_id {
                fields.push(SUBMISSION_ID, &id);
            }
            let body = Bytes::copy_from_slice(body.as_bytes());
            let received = Received {
                status,
                fields,
                body,
            };
            received.submission_state()
        };
        let document = |id: &str| {
            let (id, state) = (id.to_owned(), SubmissionState::Accepted);
            let status = None;
            StateDocument { id, state, status }.json()
        };
        let given_up = Problem::NotDelivered.json();
        for (status, body, expected) in [
            (202, document(&id), SubmissionState::Accepted),
            (502, given_up.clone(), SubmissionState::NotDelivered),
            // The server has answered with these.
            (202, document("0e"), SubmissionState::Answered),
            (202, "queued".to_owned(), SubmissionState::Answered),
            (200, document(&id), SubmissionState::Answered),
            (400, given_up.clone(), SubmissionState::Answered),
            (400, Problem::TokenSpent.json(), SubmissionState::Answered),
            (
                500,
                Problem::AnswerTooLarge.json(),
                SubmissionState::Answered,
            ),
        ] {
            assert_eq!(
                state(status, &body, true),
                Some(expected),
                "{status} {body}"
            );
        }
        for (status, body) in [(502, given_up), (202, document(&id)), (200, String::new())] {
            assert_eq!(state(status, &body, false), None, "{status} {body}");
        }
    }

    #[test]
    fn responses_in_clear_are_errors_with_known_texts() {
        let received = |status: u16, body: &str| Received {
            status,
            fields: Fields::new(),
            body: Bytes::copy_from_slice(body.as_bytes()),
        };
        for problem in Problem::ALL {
            let text = in_clear("relay", &received(problem.status(), &problem.json()));
            let is_named = text.contains(problem.title()) || *problem == Problem::OhttpKey;
            assert_eq!(is_named, CLEAR_PROBLEMS.contains(problem), "{text}");
        }
        let forged = r#"{"type":"/problems/busy","title":"visit evil.example","detail":"now"}"#;
        let text = in_clear("relay", &received(503, forged));
        assert!(
            text.contains("too much work") && !text.contains("evil"),
            "{text}"
        );
        let text = in_clear("relay", &received(200, "forged answer"));
        assert!(
            text.contains("status 200") && !text.contains("forged"),
            "{text}"
        );
    }
}
