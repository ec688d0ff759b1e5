//! Drives `auto` by a log, as a gateway would drive it by its traffic.

use std::borrow::Cow;
use std::collections::HashMap;

use super::{Auto, Exchange};
use crate::basic::{Basic, Push, Sent};
use crate::ids::UrlId;
use crate::learn::Class;
use crate::log::{AccessLog, NO_REFERER, Record, Verb, referer_path};
use crate::options::Options;
use crate::replay::{Outstanding, Replayed, request_of};

/// `auto` over a log.
///
/// Pages and assets are counted by the documented rules, whatever `auto` takes them for, so that costs compare. Nothing
/// is looked up ahead: a site's own Referers are recognised as they turn out to name what was requested before.
pub struct AutoReplay<'a> {
    log: &'a AccessLog,
    rules: Basic,
    auto: Auto,
    outstanding: Outstanding,
    names: Vec<Cow<'a, str>>,
    /// URLs that are no UTF-8 go by a name of their own.
    odd: HashMap<String, UrlId>,
    referers: Vec<Referer>,
    requested: Vec<bool>,
    /// Referers per host that named something requested before.
    own_hosts: HashMap<Vec<u8>, u32>,
}

/// What a Referer may name.
struct Referer {
    /// Scheme and host; empty for a path.
    host: Vec<u8>,
    /// The URL in the log that is exactly this (a proxy's log).
    whole: Option<UrlId>,
    /// The URL in the log that is this path (a server's log), and whether it is the root, which every site has.
    path: Option<UrlId>,
    root: bool,
}

/// Referers that must have named known URLs before a host counts as the log's own.
const OWN_HOST: u32 = 2;

impl<'a> AutoReplay<'a> {
    /// Lets `auto` watch `log`. Of `options` only what decides between page and asset matters, for the count.
    #[must_use]
    pub fn new(log: &'a AccessLog, options: &Options, auto: Auto) -> Self {
        let mut odd = HashMap::new();
        let names = (0..log.urls.len() as u32).map(|id| name(log, id, &mut odd)).collect();
        // Only the classes are wanted, so no page ever has history enough to push for.
        let rules = Basic::new(Options { min_history: u32::MAX, assume_hits: false, ..options.clone() });
        Self {
            log,
            rules,
            auto,
            outstanding: Outstanding::default(),
            names,
            odd,
            referers: (0..log.referers.len() as u32).map(|id| Referer::new(log, id)).collect(),
            requested: vec![false; log.urls.len()],
            own_hosts: HashMap::new(),
        }
    }

    /// The predictor, with what it learned.
    #[must_use]
    pub fn into_auto(self) -> Auto {
        self.auto
    }

    /// The URL that a Referer names, in the form of the log's URLs; something foreign if it names none.
    fn referer(&mut self, id: u32) -> &str {
        let referer = &self.referers[id as usize];
        if let Some(url) = referer.whole {
            return &self.names[url as usize];
        }
        let Some(url) = referer.path else { return FOREIGN };
        if !referer.root && self.requested[url as usize] {
            *self.own_hosts.entry(referer.host.clone()).or_default() += 1;
        }
        let own = referer.host.is_empty() || self.own_hosts.get(&referer.host).is_some_and(|&n| n >= OWN_HOST);
        if own { &self.names[url as usize] } else { FOREIGN }
    }
}

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
    fn new(log: &AccessLog, id: u32) -> Self {
        let name = log.referers.name(id);
        let path = referer_path(name);
        let without_fragment = name.split(|&byte| byte == b'#').next().unwrap_or(name);
        // A Referer without a path keeps its whole name as host.
        let host = without_fragment.strip_suffix(&*path).unwrap_or(without_fragment);
        Self {
            host: host.to_vec(),
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
        let classed = self.rules.sending(&request, |a, b| a.cmp(&b), &mut Vec::new());
        let sent = classed.unwrap_or(Sent { class: Class::Asset, load: record.line });
        self.requested[record.url as usize] = true;
        let referer = (record.referer != NO_REFERER).then(|| self.referer(record.referer).to_owned());
        let candidates = self.auto.sending(&Exchange {
            session: u64::from(session),
            user: u64::from(record.user),
            now: record.time,
            url: &self.names[record.url as usize],
            get: record.verb == Verb::Get,
            status: record.status,
            size: record.size,
            referer: referer.as_deref(),
            agent: std::str::from_utf8(self.log.agent_name(record.agent)).ok(),
            ..Exchange::default()
        });
        for candidate in candidates {
            let id = self.log.urls.get(candidate.url.as_bytes()).or_else(|| self.odd.get(&*candidate.url).copied());
            // After a warm start a URL may be pushed that this log never names; it is a push like any other.
            let id = id.unwrap_or_else(|| self.outstanding.unnamed(self.log.urls.len() as UrlId));
            pushes.extend(self.outstanding.add(session, id, candidate.expected_size, sent.load));
        }
        sent
    }

    fn closed(&mut self, session: u32) -> Vec<Push> {
        self.rules.session_closed(u64::from(session));
        self.auto.session_closed(u64::from(session));
        self.outstanding.take_all(session)
    }
}
