//! Origins that answer by the page that caused a request, as its fields tell it.

use std::sync::mpsc;

use super::{gateway_that_always_pushes, received};
use crate::harness::{Scene, request};
use crate::pairs::SESSIONS;

/// An origin that answers requests for `/hot` with the value of this field, and redirects `/old`
/// there. The page names scripts at both. The origin tells the paths of its requests.
fn origin_that_reads(field: &'static str) -> (Scene, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let value = asked.field(field).unwrap_or("hotlink");
            let (status, kind, fields, body) = match path.split('?').next().unwrap_or_default() {
                "/old" => ("302 Found", "text/plain", "Location: /hot?2\r\n", ""),
                "/hot" => ("200 OK", "text/plain", "", value),
                _ => (
                    "200 OK",
                    "text/html",
                    "Set-Cookie: first=1; Path=/first\r\n",
                    "<script src=/hot?1></script><script src=/old?page></script>",
                ),
            };
            tell.send(path).unwrap();
            client.send(format!(
                "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{fields}Content-Length: {}\r\n\r\n\
                 {body}",
                body.len()
            ));
        }
    });
    (scene, told)
}

#[test]
fn redirect_targets_have_the_browsers_referrer() {
    for session in SESSIONS {
        for accept in ["text/html", "*/*"] {
            let (origin, told) = origin_that_reads("referer");
            let pair = gateway_that_always_pushes(session);
            let mut client = pair.connect();
            let page = origin.url("/suite");
            let fields = format!("Accept: {accept}\r\nReferer: {page}\r\n");
            for path in ["/old", "/hot?2"] {
                client.send(request("GET", &origin.url(path), &fields));
                let answer = client.answer("GET");
                let expected = if path == "/old" { "" } else { &page };
                assert_eq!(answer.body, expected.as_bytes(), "{session} {accept}");
            }
            assert_eq!(received(&told), ["/old", "/hot?2"], "{session} {accept}");
        }
    }
}

/// Browsers send metadata to trustworthy origins, such as one at a loopback address. Some origins
/// refuse requests without them.
#[test]
fn pushes_have_the_metadata_of_the_browser() {
    for session in SESSIONS {
        let (origin, told) = origin_that_reads("sec-fetch-mode");
        let pair = gateway_that_always_pushes(session);
        let mut client = pair.connect();
        let metadata = |destination: &str, mode: &str, site: &str| {
            format!(
                "Sec-Fetch-Dest: {destination}\r\nSec-Fetch-Mode: {mode}\r\n\
                 Sec-Fetch-Site: {site}\r\n"
            )
        };
        let page = metadata("document", "navigate", "none") + "Accept: text/html\r\n";
        client.send(request("GET", &origin.url("/page"), &page));
        assert_eq!(client.answer("GET").status, 200);
        let script = metadata("script", "no-cors", "same-origin");
        let script = format!("{script}Referer: {}\r\n", origin.url("/page"));
        for path in ["/hot?1", "/old?page", "/hot?2"] {
            client.send(request("GET", &origin.url(path), &script));
            let answer = client.answer("GET");
            let expected = if path == "/old?page" { "" } else { "no-cors" };
            assert_eq!(answer.body, expected.as_bytes(), "{session} {path}");
        }
        let mut asked = received(&told);
        asked.sort_unstable();
        let hot = asked.iter().filter(|path| path.starts_with("/hot"));
        assert_eq!(hot.count(), 2, "{session}: {asked:?}");
        // A navigation to a script is no request of its page.
        client.send(request("GET", &origin.url("/page?2"), &page));
        client.answer("GET");
        client.send(request("GET", &origin.url("/hot?1"), &page));
        assert_eq!(client.answer("GET").body, b"navigate", "{session}");
    }
}
