//! Sessions that begin with the speed of an earlier one, over the transport of this suite.

use std::time::{Duration, Instant};

use tandem::metrics::METRICS;

use crate::NAME;
use crate::certificates::Certificates;
use crate::harness::{Client, PATIENCE, Scene};
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
