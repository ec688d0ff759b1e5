//! Entrusted HTTPS: HTTPS of opened hosts that the gateway fetches, by the consent of both ends.
//!
//! ```text
//!  client:  pushed ─▶ Entrust ─▶ gateways      adds the list, and checks each response's mark
//!  gateway: auth ─▶ … ─▶ Consent ─▶ push       refuses or marks, and answers probes
//! ```
//!
//! A probe is `OPTIONS` with `Max-Forwards: 0` for an origin (RFC 9110 section 7.6.2). The gateway
//! answers it once it has a verified TLS connection to that origin. A gateway or a relay that does
//! not know this use answers without the mark, and no origin learns of the probe.
//!
//! The mark is the field `tandem-opened`. [`super::pair_fields`] removes it from responses of
//! origins. A response without it is therefore a page of a proxy, which no browser may see under
//! the name of an HTTPS site.

mod consent;
mod consenting;
mod entrust;

pub use consent::{Consent, Permission, Verify};
pub use consenting::is_consenting;
pub use entrust::{Covers, Entrust, Entrusted, Verified};

use tandem_http::{Method, RequestHead, Scheme};

use super::max_forwards;

/// The value of the field in responses.
const MARK: &str = "1";

/// Returns the request that makes a gateway verify the certificate of an origin.
pub fn probe(authority: &str) -> RequestHead {
    let mut request = RequestHead::get(Scheme::Https, authority, "/");
    request.method = Method::Options;
    request.fields.push(max_forwards::FIELD, "0");
    request
}

/// Returns whether a request is a probe, if it carries the field of opened hosts.
fn is_probe(request: &RequestHead) -> bool {
    request.method == Method::Options && request.fields.get(max_forwards::FIELD) == Some(b"0")
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use bytes::Bytes;
    use tandem_http::ResponseHead;
    use tandem_push::wire::{CROSSED_FIELD, NextPush, OPENED_FIELD, companion_request};

    use super::*;
    use crate::error::{Error, Kind, Side};
    use crate::exchange::{Exchange, Isolation, Part, PushedPart, Reply, SessionMark};
    use crate::stage::Stage;
    use crate::stage::doubles::OneSession;

    const REASON: &str = "start the gateway with --open-https";

    /// Returns the status, and whether the response is marked.
    async fn outcome(stage: &dyn Stage, request: RequestHead) -> Result<(u16, bool), Error> {
        let mut reply = stage.call(Exchange::internal(request));
        loop {
            match reply.part().await {
                Some(Ok(Part::Head(head))) => {
                    return Ok((head.status, head.fields.contains(OPENED_FIELD)));
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => panic!("a reply without a head"),
            }
        }
    }

    fn origin(status: u16) -> Rc<dyn Stage> {
        Rc::new(move |_: Exchange| Reply::ready(ResponseHead::new(status), Bytes::new()))
    }

    fn listed(mut request: RequestHead) -> RequestHead {
        request.fields.push(OPENED_FIELD, "a.test");
        request
    }

    fn page() -> RequestHead {
        RequestHead::get(Scheme::Https, "a.test", "/")
    }

    #[tokio::test]
    async fn consent_is_needed_for_opened_hosts_only() {
        let consent = Consent {
            permission: Err(REASON),
            next: origin(200),
        };
        assert_eq!(outcome(&consent, page()).await, Ok((200, false)));
        for request in [page(), probe("a.test")] {
            let error = outcome(&consent, listed(request))
                .await
                .expect_err("it is refused");
            assert_eq!((error.kind, error.side), (Kind::Forbidden, Side::Local));
            assert_eq!(error.detail, REASON);
        }
    }

    #[tokio::test]
    async fn consent_marks_origins_and_answers_probes() {
        let asked: Rc<RefCell<Vec<(String, u16)>>> = Rc::default();
        let noted = Rc::clone(&asked);
        let verify: Verify = Rc::new(move |_, _, target| {
            noted.borrow_mut().push(target);
            let is_good = noted.borrow().len() == 1;
            let error = Error::new(Kind::Tls, Side::Origin, "expired");
            Box::pin(std::future::ready(if is_good {
                Ok(())
            } else {
                Err(error)
            }))
        });
        let consent = Consent {
            permission: Ok(verify),
            next: origin(404),
        };
        assert_eq!(outcome(&consent, listed(page())).await, Ok((404, true)));
        let probe = || listed(probe("a.test:8443"));
        assert_eq!(outcome(&consent, probe()).await, Ok((200, true)));
        let error = outcome(&consent, probe()).await.expect_err("it is expired");
        assert_eq!(error.kind, Kind::Tls);
        assert_eq!(*asked.borrow(), vec![("a.test".to_owned(), 8443); 2]);
        let mut plain = probe();
        plain.scheme = Scheme::Http;
        let error = outcome(&consent, plain).await.expect_err("it is no TLS");
        assert_eq!(error.kind, Kind::BadRequest);
    }

    fn session() -> Rc<SessionMark> {
        Rc::new(SessionMark::new(true))
    }

    /// A client's end, and the origins that it takes for verified.
    fn entrust(is_permitted: bool, next: Rc<dyn Stage>) -> (Entrust, Rc<RefCell<Vec<String>>>) {
        let verified: Rc<RefCell<Vec<String>>> = Rc::default();
        let noted = Rc::clone(&verified);
        let hosts = Rc::new(Entrusted {
            covers: Rc::new(|host, port| host.ends_with("a.test") && port == 443),
            list: "a.test *.a.test".into(),
            verified: Rc::new(move |_: &Isolation, host: &str, _| {
                noted.borrow_mut().push(host.to_owned());
            }),
        });
        let stage = Entrust {
            hosts,
            is_permitted,
            is_routed: Rc::new(|host| host != "elsewhere.a.test"),
            sessions: Rc::new(OneSession::of(session())),
            next,
        };
        (stage, verified)
    }

    #[tokio::test]
    async fn entrust_takes_no_page_of_a_gateway() {
        for (status, told, kind) in [
            (
                403,
                "gateway; error=x; details=\"start it\"",
                Kind::Forbidden,
            ),
            (
                502,
                "gateway; error=tls_protocol_error; details=\"x\"",
                Kind::Tls,
            ),
            (
                502,
                "gateway; error=dns_error; details=\"x\"",
                Kind::Unreachable,
            ),
            (407, "", Kind::Unauthorized),
            (200, "", Kind::Forbidden),
        ] {
            let page = move |exchange: Exchange| {
                assert!(exchange.request.fields.contains(OPENED_FIELD));
                let mut head = ResponseHead::new(status);
                head.fields.push("proxy-status", told);
                Reply::ready(head, Bytes::from_static(b"<h1>"))
            };
            let (stage, verified) = entrust(true, Rc::new(page));
            let error = outcome(&stage, self::page()).await.expect_err("a page");
            assert_eq!(error.kind, kind, "{status} {told}");
            assert!(verified.borrow().is_empty());
        }
    }

    #[tokio::test]
    async fn entrust_sends_the_list_to_own_gateways_only() {
        let seen: Rc<RefCell<Vec<Option<Vec<u8>>>>> = Rc::default();
        let noted = Rc::clone(&seen);
        let next: Rc<dyn Stage> = Rc::new(move |exchange: Exchange| {
            let list = exchange.request.fields.get(OPENED_FIELD);
            noted.borrow_mut().push(list.map(<[u8]>::to_vec));
            let mut head = ResponseHead::new(200);
            head.fields.push(OPENED_FIELD, MARK);
            Reply::ready(head, Bytes::new())
        });
        let (own, verified) = entrust(true, Rc::clone(&next));
        let (other, _) = entrust(false, next);
        let unlisted = || RequestHead::get(Scheme::Https, "b.test", "/");
        let plain = || RequestHead::get(Scheme::Http, "a.test", "/");
        for request in [
            page(),
            unlisted(),
            plain(),
            RequestHead::connect("a.test:443"),
        ] {
            let _ = outcome(&own, request).await;
        }
        let list = Some(b"a.test *.a.test".to_vec());
        assert_eq!(*seen.borrow(), [list, None, None, None]);
        assert_eq!(*verified.borrow(), ["a.test"]);
        let error = outcome(&other, page()).await.expect_err("it is not own");
        assert_eq!(error.kind, Kind::Forbidden);
        assert_eq!(seen.borrow().len(), 4, "nothing was sent");
    }

    /// A gateway that does not consent gets no request with an effect.
    #[tokio::test]
    async fn unsafe_request_waits_for_consent_of_its_session() {
        let seen: Rc<RefCell<Vec<Method>>> = Rc::default();
        let is_consenting = Rc::new(Cell::new(true));
        let (noted, marks) = (Rc::clone(&seen), Rc::clone(&is_consenting));
        let gateway: Rc<dyn Stage> = Rc::new(move |exchange: Exchange| {
            noted.borrow_mut().push(exchange.request.method.clone());
            let mut head = ResponseHead::new(200);
            if marks.get() {
                head.fields.push(OPENED_FIELD, MARK);
            }
            Reply::ready(head, Bytes::new())
        });
        let (mut stage, _) = entrust(true, gateway);
        let sessions = Rc::new(OneSession::of(session()));
        stage.sessions = Rc::clone(&sessions) as _;
        let post = || RequestHead {
            method: Method::Post,
            ..page()
        };
        for _ in 0..2 {
            assert_eq!(outcome(&stage, post()).await, Ok((200, true)));
        }
        assert_eq!(
            seen.take(),
            [Method::Options, Method::Post, Method::Post],
            "one probe for the session"
        );
        sessions.mark.replace(Some(session()));
        assert_eq!(outcome(&stage, page()).await, Ok((200, true)));
        assert_eq!(outcome(&stage, post()).await, Ok((200, true)));
        assert_eq!(seen.take(), [Method::Get, Method::Post], "no other probe");
        sessions.mark.replace(Some(session()));
        is_consenting.set(false);
        let error = outcome(&stage, post()).await.expect_err("no consent");
        assert_eq!(error.kind, Kind::Forbidden);
        assert_eq!(seen.take(), [Method::Options]);
    }

    /// Returns the pushes that a client takes from a gateway, and the origins that these verify.
    async fn pushes(is_permitted: bool, request: RequestHead, age: &str) -> (usize, Vec<String>) {
        let age = age.to_owned();
        let next = move |_: Exchange| {
            let age = age.clone();
            Reply::generate(|mut sink| async move {
                for host in ["www.a.test", "elsewhere.a.test", "b.test", "a.test:8443"] {
                    let mut head = ResponseHead::new(200);
                    head.fields.push("age", age.as_str());
                    let pushed = PushedPart {
                        request: RequestHead::get(Scheme::Https, host, "/x"),
                        reply: Reply::ready(head, Bytes::new()),
                        priority: crate::priority::SharedPriority::default(),
                        session: None,
                    };
                    sink.send(Part::Pushed(Box::new(pushed))).await;
                }
                Ok(())
            })
        };
        let (stage, verified) = entrust(is_permitted, Rc::new(next));
        let mut reply = stage.call(Exchange::internal(request));
        let mut taken = 0;
        while let Some(Ok(part)) = reply.part().await {
            if let Part::Pushed(mut pushed) = part {
                taken += 1;
                assert!(verified.borrow().is_empty(), "a promise shows nothing");
                assert!(matches!(pushed.reply.part().await, Some(Ok(Part::Head(_)))));
            }
        }
        (taken, verified.take())
    }

    /// The head of a push shows that the gateway has verified its origin.
    #[tokio::test]
    async fn pushed_origin_counts_as_verified() {
        let verified = vec!["www.a.test".to_owned()];
        for request in [page(), companion_request(true, NextPush::Off)] {
            assert_eq!(pushes(true, request, "0").await, (1, verified.clone()));
        }
    }

    #[tokio::test]
    async fn push_of_other_gateways_verifies_no_origin() {
        assert_eq!(
            pushes(false, companion_request(true, NextPush::Off), "0").await,
            (4, Vec::new())
        );
    }

    /// The certificate may have expired since then.
    #[tokio::test]
    async fn stored_response_verifies_no_origin() {
        assert_eq!(pushes(true, page(), "1").await, (1, Vec::new()));
        for (name, value, verified) in [
            ("age", "0", vec!["a.test".to_owned()]),
            ("age", "60", Vec::new()),
            (CROSSED_FIELD, "1", Vec::new()),
        ] {
            let next = move |_: Exchange| {
                let mut head = ResponseHead::new(200);
                head.fields.push(OPENED_FIELD, MARK);
                head.fields.push(name, value);
                Reply::ready(head, Bytes::new())
            };
            let (stage, noted) = entrust(true, Rc::new(next));
            assert_eq!(outcome(&stage, page()).await, Ok((200, true)));
            assert_eq!(noted.take(), verified, "{name}: {value}");
        }
    }
}
