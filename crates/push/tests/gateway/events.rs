//! Events in any order for the gateway's half, and the properties that hold all the same. Bytes
//! decide on the events, so that a property test and the fuzz target `push_gateway` share them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_http::{Method, RequestHead, ResponseHead, Scheme};
use tandem_predict::auto::url::Kind;
use tandem_predict::{Candidate, Exchange};
use tandem_push::gateway::{
    Audience, Clock, Config, CopyLifetime, FetchId, Gateway, Order, Output, Predictor,
    PromiseStream, ResponseId,
};
use tandem_push::next_pages::NextPage;
use tandem_push::wire::{Fate, NextPush, Report, url_hash};

/// The time after which a fetch without a head no longer counts as running.
const SLOT_PERIOD: Duration = Duration::from_secs(2);

const URLS: [&str; 10] = [
    "http://a.example/",
    "http://a.example/style.css",
    "http://a.example/app.js",
    "http://a.example/image.png",
    "http://a.example/frame.html",
    "http://cdn.a.example/font.woff2",
    "http://b.example/",
    "http://b.example/picture.jpg",
    "https://a.example/",
    "http://c.example/module.mjs",
];

const TYPES: [&str; 6] = [
    "text/html",
    "text/css",
    "text/javascript",
    "image/png",
    "application/xhtml+xml; charset=utf-8",
    "",
];

const BODIES: [&str; 8] = [
    "<link rel=stylesheet href=/style.css><script src=/app.js></script>",
    "<img src=/image.png><img src=http://b.example/picture.jpg loading=lazy>",
    "<iframe src=/frame.html></iframe><script type=module src=http://c.example/module.mjs>",
    "@import '/style.css'; @font-face { src: url(http://cdn.a.example/font.woff2) }",
    "import '/app.js';",
    "<meta name=referrer content=no-referrer><base href=http://b.example/><img src=x.png>",
    "<script>fetch('/frame.html'); load(['http://b.example/picture.jpg', 'image.png'])</script>",
    "fetch(\"http:\\/\\/b.example\\/picture.jpg\"); fetch('/image.png')",
];

const LINKS: [&str; 3] = [
    "</style.css>; rel=preload; as=style, <http://b.example/picture.jpg>; rel=preload; as=image",
    "</app.js>; rel=modulepreload",
    "<http://cdn.a.example/font.woff2>; rel=preload; as=font; crossorigin",
];

const FATES: [Fate; 5] = [
    Fate::Used,
    Fate::Late,
    Fate::Wasted,
    Fate::Cancelled,
    Fate::Validated,
];

/// The bytes that decide. After their end, each choice is the first.
struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count.max(1)
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    fn raw(&mut self) -> &'a [u8] {
        let count = self.below(64).min(self.0.len());
        let (raw, rest) = self.0.split_at(count);
        self.0 = rest;
        raw
    }
}

/// A predictor that returns candidates by the number of its calls.
struct Guesses(usize);

impl Guesses {
    fn candidates(&self) -> Vec<Candidate> {
        let kinds = [Kind::Style, Kind::Image, Kind::Data, Kind::Page, Kind::Font];
        let count = self.0 % 4;
        (0..count)
            .map(|step| Candidate {
                url: Arc::from(URLS[(self.0 + step) % URLS.len()]),
                kind: kinds[(self.0 + step) % kinds.len()],
                probability: 0.9,
                expected_size: 1000.0,
                known_for: Duration::from_secs(2000 * (self.0 * step) as u64),
            })
            .collect()
    }
}

impl Predictor for Guesses {
    fn sending(&mut self, exchange: &Exchange<'_>) -> Vec<Candidate> {
        self.0 += exchange.url.len();
        self.candidates()
    }

    fn note_referrer(&mut self, _: &str, _: &str) {}

    fn own_referrer(&self, url: &str) -> Option<String> {
        url.starts_with("http://a.").then(|| URLS[1].to_owned())
    }

    fn body_sent(&mut self, _: &str, _: u64) {}

    fn used(&mut self, _: &str, _: &str) {}

    fn confirmed(&mut self, _: &str, _: &str) {}

    fn cancelled(&mut self, _: &str) {}

    fn note_lifetime(&mut self, _: &str, _: CopyLifetime) {}

    fn lifetime(&self, url: &str) -> Option<CopyLifetime> {
        let lifetime = Duration::from_secs(url.len() as u64 % 3);
        Some(CopyLifetime {
            whole: lifetime,
            rest: lifetime,
        })
    }

    fn resources(&self, _: &str) -> Vec<Candidate> {
        self.candidates()
    }

    fn possible(&self, _: &str) -> Vec<Candidate> {
        self.candidates()
    }

    fn next_pages(&self, _: &str) -> Vec<NextPage> {
        let next = self.candidates().into_iter();
        next.map(|it| NextPage {
            url: it.url,
            probability: it.probability,
        })
        .collect()
    }
}

fn request(url: &str) -> RequestHead {
    let (scheme, rest) = url.split_once("://").expect("a complete URL");
    let (authority, path) = rest.split_at(rest.find('/').expect("a path"));
    let scheme = Scheme::parse(scheme.as_bytes()).expect("a scheme of HTTP");
    RequestHead::get(scheme, authority, path)
}

/// The machine, and the caller's knowledge of it.
struct Scene<'a> {
    choices: Choices<'a>,
    gateway: Gateway,
    config: Config,
    predictor: Guesses,
    now: Instant,
    answers: Vec<ResponseId>,
    /// The pushes whose promise was taken, and that were not released.
    promised: BTreeSet<FetchId>,
    /// The pushes whose promise was taken at any time.
    taken: HashSet<FetchId>,
    /// The pushes that wait for a decision.
    queued: BTreeSet<FetchId>,
    /// The fetches without a head, and the time at which each began.
    running: BTreeMap<FetchId, Instant>,
    decided: HashSet<FetchId>,
    cancelled: HashSet<FetchId>,
    hashes: BTreeSet<u32>,
    counted: [u64; 5],
}

/// Runs the events that `data` names, ends the session and checks that nothing is left.
pub(crate) fn run(data: &[u8]) {
    let mut choices = Choices(data);
    let own_origin_only = choices.below(4) == 3;
    let hosts = [1, 2, usize::MAX][choices.below(3)];
    let user = choices.below(8);
    let audience = match user {
        3 => Audience::OneUser,
        7 => Audience::OwnRequestsOnly,
        _ => Audience::Shared,
    };
    let config = Config {
        audience,
        own_origin_only,
        hosts,
        caches_are_new: user % 2 == 1,
        hold_out: [0.0, 0.0, 0.0, 0.5][choices.below(4)],
        fetches: 1 + choices.below(4),
        first_fetches: 1 + choices.below(2),
        unreported: 1 + choices.below(8),
        seed: u64::from(choices.byte()),
        named_by_scripts: choices.below(3),
    };
    let now = Instant::now();
    let clock = Clock {
        instant: now,
        unix_time: 1_700_000_000,
    };
    let mut scene = Scene {
        choices,
        gateway: Gateway::new(config, clock),
        config,
        predictor: Guesses(0),
        now,
        answers: Vec::new(),
        promised: BTreeSet::new(),
        taken: HashSet::new(),
        queued: BTreeSet::new(),
        running: BTreeMap::new(),
        decided: HashSet::new(),
        cancelled: HashSet::new(),
        hashes: BTreeSet::new(),
        counted: [0; 5],
    };
    let next = [NextPush::Off, NextPush::Validators, NextPush::Bodies];
    scene
        .gateway
        .allow_next_pages(next[config.seed as usize % 3]);
    while !scene.choices.0.is_empty() {
        scene.event();
        scene.carry_out();
    }
    scene.end();
}

impl Scene<'_> {
    fn event(&mut self) {
        match self.choices.below(16) {
            0 | 1 => self.on_request(),
            2 | 3 => self.on_head(),
            4 | 5 => {
                if let Some(id) = self.answer() {
                    let body = self.body();
                    self.gateway.handle_data(id, &body);
                }
            }
            6 => {
                if let Some(id) = self.answer() {
                    let complete = self.choices.below(2) == 0;
                    let predictor = Some(&mut self.predictor as &mut dyn Predictor);
                    self.gateway.handle_end(id, complete, predictor);
                }
            }
            7 => {
                if let Some(id) = self.answer() {
                    self.gateway.release_response(self.now, id);
                }
            }
            8 => {
                if let Some(id) = self.answer() {
                    self.take_promises(PromiseStream::Response(id));
                }
            }
            9 => self.take_promises(PromiseStream::Companion),
            10 => self.on_fetch_head(),
            11 => self.on_fetch_data(),
            12 => self.on_fetch_end(),
            13 => self.on_reports(),
            14 => {
                self.now += Duration::from_millis(u64::from(self.choices.byte()) * 16);
                self.on_timeout();
            }
            _ => match self.choices.below(4) {
                0 => self.gateway.close_companion(),
                _ => drop(self.gateway.open_companion(true)),
            },
        }
    }

    fn on_request(&mut self) {
        let mut request = request(self.choices.one_of(&URLS));
        let options = self.choices.byte();
        if options & 1 != 0 {
            let referrer = self.choices.one_of(&URLS);
            request.fields.push("referer", referrer);
        }
        if options & 2 != 0 {
            request.fields.push("accept", "text/html");
            request.fields.push("sec-fetch-mode", "navigate");
            request.fields.push("sec-fetch-dest", "document");
        }
        if options & 4 != 0 {
            request.fields.push("cache-control", "max-age=0");
        }
        if options & 24 == 24 {
            request.method = Method::Post;
        }
        let takes_pushes = options & 224 != 224;
        let is_get = request.method == Method::Get;
        self.hashes.insert(url_hash(&request));
        if !is_get {
            self.gateway.handle_unsafe_request();
            self.gateway.begin_change(self.now, &request);
            let mut answer = ResponseHead::new(303);
            answer.fields.push("set-cookie", "a=b");
            self.gateway.handle_unsafe_head(self.now, &request, &answer);
            if options & 32 != 0 {
                self.gateway.end_change(self.now);
            }
        }
        let request = Arc::new(request);
        let id = self
            .gateway
            .handle_request(self.now, &request, takes_pushes);
        if let Some((head, body)) = self.gateway.repeat(self.now, &request) {
            assert!(is_get && matches!(head.status, 200 | 304) && body.len() <= 64 << 10);
        }
        assert!(id.is_some() || !is_get);
        self.answers.extend(id);
    }

    fn head(&mut self) -> ResponseHead {
        let status = self.choices.one_of(&[200, 200, 200, 302, 304, 404, 500]);
        let mut head = ResponseHead::new(status);
        head.fields
            .push("content-type", self.choices.one_of(&TYPES));
        let options = self.choices.byte();
        if status == 302 {
            head.fields.push("location", self.choices.one_of(&URLS));
        }
        if options & 1 != 0 {
            head.fields.push("link", self.choices.one_of(&LINKS));
        }
        if options & 2 != 0 {
            head.fields.push("link", self.choices.raw());
        }
        if options & 4 != 0 {
            head.fields.push("cache-control", "max-age=600");
        }
        if options & 32 != 0 {
            head.fields.push("etag", "\"1\"");
        }
        if options & 24 == 24 {
            let length = self.choices.one_of(&["0", "1000", "5000000", "40000000"]);
            head.fields.push("content-length", length);
        }
        head
    }

    fn on_head(&mut self) {
        let Some(id) = self.answer() else { return };
        let mut head = self.head();
        let predictor = match self.choices.below(3) {
            0 => None,
            _ => Some(&mut self.predictor as &mut dyn Predictor),
        };
        let interest = self.gateway.handle_head(self.now, id, &mut head, predictor);
        assert!(!interest.body || head.status == 200, "{interest:?}");
    }

    fn body(&mut self) -> Vec<u8> {
        match self.choices.below(10) {
            9 => vec![b' '; 3 << 20],
            8 => self.choices.raw().to_vec(),
            body => BODIES[body].as_bytes().to_vec(),
        }
    }

    fn on_fetch_head(&mut self) {
        let Some(id) = self.fetch() else { return };
        let mut head = self.head();
        let passed =
            self.gateway
                .handle_fetch_head(self.now, id, &mut head, Some(&mut self.predictor));
        self.running.remove(&id);
        self.queued.remove(&id);
        match passed {
            Ok(order) => {
                assert!(head.fields.contains("tandem-asked"));
                self.obey(order);
            }
            Err(_) => self.release(id),
        }
    }

    fn on_fetch_data(&mut self) {
        let Some(id) = self.fetch() else { return };
        let body = self.body();
        match self.gateway.handle_fetch_data(self.now, id, &body) {
            Ok(order) => self.obey(order),
            Err(_) => self.release(id),
        }
    }

    fn on_fetch_end(&mut self) {
        let Some(id) = self.fetch() else { return };
        match self.choices.below(4) {
            0 => self.gateway.raise_fetch(self.now, id),
            1 => self.release(id),
            _ => {
                self.gateway.handle_fetch_end(self.now, id);
                self.running.remove(&id);
                self.queued.remove(&id);
            }
        }
    }

    fn on_reports(&mut self) {
        let mut bytes = Vec::new();
        if self.choices.below(4) == 0 {
            bytes.extend_from_slice(self.choices.raw());
        } else {
            let hash = url_hash(&request(self.choices.one_of(&URLS)));
            match self.choices.below(6) {
                5 => Report::Holds(hash).encode(&mut bytes),
                fate => Report::Became(FATES[fate], hash).encode(&mut bytes),
            }
        }
        let predictor = Some(&mut self.predictor as &mut dyn Predictor);
        self.gateway.handle_reports(self.now, &bytes, predictor);
    }

    fn on_timeout(&mut self) {
        self.gateway.handle_timeout(self.now);
        let now = self.now;
        self.running.retain(|_, began| *began + SLOT_PERIOD > now);
        let next = self.gateway.poll_timeout();
        assert!(next.is_none_or(|next| next > now), "due work is left");
    }

    fn answer(&mut self) -> Option<ResponseId> {
        let at = self.choices.below(self.answers.len());
        self.answers.get(at).copied()
    }

    fn fetch(&mut self) -> Option<FetchId> {
        let at = self.choices.below(self.promised.len());
        self.promised.iter().nth(at).copied()
    }

    fn obey(&mut self, order: Order) {
        if order == Order::AfterPromises {
            self.take_promises(PromiseStream::Companion);
        }
    }

    fn take_promises(&mut self, stream: PromiseStream) {
        let mut count = 0;
        while let Some(promise) = self.gateway.take_promise(stream) {
            count += 1;
            assert!(count <= 2048, "the promises of one stream are bounded");
            assert!(matches!(promise.request.method, Method::Get | Method::Head));
            assert!(self.taken.insert(promise.fetch), "a promise came twice");
            self.promised.insert(promise.fetch);
            self.hashes.insert(url_hash(&promise.request));
            self.queued.insert(promise.fetch);
            self.gateway.queue_fetch(self.now, promise.fetch);
        }
    }

    fn release(&mut self, id: FetchId) {
        self.gateway.release_fetch(self.now, id);
        self.promised.remove(&id);
        self.queued.remove(&id);
        self.running.remove(&id);
    }

    fn carry_out(&mut self) {
        while let Some(output) = self.gateway.poll_output() {
            match output {
                Output::Promise(_) => {}
                Output::Fetch { fetch, request } => {
                    assert!(matches!(request.method, Method::Get | Method::Head));
                    assert!(self.decided.insert(fetch), "decided twice");
                    assert!(!self.cancelled.contains(&fetch), "cancelled before");
                    // The caller may have released it before it looked at the output.
                    if self.queued.remove(&fetch) {
                        self.running.insert(fetch, self.now);
                    }
                }
                Output::Body { fetch } => assert!(!self.gateway.holds_body(fetch)),
                Output::Cancel { fetch } => {
                    assert!(self.cancelled.insert(fetch), "cancelled twice");
                    assert!(self.taken.contains(&fetch), "no stream had its promise");
                    self.release(fetch);
                }
                Output::Raise { fetch } => self.gateway.raise_fetch(self.now, fetch),
            }
        }
        assert!(self.running.len() <= self.config.fetches);
        assert!(self.gateway.unreported() <= self.config.unreported);
        self.count();
    }

    /// Checks that no more pushes have an outcome than were promised.
    fn count(&mut self) {
        let counts = self.gateway.take_counts();
        let news = [
            counts.promised,
            counts.used,
            counts.late,
            counts.wasted,
            counts.cancelled,
        ];
        for (sum, new) in self.counted.iter_mut().zip(news) {
            *sum += new;
        }
        let outcomes: u64 = self.counted[1..].iter().sum();
        assert!(outcomes <= self.counted[0], "{:?}", self.counted);
    }

    /// Ends all responses and pushes, and the session.
    fn end(&mut self) {
        for id in std::mem::take(&mut self.answers) {
            self.gateway.handle_end(id, true, None);
            self.gateway.release_response(self.now, id);
        }
        self.take_promises(PromiseStream::Companion);
        self.carry_out();
        while !self.queued.is_empty() {
            let begun: Vec<_> = self.running.keys().copied().collect();
            if begun.is_empty() {
                self.now = self.gateway.poll_timeout().expect("each promise ends");
                self.on_timeout();
            }
            for id in begun {
                self.gateway.handle_fetch_end(self.now, id);
                self.running.remove(&id);
            }
            self.take_promises(PromiseStream::Companion);
            self.carry_out();
        }
        for id in self.promised.clone() {
            self.release(id);
        }
        self.gateway.close();
        self.take_promises(PromiseStream::Companion);
        self.carry_out();
        assert_eq!(self.gateway.records(), [0; 3], "records are left");
        // A new companion drops the incomplete report of the last one.
        self.gateway.close_companion();
        assert!(self.gateway.open_companion(true));
        let mut reports = Vec::new();
        for hash in &self.hashes {
            Report::Became(Fate::Used, *hash).encode(&mut reports);
        }
        self.gateway.handle_reports(self.now, &reports, None);
        assert_eq!(self.gateway.unreported(), 0, "a promise has no outcome");
    }
}
