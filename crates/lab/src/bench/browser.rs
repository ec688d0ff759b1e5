//! A realistic exchange: a browser's request with its cookies, and a web server's response.

use std::fmt::Write as _;

use tandem_http::{RequestHead, Scheme};

/// Resources that requests take turns with; each has its own path and validators.
pub const RESOURCES: usize = 128;

/// The path of a resource.
pub fn path(resource: usize) -> String {
    format!("/static/img/teaser-{resource:03}.jpg")
}

/// A browser's requests for all resources in turn.
pub fn requests(authority: &str) -> Vec<RequestHead> {
    (0..RESOURCES)
        .map(|resource| request(authority, resource))
        .collect()
}

fn request(authority: &str, resource: usize) -> RequestHead {
    let mut head = RequestHead::get(Scheme::Http, authority, path(resource));
    let fields = [
        (
            "user-agent",
            "Mozilla/5.0 (Windows NT 10.0; rv:140.0) Gecko/20100101 Firefox/140.0",
        ),
        (
            "accept",
            "image/avif,image/webp,image/png,image/svg+xml,image/*;q=0.8,*/*;q=0.5",
        ),
        ("accept-language", "en-US,en;q=0.5"),
        ("accept-encoding", "gzip, deflate, br, zstd"),
        (
            "referer",
            "http://www.example.test/world/europe/2026/articles/an-ordinary-headline.html",
        ),
        (
            "cookie",
            "session=6f1d2a9c04e84b7f9b3c5d71e2a8f690; consent=necessary+statistics; theme=dark; seen=3",
        ),
        ("priority", "u=5, i"),
    ];
    fields
        .iter()
        .for_each(|(name, value)| head.fields.push(name, value));
    head
}

/// nginx's `add_header` lines for fields that servers send beside nginx's own (Server, Date,
/// Content-Type, Content-Length, Last-Modified, ETag, Accept-Ranges).
pub fn response_headers() -> String {
    let fields = [
        (
            "Cache-Control",
            "public, max-age=604800, stale-while-revalidate=86400",
        ),
        ("Vary", "Accept-Encoding, Accept"),
        ("X-Content-Type-Options", "nosniff"),
        ("Access-Control-Allow-Origin", "*"),
        ("Timing-Allow-Origin", "*"),
        ("X-Cache", "HIT"),
    ];
    fields
        .iter()
        .fold(String::new(), |mut lines, (name, value)| {
            let _ = writeln!(lines, "add_header {name} \"{value}\";");
            lines
        })
}
