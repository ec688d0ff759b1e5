//! Client, gateway, relay and bridge as compositions of the same parts: front, middle, back.
//!
//! `ARCHITECTURE.md` lists the stages of each role in their order.

mod bridge;
mod client;
mod discovery;
mod far;
mod gateway;
#[cfg(feature = "submit")]
mod issuer;
mod lanes;
mod listeners;
mod near;
mod opened;
mod origins;
#[cfg(feature = "submit")]
mod own_tls;
mod push_lane;
mod relay;
mod scope;
mod solo;
#[cfg(all(test, target_os = "linux"))]
mod tests_over_sockets;

use std::rc::Rc;
use std::sync::Arc;

use tandem_http::h1::{Form, Limits};
use tandem_http::{MuxConfig, Role as End, Scheme};

use crate::config::{ConfigError, PathConfig, read_secret};
use crate::connections::Connections;
use crate::endpoint::Endpoint;
use crate::front::Front;
use crate::middle::access_log::AccessLog;
use crate::middle::continued::after_reload::AfterReload;
use crate::renewal::{Renewable, Renewals};
use crate::role_name::RoleName;
use crate::services::Services;
use crate::session::http1::{Http1Session, OriginForm};
use crate::session::mux::{Multiplexed, MuxSession};
use crate::session::{Drain, header_list};
use crate::stage::Stage;
use crate::status::SessionStatus;
use crate::transport::registry::Transports;

/// A role of a process. It names its listeners and can be built on any number of threads.
pub trait Role: Send + Sync {
    /// Returns the listeners and the threads that serve them.
    fn listening(&self) -> Listening<'_>;

    /// Returns the endpoints to listen on.
    fn listen(&self) -> &[Endpoint] {
        self.listening().listen
    }

    /// Opens the services that the role needs and that are not open yet.
    fn open(&self, services: &Services) -> Result<(), ConfigError>;

    /// Builds the parts of one thread: a front for each listener, in order. Runs within the local
    /// task set of that thread.
    fn build(
        &self,
        services: &Services,
        listening: &[std::net::SocketAddr],
        drain: &Drain,
    ) -> Result<Built, ConfigError>;
}

/// The listeners of a role, and the threads that serve them.
#[derive(Clone, Copy, Debug)]
pub struct Listening<'a> {
    /// The endpoints to listen on.
    pub listen: &'a [Endpoint],
    /// The transports that the endpoints name.
    pub transports: &'a Transports,
    /// The number of threads.
    pub workers: usize,
}

/// The parts of a role on one thread.
pub struct Built {
    /// A front for each listener.
    pub fronts: Vec<Rc<Front>>,
    /// The open connections.
    pub connections: Rc<Connections>,
    /// Returns the state of the sessions that the role has dialled.
    pub dialled: Box<dyn Fn() -> Vec<SessionStatus>>,
    /// Called at the beginning of a drain.
    pub on_drain: Box<dyn Fn()>,
    /// The stage that continues downloads from before a reload, if the role does so.
    pub continuing: Option<Rc<dyn Stage>>,
    /// The end of the configuration.
    pub after_reload: AfterReload,
}

/// The number of bytes taken from a session's core at a time. A late, urgent response waits for at
/// most this many bytes.
const WRITE_LIMIT: usize = 16 << 10;

/// The unsent bytes that one stream may hold. A few streams together fill the largest write, and
/// the data of many streams still fits the processor's cache.
const SEND_BUFFER: usize = 64 << 10;

/// Watches the file of a client's token.
fn client_token(file: &str, renewals: &Renewals) -> Result<Arc<Renewable<String>>, ConfigError> {
    let path = file.to_owned();
    let load = move || read_secret("token-file", &path);
    let name = format!("the access token in {file}");
    Ok(renewals.watch(Renewable::new(name, vec![file.into()], load)?))
}

/// Watches the files of a gateway's tokens.
fn gateway_tokens(
    files: &[String],
    renewals: &Renewals,
) -> Result<Arc<Renewable<Vec<String>>>, ConfigError> {
    let paths = files.to_vec();
    let load = move || paths.iter().map(|path| read_secret("auth", path)).collect();
    let name = format!("the access tokens in {}", files.join(", "));
    let paths = files.iter().map(Into::into).collect();
    Ok(renewals.watch(Renewable::new(name, paths, load)?))
}

/// Puts the access log before a stage, if it is wanted.
fn logged(requests: bool, urls: bool, next: Rc<dyn Stage>) -> Rc<dyn Stage> {
    if requests || urls {
        Rc::new(AccessLog { urls, next })
    } else {
        next
    }
}

fn mux_session(
    protocol: Multiplexed,
    path: &PathConfig,
    max_streams: u32,
    max_head: usize,
    who: RoleName,
) -> MuxSession {
    let mut config = MuxConfig::new(End::Client);
    config.stream_window = path.stream_window;
    config.session_window = path.session_window;
    config.receive_budget = path.receive_budget;
    config.send_buffer = SEND_BUFFER;
    config.max_streams = max_streams;
    config.max_header_list = max_head;
    MuxSession {
        protocol,
        config,
        response_list: header_list(Limits::RESPONSE.head),
        timeouts: path.timeouts.clone(),
        write_limit: WRITE_LIMIT,
        header_compression: path.header_compression,
        token: None,
        who,
    }
}

/// Returns HTTP/1.1 towards origins, and for a listener without TLS that represents all origins.
/// `who` is the role, as in [`Http1Session::who`].
fn http1_session(who: RoleName, path: &PathConfig) -> Http1Session {
    Http1Session {
        form: Form::Origin,
        limits: Limits::default(),
        response_limits: Limits::RESPONSE,
        timeouts: path.timeouts.clone(),
        response_timeout: path.timeouts.idle,
        who,
        scheme: Scheme::Http,
        origin_form: OriginForm::Any,
        ends_unasked: false,
        one_exchange: false,
    }
}
