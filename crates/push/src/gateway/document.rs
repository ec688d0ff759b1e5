//! The reader of documents on their way to the client: HTML, CSS or the imports of a module, plain
//! or compressed with `gzip` or `deflate`. It reads a bounded number of bytes.

use std::io::Write;
use std::sync::Arc;

use flate2::write::{GzDecoder, ZlibDecoder};
use tandem_http::ResponseHead;
use tandem_http::message::media_type_essence;
use tandem_preload::{HintElements, Kind, Need, Referrer, Scanner, is_script_type};

use crate::fetch_standard::{content_policies, permits_base, policy_nonce, referrer_policy};

/// The largest number of bytes of an HTML document that are read, uncompressed.
const MAX_PAGE: usize = 8 << 20;

/// The largest number of bytes of a style sheet that are read.
const MAX_STYLE: usize = 1 << 20;

/// The largest number of bytes of a script that are read. Imports are at the beginning of a script.
const MAX_SCRIPT: usize = 128 << 10;

/// The purpose for which a response was requested.
#[derive(Clone, Debug)]
pub(super) enum Purpose {
    /// The response is the page, or the browser itself requested it.
    Page,
    /// The response is a document in a frame, with this URL.
    Frame(Arc<str>),
    /// The response is a part of the page, or of the frame with this URL.
    Part { kind: Kind, frame: Option<Arc<str>> },
}

impl Purpose {
    /// Returns the purpose of a need.
    pub(super) fn of(need: &Need) -> Self {
        match need.kind {
            Kind::Document => Self::Frame(need.url.as_str().into()),
            kind => Self::Part {
                kind,
                frame: need.frame.clone(),
            },
        }
    }

    /// Returns the kind of the need.
    pub(super) const fn kind(&self) -> Kind {
        match self {
            Self::Page | Self::Frame(_) => Kind::Document,
            Self::Part { kind, .. } => *kind,
        }
    }

    /// Returns the frame that the response is, or belongs to.
    pub(super) const fn frame(&self) -> Option<&Arc<str>> {
        match self {
            Self::Page => None,
            Self::Frame(frame) => Some(frame),
            Self::Part { frame, .. } => frame.as_ref(),
        }
    }

    /// Returns whether a browser uses a document of this type for this purpose.
    const fn accepts(&self, document_type: DocumentType) -> bool {
        match (self, document_type) {
            (Self::Page, _) | (Self::Frame(_), DocumentType::Html) => true,
            (Self::Part { kind, .. }, DocumentType::Style) => {
                matches!(kind, Kind::Style | Kind::Other)
            }
            (Self::Part { kind, .. }, DocumentType::Script) => {
                matches!(kind, Kind::Script | Kind::Other)
            }
            _ => false,
        }
    }
}

/// The types of documents that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DocumentType {
    Html,
    Style,
    Script,
}

impl DocumentType {
    /// Returns the type of the body that `Content-Type` names.
    pub(super) fn of(head: &ResponseHead) -> Option<Self> {
        let essence = essence(head);
        Some(match () {
            () if is_html(essence) => Self::Html,
            () if essence.eq_ignore_ascii_case(b"text/css") => Self::Style,
            () if is_script_type(std::str::from_utf8(essence).ok()?) => Self::Script,
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

/// Returns the media type of a body without its parameters.
fn essence(head: &ResponseHead) -> &[u8] {
    media_type_essence(head.fields.get("content-type").unwrap_or_default())
}

fn is_html(essence: &[u8]) -> bool {
    essence.eq_ignore_ascii_case(b"text/html")
        || essence.eq_ignore_ascii_case(b"application/xhtml+xml")
}

/// A reader that collects the needs of one document.
pub(super) enum DocumentReader {
    Plain(Box<Scan>),
    Gzip(Box<GzDecoder<Scan>>),
    Deflate(Box<ZlibDecoder<Scan>>),
}

/// The last stage of a reader: it takes the bytes of the document itself.
pub(super) struct Scan {
    scanner: Scanner,
    purpose: Purpose,
    found: Vec<Need>,
    read: usize,
    limit: usize,
}

impl Write for Scan {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(self.limit - self.read)];
        if bytes.is_empty() || self.scanner.is_over() {
            return Err(std::io::Error::other("the bound is reached"));
        }
        self.read += bytes.len();
        self.scanner.feed(bytes, &mut self.found);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl DocumentReader {
    /// Returns whether a complete response with this head can be read.
    pub(super) fn is_readable(head: &ResponseHead) -> bool {
        let coding = head.fields.get("content-encoding").unwrap_or_default();
        let codings: [&[u8]; 5] = [b"", b"identity", b"gzip", b"x-gzip", b"deflate"];
        DocumentType::of(head).is_some() && codings.iter().any(|of| coding.eq_ignore_ascii_case(of))
    }

    /// Returns whether a response with this head is an HTML document.
    pub(super) fn is_html(head: &ResponseHead) -> bool {
        is_html(essence(head))
    }

    /// Returns whether a response with this head is a style sheet.
    pub(super) fn is_style(head: &ResponseHead) -> bool {
        DocumentType::of(head) == Some(DocumentType::Style)
    }

    /// Returns whether a response with this head is a script.
    pub(super) fn is_script(head: &ResponseHead) -> bool {
        DocumentType::of(head) == Some(DocumentType::Script)
    }

    /// Creates a reader for the response with this head to a request for `url`. The request was
    /// made for `purpose` in the document at `page`. Returns `None` if a browser would not use the
    /// response as a document. `accept` is the field of the page's request, which names the image
    /// formats of the browser. At most `limit` bytes are read.
    pub(super) fn of(
        url: &str,
        head: &ResponseHead,
        purpose: Purpose,
        page: &str,
        accept: &[u8],
        limit: usize,
    ) -> Option<Self> {
        let document_type = DocumentType::of(head)
            .filter(|document_type| head.status == 200 && purpose.accepts(*document_type))?;
        let frame = purpose.frame().cloned();
        let page = frame.as_deref().unwrap_or(page);
        // The policy of the page does not hold in a frame.
        let policy = referrer_policy(head).or_else(|| frame.as_ref().map(|_| Referrer::default()));
        let limit = limit.min(document_type.limit());
        let scanner = match document_type {
            DocumentType::Html => {
                let scanner = Scanner::html(url)?.referrer(policy.filter(|_| frame.is_some()));
                let scanner = scanner.nonce(policy_nonce(head));
                let scanner = scanner.base_rule(permits_base, content_policies(head));
                // If `Accept` names no image formats, the browser is assumed to support the current
                // ones.
                if accept.windows(6).any(|part| part == b"image/") {
                    scanner.accept(&String::from_utf8_lossy(accept))
                } else {
                    scanner
                }
            }
            DocumentType::Style => {
                // A style sheet does not inherit the policy of its document, and a module does.
                let policy = referrer_policy(head).unwrap_or_default();
                Scanner::css(url)?.page(page).referrer(Some(policy))
            }
            DocumentType::Script => Scanner::script(url)?.page(page).referrer(policy),
        };
        let scan = Scan {
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
            b"" | b"identity" => Some(Self::Plain(Box::new(scan))),
            b"gzip" | b"x-gzip" => Some(Self::Gzip(Box::new(GzDecoder::new(scan)))),
            b"deflate" => Some(Self::Deflate(Box::new(ZlibDecoder::new(scan)))),
            _ => None,
        }
    }

    /// Reads the next bytes of the body. Returns false once more bytes are of no use: the bound is
    /// reached, or the body is not in the coding that its head names.
    pub(super) fn read(&mut self, bytes: &[u8]) -> bool {
        let read = match self {
            Self::Plain(scan) => scan.write_all(bytes),
            // Bytes that the decoder holds back would come too late.
            Self::Gzip(decoder) => decoder.write_all(bytes).and_then(|()| decoder.flush()),
            Self::Deflate(decoder) => decoder.write_all(bytes).and_then(|()| decoder.flush()),
        };
        read.is_ok()
    }

    /// Reads the string literals of scripts as well, see [`Self::take_literals`].
    pub(super) fn read_literals(&mut self) {
        let scan = self.scan();
        if scan.purpose.frame().is_none() {
            scan.scanner.read_literals();
        }
    }

    /// Takes the literals of scripts that were found since the last call.
    pub(super) fn take_literals(&mut self) -> Vec<String> {
        self.scan().scanner.take_literals()
    }

    /// Returns the base URL that the page itself has set so far.
    pub(super) fn base(&mut self) -> Option<&str> {
        let scan = self.scan();
        matches!(scan.purpose, Purpose::Page).then(|| scan.scanner.base())
    }

    /// Handles the end of the document: the scanner finds its last needs.
    pub(super) fn finish(&mut self) {
        let scan = self.scan();
        scan.scanner.finish(&mut scan.found);
    }

    /// Returns the number of bytes that the reader may read.
    pub(super) fn limit(&mut self) -> usize {
        self.scan().limit
    }

    /// Returns the number of permitted bytes that are still unread.
    pub(super) fn unread(&mut self) -> usize {
        let scan = self.scan();
        scan.limit - scan.read
    }

    /// Takes the needs that were found since the last call.
    pub(super) fn take_needs(&mut self) -> Vec<Need> {
        let scan = self.scan();
        let mut needs = std::mem::take(&mut scan.found);
        if let Some(frame) = scan.purpose.frame() {
            needs
                .iter_mut()
                .for_each(|need| need.frame = Some(Arc::clone(frame)));
        }
        needs
    }

    /// Returns the referrer policy that the page itself has set so far.
    pub(super) fn policy(&mut self) -> Option<Referrer> {
        let scan = self.scan();
        scan.scanner
            .policy()
            .filter(|_| matches!(scan.purpose, Purpose::Page))
    }

    /// Takes the `Content-Security-Policy` texts of `meta` elements that were found since the last
    /// call.
    pub(super) fn take_content_policies(&mut self) -> Vec<String> {
        self.scan().scanner.take_content_policies()
    }

    /// Takes the kinds of elements for client hints that were found since the last call.
    pub(super) fn take_hint_elements(&mut self) -> HintElements {
        self.scan().scanner.take_hint_elements()
    }

    /// Returns the frame that the document is, or belongs to.
    pub(super) fn frame(&mut self) -> Option<Arc<str>> {
        self.scan().purpose.frame().cloned()
    }

    fn scan(&mut self) -> &mut Scan {
        match self {
            Self::Plain(scan) => scan,
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

    fn html_head(coding: &str) -> ResponseHead {
        let mut head = ResponseHead::new(200);
        head.fields.push("content-type", "text/html; charset=utf-8");
        head.fields.push("content-encoding", coding);
        head
    }

    fn read(coding: &str, body: &[u8], cut: usize) -> Vec<String> {
        let mut document = DocumentReader::of(
            "http://h/dir/page",
            &html_head(coding),
            Purpose::Page,
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
    fn reader_decodes_each_coding_in_any_pieces() {
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
            DocumentReader::of(
                "http://h/",
                &html_head("br"),
                Purpose::Page,
                "http://h/",
                b"",
                MAX_PAGE
            )
            .is_none()
        );
    }

    #[test]
    fn reader_stops_at_its_bound() {
        let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
        for _ in 0..64 {
            bomb.write_all(&vec![b' '; 1 << 20]).unwrap();
        }
        let bomb = bomb.finish().unwrap();
        let mut document = DocumentReader::of(
            "http://h/",
            &html_head("gzip"),
            Purpose::Page,
            "http://h/",
            b"",
            MAX_PAGE,
        )
        .unwrap();
        assert!(bomb.chunks(4096).any(|piece| !document.read(piece)));
        assert!(document.scan().read <= MAX_PAGE);
        let mut document = DocumentReader::of(
            "http://h/",
            &html_head("gzip"),
            Purpose::Page,
            "http://h/",
            b"",
            MAX_PAGE,
        )
        .unwrap();
        assert!(!document.read(b"<img src=x> is no gzip at all"));
    }

    fn reads(content_type: &str, purpose: &Purpose) -> bool {
        let mut head = ResponseHead::new(200);
        head.fields.push("content-type", content_type);
        let page = "http://h/page";
        DocumentReader::of("http://h/x", &head, purpose.clone(), page, b"", 1000).is_some()
    }

    #[test]
    fn reader_takes_types_that_fit_the_purpose() {
        let part = |kind| Purpose::Part { kind, frame: None };
        let frame = Purpose::Frame("http://h/x".into());
        for (content_type, style, script) in [
            ("text/html", false, false),
            ("application/xhtml+xml", false, false),
            ("text/css; charset=utf-8", true, false),
            ("TEXT/JavaScript", false, true),
        ] {
            assert!(reads(content_type, &Purpose::Page), "{content_type}");
            assert_eq!(reads(content_type, &part(Kind::Style)), style);
            assert_eq!(reads(content_type, &part(Kind::Script)), script);
            assert_eq!(reads(content_type, &part(Kind::Other)), style || script);
            assert_eq!(reads(content_type, &frame), !style && !script);
            assert!(!reads(content_type, &part(Kind::Image)), "{content_type}");
        }
        for other in ["", "text/plain", "image/png", "text/cssx"] {
            assert!(!reads(other, &Purpose::Page), "{other}");
        }
    }

    #[test]
    fn purpose_follows_the_need() {
        let mut need = Need {
            url: "http://h/f".to_owned(),
            kind: Kind::Style,
            urgency: 0,
            anonymous: false,
            by_cors: false,
            referrer: None,
            via: None,
            frame: Some("http://h/page".into()),
            has_nonce: false,
        };
        let part = Purpose::of(&need);
        assert_eq!(part.kind(), Kind::Style);
        assert_eq!(part.frame().map(|frame| &**frame), Some("http://h/page"));
        need.kind = Kind::Document;
        let frame = Purpose::of(&need);
        assert_eq!(frame.kind(), Kind::Document);
        assert_eq!(frame.frame().map(|frame| &**frame), Some("http://h/f"));
        assert!(Purpose::Page.frame().is_none());
        assert_eq!(Purpose::Page.kind(), Kind::Document);
    }

    #[test]
    fn readable_head_has_a_known_type_and_coding() {
        for coding in ["", "identity", "gzip", "X-Gzip", "deflate"] {
            assert!(DocumentReader::is_readable(&html_head(coding)), "{coding}");
        }
        assert!(!DocumentReader::is_readable(&html_head("br")));
        assert!(!DocumentReader::is_readable(&ResponseHead::new(200)));
    }

    #[test]
    fn reader_bounds_depend_on_the_type() {
        assert_eq!(DocumentType::Html.limit(), 8 << 20);
        assert_eq!(DocumentType::Style.limit(), 1 << 20);
        assert_eq!(DocumentType::Script.limit(), 128 << 10);
        let page = "http://h/";
        let mut head = html_head("");
        let mut reader = DocumentReader::of(page, &head, Purpose::Page, page, b"", 10).unwrap();
        assert_eq!((reader.limit(), reader.unread()), (10, 10));
        assert!(reader.read(b"<img>"));
        assert_eq!(reader.unread(), 5);
        assert!(!reader.read(b"<img src=a>"), "it reaches its bound");
        assert_eq!(reader.unread(), 0);
        head.status = 404;
        assert!(DocumentReader::of(page, &head, Purpose::Page, page, b"", 10).is_none());
    }

    #[test]
    fn reader_ends_with_the_imports_of_a_module() {
        let mut head = ResponseHead::new(200);
        head.fields.push("content-type", "text/javascript");
        let page = "http://h/";
        let mut reader = DocumentReader::of(page, &head, Purpose::Page, page, b"", 1000).unwrap();
        reader.read(b"import './a.js'; run();");
        assert!(!reader.read(b"import './b.js';"));
        reader.finish();
        assert_eq!(reader.take_needs().len(), 1);
    }

    #[test]
    fn reader_of_a_frame_names_it_in_needs() {
        let frame = Purpose::Frame("http://b/frame".into());
        let page = "http://a/page";
        let mut reader =
            DocumentReader::of("http://b/frame", &html_head(""), frame, page, b"", 1000).unwrap();
        assert!(reader.read(b"<meta name=referrer content=origin><img src=i.png>"));
        let needs = reader.take_needs();
        assert_eq!(needs[0].frame.as_deref(), Some("http://b/frame"));
        assert_eq!(reader.policy(), None, "its policy is not the page's");
        let mut reader =
            DocumentReader::of(page, &html_head(""), Purpose::Page, page, b"", 1000).unwrap();
        assert!(reader.read(b"<meta name=referrer content=origin><img src=i.png>"));
        assert_eq!(reader.policy(), Some(Referrer::Origin));
        assert_eq!(reader.take_needs()[0].frame, None);
    }

    #[test]
    fn reader_chooses_images_by_accept() {
        let page = "http://a/page";
        let picture = b"<picture><source type=image/avif srcset=a.avif><img src=a.png></picture>";
        for (accept, expected) in [
            ("image/png,*/*", "http://a/a.png"),
            ("image/avif,*/*", "http://a/a.avif"),
            ("text/html", "http://a/a.avif"),
        ] {
            let head = html_head("");
            let accept = accept.as_bytes();
            let mut reader =
                DocumentReader::of(page, &head, Purpose::Page, page, accept, 1000).unwrap();
            assert!(reader.read(picture));
            reader.finish();
            assert_eq!(reader.take_needs()[0].url, expected);
        }
    }
}
