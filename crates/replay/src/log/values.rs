//! Lines of comma-separated values (RFC 4180), under a header line that names the columns.

use std::borrow::Cow;

use csv_core::{ReadRecordResult, Reader};

use super::line::number;
use super::{Line, Verb};

/// The most columns of a line; a line with more is not read.
const MAX_COLUMNS: usize = 64;

/// The positions of the known columns in a line.
#[derive(Debug)]
pub(super) struct Columns {
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
    /// Reads a header line, which must name a time (`time` in seconds or `time_ms`), a `user` and a
    /// `url`.
    pub(super) fn of(header: &[u8]) -> Option<Self> {
        let names: Vec<String> = split(header)?
            .into_iter()
            .map(|name| String::from_utf8_lossy(&name).to_ascii_lowercase())
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

    /// Reads a line. Absent columns mean GET, 200, no size, no Referer, and one known browser.
    pub(super) fn parse(&self, bytes: &[u8]) -> Option<Line<'static>> {
        let mut cells = split(bytes)?;
        let mut take = |at: Option<usize>| at.and_then(|at| cells.get_mut(at)).map(std::mem::take);
        let host = take(Some(self.user))?;
        let url = take(Some(self.url)).filter(|url| !url.is_empty())?;
        let verb = match take(self.method).as_deref() {
            None | Some(b"" | b"GET") => Verb::Get,
            Some(b"HEAD") => Verb::Head,
            Some(_) => Verb::Other,
        };
        let value = |cell: Option<Vec<u8>>, default| match cell.as_deref() {
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
            host: Cow::Owned(host),
            time,
            zone: 0,
            verb,
            url: Cow::Owned(url),
            status: u16::try_from(status).ok()?,
            size,
            referer: referer.map(Cow::Owned),
            agent: agent.map(Cow::Owned),
        })
    }
}

/// Reads a decimal number and returns it in milliseconds; `unit` is the number of milliseconds in
/// one.
fn decimal(cell: &[u8], unit: f64) -> Option<i64> {
    let value: f64 = std::str::from_utf8(cell).ok()?.trim().parse().ok()?;
    // An f64 holds milliseconds up to the year 9999 exactly.
    (value.abs() * unit < 2.6e14).then_some((value * unit).round() as i64)
}

/// Splits a line into its cells, without the blanks and the quotes around them.
fn split(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (mut text, mut ends) = (vec![0; line.len()], [0; MAX_COLUMNS]);
    let (mut reader, mut input, mut length, mut count) = (Reader::new(), line, 0, 0);
    loop {
        let (result, read, written, ended) =
            reader.read_record(input, &mut text[length..], &mut ends[count..]);
        (input, length, count) = (&input[read..], length + written, count + ended);
        match result {
            // The next call has no input, which means the end of the line.
            ReadRecordResult::InputEmpty => {}
            ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => return None,
            ReadRecordResult::Record | ReadRecordResult::End => break,
        }
    }
    let starts = std::iter::once(0).chain(ends);
    let cells = starts.zip(ends).take(count);
    Some(cells.map(|(start, end)| bare(&text[start..end])).collect())
}

/// Returns a cell without blanks around it. Where blanks stood before a quote, the quotes are part
/// of the cell for RFC 4180, but not for the programs that write such lines.
fn bare(cell: &[u8]) -> Vec<u8> {
    let cell = cell.trim_ascii();
    let inner = cell
        .strip_prefix(b"\"")
        .and_then(|cell| cell.strip_suffix(b"\""));
    inner.unwrap_or(cell).to_vec()
}

#[cfg(test)]
mod tests {
    use super::super::{AccessLog, Filter};
    use super::*;

    #[test]
    fn columns_read_quoted_cells() {
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

    #[test]
    fn columns_ignore_blanks_around_cells() {
        let mut log = AccessLog::default();
        for line in [
            "time, user, url, status",
            "1, a, /x, 200",
            "2,a,/x,200",
            "3 ,\t\"a\" , \"/x\" , 200 ",
        ] {
            log.push_line(line.as_bytes(), Filter::default());
        }
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
}
