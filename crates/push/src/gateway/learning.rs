//! The lessons of a response for the predictor.
//!
//! A client that takes no pushes teaches the predictor as well. [`teach`] needs no state of its
//! session, and gives the lessons that a new [`Gateway`](super::Gateway) would give.

use tandem_http::{Method, RequestHead, ResponseHead};
use tandem_preload::Need;

use super::document::DocumentReader;
use super::load_end::may_have_effects;
use super::predictor::{Context, Predictor, is_learnable, is_reusable, record};
use crate::fetch_standard::is_navigation;
use crate::hints::{named_resources, names_resources};
use crate::response_rules::{CopyLifetime, Reuse, browser_reuse, copy_lifetime};
use crate::url::request_url;
use crate::wire::{ASKED_AGAIN_FIELD, OPENED_FIELD};

/// Returns whether [`teach`] suffices for the response to a request of a client that takes no
/// pushes. Fields of Tandem's client concern the session.
pub fn teaches_alone(request: &RequestHead) -> bool {
    let fields = &request.fields;
    !fields.contains(OPENED_FIELD) && !fields.contains(ASKED_AGAIN_FIELD)
}

/// Returns whether the response to a request may teach the predictor.
pub fn may_teach(request: &RequestHead) -> bool {
    request.method == Method::Get && request.protocol.is_none() && is_learnable(request)
}

/// Teaches the predictor the response to a request for which [`may_teach`] is true. The fields that
/// are meant for the gateway are removed. Returns the URL if the predictor is to be told the length
/// of the body at its end ([`Predictor::body_sent`]). `unix_time` is the time in seconds since
/// 1970, UTC.
pub fn teach(
    request: &RequestHead,
    head: &mut ResponseHead,
    unix_time: u64,
    predictor: &mut dyn Predictor,
) -> Option<String> {
    let is_learned = is_reusable(request, head);
    if !is_learned && !names_resources(head) {
        return None;
    }
    let url = request_url(request)?;
    take_named(&url, request, head);
    if !is_learned {
        return None;
    }
    let lifetime = copy_lifetime(head, unix_time);
    note_copies(predictor, &url, head, lifetime, unix_time);
    let context = Context {
        url: &url,
        page: None,
        is_frame: false,
        // Without a session, no load is known.
        is_after_load: may_have_effects(request),
        document: None,
        named_by_scripts: 0,
    };
    record(predictor, context, request, head);
    has_unknown_length(head).then_some(url)
}

/// Returns whether the length of a whole response becomes known at its end only.
pub(super) fn has_unknown_length(head: &ResponseHead) -> bool {
    head.status == 200 && !head.fields.contains("content-length")
}

/// Tells the predictor the use that a browser's cache can make of a response.
pub(super) fn note_copies(
    predictor: &mut dyn Predictor,
    url: &str,
    head: &ResponseHead,
    lifetime: Option<CopyLifetime>,
    unix_time: u64,
) {
    if let Some(lifetime) = lifetime {
        predictor.note_lifetime(url, lifetime);
    } else if head.status == 200 {
        let reuse = browser_reuse(head, unix_time);
        predictor.note_kept(url, reuse != Reuse::Never);
    }
}

/// Removes the fields of a head that name resources. Returns these resources, unless the response
/// is an error or leads elsewhere.
pub(super) fn take_named(url: &str, request: &RequestHead, head: &mut ResponseHead) -> Vec<Need> {
    if !names_resources(head) {
        return Vec::new();
    }
    let is_document = is_navigation(request) || DocumentReader::is_html(head);
    let mut named = named_resources(url, head, is_document);
    if head.status != 200 {
        named.clear();
    }
    named
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use tandem_http::Scheme;
    use tandem_predict::{Candidate, Exchange};

    use super::*;
    use crate::gateway::{Clock, Config, Gateway};

    const NOW: u64 = 1_700_000_000;

    /// A predictor that keeps the lessons as text.
    #[derive(Default)]
    struct Recorder(Vec<String>);

    impl Predictor for Recorder {
        fn sending(&mut self, exchange: &Exchange<'_>) -> Vec<Candidate> {
            self.0.push(format!("{exchange:?}"));
            Vec::new()
        }

        fn note_referrer(&mut self, url: &str, referrer: &str) {
            self.0.push(format!("referrer {url} {referrer}"));
        }

        fn own_referrer(&self, _: &str) -> Option<String> {
            None
        }

        fn body_sent(&mut self, url: &str, size: u64) {
            self.0.push(format!("body {url} {size}"));
        }

        fn used(&mut self, _: &str, _: &str) {}

        fn confirmed(&mut self, _: &str, _: &str) {}

        fn cancelled(&mut self, _: &str) {}

        fn note_lifetime(&mut self, url: &str, lifetime: CopyLifetime) {
            self.0.push(format!("lifetime {url} {lifetime:?}"));
        }

        fn lifetime(&self, _: &str) -> Option<CopyLifetime> {
            None
        }

        fn resources(&self, _: &str) -> Vec<Candidate> {
            Vec::new()
        }

        fn note_kept(&mut self, url: &str, is_kept: bool) {
            self.0.push(format!("kept {url} {is_kept}"));
        }

        fn note_data_fields(&mut self, url: &str, _: &RequestHead) {
            self.0.push(format!("data fields {url}"));
        }
    }

    /// Returns the lessons of a new machine, and the head that it passes on.
    fn by_machine(request: &RequestHead, mut head: ResponseHead) -> (Vec<String>, ResponseHead) {
        let now = Instant::now();
        let clock = Clock {
            instant: now,
            unix_time: NOW,
        };
        let (mut machine, mut predictor) =
            (Gateway::new(Config::default(), clock), Recorder::default());
        if let Some(id) = machine.handle_request(now, &Arc::new(request.clone()), false) {
            machine.handle_head(now, id, &mut head, Some(&mut predictor));
            machine.handle_data(id, b"body");
            machine.handle_end(id, true, Some(&mut predictor));
        }
        (predictor.0, head)
    }

    #[test]
    fn teach_gives_the_lessons_of_a_new_machine() {
        let requests: [&[(&str, &str)]; 6] = [
            &[],
            &[("referer", "http://a.test/p"), ("user-agent", "b")],
            &[
                ("sec-fetch-dest", "document"),
                ("sec-fetch-mode", "navigate"),
            ],
            &[("sec-fetch-dest", "iframe"), ("sec-fetch-mode", "navigate")],
            &[("accept", "application/json"), ("x-requested-with", "x")],
            &[("authorization", "Basic eDp5")],
        ];
        let html = ("content-type", "text/html");
        let heads: [(u16, &[(&str, &str)]); 7] = [
            (200, &[]),
            (200, &[html, ("link", "</s.css>; rel=preload; as=style")]),
            (200, &[html, ("x-associated-content", "/a.css")]),
            (200, &[("etag", "\"1\""), ("content-length", "4")]),
            (
                200,
                &[
                    ("cache-control", "no-store"),
                    ("x-associated-content", "/a"),
                ],
            ),
            (304, &[("etag", "\"1\""), ("cache-control", "max-age=60")]),
            (404, &[html]),
        ];
        let mut lessons = 0;
        for path in ["/a.js", "/b", "/c/../d"] {
            for fields in requests {
                let mut request = RequestHead::get(Scheme::Http, "a.test", path);
                request.fields = fields.iter().copied().collect();
                for (status, fields) in heads {
                    let fields = fields.iter().copied().collect();
                    let mut head = ResponseHead { status, fields };
                    let expected = by_machine(&request, head.clone());
                    let mut predictor = Recorder::default();
                    assert!(teaches_alone(&request));
                    if may_teach(&request)
                        && let Some(url) = teach(&request, &mut head, NOW, &mut predictor)
                    {
                        predictor.body_sent(&url, 4);
                    }
                    lessons += predictor.0.len();
                    assert_eq!((predictor.0, head), expected, "{path} {status}");
                }
            }
        }
        assert!(lessons > 100, "{lessons}");
    }

    #[test]
    fn other_requests_teach_nothing_without_a_machine() {
        let get = RequestHead::get(Scheme::Http, "a.test", "/");
        let post = RequestHead {
            method: Method::Post,
            ..get.clone()
        };
        let socket = RequestHead {
            protocol: Some("websocket".into()),
            ..get.clone()
        };
        assert!(may_teach(&get) && !may_teach(&post) && !may_teach(&socket));
        for field in [OPENED_FIELD, ASKED_AGAIN_FIELD] {
            let mut request = get.clone();
            request.fields.push(field, "a.test");
            assert!(!teaches_alone(&request), "{field}");
        }
    }
}
