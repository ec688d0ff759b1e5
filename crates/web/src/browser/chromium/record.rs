//! Chromium's events about its requests (domain Network of the DevTools protocol), converted to
//! entries of a HAR.
//!
//! A request keeps one id through all its redirects; each redirect becomes an entry. The headers on
//! the wire come in separate events, before or after the others: the n-th of an id belong to its
//! n-th entry.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::Value;

use super::super::load::{ReportPhases, Request, Requests, is_http, text};
use crate::har::{Entry, Har, Timings};

/// Requests of a page load.
#[derive(Debug, Default)]
pub(super) struct ChromiumRecord {
    pub(super) requests: Requests<Option<ResourceTiming>>,
    /// Entries of each id, in order.
    ids: HashMap<String, Vec<usize>>,
    /// Headers that came before their entries, and how many of each id have come.
    sent_fields: HashMap<String, Vec<Fields>>,
    received_fields: HashMap<String, Vec<Fields>>,
    /// Monotonic and calendar time of the first request.
    began: Option<(f64, SystemTime)>,
}

type Fields = Vec<(String, String)>;

/// A request. Times in seconds of Chromium's monotonic clock.
type ChromiumRequest = Request<Option<ResourceTiming>>;

/// `Network.ResourceTiming`: `request_time` in seconds, the others in ms from it, -1 where there
/// was no such phase.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::browser) struct ResourceTiming {
    request_time: f64,
    dns_start: f64,
    dns_end: f64,
    connect_start: f64,
    connect_end: f64,
    ssl_start: f64,
    ssl_end: f64,
    send_start: f64,
    send_end: f64,
    receive_headers_start: f64,
    receive_headers_end: f64,
}

impl Default for ResourceTiming {
    fn default() -> Self {
        Self {
            request_time: 0.0,
            dns_start: -1.0,
            dns_end: -1.0,
            connect_start: -1.0,
            connect_end: -1.0,
            ssl_start: -1.0,
            ssl_end: -1.0,
            send_start: 0.0,
            send_end: 0.0,
            receive_headers_start: -1.0,
            receive_headers_end: 0.0,
        }
    }
}

impl ChromiumRecord {
    /// Takes an event.
    pub(super) fn handle(&mut self, method: &str, params: &Value) {
        let Some(id) = params["requestId"].as_str() else {
            return;
        };
        match method {
            "Network.requestWillBeSent" => self.request(id, params),
            "Network.requestWillBeSentExtraInfo" => {
                self.sent_fields
                    .entry(id.to_owned())
                    .or_default()
                    .push(fields(&params["headers"]));
            }
            "Network.responseReceivedExtraInfo" => {
                self.received_fields
                    .entry(id.to_owned())
                    .or_default()
                    .push(fields(&params["headers"]));
            }
            "Network.responseReceived" => {
                if let Some(exchange) = self.last(id) {
                    answer(exchange, &params["response"]);
                    text(&params["type"]).clone_into(&mut exchange.entry.kind);
                }
            }
            "Network.dataReceived" => {
                if let Some(exchange) = self.last(id) {
                    exchange.entry.body += params["dataLength"].as_u64().unwrap_or(0);
                }
            }
            "Network.loadingFinished" | "Network.loadingFailed" => self.finish(id, params),
            _ => {}
        }
    }

    /// The requests as entries; with a proxy, requests without TLS name their whole URL.
    pub(super) fn into_har(mut self, proxied: bool) -> Har {
        let (zero, started) = self.began.unwrap_or((0.0, UNIX_EPOCH));
        for (id, places) in &self.ids {
            let mut sent = self.sent_fields.remove(id).unwrap_or_default().into_iter();
            let mut received = self
                .received_fields
                .remove(id)
                .unwrap_or_default()
                .into_iter();
            for &place in places {
                let exchange = &mut self.requests.list[place];
                correct(&mut exchange.entry, sent.next(), received.next(), proxied);
            }
        }
        Har {
            started: Some(started),
            entries: self.requests.into_entries(zero),
            ..Har::default()
        }
    }

    fn last(&mut self, id: &str) -> Option<&mut ChromiumRequest> {
        let place = *self.ids.get(id)?.last()?;
        self.requests.list.get_mut(place)
    }

    /// Records a request, or the target of a redirect.
    fn request(&mut self, id: &str, params: &Value) {
        let url = text(&params["request"]["url"]);
        if !is_http(url) {
            return;
        }
        let issued = params["timestamp"].as_f64().unwrap_or(0.0);
        if self.began.is_none() {
            let wall = Duration::try_from_secs_f64(params["wallTime"].as_f64().unwrap_or(0.0));
            let wall = wall.ok().and_then(|wall| UNIX_EPOCH.checked_add(wall));
            self.began = Some((issued, wall.unwrap_or(UNIX_EPOCH)));
        }
        if let Some(redirect) = self.last(id).filter(|exchange| exchange.ended.is_none()) {
            answer(redirect, &params["redirectResponse"]);
            let end = redirect.phases.map_or(issued, |t| {
                t.request_time + t.receive_headers_end.max(0.0) / 1e3
            });
            redirect.ended = Some(end.min(issued));
        }
        let request = &params["request"];
        let stack = params.pointer("/initiator/stack/callFrames/0/url");
        let cause = params
            .pointer("/initiator/url")
            .or(stack)
            .and_then(Value::as_str);
        let entry = Entry {
            method: text(&request["method"]).to_owned(),
            url: url.to_owned(),
            request_fields: fields(&request["headers"]),
            kind: text(&params["type"]).to_owned(),
            initiator: cause.filter(|url| !url.is_empty()).map(str::to_owned),
            priority: request["initialPriority"].as_str().map(str::to_owned),
            ..Entry::default()
        };
        self.ids
            .entry(id.to_owned())
            .or_default()
            .push(self.requests.list.len());
        self.requests.list.push(ChromiumRequest {
            entry,
            issued,
            ended: None,
            phases: None,
        });
    }

    fn finish(&mut self, id: &str, params: &Value) {
        let Some(exchange) = self.last(id).filter(|exchange| exchange.ended.is_none()) else {
            return;
        };
        exchange.ended = Some(params["timestamp"].as_f64().unwrap_or(exchange.issued));
        match params["errorText"].as_str() {
            Some(why) => exchange.entry.error = Some(why.to_owned()),
            None => {
                exchange.entry.received = params["encodedDataLength"]
                    .as_f64()
                    .map(|bytes| bytes as u64)
            }
        }
    }
}

/// Takes a `Network.Response`.
fn answer(exchange: &mut ChromiumRequest, response: &Value) {
    let entry = &mut exchange.entry;
    entry.status = response["status"]
        .as_u64()
        .and_then(|status| u16::try_from(status).ok())
        .unwrap_or(0);
    entry.response_fields = fields(&response["headers"]);
    text(&response["mimeType"]).clone_into(&mut entry.mime);
    text(&response["protocol"]).clone_into(&mut entry.protocol);
    entry.received = response["encodedDataLength"]
        .as_f64()
        .map(|bytes| bytes as u64);
    let port = response["remotePort"].as_u64();
    let peer = response["remoteIPAddress"].as_str();
    entry.server = peer
        .map(|address| port.map_or_else(|| address.to_owned(), |port| format!("{address}:{port}")));
    entry.connection = response["connectionId"]
        .as_u64()
        .filter(|&id| id > 0)
        .map(|id| id.to_string());
    entry.pushed = response
        .pointer("/timing/pushStart")
        .and_then(Value::as_f64)
        .is_some_and(|start| start > 0.0);
    exchange.phases = ResourceTiming::deserialize(&response["timing"]).ok();
}

/// Puts in the fields as they were on the wire.
fn correct(entry: &mut Entry, sent: Option<Fields>, received: Option<Fields>, proxied: bool) {
    if let Some(sent) = sent {
        entry.request_fields = sent;
    }
    if let Some(received) = received {
        entry.response_fields = received;
    }
    if entry.protocol == "http/1.1" {
        let url = entry.url.as_str();
        let target = if proxied && url.starts_with("http:") {
            url.len()
        } else {
            path_len(url)
        };
        let line = entry.method.len() + target + "  HTTP/1.1\r\n\r\n".len();
        let fields = entry
            .request_fields
            .iter()
            .map(|(name, value)| name.len() + value.len() + 4);
        entry.sent = Some((line + fields.sum::<usize>()) as u64);
    }
}

impl ReportPhases for Option<ResourceTiming> {
    const MILLISECONDS: f64 = 1e3;

    fn phases(&self, issued: f64, end: f64) -> Option<Timings> {
        self.map(|timing| timing.between(issued, end))
    }
}

impl ResourceTiming {
    fn between(&self, issued: f64, end: f64) -> Timings {
        let span = |from: f64, to: f64| (from >= 0.0 && to >= from).then_some(to - from);
        let before = (self.request_time - issued) * 1e3;
        let (dns, connect) = (
            span(self.dns_start, self.dns_end),
            span(self.connect_start, self.connect_end),
        );
        let first = if self.receive_headers_start > 0.0 {
            self.receive_headers_start
        } else {
            self.receive_headers_end
        };
        let first = first.max(self.send_end);
        let waited = before + self.send_start - dns.unwrap_or(0.0) - connect.unwrap_or(0.0);
        Timings {
            blocked: Some(waited.max(0.0)),
            dns,
            connect,
            ssl: span(self.ssl_start, self.ssl_end),
            send: (self.send_end - self.send_start).max(0.0),
            wait: first - self.send_end,
            receive: ((end - self.request_time) * 1e3 - first).max(0.0),
        }
    }
}

/// Length of path and query of an absolute URL.
fn path_len(url: &str) -> usize {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.find(['/', '?']).map_or(1, |at| rest.len() - at)
}

/// Fields from an object; repeated ones stand in one value, in lines.
fn fields(value: &Value) -> Fields {
    let Some(object) = value.as_object() else {
        return Vec::new();
    };
    let lines = |(name, value): (&String, &Value)| -> Fields {
        text(value)
            .split('\n')
            .map(|line| (name.clone(), line.to_owned()))
            .collect()
    };
    object.iter().flat_map(lines).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(events: &[(&str, Value)]) -> ChromiumRecord {
        let mut record = ChromiumRecord::default();
        events
            .iter()
            .for_each(|(method, params)| record.handle(&format!("Network.{method}"), params));
        record
    }

    fn sent(id: &str, url: &str, at: f64) -> (&'static str, Value) {
        let request = json!({ "url": url, "method": "GET", "headers": { "A": "1" }, "initialPriority": "High" });
        (
            "requestWillBeSent",
            json!({ "requestId": id, "timestamp": at, "wallTime": 1.5e9, "request": request, "type": "Image" }),
        )
    }

    fn response(status: u16, timing: Value) -> Value {
        json!({ "status": status, "headers": { "Set-Cookie": "a\nb" }, "mimeType": "image/png", "protocol": "http/1.1",
            "encodedDataLength": 90, "remoteIPAddress": "127.0.0.1", "remotePort": 80, "connectionId": 7, "timing": timing })
    }

    #[test]
    fn phases() {
        let timing = json!({ "requestTime": 10.01, "dnsStart": 1.0, "dnsEnd": 3.0, "connectStart": 3.0, "connectEnd": 23.0,
            "sslStart": 13.0, "sslEnd": 23.0, "sendStart": 25.0, "sendEnd": 26.0, "receiveHeadersStart": 76.0,
            "receiveHeadersEnd": 77.0 });
        let har = record(&[
            sent("1", "http://a.example/x?y", 10.0),
            (
                "requestWillBeSentExtraInfo",
                json!({ "requestId": "1", "headers": { "Host": "a.example" } }),
            ),
            (
                "responseReceived",
                json!({ "requestId": "1", "type": "Image", "response": response(200, timing) }),
            ),
            (
                "dataReceived",
                json!({ "requestId": "1", "dataLength": 300 }),
            ),
            (
                "dataReceived",
                json!({ "requestId": "1", "dataLength": 33 }),
            ),
            (
                "loadingFinished",
                json!({ "requestId": "1", "timestamp": 10.1, "encodedDataLength": 423 }),
            ),
        ])
        .into_har(false);
        let [entry] = &har.entries[..] else {
            panic!("one entry")
        };
        let t = entry.timings;
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} is not {b}");
        for (phase, wanted) in [
            (t.blocked, 13.0),
            (t.dns, 2.0),
            (t.connect, 20.0),
            (t.ssl, 10.0),
        ] {
            close(phase.expect("it had one"), wanted);
        }
        for (time, wanted) in [
            (t.send, 1.0),
            (t.wait, 50.0),
            (t.receive, 14.0),
            (entry.end(), 100.0),
        ] {
            close(time, wanted);
        }
        assert_eq!(
            (entry.body, entry.received, entry.status),
            (333, Some(423), 200)
        );
        assert_eq!(
            entry.sent,
            Some("GET /x?y HTTP/1.1\r\nHost: a.example\r\n\r\n".len() as u64)
        );
        assert_eq!(
            entry.response_fields,
            [("Set-Cookie", "a"), ("Set-Cookie", "b")].map(|(n, v)| (n.into(), v.into()))
        );
        assert_eq!(
            (entry.server.as_deref(), entry.connection.as_deref()),
            (Some("127.0.0.1:80"), Some("7"))
        );
    }

    #[test]
    fn redirects_failures_and_what_never_ends() {
        let mut second = sent("1", "https://b.example/", 2.0);
        second.1["redirectResponse"] = response(
            302,
            json!({ "requestTime": 1.0, "receiveHeadersEnd": 500.0 }),
        );
        let fields = |name: &str| json!({ "requestId": "1", "headers": { name: "x" } });
        let events = [
            ("requestWillBeSentExtraInfo", fields("First")),
            sent("1", "http://a.example/", 1.0),
            ("requestWillBeSentExtraInfo", fields("Second")),
            second,
            (
                "loadingFailed",
                json!({ "requestId": "1", "timestamp": 3.0, "errorText": "net::ERR_FAILED" }),
            ),
            (
                "loadingFinished",
                json!({ "requestId": "1", "timestamp": 4.0 }),
            ),
            sent("2", "http://a.example/open", 2.5),
            sent("3", "data:image/png;base64,AAAA", 2.5),
            (
                "loadingFinished",
                json!({ "requestId": "3", "timestamp": 4.0 }),
            ),
        ];
        let record = record(&events);
        assert_eq!(record.requests.counts(), (2, 1));
        let har = record.into_har(true);
        let rows: Vec<_> = har
            .entries
            .iter()
            .map(|e| (e.status, e.error.as_deref(), e.request_fields[0].0.as_str()))
            .collect();
        assert_eq!(
            rows,
            [
                (302, None, "First"),
                (0, Some("net::ERR_FAILED"), "Second"),
                (0, Some("not ended"), "A")
            ]
        );
        assert!(
            (har.entries[0].end() - 500.0).abs() < 1e-6
                && (har.entries[1].end() - 2000.0).abs() < 1e-6
        );
        assert_eq!(
            har.started,
            UNIX_EPOCH.checked_add(Duration::from_secs(1_500_000_000))
        );
    }

    /// Events that make no sense leave a record that can be written all the same.
    #[test]
    fn nonsense() {
        let odd = [
            json!(null),
            json!(-1),
            json!(1e300),
            json!("x"),
            json!([]),
            json!({ "requestTime": -1e300 }),
        ];
        let methods = [
            "requestWillBeSent",
            "responseReceived",
            "dataReceived",
            "loadingFinished",
            "loadingFailed",
            "else",
        ];
        for value in &odd {
            let mut record = ChromiumRecord::default();
            for method in methods.iter().chain(&methods) {
                let params = json!({ "requestId": "1", "timestamp": value, "wallTime": value, "type": value,
                    "request": { "url": "http://a.example/", "headers": value }, "dataLength": value,
                    "response": { "status": value, "headers": value, "timing": value }, "redirectResponse": value,
                    "encodedDataLength": value });
                record.handle(&format!("Network.{method}"), &params);
                record.handle(&format!("Network.{method}"), value);
            }
            record.into_har(true).to_json(&Value::Null);
        }
    }
}
