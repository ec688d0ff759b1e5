//! A document that is read as it passes: HTML, CSS or the head of a module, plain or compressed
//! (`gzip`, `deflate`), up to a bound.

use std::io::Write;
use std::sync::Arc;

use flate2::write::{GzDecoder, ZlibDecoder};
use tandem_http::ResponseHead;
use tandem_preload::{Kind, Need, Referrer, Scanner, is_script_type};

use super::page::referrer_policy;

/// Bytes of a page that are read, uncompressed.
const MAX_PAGE: usize = 8 << 20;

/// Bytes of a style sheet.
const MAX_STYLE: usize = 1 << 20;

/// Bytes of a script: imports and what is said before them.
const MAX_SCRIPT: usize = 128 << 10;

/// What an answer was asked for.
#[derive(Clone, Debug)]
pub(super) enum Use {
    /// It is the page itself, or what the browser asked for.
    Page,
    /// A document of its own, with its URL.
    Frame(Arc<str>),
    /// Part of the page, or of the frame with this URL.
    Part { kind: Kind, frame: Option<Arc<str>> },
}

impl Use {
    /// That of a need.
    pub(super) fn of(need: &Need) -> Self {
        match need.kind {
            Kind::Document => Self::Frame(need.url.as_str().into()),
            kind => Self::Part {
                kind,
                frame: need.frame.clone(),
            },
        }
    }

    /// What the need was for.
    pub(super) const fn kind(&self) -> Kind {
        match self {
            Self::Page | Self::Frame(_) => Kind::Document,
            Self::Part { kind, .. } => *kind,
        }
    }

    /// The frame that it belongs to, or is.
    pub(super) const fn frame(&self) -> Option<&Arc<str>> {
        match self {
            Self::Page => None,
            Self::Frame(frame) => Some(frame),
            Self::Part { frame, .. } => frame.as_ref(),
        }
    }

    /// Whether a browser reads such an answer as what it says it is.
    const fn takes(&self, sort: Sort) -> bool {
        match (self, sort) {
            (Self::Page, _) | (Self::Frame(_), Sort::Html) => true,
            (Self::Part { kind, .. }, Sort::Style) => matches!(kind, Kind::Style | Kind::Other),
            (Self::Part { kind, .. }, Sort::Script) => matches!(kind, Kind::Script | Kind::Other),
            _ => false,
        }
    }
}

/// What can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Html,
    Style,
    Script,
}

impl Sort {
    /// What a head says that its body is.
    pub(super) fn of(head: &ResponseHead) -> Option<Self> {
        let said = head.fields.get("content-type").unwrap_or_default();
        let said = said
            .split(|&byte| byte == b';')
            .next()
            .unwrap_or_default()
            .trim_ascii();
        let said = std::str::from_utf8(said).ok()?;
        let is = |name: &str| said.eq_ignore_ascii_case(name);
        Some(match () {
            () if is("text/html") || is("application/xhtml+xml") => Self::Html,
            () if is("text/css") => Self::Style,
            () if is_script_type(said) => Self::Script,
            () => return None,
        })
    }

    const fn limit(self) -> usize {
        match self {
            Self::Html => MAX_PAGE,
            Self::Style => MAX_STYLE,
            Self::Script => MAX_SCRIPT,
        }
    }
}

/// Reads a document's body and collects what it needs.
pub(super) enum Document {
    Plain(Box<Reading>),
    Gzip(Box<GzDecoder<Reading>>),
    Deflate(Box<ZlibDecoder<Reading>>),
}

/// The end of the line: bytes of the document itself.
pub(super) struct Reading {
    scanner: Scanner,
    purpose: Use,
    found: Vec<Need>,
    read: usize,
    limit: usize,
}

impl Write for Reading {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(self.limit - self.read)];
        if bytes.is_empty() || self.scanner.is_over() {
            return Err(std::io::Error::other("enough has been read"));
        }
        self.read += bytes.len();
        self.scanner.feed(bytes, &mut self.found);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Document {
    /// Whether an answer with this head, if it is whole, is something that can be read.
    pub(super) fn is_readable(head: &ResponseHead) -> bool {
        let coding = head.fields.get("content-encoding").unwrap_or_default();
        let codings: [&[u8]; 5] = [b"", b"identity", b"gzip", b"x-gzip", b"deflate"];
        Sort::of(head).is_some() && codings.iter().any(|of| coding.eq_ignore_ascii_case(of))
    }

    /// A reader for the answer with this head to a request for `url`, made for `purpose`, in the
    /// document at `page`, whose browser said what images it accepts; `None` if a browser would not
    /// read it. At most `limit` bytes of it are.
    pub(super) fn of(
        url: &str,
        head: &ResponseHead,
        purpose: Use,
        page: &str,
        accept: &[u8],
        limit: usize,
    ) -> Option<Self> {
        let sort = Sort::of(head).filter(|sort| head.status == 200 && purpose.takes(*sort))?;
        let frame = purpose.frame().cloned();
        let page = frame.as_deref().unwrap_or(page);
        // The page's own policy is not a frame's.
        let policy = referrer_policy(head).or_else(|| frame.as_ref().map(|_| Referrer::default()));
        let limit = limit.min(sort.limit());
        let scanner = match sort {
            Sort::Html => {
                let scanner = Scanner::html(url)?.referrer(policy.filter(|_| frame.is_some()));
                // Who names no formats takes what most take.
                if accept.windows(6).any(|part| part == b"image/") {
                    scanner.accept(&String::from_utf8_lossy(accept))
                } else {
                    scanner
                }
            }
            Sort::Style => Scanner::css(url)?.page(page).referrer(policy),
            Sort::Script => Scanner::script(url)?.page(page).referrer(policy),
        };
        let reading = Reading {
            scanner,
            purpose,
            found: Vec::new(),
            read: 0,
            limit,
        };
        let coding = head
            .fields
            .get("content-encoding")
            .unwrap_or_default()
            .to_ascii_lowercase();
        match coding.as_slice() {
            b"" | b"identity" => Some(Self::Plain(Box::new(reading))),
            b"gzip" | b"x-gzip" => Some(Self::Gzip(Box::new(GzDecoder::new(reading)))),
            b"deflate" => Some(Self::Deflate(Box::new(ZlibDecoder::new(reading)))),
            _ => None,
        }
    }

    /// Reads on. False once there is no use in more: enough was read, or it is not what it says it
    /// is.
    pub(super) fn read(&mut self, bytes: &[u8]) -> bool {
        let read = match self {
            Self::Plain(reading) => reading.write_all(bytes),
            // What the decoder holds back would come too late.
            Self::Gzip(decoder) => decoder.write_all(bytes).and_then(|()| decoder.flush()),
            Self::Deflate(decoder) => decoder.write_all(bytes).and_then(|()| decoder.flush()),
        };
        read.is_ok()
    }

    /// The document is over.
    pub(super) fn finish(&mut self) {
        let reading = self.reading();
        reading.scanner.finish(&mut reading.found);
    }

    /// Bytes that it may read in all.
    pub(super) fn limit(&mut self) -> usize {
        self.reading().limit
    }

    /// Bytes that it did not read.
    pub(super) fn unread(&mut self) -> usize {
        let reading = self.reading();
        reading.limit - reading.read
    }

    /// What was found since the last call.
    pub(super) fn take_needs(&mut self) -> Vec<Need> {
        let reading = self.reading();
        let mut needs = std::mem::take(&mut reading.found);
        if let Some(frame) = reading.purpose.frame() {
            needs
                .iter_mut()
                .for_each(|need| need.frame = Some(Arc::clone(frame)));
        }
        needs
    }

    /// What the page itself, if this is it, has said of what its requests tell.
    pub(super) fn policy(&mut self) -> Option<Referrer> {
        let reading = self.reading();
        reading
            .scanner
            .policy()
            .filter(|_| matches!(reading.purpose, Use::Page))
    }

    fn reading(&mut self) -> &mut Reading {
        match self {
            Self::Plain(reading) => reading,
            Self::Gzip(decoder) => decoder.get_mut(),
            Self::Deflate(decoder) => decoder.get_mut(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};

    const PAGE: &[u8] = b"<!doctype html><link rel=stylesheet href=/a.css><p>text<img src=b.png>";

    fn head(coding: &str) -> ResponseHead {
        let mut head = ResponseHead::new(200);
        head.fields.push("content-type", "text/html; charset=utf-8");
        head.fields.push("content-encoding", coding);
        head
    }

    fn read(coding: &str, body: &[u8], cut: usize) -> Vec<String> {
        let mut document = Document::of(
            "http://h/dir/page",
            &head(coding),
            Use::Page,
            "http://h/dir/page",
            b"",
            MAX_PAGE,
        )
        .unwrap();
        assert!(body.chunks(cut).all(|piece| document.read(piece)));
        document.finish();
        document
            .take_needs()
            .into_iter()
            .map(|need| need.url)
            .collect()
    }

    #[test]
    fn reads_each_coding_however_it_is_cut() {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(PAGE).unwrap();
        let mut deflate = ZlibEncoder::new(Vec::new(), Compression::default());
        deflate.write_all(PAGE).unwrap();
        for (coding, body) in [
            ("", PAGE.to_vec()),
            ("gzip", gzip.finish().unwrap()),
            ("deflate", deflate.finish().unwrap()),
        ] {
            for cut in [1, 7, 1000] {
                assert_eq!(
                    read(coding, &body, cut),
                    ["http://h/a.css", "http://h/dir/b.png"],
                    "{coding} {cut}"
                );
            }
        }
        assert!(
            Document::of(
                "http://h/",
                &head("br"),
                Use::Page,
                "http://h/",
                b"",
                MAX_PAGE
            )
            .is_none()
        );
    }

    #[test]
    fn reads_no_more_than_its_bound() {
        let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
        for _ in 0..64 {
            bomb.write_all(&vec![b' '; 1 << 20]).unwrap();
        }
        let bomb = bomb.finish().unwrap();
        let mut document = Document::of(
            "http://h/",
            &head("gzip"),
            Use::Page,
            "http://h/",
            b"",
            MAX_PAGE,
        )
        .unwrap();
        assert!(bomb.chunks(4096).any(|piece| !document.read(piece)));
        assert!(document.reading().read <= MAX_PAGE);
        let mut document = Document::of(
            "http://h/",
            &head("gzip"),
            Use::Page,
            "http://h/",
            b"",
            MAX_PAGE,
        )
        .unwrap();
        assert!(!document.read(b"<img src=x> is no gzip at all"));
    }
}
