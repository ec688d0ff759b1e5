//! Downloads over a transport that another crate provides, whose path breaks: the rest arrives over
//! TCP, or over another session.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::NAME;
use crate::certificates::Certificates;
use crate::file_origin::{FileOrigin, FileRules, start_of};
use crate::harness::{Client, Scene, request};
use crate::provided::{start_client, start_gateway, stop};
use crate::provided_lives::{Mortal, NOTICE};
use crate::provided_ways::Ways;

/// Reads the second half of a file. Returns the longest time between two pieces.
fn finish(browser: &mut Client, origin: &FileOrigin) -> Duration {
    let half = origin.file().len() / 2;
    let (mut rest, mut longest) = (Vec::new(), Duration::ZERO);
    while rest.len() < half {
        let begun = Instant::now();
        rest.extend(browser.read_exact((half - rest.len()).min(1024)));
        longest = longest.max(begun.elapsed());
    }
    assert!(rest == origin.file()[half..]);
    longest
}

/// Begins to load a file over UDP that is long enough for a comparison of the ways.
fn large_download(ways: &Ways) -> (FileOrigin, Client) {
    let origin = FileOrigin::start(FileRules {
        size: 4 << 20,
        ..FileRules::default()
    });
    let mut browser = Client::to(ways.http);
    browser.send(request("GET", &origin.url(), ""));
    assert_eq!(browser.head().unwrap().status, 200);
    assert!(ways.is_over_udp());
    (origin, browser)
}

#[test]
fn download_goes_on_over_tcp_when_udp_breaks() {
    let ways = Ways::start("download-broken", false);
    let origin = FileOrigin::start(FileRules::default());
    let mut browser = origin.begin(ways.http);
    assert_eq!(origin.range(), None);
    assert!(ways.is_over_udp());
    ways.network.blocked.store(true, Ordering::SeqCst);
    ways.network.mute();
    let longest = finish(&mut browser, &origin);
    println!("{NAME}: the next byte came after {longest:?}");
    assert!(start_of(origin.range()) >= origin.file().len() / 2);
    assert!(origin.is_done(), "one request suffices");
    assert!(ways.is_over_tcp());
    ways.stop();
}

#[test]
fn download_goes_on_over_tcp_where_udp_is_throttled() {
    let ways = Ways::start("download-throttled", false);
    let (origin, mut browser) = large_download(&ways);
    ways.network.policed.store(32_000, Ordering::SeqCst);
    let begun = Instant::now();
    assert!(browser.read_exact(4 << 20) == origin.file());
    println!("{NAME}: the throttled download took {:?}", begun.elapsed());
    assert_eq!(origin.range(), None);
    start_of(origin.range());
    assert!(ways.is_over_tcp());
    ways.stop();
}

/// A file that has changed has no rest, and UDP still brings the former one.
#[test]
fn download_of_a_changed_file_stays_on_throttled_udp() {
    let ways = Ways::start("download-throttled-changed", false);
    let (origin, mut browser) = large_download(&ways);
    assert_eq!(origin.range(), None);
    origin.change();
    ways.network.policed.store(32_000, Ordering::SeqCst);
    let body = std::thread::scope(|scope| {
        let reading = scope.spawn(|| browser.read_exact(4 << 20));
        start_of(origin.range());
        ways.network.policed.store(0, Ordering::SeqCst);
        reading.join().expect("the whole body")
    });
    assert!(body == origin.file());
    assert!(origin.is_done(), "one request suffices");
    assert!(ways.is_over_tcp());
    ways.stop();
}

/// A file that has changed has no rest, and the path comes back.
#[test]
fn download_of_a_changed_file_waits_for_udp() {
    // A comparison during the outage would find UDP throttled, and move the download once more.
    let ways = Ways::start_without_comparisons("download-changed");
    let origin = FileOrigin::start(FileRules::default());
    let mut browser = origin.begin(ways.http);
    assert_eq!(origin.range(), None);
    origin.change();
    // With one direction only, the path is silent once the gateway's window is full.
    ways.network.blocked.store(true, Ordering::SeqCst);
    ways.network.mute();
    // TCP brings the head of another version.
    assert!(start_of(origin.range()) >= origin.file().len() / 2);
    std::thread::sleep(Duration::from_millis(500));
    ways.network.unmute();
    ways.network.blocked.store(false, Ordering::SeqCst);
    finish(&mut browser, &origin);
    assert!(origin.is_done(), "one request suffices");
    ways.stop();
}

#[test]
fn download_without_a_strong_tag_waits_for_udp() {
    let ways = Ways::start("download-weak", false);
    let origin = FileOrigin::start(FileRules {
        is_strong: false,
        ..FileRules::default()
    });
    let mut browser = origin.begin(ways.http);
    ways.network.blocked.store(true, Ordering::SeqCst);
    // The path is dead meanwhile, and TCP has answered.
    std::thread::sleep(Duration::from_secs(1));
    ways.network.blocked.store(false, Ordering::SeqCst);
    finish(&mut browser, &origin);
    assert_eq!(origin.range(), None);
    assert!(origin.is_done(), "nothing was requested again");
    ways.stop();
}

#[test]
fn slow_origin_keeps_its_download_on_udp() {
    const SIZE: usize = 1000;
    let ways = Ways::start("download-slow", false);
    let origin = Scene::new(|_, mut origin| {
        let request = origin.request().expect("a request");
        assert!(request.field("range").is_none(), "nothing broke");
        origin.send("HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: 1000\r\n\r\n");
        for _ in 0..2 {
            origin.send([b'x'; SIZE / 2]);
            std::thread::sleep(Duration::from_secs(3));
        }
    });
    let answer = Client::to(ways.http).get(&origin.url("/"));
    assert_eq!(answer.body, [b'x'; SIZE]);
    assert!(ways.is_over_udp());
    ways.stop();
}

#[test]
fn download_goes_on_after_a_kill_of_the_gateway() {
    let pair = Mortal::start("download-killed");
    let origin = FileOrigin::start(FileRules::default());
    let mut browser = origin.begin(pair.http);
    let pair = pair.replace_gateway();
    let longest = finish(&mut browser, &origin);
    println!("{NAME}: the next byte came after {longest:?}");
    assert!(longest < NOTICE, "{longest:?}");
    assert_eq!(origin.range(), None);
    assert!(start_of(origin.range()) >= origin.file().len() / 2);
    assert!(origin.is_done(), "one request suffices");
    pair.stop();
}

#[test]
fn download_survives_a_restart_of_the_gateway() {
    let certificates = Certificates::new(&format!("{NAME}-download-restart"));
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    let (client, http) = start_client(&certificates, address, |_| {});
    let origin = FileOrigin::start(FileRules::default());
    let mut browser = origin.begin(http);
    stop([gateway]);
    std::thread::sleep(Duration::from_secs(1));
    let (again, _) = start_gateway(&certificates, address.port(), |_| {});
    finish(&mut browser, &origin);
    stop([client, again]);
}
