//! Drives `auto` by a log, as a gateway would drive it by its traffic.

use std::borrow::Cow;
use std::collections::HashMap;

use tandem_predict::auto::Place;
use tandem_predict::{Auto, Exchange};

use crate::basic::{Push, Sent};
use crate::classes::Classes;
use crate::interner::{Interner, UrlId};
use crate::learn::{Class, LearnOptions};
use crate::log::{AccessLog, NO_REFERER, Record, Verb, referer_path};
use crate::options::Options;
use crate::run::{Outstanding, Replayed, request_of};

/// A replay of a log with `auto`.
///
/// Pages and assets are counted by the documented rules, however `auto` classifies them, so that
/// costs are comparable. The replay never looks ahead: a site's own Referers are recognised when
/// they name a URL that was requested before.
pub struct AutoReplay<'a> {
    log: &'a AccessLog,
    classes: Classes,
    auto: Auto,
    outstanding: Outstanding,
    names: Vec<Cow<'a, str>>,
    /// URLs that are no UTF-8 go by a name of their own.
    odd: HashMap<String, UrlId>,
    referers: Vec<Referer>,
    requested: Vec<bool>,
    /// The positions of the URLs in `auto`.
    places: Vec<Place>,
    agents: Vec<Option<&'a str>>,
    /// Referers per host that named something requested before.
    own_hosts: Vec<u32>,
}

/// A possible value of Referer.
struct Referer {
    /// Number of scheme and host, of which the empty one has none.
    host: u32,
    /// The URL in the log that is exactly this (a proxy's log).
    whole: Option<UrlId>,
    /// The URL in the log that is this path (a server's log), and whether it is the root, which
    /// every site has.
    path: Option<UrlId>,
    root: bool,
}

/// Referers that must have named known URLs before a host counts as the log's own.
const OWN_HOST: u32 = 2;

impl<'a> AutoReplay<'a> {
    /// Lets `auto` watch `log`. Only the `options` that separate pages from assets matter, for the
    /// count.
    #[must_use]
    pub fn new(log: &'a AccessLog, options: &Options, mut auto: Auto) -> Self {
        auto.expect_urls(log.urls.len());
        let mut odd = HashMap::new();
        let mut hosts = Interner::default();
        let names = (0..log.urls.len() as u32)
            .map(|id| name(log, id, &mut odd))
            .collect();
        Self {
            log,
            classes: Classes::new(LearnOptions::of(options)),
            auto,
            outstanding: Outstanding::default(),
            names,
            odd,
            referers: (0..log.referers.len() as u32)
                .map(|id| Referer::new(log, id, &mut hosts))
                .collect(),
            requested: vec![false; log.urls.len()],
            places: vec![Place::NOWHERE; log.urls.len()],
            agents: (0..log.agents.len() as u32)
                .map(|id| std::str::from_utf8(log.agent_name(id)).ok())
                .collect(),
            own_hosts: vec![0; hosts.len()],
        }
    }

    /// Returns the predictor with its knowledge.
    #[must_use]
    pub fn into_auto(self) -> Auto {
        self.auto
    }

    /// The log's URL that a Referer names, if it names one.
    fn referer(&mut self, id: u32) -> Option<UrlId> {
        let referer = &self.referers[id as usize];
        if referer.whole.is_some() {
            return referer.whole;
        }
        let url = referer.path?;
        // A path's own host needs no proof.
        let Some(named) = self.own_hosts.get_mut(referer.host as usize) else {
            return Some(url);
        };
        *named += u32::from(!referer.root && self.requested[url as usize]);
        (*named >= OWN_HOST).then_some(url)
    }
}

/// The number of the empty host.
const NO_HOST: u32 = u32::MAX;

/// No log holds this URL.
const FOREIGN: &str = "foreign:";

/// A URL as text.
fn name<'a>(log: &'a AccessLog, id: UrlId, odd: &mut HashMap<String, UrlId>) -> Cow<'a, str> {
    match std::str::from_utf8(log.urls.name(id)) {
        Ok(name) => Cow::Borrowed(name),
        Err(_) => {
            let name = format!("{}#{id}", String::from_utf8_lossy(log.urls.name(id)));
            odd.insert(name.clone(), id);
            Cow::Owned(name)
        }
    }
}

impl Referer {
    fn new(log: &AccessLog, id: u32, hosts: &mut Interner) -> Self {
        let name = log.referers.name(id);
        let path = referer_path(name);
        let without_fragment = name.split(|&byte| byte == b'#').next().unwrap_or(name);
        // A Referer without a path keeps its whole name as host.
        let host = without_fragment
            .strip_suffix(&*path)
            .unwrap_or(without_fragment);
        Self {
            host: if host.is_empty() {
                NO_HOST
            } else {
                hosts.intern(host)
            },
            whole: log.urls.get(without_fragment).filter(|_| !host.is_empty()),
            path: log.urls.get(&path),
            root: *path == *b"/",
        }
    }
}

impl Replayed for AutoReplay<'_> {
    fn requested(&mut self, session: u32, url: UrlId) -> Option<Push> {
        self.outstanding.take(session, url)
    }

    fn sending(&mut self, session: u32, record: &Record, pushes: &mut Vec<Push>) -> Sent {
        let request = request_of(self.log, session, record);
        // Every step was found to be considered when sessions were cut.
        let classed = self.classes.class(session, &request);
        let sent = classed.unwrap_or(Sent {
            class: Class::Asset,
            load: record.line,
        });
        self.requested[record.url as usize] = true;
        let referer = (record.referer != NO_REFERER).then(|| self.referer(record.referer));
        let named = referer.flatten().map(|url| url as usize);
        let url = record.url as usize;
        let place_of_referer = named.map_or(Place::NOWHERE, |url| self.places[url]);
        let exchange = Exchange {
            session: u64::from(session),
            user: u64::from(record.user),
            now: record.time,
            url: &self.names[url],
            get: record.verb == Verb::Get,
            status: record.status,
            size: record.size,
            referer: referer.map(|_| named.map_or(FOREIGN, |url| &self.names[url])),
            agent: self.agents[record.agent as usize].map(str::as_bytes),
            ..Exchange::default()
        };
        let candidates = self
            .auto
            .sending_near(&exchange, &mut self.places[url], place_of_referer);
        for candidate in candidates {
            let id = self
                .log
                .urls
                .get(candidate.url.as_bytes())
                .or_else(|| self.odd.get(&*candidate.url).copied());
            // After a warm start a URL may be pushed that this log never names; it is a push like
            // any other.
            let id = id.unwrap_or_else(|| self.outstanding.unnamed(self.log.urls.len() as UrlId));
            pushes.extend(
                self.outstanding
                    .add(session, id, candidate.expected_size, sent.load),
            );
        }
        sent
    }

    fn closed(&mut self, session: u32) -> Vec<Push> {
        self.auto.session_closed(u64::from(session));
        self.outstanding.take_all(session)
    }
}
