//! The outcome of one page load.

use std::collections::HashMap;

use serde::Serialize;

use super::Wire;
use crate::browser::Visit;
use crate::har::{Entry, Har, Timings};
use crate::loader::{Load, Protocol, Timing};
use crate::page::Site;

/// Deviations from the model that are named one by one; all are counted.
const NAMED: usize = 20;

/// The outcome of a page load. Times in ms, from the start of the load unless the field says
/// otherwise.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The client that loaded the page.
    pub client: String,
    /// From the first byte of the first request sent to the last byte of the last answer received.
    pub time_on_wire_ms: f64,
    /// Loader: the last byte of all; browser: the load event is over.
    pub page_load_ms: f64,
    /// Browser: the document is parsed and its handlers have run.
    pub dom_content_loaded_ms: Option<f64>,
    /// Browser: something was painted.
    pub first_paint_ms: Option<f64>,
    /// First byte of the document.
    pub first_byte_ms: f64,
    /// Requests made.
    pub requests: usize,
    /// Requests without a complete response, or with a response that differs from the model's.
    pub failed: usize,
    /// Resources of the page that were not requested.
    pub missing: usize,
    /// The first few faults, as text.
    pub faults: Vec<String>,
    /// Browser: images, and those that were decoded.
    pub images: Option<(usize, usize)>,
    /// Body bytes received.
    pub body_bytes: u64,
    /// Bytes sent by the client, where it knows.
    pub bytes_up: Option<u64>,
    /// Bytes received by the client, where it knows.
    pub bytes_down: Option<u64>,
    /// Connections used.
    pub connections: usize,
    /// Packets and bytes on the link around, if there is one, from before the client was started
    /// until its connections were closed.
    pub wire: Option<Wire>,
    /// The phases of the requests' time.
    pub phases: Phases,
    /// The requests.
    #[serde(skip)]
    pub har: Har,
}

/// Means of the phases of all requests that had them, ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Phases {
    /// Waiting for a connection.
    pub blocked: Option<f64>,
    /// Resolving names.
    pub dns: Option<f64>,
    /// Connecting, TLS included.
    pub connect: Option<f64>,
    /// TLS handshakes.
    pub ssl: Option<f64>,
    /// Sending.
    pub send: Option<f64>,
    /// Waiting for the first byte.
    pub wait: Option<f64>,
    /// Receiving.
    pub receive: Option<f64>,
}

impl Outcome {
    /// Returns true if every resource of the page was loaded with the model's status and content.
    pub const fn is_complete(&self) -> bool {
        self.failed == 0 && self.missing == 0
    }

    /// A load by the lab's loader, which fails unless everything is right.
    pub(super) fn of_loader(load: Load, protocol: Protocol, site: &Site) -> Self {
        let har = loader_har(&load, protocol, site);
        let document = load.requests.iter().find(|timing| timing.resource == 0);
        Self {
            client: format!("loader {}", env!("CARGO_PKG_VERSION")),
            time_on_wire_ms: load.time.as_secs_f64() * 1e3,
            page_load_ms: load
                .requests
                .iter()
                .map(|timing| timing.end())
                .max()
                .unwrap_or_default()
                .as_secs_f64()
                * 1e3,
            dom_content_loaded_ms: None,
            first_paint_ms: None,
            first_byte_ms: document.map_or(0.0, |timing| {
                (timing.end() - timing.receive).as_secs_f64() * 1e3
            }),
            requests: load.requests.len(),
            failed: 0,
            missing: 0,
            faults: Vec::new(),
            images: None,
            body_bytes: load.requests.iter().map(|timing| timing.body).sum(),
            bytes_up: Some(load.bytes_up),
            bytes_down: Some(load.bytes_down),
            connections: load.connections,
            wire: None,
            phases: Phases::of(&har),
            har,
        }
    }

    /// A load by a browser, held against the model if there is one.
    pub(super) fn of_visit(visit: Visit, site: Option<&Site>) -> Self {
        let Visit { page, har } = visit;
        let mut faults = har
            .entries
            .iter()
            .filter_map(|entry| fault(entry, site))
            .collect::<Vec<_>>();
        let failed = faults.len();
        let absent = site.map_or_else(Vec::new, |site| absent(&har, site));
        let missing = absent.len();
        faults.extend(absent);
        faults.truncate(NAMED);
        let sent = har
            .entries
            .iter()
            .filter(|entry| entry.status > 0)
            .map(Entry::first_sent);
        let first = sent.fold(f64::INFINITY, f64::min);
        let last = har.entries.iter().map(Entry::end).fold(0.0, f64::max);
        let mut connections: Vec<_> = har
            .entries
            .iter()
            .filter_map(|entry| entry.connection.as_ref())
            .collect();
        connections.sort_unstable();
        connections.dedup();
        Self {
            client: format!("{} {}", har.client.0, har.client.1),
            time_on_wire_ms: if first.is_finite() { last - first } else { 0.0 },
            page_load_ms: page.load,
            dom_content_loaded_ms: Some(page.dom_content_loaded),
            first_paint_ms: page.first_paint,
            first_byte_ms: page.response_start,
            requests: har.entries.len(),
            failed,
            missing,
            faults,
            images: Some((page.images, page.decoded)),
            body_bytes: har.entries.iter().map(|entry| entry.body).sum(),
            bytes_up: har.entries.iter().map(|entry| entry.sent).sum(),
            bytes_down: har.entries.iter().map(|entry| entry.received).sum(),
            connections: connections.len(),
            wire: None,
            phases: Phases::of(&har),
            har,
        }
    }
}

/// Describes the fault of a response, if it has one.
fn fault(entry: &Entry, site: Option<&Site>) -> Option<String> {
    let say = |what: String| Some(format!("{}: {what}", entry.url));
    let known = site.map(|site| (site, path_of(&entry.url).and_then(|path| site.find(path))));
    match known {
        Some((_, None)) => say("not part of the page".into()),
        Some((site, Some(index))) => {
            let (wanted, got) = (site.page().resources[index].status, entry.status);
            let len = site.asset(index).body.len() as u64;
            // A redirect's body is not read.
            let whole = entry.body == len || site.page().resources[index].is_redirect();
            match &entry.error {
                // The browser may have no use for the response: it has no content, or it is an
                // error in place of a style sheet.
                Some(why) if got != wanted || (wanted < 400 && len > 0) => say(why.clone()),
                _ if got != wanted => say(format!("status {got} instead of {wanted}")),
                None if !whole => say(format!("{} of {len} bytes", entry.body)),
                _ => None,
            }
        }
        None => match &entry.error {
            Some(why) => say(why.clone()),
            None => {
                (entry.status >= 400).then(|| format!("{}: status {}", entry.url, entry.status))
            }
        },
    }
}

/// Resources that were never asked for.
fn absent(har: &Har, site: &Site) -> Vec<String> {
    let mut seen = vec![false; site.page().resources.len()];
    for index in har
        .entries
        .iter()
        .filter_map(|entry| path_of(&entry.url).and_then(|path| site.find(path)))
    {
        seen[index] = true;
    }
    let absent = seen.iter().enumerate().filter(|(_, seen)| !**seen);
    absent
        .map(|(index, _)| format!("{}: not asked for", site.url(index)))
        .collect()
}

/// Path and query of an absolute URL.
fn path_of(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    rest.find('/').map(|at| &rest[at..])
}

/// Returns the requests of one load by the lab's loader as a HAR file with one page.
pub fn loader_har(load: &Load, protocol: Protocol, site: &Site) -> Har {
    let mut entries: Vec<Entry> = load
        .requests
        .iter()
        .map(|timing| loader_entry(timing, protocol, site))
        .collect();
    entries.sort_by(|a, b| a.start.total_cmp(&b.start));
    let initiators: HashMap<usize, String> = (0..site.page().resources.len())
        .filter_map(|index| Some((index, site.url(site.page().resources[index].parent?))))
        .collect();
    for entry in &mut entries {
        let index = path_of(&entry.url).and_then(|path| site.find(path));
        entry.initiator = index.and_then(|index| initiators.get(&index).cloned());
    }
    let on_load = entries.iter().map(Entry::end).reduce(f64::max);
    Har {
        started: Some(load.started),
        client: ("tandem-loader".into(), env!("CARGO_PKG_VERSION").into()),
        title: load.page.clone(),
        on_content_load: None,
        on_load,
        entries,
    }
}

fn loader_entry(timing: &Timing, protocol: Protocol, site: &Site) -> Entry {
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let resource = &site.page().resources[timing.resource];
    Entry {
        start: ms(timing.known),
        timings: Timings {
            blocked: Some(ms(timing.start - timing.known)),
            dns: None,
            connect: timing.connect.map(ms),
            ssl: timing.tls.map(ms),
            send: ms(timing.send),
            wait: ms(timing.wait),
            receive: ms(timing.receive),
        },
        method: "GET".into(),
        url: site.url(timing.resource),
        protocol: String::from_utf8_lossy(protocol.alpn()).into_owned(),
        status: timing.status,
        response_fields: timing
            .note
            .iter()
            .map(|note| ("cache-status".to_owned(), note.clone()))
            .collect(),
        mime: resource.mime.clone(),
        sent: Some(timing.bytes_up),
        received: Some(timing.bytes_down),
        body: timing.body,
        kind: format!("{:?}", resource.kind).to_lowercase(),
        ..Entry::default()
    }
}

impl Phases {
    fn of(har: &Har) -> Self {
        let mean = |phase: fn(&Timings) -> Option<f64>| {
            let (count, sum) = har
                .entries
                .iter()
                .filter_map(|entry| phase(&entry.timings))
                .fold((0usize, 0.0), |(count, sum), time| (count + 1, sum + time));
            (count > 0).then(|| sum / count as f64)
        };
        Self {
            blocked: mean(|t| t.blocked),
            dns: mean(|t| t.dns),
            connect: mean(|t| t.connect),
            ssl: mean(|t| t.ssl),
            send: mean(|t| Some(t.send)),
            wait: mean(|t| Some(t.wait)),
            receive: mean(|t| Some(t.receive)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::page::Page;

    #[test]
    fn har_marks_pushed_resources() {
        let site = Site::new(Page::uniform(2, 10), &["h.test".to_owned()]).expect("valid");
        let timing = |resource, note: Option<&str>| Timing {
            resource,
            status: 200,
            known: Duration::ZERO,
            start: Duration::ZERO,
            connect: None,
            tls: None,
            send: Duration::ZERO,
            wait: Duration::ZERO,
            receive: Duration::ZERO,
            bytes_up: 1,
            bytes_down: 1,
            body: 10,
            note: note.map(str::to_owned),
        };
        let pushed = "tandem; hit; detail=pushed";
        let load = Load {
            page: "p".into(),
            started: std::time::UNIX_EPOCH,
            time: Duration::ZERO,
            bytes_up: 2,
            bytes_down: 2,
            connections: 1,
            retries: 0,
            requests: vec![timing(0, None), timing(1, Some(pushed))],
        };
        let har = loader_har(&load, Protocol::Http1, &site).to_json(&serde_json::Value::Null);
        let notes: Vec<_> = (0..2)
            .map(|at| har["log"]["entries"][at]["_tandem"].as_str())
            .collect();
        assert_eq!(notes, [None, Some(pushed)]);
    }
}
