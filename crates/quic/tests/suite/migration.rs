//! A client whose address changes while it downloads (RFC 9000, section 9).

use std::sync::Mutex;
use std::sync::atomic::Ordering;

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
