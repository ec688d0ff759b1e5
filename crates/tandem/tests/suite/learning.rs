//! What many ask for is pushed to others; what one asks for is nobody else's.

use std::sync::mpsc;
use std::time::Duration;

use crate::harness::{Client, Scene, block_on, client_options, gateway_options, request, start_client, start_gateway};
use tandem::runtime::Running;

/// An origin with a page that does not say what it needs; tells the paths that it is asked for.
fn origin() -> (Scene, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let kind = if path.ends_with("page") { "text/html" } else { "text/javascript" };
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nCache-Control: max-age=60\r\nContent-Length: {}\r\n\r\n{path}",
                path.len()
            ));
            tell.send(path).unwrap();
        }
    });
    (scene, told)
}

/// A gateway that stays while clients come and go.
struct Gateway {
    session: &'static str,
    address: std::net::SocketAddr,
    running: Option<Running>,
}

impl Gateway {
    fn start(session: &'static str, hold_out: f64) -> Self {
        let mut options = gateway_options();
        options.listen = vec![crate::harness::endpoint(&format!("{session}+tcp://127.0.0.1:0"))];
        options.hold_out = Some(hold_out);
        let (running, address) = start_gateway(options);
        Self { session, address, running: Some(running) }
    }

    /// A client of its own asks for `paths`; `asked_when` looks while it is still there.
    fn visit<T>(&self, origin: &Scene, paths: &[&str], look: impl FnOnce() -> T) -> T {
        let (running, http, _) = start_client(client_options(&format!("{}+tcp://{}", self.session, self.address)));
        let mut client = Client::to(http);
        let page = origin.url("/page");
        for path in paths {
            let referer = if *path == "/page" { String::new() } else { format!("Referer: {page}\r\n") };
            client.send(request("GET", &origin.url(path), &format!("User-Agent: Mozilla/5.0\r\n{referer}")));
            assert_eq!(client.answer("GET").body, path.as_bytes());
        }
        let seen = look();
        block_on(running.drain(Duration::ZERO));
        seen
    }

    /// Sessions teach when they end; before that their clients report what they used.
    fn learn(&self, origin: &Scene, visits: &[&[&str]]) {
        for paths in visits {
            self.visit(origin, paths, || std::thread::sleep(Duration::from_millis(500)));
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            block_on(running.drain(Duration::ZERO));
        }
    }
}

/// What the origin is asked for until it is left alone.
fn asked(told: &mpsc::Receiver<String>) -> Vec<String> {
    let mut asked: Vec<_> = std::iter::from_fn(|| told.recv_timeout(Duration::from_millis(500)).ok()).collect();
    asked.sort();
    asked
}

const COMMON: &[&str] = &["/page", "/a.js", "/b.js"];

#[test]
fn what_several_users_needed_is_pushed_to_the_next() {
    for session in ["h2", "spdy3.1"] {
        let (origin, told) = origin();
        let gateway = Gateway::start(session, 0.0);
        gateway.learn(&origin, &[COMMON; 6]);
        asked(&told);
        let pushed = gateway.visit(&origin, &["/page"], || asked(&told));
        assert_eq!(pushed, ["/a.js", "/b.js", "/page"], "{session}");
        let asked_for = gateway.visit(&origin, COMMON, || asked(&told));
        assert_eq!(asked_for, ["/a.js", "/b.js", "/page"], "{session}: each once, pushed or not");
    }
}

#[test]
fn a_visitor_learns_nothing_of_what_one_user_did() {
    let (origin, told) = origin();
    let gateway = Gateway::start("h2", 0.0);
    let private: &[&str] = &["/page", "/a.js", "/b.js", "/private-of-one.js"];
    gateway.learn(&origin, &[COMMON, private, COMMON, COMMON, COMMON, COMMON]);
    asked(&told);
    for _ in 0..3 {
        let seen = gateway.visit(&origin, &["/page"], || asked(&told));
        assert_eq!(seen, ["/a.js", "/b.js", "/page"]);
    }
    // The adversary guesses, and is one user himself.
    gateway.visit(&origin, private, || ());
    asked(&told);
    let seen = gateway.visit(&origin, &["/page"], || asked(&told));
    assert_eq!(seen, ["/a.js", "/b.js", "/page"], "two are not several");
}

#[test]
fn pages_that_are_held_out_get_nothing() {
    let (origin, told) = origin();
    let gateway = Gateway::start("h2", 100.0);
    gateway.learn(&origin, &[COMMON; 6]);
    asked(&told);
    assert_eq!(gateway.visit(&origin, &["/page"], || asked(&told)), ["/page"]);
}

#[test]
fn what_was_learned_is_kept_in_a_file() {
    let folder = std::env::temp_dir().join(format!("tandem-state-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let state = folder.join("state");
    let learned = || tandem::learned::Learned::new(tandem_predict::AutoConfig::default(), Some(state.clone())).unwrap();
    let all = ["http://h/page.html", "http://h/a.js"];
    let teacher = learned();
    let see = |learned: &tandem::learned::Learned, session: u64| {
        all.map(|url| {
            let exchange = tandem_predict::Exchange {
                session,
                user: session,
                url,
                get: true,
                status: 200,
                size: 1000,
                referer: (url != all[0]).then_some(all[0]),
                ..tandem_predict::Exchange::default()
            };
            learned.sending(&exchange).len()
        })
    };
    for session in 1..9 {
        see(&teacher, session);
        teacher.session_closed(session);
    }
    teacher.save().unwrap();
    assert_eq!(see(&learned(), 100), [1, 0], "the script is offered with the page");
    std::fs::remove_dir_all(folder).unwrap();
}
