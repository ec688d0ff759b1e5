//! Access logs: one line in, one record out.
//!
//! Read are the Common and Combined Log Formats as Apache and nginx write them (with a virtual host
//! in front or further fields behind), Privoxy's (Common Log Format with absolute URLs between
//! lines of other kinds), and comma-separated values under a header line that names the columns.
//! What belongs to no format is counted as unparsable.
//!
//! Strings are interned, so a record is a few numbers; [`AccessLog::finish`] renumbers URLs in byte
//! order.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::agent::{Agent, is_favicon};
use crate::ids::{IdMap, Interner, UrlId};

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

/// What one line says, as it stands there.
#[derive(Debug, Clone, PartialEq)]
pub struct Line<'a> {
    /// Client address or name.
    pub host: &'a [u8],
    /// Milliseconds since 1970, UTC.
    pub time: i64,
    /// What the log's clock is ahead of UTC, minutes.
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

/// One line, in numbers.
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
    /// What the log's clock is ahead of UTC, minutes.
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
    /// Its records, in order.
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
    /// Records, in the order of the file until [`order`](crate::order) changes it.
    pub records: Vec<Record>,
    /// URLs.
    pub urls: Interner,
    /// Referers as they stand in the log.
    pub referers: Interner,
    /// What each number in [`Record::agent`] is.
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
    /// Leave out what a browser asks for beside pages: certificate checks, safe browsing,
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
        let host = self.hosts.intern(line.host);
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
        let renumbered = self.urls.sort();
        let mut favicons = vec![false; self.favicons.len()];
        for (old, &new) in renumbered.iter().enumerate() {
            favicons[new as usize] = self.favicons[old];
        }
        self.favicons = favicons;
        for record in &mut self.records {
            record.url = renumbered[record.url as usize];
        }
        crate::order::order(self);
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

    /// Makes clients unknown whose User-Agent `is_robot` recognises.
    pub fn mark_robots(&mut self, mut is_robot: impl FnMut(&[u8]) -> bool) {
        for (id, agent) in self.agents.iter_mut().enumerate() {
            let name = self.agent_names.name(id as u32);
            if agent.known && name != b"\n" && is_robot(name) {
                agent.known = false;
            }
        }
    }

    /// The log cut into calendar days of its own clock, each a sample of its own. Lines before the
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

/// Parses a line of the Common or Combined Log Format.
#[must_use]
pub fn parse_line(bytes: &[u8]) -> Option<Line<'_>> {
    // A user's name may hold a bracket too.
    let (client, (time, zone, rest)) = memchr::memchr_iter(b'[', bytes).find_map(|open| {
        let client = bytes[..open].strip_suffix(b" ")?;
        Some((client, timestamp(&bytes[open + 1..])?))
    })?;
    let host = host(client)?;
    let rest = rest.strip_prefix(b" \"")?;
    let (request, rest) = request_field(rest)?;
    let (verb, url) = request_line(request)?;
    let (status, rest) = split_word(rest);
    let (size, rest) = split_word(rest);
    let status = number(status).and_then(|status| u16::try_from(status).ok())?;
    // Logs made from other data have -1 for what is not known.
    let size = if matches!(size, b"-" | b"-1") {
        0
    } else {
        number(size)?
    };
    let (referer, agent) = trailer(rest)?;
    Some(Line {
        host,
        time,
        zone,
        verb,
        url: Cow::Borrowed(url),
        status,
        size,
        referer,
        agent,
    })
}

/// The client's address or name from what stands before the time. A virtual host may stand before
/// it, told by its port and by an address that follows, or by a word more than host, identity and
/// user need.
fn host(client: &[u8]) -> Option<&[u8]> {
    let (first, rest) = split_word(client);
    let port = first
        .iter()
        .rposition(|&byte| byte == b':')
        .map(|at| &first[at + 1..]);
    if port.is_some_and(|port| number(port).is_some()) {
        let (second, rest) = split_word(rest);
        // An IPv6 address ends like a port. Where there is no virtual host the second word is the
        // identity, hardly ever known.
        let named = !matches!(second, b"" | b"-")
            && memchr::memchr(b' ', rest).is_some()
            && !is_address(first);
        if named || is_address(second) {
            return Some(second);
        }
    }
    (!first.is_empty()).then_some(first)
}

fn is_address(word: &[u8]) -> bool {
    std::str::from_utf8(word).is_ok_and(|text| text.parse::<std::net::IpAddr>().is_ok())
}

/// The request between its quotes, and what follows the space after the closing one. A quote inside
/// the request is not the closing one unless a status follows it.
fn request_field(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    memchr::memchr_iter(b'"', bytes).find_map(|at| {
        let rest = bytes[at + 1..].strip_prefix(b" ")?;
        let (status, after) = split_word(rest);
        let closes = number(status).is_some() && !after.is_empty();
        closes.then_some((&bytes[..at], rest))
    })
}

/// Method and URL: the URL is all that stands between the first space and a last word that names
/// the protocol, further spaces included.
fn request_line(request: &[u8]) -> Option<(Verb, &[u8])> {
    let at = memchr::memchr(b' ', request)?;
    let verb = match &request[..at] {
        b"GET" => Verb::Get,
        b"HEAD" => Verb::Head,
        _ => Verb::Other,
    };
    let rest = &request[at + 1..];
    let last = memchr::memrchr(b' ', rest).map_or(0, |at| at + 1);
    let url = if rest[last..].starts_with(b"HTTP/") {
        &rest[..last.saturating_sub(1)]
    } else {
        rest
    };
    (!url.trim_ascii().is_empty()).then_some((verb, url))
}

type Field<'a> = Option<Cow<'a, [u8]>>;

/// Referer and User-Agent if the line has them; further fields are passed over, and so are fields
/// without quotes where there is neither.
fn trailer(bytes: &[u8]) -> Option<(Field<'_>, Field<'_>)> {
    if memchr::memchr(b'"', bytes).is_none() {
        return Some((None, None));
    }
    let (referer, rest) = quoted(bytes.strip_prefix(b"\"")?)?;
    let (agent, _) = quoted(rest.strip_prefix(b" \"")?)?;
    let referer = Some(Cow::Borrowed(referer)).filter(|referer| !matches!(&**referer, b"" | b"-"));
    Some((referer, Some(Cow::Borrowed(agent))))
}

/// Up to the closing quote: the first that no backslash escapes and that a space or the end of the
/// line follows.
fn quoted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    memchr::memchr_iter(b'"', bytes).find_map(|at| {
        let escapes = bytes[..at]
            .iter()
            .rev()
            .take_while(|&&byte| byte == b'\\')
            .count();
        let closes = escapes % 2 == 0 && matches!(bytes.get(at + 1), None | Some(b' ' | b'\r'));
        closes.then(|| (&bytes[..at], &bytes[at + 1..]))
    })
}

fn split_word(bytes: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(b' ', bytes) {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes.strip_suffix(b"\r").unwrap_or(bytes), &[]),
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    digits.iter().try_fold(0, |sum, byte| {
        byte.is_ascii_digit()
            .then(|| sum * 10 + u64::from(byte - b'0'))
    })
}

/// `09/Jul/1995:00:00:00 -0400]`, the zone perhaps absent, as milliseconds since 1970, UTC, and
/// minutes ahead of UTC; and what follows the bracket.
fn timestamp(bytes: &[u8]) -> Option<(i64, i16, &[u8])> {
    const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    let (date, rest) = bytes.split_first_chunk::<20>()?;
    let &[
        d,
        dd,
        b'/',
        m,
        mm,
        mmm,
        b'/',
        y,
        yy,
        yyy,
        yyyy,
        b':',
        h,
        hh,
        b':',
        n,
        nn,
        b':',
        s,
        ss,
    ] = date
    else {
        return None;
    };
    let month = MONTHS.chunks(3).position(|month| month == [m, mm, mmm])? as i64 + 1;
    let day = two_digits(d, dd).filter(|day| (1..=31).contains(day))?;
    let year = two_digits(y, yy)? * 100 + two_digits(yyy, yyyy)?;
    let hour = two_digits(h, hh).filter(|&hour| hour <= 23)?;
    let minute = two_digits(n, nn).filter(|&minute| minute <= 59)?;
    // A leap second is the 60th.
    let second = two_digits(s, ss).filter(|&second| second <= 60)?;
    let (zone, rest) = match *rest {
        [b']', ref rest @ ..] => (0, rest),
        [
            b' ',
            sign @ (b'+' | b'-'),
            h,
            hh,
            m,
            mm,
            b']',
            ref rest @ ..,
        ] => {
            let hours = two_digits(h, hh).filter(|&hours| hours <= 14)?;
            let ahead = hours * 60 + two_digits(m, mm).filter(|&minutes| minutes <= 59)?;
            (if sign == b'-' { -ahead } else { ahead }, rest)
        }
        _ => return None,
    };
    let minutes = (days_since_1970(year, month, day) * 24 + hour) * 60 + minute - zone;
    Some(((minutes * 60 + second) * 1000, zone as i16, rest))
}

fn two_digits(tens: u8, ones: u8) -> Option<i64> {
    let both = tens.is_ascii_digit() && ones.is_ascii_digit();
    both.then(|| i64::from(tens - b'0') * 10 + i64::from(ones - b'0'))
}

/// Days from 1 January 1970 to a date of the Gregorian calendar, counted in years that begin in
/// March.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year
        - 719_468
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

/// Whether `before`, a digit and `after` occur in a row.
fn numbered(line: &[u8], before: &[u8], after: &[u8]) -> bool {
    memchr::memmem::find_iter(line, before).any(|at| {
        let rest = &line[at + before.len()..];
        rest.first().is_some_and(u8::is_ascii_digit) && rest[1..].starts_with(after)
    })
}

/// Where each value stands in a line of comma-separated values.
#[derive(Debug)]
struct Columns {
    seconds: Option<usize>,
    milliseconds: Option<usize>,
    user: usize,
    url: usize,
    method: Option<usize>,
    status: Option<usize>,
    size: Option<usize>,
    referer: Option<usize>,
    agent: Option<usize>,
}

impl Columns {
    /// Reads a header line: it must name a time (`time` in seconds or `time_ms`), a `user` and a
    /// `url`.
    fn of(header: &[u8]) -> Option<Self> {
        let names: Vec<String> = std::str::from_utf8(header)
            .ok()?
            .split(',')
            .map(|name| name.trim().trim_matches('"').to_ascii_lowercase())
            .collect();
        let find = |words: &[&str]| names.iter().position(|name| words.contains(&name.as_str()));
        let columns = Self {
            seconds: find(&["time", "timestamp"]),
            milliseconds: find(&["time_ms", "timestamp_ms"]),
            user: find(&["user", "session", "client", "host"])?,
            url: find(&["url", "resource"])?,
            method: find(&["method"]),
            status: find(&["status"]),
            size: find(&["size", "bytes"]),
            referer: find(&["referer", "referrer"]),
            agent: find(&["agent", "user_agent", "user-agent"]),
        };
        (columns.seconds.is_some() || columns.milliseconds.is_some()).then_some(columns)
    }

    /// A line; what the columns leave out is taken as GET, 200, no size, no Referer, one known
    /// browser.
    fn parse<'a>(&self, bytes: &'a [u8]) -> Option<Line<'a>> {
        let mut cells = split_cells(bytes.strip_suffix(b"\r").unwrap_or(bytes));
        let mut take = |at: Option<usize>| at.and_then(|at| cells.get_mut(at)).map(std::mem::take);
        let Some(Cow::Borrowed(host)) = take(Some(self.user)) else {
            return None;
        };
        let url = take(Some(self.url)).filter(|url| !url.is_empty())?;
        let verb = match take(self.method).as_deref() {
            None | Some(b"" | b"GET") => Verb::Get,
            Some(b"HEAD") => Verb::Head,
            Some(_) => Verb::Other,
        };
        let value = |cell: Option<Cow<'_, [u8]>>, default| match cell.as_deref() {
            None | Some(b"" | b"-" | b"-1") => Some(default),
            Some(digits) => number(digits),
        };
        let status = value(take(self.status), 200)?;
        let size = value(take(self.size), 0)?;
        let time = match (take(self.milliseconds), take(self.seconds)) {
            (Some(cell), _) => decimal(&cell, 1.0)?,
            (None, Some(cell)) => decimal(&cell, 1000.0)?,
            (None, None) => return None,
        };
        let referer = take(self.referer).filter(|referer| !matches!(&**referer, b"" | b"-"));
        let agent = take(self.agent);
        Some(Line {
            host,
            time,
            zone: 0,
            verb,
            url,
            status: u16::try_from(status).ok()?,
            size,
            referer,
            agent,
        })
    }
}

fn decimal(cell: &[u8], unit: f64) -> Option<i64> {
    let value: f64 = std::str::from_utf8(cell).ok()?.trim().parse().ok()?;
    // Up to the year 9999 in milliseconds, which an f64 holds exactly.
    (value.abs() * unit < 2.6e14).then_some((value * unit).round() as i64)
}

/// Cells of a line, without the blanks around them; a cell in quotes may hold commas, and quotes
/// written twice.
fn split_cells(bytes: &[u8]) -> Vec<Cow<'_, [u8]>> {
    let mut cells = Vec::new();
    let mut rest = bytes;
    loop {
        let (cell, after) = match rest.trim_ascii_start().strip_prefix(b"\"") {
            Some(inner) => quoted_cell(inner),
            None => {
                let end = memchr::memchr(b',', rest).unwrap_or(rest.len());
                (Cow::Borrowed(rest[..end].trim_ascii()), &rest[end..])
            }
        };
        cells.push(cell);
        match after.trim_ascii_start().strip_prefix(b",") {
            Some(next) => rest = next,
            None => return cells,
        }
    }
}

fn quoted_cell(inner: &[u8]) -> (Cow<'_, [u8]>, &[u8]) {
    let mut at = 0;
    let mut doubled = false;
    while let Some(quote) = memchr::memchr(b'"', &inner[at..]) {
        at += quote;
        if inner.get(at + 1) != Some(&b'"') {
            let cell = &inner[..at];
            let cell = if doubled {
                Cow::Owned(undouble(cell))
            } else {
                Cow::Borrowed(cell)
            };
            return (cell, &inner[at + 1..]);
        }
        doubled = true;
        at += 2;
    }
    (Cow::Borrowed(inner), &[])
}

fn undouble(cell: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(cell.len());
    let mut bytes = cell.iter();
    while let Some(&byte) = bytes.next() {
        plain.push(byte);
        if byte == b'"' {
            bytes.next();
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Line<'_> {
        parse_line(line.as_bytes()).unwrap_or_else(|| panic!("unparsable: {line}"))
    }

    #[test]
    fn common_line() {
        let line = parsed(r#"h - - [09/Jul/1995:00:00:07 -0400] "GET /a.gif HTTP/1.0" 200 363"#);
        assert_eq!(
            (line.time, line.status, line.size),
            (805_262_407_000, 200, 363)
        );
        assert_eq!(
            (&*line.url, line.verb, line.agent),
            (&b"/a.gif"[..], Verb::Get, None)
        );
        let timed =
            parsed(r#"h - - [09/Jul/1995:00:00:07 -0400] "GET /a.gif HTTP/1.0" 200 363 0.05"#);
        assert_eq!((timed.size, timed.agent), (363, None));
        let unknown = parsed(
            r#"7 - - [09/Jul/1995:00:00:07 -0400] "GET /a.gif HTTP/1.0" 200 -1 "" "Firefox/1""#,
        );
        assert_eq!(
            (unknown.size, unknown.referer, unknown.agent.is_some()),
            (0, None, true)
        );
    }

    #[test]
    fn combined_line_with_virtual_host_and_tail() {
        let text = r#"a.example:80 10.0.0.1 - bob smith [01/Mar/2016:10:00:00 +0100] "HEAD /x y?z HTTP/1.1" 304 - "-" "A \"b\" c" "-""#;
        let line = parsed(text);
        assert_eq!(
            (line.host, &*line.url, line.verb),
            (&b"10.0.0.1"[..], &b"/x y?z"[..], Verb::Head)
        );
        assert_eq!((line.size, line.referer), (0, None));
        assert_eq!(line.agent.as_deref(), Some(&br#"A \"b\" c"#[..]));
        assert_eq!(line.time, 1_456_822_800_000);
    }

    #[test]
    fn a_virtual_host_stands_before_addresses_and_names() {
        for (client, host) in [
            ("a.com:80 c1.example.net - -", "c1.example.net"),
            ("a.com:80 c1.example.net - bob smith", "c1.example.net"),
            ("a.com:80 ::1 - -", "::1"),
            ("2001:db8::1 - bob smith", "2001:db8::1"),
            ("2001:db8::1 ident bob smith", "2001:db8::1"),
            ("c.example:80 - -", "c.example:80"),
            ("c.example:80 - bob smith", "c.example:80"),
            ("c.example:80 ident bob", "c.example:80"),
            ("c.example - -", "c.example"),
        ] {
            let text = format!(r#"{client} [14/Jun/2015:10:00:00 +0000] "GET /a HTTP/1.1" 200 5"#);
            assert_eq!(parsed(&text).host, host.as_bytes(), "{client}");
        }
    }

    #[test]
    fn a_bracket_in_a_name_begins_no_time() {
        for user in ["a[b", "a [b", "[", "[99/Jun/2015:99:99:99 +9999]"] {
            let text =
                format!(r#"h - {user} [14/Jun/2015:10:00:00 +0000] "GET /a HTTP/1.1" 200 5"#);
            let line = parsed(&text);
            assert_eq!(
                (line.host, &*line.url, line.time),
                (&b"h"[..], &b"/a"[..], 1_434_276_000_000),
                "{user}"
            );
        }
    }

    #[test]
    fn request_without_protocol_or_url() {
        let at = "h - - [09/Jul/1995:00:00:07 -0400]";
        assert_eq!(
            &*parsed(&format!(r#"{at} "GET /a"b" 200 1"#)).url,
            br#"/a"b"#
        );
        for request in ["-", "GET ", "GET HTTP/1.0", ""] {
            assert_eq!(
                parse_line(format!(r#"{at} "{request}" 408 -"#).as_bytes()),
                None,
                "{request}"
            );
        }
    }

    #[test]
    fn a_time_that_no_clock_shows_is_none() {
        let read =
            |time: &str| timestamp(format!("{time}] x").as_bytes()).map(|(.., rest)| rest.to_vec());
        for time in [
            "14/Jun/2015:10:00:00 +0000",
            "31/Dec/2016:23:59:60 -1459",
            "01/Jan/2015:00:00:00",
        ] {
            assert_eq!(read(time).as_deref(), Some(&b" x"[..]), "{time}");
        }
        for time in [
            "99/Jun/2015:99:99:99 +9999",
            "14XJunX2015X10X00X00X+0000",
            "00/Jun/2015:10:00:00 +0000",
            "32/Jun/2015:10:00:00 +0000",
            "14/Jun/2015:24:00:00 +0000",
            "14/Jun/2015:10:60:00 +0000",
            "14/Jun/2015:10:00:61 +0000",
            "14/Jun/2015:10:00:00 +1500",
            "14/Jun/2015:10:00:00 +1060",
            "14/Jun/2015:10:00:00+0000",
            "14/Jun/2015:10:00:00 +000",
        ] {
            assert_eq!(read(time), None, "{time}");
        }
    }

    #[test]
    fn values_separated_by_commas() {
        let mut log = AccessLog::default();
        log.push_line(b"time_ms,user,url,agent", Filter::default());
        log.push_line(
            br#"1500,7,"http://h/a,""b""","Mozilla Firefox/9""#,
            Filter::default(),
        );
        log.push_line(b"x,7,/", Filter::default());
        assert_eq!((log.records.len(), log.lines, log.unparsable), (1, 2, 1));
        let record = log.records[0];
        assert_eq!(
            (record.time, record.status, record.verb),
            (1500, 200, Verb::Get)
        );
        assert_eq!(log.urls.name(record.url), br#"http://h/a,"b""#);
        assert!(log.agents[record.agent as usize].known);
    }

    fn log(lines: &[&str]) -> AccessLog {
        let mut log = AccessLog::default();
        lines
            .iter()
            .for_each(|line| log.push_line(line.as_bytes(), Filter::default()));
        log.finish();
        log
    }

    #[test]
    fn blanks_around_values_are_passed_over() {
        let log = log(&[
            "time, user, url, status",
            "1, a, /x, 200",
            "2,a,/x,200",
            "3 ,\t\"a\" , \"/x\" , 200 ",
        ]);
        assert_eq!(
            (
                log.records.len(),
                log.urls.len(),
                log.users.len(),
                log.unparsable
            ),
            (3, 1, 1, 0)
        );
    }

    #[test]
    fn a_day_is_one_sample_whatever_zones_its_lines_have() {
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
    fn lines_without_a_record_belong_to_the_day_before_them() {
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
    fn a_byte_order_mark_is_part_of_no_line() {
        let read = |lines: [&str; 2]| {
            let log = log(&lines);
            (log.records.len(), log.users.len(), log.unparsable)
        };
        assert_eq!(read(["\u{feff}time,user,url", "1,a,/x"]), (1, 1, 0));
        let line = r#"h - - [09/Jul/1995:00:00:07 -0400] "GET / HTTP/1.0" 200 1"#;
        assert_eq!(read([&format!("\u{feff}{line}"), line]), (2, 1, 0));
    }

    #[test]
    fn referer_paths() {
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
    fn noise_of_the_documents_script() {
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
