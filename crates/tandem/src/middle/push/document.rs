//! A document that is read as it passes: HTML or CSS, plain or compressed (`gzip`, `deflate`), up to a bound.

use std::io::Write;

use flate2::write::{GzDecoder, ZlibDecoder};
use tandem_http::ResponseHead;
use tandem_predict::scan::{Need, Scanner};

/// Bytes of a page that are read, uncompressed.
const MAX_PAGE: usize = 8 << 20;

/// Bytes of a style sheet.
const MAX_STYLE: usize = 1 << 20;

/// Reads a document's body and collects what it needs.
pub(super) enum Document {
    Plain(Box<Reading>),
    Gzip(Box<GzDecoder<Reading>>),
    Deflate(Box<ZlibDecoder<Reading>>),
}

/// The end of the line: bytes of the document itself.
pub(super) struct Reading {
    scanner: Scanner,
    found: Vec<Need>,
    read: usize,
    limit: usize,
}

impl Write for Reading {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(self.limit - self.read)];
        if bytes.is_empty() {
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
    /// A reader for the answer with this head to a request for `url`, for `page`, whose browser said what images it
    /// accepts; `None` if it is nothing that can be read. At most `limit` bytes of it are.
    pub(super) fn of(url: &str, head: &ResponseHead, page: &str, accept: &[u8], limit: usize) -> Option<Self> {
        let media_type = head.fields.get("content-type").unwrap_or_default();
        let media_type = media_type.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
        let is = |name: &str| media_type.eq_ignore_ascii_case(name.as_bytes());
        let limit = limit.min(if is("text/css") { MAX_STYLE } else { MAX_PAGE });
        let scanner = if is("text/html") || is("application/xhtml+xml") {
            let scanner = Scanner::html(url)?;
            // Who names no formats takes what most take.
            if accept.windows(6).any(|part| part == b"image/") {
                scanner.accept(&String::from_utf8_lossy(accept))
            } else {
                scanner
            }
        } else if is("text/css") {
            Scanner::css(url)?.page(page)
        } else {
            return None;
        };
        let reading = Reading { scanner, found: Vec::new(), read: 0, limit };
        let coding = head.fields.get("content-encoding").unwrap_or_default().to_ascii_lowercase();
        match coding.as_slice() {
            b"" | b"identity" => Some(Self::Plain(Box::new(reading))),
            b"gzip" | b"x-gzip" => Some(Self::Gzip(Box::new(GzDecoder::new(reading)))),
            b"deflate" => Some(Self::Deflate(Box::new(ZlibDecoder::new(reading)))),
            _ => None,
        }
    }

    /// Reads on. False once there is no use in more: enough was read, or it is not what it says it is.
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
        std::mem::take(&mut self.reading().found)
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
        let mut document =
            Document::of("http://h/dir/page", &head(coding), "http://h/dir/page", b"", MAX_PAGE).unwrap();
        assert!(body.chunks(cut).all(|piece| document.read(piece)));
        document.finish();
        document.take_needs().into_iter().map(|need| need.url).collect()
    }

    #[test]
    fn reads_each_coding_however_it_is_cut() {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(PAGE).unwrap();
        let mut deflate = ZlibEncoder::new(Vec::new(), Compression::default());
        deflate.write_all(PAGE).unwrap();
        for (coding, body) in
            [("", PAGE.to_vec()), ("gzip", gzip.finish().unwrap()), ("deflate", deflate.finish().unwrap())]
        {
            for cut in [1, 7, 1000] {
                assert_eq!(read(coding, &body, cut), ["http://h/a.css", "http://h/dir/b.png"], "{coding} {cut}");
            }
        }
        assert!(Document::of("http://h/", &head("br"), "http://h/", b"", MAX_PAGE).is_none());
    }

    #[test]
    fn reads_no_more_than_its_bound() {
        let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
        for _ in 0..64 {
            bomb.write_all(&vec![b' '; 1 << 20]).unwrap();
        }
        let bomb = bomb.finish().unwrap();
        let mut document = Document::of("http://h/", &head("gzip"), "http://h/", b"", MAX_PAGE).unwrap();
        assert!(bomb.chunks(4096).any(|piece| !document.read(piece)));
        assert!(document.reading().read <= MAX_PAGE);
        let mut document = Document::of("http://h/", &head("gzip"), "http://h/", b"", MAX_PAGE).unwrap();
        assert!(!document.read(b"<img src=x> is no gzip at all"));
    }
}
