//! The heads of a browser and of a server, for page models and logs, which have no heads.
//!
//! The request has the fields that Firefox 140 sends over plain HTTP, without cookies. The response
//! has the fields of a server with default settings: date, type, length, validators and caching.

use tandem_http::hpack::huffman;

use super::codec::HeaderList;
use super::input::Exchange;

/// A resource as a model or a log describes it.
pub(super) struct Resource<'a> {
    /// The method of the request.
    pub(super) method: &'a str,
    /// The host, with a port if there is one.
    pub(super) authority: &'a str,
    /// The path and query.
    pub(super) path: &'a str,
    /// The URL of the document.
    pub(super) referer: Option<&'a str>,
    /// The type of the content.
    pub(super) mime: &'a str,
    /// The status of the response.
    pub(super) status: u16,
    /// The bytes of the body.
    pub(super) body: u64,
}

/// Returns the value of `accept` for a resource of this type.
fn accept(mime: &str) -> &'static str {
    match mime.split('/').next() {
        _ if mime == "text/html" => {
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
        }
        _ if mime == "text/css" => "text/css,*/*;q=0.1",
        Some("image") => "image/avif,image/webp,image/png,image/svg+xml,image/*;q=0.8,*/*;q=0.5",
        Some("font") => "application/font-woff2;q=1.0,application/font-woff;q=0.9,*/*;q=0.8",
        _ => "*/*",
    }
}

/// Returns the type of a resource by the end of its path.
pub(super) fn mime(path: &str) -> &'static str {
    let path = path.split('?').next().unwrap_or(path);
    match path.rsplit_once('.').map(|(_, end)| end) {
        Some("css") => "text/css",
        Some("js") => "text/javascript",
        Some("png") => "image/png",
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("gif") => "image/gif",
        Some("svg") => "image/svg+xml",
        Some("woff" | "woff2" | "ttf") => "font/woff2",
        Some("json" | "xml") => "application/json",
        _ => "text/html",
    }
}

/// Returns the request for a resource and its response.
pub(super) fn exchange(resource: &Resource<'_>) -> Exchange {
    Exchange {
        request: request(resource),
        response: response(resource),
        body: resource.body,
        is_pushable: resource.method == "GET" && resource.status == 200,
    }
}

fn request(resource: &Resource<'_>) -> HeaderList {
    let agent = "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:140.0) Gecko/20100101 Firefox/140.0";
    let is_document = resource.mime == "text/html";
    let mut list = vec![
        (":method", resource.method),
        (":scheme", "http"),
        (":authority", resource.authority),
        (":path", resource.path),
        ("user-agent", agent),
        ("accept", accept(resource.mime)),
        ("accept-language", "en-US,en;q=0.5"),
        ("accept-encoding", "gzip, deflate"),
    ];
    list.extend(resource.referer.map(|referer| ("referer", referer)));
    if is_document {
        list.push(("upgrade-insecure-requests", "1"));
    }
    list.push(("priority", if is_document { "u=0, i" } else { "u=5, i" }));
    let owned = list.into_iter();
    owned
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn response(resource: &Resource<'_>) -> HeaderList {
    // Servers derive the validator from the file. Here it depends on path and size.
    let text = format!("{}{}", resource.path, resource.body);
    let mark = text
        .bytes()
        .fold(huffman::encoded_len(text.as_bytes()), |mark, byte| {
            mark.wrapping_mul(31).wrapping_add(usize::from(byte))
        });
    let second = mark % 60;
    let mut list: HeaderList = vec![
        (":status".into(), resource.status.to_string()),
        (
            "date".into(),
            format!("Mon, 05 Jan 2026 10:00:{second:02} GMT"),
        ),
        ("server".into(), "nginx".into()),
        ("content-type".into(), resource.mime.into()),
        ("content-length".into(), resource.body.to_string()),
    ];
    if resource.mime != "text/html" {
        list.push((
            "last-modified".into(),
            format!("Fri, 02 Jan 2026 08:30:{second:02} GMT"),
        ));
        list.push((
            "etag".into(),
            format!("\"{:x}-{:x}\"", mark & 0xffff_ffff, resource.body),
        ));
        list.push(("cache-control".into(), "public, max-age=604800".into()));
        list.push(("accept-ranges".into(), "bytes".into()));
    }
    list
}
