//! Pushes end to end, over sockets and each session protocol. The decisions of the two halves have
//! their scenes in `tandem-push`, in virtual time.

mod bodies;
mod ends;
mod hotlinks;
mod keys;
mod named;
mod processes;
mod visits;

use std::sync::mpsc;

use crate::harness::{Pair, Scene};

/// An origin with a page that names `/a.css` and `/b.js`. It records the paths of its requests.
fn origin() -> (Scene, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let answer = if path == "/page" {
                "HTTP/1.1 200 OK\r\nLink: </a.css>; rel=preload; as=style\r\nX-Associated-Content: \"/b.js\":2\r\n\
                 Content-Length: 4\r\n\r\npage"
                    .to_owned()
            } else {
                format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}",
                    path.len()
                )
            };
            tell.send(path).unwrap();
            client.send(answer);
        }
    });
    (scene, told)
}

/// Returns the requests that the origin has received. After a response to a request that went to
/// the origin, that request is among them.
fn received(told: &mpsc::Receiver<String>) -> Vec<String> {
    told.try_iter().collect()
}

/// An origin with these responses: path, media type, further fields, body. It tells the path and
/// the cookie of each request.
fn site(
    answers: &'static [(&'static str, &'static str, &'static str, &'static str)],
) -> (Scene, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            tell.send(path.clone() + asked.field("cookie").unwrap_or_default())
                .unwrap();
            let answer = answers.iter().find(|(of, ..)| *of == path);
            let (_, kind, fields, body) =
                answer.copied().unwrap_or(("", "text/plain", "", "nothing"));
            // A page that shows a first visit: it sets the browser's first cookie.
            let cookie = match (kind, fields) {
                ("text/html", "") => "Set-Cookie: first=1; Path=/first\r\n",
                _ => "",
            };
            let status = match fields {
                moved if moved.starts_with("Location") => "302 Found",
                _ if answer.is_none() => "404 Not Found",
                _ => "200 OK",
            };
            client.send(format!(
                "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{cookie}{fields}Content-Length: {}\r\n\r\n{body}",
                body.len()
            ));
        }
    });
    (scene, told)
}

fn gateway_that_always_pushes(session: &str) -> Pair {
    Pair::with(session, |gateway| gateway.hold_out = Some(0.0), |_| {})
}

/// An origin with a page that names 60 images. It records the paths of its requests in order, and
/// answers an image after permission. The gateway may have two connections to it, so one push is
/// fetched at a time.
fn one_at_a_time(session: &str) -> (Pair, Scene, mpsc::Receiver<String>, mpsc::SyncSender<()>) {
    let (tell, told) = mpsc::channel();
    let (go, gone) = mpsc::sync_channel(0);
    let gone = std::sync::Mutex::new(gone);
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let page: String = (10..70).map(|i| format!("<img src=/{i}.png>")).collect();
            let (kind, body) = if path == "/page" {
                ("text/html", page)
            } else {
                ("image/png", path.clone())
            };
            let _ = tell.send(path.clone());
            if path != "/page" {
                gone.lock().unwrap().recv().unwrap();
            }
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ));
        }
    });
    let pair = Pair::with(
        session,
        |gateway| {
            gateway.hold_out = Some(0.0);
            gateway.max_connections_per_origin = Some(2);
        },
        |_| {},
    );
    (pair, origin, told, go)
}

/// An origin at two addresses, which are two sites. The page of one names resources of the other.
/// The origin tells the address and the path of each request.
fn two_sites() -> (Scene, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let scene = Scene::at("0.0.0.0", move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let (host, port) = asked.field("host").unwrap().rsplit_once(':').unwrap();
            let far = format!("http://127.0.0.2:{port}");
            let (kind, fields, body) = if path.starts_with("/page") {
                let page = format!(
                    "<link rel=stylesheet href={far}/a.css><img src=/own.png><script src={far}/b.js></script>\
                     <img src={far}/c.png><img src={far}/d.png>"
                );
                ("text/html", "", page)
            } else {
                ("text/plain", "Cache-Control: max-age=600\r\n", path.clone())
            };
            tell.send(format!("{host}{path}")).unwrap();
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{fields}Content-Length: {}\r\n\r\n{body}",
                body.len()
            ));
        }
    });
    (scene, told)
}
