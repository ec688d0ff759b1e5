//! The paths of `tandem submit`: the same sessions as those of the client. Nothing else is
//! connected to, and no name is looked up.

use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use indicatif::ProgressBar;
use tandem_http::{Fields, Method, RequestHead, Scheme};
use tandem_submit::problem::Document;
use tandem_tokens::message;
use tandem_tokens::oblivious::{self, KeyConfig};

use super::random;
use super::state::Settings;
use crate::back::announce::explain;
use crate::cli::Failure;
use crate::config::ClientOptions;
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
fn printable(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).collect()
}

/// A path to a host, and the host's name in requests.
pub(super) struct Way {
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

impl Way {
    /// Returns the path to the host with this URL.
    pub(super) fn to(
        url: &str,
        via: Option<&str>,
        transports: &Transports,
    ) -> Result<Self, Failure> {
        let endpoint = Usage::Gateway.parse(url)?;
        Self::through(&endpoint, None, via, &endpoint, transports)
    }

    /// Returns the path to the gateway of the settings: through the relay if there is one.
    pub(super) fn to_gateway(
        settings: &Settings,
        transports: &Transports,
    ) -> Result<Self, Failure> {
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

    fn through(
        hop: &Endpoint,
        token_file: Option<String>,
        via: Option<&str>,
        host: &Endpoint,
        transports: &Transports,
    ) -> Result<Self, Failure> {
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
        let scheme = transports.of(host)?.scheme();
        let port = host.port;
        Ok(Self {
            stage: config.path_to(gateway)?,
            hop: hop.authority(),
            scheme,
            authority: match port == scheme.default_port() {
                true => host.host.clone(),
                false => host.authority(),
            },
        })
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

    /// Sends a request within an encapsulated one, in a separate session.
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
            return Ok(response);
        }
        let opened = message::Response::read(&state.decapsulate(&response.body)?)?;
        Ok(Received {
            status: opened.status,
            fields: opened.fields,
            body: opened.body,
        })
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
