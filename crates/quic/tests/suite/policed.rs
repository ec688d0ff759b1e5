//! A network that polices UDP, and one that is busy: namespaces with limits of the kernel.
//!
//! Each test starts this program again in a namespace of its own, where a script has limited the
//! loopback device. The ignored tests are the parts inside.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use tandem::metrics::METRICS;
use tandem::runtime::Running;

use crate::certificates::Certificates;
use crate::harness::{Client, Scene, block_on, endpoint, request};
use crate::provided::{OK, start_client_of, start_gateway, stop};

/// The ports of the gateway: QUIC, and TLS over TCP.
const UDP: u16 = 4433;
const TCP: u16 = 4434;
const SIZE: usize = 1 << 20;

/// TCP from the gateway gets 20 Mbit/s, and UDP 256 kbit/s. The policer has no queue.
const POLICED: &str = "
    tc class add dev lo parent 1: classid 1:20 htb rate 20mbit quantum 1500
    tc filter add dev lo parent 1: protocol ip u32 match ip sport 4434 0xffff flowid 1:20
    iptables -A INPUT -p udp --sport 4433 -m hashlimit --hashlimit-name udp \\
        --hashlimit-above 32kb/s --hashlimit-burst 32kb -j DROP";

/// Both share 2 Mbit/s and a queue of 300 ms.
const BUSY: &str = "
    tc class add dev lo parent 1: classid 1:20 htb rate 2mbit quantum 1500
    tc qdisc add dev lo parent 1:20 pfifo limit 50
    tc filter add dev lo parent 1: protocol ip u32 match ip sport 4433 0xffff flowid 1:20
    tc filter add dev lo parent 1: protocol ip u32 match ip sport 4434 0xffff flowid 1:20";

/// Runs a part of this suite in a namespace whose loopback device a script has limited. Returns the
/// printed lines.
fn in_namespace(limits: &str, part: &str) -> String {
    let script = format!(
        "set -e
        ip link set lo mtu 1500 up
        tc qdisc add dev lo root handle 1: htb default 10
        tc class add dev lo parent 1: classid 1:10 htb rate 10gbit quantum 60000
        {limits}
        exec \"$0\" --exact --ignored --nocapture \"$1\""
    );
    let program = std::env::current_exe().unwrap();
    let ended = Command::new("unshare")
        .args(["--map-root-user", "--net", "sh", "-c", &script])
        .arg(program)
        .arg(part)
        .output()
        .expect("needed for this test: apt-get install util-linux");
    let printed = String::from_utf8_lossy(&ended.stdout);
    let hint = "needed for this test: apt-get install iproute2 iptables";
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{hint}\n{printed}{errors}");
    assert!(printed.contains("1 passed"), "{printed}");
    printed.into_owned()
}

/// A gateway with both ways, and a client of it.
struct Ways {
    _certificates: Certificates,
    gateway: Running,
    client: Running,
    http: SocketAddr,
}

impl Ways {
    fn start(name: &str) -> Self {
        let certificates = Certificates::new(name);
        let identity = certificates.identity();
        let tls = endpoint(&format!("h2+tls://127.0.0.1:{TCP}?{identity}"));
        let (gateway, _) = start_gateway(&certificates, UDP, |options| {
            options.listen.push(tls);
            options.hold_out = Some(0.0);
        });
        let ca = certificates.path("ca.pem");
        let ways = format!("h3+quic://127.0.0.1:{UDP}?ca={ca},h2+tls://127.0.0.1:{TCP}?ca={ca}");
        let (client, http) = start_client_of(&ways, |_| {});
        Self {
            _certificates: certificates,
            gateway,
            client,
            http,
        }
    }

    fn uses(&self, protocol: &str) -> bool {
        let status = block_on(self.client.status().snapshot());
        let mut protocols = status.sessions.iter().filter_map(|it| it.protocol.as_ref());
        protocols.any(|it| it.starts_with(protocol))
    }

    /// Downloads a body, and returns the time.
    fn download(&self, origin: &Scene) -> Duration {
        let begun = Instant::now();
        let answer = Client::to(self.http).get(&origin.url("/download"));
        assert_eq!(answer.body.len(), SIZE);
        begun.elapsed()
    }
}

/// The images of a page, and the bytes of each.
const IMAGES: usize = 12;
const IMAGE_SIZE: usize = 10 << 10;

fn origin() -> Scene {
    Scene::new(|_, mut origin| {
        while let Some(asked) = origin.request() {
            if asked.line.contains("/page ") {
                let links: String = (0..IMAGES)
                    .map(|image| format!("Link: </{image}.image>; rel=preload; as=image\r\n"))
                    .collect();
                origin.send(format!(
                    "HTTP/1.1 200 OK\r\n{links}Content-Length: 4\r\n\r\npage"
                ));
                continue;
            }
            if asked.line.contains(".image ") {
                origin.send(format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {IMAGE_SIZE}\r\n\r\n"
                ));
                origin.send(vec![b'i'; IMAGE_SIZE]);
                continue;
            }
            if !asked.line.contains("/download ") {
                origin.send(OK);
                continue;
            }
            origin.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n"));
            origin.send(vec![b'x'; SIZE]);
        }
    })
}

#[test]
fn requests_leave_udp_that_is_policed() {
    println!("{}", in_namespace(POLICED, "policed::policed_part"));
}

#[test]
#[ignore = "runs in the namespace of the test above"]
fn policed_part() {
    let ways = Ways::start("quic-policed");
    let origin = origin();
    assert_eq!(Client::to(ways.http).get(&origin.url("/")).body, b"ok");
    assert!(ways.uses("h3 over"));
    let begun = Instant::now();
    let mut slow = Client::to(ways.http);
    slow.send(request("GET", &origin.url("/download"), ""));
    assert_eq!(slow.head().unwrap().status, 200);
    while METRICS.ways_throttled.value() == 0 {
        assert!(
            begun.elapsed() < Duration::from_secs(25),
            "it is not noticed"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let noticed = begun.elapsed();
    let fast = ways.download(&origin);
    assert!(ways.uses("h2 over TLS"));
    assert_eq!(slow.read_exact(SIZE).len(), SIZE);
    let rest = begun.elapsed();
    println!("noticed after {noticed:?}; 1 MiB: {rest:?} over UDP, then {fast:?} over TCP");
    assert!(fast * 10 < rest, "{fast:?} {rest:?}");
    // The choice stays.
    for _ in 0..10 {
        assert!(ways.download(&origin) * 10 < rest);
        std::thread::sleep(Duration::from_millis(300));
    }
    assert_eq!(METRICS.ways_throttled.value(), 1);
    assert!(!ways.uses("h3 over"));
    stop([ways.client, ways.gateway]);
}

#[test]
fn requests_stay_on_udp_over_a_busy_path() {
    println!("{}", in_namespace(BUSY, "policed::busy_part"));
}

#[test]
#[ignore = "runs in the namespace of the test above"]
fn busy_part() {
    let ways = Ways::start("quic-busy");
    let origin = origin();
    assert_eq!(Client::to(ways.http).get(&origin.url("/")).body, b"ok");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| ways.download(&origin));
        }
    });
    println!("comparisons: {}", METRICS.ways_compared.value());
    assert!(METRICS.ways_compared.value() > 0, "it was slow enough");
    assert_eq!(METRICS.ways_throttled.value(), 0);
    assert_eq!(Client::to(ways.http).get(&origin.url("/")).body, b"ok");
    assert!(ways.uses("h3 over"));
    stop([ways.client, ways.gateway]);
}

#[test]
fn joined_pushes_share_the_path_with_a_download() {
    println!("{}", in_namespace(BUSY, "policed::joined_part"));
}

/// The download fills the path. Pushes have a lower urgency until requests join them.
#[test]
#[ignore = "runs in the namespace of the test above"]
fn joined_part() {
    let ways = Ways::start("quic-joined");
    let origin = origin();
    let mut download = Client::to(ways.http);
    download.send(request("GET", &origin.url("/download"), ""));
    assert_eq!(download.head().unwrap().status, 200);
    download.read_exact(SIZE / 8);
    std::thread::scope(|scope| {
        let rest = scope.spawn(move || download.read_exact(SIZE - SIZE / 8));
        let mut browser = Client::to(ways.http);
        assert_eq!(browser.get(&origin.url("/page")).body, b"page");
        for image in 0..IMAGES {
            let answer = browser.get(&origin.url(&format!("/{image}.image")));
            assert_eq!(answer.body.len(), IMAGE_SIZE);
        }
        assert!(!rest.is_finished(), "the images wait for the download");
        assert_eq!(rest.join().unwrap().len(), SIZE - SIZE / 8);
    });
    let joined = METRICS.pushes_late.value() + METRICS.pushes_used.value();
    assert!(joined > 0, "requests join pushes");
    assert!(ways.uses("h3 over"));
    stop([ways.client, ways.gateway]);
}
