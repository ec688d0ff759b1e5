//! A gateway's half without a link: a scene passes single events to it, and reads its decisions.
//! The predictor records its calls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_http::{RequestHead, ResponseHead, Scheme};
use tandem_predict::auto::url::Kind;
use tandem_predict::{Candidate, Exchange};
use tandem_push::gateway::{
    Clock, Config, CopyLifetime, FetchId, Gateway, Interest, Output, Predictor, PromiseStream,
    PushError, ResponseId,
};
use tandem_push::wire::{Fate, Report, url_hash};

pub(crate) const SITE: &str = "http://a.test";

pub(crate) const HTML: &[(&str, &str)] = &[
    ("content-type", "text/html"),
    ("set-cookie", "first=1; Path=/first"),
];

pub(crate) const NAVIGATION: &[(&str, &str)] = &[("accept", "text/html")];

/// A predictor that records its calls, and expects an image of each page.
#[derive(Default)]
pub(crate) struct Recorder {
    calls: Vec<String>,
    /// The URLs of recorded answers, and whether caches can keep them.
    pub(crate) kept: Vec<(String, bool)>,
    /// The URLs with recorded lifetimes.
    pub(crate) lifetimes: Vec<String>,
    /// The URLs of pushes that browsers had no use for.
    pub(crate) wasted: Vec<String>,
    /// The URLs of pushes that cost a host of another origin credit.
    pub(crate) useless_hosts: Vec<String>,
}

impl Predictor for Recorder {
    fn sending(&mut self, exchange: &Exchange<'_>) -> Vec<Candidate> {
        let referrer = exchange.referer.unwrap_or("-");
        let frame = exchange.destination.map_or("", |_| " in a frame");
        self.calls
            .push(format!("{} {referrer}{frame}", exchange.url));
        let is_page = exchange.url.ends_with("/page");
        let candidate = Candidate {
            url: format!("{SITE}/learned.png").into(),
            kind: Kind::Image,
            probability: 0.9,
            expected_size: 1000.0,
            known_for: Duration::ZERO,
        };
        Vec::from_iter(is_page.then_some(candidate))
    }

    fn note_referrer(&mut self, _: &str, _: &str) {}

    fn own_referrer(&self, _: &str) -> Option<String> {
        None
    }

    fn body_sent(&mut self, url: &str, size: u64) {
        self.calls.push(format!("size {url} {size}"));
    }

    fn used(&mut self, page: &str, url: &str) {
        self.calls.push(format!("used {page} {url}"));
    }

    fn confirmed(&mut self, page: &str, url: &str) {
        self.calls.push(format!("confirmed {page} {url}"));
    }

    fn cancelled(&mut self, url: &str) {
        self.calls.push(format!("cancelled {url}"));
    }

    fn note_lifetime(&mut self, url: &str, _: CopyLifetime) {
        self.lifetimes.push(url.to_owned());
    }

    fn lifetime(&self, _: &str) -> Option<CopyLifetime> {
        None
    }

    fn note_waste(&mut self, _: &str, url: &str, is_wasted: bool) {
        self.wasted.extend(is_wasted.then(|| url.to_owned()));
    }

    fn note_asked_host(&mut self, _: u32, _: &str, url: &str, is_asked: bool) {
        self.useless_hosts
            .extend((!is_asked).then(|| url.to_owned()));
    }

    fn note_kept(&mut self, url: &str, is_kept: bool) {
        self.kept.push((url.to_owned(), is_kept));
    }

    fn resources(&self, _: &str) -> Vec<Candidate> {
        Vec::new()
    }
}

/// A gateway's half, its clock and its predictor.
pub(crate) struct Scene {
    pub(crate) gateway: Gateway,
    pub(crate) now: Instant,
    pub(crate) predictor: Recorder,
}

/// A request of a browser for a path of the site.
pub(crate) fn request(path: &str, fields: &[(&str, &str)]) -> RequestHead {
    let mut request = RequestHead::get(Scheme::Http, "a.test", path);
    for (name, value) in fields {
        request.fields.push(name, *value);
    }
    request
}

/// The head of an answer.
pub(crate) fn head(status: u16, fields: &[(&str, &str)]) -> ResponseHead {
    let mut head = ResponseHead::new(status);
    for (name, value) in fields {
        head.fields.push(name, *value);
    }
    head
}

impl Scene {
    pub(crate) fn new(config: Config) -> Self {
        let now = Instant::now();
        let clock = Clock {
            instant: now,
            unix_time: 1_700_000_000,
        };
        Self {
            gateway: Gateway::new(config, clock),
            now,
            predictor: Recorder::default(),
        }
    }

    pub(crate) fn ask(&mut self, path: &str, fields: &[(&str, &str)]) -> ResponseId {
        let request = Arc::new(request(path, fields));
        let id = self.gateway.handle_request(self.now, &request, true);
        id.expect("a GET has a number")
    }

    /// Passes the head of a response, which the predictor sees.
    pub(crate) fn head(&mut self, id: ResponseId, head: &mut ResponseHead) -> Interest {
        let predictor = Some(&mut self.predictor as &mut dyn Predictor);
        self.gateway.handle_head(self.now, id, head, predictor)
    }

    /// Begins a page with these bytes. It stays under way.
    pub(crate) fn page(&mut self, body: &str) -> ResponseId {
        let id = self.ask("/page", NAVIGATION);
        self.gateway
            .handle_head(self.now, id, &mut head(200, HTML), None);
        self.gateway.handle_data(id, body.as_bytes());
        id
    }

    /// Takes the promises of a stream, and queues their fetches.
    pub(crate) fn promises(&mut self, stream: PromiseStream) -> Vec<FetchId> {
        let mut fetches = Vec::new();
        while let Some(promise) = self.gateway.take_promise(stream) {
            self.gateway.queue_fetch(self.now, promise.fetch);
            fetches.push(promise.fetch);
        }
        fetches
    }

    /// Takes the promises of a stream, and returns their paths.
    pub(crate) fn paths(&mut self, stream: PromiseStream) -> Vec<String> {
        let promises = std::iter::from_fn(|| self.gateway.take_promise(stream));
        promises.map(|promise| promise.request.path).collect()
    }

    /// Ends the stream of an answer.
    pub(crate) fn end(&mut self, id: ResponseId) {
        self.gateway.handle_end(id, true, None);
        self.gateway.release_response(self.now, id);
    }

    pub(crate) fn outputs(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.gateway.poll_output()).collect()
    }

    /// Returns the fetches that have begun since the last call.
    pub(crate) fn begun(&mut self) -> Vec<FetchId> {
        let fetches = self
            .outputs()
            .into_iter()
            .filter_map(|output| match output {
                Output::Fetch { fetch, .. } => Some(fetch),
                _ => None,
            });
        fetches.collect()
    }

    /// Returns the pushes of a page with `count` images.
    pub(crate) fn images(&mut self, count: usize) -> Vec<FetchId> {
        let body: String = (0..count)
            .map(|at| format!("<img src=/{at}.png>"))
            .collect();
        let page = self.page(&body);
        let fetches = self.promises(PromiseStream::Response(page));
        assert_eq!(fetches.len(), count);
        fetches
    }

    pub(crate) fn fetch_head(
        &mut self,
        id: FetchId,
        fields: &[(&str, &str)],
    ) -> Result<(), PushError> {
        let passed = self
            .gateway
            .handle_fetch_head(self.now, id, &mut head(200, fields), None);
        passed.map(drop)
    }

    pub(crate) fn fetch_data(&mut self, id: FetchId, length: usize) -> Result<(), PushError> {
        let data = vec![b'x'; length];
        let passed = self.gateway.handle_fetch_data(self.now, id, &data);
        passed.map(drop)
    }

    pub(crate) fn report(&mut self, fate: Fate, path: &str) {
        let mut bytes = Vec::new();
        Report::Became(fate, url_hash(&request(path, &[]))).encode(&mut bytes);
        let predictor = Some(&mut self.predictor as &mut dyn Predictor);
        self.gateway.handle_reports(self.now, &bytes, predictor);
    }

    pub(crate) fn recorded(&mut self) -> Vec<String> {
        std::mem::take(&mut self.predictor.calls)
    }
}
