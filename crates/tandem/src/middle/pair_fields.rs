//! Keeps fields named `tandem-*` between the two proxies, since only they understand them
//! ([`tandem_push::wire`]).
//!
//! The stage runs at both edges of the pair: behind the client's front and before the gateway's
//! connections to origins. If a page or an origin writes such a field, the field does not reach the
//! other side and does not change the pair's behaviour.
//!
//! Responses also lose the challenges of proxies (RFC 9110 section 11.7). A browser would take the
//! challenge of an origin for that of its own proxy. Responses of origins lose the values of
//! `Proxy-Status` that name a proxy of the pair, since these mark the gateway's own responses. A
//! bridge keeps these values, because the next server may be a bridge too, and adds a member for
//! itself. The last member names the bridge without an error. It thus shows that another server
//! made the response (RFC 9209 section 2).

use std::rc::Rc;

use tandem_http::Fields;
use tandem_http::cache::REPAIRED_FIELD;

use super::connection_logins::number;
use crate::exchange::{Exchange, Reply};
use crate::failure::names_own_proxy;
use crate::role_name::RoleName;
use crate::stage::Stage;

/// The prefix of the names.
const PREFIX: &[u8] = b"tandem-";

/// An edge of the pair. At the edge to the origins, the requests of a browser's connection that has
/// logged in get a pool key of their own ([`super::connection_logins`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// Behind the client's front.
    Front,
    /// Before the connections to origins.
    Origins,
    /// Before the connections of a bridge, to origins or to the next proxy.
    Bridge,
}

/// The stage that removes the fields.
pub struct PairFields {
    /// The place of the stage.
    pub edge: Edge,
    /// The stage that exchanges go on to.
    pub next: Rc<dyn Stage>,
}

impl Stage for PairFields {
    fn call(&self, mut exchange: Exchange) -> Reply {
        if has_pair_fields(&exchange.request.fields) {
            if self.edge != Edge::Front
                && let Some(number) = number(&exchange.request.fields)
            {
                exchange.isolation = exchange.isolation.within(number);
            }
            strip(&mut exchange.request_mut().fields);
        }
        self.next.call(exchange).edited(match self.edge {
            Edge::Front => strip_response,
            Edge::Origins => strip_origin,
            Edge::Bridge => pass_bridge,
        })
    }
}

fn has_pair_fields(fields: &Fields) -> bool {
    fields.iter().any(|field| field.name.starts_with(PREFIX))
}

/// Removes the pair's own fields.
fn strip(fields: &mut Fields) {
    if has_pair_fields(fields) {
        fields.retain(|field| !field.name.starts_with(PREFIX));
    }
}

/// The fields of a response that only a proxy next to the browser may send.
const CHALLENGES: [&str; 2] = ["proxy-authenticate", "proxy-authentication-info"];

/// Removes the fields of a response that must not reach the browser.
fn strip_response(fields: &mut Fields) {
    strip(fields);
    for challenge in CHALLENGES {
        fields.remove(challenge);
    }
}

/// Removes the fields that an origin must not send to the pair. The session to the origin marks
/// responses whose framing it has repaired, and an origin may do so too.
fn strip_origin(fields: &mut Fields) {
    let is_repaired = fields.contains(REPAIRED_FIELD);
    strip_response(fields);
    if is_repaired {
        fields.push(REPAIRED_FIELD, "1");
    }
    if fields.contains("proxy-status") {
        fields.retain(|field| field.name != b"proxy-status" || !names_own_proxy(field.value));
    }
}

/// Changes the fields of a response that a bridge passes on.
fn pass_bridge(fields: &mut Fields) {
    strip_response(fields);
    if fields.contains("proxy-status") {
        fields.push("proxy-status", RoleName::Bridge.as_str());
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::ResponseHead;

    use super::*;
    use crate::failure::{is_outage, is_refusal};

    #[test]
    fn bridge_adds_its_member_behind_those_of_others() {
        let mut head = ResponseHead::new(407);
        let inner = "bridge; error=http_request_denied; details=\"a, bridge\"";
        head.fields.push("proxy-status", inner);
        assert!(is_refusal(&head));
        pass_bridge(&mut head.fields);
        let members: Vec<_> = head.fields.get_all("proxy-status").collect();
        assert_eq!(members, [inner.as_bytes(), b"bridge"]);
        assert!(!is_refusal(&head), "another proxy has refused the request");
        let mut head = ResponseHead::new(502);
        pass_bridge(&mut head.fields);
        assert!(!head.fields.contains("proxy-status"));
        let inner = "bridge; error=connection_refused";
        head.fields.push("proxy-status", inner);
        assert!(is_outage(&head));
        pass_bridge(&mut head.fields);
        assert!(
            !is_outage(&head),
            "the connection of another proxy has failed"
        );
    }

    #[test]
    fn origin_sends_no_challenge_and_no_mark_of_the_pair() {
        let mut fields: Fields = [
            ("proxy-authenticate", "Basic realm=\"company\""),
            ("proxy-authentication-info", "x"),
            ("proxy-status", "gateway; error=http_request_denied"),
            ("proxy-status", "cdn; error=dns_error"),
            ("www-authenticate", "Basic"),
            ("tandem-opened", "1"),
        ]
        .into_iter()
        .collect();
        strip_origin(&mut fields);
        let left: Vec<_> = fields.iter().map(|field| field.value).collect();
        assert_eq!(left, [&b"cdn; error=dns_error"[..], b"Basic"]);
        fields.push("proxy-authenticate", "Basic");
        fields.push("proxy-status", "gateway; error=dns_error");
        strip_response(&mut fields);
        assert!(!fields.contains("proxy-authenticate"));
        assert_eq!(fields.get_all("proxy-status").count(), 2);
    }

    #[test]
    fn mark_of_repaired_framing_stays_within_the_pair() {
        for (edit, is_left) in [
            (strip_origin as fn(&mut Fields), true),
            (strip_response, false),
            (pass_bridge, false),
        ] {
            let mut fields: Fields = [(REPAIRED_FIELD, "\u{e9}")].into_iter().collect();
            edit(&mut fields);
            assert_eq!(fields.get(REPAIRED_FIELD), is_left.then_some(&b"1"[..]));
        }
    }

    #[test]
    fn strip_removes_the_pairs_own_fields_only() {
        let mut fields: Fields = [
            ("tandem-push", "1"),
            ("x-tandem-push", "2"),
            ("accept", "3"),
        ]
        .into_iter()
        .collect();
        strip(&mut fields);
        let left: Vec<_> = fields.iter().map(|field| field.name).collect();
        assert_eq!(left, [&b"x-tandem-push"[..], b"accept"]);
    }
}
