//! Opens logs: plain, gzip or zstd, told by their first bytes, one bounded line at a time.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use tandem_replay::log::{AccessLog, Day, LeftOut, Record};

use super::{LogArgs, PredictError, Robots};

/// A longer line is no log line; its rest is passed over without being kept.
const MAX_LINE: usize = 64 * 1024;

/// The number of lines for which room is made at once. The system provides only the memory that is
/// used, and a table that grows is copied.
const USUAL_LINES: usize = 1 << 18;

/// A log in memory, in order.
pub(super) struct LoadedLog {
    pub(super) name: String,
    pub(super) log: AccessLog,
}

/// A log or one day of it.
pub(super) struct LogSample {
    pub(super) name: String,
    /// Index of its log.
    pub(super) log: usize,
    /// The day; none for the whole log.
    day: Option<Day>,
}

impl LogSample {
    pub(super) fn records<'a>(&'a self, logs: &'a [LoadedLog]) -> &'a [Record] {
        self.day
            .as_ref()
            .map_or(&logs[self.log].log.records, |day| &day.records)
    }

    pub(super) fn left_out(&self, logs: &[LoadedLog]) -> LeftOut {
        let log = &logs[self.log].log;
        self.day.as_ref().map_or(
            LeftOut {
                unparsable: log.unparsable,
                noise: log.noise,
            },
            |day| day.left_out,
        )
    }
}

/// Reads one log, which the output calls `name`. `finish` is called after its last line.
pub(super) fn load(
    path: &Path,
    name: String,
    args: &LogArgs,
    finish: fn(&mut AccessLog),
) -> Result<LoadedLog, PredictError> {
    let mut log = AccessLog::default();
    log.records.reserve(USUAL_LINES);
    let filter = args.filter();
    open(path)
        .and_then(|mut reader| for_each_line(&mut reader, |line| log.push_line(line, filter)))
        .map_err(|source| PredictError::Read {
            path: path.to_owned(),
            source,
        })?;
    if log.records.is_empty() && log.noise == 0 {
        return Err(PredictError::Empty {
            path: path.to_owned(),
        });
    }
    if args.robots == Robots::Listed {
        let listed = isbot::Bots::default();
        log.mark_robots(|agent| listed.is_bot(&String::from_utf8_lossy(agent)));
    }
    finish(&mut log);
    Ok(LoadedLog { name, log })
}

/// The samples of logs: each log, or each day of each.
pub(super) fn samples(logs: &[LoadedLog], daily: bool) -> Vec<LogSample> {
    let whole = |(at, loaded): (usize, &LoadedLog)| LogSample {
        name: loaded.name.clone(),
        log: at,
        day: None,
    };
    if !daily {
        return logs.iter().enumerate().map(whole).collect();
    }
    let mut samples = Vec::new();
    for (at, loaded) in logs.iter().enumerate() {
        for day in loaded.log.days() {
            let name = format!("{} {}", loaded.name, date(day.day));
            samples.push(LogSample {
                name,
                log: at,
                day: Some(day),
            });
        }
    }
    samples
}

/// Days since 1970 as year-month-day: counted in 400-year cycles that begin in March.
fn date(days: i64) -> String {
    let shifted = days + 719_468;
    let cycle = shifted.div_euclid(146_097);
    let in_cycle = shifted.rem_euclid(146_097);
    let year_of_cycle = (in_cycle - in_cycle / 1460 + in_cycle / 36_524 - in_cycle / 146_096) / 365;
    let in_year = in_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month_from_march = (5 * in_year + 2) / 153;
    let day = in_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = cycle * 400 + year_of_cycle + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Returns the names of logs: those of the files without the endings that only say how they are
/// stored. Logs whose names are equal have as many directories before them as tell them apart, and
/// a log that is given twice has a number.
pub(super) fn names(paths: &[PathBuf]) -> Vec<String> {
    let deepest = paths.iter().map(|path| path.iter().count()).max();
    let mut names: Vec<String> = paths.iter().map(|path| name(path, 1)).collect();
    for parts in 2..=deepest.unwrap_or(0) {
        let equal = equals(&names);
        for at in equal {
            names[at] = name(&paths[at], parts);
        }
    }
    let equal = equals(&names);
    for (number, at) in equal.into_iter().enumerate() {
        names[at] = format!("{} {}", names[at], number + 1);
    }
    names
}

/// The indices of the names that occur more than once.
fn equals(names: &[String]) -> Vec<usize> {
    let count = |name| names.iter().filter(|other| *other == name).count();
    (0..names.len())
        .filter(|&at| count(&names[at]) > 1)
        .collect()
}

/// The last `parts` parts of a path without the endings of its file.
fn name(path: &Path, parts: usize) -> String {
    let path: Vec<_> = path.iter().collect();
    let last: PathBuf = path[path.len().saturating_sub(parts)..].iter().collect();
    let name = last.to_string_lossy();
    [".gz", ".zst", ".log"]
        .iter()
        .fold(&*name, |name, ending| {
            name.strip_suffix(ending).unwrap_or(name)
        })
        .to_owned()
}

/// Opens a log for reading, decompressing it if its first bytes say so.
pub(crate) fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let stdin = path.as_os_str() == "-";
    let file: Source = if stdin {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path)?)
    };
    decompressed(BufReader::with_capacity(1 << 16, file))
}

type Source = Box<dyn Read + Send>;

fn decompressed(mut file: BufReader<Source>) -> io::Result<Box<dyn BufRead>> {
    const GZIP: &[u8] = &[0x1f, 0x8b];
    const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
    let start = file.fill_buf()?;
    if start.starts_with(GZIP) {
        return Ok(Box::new(Ahead::of(MultiGzDecoder::new(file), "gzip")?));
    }
    if start.starts_with(ZSTD) {
        return Ok(Box::new(Ahead::of(Zstd::Between(file), "zstd")?));
    }
    Ok(Box::new(file))
}

/// Compressed data that ends early or is wrong.
#[derive(Debug, thiserror::Error)]
#[error(
    "the {tool} data is cut off or damaged ({cause}); to use the lines before the damage, write \
     the output of `{tool} -dc` to a file and replay that file"
)]
struct Damage {
    tool: &'static str,
    cause: io::Error,
}

/// Returns the error that explains a failed decompression. Errors of the system pass unchanged.
fn damage(cause: io::Error, tool: &'static str) -> io::Error {
    if cause.raw_os_error().is_some() {
        return cause;
    }
    io::Error::new(cause.kind(), Damage { tool, cause })
}

/// A reader that decompresses in a separate thread while earlier bytes are parsed. The buffers go
/// back to that thread.
struct Ahead {
    pieces: Receiver<io::Result<Vec<u8>>>,
    used: SyncSender<Vec<u8>>,
    piece: Vec<u8>,
    at: usize,
    ended: bool,
}

impl Ahead {
    /// Pieces that may wait.
    const WAITING: usize = 4;
    const PIECE: usize = 1 << 17;

    /// Begins to decompress `source`, which the program `tool` has compressed.
    fn of(source: impl Read + Send + 'static, tool: &'static str) -> io::Result<Self> {
        let (sender, pieces) = sync_channel(Self::WAITING);
        let (used, free) = sync_channel(Self::WAITING);
        thread::Builder::new()
            .name("decompress".into())
            .spawn(move || Self::read(source, tool, &sender, &free))?;
        Ok(Self {
            pieces,
            used,
            piece: Vec::new(),
            at: 0,
            ended: false,
        })
    }

    /// Sends the bytes of the source; an empty piece is its end.
    fn read(
        mut source: impl Read,
        tool: &'static str,
        pieces: &SyncSender<io::Result<Vec<u8>>>,
        free: &Receiver<Vec<u8>>,
    ) {
        loop {
            let new = |_| Vec::with_capacity(Self::PIECE);
            let mut piece = free.try_recv().unwrap_or_else(new);
            piece.clear();
            let read = source
                .by_ref()
                .take(Self::PIECE as u64)
                .read_to_end(&mut piece)
                .map_err(|error| damage(error, tool));
            let last = !matches!(read, Ok(1..));
            // The bytes that were read before an error may contain whole lines.
            let sent = match read {
                Err(error) if piece.is_empty() => pieces.send(Err(error)),
                Err(error) => pieces
                    .send(Ok(piece))
                    .and_then(|()| pieces.send(Err(error))),
                Ok(_) => pieces.send(Ok(piece)),
            };
            if last || sent.is_err() {
                return;
            }
        }
    }
}

impl BufRead for Ahead {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.piece.len() && !self.ended {
            // A thread that is gone without saying that this is the end has failed.
            let next = self
                .pieces
                .recv()
                .map_err(|_| io::Error::other("decompression failed"))??;
            let used = std::mem::replace(&mut self.piece, next);
            if !used.is_empty() {
                // The other thread has ended, or has enough buffers.
                let _ = self.used.try_send(used);
            }
            self.at = 0;
            self.ended = self.piece.is_empty();
        }
        Ok(&self.piece[self.at..])
    }

    fn consume(&mut self, read: usize) {
        self.at = (self.at + read).min(self.piece.len());
    }
}

impl Read for Ahead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

/// Zstd frames, one after another.
enum Zstd<R: BufRead> {
    Between(R),
    Inside(Box<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>),
    Failed,
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match std::mem::replace(self, Self::Failed) {
                Self::Between(mut source) => {
                    if source.fill_buf()?.is_empty() {
                        *self = Self::Between(source);
                        return Ok(0);
                    }
                    let decoder = StreamingDecoder::new(source).map_err(io::Error::other)?;
                    *self = Self::Inside(Box::new(decoder));
                }
                Self::Inside(mut decoder) => match decoder.read(buffer)? {
                    0 if !buffer.is_empty() => *self = Self::Between(decoder.into_inner()),
                    read => {
                        *self = Self::Inside(decoder);
                        return Ok(read);
                    }
                },
                Self::Failed => return Err(io::Error::other("the stream is broken")),
            }
        }
    }
}

/// Calls `line` for each line without its end. Of a line that is too long only the beginning is
/// handed over.
///
/// Zero bytes before a line are passed over, however many: a server that goes on writing where it
/// was leaves a gap when its log is cut to nothing, as logrotate's `copytruncate` does.
pub(crate) fn for_each_line(
    reader: &mut dyn BufRead,
    mut line: impl FnMut(&[u8]),
) -> io::Result<()> {
    let mut partial = Vec::new();
    loop {
        let buffer = match reader.fill_buf() {
            Ok(buffer) => buffer,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if buffer.is_empty() {
            if !partial.is_empty() {
                line(&partial);
            }
            return Ok(());
        }
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', buffer) {
            if partial.is_empty() {
                line(unpadded(&buffer[start..end]));
            } else {
                keep(&mut partial, &buffer[start..end]);
                line(&partial);
                partial.clear();
            }
            start = end + 1;
        }
        keep(&mut partial, &buffer[start..]);
        let used = buffer.len();
        reader.consume(used);
    }
}

fn unpadded(bytes: &[u8]) -> &[u8] {
    match bytes.first() {
        Some(0) => {
            &bytes[bytes
                .iter()
                .position(|&byte| byte != 0)
                .unwrap_or(bytes.len())..]
        }
        _ => bytes,
    }
}

fn keep(partial: &mut Vec<u8>, bytes: &[u8]) {
    let bytes = if partial.is_empty() {
        unpadded(bytes)
    } else {
        bytes
    };
    let room = MAX_LINE.saturating_sub(partial.len());
    partial.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn lines(bytes: Vec<u8>) -> Vec<Vec<u8>> {
        let file: Source = Box::new(io::Cursor::new(bytes));
        let mut reader = decompressed(BufReader::with_capacity(7, file)).expect("readable");
        let mut lines = Vec::new();
        for_each_line(&mut reader, |line| lines.push(line.to_vec())).expect("readable to the end");
        lines
    }

    #[test]
    fn the_same_lines_however_stored() {
        let text = b"first\n\na line longer than the buffer\nno end";
        let want: Vec<&[u8]> = vec![b"first", b"", b"a line longer than the buffer", b"no end"];
        assert_eq!(lines(text.to_vec()), want);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&text[..9]).expect("in memory");
        let mut bytes = gzip.finish().expect("in memory");
        let mut member = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        member.write_all(&text[9..]).expect("in memory");
        bytes.extend(member.finish().expect("in memory"));
        assert_eq!(lines(bytes), want);
        let frame = |part: &[u8]| {
            ruzstd::encoding::compress_to_vec(part, ruzstd::encoding::CompressionLevel::Fastest)
        };
        assert_eq!(lines([frame(&text[..9]), frame(&text[9..])].concat()), want);
    }

    #[test]
    fn truncated_input_is_an_error_after_its_lines() {
        let text: Vec<u8> = (0..200_000u32)
            .flat_map(|number| format!("line {number}\n").into_bytes())
            .collect();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&text).expect("in memory");
        let bytes = gzip.finish().expect("in memory");
        let file: Source = Box::new(io::Cursor::new(bytes[..bytes.len() / 2].to_vec()));
        let mut reader = decompressed(BufReader::new(file)).expect("a gzip header");
        let mut read = 0;
        let error = for_each_line(&mut reader, |_| read += 1).expect_err("half of a file");
        assert!((50_000..200_000).contains(&read), "{read}");
        let told = error.to_string();
        assert!(
            told.contains("gzip data is cut off") && told.contains("`gzip -dc`"),
            "{told}"
        );
    }

    #[test]
    fn load_refuses_a_cut_off_file_by_its_name() {
        let text = "a line\n".repeat(100);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text.as_bytes()).expect("in memory");
        let bytes = gzip.finish().expect("in memory");
        let name = format!("tandem-cut-off-{}.log.gz", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, &bytes[..bytes.len() - 4]).expect("a file in the directory for them");
        let args = LogArgs {
            logs: vec![path.clone()],
            daily: false,
            robots: Robots::Words,
            drop_noise: false,
        };
        let loaded = load(&path, "log".into(), &args, AccessLog::finish).map(|_| ());
        std::fs::remove_file(&path).expect("the file of this test");
        let told = loaded.expect_err("a checksum is missing").to_string();
        let path = path.display().to_string();
        assert!(
            told.contains(&path) && told.contains("`gzip -dc`"),
            "{told}"
        );
    }

    #[test]
    fn an_endless_line_is_bounded() {
        let mut bytes = vec![b'x'; 3 * MAX_LINE];
        bytes.extend(b"\nnext");
        let lines = lines(bytes);
        assert_eq!(
            (lines.len(), lines[0].len(), &lines[1][..]),
            (2, MAX_LINE, &b"next"[..])
        );
    }

    #[test]
    fn a_day_has_the_lines_that_were_left_out_on_it() {
        let mut log = AccessLog::default();
        for line in [
            "?",
            r#"h - - [09/Jul/1995:00:00:07 -0400] "GET / HTTP/1.0" 200 1"#,
            "?",
        ] {
            log.push_line(line.as_bytes(), tandem_replay::log::Filter::default());
        }
        log.finish();
        let logs = [LoadedLog {
            name: "log".into(),
            log,
        }];
        for (daily, name) in [(true, "log 1995-07-09"), (false, "log")] {
            let samples = samples(&logs, daily);
            assert_eq!((samples.len(), &*samples[0].name), (1, name));
            assert_eq!(
                (
                    samples[0].records(&logs).len(),
                    samples[0].left_out(&logs).unparsable
                ),
                (1, 2),
                "{name}"
            );
        }
    }

    #[test]
    fn zeros_before_a_line_are_no_part_of_it() {
        let mut bytes = b"first\n".to_vec();
        bytes.extend(vec![0; 2 * MAX_LINE]);
        bytes.extend(b"second\n\0\0\0\0third\0\n");
        let want: Vec<&[u8]> = vec![b"first", b"second", b"third\0"];
        assert_eq!(lines(bytes), want);
    }

    #[test]
    fn dates() {
        for (days, text) in [
            (0, "1970-01-01"),
            (9320, "1995-07-09"),
            (11016, "2000-02-29"),
            (-1, "1969-12-31"),
        ] {
            assert_eq!(date(days), text);
        }
    }
}
