//! A gateway's half at one end of an emulated link in virtual time. The other end is a scene that
//! sends requests itself, or the client's half.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_http::{Method, RequestHead, ResponseHead, Scheme};
use tandem_link::{Link, LinkConfig};
use tandem_push::client::PushId;
use tandem_push::gateway::{
    Clock, Config, FetchId, Gateway, Order, Output, Predictor, Promise, PromiseStream, ResponseId,
};
use tandem_push::wire::{CROSSED_FIELD, Fate, Report, url_hash};

use crate::client::{Client, Reply};
use crate::needs::Needs;
pub(crate) use crate::origin::Asked;
use crate::origin::{Page, page};

/// The delay of the link in one direction.
const DELAY: Duration = Duration::from_millis(100);

/// The time that origins take for a response.
const ORIGIN_TIME: Duration = Duration::from_millis(20);

/// A message on the link.
#[derive(Clone, Debug)]
enum Message {
    Request(RequestHead),
    Reports(Vec<u8>),
    Promise(FetchId, RequestHead),
    Head(Asker, String, ResponseHead),
    Data(Asker, String, String),
    Reset(FetchId, String),
}

/// The request that an origin answers.
#[derive(Clone, Copy, Debug)]
enum Asker {
    Response(ResponseId),
    Fetch(FetchId),
    /// A request that is no concern of push.
    Other,
}

/// Both ends, the link and the origins.
pub(crate) struct Pair {
    pub(crate) gateway: Gateway,
    /// The client's half; without one, scenes send requests and reports themselves.
    client: Option<Client>,
    start: Instant,
    now: Duration,
    up: Link,
    down: Link,
    messages: Vec<Message>,
    pages: HashMap<String, Page>,
    due: BTreeMap<(Duration, u64), (Asker, RequestHead)>,
    count: u64,
    asked: Vec<Asked>,
    /// The pushes that the gateway holds back: URL, head unless it was sent, and body.
    held: HashMap<FetchId, (String, Option<ResponseHead>, String)>,
    /// The promises without a response, with their URLs.
    promised: HashMap<FetchId, String>,
    /// The unfinished response.
    unfinished: Option<ResponseId>,
    /// The messages that the client received, as text.
    pub(crate) received: Vec<String>,
    /// The request that was referred to a push, and that push at the client.
    crossing: Option<RequestHead>,
    referred: Option<PushId>,
    /// The treatment of the last page.
    pub(crate) treatment: Option<String>,
    /// The predictor, in scenes with one.
    pub(crate) predictor: Option<Needs>,
}

fn link() -> Link {
    let config = LinkConfig {
        delay: DELAY,
        ..LinkConfig::default()
    };
    Link::new(config, 1).expect("a delay alone is a valid link")
}

fn url(request: &RequestHead) -> String {
    format!(
        "{}://{}{}",
        request.scheme.as_str(),
        request.authority,
        request.path
    )
}

/// The request of a browser for a URL.
pub(crate) fn request(url: &str, fields: &[(&str, &str)]) -> RequestHead {
    let (scheme, authority, path) = url
        .split_once("://")
        .and_then(|(scheme, rest)| {
            let (authority, path) = rest.split_at_checked(rest.find('/')?)?;
            Some((Scheme::parse(scheme.as_bytes())?, authority, path))
        })
        .expect("the scene's URLs are complete");
    RequestHead {
        fields: fields.iter().copied().collect(),
        ..RequestHead::get(scheme, authority, path)
    }
}

impl Pair {
    pub(crate) fn new(pages: &[(&str, Page)]) -> Self {
        Self::with(Config::default(), pages)
    }

    /// Returns the time of the scene.
    pub(crate) fn time(&self) -> Instant {
        self.start + self.now
    }

    pub(crate) fn with(config: Config, pages: &[(&str, Page)]) -> Self {
        let start = Instant::now();
        let clock = Clock {
            instant: start,
            unix_time: 1_700_000_000,
        };
        let pages = pages.iter().cloned();
        let mut pair = Self {
            gateway: Gateway::new(config, clock),
            client: None,
            start,
            now: Duration::ZERO,
            up: link(),
            down: link(),
            messages: Vec::new(),
            pages: pages.map(|(url, page)| (url.to_owned(), page)).collect(),
            due: BTreeMap::new(),
            count: 0,
            asked: Vec::new(),
            held: HashMap::new(),
            promised: HashMap::new(),
            unfinished: None,
            received: Vec::new(),
            crossing: None,
            referred: None,
            treatment: None,
            predictor: None,
        };
        assert!(pair.gateway.open_companion(true));
        pair.carry_out();
        pair
    }

    /// Puts the client's half at the other end. If `has_own_fields` is true, promises carry the
    /// fields of the gateway's request, as in HTTP/2. In SPDY they do not.
    pub(crate) fn with_client(mut self, has_own_fields: bool) -> Self {
        self.client = Some(Client::new(has_own_fields, self.start));
        self
    }

    /// Sends a browser's request to the client's half, and runs until nothing happens any more.
    pub(crate) fn browse(&mut self, method: Method, url: &str, fields: &[(&str, &str)]) -> Reply {
        let request = RequestHead {
            method,
            ..request(url, fields)
        };
        let client = self.client.as_mut().expect("the scene has a client");
        let served = client.take_request(self.start + self.now, &request);
        self.report_outcomes();
        if served.is_none() {
            self.transmit(Message::Request(request.clone()));
        }
        self.run();
        self.reply(request, served)
    }

    /// Returns the response to a request. One that no push answers after all is sent.
    fn reply(&mut self, request: RequestHead, served: Option<PushId>) -> Reply {
        let now = self.start + self.now;
        let client = self.client.as_mut().expect("the scene has a client");
        if let Some(reply) = client.reply(now, served) {
            return match self.referred.take() {
                None => reply,
                Some(push) => self.reply(request, Some(push)),
            };
        }
        self.report_outcomes();
        self.transmit(Message::Request(request));
        self.run();
        let client = self.client.as_mut().expect("the scene has a client");
        let reply = client.reply(self.start + self.now, None);
        reply.expect("the gateway answered")
    }

    /// Sends a browser's GET request as [`Self::browse`] does, and runs for a time only.
    pub(crate) fn browse_for(&mut self, time: Duration, url: &str, fields: &[(&str, &str)]) {
        let request = request(url, fields);
        let client = self.client.as_mut().expect("the scene has a client");
        assert_eq!(client.take_request(self.start + self.now, &request), None);
        self.transmit(Message::Request(request));
        self.run_for(time);
    }

    /// Sends a browser's GET request as [`Self::browse`] does. Returns the response and the URLs
    /// that origins received meanwhile, in order of names.
    pub(crate) fn get(&mut self, url: &str, fields: &[(&str, &str)]) -> (Reply, Vec<String>) {
        let reply = self.browse(Method::Get, url, fields);
        let mut urls: Vec<String> = self.take_asked().into_iter().map(|a| a.url).collect();
        urls.sort();
        (reply, urls)
    }

    /// Loads a page that shows the first visit of the browser to a host's site.
    pub(crate) fn begin_visit(&mut self, host: &str) {
        let url = format!("http://{host}/first");
        let first = page("text/html", "").with("set-cookie", "first=1");
        self.pages.insert(url.clone(), first);
        self.load(&url, &[("accept", "text/html")]);
    }

    /// Lets an origin serve another response from now on.
    pub(crate) fn serve(&mut self, url: &str, page: Page) {
        self.pages.insert(url.to_owned(), page);
    }

    /// Lets time pass in which nothing is sent.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn report_outcomes(&mut self) {
        let reports = self.client.as_mut().map(Client::take_reports);
        for report in reports.unwrap_or_default() {
            self.send_report(report);
        }
    }

    /// Ends the unfinished response, since the browser leaves the page.
    pub(crate) fn leave(&mut self) {
        let id = self.unfinished.take().expect("a page is unfinished");
        self.gateway.release_response(self.start + self.now, id);
        self.carry_out();
    }

    /// Sends a request, and runs until the pair is idle. Returns the URLs that origins received
    /// meanwhile, in order of names.
    pub(crate) fn load(&mut self, url: &str, fields: &[(&str, &str)]) -> Vec<String> {
        self.send(url, fields);
        self.run();
        let mut urls: Vec<String> = self.take_asked().into_iter().map(|a| a.url).collect();
        urls.sort();
        urls
    }

    /// Sends a request.
    pub(crate) fn send(&mut self, url: &str, fields: &[(&str, &str)]) {
        self.transmit(Message::Request(request(url, fields)));
    }

    /// Sends a request with the method POST.
    pub(crate) fn post(&mut self, url: &str, fields: &[(&str, &str)]) {
        self.transmit(Message::Request(RequestHead {
            method: Method::Post,
            ..request(url, fields)
        }));
    }

    /// Sends a report of the client.
    pub(crate) fn report(&mut self, fate: Fate, url: &str) {
        self.send_report(Report::Became(fate, url_hash(&request(url, &[]))));
    }

    /// Reports that the browser holds a URL.
    pub(crate) fn hold(&mut self, url: &str) {
        self.send_report(Report::Holds(url_hash(&request(url, &[]))));
    }

    fn send_report(&mut self, report: Report) {
        let mut body = Vec::new();
        report.encode(&mut body);
        self.transmit(Message::Reports(body));
    }

    /// Resets the fetches whose heads have not come.
    pub(crate) fn reset_fetches(&mut self) {
        for (asker, _) in std::mem::take(&mut self.due).into_values() {
            if let Asker::Fetch(id) = asker {
                self.gateway.release_fetch(self.start + self.now, id);
            }
        }
        self.carry_out();
    }

    /// Takes the requests that origins received.
    pub(crate) fn take_asked(&mut self) -> Vec<Asked> {
        std::mem::take(&mut self.asked)
    }

    fn transmit(&mut self, message: Message) {
        let packet = self.messages.len().to_be_bytes().to_vec();
        let is_upward = matches!(message, Message::Request(_) | Message::Reports(_));
        self.messages.push(message);
        let link = match is_upward {
            true => &mut self.up,
            false => &mut self.down,
        };
        link.ingress(self.now, packet);
    }

    /// Runs until nothing happens any more.
    pub(crate) fn run(&mut self) {
        self.run_until(|_| false);
    }

    /// Runs until nothing happens any more, or origins have received this number of requests.
    pub(crate) fn run_until_asked(&mut self, count: usize) {
        self.run_until(|pair| pair.asked.len() >= count);
    }

    /// Runs for this time.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        self.run_while(|_, next| next <= end);
        self.now = end;
    }

    fn run_until(&mut self, is_over: impl Fn(&Self) -> bool) {
        self.run_while(|pair, _| !is_over(pair));
    }

    /// Runs until nothing happens any more, as long as `goes_on` at the time of the next event.
    fn run_while(&mut self, goes_on: impl Fn(&Self, Duration) -> bool) {
        for _ in 0..1_000_000 {
            let timeout = self.gateway.poll_timeout();
            let timeout = timeout.map(|at| at.duration_since(self.start));
            let origin = self.due.keys().next().map(|(at, _)| *at);
            let links = [self.up.next_due(), self.down.next_due()];
            let Some(next) = links.into_iter().chain([timeout, origin]).flatten().min() else {
                return;
            };
            if !goes_on(self, next) {
                return;
            }
            self.now = self.now.max(next);
            self.step(timeout, origin);
            self.carry_out();
        }
        panic!("the scene never ends");
    }

    fn step(&mut self, timeout: Option<Duration>, origin: Option<Duration>) {
        if timeout.is_some_and(|at| at <= self.now) {
            self.gateway.handle_timeout(self.start + self.now);
        }
        if let Some((_, packet)) = self.up.pop_due(self.now) {
            self.on_upward(&packet);
        }
        if let Some((_, packet)) = self.down.pop_due(self.now) {
            self.on_downward(&packet);
        }
        if origin.is_some_and(|at| at <= self.now)
            && let Some((_, (asker, request))) = self.due.pop_first()
        {
            self.on_origin(asker, &request);
        }
    }

    fn message(&self, packet: &[u8]) -> Message {
        let number = usize::from_be_bytes(packet.try_into().expect("a number"));
        self.messages[number].clone()
    }

    fn on_upward(&mut self, packet: &[u8]) {
        let now = self.start + self.now;
        match self.message(packet) {
            Message::Request(request) => {
                if let Some(head) = self.gateway.refer(now, &request, 2 * DELAY) {
                    let url = url(&request);
                    self.crossing = Some(request);
                    return self.transmit(Message::Head(Asker::Other, url, head));
                }
                let shared = Arc::new(request.clone());
                let handed_over = self.gateway.hand_over(now, &request);
                let id = self.gateway.handle_request(now, &shared, true);
                let asker = id.map_or(Asker::Other, Asker::Response);
                if let Some(push) = handed_over {
                    let (_, head, body) = self.held.remove(&push).expect("its head is held");
                    let head = head.expect("its head is held");
                    self.transmit(Message::Reset(push, url(&request)));
                    return self.pass_repeat(asker, &request, head, body.into());
                }
                match self.gateway.repeat(now, &request) {
                    Some((head, body)) => self.pass_repeat(asker, &request, head, body),
                    None => self.ask(asker, request),
                }
            }
            Message::Reports(body) => {
                let predictor = self.predictor.as_mut().map(|it| it as &mut dyn Predictor);
                self.gateway.handle_reports(now, &body, predictor);
            }
            other => panic!("{other:?} goes down"),
        }
    }

    fn on_downward(&mut self, packet: &[u8]) {
        let now = self.start + self.now;
        let message = self.message(packet);
        if let Some(client) = &mut self.client {
            match message.clone() {
                Message::Promise(id, request) => client.on_promise(now, id, request),
                Message::Head(Asker::Fetch(id), _, head) => client.on_push_head(now, id, head),
                Message::Data(Asker::Fetch(id), _, body) => client.on_push_body(now, id, body),
                Message::Reset(id, _) => client.on_push_reset(id),
                Message::Head(_, _, head) => {
                    if head.fields.contains(CROSSED_FIELD) {
                        let crossing = self.crossing.take().expect("a request crossed");
                        self.referred = client.take_request(now, &crossing);
                    }
                    client.on_answer_head(head);
                }
                Message::Data(_, _, body) => client.on_answer_body(body),
                Message::Request(_) | Message::Reports(_) => {}
            }
        }
        self.report_outcomes();
        let text = match message {
            Message::Promise(_, request) => format!("promise {}", url(&request)),
            Message::Head(_, url, head) => {
                if let Some(treatment) = head.fields.get("tandem-push") {
                    self.treatment = Some(String::from_utf8_lossy(treatment).into_owned());
                }
                format!("head {url}")
            }
            Message::Data(_, url, _) => format!("data {url}"),
            Message::Reset(_, url) => format!("reset {url}"),
            other => panic!("{other:?} goes up"),
        };
        self.received.push(text);
    }

    fn ask(&mut self, asker: Asker, request: RequestHead) {
        self.asked.push(Asked {
            url: url(&request),
            fields: request.fields.clone(),
            is_head: request.method == Method::Head,
        });
        self.count += 1;
        let key = (self.now + ORIGIN_TIME, self.count);
        self.due.insert(key, (asker, request));
    }

    fn on_origin(&mut self, asker: Asker, request: &RequestHead) {
        let url = url(request);
        let page = self.pages.get(&url).cloned().unwrap_or_else(|| Page {
            status: 404,
            ..Page::default()
        });
        let fields = page.fields.iter().map(|(name, value)| (*name, value));
        let mut head = ResponseHead {
            status: page.status,
            fields: fields.collect(),
        };
        head.fields
            .push("content-length", page.body.len().to_string());
        let condition = request.fields.get("if-none-match");
        if let (Asker::Fetch(id), Some(_)) = (asker, condition)
            && condition == head.fields.get("etag")
        {
            head.status = 304;
            return self.pass_push(id, &url, head, "");
        }
        match asker {
            Asker::Response(id) => self.pass_response(id, &url, head, &page),
            Asker::Fetch(id) if request.method == Method::Head => {
                self.pass_push(id, &url, head, "");
            }
            Asker::Fetch(id) => self.pass_push(id, &url, head, &page.body),
            Asker::Other => {
                self.transmit(Message::Head(asker, url.clone(), head));
                self.transmit(Message::Data(asker, url, page.body));
            }
        }
    }

    fn pass_response(&mut self, id: ResponseId, url: &str, mut head: ResponseHead, page: &Page) {
        let (now, asker) = (self.start + self.now, Asker::Response(id));
        let predictor = self.predictor.as_mut().map(|it| it as &mut dyn Predictor);
        self.gateway.handle_head(now, id, &mut head, predictor);
        self.carry_promises(PromiseStream::Response(id));
        self.transmit(Message::Head(asker, url.to_owned(), head));
        for piece in page.body.as_bytes().chunks(4096) {
            self.gateway.handle_data(id, piece);
            self.carry_promises(PromiseStream::Response(id));
        }
        if page.is_unfinished {
            self.unfinished = Some(id);
            return;
        }
        self.transmit(Message::Data(asker, url.to_owned(), page.body.clone()));
        self.gateway.handle_end(id, true, None);
        self.gateway.release_response(now, id);
    }

    /// Answers a request with the response of a push.
    fn pass_repeat(
        &mut self,
        asker: Asker,
        request: &RequestHead,
        head: ResponseHead,
        body: Vec<u8>,
    ) {
        let Asker::Response(id) = asker else {
            panic!("a repeated response is one to a GET");
        };
        let body = String::from_utf8(body).expect("bodies of scenes are text");
        let page = Page {
            body,
            ..Page::default()
        };
        self.pass_response(id, &url(request), head, &page);
    }

    fn pass_push(&mut self, id: FetchId, url: &str, mut head: ResponseHead, body: &str) {
        let now = self.start + self.now;
        let predictor = self.predictor.as_mut().map(|it| it as &mut dyn Predictor);
        let gateway = &mut self.gateway;
        let passed = gateway.handle_fetch_head(now, id, &mut head, predictor);
        self.obey(passed.unwrap_or(Order::Now));
        self.promised.remove(&id);
        if passed.is_err() {
            self.transmit(Message::Reset(id, url.to_owned()));
            return self.gateway.release_fetch(now, id);
        }
        if self.gateway.holds_head(id) {
            let held = (url.to_owned(), Some(head), body.to_owned());
            self.held.insert(id, held);
            return;
        }
        let asker = Asker::Fetch(id);
        self.transmit(Message::Head(asker, url.to_owned(), head));
        if self.gateway.holds_body(id) {
            let held = (url.to_owned(), None, body.to_owned());
            self.held.insert(id, held);
            return;
        }
        self.pass_push_body(id, url, body);
    }

    fn pass_held_rest(&mut self, id: FetchId) {
        let (url, head, body) = self.held.remove(&id).expect("a head or a body is held");
        if let Some(head) = head {
            self.transmit(Message::Head(Asker::Fetch(id), url.clone(), head));
        }
        self.pass_push_body(id, &url, &body);
    }

    fn pass_push_body(&mut self, id: FetchId, url: &str, body: &str) {
        let (now, asker) = (self.start + self.now, Asker::Fetch(id));
        let order = self.gateway.handle_fetch_data(now, id, body.as_bytes());
        self.obey(order.expect("short bodies fit"));
        self.transmit(Message::Data(asker, url.to_owned(), body.to_owned()));
        self.gateway.handle_fetch_end(now, id);
        self.gateway.release_fetch(now, id);
    }

    fn obey(&mut self, order: Order) {
        if order == Order::AfterPromises {
            self.carry_promises(PromiseStream::Companion);
        }
    }

    fn carry_promises(&mut self, stream: PromiseStream) {
        while let Some(Promise { fetch, request, .. }) = self.gateway.take_promise(stream) {
            self.promised.insert(fetch, url(&request));
            self.transmit(Message::Promise(fetch, request));
            self.gateway.queue_fetch(self.start + self.now, fetch);
        }
    }

    /// Carries the machine's decisions out.
    fn carry_out(&mut self) {
        while let Some(output) = self.gateway.poll_output() {
            match output {
                Output::Promise(stream) => self.carry_promises(stream),
                Output::Fetch { fetch, request } => self.ask(Asker::Fetch(fetch), request),
                Output::Cancel { fetch } => {
                    if let Some((url, ..)) = self.held.remove(&fetch) {
                        self.transmit(Message::Reset(fetch, url));
                    } else if let Some(url) = self.promised.remove(&fetch) {
                        self.transmit(Message::Reset(fetch, url));
                    }
                    self.gateway.release_fetch(self.start + self.now, fetch);
                }
                Output::Body { fetch } => self.pass_held_rest(fetch),
                Output::Raise { fetch } => {
                    self.gateway.raise_fetch(self.start + self.now, fetch);
                }
            }
        }
    }
}
