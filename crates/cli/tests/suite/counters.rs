//! The counters of pushes and of exchanges, as a running program reports them.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::harness::{Client, PATIENCE, Scene, block_on, gateway_options, request, start_gateway};
use crate::messages::nowhere;
use crate::process::Process;

/// Waits until the metrics have this line.
fn wait_for(metrics: SocketAddr, line: &str) {
    let end = Instant::now() + PATIENCE;
    loop {
        let mut scrape = Client::to(metrics);
        let host = format!("Host: {metrics}\r\n\r\n");
        scrape.send(format!("GET /metrics HTTP/1.1\r\n{host}"));
        let text = String::from_utf8(scrape.answer("GET").body).unwrap();
        if text.contains(&format!("\n{line}\n")) {
            return;
        }
        assert!(Instant::now() < end, "{line}: {text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns an origin of a page with one image.
fn origin_of_a_page() -> Scene {
    Scene::new(|_, mut client| {
        while let Some(asked) = client.request() {
            let (fields, body) = if asked.line.contains("/page") {
                (
                    "Content-Type: text/html\r\nSet-Cookie: a=b; Path=/first",
                    "<img src=/i>",
                )
            } else {
                ("Cache-Control: max-age=600", "0123456789")
            };
            let length = body.len();
            client.send(format!(
                "HTTP/1.1 200 OK\r\n{fields}\r\nContent-Length: {length}\r\n\r\n{body}"
            ));
        }
    })
}

/// A push that no request has claimed when its session ends is waste at once.
#[test]
fn client_counts_pushes_of_an_ended_session() {
    let origin = origin_of_a_page();
    let mut options = gateway_options();
    options.hold_out = Some(0.0);
    let (running, gateway) = start_gateway(options);
    let metrics = nowhere();
    let process = Process::start(&[
        "client",
        "--listen",
        "http://127.0.0.1:0",
        "--gateway",
        &format!("h2+tcp://{gateway}"),
        "--metrics",
        &metrics.to_string(),
    ]);
    let mut browser = Client::to(process.address);
    let navigation = "Accept: text/html\r\n";
    browser.send(request("GET", &origin.url("/page"), navigation));
    assert_eq!(browser.answer("GET").status, 200);
    wait_for(metrics, "tandem_push_bytes_received_total 10");
    wait_for(metrics, "tandem_push_bytes_wasted_total 0");
    block_on(running.drain(Duration::ZERO));
    wait_for(metrics, "tandem_push_bytes_wasted_total 10");
    wait_for(metrics, "tandem_pushes_wasted_total 1");
}

/// Both halves of push are in one process, and count each push once.
#[test]
fn solo_client_counts_each_push_once() {
    let origin = origin_of_a_page();
    let metrics = nowhere();
    let process = Process::start(&[
        "client",
        "--listen",
        "http://127.0.0.1:0",
        "--solo=direct",
        "--solo-allow-dest",
        "127.0.0.0/8",
        "--solo-hold-out",
        "0",
        "--metrics",
        &metrics.to_string(),
    ]);
    let mut browser = Client::to(process.address);
    browser.send(request(
        "GET",
        &origin.url("/page"),
        "Accept: text/html\r\n",
    ));
    assert_eq!(browser.answer("GET").status, 200);
    wait_for(metrics, "tandem_push_bytes_received_total 10");
    let referer = format!("Referer: {}\r\n", origin.url("/page"));
    browser.send(request("GET", &origin.url("/i"), &referer));
    assert_eq!(browser.answer("GET").body, b"0123456789");
    wait_for(metrics, "tandem_pushes_promised_total 1");
    // The end of the process reports everything, and no counter shows more afterwards.
    wait_for(metrics, "tandem_pushes_used_total 1");
    wait_for(metrics, "tandem_push_bytes_wasted_total 0");
}

/// Neither has a response of an exchange.
#[test]
fn gateway_counts_malformed_and_aborted_requests() {
    let (tell, told) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        client.request().unwrap();
        tell.send(()).unwrap();
        // The gateway closes the connection when its own client leaves.
        client.request_ends();
    });
    let metrics = nowhere();
    let process = Process::start(&[
        "gateway",
        "--listen",
        "http+tcp://127.0.0.1:0",
        "--open",
        "--allow-dest",
        "127.0.0.0/8",
        "--metrics",
        &metrics.to_string(),
    ]);
    wait_for(metrics, "tandem_requests_malformed_total 0");
    let mut malformed = Client::to(process.address);
    malformed.send("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n");
    assert_eq!(malformed.answer("GET").status, 400);
    wait_for(metrics, "tandem_requests_malformed_total 1");
    wait_for(metrics, "tandem_exchanges_aborted_total 0");
    let mut left = Client::to(process.address);
    left.send(request("GET", &origin.url("/"), ""));
    told.recv_timeout(PATIENCE).unwrap();
    drop(left);
    wait_for(metrics, "tandem_exchanges_aborted_total 1");
    wait_for(metrics, "tandem_requests_malformed_total 1");
}
