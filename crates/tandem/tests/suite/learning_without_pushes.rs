//! Learned pushes after visits of clients that take no pushes themselves.

use std::time::Duration;

use crate::harness::{block_on, request};
use crate::learning::{COMMON, Gateway, asked, origin};

#[test]
fn client_without_pushes_teaches_the_needs_of_a_page() {
    let (origin, told) = origin();
    let gateway = Gateway::start_with("h2", |options| options.hold_out = Some(0.0));
    for _ in 0..6 {
        let (running, mut client) = gateway.client_with(|options| options.push = Some(false));
        for path in COMMON {
            let mut fields = "User-Agent: Mozilla/5.0\r\n".to_owned();
            if *path != "/page" {
                fields += &format!("Referer: {}\r\n", origin.url("/page"));
            }
            client.send(request("GET", &origin.url(path), &fields));
            assert_eq!(client.answer("GET").body, path.as_bytes());
        }
        block_on(running.drain(Duration::ZERO));
    }
    let (running, mut client) = gateway.client_with(|_| {});
    gateway.wait_for_reports(&mut client);
    block_on(running.drain(Duration::ZERO));
    told.try_iter().for_each(drop);
    let pushed = gateway.visit(&origin, &["/page"], |it| asked(it, &origin, &told, 3));
    assert_eq!(pushed, ["/a.js", "/b.js", "/page"]);
}
