//! HAR 1.2 as written: one page load, its requests and the phases of each.
//!
//! Loader and browser both report in these terms, so that results are computed in one place
//! ([`crate::measure`]). [`crate::page`] reads HAR files, since it needs other fields of them.
//! Values without a HAR field have names that begin with `_`, as the format requires.

pub mod valid;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

/// A page load.
#[derive(Clone, Debug, Default)]
pub struct Har {
    /// Begin of the load.
    pub started: Option<SystemTime>,
    /// The name and version of the client that loaded it.
    pub client: (String, String),
    /// Name or title of the page.
    pub title: String,
    /// The time at which the document was parsed, ms from the start.
    pub on_content_load: Option<f64>,
    /// The time at which the page was loaded, ms from the start.
    pub on_load: Option<f64>,
    /// The requests in the order they were made.
    pub entries: Vec<Entry>,
}

/// A request and its answer. Times in ms; sizes in bytes.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// The time at which it was issued, from the start of the load.
    pub start: f64,
    /// The phases of the request, one after the other from `start`.
    pub timings: Timings,
    /// Method.
    pub method: String,
    /// Absolute URL.
    pub url: String,
    /// Protocol as ALPN names it (`http/1.1`, `h2`), empty when there was no answer.
    pub protocol: String,
    /// Fields of the request.
    pub request_fields: Vec<(String, String)>,
    /// Status; 0 when there was no answer.
    pub status: u16,
    /// Fields of the answer.
    pub response_fields: Vec<(String, String)>,
    /// Type of the body.
    pub mime: String,
    /// Bytes sent for it, where known.
    pub sent: Option<u64>,
    /// Bytes received for it, heads and framing included, where known.
    pub received: Option<u64>,
    /// Bytes of the body, decoded.
    pub body: u64,
    /// The type of resource in the browser's terms. Files have it in lower case, as Chrome's do.
    pub kind: String,
    /// The URL of the initiator.
    pub initiator: Option<String>,
    /// Priority in the browser's words.
    pub priority: Option<String>,
    /// The address of the peer, with its port where that is known.
    pub server: Option<String>,
    /// The connection that carried it.
    pub connection: Option<String>,
    /// True if the resource had been pushed.
    pub pushed: bool,
    /// The reason for an incomplete response.
    pub error: Option<String>,
}

/// Phases of a request in ms; `None` is a phase it did not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Timings {
    /// Waiting for a connection.
    pub blocked: Option<f64>,
    /// Resolving the name.
    pub dns: Option<f64>,
    /// Opening the connection, TLS included.
    pub connect: Option<f64>,
    /// TLS handshake.
    pub ssl: Option<f64>,
    /// Sending the request.
    pub send: f64,
    /// The time to the first byte of the response.
    pub wait: f64,
    /// The time to the last byte of the response.
    pub receive: f64,
}

impl Timings {
    /// All phases together; TLS is part of connecting.
    pub fn total(&self) -> f64 {
        let optional = [self.blocked, self.dns, self.connect];
        optional.into_iter().flatten().sum::<f64>() + self.send + self.wait + self.receive
    }
}

impl Entry {
    /// Returns the time of its last byte, ms from the start of the load.
    pub fn end(&self) -> f64 {
        self.start + self.timings.total()
    }

    /// Returns the time at which its first byte left.
    pub fn first_sent(&self) -> f64 {
        self.end() - self.timings.receive - self.timings.wait - self.timings.send
    }

    /// Returns the time of the first byte of its response.
    pub fn first_received(&self) -> f64 {
        self.end() - self.timings.receive
    }

    /// A field of the answer by its name in lower case.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.response_fields
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

impl Har {
    /// The file; `run` says how it came about.
    pub fn to_json(&self, run: &Value) -> Value {
        let began = self.started.unwrap_or(UNIX_EPOCH);
        let page = json!({
            "startedDateTime": date_time(began),
            "id": "page_1",
            "title": self.title,
            "pageTimings": { "onContentLoad": phase(self.on_content_load), "onLoad": phase(self.on_load) },
        });
        json!({ "log": {
            "version": "1.2",
            "creator": { "name": "tandem-measure", "version": env!("CARGO_PKG_VERSION") },
            "browser": { "name": self.client.0, "version": self.client.1 },
            "pages": [page],
            "entries": self.entries.iter().map(|entry| entry.to_json(began)).collect::<Vec<_>>(),
            "_run": run,
        }})
    }
}

impl Entry {
    fn to_json(&self, began: SystemTime) -> Value {
        let later = Duration::try_from_secs_f64((self.start / 1e3).max(0.0)).unwrap_or_default();
        let issued = began.checked_add(later).unwrap_or(began);
        let mut entry = Map::new();
        let mut put = |name: &str, value: Value| {
            entry.insert(name.to_owned(), value);
        };
        put("pageref", "page_1".into());
        put("startedDateTime", date_time(issued).into());
        put("time", millis(self.timings.total()));
        put("request", self.request_json());
        put("response", self.response_json());
        put("cache", json!({}));
        put("timings", self.timings.to_json());
        let texts = [
            ("connection", &self.connection),
            ("_priority", &self.priority),
            ("_error", &self.error),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                put(name, text.as_str().into());
            }
        }
        if let Some((address, port)) = self.server.as_deref().and_then(address_and_port) {
            put("serverIPAddress", address.to_string().into());
            if let Some(port) = port {
                put("_serverPort", port.into());
            }
        }
        if !self.kind.is_empty() {
            put("_resourceType", self.kind.to_lowercase().into());
        }
        if let Some(url) = &self.initiator {
            put("_initiator", json!({ "url": url }));
        }
        if self.pushed {
            put("_was_pushed", 1.into());
        }
        if let Some(note) = self
            .field("proxy-status")
            .or_else(|| self.field("cache-status"))
        {
            put("_tandem", note.into());
        }
        Value::Object(entry)
    }

    fn request_json(&self) -> Value {
        json!({
            "method": self.method,
            "url": self.url,
            "httpVersion": self.protocol,
            "cookies": [],
            "headers": fields(&self.request_fields),
            "queryString": query(&self.url),
            "headersSize": size(self.sent),
            "bodySize": 0,
        })
    }

    fn response_json(&self) -> Value {
        json!({
            "status": self.status,
            "statusText": "",
            "httpVersion": self.protocol,
            "cookies": [],
            "headers": fields(&self.response_fields),
            "content": { "size": self.body, "mimeType": self.mime },
            "redirectURL": self.field("location").filter(|_| (300..400).contains(&self.status)).unwrap_or_default(),
            "headersSize": -1,
            "bodySize": self.body,
            "_transferSize": size(self.received),
        })
    }
}

impl Timings {
    fn to_json(self) -> Value {
        json!({
            "blocked": phase(self.blocked),
            "dns": phase(self.dns),
            "connect": phase(self.connect),
            "ssl": phase(self.ssl),
            "send": millis(self.send),
            "wait": millis(self.wait),
            "receive": millis(self.receive),
        })
    }
}

/// Splits the address of a peer, which may lack a port, into its parts.
fn address_and_port(server: &str) -> Option<(IpAddr, Option<u16>)> {
    if let Ok(socket) = server.parse::<SocketAddr>() {
        return Some((socket.ip(), Some(socket.port())));
    }
    let bare = server.trim_start_matches('[').trim_end_matches(']');
    Some((bare.parse().ok()?, None))
}

/// Converts to milliseconds, rounded to microseconds, which is the precision of the clocks.
fn millis(time: f64) -> Value {
    ((time * 1e3).round() / 1e3).into()
}

/// -1 says that there was none.
fn phase(time: Option<f64>) -> Value {
    time.map_or_else(|| (-1).into(), millis)
}

fn size(bytes: Option<u64>) -> Value {
    bytes.map_or_else(|| (-1).into(), Value::from)
}

fn fields(fields: &[(String, String)]) -> Value {
    fields
        .iter()
        .map(|(name, value)| json!({ "name": name, "value": value }))
        .collect()
}

fn query(url: &str) -> Value {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let query = query.split_once('#').map_or(query, |(query, _)| query);
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(n, v)| json!({ "name": n, "value": v }))
        .collect()
}

/// A time in UTC as ISO 8601 writes it, to the millisecond.
pub fn date_time(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = ((since.as_secs() / 86_400) as i64, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z",
        since.subsec_millis()
    )
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar. Years begin in
/// March here, so that the day of leap years is a year's last.
const fn civil(days: i64) -> (i64, i64, i64) {
    const DAYS_OF_400_YEARS: i64 = 146_097;
    const TO_MARCH_OF_YEAR_0: i64 = 719_468;
    let days = days + TO_MARCH_OF_YEAR_0;
    let era = days.div_euclid(DAYS_OF_400_YEARS);
    let day = days.rem_euclid(DAYS_OF_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (1_767_225_600, "2026-01-01T00:00:00.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(date_time(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
        assert_eq!(
            date_time(UNIX_EPOCH + Duration::from_millis(1_234)),
            "1970-01-01T00:00:01.234Z"
        );
    }

    #[test]
    fn server_addresses_have_no_port() {
        for (server, address, port) in [
            ("127.0.0.1:80", "127.0.0.1", Some(80)),
            ("[2001:db8::1]:443", "2001:db8::1", Some(443)),
            ("[::1]", "::1", None),
            ("10.0.0.1", "10.0.0.1", None),
        ] {
            let entry = Entry {
                server: Some(server.to_owned()),
                ..Entry::default()
            };
            let har = Har {
                entries: vec![entry],
                ..Har::default()
            };
            let file = har.to_json(&Value::Null);
            let entry = &file["log"]["entries"][0];
            assert_eq!(entry["serverIPAddress"], address);
            assert_eq!(entry.get("_serverPort"), port.map(Value::from).as_ref());
            assert_eq!(valid::problems(&file), Vec::<String>::new());
        }
    }

    #[test]
    fn phases_follow_one_another() {
        let timings = Timings {
            blocked: Some(1.0),
            dns: None,
            connect: Some(20.0),
            ssl: Some(10.0),
            send: 0.5,
            wait: 30.0,
            receive: 4.0,
        };
        let entry = Entry {
            start: 100.0,
            timings,
            ..Entry::default()
        };
        assert_eq!(
            (entry.end(), entry.first_sent(), entry.first_received()),
            (155.5, 121.0, 151.5)
        );
    }
}
