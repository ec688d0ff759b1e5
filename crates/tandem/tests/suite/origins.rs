//! Tests of the limits on connections from the gateway to origins: requests over a limit wait in
//! turn, and time out with an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use tandem::config::units::Span;

use crate::harness::{
    Client, Gate, PATIENCE, Pair, Scene, block_on, client_options, request, start_client,
};

#[test]
fn slow_origin_serves_all_over_few_connections() {
    let (busy, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (Arc::clone(&busy), Arc::clone(&most));
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            counts.1.fetch_max(
                counts.0.fetch_add(1, Ordering::SeqCst) + 1,
                Ordering::SeqCst,
            );
            std::thread::sleep(Duration::from_millis(15));
            counts.0.fetch_sub(1, Ordering::SeqCst);
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}",
                path.len()
            ));
        }
    });
    for session in ["h2", "h3", "spdy3.1"] {
        let pair = Pair::with(
            session,
            |gateway| gateway.max_connections_per_origin = Some(4),
            |_| {},
        );
        most.store(0, Ordering::SeqCst);
        let mut clients: Vec<_> = (0..60).map(|_| pair.connect()).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            client.send(request("GET", &origin.url(&format!("/{number}")), ""));
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let answer = client.answer("GET");
            assert_eq!(
                (answer.status, answer.body),
                (200, format!("/{number}").into_bytes()),
                "{session}"
            );
        }
        assert_eq!(
            most.load(Ordering::SeqCst),
            4,
            "{session}: what is allowed is used, and no more"
        );
    }
}

#[test]
fn origin_connections_of_a_session_are_limited() {
    let gate = Arc::new(Gate::default());
    let held = Arc::clone(&gate);
    let slow = Scene::new(move |_, mut client| {
        while client.request().is_some() {
            held.wait();
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nslow");
        }
    });
    let quick = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nquick");
    let pair = Pair::with(
        "h2",
        |gateway| {
            gateway.max_connections_per_origin = Some(3);
            gateway.max_origin_connections = Some(4);
        },
        |_| {},
    );
    let mut waiting: Vec<_> = (0..9).map(|_| pair.connect()).collect();
    for client in &mut waiting {
        client.send(request("GET", &slow.url("/"), ""));
    }
    for _ in 0..3 {
        assert_eq!(
            pair.connect().get(&quick.url("/")).body,
            b"quick",
            "the slow origin leaves one of four"
        );
    }
    // Tunnels do not count towards the limit.
    let mut tunnels: Vec<_> = (0..6).map(|_| pair.connect()).collect();
    for tunnel in &mut tunnels {
        tunnel.send(format!(
            "CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n",
            quick.address
        ));
        assert_eq!(tunnel.head().unwrap().status, 200);
        tunnel.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(tunnel.answer("GET").body, b"quick");
    }
    gate.open();
    for client in &mut waiting {
        assert_eq!(client.answer("GET").body, b"slow");
    }
}

#[test]
fn queued_request_times_out_with_504() {
    let gate = Arc::new(Gate::default());
    let held = Arc::clone(&gate);
    let origin = Scene::new(move |_, mut client| {
        if client
            .request()
            .is_none_or(|asked| !asked.line.contains("/endless"))
        {
            return client
                .send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        }
        client.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while !held.is_open() {
            client.send("1\r\nx\r\n");
            std::thread::sleep(Duration::from_millis(20));
        }
        client.send("0\r\n\r\n");
    });
    let pair = Pair::with(
        "h2",
        |gateway| {
            gateway.max_connections_per_origin = Some(2);
            gateway.response_timeout = Some("1s".parse().unwrap());
        },
        |_| {},
    );
    let mut endless: Vec<_> = (0..2).map(|_| pair.connect()).collect();
    for client in &mut endless {
        client.send(request("GET", &origin.url("/endless"), ""));
        assert_eq!(client.head().unwrap().status, 200);
    }
    let told = pair.connect().get(&origin.url("/"));
    assert_eq!(told.status, 504);
    assert!(told.field("proxy-status").unwrap().contains("in use"));
    gate.open();
    for client in &mut endless {
        let mut rest = Vec::new();
        while !rest.ends_with(b"0\r\n\r\n") {
            rest.extend(client.read_exact(1));
        }
    }
    // The connections become free again after a short time, so the request is repeated.
    for _ in 0..100 {
        if pair.connect().get(&origin.url("/")).body == b"ok" {
            return;
        }
    }
    panic!("a place that was given back was not given out again");
}

/// An origin answers after it has the whole request, so the response timeout starts at its end.
#[test]
fn response_timeout_starts_after_upload() {
    let origin = Scene::new(|_, mut client| {
        client.request().unwrap();
        let body = client.read_exact(8);
        client.send(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{}",
            String::from_utf8(body).unwrap()
        ));
    });
    let limit = Duration::from_secs(2);
    let pair = Pair::with(
        "h2",
        |gateway| gateway.response_timeout = Some(Span(limit)),
        |_| {},
    );
    let mut client = pair.connect();
    client.send(request("POST", &origin.url("/"), "Content-Length: 8\r\n"));
    for _ in 0..8 {
        std::thread::sleep(limit / 5);
        client.send("x");
    }
    assert_eq!(client.answer("POST").body, b"xxxxxxxx");
}

/// An origin may bind a connection to the user that logged in on it, so it serves the connection of
/// that user's browser only. Other requests share connections: those of a session at a forward
/// gateway, and those of all sessions at a gateway in front of one origin.
#[test]
fn login_connection_serves_its_own_browser_only() {
    let origin = Scene::new(|number, mut client| {
        while client.request().is_some() {
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n{number:4}"
            ));
        }
    });
    for (session, is_reverse) in [
        ("h2", false),
        ("h2", true),
        ("spdy3.1", false),
        ("spdy3.1", true),
    ] {
        let pair = Pair::with(
            session,
            |gateway| {
                let mode = format!("reverse={}", origin.url(""));
                gateway.mode = is_reverse.then(|| mode.parse().unwrap());
            },
            |_| {},
        );
        let endpoint = format!("{session}+tcp://{}", pair.gateway);
        let (_other, other, _) = start_client(client_options(&endpoint));
        // Returns the number of the connection to the origin.
        let ask = |browser: &mut Client, credentials: &str| {
            let fields = match credentials {
                "" => String::new(),
                credentials => format!("Authorization: {credentials}\r\n"),
            };
            browser.send(request("GET", &origin.url("/"), &fields));
            browser.answer("GET").body
        };
        let [mut anna, mut bert, mut carl] = [(); 3].map(|()| Client::to(pair.http));
        let mut dora = Client::to(other);
        let shared = ask(&mut carl, "");
        let (of_anna, of_bert) = (ask(&mut anna, "NTLM YQ=="), ask(&mut bert, "nTLM YQ=="));
        let of_dora = ask(&mut dora, "negotiate YQ==");
        let all = [&shared, &of_anna, &of_bert, &of_dora];
        for (place, one) in all.iter().enumerate() {
            assert!(!all[place + 1..].contains(one), "{session} {all:?}");
        }
        // The second steps of both logins, and the requests that follow.
        for credentials in ["Negotiate YQ==", ""] {
            assert_eq!(ask(&mut bert, credentials), of_bert, "{session}");
            assert_eq!(ask(&mut anna, credentials), of_anna, "{session}");
            assert_eq!(ask(&mut dora, credentials), of_dora, "{session}");
        }
        assert_eq!(ask(&mut carl, "Basic YQ=="), shared, "{session}");
        assert_eq!(ask(&mut Client::to(pair.http), ""), shared, "{session}");
    }
}

/// A forward gateway keeps the connections of each session apart, so that a session which has ended
/// leaves connections without use.
#[test]
fn idle_connections_end_with_their_session() {
    let (told, ends) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        client.request().unwrap();
        client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        told.send(client.request_ends()).unwrap();
    });
    for session in ["h2", "spdy3.1"] {
        let pair = Pair::with(session, |_| {}, |_| {});
        let endpoint = format!("{session}+tcp://{}", pair.gateway);
        let (other, http, _) = start_client(client_options(&endpoint));
        assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
        block_on(other.drain(Duration::ZERO));
        assert!(ends.recv_timeout(2 * PATIENCE).unwrap(), "{session}");
    }
}
