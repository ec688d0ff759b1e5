//! Access logs: the reader takes one line at a time and keeps one record of it.
//!
//! `line` reads the Common and Combined Log Formats as Apache and nginx write them, with a virtual
//! host in front or further fields behind. It also reads Privoxy's logs, which mix the Common Log
//! Format with other lines. `values` reads comma-separated values under a header line that names
//! the columns. Lines of no known format are counted as unparsable.
//!
//! Strings are interned, so a record consists of a few numbers. [`AccessLog::finish`] renumbers
//! URLs in byte order, and [`AccessLog::put_in_order`] keeps their numbers.

mod line;
mod values;

use std::borrow::Cow;
use std::collections::BTreeMap;

use tandem_predict::ids::IdMap;

use crate::agent::{Agent, is_favicon};
use crate::interner::{Interner, UrlId};
use line::parse_line;
use values::Columns;

/// Marks a line without Referer.
pub const NO_REFERER: u32 = u32::MAX;

/// Request methods as far as they matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// GET.
    Get,
    /// HEAD.
    Head,
    /// Any other.
    Other,
}

/// The fields of one line, unchanged.
#[derive(Debug, Clone, PartialEq)]
pub struct Line<'a> {
    /// Client address or name.
    pub host: Cow<'a, [u8]>,
    /// Milliseconds since 1970, UTC.
    pub time: i64,
    /// The offset of the log's clock ahead of UTC, in minutes.
    pub zone: i16,
    /// Method.
    pub verb: Verb,
    /// URL: a path with query, or absolute in a proxy's log.
    pub url: Cow<'a, [u8]>,
    /// Status.
    pub status: u16,
    /// Body size in bytes, 0 where the log has none.
    pub size: u64,
    /// Referer, if recorded and not empty.
    pub referer: Option<Cow<'a, [u8]>>,
    /// User-Agent; `None` where the format has no such field.
    pub agent: Option<Cow<'a, [u8]>>,
}

/// A line in numbers.
#[derive(Debug, Clone, Copy)]
pub struct Record {
    /// Milliseconds since 1970, UTC.
    pub time: i64,
    /// Body size in bytes.
    pub size: u64,
    /// Client address and User-Agent together.
    pub user: u32,
    /// Number of the URL.
    pub url: UrlId,
    /// Number of the Referer, or [`NO_REFERER`].
    pub referer: u32,
    /// Number of the User-Agent.
    pub agent: u32,
    /// Line in the file, from 0; a header line is not counted.
    pub line: u32,
    /// The offset of the log's clock ahead of UTC, in minutes.
    pub zone: i16,
    /// Status.
    pub status: u16,
    /// Method.
    pub verb: Verb,
}

impl Record {
    /// Days since 1970 by the log's own clock.
    fn day(&self) -> i64 {
        (self.time + i64::from(self.zone) * 60_000).div_euclid(86_400_000)
    }
}

/// A calendar day of a log.
#[derive(Debug, Default)]
pub struct Day {
    /// Days since 1970.
    pub day: i64,
    /// The records of the log, in order.
    pub records: Vec<Record>,
    /// Lines without a record, which belong to the day of the line before.
    pub left_out: LeftOut,
}

/// How many lines gave no record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Lines that belong to no known format.
    pub unparsable: u32,
    /// Lines left out because they are known not to belong to pages.
    pub noise: u32,
}

/// A log in memory.
#[derive(Debug, Default)]
pub struct AccessLog {
    /// Records, in the order of the file until [`request_order`](crate::request_order) changes it.
    pub records: Vec<Record>,
    /// URLs.
    pub urls: Interner,
    /// Referers as they stand in the log.
    pub referers: Interner,
    /// The agent for each number in [`Record::agent`].
    pub agents: Vec<Agent>,
    /// Per URL: whether it is a favicon.
    pub favicons: Vec<bool>,
    /// Lines read, without a header line.
    pub lines: u32,
    /// Lines that belong to no known format.
    pub unparsable: u32,
    /// Lines left out because they are known not to belong to pages.
    pub noise: u32,
    /// By the day of the record before, none before the first.
    left_out: BTreeMap<Option<i64>, LeftOut>,
    agent_names: Interner,
    hosts: Interner,
    users: IdMap<u64, u32>,
    columns: Option<Columns>,
}

/// Lines left out on demand, before anything else is done with a log.
#[derive(Debug, Clone, Copy, Default)]
pub struct Filter {
    /// Removes requests that a browser makes besides pages: certificate checks, safe browsing,
    /// suggestions, truncated lines (the thesis's appendix B.1).
    pub noise: bool,
}

impl AccessLog {
    /// Takes in the next line, without its line end.
    pub fn push_line(&mut self, bytes: &[u8], filter: Filter) {
        const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
        let number = self.lines;
        let mut bytes = bytes;
        if number == 0 && self.columns.is_none() {
            bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
            self.columns = Columns::of(bytes);
            if self.columns.is_some() {
                return;
            }
        }
        self.lines += 1;
        if filter.noise && is_noise(bytes) {
            self.noise += 1;
            self.left_out_here().noise += 1;
            return;
        }
        let line = match &self.columns {
            Some(columns) => columns.parse(bytes),
            None => parse_line(bytes),
        };
        match line {
            Some(line) => self.push(&line, number),
            None => {
                self.unparsable += 1;
                self.left_out_here().unparsable += 1;
            }
        }
    }

    fn left_out_here(&mut self) -> &mut LeftOut {
        self.left_out
            .entry(self.records.last().map(Record::day))
            .or_default()
    }

    fn push(&mut self, line: &Line<'_>, number: u32) {
        let agent = match &line.agent {
            // One number for every line without the field, kept apart from an empty one by a byte
            // no field can hold.
            None => self.agent_names.intern(b"\n"),
            Some(agent) => self.agent_names.intern(agent),
        };
        if agent as usize == self.agents.len() {
            self.agents.push(
                line.agent
                    .as_ref()
                    .map_or(Agent::UNRECORDED, |agent| Agent::of(agent)),
            );
        }
        let url = self.urls.intern(&line.url);
        if url as usize == self.favicons.len() {
            self.favicons.push(is_favicon(&line.url));
        }
        let host = self.hosts.intern(&line.host);
        let next_user = self.users.len() as u32;
        let user = *self
            .users
            .entry(u64::from(host) << 32 | u64::from(agent))
            .or_insert(next_user);
        let referer = line
            .referer
            .as_ref()
            .map_or(NO_REFERER, |referer| self.referers.intern(referer));
        self.records.push(Record {
            time: line.time,
            size: line.size,
            user,
            url,
            referer,
            agent,
            line: number,
            zone: line.zone,
            status: line.status,
            verb: line.verb,
        });
    }

    /// To be called after the last line: numbers URLs in byte order and puts the records in order.
    pub fn finish(&mut self) {
        self.number_by_name();
        self.put_in_order();
    }

    /// Numbers URLs in byte order. The documented algorithms need it, since they push equally
    /// probable assets in that order. `auto` does not.
    fn number_by_name(&mut self) {
        let renumbered = self.urls.sort();
        let mut favicons = vec![false; self.favicons.len()];
        for (old, &new) in renumbered.iter().enumerate() {
            favicons[new as usize] = self.favicons[old];
        }
        self.favicons = favicons;
        for record in &mut self.records {
            record.url = renumbered[record.url as usize];
        }
    }

    /// Puts the records in order. In place of [`finish`](Self::finish), it suffices for a replay
    /// with `auto` and leaves the URLs in the order in which the log names them.
    pub fn put_in_order(&mut self) {
        crate::request_order::order(self);
    }

    /// How many different users there are.
    #[must_use]
    pub fn user_count(&self) -> usize {
        self.users.len()
    }

    /// The request URL that each Referer names: its path and query, whatever its host.
    #[must_use]
    pub fn referer_urls(&self) -> Vec<Option<UrlId>> {
        (0..self.referers.len() as u32)
            .map(|id| self.urls.get(&referer_path(self.referers.name(id))))
            .collect()
    }

    /// The User-Agent strings, numbered as in [`Record::agent`].
    #[must_use]
    pub fn agent_name(&self, agent: u32) -> &[u8] {
        self.agent_names.name(agent)
    }

    /// Marks clients as unknown if `is_robot` recognises their User-Agent.
    pub fn mark_robots(&mut self, mut is_robot: impl FnMut(&[u8]) -> bool) {
        for (id, agent) in self.agents.iter_mut().enumerate() {
            let name = self.agent_names.name(id as u32);
            if agent.known && name != b"\n" && is_robot(name) {
                agent.known = false;
            }
        }
    }

    /// Cuts the log into calendar days of its own clock, each a separate sample. Lines before the
    /// first record belong to the first day.
    #[must_use]
    pub fn days(&self) -> Vec<Day> {
        // Around midnight days alternate where clocks of several zones wrote.
        let mut days: BTreeMap<i64, Day> = BTreeMap::new();
        for records in self.records.chunk_by(|a, b| a.day() == b.day()) {
            let day = records[0].day();
            days.entry(day)
                .or_insert_with(|| Day {
                    day,
                    ..Day::default()
                })
                .records
                .extend_from_slice(records);
        }
        let first = days.keys().next().copied();
        for (day, more) in &self.left_out {
            if let Some(day) = day.or(first).and_then(|day| days.get_mut(&day)) {
                day.left_out.unparsable += more.unparsable;
                day.left_out.noise += more.noise;
            }
        }
        days.into_values().collect()
    }
}

/// Path and query of a Referer: scheme, host and fragment cut, an empty path made `/`.
#[must_use]
pub fn referer_path(referer: &[u8]) -> Cow<'_, [u8]> {
    // A scheme in the middle of a query is none.
    let scheme = |name: &[u8]| {
        name.iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte))
    };
    let rest = match memchr::memmem::find(referer, b"://").filter(|&at| scheme(&referer[..at])) {
        Some(at) => {
            let rest = &referer[at + 3..];
            let host = rest
                .iter()
                .position(|byte| matches!(byte, b'/' | b'?' | b'#'))
                .unwrap_or(rest.len());
            &rest[host..]
        }
        None => referer,
    };
    let path = rest.split(|&byte| byte == b'#').next().unwrap_or(rest);
    match path.first() {
        None => Cow::Borrowed(b"/"),
        Some(b'?') => Cow::Owned([b"/", path].concat()),
        Some(_) => Cow::Borrowed(path),
    }
}

/// Appendix B.1's list.
fn is_noise(line: &[u8]) -> bool {
    const WORDS: [&[u8]; 5] = [
        b"/ocsp",
        b"/crl",
        b"safebrowsing",
        b"suggestqueries",
        b"[too long, truncated]",
    ];
    // The script's `ocsp.` and `crl.` are regular expressions: the dot is any byte, but one there
    // must be.
    const FOLLOWED: [&[u8]; 2] = [b"ocsp", b"crl"];
    let has = |line, word: &[u8]| memchr::memmem::find(line, word).is_some();
    let but_last = &line[..line.len().saturating_sub(1)];
    WORDS.iter().any(|word| has(line, word))
        || FOLLOWED.iter().any(|word| has(but_last, word))
        || numbered(line, b"clients", b".google.com")
        || numbered(line, b"sitecheck", b".opera.com")
}

/// Returns true if `before`, a digit and `after` occur in a row.
fn numbered(line: &[u8], before: &[u8], after: &[u8]) -> bool {
    memchr::memmem::find_iter(line, before).any(|at| {
        let rest = &line[at + before.len()..];
        rest.first().is_some_and(u8::is_ascii_digit) && rest[1..].starts_with(after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(lines: &[&str]) -> AccessLog {
        let mut log = AccessLog::default();
        lines
            .iter()
            .for_each(|line| log.push_line(line.as_bytes(), Filter::default()));
        log.finish();
        log
    }

    #[test]
    fn days_follow_the_clock_of_the_log() {
        let at = |time: &str| format!(r#"h - - [{time}] "GET /a HTTP/1.1" 200 5"#);
        let times = [
            "14/Jun/2015:23:30:00 +0000",
            "15/Jun/2015:01:31:00 +0200",
            "14/Jun/2015:23:32:00 +0000",
            "15/Jun/2015:00:10:00 +0000",
        ];
        let lines = times.map(at);
        let days = log(&lines.each_ref().map(String::as_str)).days();
        let days: Vec<_> = days
            .iter()
            .map(|day| (day.day, day.records.len()))
            .collect();
        assert_eq!(days, [(16_600, 2), (16_601, 2)]);
    }

    #[test]
    fn days_count_lines_without_a_record() {
        let mut log = AccessLog::default();
        let at = |time: &str| format!(r#"h - - [{time} +0000] "GET /a HTTP/1.1" 200 5"#);
        let (first, second) = (at("14/Jun/2015:10:00:00"), at("15/Jun/2015:10:00:00"));
        for line in ["?", "GET /crl", &second, "?", "?", &first, "?", "GET /crl"] {
            log.push_line(line.as_bytes(), Filter { noise: true });
        }
        log.finish();
        let days: Vec<_> = log
            .days()
            .iter()
            .map(|day| (day.day, day.records.len(), day.left_out))
            .collect();
        let left_out = |unparsable, noise| LeftOut { unparsable, noise };
        assert_eq!(
            days,
            [(16_600, 1, left_out(2, 2)), (16_601, 1, left_out(2, 0))]
        );
    }

    #[test]
    fn push_line_skips_a_byte_order_mark() {
        let read = |lines: [&str; 2]| {
            let log = log(&lines);
            (log.records.len(), log.users.len(), log.unparsable)
        };
        assert_eq!(read(["\u{feff}time,user,url", "1,a,/x"]), (1, 1, 0));
        let line = r#"h - - [09/Jul/1995:00:00:07 -0400] "GET / HTTP/1.0" 200 1"#;
        assert_eq!(read([&format!("\u{feff}{line}"), line]), (2, 1, 0));
    }

    #[test]
    fn referer_path_keeps_path_and_query() {
        for (referer, path) in [
            ("http://h", "/"),
            ("http://h/#top", "/"),
            ("https://h:8/a/b?c=d#e", "/a/b?c=d"),
            ("http://h?q", "/?q"),
            ("/own", "/own"),
            ("/go?to=http://h/a", "/go?to=http://h/a"),
            ("http://h/go?to=http://h/a", "/go?to=http://h/a"),
        ] {
            assert_eq!(
                &*referer_path(referer.as_bytes()),
                path.as_bytes(),
                "{referer}"
            );
        }
    }

    #[test]
    fn is_noise_matches_the_list_of_the_thesis() {
        for line in [
            "GET http://ocsp.x/",
            "GET http://ocsp2.x/",
            "GET /GIAG2.crl HTTP/1.1",
            "http://clients3.google.com/a",
            "sitecheck2.opera.com",
            "x [too long, truncated]",
        ] {
            assert!(is_noise(line.as_bytes()), "{line}");
        }
        for line in [
            "",
            "http://clients.google.com/",
            "http://clients3xgoogle.com/",
            "ends in ocsp",
            "ends in crl",
        ] {
            assert!(!is_noise(line.as_bytes()), "{line}");
        }
    }
}
