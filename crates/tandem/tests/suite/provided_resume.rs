//! Sessions that are fast at once, over the transport of this suite: they begin with the speed of
//! an earlier one, or are warmed up before their first request.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tandem::config::units::Size;
use tandem::metrics::METRICS;

use crate::NAME;
use crate::certificates::Certificates;
use crate::harness::{Client, PATIENCE, Scene};
use crate::paths::Forwarder;
use crate::provided::{start_client, start_gateway, stop};

#[test]
fn session_begins_with_the_speed_of_the_last_one() {
    const SIZE: usize = 400 << 10;
    let certificates = Certificates::new(&format!("{NAME}-resume"));
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    // Sessions end soon, so that the next one shows the token of the last one.
    let (client, http) = start_client(&certificates, address, |options| {
        options.max_age = Some("2s".parse().unwrap());
    });
    let origin = Scene::new(|_, mut origin| {
        while origin.request().is_some() {
            origin.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n"));
            origin.send(vec![b'x'; SIZE]);
        }
    });
    let (begun, before) = (Instant::now(), METRICS.sessions_resumed.value());
    loop {
        let answer = Client::to(http).get(&origin.url("/"));
        assert_eq!((answer.status, answer.body.len()), (200, SIZE));
        if METRICS.sessions_resumed.value() > before {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "no session showed a token");
        // The client asks for a token a second after the response.
        std::thread::sleep(Duration::from_millis(1500));
    }
    stop([client, gateway]);
}

#[test]
fn session_is_warmed_up_before_its_first_request() {
    // The filler of the first three rounds. A slow round can end the warm-up only after them.
    const FILLER: usize = (8 + 16 + 32) << 10;
    let certificates = Certificates::new(&format!("{NAME}-warm-up"));
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    let forwarder = Forwarder::to(address);
    let (client, _) = start_client(&certificates, forwarder.address, |options| {
        options.warm_up = Some(Size(FILLER as u64));
    });
    let begun = Instant::now();
    while forwarder.passed.load(Ordering::SeqCst) < FILLER {
        assert!(begun.elapsed() < PATIENCE, "the filler did not come");
        std::thread::sleep(Duration::from_millis(10));
    }
    stop([client, gateway]);
}
