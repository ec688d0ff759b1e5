//! The exchanges of a study. HAR files and recorded pages have the heads that a browser recorded.
//! Those of page models and access logs get the heads of a browser and a server that
//! [`super::browser`] describes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::path::Path;

use serde_json::Value;
use tandem_replay::log::{AccessLog, Filter, NO_REFERER, Verb};
use tandem_web::page::Page;

use super::HeadersError;
use super::browser::{self, Resource};
use super::codec::HeaderList;
use crate::predict::{for_each_line, open};

/// The largest file that is read as JSON, in bytes.
const MAX_JSON: u64 = 1 << 30;

/// The largest number of exchanges of a session that are measured.
const MAX_EXCHANGES: usize = 1000;

/// A request and its response.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    /// The head of the request.
    pub request: HeaderList,
    /// The head of the response.
    pub response: HeaderList,
    /// The bytes of the body on the wire.
    pub body: u64,
    /// True for a GET with status 200, which a gateway could push.
    pub is_pushable: bool,
}

/// The exchanges of one session, in order.
#[derive(Clone, Debug)]
pub struct HeaderSession {
    /// The name in reports.
    pub name: String,
    /// The requests with their responses.
    pub exchanges: Vec<Exchange>,
}

/// Reads the sessions of a file: a HAR file, a page model or recorded page, or an access log.
///
/// # Errors
/// Fails if the file cannot be read, or has none of these forms, or has no exchange.
pub fn read(path: &Path) -> Result<Vec<HeaderSession>, HeadersError> {
    let sessions = if is_json(path)? {
        of_json(path)?
    } else {
        of_log(path)?
    };
    if sessions.iter().all(|session| session.exchanges.is_empty()) {
        return Err(HeadersError::Empty(path.display().to_string()));
    }
    Ok(sessions)
}

fn is_json(path: &Path) -> Result<bool, HeadersError> {
    let mut reader = BufReader::new(File::open(path).map_err(HeadersError::read(path))?);
    let start = reader.fill_buf().map_err(HeadersError::read(path))?;
    let first = start.iter().find(|byte| !byte.is_ascii_whitespace());
    Ok(first == Some(&b'{'))
}

fn name(path: &Path) -> String {
    let name = path.file_stem().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

fn of_json(path: &Path) -> Result<Vec<HeaderSession>, HeadersError> {
    let mut text = String::new();
    let file = File::open(path).map_err(HeadersError::read(path))?;
    let read = file.take(MAX_JSON).read_to_string(&mut text);
    read.map_err(HeadersError::read(path))?;
    let value: Value = serde_json::from_str(&text).map_err(|source| HeadersError::Json {
        path: path.display().to_string(),
        source,
    })?;
    if let Some(entries) = value.pointer("/log/entries").and_then(Value::as_array) {
        let exchanges = entries.iter().filter_map(recorded);
        return Ok(vec![HeaderSession {
            name: name(path),
            exchanges: exchanges.take(MAX_EXCHANGES).collect(),
        }]);
    }
    if let Some(exchanges) = of_record(&value) {
        return Ok(vec![HeaderSession {
            name: name(path),
            exchanges,
        }]);
    }
    let page = Page::read(path).map_err(|source| HeadersError::Page {
        path: path.display().to_string(),
        source,
    })?;
    Ok(vec![of_page(&page)])
}

/// Returns the exchanges of a recorded page whose heads were recorded too.
fn of_record(page: &Value) -> Option<Vec<Exchange>> {
    let entries = page["entries"].as_array()?;
    let each = |entry: &Value| {
        let has_heads = entry["rqh"].as_u64()? > 0;
        let (url, method) = (entry["url"].as_str()?, entry["method"].as_str()?);
        let asked = pairs(&entry["req"], |field| (&field[0], &field[1]));
        let answered = pairs(&entry["resp"], |field| (&field[0], &field[1]));
        let (status, body) = (entry["status"].as_u64()?, entry["body"].as_u64());
        has_heads.then(|| exchange(url, method, asked, status, answered, body.unwrap_or(0)))?
    };
    let exchanges: Vec<_> = entries
        .iter()
        .filter_map(each)
        .take(MAX_EXCHANGES)
        .collect();
    (!exchanges.is_empty()).then_some(exchanges)
}

/// Reads an entry of a HAR file; `None` for one without a URL of HTTP or without an answer.
fn recorded(entry: &Value) -> Option<Exchange> {
    let (request, response) = (&entry["request"], &entry["response"]);
    let sizes = [
        &response["bodySize"],
        &response["content"]["compression"],
        &response["content"]["size"],
    ];
    let body = match sizes.map(Value::as_u64) {
        [Some(size), _, _] => size,
        [None, saved, Some(size)] => size.saturating_sub(saved.unwrap_or(0)),
        _ => 0,
    };
    exchange(
        request["url"].as_str()?,
        request["method"].as_str()?,
        pairs(&request["headers"], named),
        response["status"].as_u64()?,
        pairs(&response["headers"], named),
        body,
    )
}

/// Returns the name and the value of a field of a HAR file.
fn named(field: &Value) -> (&Value, &Value) {
    (&field["name"], &field["value"])
}

/// Makes an exchange of recorded parts; `None` for one without a URL of HTTP or without an answer.
fn exchange(
    url: &str,
    method: &str,
    asked_fields: HeaderList,
    status: u64,
    answered_fields: HeaderList,
    body: u64,
) -> Option<Exchange> {
    let (scheme, rest) = url.split_once("://")?;
    if !matches!(scheme, "http" | "https") {
        return None;
    }
    let rest = rest.split('#').next()?;
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(at);
    let path = if path.is_empty() { "/" } else { path };
    if status == 0 {
        return None;
    }
    let pseudo = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut asked = vec![
        pseudo(":method", method),
        pseudo(":scheme", scheme),
        pseudo(":authority", authority),
        pseudo(":path", path),
    ];
    asked.extend(asked_fields);
    let mut answered = vec![(":status".to_owned(), status.to_string())];
    answered.extend(answered_fields);
    Some(Exchange {
        request: asked,
        response: answered,
        body,
        is_pushable: method == "GET" && status == 200,
    })
}

/// Returns the recorded fields that also exist in HTTP/2. `parts` returns the name and the value of
/// one.
fn pairs(list: &Value, parts: impl Fn(&Value) -> (&Value, &Value)) -> HeaderList {
    /// The fields of one hop (RFC 9113 section 8.2.2), and `host`, which `:authority` replaces.
    const HOP: [&str; 7] = [
        "connection",
        "host",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "transfer-encoding",
        "upgrade",
    ];
    let pairs = list.as_array().into_iter().flatten().filter_map(|field| {
        let (name, value) = parts(field);
        Some((
            name.as_str()?.to_ascii_lowercase(),
            value.as_str()?.to_owned(),
        ))
    });
    pairs
        .filter(|(name, _)| !name.starts_with(':') && !HOP.contains(&name.as_str()))
        .collect()
}

/// Returns the exchanges of a page model. The page is the first resource.
pub(super) fn of_page(page: &Page) -> HeaderSession {
    let host = |index: usize| page.hosts.get(index).map_or("", String::as_str);
    let document = page.resources.first();
    let url = document.map(|first| format!("http://{}{}", host(first.host), first.path));
    let exchanges = page.resources.iter().enumerate().map(|(at, each)| {
        browser::exchange(&Resource {
            method: "GET",
            authority: host(each.host),
            path: &each.path,
            referer: url.as_deref().filter(|_| at > 0),
            mime: &each.mime,
            status: each.status,
            body: each.size as u64,
        })
    });
    HeaderSession {
        name: page.name.clone(),
        exchanges: exchanges.take(MAX_EXCHANGES).collect(),
    }
}

/// Returns a session for each user of an access log.
fn of_log(path: &Path) -> Result<Vec<HeaderSession>, HeadersError> {
    let mut log = AccessLog::default();
    let filter = Filter { noise: true };
    open(path)
        .and_then(|mut reader| for_each_line(&mut reader, |line| log.push_line(line, filter)))
        .map_err(HeadersError::read(path))?;
    let stem = name(path);
    let mut users = BTreeMap::<u32, HeaderSession>::new();
    for record in &log.records {
        let session = users.entry(record.user).or_insert_with(|| HeaderSession {
            name: stem.clone(),
            exchanges: Vec::new(),
        });
        if session.exchanges.len() >= MAX_EXCHANGES {
            continue;
        }
        let url = String::from_utf8_lossy(log.urls.name(record.url));
        let (authority, target) = split(&url);
        let referer = (record.referer != NO_REFERER)
            .then(|| String::from_utf8_lossy(log.referers.name(record.referer)));
        session.exchanges.push(browser::exchange(&Resource {
            method: method(record.verb),
            authority,
            path: target,
            referer: referer.as_deref(),
            mime: browser::mime(target),
            status: record.status,
            body: record.size,
        }));
    }
    Ok(users.into_values().collect())
}

/// Returns the method of a request. Most of those that logs have besides GET and HEAD are POST.
const fn method(verb: Verb) -> &'static str {
    match verb {
        Verb::Get => "GET",
        Verb::Head => "HEAD",
        Verb::Other => "POST",
    }
}

/// Splits the URL of a log into authority and path. Logs of servers have no authority.
fn split(url: &str) -> (&str, &str) {
    let Some((_, rest)) = url.split_once("://") else {
        return ("site.example", url);
    };
    let at = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(at);
    (authority, if path.is_empty() { "/" } else { path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_takes_the_fields_of_http_2() {
        let entry = serde_json::json!({
            "request": {
                "method": "GET",
                "url": "https://a.example/x?y#z",
                "headers": [
                    {"name": ":path", "value": "/x?y"},
                    {"name": "Host", "value": "a.example"},
                    {"name": "Accept", "value": "*/*"},
                ],
            },
            "response": {
                "status": 200,
                "headers": [{"name": "Server", "value": "s"}],
                "content": {"size": 100, "compression": 40},
                "bodySize": -1,
            },
        });
        let exchange = recorded(&entry).expect("an exchange");
        let names: Vec<_> = exchange
            .request
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(
            names,
            [":method", ":scheme", ":authority", ":path", "accept"]
        );
        assert_eq!(exchange.request[3].1, "/x?y");
        assert_eq!((exchange.response.len(), exchange.body), (2, 60));
        assert!(exchange.is_pushable);
        for bad in [
            serde_json::json!({"request": {"url": "data:x", "method": "GET"}}),
            serde_json::json!({"request": {"url": "http://x/", "method": "GET"}}),
            Value::Null,
        ] {
            assert!(recorded(&bad).is_none());
        }
    }

    #[test]
    fn recorded_page_keeps_its_heads() {
        let page = serde_json::json!({"entries": [
            {
                "url": "http://a.example/x", "method": "GET", "status": 200, "body": 7, "rqh": 20,
                "req": [["Host", "a.example"], ["Accept", "*/*"]], "resp": [["Server", "s"]],
            },
            {"url": "http://a.example/y", "method": "GET", "status": 200, "rqh": 0, "req": []},
        ]});
        let exchanges = of_record(&page).expect("one with heads");
        assert_eq!((exchanges.len(), exchanges[0].body), (1, 7));
        let last = exchanges[0].request.last().expect("a field");
        assert_eq!((last.0.as_str(), last.1.as_str()), ("accept", "*/*"));
        assert_eq!(exchanges[0].response.len(), 2);
        assert!(of_record(&serde_json::json!({"entries": []})).is_none());
    }

    #[test]
    fn split_accepts_urls_of_servers_and_proxies() {
        assert_eq!(split("/a"), ("site.example", "/a"));
        assert_eq!(split("http://a.example/b"), ("a.example", "/b"));
        assert_eq!(split("http://a.example"), ("a.example", "/"));
    }
}
