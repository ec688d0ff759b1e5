//! The dashboard: a page for the local user, and the data that it polls.
//!
//! ```text
//!  /  /script.js  /style.css    the page, without data
//!  /session                     the key, for the key or a code
//!  /overview?revision=N         the data, for the key
//! ```
//!
//! Three rules keep other sites out. A request that a page of another origin caused gets a 404. A
//! request for another host gets a 421, against names that point to this machine (DNS rebinding).
//! Data needs the key of the process ([`super::door`]).

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tandem_http::{Method, RequestHead, ResponseHead};

use super::door::Door;
use super::overview::OverviewSource;
use super::{comes_from, head, is_own, of_method};
use crate::exchange::{Exchange, Part, Reply};
use crate::stage::Stage;

/// The policy of the page: its own script and style, and nothing from elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// The text for unknown paths, and for requests of other pages.
const NOTHING: &str = "Nothing is here.\n";

/// The fields of each response, beside those of all listeners ([`head`]).
const FIELDS: [(&str, &str); 3] = [
    ("content-security-policy", POLICY),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
];

/// The files of the page: path, type and content.
const FILES: [(&str, &str, &str); 3] = [
    (
        "/",
        "text/html; charset=utf-8",
        include_str!("dashboard/index.html"),
    ),
    (
        "/script.js",
        "text/javascript; charset=utf-8",
        include_str!("dashboard/script.js"),
    ),
    (
        "/style.css",
        "text/css; charset=utf-8",
        include_str!("dashboard/style.css"),
    ),
];

/// Answers requests to the dashboard's listener.
#[derive(Debug)]
pub(super) struct Dashboard {
    pub(super) source: OverviewSource,
    pub(super) door: Arc<Door>,
    /// The authorities of the listener.
    pub(super) own: Rc<[String]>,
}

impl Stage for Dashboard {
    fn call(&self, exchange: Exchange) -> Reply {
        let request = &exchange.request;
        if !is_own(&self.own, request) {
            return refuse(421, "Misdirected request.\n");
        }
        if !is_from_here(request) {
            return refuse(404, NOTHING);
        }
        let (path, query) = match request.path.split_once('?') {
            Some((path, query)) => (path, query),
            None => (request.path.as_str(), ""),
        };
        if let Some((_, kind, content)) = FILES.iter().find(|(name, ..)| *name == path) {
            let reply = answer(200, kind, Bytes::from_static(content.as_bytes()));
            return of_method(&request.method, reply);
        }
        // A HEAD must not use up a key that opens the dashboard once.
        if request.method == Method::Head {
            return of_method(&request.method, refuse(404, NOTHING));
        }
        match path {
            "/session" if self.door.redeems(request, Instant::now()) => {
                let key = format!("{{\"key\":\"{}\"}}", self.door.key());
                answer(200, "application/json", key.into())
            }
            "/overview" if self.door.admits(request) => self.overview(query),
            "/session" | "/overview" => refuse(401, "Open the dashboard with `tandem open`.\n"),
            _ => refuse(404, NOTHING),
        }
    }
}

impl Dashboard {
    fn overview(&self, query: &str) -> Reply {
        let known = query.strip_prefix("revision=");
        let known = known.and_then(|number| number.parse().ok()).unwrap_or(0);
        let source = self.source.clone();
        Reply::generate(move |mut sink| async move {
            let overview = source.take(known).await;
            // Plain values always have a JSON form.
            let body = serde_json::to_string(&overview).unwrap_or_default();
            let head = protected(200, "application/json", body.len());
            sink.send(Part::Head(head)).await;
            sink.send(Part::Data(body.into())).await;
            Ok(())
        })
    }
}

/// Returns whether the user, a program or the dashboard's own page asks. A page of another origin
/// sends `Origin`, `Referer`, or another `Sec-Fetch-Site`.
fn is_from_here(request: &RequestHead) -> bool {
    comes_from(request, &["none", "same-origin"])
}

fn protected(status: u16, kind: &'static str, length: usize) -> ResponseHead {
    let mut head = head(status, kind, length);
    for (name, value) in FIELDS {
        head.fields.push(name, value);
    }
    head
}

fn answer(status: u16, kind: &'static str, body: Bytes) -> Reply {
    Reply::ready(protected(status, kind, body.len()), body)
}

fn refuse(status: u16, text: &'static str) -> Reply {
    answer(status, "text/plain", Bytes::from_static(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;
    use crate::admin::own_authorities;
    use crate::status::StatusSource;

    struct Scene {
        dashboard: Dashboard,
    }

    impl Scene {
        fn new() -> Self {
            let address = ([127, 0, 0, 1], 8117).into();
            let status = StatusSource::new(Vec::new);
            let dashboard = Dashboard {
                source: OverviewSource::new(
                    crate::role_name::RoleName::Client,
                    status,
                    Arc::default(),
                ),
                door: Arc::new(Door::new(address).expect("a door")),
                own: own_authorities(address, Scheme::Http).into(),
            };
            Self { dashboard }
        }

        /// Returns the head and the body of the response to a GET request.
        async fn get(
            &self,
            authority: &str,
            path: &str,
            fields: &[(&str, &str)],
        ) -> (ResponseHead, String) {
            let mut request = RequestHead::get(Scheme::Http, authority, path);
            request.fields = fields.iter().copied().collect();
            let mut reply = self.dashboard.call(Exchange::internal(request));
            let (mut found, mut body) = (None, Vec::new());
            while let Some(part) = reply.part().await {
                match part.expect("a part") {
                    Part::Head(head) => found = Some(head),
                    Part::Data(data) => body.extend(data),
                    other => panic!("{other:?}"),
                }
            }
            let body = String::from_utf8(body).expect("text");
            (found.expect("a head"), body)
        }
    }

    const HERE: &str = "127.0.0.1:8117";

    #[tokio::test]
    async fn dashboard_gives_data_for_the_key_only() {
        let scene = Scene::new();
        let key = format!("Bearer {}", scene.dashboard.door.key());
        let shown = [("authorization", key.as_str())];
        let (head, body) = scene.get(HERE, "/overview", &shown).await;
        assert_eq!(head.status, 200);
        assert!(body.contains("\"role\":\"client\"") && body.contains("\"loads\":[]"));
        let (head, _) = scene.get(HERE, "/overview?revision=x", &shown).await;
        assert_eq!(head.status, 200, "an unknown revision is the first one");
        let (_, body) = scene.get(HERE, "/session", &shown).await;
        assert!(body.contains(scene.dashboard.door.key()));
        for fields in [&[][..], &[("authorization", "Bearer x")]] {
            for path in ["/overview", "/session"] {
                let (head, body) = scene.get(HERE, path, fields).await;
                assert_eq!(head.status, 401, "{path}");
                assert!(!body.contains("client"), "{body}");
            }
        }
    }

    #[tokio::test]
    async fn head_gets_the_head_of_a_page_alone() {
        let scene = Scene::new();
        for (path, expected) in [("/", 200), ("/session", 404), ("/overview", 404)] {
            let mut request = RequestHead::get(Scheme::Http, HERE, path);
            request.method = Method::Head;
            let mut reply = scene.dashboard.call(Exchange::internal(request));
            let head = reply.part().await;
            let is_right = matches!(&head, Some(Ok(Part::Head(head))) if head.status == expected);
            assert!(is_right, "{path}: {head:?}");
            assert!(reply.part().await.is_none(), "{path}");
        }
    }

    #[tokio::test]
    async fn dashboard_refuses_requests_of_other_sites() {
        let scene = Scene::new();
        let key = format!("Bearer {}", scene.dashboard.door.key());
        for path in ["/", "/script.js", "/overview", "/session", "/other"] {
            for field in [
                ("origin", "http://attacker.example"),
                ("origin", "null"),
                ("referer", "http://attacker.example/"),
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-site", "same-site"),
            ] {
                let fields = [field, ("authorization", key.as_str())];
                let (head, _) = scene.get(HERE, path, &fields).await;
                assert_eq!(head.status, 404, "{path} {field:?}");
                let policies = head.fields.get_all("cross-origin-resource-policy");
                // Two equal values count as none.
                assert_eq!(policies.collect::<Vec<_>>(), [b"same-origin"]);
                assert_eq!(head.fields.get_all("x-frame-options").count(), 1);
            }
            let fields = [("authorization", key.as_str())];
            let (head, _) = scene.get("attacker.example:8117", path, &fields).await;
            assert_eq!(head.status, 421, "{path}");
        }
    }

    #[tokio::test]
    async fn page_has_no_inline_script_and_no_other_resource() {
        let scene = Scene::new();
        let (head, body) = scene.get(HERE, "/", &[("sec-fetch-site", "none")]).await;
        let field = |name: &str| {
            let value = head.fields.get(name).unwrap_or_default();
            String::from_utf8_lossy(value).into_owned()
        };
        let policy = field("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self'"));
        assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"));
        assert_eq!(field("cache-control"), "no-store");
        assert_eq!(field("referrer-policy"), "no-referrer");
        for forbidden in ["<script>", "style=", "onclick", "http://", "https://", "//"] {
            assert!(!body.contains(forbidden), "{forbidden}");
        }
        for (path, kind, content) in FILES {
            let (head, body) = scene.get(HERE, path, &[]).await;
            assert_eq!(head.fields.get("content-type"), Some(kind.as_bytes()));
            assert_eq!(body, content);
            assert!(!content.contains("innerHTML") && !content.contains("@import"));
        }
    }
}
