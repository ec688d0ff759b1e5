//! A client whose address changes while it downloads (RFC 9000, section 9).

use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::certificates::Certificates;
use crate::harness::{Client, Scene, request};
use crate::provided::{start_client, start_gateway, stop};
use crate::translator::Translator;

#[test]
fn download_survives_a_new_address_of_the_client() {
    let certificates = Certificates::new("quic-rebind");
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    let translator = Translator::to(address);
    let (client, http) = start_client(&certificates, translator.address, |_| {});
    let body: Vec<u8> = (0..1_usize << 20).map(|at| (at * 7 % 251) as u8).collect();
    let (first, second) = body.split_at(body.len() / 2);
    let (first, second) = (first.to_vec(), second.to_vec());
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Scene::new(move |_, mut client| {
        if client.request().is_some() {
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n\r\n");
            client.send(&first);
            wait.lock().unwrap().recv().unwrap();
            client.send(&second);
        }
    });
    let mut browser = Client::to(http);
    browser.send(request("GET", &origin.url("/"), ""));
    assert_eq!(browser.head().unwrap().status, 200);
    let mut got = browser.read_exact(body.len() / 2);
    let before = translator.outer_sockets.load(Ordering::SeqCst);
    translator.rebind.store(true, Ordering::SeqCst);
    go.send(()).unwrap();
    got.extend(browser.read_exact(body.len() / 2));
    assert!(got == body);
    let after = translator.outer_sockets.load(Ordering::SeqCst);
    assert_eq!(after, before + 1, "the address has changed");
    stop([client, gateway]);
}

/// The session waits for room on the old path when the client moves. The path with another IP
/// address has a controller of its own.
#[test]
fn saturated_download_goes_on_from_another_ip_address() {
    const SIZE: usize = 24 << 20;
    let certificates = Certificates::new("quic-move");
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    let translator = Translator::to(address);
    let (client, http) = start_client(&certificates, translator.address, |_| {});
    let origin = Scene::new(move |_, mut client| {
        if client.request().is_some() {
            client.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n"));
            client.send(vec![b'x'; SIZE]);
        }
    });
    let mut browser = Client::to(http);
    browser.send(request("GET", &origin.url("/"), ""));
    assert_eq!(browser.head().unwrap().status, 200);
    let first = browser.read_exact(1 << 20);
    translator.hold.store(true, Ordering::SeqCst);
    // The gateway fills its window and waits. The download also goes on if it does not.
    std::thread::sleep(Duration::from_millis(300));
    let before = translator.outer_sockets.load(Ordering::SeqCst);
    *translator.outer_ip.lock().unwrap() = Ipv4Addr::new(127, 0, 0, 2).into();
    translator.rebind.store(true, Ordering::SeqCst);
    translator.hold.store(false, Ordering::SeqCst);
    let rest = browser.read_exact(SIZE - first.len());
    assert!(rest.iter().all(|byte| *byte == b'x'));
    let after = translator.outer_sockets.load(Ordering::SeqCst);
    assert_eq!(after, before + 1, "the address has changed");
    stop([client, gateway]);
}
