//! A fleet whose engine gives the gateways certain rights only, or has another clock.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use tandem::fleet::FleetCounts;

use crate::at_once::at_once;
use crate::fleet::KeyFile;
use crate::fleet_cache::{Fleet, echo, paths};
use crate::redis_server::{RedisServer, documented_rights};

/// Starts two gateways that log in as the user `tandem` with these rights.
fn fleet(name: &str, rights: &str) -> (Fleet, KeyFile) {
    let password = KeyFile::new(&format!("password-{name}"), "secret");
    let mut fleet = Fleet::empty(name, echo);
    let server = RedisServer::start_for("secret", rights);
    let file = password.0.display();
    let url = format!("{}?user=tandem&password-file={file}", server.url());
    fleet.replace_server(server, url);
    (0..2).for_each(|_| fleet.add(|_| {}));
    (fleet, password)
}

#[test]
fn documented_rights_suffice_to_lend_and_invalidate() {
    let (fleet, _password) = fleet("rights", &documented_rights());
    let paths = paths(20);
    paths.iter().for_each(|path| drop(fleet.get(0, path)));
    fleet.wait_until(0, "lent", |counts| counts.lent.value() == 20);
    assert!(fleet.borrow(1, &paths) > 0);
    fleet.send(1, "POST", &paths[0], "Content-Length: 0\r\n");
    fleet.wait_until(0, "an invalidation", |counts| {
        counts.invalidated.value() > 0
    });
    assert_eq!(fleet.keys().len(), 19);
    for member in 0..2 {
        fleet.wait_until(member, "no failure", |counts| counts.failures.value() == 0);
    }
}

#[test]
fn gateways_without_the_right_to_lend_share_the_rest() {
    let rights = documented_rights();
    assert!(rights.contains(" +set "));
    let (fleet, _password) = fleet("no-lending", &rights.replace(" +set ", " "));
    let paths = paths(4);
    paths.iter().for_each(|path| drop(fleet.get(0, path)));
    fleet.wait_for_looks();
    assert!(fleet.keys().is_empty());
    assert_eq!(fleet.borrow(1, &paths), 0);
    for member in 0..2 {
        fleet.wait_until(member, "the log", |counts| {
            FleetCounts::is_up(counts) && counts.failures.value() == 0
        });
    }
    // Invalidations need other rights.
    fleet.send(1, "POST", "/0", "Content-Length: 0\r\n");
    fleet.wait_until(0, "an invalidation", |counts| {
        counts.invalidated.value() > 0
    });
}

#[test]
fn gateway_without_the_right_to_write_serves_alone() {
    let rights = documented_rights();
    assert!(rights.contains(" +xadd "));
    let (fleet, _password) = fleet("no-writing", &rights.replace(" +xadd ", " "));
    let paths = paths(4);
    paths.iter().for_each(|path| drop(fleet.get(0, path)));
    for (number, path) in paths.iter().enumerate() {
        assert_eq!(fleet.get(0, path), *path, "{number}");
        assert_eq!(fleet.get(1, path), *path, "{number}");
    }
    // A change at one gateway is still seen there.
    let before = fleet.requests();
    fleet.send(1, "POST", &paths[0], "Content-Length: 0\r\n");
    fleet.get(1, &paths[0]);
    assert_eq!(fleet.requests(), before + 2);
}

/// A way to an engine whose clock differs.
struct SkewedClock(SocketAddr);

impl SkewedClock {
    /// Starts a way to the engine's socket. Its clock shows this number of seconds more.
    fn start(socket: PathBuf, seconds: i64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(engine)) = (client, UnixStream::connect(&socket)) else {
                    return;
                };
                let (mut up, mut to_engine) =
                    (client.try_clone().unwrap(), engine.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut up, &mut to_engine));
                std::thread::spawn(move || pass(engine, client, seconds));
            }
        });
        Self(address)
    }
}

/// Passes responses on, and changes the time in those to `TIME`.
fn pass(mut engine: UnixStream, mut client: TcpStream, seconds: i64) {
    let mut buffer = vec![0; 1 << 20];
    while let Ok(count @ 1..) = engine.read(&mut buffer) {
        let bytes = &mut buffer[..count];
        const START: &[u8] = b"*2\r\n$10\r\n";
        // The engine writes the whole response to a command of its own at once.
        if let Some(at) = bytes.windows(START.len()).position(|it| it == START) {
            let digits = &mut bytes[at + START.len()..][..10];
            let time: i64 = std::str::from_utf8(digits).unwrap().parse().unwrap();
            digits.copy_from_slice((time + seconds).to_string().as_bytes());
        }
        if client.write_all(bytes).is_err() {
            return;
        }
    }
    let _ = client.shutdown(std::net::Shutdown::Both);
}

#[test]
fn gateways_share_no_responses_unless_clocks_agree() {
    at_once(
        [(0, true), (60, false), (-60, false)],
        |(seconds, lends)| {
            let mut fleet = Fleet::empty(&format!("clock{seconds}"), echo);
            let way = SkewedClock::start(fleet.socket(), seconds);
            let url = format!("redis://{}", way.0);
            (0..2).for_each(|_| fleet.add(|options| options.share = Some(url.clone())));
            let paths = paths(10);
            paths.iter().for_each(|path| drop(fleet.get(0, path)));
            fleet.wait_for_looks();
            let lookups = fleet.borrow(1, &paths);
            assert_eq!(!fleet.keys().is_empty(), lends, "{seconds}");
            assert_eq!(lookups > 0, lends, "{seconds}");
        },
    );
}
