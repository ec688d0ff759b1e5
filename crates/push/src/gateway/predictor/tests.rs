//! Tests of the needs that candidates of the predictor become, and of the lessons for it.

use tandem_http::Scheme;

use super::super::returning::Returning;
use super::*;

const KNOWN_FOR: Duration = Duration::from_secs(7);

fn candidate(url: &str, kind: ResourceKind) -> Candidate {
    Candidate {
        url: url.into(),
        kind,
        probability: 1.0,
        expected_size: 1.0,
        known_for: KNOWN_FOR,
    }
}

#[test]
fn candidate_becomes_a_need_of_its_kind() {
    for (kind, expected) in [
        (ResourceKind::Style, Some((Kind::Style, 1, false))),
        (ResourceKind::Script, Some((Kind::Script, 2, false))),
        (ResourceKind::Font, Some((Kind::Font, 3, true))),
        (ResourceKind::Data, Some((Kind::Fetch, 3, true))),
        (ResourceKind::Image, Some((Kind::Image, 4, false))),
        (ResourceKind::Open, Some((Kind::Other, 4, false))),
        (ResourceKind::Page, None),
        (ResourceKind::Download, None),
    ] {
        let need = need_of(
            &candidate("http://a/x.json", kind),
            None,
            &DataFields::Plain,
        );
        let found = need.map(|need| (need.kind, need.urgency, need.anonymous));
        assert_eq!(found, expected, "{kind:?}");
    }
    let frame = candidate("http://a/x.html", ResourceKind::Data);
    let need = need_of(&frame, Some("http://a/".to_owned()), &DataFields::Plain).unwrap();
    assert_eq!((need.kind, need.anonymous), (Kind::Document, false));
    assert_eq!(need.via.as_deref(), Some("http://a/"));
    let script = candidate("http://a/x.html", ResourceKind::Script);
    let need = need_of(&script, None, &DataFields::Plain).unwrap();
    assert_eq!(need.kind, Kind::Script);
    for (kind, referrer, expected) in [
        (ResourceKind::Script, None, false),
        (ResourceKind::Script, Some("http://a/"), false),
        (ResourceKind::Script, Some("http://a/m.js"), true),
        (ResourceKind::Image, Some("http://a/m.js"), false),
        (ResourceKind::Font, Some("http://a/s.css"), true),
        (ResourceKind::Data, None, true),
    ] {
        let referrer = referrer.map(str::to_owned);
        let need = need_of(&candidate("http://a/x", kind), referrer, &DataFields::Plain);
        assert_eq!(need.unwrap().by_cors, expected, "{kind:?}");
    }
}

#[test]
fn candidate_that_scripts_request_is_data() {
    let request = RequestHead {
        fields: [("accept", "application/json")].into_iter().collect(),
        ..RequestHead::get(Scheme::Http, "a", "/x")
    };
    let fields = ScriptFields::of(&request).unwrap();
    let scripted = DataFields::Scripted(Arc::new(fields));
    for kind in [ResourceKind::Data, ResourceKind::Open, ResourceKind::Page] {
        let need = need_of(&candidate("http://a/x.html", kind), None, &scripted);
        let found = need.map(|need| (need.kind, need.anonymous));
        assert_eq!(found, Some((Kind::Fetch, true)), "{kind:?}");
    }
    let of_unknown = |kind| need_of(&candidate("http://a/x", kind), None, &DataFields::Unknown);
    assert_eq!(of_unknown(ResourceKind::Data), None);
    assert!(of_unknown(ResourceKind::Open).is_some());
    let frame = candidate("http://a/x.html", ResourceKind::Data);
    let need = need_of(&frame, None, &DataFields::Unknown);
    assert_eq!(need.map(|need| need.kind), Some(Kind::Document));
    let framed = DataFields::Frame {
        is_sandboxed: false,
    };
    for (kind, expected) in [
        (ResourceKind::Data, Some((Kind::Document, false, false))),
        (ResourceKind::Open, Some((Kind::Document, false, false))),
        (ResourceKind::Page, None),
        (ResourceKind::Image, Some((Kind::Image, false, false))),
    ] {
        let need = need_of(&candidate("http://a/x", kind), None, &framed);
        let found = need.map(|need| (need.kind, need.anonymous, need.by_cors));
        assert_eq!(found, expected, "{kind:?}");
    }
}

#[test]
fn candidate_has_the_mode_of_earlier_requests() {
    let by_cors = Recorder {
        is_by_cors: true,
        ..Recorder::default()
    };
    for (kind, path, expected) in [
        (ResourceKind::Script, "x.js", true),
        (ResourceKind::Style, "x.css", true),
        (ResourceKind::Image, "x.png", true),
        (ResourceKind::Data, "x.html", false),
    ] {
        let candidate = candidate(&format!("http://a/{path}"), kind);
        let modes = |predictor| {
            let need = known_need(predictor, &candidate, &DataFields::Plain).unwrap();
            (need.by_cors, need.anonymous)
        };
        assert_eq!(modes(&by_cors), (expected, expected), "{kind:?}");
        assert_eq!(modes(&Recorder::default()), (false, false), "{kind:?}");
    }
}

#[test]
fn private_requests_are_not_learned() {
    let of = |fields: &[(&str, &str)]| {
        is_learnable(&RequestHead {
            fields: fields.iter().copied().collect(),
            ..RequestHead::get(Scheme::Http, "a", "/")
        })
    };
    assert!(of(&[]) && of(&[("accept", "*/*"), ("cookie", "a=b")]));
    assert!(of(&[(crate::wire::OPENED_FIELD, "a.test")]));
    assert!(!of(&[("authorization", "Basic eDp5")]));
    assert!(of(&[("accept", "application/json")]));
    assert!(!of(&[("accept", "application/x.secret")]));
    assert!(!of(&[("accept", "application/json"), ("x-token", "1")]));
}

#[test]
fn resource_without_storage_is_not_reusable() {
    let of = |fields: &[(&str, &str)]| {
        let mut head = ResponseHead::new(200);
        head.fields = fields.iter().copied().collect();
        is_reusable(&RequestHead::get(Scheme::Http, "a", "/"), &head)
    };
    let no_store = ("cache-control", "no-store");
    assert!(of(&[]) && !of(&[no_store]));
    assert!(of(&[
        no_store,
        ("content-type", "text/html; charset=utf-8")
    ]));
}

#[test]
fn resource_of_one_user_is_not_reusable() {
    let of = |vary: &str, content_type: &str| {
        let mut head = ResponseHead::new(200);
        head.fields = [("vary", vary), ("content-type", content_type)]
            .into_iter()
            .collect();
        is_reusable(&RequestHead::get(Scheme::Http, "a", "/"), &head)
    };
    for vary in ["Cookie", "accept-encoding, authorization"] {
        assert!(!of(vary, "application/json"), "{vary}");
        assert!(of(vary, "text/html"), "a page names others");
    }
    assert!(of("accept-encoding", "application/json"));
}

#[derive(Default)]
struct Recorder {
    seen: Vec<String>,
    referrers: Vec<String>,
    browsers: Vec<String>,
    modes: Vec<String>,
    is_by_cors: bool,
    image_accepts: usize,
}

impl Predictor for Recorder {
    fn sending(&mut self, exchange: &Exchange<'_>) -> Vec<Candidate> {
        self.seen.push(format!(
            "{} {} {} {:?} {:?} {:?}",
            exchange.url,
            exchange.status,
            exchange.size,
            exchange.referer,
            exchange.content_type.map(String::from_utf8_lossy),
            exchange.destination
        ));
        self.browsers.push(format!(
            "{} {:?} {:?}",
            exchange.get,
            exchange.agent.map(String::from_utf8_lossy),
            exchange.accept
        ));
        vec![
            candidate("http://a/p.html", ResourceKind::Page),
            candidate("http://a/s.css", ResourceKind::Style),
        ]
    }

    fn note_referrer(&mut self, url: &str, referrer: &str) {
        self.referrers.push(format!("{url} {referrer}"));
    }

    fn own_referrer(&self, _: &str) -> Option<String> {
        None
    }

    fn note_mode(&mut self, url: &str, is_by_cors: bool) {
        self.modes.push(format!("{url} {is_by_cors}"));
    }

    fn note_image_accept(&mut self, _: &RequestHead) {
        self.image_accepts += 1;
    }

    fn is_by_cors(&self, _: &str) -> bool {
        self.is_by_cors
    }

    fn body_sent(&mut self, _: &str, _: u64) {}

    fn used(&mut self, _: &str, _: &str) {}

    fn confirmed(&mut self, _: &str, _: &str) {}

    fn cancelled(&mut self, _: &str) {}

    fn note_lifetime(&mut self, _: &str, _: CopyLifetime) {}

    fn lifetime(&self, url: &str) -> Option<CopyLifetime> {
        let lifetime = CopyLifetime {
            whole: Duration::from_secs(60),
            rest: Duration::from_secs(20),
        };
        url.ends_with(".css").then_some(lifetime)
    }

    fn is_unkept(&self, url: &str) -> bool {
        url.ends_with(".js")
    }

    fn resources(&self, page: &str) -> Vec<Candidate> {
        ["p.html", "s.css", "unknown.js"]
            .map(|name| candidate(&format!("{page}{name}"), ResourceKind::of_path(name)))
            .into()
    }
}

#[test]
fn returning_browsers_may_have_copies_with_lifetimes() {
    let returning = Returning::of(&Recorder::default(), "http://a/");
    let copies = returning.copies.iter();
    let urls: Vec<_> = copies.map(|copy| copy.need.url.as_str()).collect();
    assert_eq!(urls, ["http://a/s.css"]);
    let unkept = url_hash_of("http://a/unknown.js").unwrap();
    assert_eq!(returning.unkept, [unkept]);
    assert!(returning.known.contains(&(unkept, KNOWN_FOR)));
}

#[test]
fn response_is_recorded_with_its_circumstances() {
    let request = RequestHead {
        fields: [
            ("referer", "http://a/s.css"),
            ("user-agent", "b"),
            ("accept", "*/*"),
        ]
        .into_iter()
        .collect(),
        ..RequestHead::get(Scheme::Http, "a", "/x")
    };
    let head = ResponseHead {
        status: 200,
        fields: [("content-type", "text/html"), ("content-length", "7")]
            .into_iter()
            .collect(),
    };
    let mut recorder = Recorder::default();
    let context = |page, is_frame| Context {
        url: "http://a/x",
        page,
        is_frame,
        is_after_load: false,
        document: None,
        named_by_scripts: 0,
    };
    let needs = learn(&mut recorder, context(None, false), &request, &head);
    assert_eq!(needs.needs.len(), 1, "pages are no needs");
    let sheet = url_hash_of("http://a/s.css").unwrap();
    assert_eq!(needs.known, [(sheet, KNOWN_FOR)]);
    learn(
        &mut recorder,
        context(Some("http://p/"), true),
        &request,
        &head,
    );
    let expected = [
        "http://a/x 200 7 Some(\"http://a/s.css\") Some(\"text/html\") None",
        "http://a/x 200 7 Some(\"http://p/\") Some(\"text/html\") Some(\"iframe\")",
    ];
    assert_eq!(recorder.seen, expected);
    assert_eq!(recorder.browsers, ["true Some(\"b\") Some(\"*/*\")"; 2]);
    assert_eq!(recorder.referrers, ["http://a/x http://a/s.css"; 2]);
}

#[test]
fn visits_to_the_page_outweigh_the_predictor() {
    for (permits_likely, expected) in [(true, vec![1, 3]), (false, vec![1])] {
        let mut learned = Learned {
            likely: vec![1, 2],
            ..Learned::default()
        };
        let known = KnownTransfers {
            likely: vec![3],
            unlikely: vec![2],
        };
        learned.note_transfers(known, permits_likely);
        assert_eq!(learned.likely, expected);
    }
}

#[test]
fn request_teaches_its_mode_and_its_formats_of_images() {
    for (destination, mode, expected, images) in [
        ("image", "no-cors", &["http://a/x false"][..], 1),
        ("script", "cors", &["http://a/x true"], 0),
        ("document", "navigate", &[], 0),
    ] {
        let mut predictor = Recorder::default();
        let request = RequestHead {
            fields: [("sec-fetch-dest", destination), ("sec-fetch-mode", mode)]
                .into_iter()
                .collect(),
            ..RequestHead::get(Scheme::Http, "a", "/x")
        };
        let context = Context {
            url: "http://a/x",
            page: None,
            is_frame: false,
            is_after_load: false,
            document: None,
            named_by_scripts: 0,
        };
        record(&mut predictor, context, &request, &ResponseHead::new(200));
        assert_eq!(predictor.modes, expected, "{destination}");
        assert_eq!(predictor.image_accepts, images, "{destination}");
    }
}

#[test]
fn worker_hides_the_destination_of_navigations() {
    let (preload, navigate) = (
        ("service-worker-navigation-preload", "true"),
        ("sec-fetch-mode", "navigate"),
    );
    for (fields, expected) in [
        ([navigate, ("sec-fetch-dest", "empty")], "document"),
        ([preload, ("sec-fetch-dest", "empty")], "document"),
        ([preload, ("sec-fetch-dest", "iframe")], "iframe"),
        (
            [("sec-fetch-mode", "cors"), ("sec-fetch-dest", "empty")],
            "empty",
        ),
    ] {
        let request = RequestHead {
            fields: fields.iter().copied().collect(),
            ..RequestHead::get(Scheme::Https, "a", "/x")
        };
        assert_eq!(destination_of(&request).as_deref(), Some(expected));
    }
}
