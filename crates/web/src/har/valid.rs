//! The rules of HAR 1.2 that readers rely on, checked on a whole file.
//!
//! The rules follow the specification by Jan Odvarko, sections "log" to "timings": required
//! members, types, sentinel values, times as ISO 8601 writes them, and underscores before the
//! names of custom members.

use std::net::IpAddr;

use serde_json::{Map, Value};

/// The type and the range of a member.
#[derive(Clone, Copy)]
enum Form {
    Text,
    /// A date and time of ISO 8601 with a zone.
    Time,
    /// The text of an IP address.
    Address,
    /// A number that is not negative.
    Amount,
    /// The same, or -1 for "does not apply".
    Optional,
    /// A whole number from -1 on.
    Size,
    List(Members),
    Object(Members),
}

/// The members of an object: name, whether it is required, form.
type Members = &'static [(&'static str, bool, Form)];

const LOG: Members = &[
    ("version", true, Form::Text),
    ("creator", true, Form::Object(PROGRAM)),
    ("browser", false, Form::Object(PROGRAM)),
    ("pages", false, Form::List(PAGE)),
    ("entries", true, Form::List(ENTRY)),
    ("comment", false, Form::Text),
];

const PROGRAM: Members = &[
    ("name", true, Form::Text),
    ("version", true, Form::Text),
    ("comment", false, Form::Text),
];

const PAGE: Members = &[
    ("startedDateTime", true, Form::Time),
    ("id", true, Form::Text),
    ("title", true, Form::Text),
    ("pageTimings", true, Form::Object(PAGE_TIMINGS)),
    ("comment", false, Form::Text),
];

const PAGE_TIMINGS: Members = &[
    ("onContentLoad", false, Form::Optional),
    ("onLoad", false, Form::Optional),
    ("comment", false, Form::Text),
];

const ENTRY: Members = &[
    ("pageref", false, Form::Text),
    ("startedDateTime", true, Form::Time),
    ("time", true, Form::Amount),
    ("request", true, Form::Object(REQUEST)),
    ("response", true, Form::Object(RESPONSE)),
    ("cache", true, Form::Object(&[])),
    ("timings", true, Form::Object(TIMINGS)),
    ("serverIPAddress", false, Form::Address),
    ("connection", false, Form::Text),
    ("comment", false, Form::Text),
];

const REQUEST: Members = &[
    ("method", true, Form::Text),
    ("url", true, Form::Text),
    ("httpVersion", true, Form::Text),
    ("cookies", true, Form::List(PAIR)),
    ("headers", true, Form::List(PAIR)),
    ("queryString", true, Form::List(PAIR)),
    ("headersSize", true, Form::Size),
    ("bodySize", true, Form::Size),
    ("comment", false, Form::Text),
];

const RESPONSE: Members = &[
    ("status", true, Form::Size),
    ("statusText", true, Form::Text),
    ("httpVersion", true, Form::Text),
    ("cookies", true, Form::List(PAIR)),
    ("headers", true, Form::List(PAIR)),
    ("content", true, Form::Object(CONTENT)),
    ("redirectURL", true, Form::Text),
    ("headersSize", true, Form::Size),
    ("bodySize", true, Form::Size),
    ("comment", false, Form::Text),
];

const CONTENT: Members = &[
    ("size", true, Form::Amount),
    ("compression", false, Form::Amount),
    ("mimeType", true, Form::Text),
    ("text", false, Form::Text),
    ("encoding", false, Form::Text),
    ("comment", false, Form::Text),
];

const PAIR: Members = &[
    ("name", true, Form::Text),
    ("value", true, Form::Text),
    ("comment", false, Form::Text),
];

const TIMINGS: Members = &[
    ("blocked", false, Form::Optional),
    ("dns", false, Form::Optional),
    ("connect", false, Form::Optional),
    ("send", true, Form::Amount),
    ("wait", true, Form::Amount),
    ("receive", true, Form::Amount),
    ("ssl", false, Form::Optional),
    ("comment", false, Form::Text),
];

/// Returns a line for each rule of HAR 1.2 that a file breaks: the place and the fault.
pub fn problems(file: &Value) -> Vec<String> {
    let mut found = Vec::new();
    match file.as_object().and_then(|file| file.get("log")) {
        Some(log) => {
            check(log, Form::Object(LOG), "log", &mut found);
            check_references(log, &mut found);
        }
        None => found.push("the file has no object \"log\"".to_owned()),
    }
    found
}

fn check(value: &Value, form: Form, place: &str, found: &mut Vec<String>) {
    let number = value.as_f64();
    let valid = match form {
        Form::Text => value.is_string(),
        Form::Time => value.as_str().is_some_and(is_time),
        Form::Address => value
            .as_str()
            .is_some_and(|text| text.parse::<IpAddr>().is_ok()),
        Form::Amount => number.is_some_and(|number| number >= 0.0),
        Form::Optional => number.is_some_and(|number| number >= 0.0 || number == -1.0),
        Form::Size => value.as_i64().is_some_and(|number| number >= -1),
        Form::List(members) => {
            if let Some(items) = value.as_array() {
                for (index, item) in items.iter().enumerate() {
                    let place = format!("{place}[{index}]");
                    check(item, Form::Object(members), &place, found);
                }
            }
            value.is_array()
        }
        Form::Object(members) => {
            if let Some(object) = value.as_object() {
                check_members(object, members, place, found);
            }
            value.is_object()
        }
    };
    if !valid {
        let mut text = value.to_string();
        text.truncate(text.char_indices().nth(60).map_or(text.len(), |(at, _)| at));
        found.push(format!("{place}: {text} has the wrong form"));
    }
}

fn check_members(
    object: &Map<String, Value>,
    members: Members,
    place: &str,
    found: &mut Vec<String>,
) {
    for (name, required, form) in members {
        match object.get(*name) {
            Some(value) => check(value, *form, &format!("{place}.{name}"), found),
            None if *required => found.push(format!("{place}: {name} is missing")),
            None => {}
        }
    }
    for name in object.keys() {
        if !name.starts_with('_') && !members.iter().any(|(known, ..)| known == name) {
            found.push(format!(
                "{place}: {name} is not in HAR 1.2 and has no underscore before it"
            ));
        }
    }
}

/// Checks the rules that span several objects: the version, references to pages, and the sum of
/// the phases.
fn check_references(log: &Value, found: &mut Vec<String>) {
    if log["version"] != "1.2" {
        found.push(format!("log.version: {} is not \"1.2\"", log["version"]));
    }
    let none = Vec::new();
    let pages = log["pages"].as_array().unwrap_or(&none);
    for (index, entry) in log["entries"]
        .as_array()
        .unwrap_or(&none)
        .iter()
        .enumerate()
    {
        if let Some(page) = entry.get("pageref")
            && !pages.iter().any(|own| own["id"] == *page)
        {
            found.push(format!("log.entries[{index}]: no page has the id {page}"));
        }
        let phases = ["blocked", "dns", "connect", "send", "wait", "receive"];
        let phases = phases.map(|name| entry["timings"][name].as_f64().unwrap_or(-1.0));
        let sum: f64 = phases.into_iter().filter(|time| *time > 0.0).sum();
        let time = entry["time"].as_f64().unwrap_or_default();
        // Each phase is rounded to microseconds.
        if (sum - time).abs() > 0.01 {
            found.push(format!(
                "log.entries[{index}]: the phases take {sum} ms of {time} ms"
            ));
        }
    }
}

/// Reports whether a text is a date and time such as `2009-07-24T19:20:30.45+01:00`.
fn is_time(text: &str) -> bool {
    const DATE: &[u8] = b"0000-00-00T00:00:00";
    let Some((date, rest)) = text.as_bytes().split_at_checked(DATE.len()) else {
        return false;
    };
    let fits = |bytes: &[u8], pattern: &[u8]| {
        bytes.len() == pattern.len()
            && bytes
                .iter()
                .zip(pattern)
                .all(|(byte, sample)| match sample {
                    b'0' => byte.is_ascii_digit(),
                    other => byte == other,
                })
    };
    let zone = match rest.strip_prefix(b".") {
        Some(fraction) => {
            let digits = fraction
                .iter()
                .take_while(|byte| byte.is_ascii_digit())
                .count();
            &fraction[digits..]
        }
        None => rest,
    };
    fits(date, DATE) && (zone == b"Z" || fits(zone, b"+00:00") || fits(zone, b"-00:00"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn file() -> Value {
        json!({ "log": {
            "version": "1.2",
            "creator": { "name": "a", "version": "1" },
            "pages": [{
                "startedDateTime": "2009-07-24T19:20:30.45+01:00",
                "id": "p", "title": "", "pageTimings": { "onLoad": -1 },
            }],
            "entries": [{
                "pageref": "p",
                "startedDateTime": "2009-07-24T19:20:30Z",
                "time": 3.5,
                "request": {
                    "method": "GET", "url": "http://h/", "httpVersion": "h2", "cookies": [],
                    "headers": [{ "name": "a", "value": "b" }], "queryString": [],
                    "headersSize": -1, "bodySize": 0,
                },
                "response": {
                    "status": 200, "statusText": "", "httpVersion": "h2", "cookies": [],
                    "headers": [], "content": { "size": 1, "mimeType": "" },
                    "redirectURL": "", "headersSize": -1, "bodySize": 1, "_transferSize": 2,
                },
                "cache": {},
                "timings": { "dns": -1, "send": 1, "wait": 2, "receive": 0.5 },
                "serverIPAddress": "2001:db8::1",
            }],
        } })
    }

    #[test]
    fn problems_accepts_a_valid_file() {
        assert_eq!(problems(&file()), Vec::<String>::new());
        assert_eq!(problems(&json!([])).len(), 1);
    }

    #[test]
    fn problems_names_each_fault() {
        let entry = "/log/entries/0";
        for (place, value, fault) in [
            ("/log/version", json!("1.1"), "1.2"),
            ("/log/creator", json!("x"), "wrong form"),
            (
                "/log/pages/0/startedDateTime",
                json!("2009-07-24"),
                "wrong form",
            ),
            ("/log/pages/0/pageTimings/onLoad", json!(-2), "wrong form"),
            ("/log/pages/0/id", json!("q"), "no page"),
            (
                &*format!("{entry}/serverIPAddress"),
                json!("127.0.0.1:80"),
                "wrong form",
            ),
            (
                &*format!("{entry}/serverIPAddress"),
                json!("[::1]"),
                "wrong form",
            ),
            (&*format!("{entry}/time"), json!(9.0), "phases"),
            (&*format!("{entry}/timings/send"), json!(-1), "wrong form"),
            (
                &*format!("{entry}/request/headers"),
                json!([{ "name": "a" }]),
                "value is missing",
            ),
            (
                &*format!("{entry}/response/content"),
                json!({ "size": 1 }),
                "mimeType is missing",
            ),
            (
                &*format!("{entry}/cache"),
                json!({ "own": 1 }),
                "underscore",
            ),
            (
                &*format!("{entry}/response/status"),
                json!(0.5),
                "wrong form",
            ),
        ] {
            let mut file = file();
            *file.pointer_mut(place).expect("a member of the file") = value;
            let found = problems(&file);
            assert!(
                found.iter().any(|line| line.contains(fault)),
                "{place}: {found:?}"
            );
        }
    }
}
