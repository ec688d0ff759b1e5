//! The pages that the process serves about itself, from one snapshot ([`crate::status`]) and one
//! overview ([`overview`]).
//!
//! ```text
//!  metrics listener   /metrics (Prometheus) · /status (JSON)     loopback only
//!  admin listener     the dashboard and its data                 [`dashboard`], for its key
//!  control socket     points, status, overview, a URL            [`control`], its owner only
//!  client's listener  /proxy.pac                                 [`pac`]
//! ```
//!
//! A web page must not learn from them that the proxy runs: a request that a page caused gets the
//! same 404 as an unknown path. A request for another host gets 421, since a page's own name may
//! point to this machine (DNS rebinding).

pub mod control;
mod dashboard;
pub mod door;
pub mod overview;
pub mod pac;

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tandem_http::h1::{Form, Limits};
use tandem_http::{Method, RequestHead, ResponseHead, Scheme};

use crate::connections::{Connection, ConnectionLimits, Connections};
use crate::exchange::{Exchange, Part, Peer, Reply};
use crate::front::{Front, ListenerProtocol as FrontProtocol};
use crate::metrics::METRICS;
use crate::middle::track::Track;
use crate::path::Facts;
use crate::role_name::RoleName;
use crate::session::http1::{Http1Session, OriginForm};
use crate::session::{Drain, Timeouts};
use crate::stage::Stage;
use crate::status::StatusSource;
use crate::transport::Listen;
use crate::transport::registry::{Protocol, Socket};
use crate::transport::tcp::Tcp;
use dashboard::Dashboard;
use door::Door;
use overview::OverviewSource;

/// The connections that the listener takes at once.
const MAX_CONNECTIONS: usize = 32;

/// The time for a request, and between two of them.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Answers requests to the metrics listener.
#[derive(Debug)]
struct Admin {
    status: StatusSource,
    /// The authorities of the listener.
    own: Rc<[String]>,
}

impl Stage for Admin {
    fn call(&self, exchange: Exchange) -> Reply {
        let request = &exchange.request;
        if !is_own(&self.own, request) {
            return page(421, "text/plain", "Misdirected request.\n".into());
        }
        let reply = match request.path.as_str() {
            _ if !is_typed_in(request) => not_found(),
            "/metrics" => page(200, "text/plain; version=0.0.4", METRICS.render()),
            "/status" => {
                let status = self.status.clone();
                Reply::generate(|mut sink| async move {
                    let status = status.snapshot().await;
                    // Plain values always have a JSON form.
                    let body = serde_json::to_string(&status).unwrap_or_default();
                    sink.send(Part::Head(head(200, "application/json", body.len())))
                        .await;
                    sink.send(Part::Data(body.into())).await;
                    Ok(())
                })
            }
            _ => not_found(),
        };
        of_method(&request.method, reply)
    }
}

/// Returns the reply to a request, given that to GET: HEAD gets the head alone.
fn of_method(method: &Method, mut reply: Reply) -> Reply {
    match method {
        Method::Head => Reply::generate(|mut sink| async move {
            if let Some(part) = reply.part().await {
                sink.send(part?).await;
            }
            Ok(())
        }),
        _ => reply,
    }
}

/// Returns whether a request is for one of the authorities of a listener.
fn is_own(own: &[String], request: &RequestHead) -> bool {
    own.iter()
        .any(|own| own.eq_ignore_ascii_case(&request.authority))
}

fn not_found() -> Reply {
    page(404, "text/plain", "Nothing is here.\n".into())
}

/// Returns whether a user or a program asks, and not a web page: pages send `Origin`, `Referer`, or
/// a `Sec-Fetch-Site` other than `none`.
fn is_typed_in(request: &RequestHead) -> bool {
    comes_from(request, &["none"])
}

/// Returns true for a GET or HEAD from one of the `sites`, which are values of Sec-Fetch-Site
/// (Fetch Metadata section 2.4). A browser without that field must not name the page.
fn comes_from(request: &RequestHead, sites: &[&str]) -> bool {
    let fields = &request.fields;
    let site = fields.get("sec-fetch-site");
    matches!(request.method, Method::Get | Method::Head)
        && !fields.contains("origin")
        && !fields.contains("referer")
        && site.is_none_or(|site| sites.iter().any(|allowed| allowed.as_bytes() == site))
}

fn head(status: u16, kind: &'static str, length: usize) -> ResponseHead {
    let mut head = ResponseHead::new(status);
    head.fields.push("content-type", kind);
    head.fields.push("content-length", length.to_string());
    head.fields.push("cache-control", "no-store");
    head.fields.push("x-content-type-options", "nosniff");
    // With these, a page of another site gets an error for this response, as for a closed port.
    for (name, value) in [
        ("cross-origin-resource-policy", "same-origin"),
        ("x-frame-options", "DENY"),
    ] {
        head.fields.push(name, value);
    }
    head
}

fn page(status: u16, kind: &'static str, body: String) -> Reply {
    Reply::ready(head(status, kind, body.len()), Bytes::from(body))
}

/// Returns the authorities that address a listener itself. `scheme` is that of the listener.
pub fn own_authorities(listen: SocketAddr, scheme: Scheme) -> Vec<String> {
    let port = listen.port();
    let mut own = vec![
        listen.to_string(),
        format!("localhost:{port}"),
        format!("127.0.0.1:{port}"),
        format!("[::1]:{port}"),
    ];
    if port == scheme.default_port() {
        own.extend(["localhost".into(), "127.0.0.1".into(), "[::1]".into()]);
    }
    own
}

/// Serves metrics and status at `address` in a task of this thread, and returns the address that it
/// is bound to. `drain` closes the listening socket, and the connections after their requests.
///
/// # Errors
/// Returns the reason why the address cannot be listened on.
pub fn serve(
    address: SocketAddr,
    role: RoleName,
    status: StatusSource,
    drain: &Drain,
) -> std::io::Result<SocketAddr> {
    listen(address, role, drain, |local, own| {
        let stage: Rc<dyn Stage> = Rc::new(Admin { status, own });
        Ok((stage, local))
    })
}

/// Serves the dashboard at `address` in a task of this thread, and returns its door. `drain` closes
/// the listening socket, and the connections after their requests.
///
/// # Errors
/// Returns the reason why the address cannot be listened on.
pub fn serve_dashboard(
    address: SocketAddr,
    source: OverviewSource,
    drain: &Drain,
) -> std::io::Result<Arc<Door>> {
    listen(address, source.role(), drain, |local, own| {
        let door = Arc::new(Door::new(local)?);
        let stage: Rc<dyn Stage> = Rc::new(Dashboard {
            source,
            door: Arc::clone(&door),
            own,
        });
        Ok((stage, door))
    })
}

/// Listens at `address` in a process of the role `who`. The function gets the bound address and the
/// listener's authorities, and returns the stage that answers requests.
fn listen<T>(
    address: SocketAddr,
    who: RoleName,
    drain: &Drain,
    stage: impl FnOnce(SocketAddr, Rc<[String]>) -> std::io::Result<(Rc<dyn Stage>, T)>,
) -> std::io::Result<T> {
    let socket = Socket::bind(Protocol::Tcp, address)?;
    let local = socket.local_addr()?;
    let own: Rc<[String]> = own_authorities(local, Scheme::Http).into();
    let session = Http1Session {
        form: Form::Origin,
        limits: Limits::default(),
        response_limits: Limits::RESPONSE,
        timeouts: Timeouts {
            idle: TIMEOUT,
            ..Timeouts::default()
        },
        response_timeout: TIMEOUT,
        who,
        scheme: Scheme::Http,
        origin_form: OriginForm::Only(Rc::clone(&own)),
        ends_unasked: true,
        one_exchange: false,
    };
    let transport = Tcp::default();
    let listener = transport.listen(socket)?;
    let (stage, result) = stage(local, own)?;
    let front = Front {
        protocol: FrontProtocol::Session(Rc::new(session)),
        transport: Box::new(transport),
        new_stage: Rc::new(
            move |_: &Rc<dyn Facts>, _: Peer, connection: &Rc<Connection>| {
                Rc::new(Track {
                    connection: Rc::clone(connection),
                    next: Rc::clone(&stage),
                })
            },
        ),
        connections: Connections::internal(ConnectionLimits {
            total: MAX_CONNECTIONS,
            per_client: MAX_CONNECTIONS,
            listeners: 1,
            head: TIMEOUT,
        }),
        listener: 0,
        drain: drain.clone(),
    };
    tokio::task::spawn_local(Rc::new(front).accept(listener, drain.begun()));
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the head of the response to a GET request.
    async fn get(authority: &str, path: &str, fields: &[(&str, &str)]) -> ResponseHead {
        let admin = Admin {
            status: StatusSource::new(Vec::new),
            own: own_authorities(([127, 0, 0, 1], 9100).into(), Scheme::Http).into(),
        };
        let mut request = RequestHead::get(Scheme::Http, authority, path);
        request.fields = fields.iter().copied().collect();
        match admin.call(Exchange::internal(request)).part().await {
            Some(Ok(Part::Head(head))) => head,
            part => panic!("no head: {part:?}"),
        }
    }

    #[tokio::test]
    async fn head_gets_the_head_of_get() {
        let admin = Admin {
            status: StatusSource::new(Vec::new),
            own: own_authorities(([127, 0, 0, 1], 9100).into(), Scheme::Http).into(),
        };
        for (path, expected) in [("/metrics", 200), ("/status", 200), ("/x", 404)] {
            let mut request = RequestHead::get(Scheme::Http, "127.0.0.1:9100", path);
            request.method = Method::Head;
            let mut reply = admin.call(Exchange::internal(request));
            let head = reply.part().await;
            assert!(
                matches!(&head, Some(Ok(Part::Head(head))) if head.status == expected
                    && head.fields.get("content-length").is_some_and(|it| it != b"0")),
                "{path}: {head:?}"
            );
            assert!(reply.part().await.is_none(), "{path}");
        }
    }

    #[tokio::test]
    async fn admin_refuses_requests_of_web_pages() {
        for path in ["/metrics", "/status"] {
            for host in ["127.0.0.1:9100", "localhost:9100", "LOCALHOST:9100"] {
                let head = get(host, path, &[("sec-fetch-site", "none")]).await;
                assert_eq!(head.status, 200, "{path} {host}");
                assert_eq!(
                    head.fields.get("x-content-type-options"),
                    Some(&b"nosniff"[..])
                );
            }
            for host in ["attacker.example", "attacker.example:9100", "127.0.0.1", ""] {
                assert_eq!(get(host, path, &[]).await.status, 421, "{path} {host}");
            }
            for field in [
                ("origin", "http://attacker.example"),
                ("origin", "null"),
                ("referer", "http://attacker.example/"),
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-site", "same-origin"),
            ] {
                let head = get("127.0.0.1:9100", path, &[field]).await;
                assert_eq!(head.status, 404, "{path} {field:?}");
                assert!(head.fields.contains("x-content-type-options"));
                let policies = head.fields.get_all("cross-origin-resource-policy");
                assert_eq!(policies.collect::<Vec<_>>(), [b"same-origin"]);
            }
        }
    }
}
