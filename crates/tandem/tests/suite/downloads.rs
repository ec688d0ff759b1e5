//! Downloads whose session breaks off: the client requests the rest by another session, and never
//! mixes the bytes of two files.

use std::io::Read as _;
use std::net::SocketAddr;
use std::time::Duration;

use tandem::config::client::SoloMode;
use tandem::config::compress::BodyCompression;
use tandem::metrics::METRICS;
use tandem::runtime::Running;
use tandem::transport::registry::Transports;

use crate::file_origin::{FileOrigin, FileRules, start_of};
use crate::harness::{
    Client, PATIENCE, Way, block_on, client_options, endpoint, gateway_options, request,
    start_client, start_gateway, start_relay,
};
use crate::isolation::socks_proxy;
use crate::solo::options as solo_options;

/// A pair, and the connections between its ends.
struct Broken {
    http: SocketAddr,
    way: Way,
    running: Vec<Running>,
}

impl Broken {
    fn over(session: &str, compression: BodyCompression) -> Self {
        let mut options = gateway_options();
        options.listen = vec![endpoint(&format!("{session}+tcp://127.0.0.1:0"))];
        options.compress = Some(compression);
        let (gateway, address) = start_gateway(options);
        Self::to(session, address, compression, vec![gateway])
    }

    fn to(session: &str, next: SocketAddr, coding: BodyCompression, running: Vec<Running>) -> Self {
        let way = Way::to(next);
        let mut options = client_options(&format!("{session}+tcp://{}", way.address));
        options.compress = Some(coding);
        let (client, http, _) = start_client(options);
        let running = [client].into_iter().chain(running).collect();
        Self { http, way, running }
    }

    /// Reads the first half of a file.
    fn begin(&self, origin: &FileOrigin, fields: &str) -> Client {
        let mut browser = Client::to(self.http);
        browser.send(request("GET", &origin.url(), fields));
        let head = browser.head().unwrap();
        assert!(matches!(head.status, 200 | 206));
        let half = origin.file().len() / 2;
        let begun = browser.read_exact(half);
        assert!(begun == origin.file()[..half]);
        browser
    }

    fn stop(self) {
        self.running.into_iter().for_each(stop);
    }
}

fn stop(running: Running) {
    block_on(running.drain(Duration::ZERO));
}

/// Reads the second half of a file.
fn finish(browser: &mut Client, file: &[u8]) {
    let half = file.len() / 2;
    assert!(browser.read_exact(half) == file[half..]);
}

/// Returns the number of breaks with this result in this process.
fn counted(result: &str) -> u64 {
    let text = METRICS.render();
    let name = format!("tandem_downloads_broken_total{{result=\"{result}\"}} ");
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(&name));
    value.unwrap().parse().unwrap()
}

/// Reads a response to its end, which comes too early for its length.
fn fails(browser: &mut Client, file: &[u8]) {
    let mut rest = Vec::new();
    browser.stream.read_to_end(&mut rest).unwrap();
    assert!(rest.len() < file.len() / 2, "it does not look complete");
    assert!(file[file.len() / 2..].starts_with(&rest), "no other bytes");
}

#[test]
fn download_goes_on_over_another_session() {
    for session in ["h2", "spdy3.1"] {
        let pair = Broken::over(session, BodyCompression::Off);
        let origin = FileOrigin::start(FileRules::default());
        let mut browser = pair.begin(&origin, "Accept: */*\r\nIf-None-Match: \"x\"\r\n");
        assert_eq!(origin.range(), None);
        let (saved, before) = (METRICS.download_bytes_saved.value(), counted("continued"));
        pair.way.close();
        finish(&mut browser, &origin.file());
        let start = start_of(origin.range());
        assert!(start >= origin.file().len() / 2, "{start}");
        assert!(METRICS.download_bytes_saved.value() >= saved + start as u64);
        assert!(origin.is_done() && counted("continued") > before);
        // The connection of the browser is still good.
        assert_eq!(browser.get(&origin.url()).status, 200);
        pair.stop();
    }
}

#[test]
fn download_of_a_range_goes_on() {
    let pair = Broken::over("h2", BodyCompression::Off);
    let origin = FileOrigin::start(FileRules::default());
    let last = origin.file().len() - 2;
    let mut browser = Client::to(pair.http);
    let range = format!("Range: bytes=1-{last}\r\n");
    browser.send(request("GET", &origin.url(), &range));
    assert_eq!(browser.head().unwrap().status, 206);
    let first = browser.read_exact(last / 2);
    pair.way.close();
    let rest = browser.read_exact(last - last / 2);
    assert!([first, rest].concat() == origin.file()[1..=last]);
    assert_eq!(origin.range(), Some(format!("bytes=1-{last}")));
    assert!(
        origin
            .range()
            .is_some_and(|range| range.ends_with(&format!("-{last}")))
    );
    pair.stop();
}

#[test]
fn compressed_download_goes_on() {
    let coding = BodyCompression::Exact;
    let pair = Broken::over("h2", coding);
    let origin = FileOrigin::start(FileRules {
        is_text: true,
        ..FileRules::default()
    });
    let before = METRICS.coding_bytes_before.value();
    let mut browser = pair.begin(&origin, "");
    pair.way.close();
    finish(&mut browser, &origin.file());
    assert!(METRICS.coding_bytes_before.value() > before);
    pair.stop();
}

#[test]
fn download_survives_a_restart_of_the_gateway() {
    for is_relayed in [false, true] {
        let (gateway, address) = start_gateway(gateway_options());
        let next = format!("h2+tcp://{address}");
        let listen = "h2+tcp://127.0.0.1:0";
        let relay = is_relayed.then(|| start_relay(listen, &next, &Transports::default(), |_| {}));
        let hop = relay.as_ref().map_or(address, |(_, relayed)| *relayed);
        let (client, http, _) = start_client(client_options(&format!("h2+tcp://{hop}")));
        let origin = FileOrigin::start(FileRules::default());
        let mut browser = origin.begin(http);
        stop(gateway);
        std::thread::sleep(Duration::from_secs(1));
        let mut options = gateway_options();
        options.listen = vec![endpoint(&next)];
        let (again, _) = start_gateway(options);
        finish(&mut browser, &origin.file());
        let relay = relay.map(|(relay, _)| relay);
        [client, again].into_iter().chain(relay).for_each(stop);
    }
}

#[test]
fn download_goes_on_behind_a_relay() {
    let (gateway, address) = start_gateway(gateway_options());
    let way = Way::to(address);
    let next = format!("h2+tcp://{}", way.address);
    let listen = "h2+tcp://127.0.0.1:0";
    let (relay, relayed) = start_relay(listen, &next, &Transports::default(), |_| {});
    let running = vec![relay, gateway];
    let pair = Broken::to("h2", relayed, BodyCompression::Off, running);
    let origin = FileOrigin::start(FileRules::default());
    let mut browser = pair.begin(&origin, "");
    assert_eq!(origin.range(), None);
    way.close();
    finish(&mut browser, &origin.file());
    assert!(start_of(origin.range()) >= origin.file().len() / 2);
    pair.stop();
}

/// A circuit through Tor ends, and the next one has the same key.
#[test]
fn download_goes_on_with_its_isolation_key() {
    let (gateway, address) = start_gateway(gateway_options());
    let way = Way::to(address);
    let (proxy, asked) = socks_proxy(way.address);
    let mut options = client_options("h2+tcp://gateway.example:9980");
    options.via = Some(format!("socks5://{proxy}").parse().unwrap());
    options.preconnect = Some(false);
    let (client, _, socks) = start_client(options);
    let origin = FileOrigin::start(FileRules::default());
    let url = origin.url();
    let (host, path) = url["http://".len()..].split_once('/').unwrap();
    let mut browser = Client::to(socks);
    assert_eq!(browser.socks(host, Some(("user", "key"))), 0);
    browser.send(format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    assert_eq!(browser.head().unwrap().status, 200);
    let half = origin.file().len() / 2;
    assert!(browser.read_exact(half) == origin.file()[..half]);
    way.close();
    finish(&mut browser, &origin.file());
    for _ in 0..2 {
        let circuit = asked.recv_timeout(PATIENCE).unwrap();
        let key = Some(("user".to_owned(), "key".to_owned()));
        assert_eq!(circuit.credentials, key);
    }
    assert!(asked.try_recv().is_err());
    [client, gateway].into_iter().for_each(stop);
}

#[test]
fn changed_or_unmarked_file_is_never_mixed() {
    let good = FileRules::default();
    for (rules, changes, requests) in [
        (good, true, 2),
        (
            FileRules {
                is_strong: false,
                ..good
            },
            false,
            1,
        ),
        (
            FileRules {
                takes_ranges: false,
                ..good
            },
            true,
            2,
        ),
        // Half of the file is too much to be sent again.
        (
            FileRules {
                takes_ranges: false,
                ..good
            },
            false,
            2,
        ),
    ] {
        let pair = Broken::over("h2", BodyCompression::Off);
        let origin = FileOrigin::start(rules);
        let before = [counted("refused"), counted("unsuitable")];
        let mut browser = pair.begin(&origin, "");
        if changes {
            origin.change();
        }
        pair.way.close();
        fails(&mut browser, &origin.file());
        for _ in 0..requests {
            origin.range();
        }
        assert!(origin.is_done());
        let result = if requests == 2 {
            "refused"
        } else {
            "unsuitable"
        };
        let before = before[usize::from(requests == 1)];
        assert!(counted(result) > before);
        pair.stop();
    }
}

#[test]
fn origin_without_ranges_repeats_a_short_beginning() {
    let pair = Broken::over("h2", BodyCompression::Off);
    let origin = FileOrigin::start(FileRules {
        size: 200_000,
        takes_ranges: false,
        ..FileRules::default()
    });
    let mut browser = pair.begin(&origin, "");
    pair.way.close();
    finish(&mut browser, &origin.file());
    pair.stop();
}

#[test]
fn download_that_the_origin_breaks_off_goes_on() {
    let pair = Broken::over("h2", BodyCompression::Off);
    let (solo, http, _) = start_client(solo_options(SoloMode::Direct));
    for http in [pair.http, http] {
        let origin = FileOrigin::start(FileRules::default());
        let mut browser = origin.begin(http);
        origin.break_off();
        finish(&mut browser, &origin.file());
    }
    stop(solo);
    pair.stop();
}
