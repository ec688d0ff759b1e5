//! Firefox's events about its requests (module `network` of WebDriver BiDi), converted to entries
//! of a HAR.
//!
//! A request keeps its id through all its redirects. Each redirect becomes an entry, told by
//! `redirectCount`. Times are milliseconds of the calendar.

use std::time::{Duration, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::Value;

use super::super::load::{ReportPhases, Request, Requests, is_http, text};
use crate::har::{Entry, Har, Timings};

/// Requests of a page load.
#[derive(Debug, Default)]
pub(super) struct FirefoxRecord {
    pub(super) requests: Requests<FetchTiming>,
    /// The id of each request, and the number of its redirect.
    ids: Vec<(String, u64)>,
}

/// `network.FetchTimingInfo`; 0 where there was no such phase.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::browser) struct FetchTiming {
    request_time: f64,
    dns_start: f64,
    dns_end: f64,
    connect_start: f64,
    connect_end: f64,
    tls_start: f64,
    tls_end: f64,
    request_start: f64,
    response_start: f64,
}

impl FirefoxRecord {
    /// Takes an event.
    pub(super) fn handle(&mut self, method: &str, params: &Value) {
        match method {
            "network.beforeRequestSent" => self.request(params),
            "network.responseStarted" => self.answer(params),
            "network.responseCompleted" => {
                self.answer(params);
                self.finish(params, None);
            }
            "network.fetchError" => self.finish(params, Some(text(&params["errorText"]))),
            _ => {}
        }
    }

    /// Returns the reason for which a document could not be loaded.
    pub(super) fn failure_of(&self, url: &str) -> Option<&str> {
        let document = self.requests.list.iter().find(|it| it.entry.url == url)?;
        document.entry.error.as_deref()
    }

    /// The requests as entries.
    pub(super) fn into_har(self) -> Har {
        let issued = self.requests.list.iter().map(|request| request.issued);
        let zero = issued.reduce(f64::min).unwrap_or(0.0);
        let since = Duration::try_from_secs_f64(zero / 1e3).unwrap_or_default();
        Har {
            started: UNIX_EPOCH.checked_add(since),
            entries: self.requests.into_entries(zero),
            ..Har::default()
        }
    }

    fn request(&mut self, params: &Value) {
        let request = &params["request"];
        let url = text(&request["url"]);
        if !is_http(url) {
            return;
        }
        let timing = timing_of(request);
        self.ids.push(id_of(params));
        self.requests.list.push(Request {
            entry: Entry {
                method: text(&request["method"]).to_owned(),
                url: url.to_owned(),
                request_fields: fields(&request["headers"]),
                kind: text(&request["destination"]).to_owned(),
                ..Entry::default()
            },
            issued: timing.request_time,
            ended: None,
            phases: timing,
        });
    }

    fn find(&mut self, params: &Value) -> Option<&mut Request<FetchTiming>> {
        let id = id_of(params);
        let mut all = self.requests.list.iter_mut().zip(&self.ids).rev();
        all.find(|(request, own)| request.ended.is_none() && **own == id)
            .map(|(request, _)| request)
    }

    /// Returns true if the memory of the page answers a request for a URL that this page load has
    /// fetched already. Firefox reports such a use of an image as a request of its own.
    fn is_repeated(&self, params: &Value) -> bool {
        let (id, url) = (id_of(params), text(&params["request"]["url"]));
        let mut all = self.requests.list.iter().zip(&self.ids);
        is_from_memory(&params["response"])
            && all.any(|(it, own)| *own != id && it.entry.url == url && it.entry.status > 0)
    }

    fn forget(&mut self, params: &Value) {
        let id = id_of(params);
        if let Some(at) = self.ids.iter().rposition(|own| *own == id) {
            self.ids.remove(at);
            self.requests.list.remove(at);
        }
    }

    fn answer(&mut self, params: &Value) {
        if self.is_repeated(params) {
            return self.forget(params);
        }
        let Some(exchange) = self.find(params) else {
            return;
        };
        let (request, response) = (&params["request"], &params["response"]);
        exchange.phases = timing_of(request);
        let entry = &mut exchange.entry;
        entry.request_fields = fields(&request["headers"]);
        entry.status = response["status"]
            .as_u64()
            .and_then(|status| u16::try_from(status).ok())
            .unwrap_or(0);
        entry.response_fields = fields(&response["headers"]);
        text(&response["mimeType"]).clone_into(&mut entry.mime);
        text(&response["protocol"]).clone_into(&mut entry.protocol);
        entry.body = body_size(response);
        entry.sent = request["headersSize"].as_u64();
        entry.received = response["bytesReceived"].as_u64();
    }

    fn finish(&mut self, params: &Value, error: Option<&str>) {
        let Some(exchange) = self.find(params) else {
            return;
        };
        exchange.ended = Some(params["timestamp"].as_f64().unwrap_or(exchange.issued));
        exchange.entry.error = error.map(str::to_owned);
    }
}

impl ReportPhases for FetchTiming {
    const MILLISECONDS: f64 = 1.0;

    fn phases(&self, issued: f64, end: f64) -> Option<Timings> {
        if self.request_start <= 0.0 {
            return None;
        }
        // A request may use a connection that was opened before it was made.
        let span = |from: f64, to: f64| (from >= issued && to >= from).then_some(to - from);
        let dns = span(self.dns_start, self.dns_end);
        let connect = span(self.connect_start, self.connect_end);
        let ssl = span(self.tls_start, self.tls_end).filter(|_| connect.is_some());
        let sent = self.request_start.max(issued);
        let first = self.response_start.clamp(sent, end.max(sent));
        let waited = sent - issued - dns.unwrap_or(0.0) - connect.unwrap_or(0.0);
        Some(Timings {
            blocked: Some(waited.max(0.0)),
            dns,
            connect,
            ssl,
            send: 0.0,
            wait: first - sent,
            receive: (end - first).max(0.0),
        })
    }
}

/// Returns true for a response out of the memory of the page, which has no size and no times.
fn is_from_memory(response: &Value) -> bool {
    let is_zero = |name: &str| response[name].as_u64().unwrap_or(0) == 0;
    response["fromCache"] == true && is_zero("bodySize") && is_zero("bytesReceived")
}

/// Returns the length of a response's body. Firefox asks its cache for it, which answers 0 while it
/// still writes the entry. The bytes received are exact then, save that over HTTP/2 Firefox counts
/// the empty line of the head once too often. A response out of memory is as long as its head says.
fn body_size(response: &Value) -> u64 {
    let size = |name: &str| response[name].as_u64().unwrap_or(0);
    let fields = fields(&response["headers"]);
    let length = fields.iter().find_map(|(name, value)| {
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.parse().ok())?
    });
    match size("bodySize") {
        0 if is_from_memory(response) => length.unwrap_or(0),
        0 => {
            let arrived = size("bytesReceived").saturating_sub(size("headersSize"));
            length
                .filter(|length| arrived > 0 && arrived + 1 == *length)
                .unwrap_or(arrived)
        }
        known => known,
    }
}

fn id_of(params: &Value) -> (String, u64) {
    let id = text(&params["request"]["request"]).to_owned();
    (id, params["redirectCount"].as_u64().unwrap_or(0))
}

fn timing_of(request: &Value) -> FetchTiming {
    FetchTiming::deserialize(&request["timings"]).unwrap_or_default()
}

/// Fields from a list of `network.Header`.
fn fields(value: &Value) -> Vec<(String, String)> {
    let all = value.as_array().into_iter().flatten();
    all.map(|field| {
        let value = text(&field["value"]["value"]);
        (text(&field["name"]).to_owned(), value.to_owned())
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(id: &str, redirects: u64, url: &str, timings: Value) -> Value {
        json!({ "redirectCount": redirects, "timestamp": 1_000_500,
            "request": { "request": id, "url": url, "method": "GET", "headersSize": 30, "timings": timings,
                "headers": [{ "name": "A", "value": { "type": "string", "value": "1" } }], "destination": "image" } })
    }

    fn answered(mut event: Value, status: u16, at: u64) -> Value {
        event["timestamp"] = at.into();
        event["response"] = json!({ "status": status, "protocol": "h2", "mimeType": "image/png", "bodySize": 70,
            "bytesReceived": 90, "headers": [] });
        event
    }

    #[test]
    fn phases_and_sizes() {
        let mut record = FirefoxRecord::default();
        let before = json!({ "requestTime": 1_000_000.0 });
        let after = json!({ "requestTime": 1_000_000.0, "dnsStart": 1_000_005.0, "dnsEnd": 1_000_010.0,
            "connectStart": 1_000_010.0, "connectEnd": 1_000_040.0, "tlsStart": 1_000_020.0, "tlsEnd": 1_000_040.0,
            "requestStart": 1_000_050.0, "responseStart": 1_000_150.0 });
        let url = "http://a.test/";
        record.handle("network.beforeRequestSent", &request("1", 0, url, before));
        let end = answered(request("1", 0, url, after), 200, 1_000_180);
        record.handle("network.responseStarted", &end);
        assert_eq!(record.requests.counts(), (0, 1));
        record.handle("network.responseCompleted", &end);
        assert_eq!(record.requests.counts(), (1, 0));
        let har = record.into_har();
        let [entry] = &har.entries[..] else {
            panic!("one entry")
        };
        let wanted = Timings {
            blocked: Some(15.0),
            dns: Some(5.0),
            connect: Some(30.0),
            ssl: Some(20.0),
            send: 0.0,
            wait: 100.0,
            receive: 30.0,
        };
        assert_eq!(entry.timings, wanted);
        assert_eq!(
            (entry.status, entry.body, entry.sent, entry.received),
            (200, 70, Some(30), Some(90))
        );
        assert_eq!(
            har.started,
            UNIX_EPOCH.checked_add(Duration::from_secs(1000))
        );
    }

    #[test]
    fn body_size_without_cache_is_that_of_received_bytes() {
        let response = |received: u64| {
            json!({ "bodySize": 0, "headersSize": 281, "bytesReceived": received, "headers": [
                { "name": "Content-Length", "value": { "type": "string", "value": "17072" } }] })
        };
        for (received, size) in [
            (17353, 17072),
            (17352, 17072),
            (17351, 17070),
            (281, 0),
            (0, 0),
        ] {
            assert_eq!(body_size(&response(received)), size, "{received}");
        }
        let known = json!({ "bodySize": 70, "headersSize": 20, "bytesReceived": 99 });
        assert_eq!(body_size(&known), 70);
    }

    #[test]
    fn image_from_page_memory_is_no_second_request() {
        let (mut record, url) = (FirefoxRecord::default(), "http://a.test/image");
        let from_memory = |id: &str, url: &str| {
            let mut event = request(id, 0, url, json!({}));
            event["response"] = json!({ "status": 200, "fromCache": true, "bodySize": 0, "bytesReceived": 0,
                "headers": [{ "name": "Content-Length", "value": { "type": "string", "value": "70" } }] });
            event
        };
        let fetched = answered(request("1", 0, url, json!({})), 200, 1_000_100);
        for event in [
            fetched,
            from_memory("2", url),
            from_memory("3", "http://a.test/kept"),
        ] {
            record.handle("network.beforeRequestSent", &event);
            record.handle("network.responseStarted", &event);
            record.handle("network.responseCompleted", &event);
        }
        assert_eq!(record.requests.counts(), (2, 0));
        let har = record.into_har();
        let sizes = har.entries.iter().map(|entry| (&*entry.url, entry.body));
        let sizes: Vec<_> = sizes.collect();
        assert_eq!(sizes, [(url, 70), ("http://a.test/kept", 70)]);
    }

    #[test]
    fn redirects_failures_and_open_requests() {
        let mut record = FirefoxRecord::default();
        let none = || json!({ "requestTime": 1_000_000.0 });
        let first = request("1", 0, "http://a.test/", none());
        record.handle("network.beforeRequestSent", &first);
        record.handle(
            "network.responseCompleted",
            &answered(first, 302, 1_000_100),
        );
        let second = request("1", 1, "http://b.test/", none());
        record.handle("network.beforeRequestSent", &second);
        let mut failed = second;
        failed["errorText"] = "NS_ERROR".into();
        record.handle("network.fetchError", &failed);
        record.handle(
            "network.beforeRequestSent",
            &request("2", 0, "http://a.test/open", none()),
        );
        record.handle(
            "network.beforeRequestSent",
            &request("3", 0, "data:,x", none()),
        );
        record.handle("network.beforeRequestSent", &Value::Null);
        record.handle("network.responseCompleted", &json!({ "request": [] }));
        assert_eq!(record.requests.counts(), (2, 1));
        let har = record.into_har();
        let entries = har.entries.iter();
        let rows: Vec<_> = entries.map(|it| (it.status, it.error.as_deref())).collect();
        let wanted = [(302, None), (0, Some("NS_ERROR")), (0, Some("not ended"))];
        assert_eq!(rows, wanted);
    }
}
