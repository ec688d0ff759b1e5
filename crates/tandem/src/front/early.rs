//! Early agreement to tunnels. A browser's CONNECT is answered before the gateway has answered it,
//! so that the TLS handshake leaves with the request. This saves a round trip over the slow path.
//!
//! It applies while the gateway answers and accepts this client, as far as the client knows. A
//! session that is still being opened counts, so that the TLS handshake leaves with the session's
//! first bytes. If the far end fails after all, the tunnel is reset and one log line gives the
//! reason. The next CONNECT to the same place waits for the gateway's response, which then carries
//! the reason.

use std::rc::Rc;

use tandem_http::ResponseHead;

use crate::endpoint::split_authority;
use crate::error::Error;
use crate::exchange::{Exchange, Part, Reply, Sink};
use crate::failure::refusal;
use crate::stage::{SessionPool, Stage};

/// The stage that agrees to tunnels early.
pub struct EarlyConnect {
    /// The pool that knows the sessions.
    pub sessions: Rc<dyn SessionPool>,
    /// The stage that receives the exchanges.
    pub next: Rc<dyn Stage>,
}

impl Stage for EarlyConnect {
    fn call(&self, exchange: Exchange) -> Reply {
        let request = &exchange.request;
        let Ok((_, port)) = split_authority(&request.authority, None) else {
            return self.next.call(exchange);
        };
        // If the session's path was lost while it was idle, or is never established, another
        // session gets the first bytes again. That is safe only for a TLS handshake, which port 443
        // promises.
        let (sessions, key) = (&self.sessions, &exchange.isolation);
        let early = request.is_connect()
            && request.protocol.is_none()
            && match port {
                443 => sessions.may_agree(key),
                _ => sessions.is_live(key) && sessions.is_awake(key),
            }
            && !sessions.has_failed(key, &request.authority);
        if !early {
            return self.next.call(exchange);
        }
        let (sessions, isolation) = (Rc::clone(&self.sessions), exchange.isolation.clone());
        let authority = request.authority.clone();
        let failed = move |error: &Error| {
            tell(error);
            sessions.failed(&isolation, &authority);
        };
        agree(self.next.call(exchange), failed)
    }
}

/// Logs the reason for which a tunnel failed after it was agreed to. A browser cannot show it then.
pub fn tell(error: &Error) {
    tracing::info!("a tunnel that was agreed to early has failed: {error}");
}

/// Puts an agreement before the reply to a CONNECT and drops the far end's own response. Calls
/// `failed` with the reason if the far end does not agree.
pub fn agree(reply: Reply, failed: impl FnOnce(&Error) + 'static) -> Reply {
    Reply::generate(|mut sink| async move {
        sink.send(Part::Head(ResponseHead::new(200))).await;
        follow(reply, failed, &mut sink).await
    })
}

/// Passes the reply to a CONNECT on that was agreed to, as [`agree`] does.
pub(super) async fn follow(
    mut reply: Reply,
    failed: impl FnOnce(&Error),
    sink: &mut Sink,
) -> Result<(), Error> {
    // A failure after the far end's agreement ends the tunnel, and is not a refusal.
    let mut failed = Some(failed);
    while let Some(part) = reply.part().await {
        let error = match part {
            Ok(Part::Head(head)) if (200..300).contains(&head.status) => {
                failed = None;
                continue;
            }
            Ok(Part::Head(head)) => refusal(&head),
            Ok(Part::Hints(_)) => continue,
            Ok(part) => {
                sink.send(part).await;
                continue;
            }
            Err(error) => error,
        };
        if let Some(failed) = failed.take() {
            failed(&error);
        }
        return Err(error);
    }
    Ok(())
}
