//! Origins that answer by the page that caused a request, as its fields tell it.

use std::sync::mpsc;

use super::{gateway_that_always_pushes, received};
use crate::harness::{Scene, request};
use crate::pairs::SESSIONS;

/// An origin that gives `/hot` to requests with this field only, and redirects `/old` there. The
/// page names scripts at both. The origin tells the paths of its requests.
fn origin_that_reads(field: &'static str) -> (Scene, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let (status, kind, fields, body) = match path.split('?').next().unwrap_or_default() {
                "/old" => ("302 Found", "text/plain", "Location: /hot?2\r\n", ""),
                "/hot" if asked.field(field).is_some() => ("200 OK", "text/plain", "", "good"),
                "/hot" => ("200 OK", "text/plain", "", "hotlink"),
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
fn targets_of_redirects_have_the_referrer_of_the_browser() {
    for session in SESSIONS {
        for accept in ["text/html", "*/*"] {
            let (origin, told) = origin_that_reads("referer");
            let pair = gateway_that_always_pushes(session);
            let mut client = pair.connect();
            let fields = format!("Accept: {accept}\r\nReferer: {}\r\n", origin.url("/suite"));
            for path in ["/old", "/hot?2"] {
                client.send(request("GET", &origin.url(path), &fields));
                let answer = client.answer("GET");
                let expected = if path == "/old" { "" } else { "good" };
                assert_eq!(answer.body, expected.as_bytes(), "{session} {accept}");
            }
            assert_eq!(received(&told), ["/old", "/hot?2"], "{session} {accept}");
        }
    }
}
