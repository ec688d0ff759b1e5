//! The client sends only to its gateway, by the protocol of its transport, and without a gateway
//! only to its proxy. It runs in a namespace with a single device, and every packet through that
//! device is recorded while pages load, names are unknown, and the gateway is down.

#[path = "../../web/tests/programs/mod.rs"]
mod programs;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use programs::{Running, Scratch, require, tandem, wait};
use tandem_lab::tornet::dns;
use tandem_net::emulator::network::{self, Setup, TwoHosts};
use tandem_net::emulator::sys::{self, ChildSetup};
use tandem_net::emulator::topology::delayed;
use tandem_net::netns::Netns;
use tandem_web::loader::{Loader, Via};
use tandem_web::page::{Page, Site};

const LAB: &str = env!("CARGO_BIN_EXE_tandem-lab");

const NEAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const GATEWAY: u16 = 9980;
/// Only the gateway can resolve it: to [`FAR`].
const SITE: &str = "site2.test";
const PAGE: &str = "gallery:100x2000";
const HTTP: &str = "127.0.0.1:8118";
const SOCKS: &str = "127.0.0.1:9150";
const METRICS: &str = "127.0.0.1:9191";

/// Two hosts, and a file of all packets on the client's device.
struct Wire(TwoHosts);

impl Wire {
    fn new(capture: &Path) -> Self {
        let captures = vec![(network::NEAR.into(), capture.into())];
        let setup = Setup {
            no_realtime: true,
            captures,
            ..Setup::default()
        };
        Self(
            TwoHosts::set_up([NEAR, FAR], delayed(Duration::from_millis(5)), 1, &setup)
                .expect("root"),
        )
    }

    /// Starts a program in one of the namespaces and waits until it listens.
    fn start(
        &self,
        network: &Netns,
        mut command: Command,
        listens: &[SocketAddr],
        log: &Path,
    ) -> Running {
        let file = std::fs::File::create(log).expect("scratch space");
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("open"))
            .stderr(file);
        let setup = ChildSetup {
            network: Some(network.as_fd()),
            die_with_parent: true,
            own_session: true,
        };
        sys::prepare(&mut command, setup);
        let running = Running(command.spawn().expect("the program starts"));
        for &address in listens {
            let connected = || network.run(|| TcpStream::connect(address)).ok();
            drop(wait(
                &format!("{command:?} listens"),
                Duration::from_secs(20),
                connected,
            ));
        }
        running
    }

    /// Loads the whole page through the client's HTTP proxy, checking every byte.
    fn load_page(&self, log: &Path) {
        let site = Site::new(Page::open(PAGE).expect("built in"), &[SITE]).expect("a host");
        let loader = Loader {
            per_host: 32,
            ..Loader::new(Via::Http { proxy: HTTP.into() })
        };
        let loaded = self.0.near.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            Ok(runtime.block_on(loader.load(&site)))
        });
        let load = loaded.expect("a runtime").unwrap_or_else(|error| {
            panic!(
                "{error}; {}",
                std::fs::read_to_string(log).unwrap_or_default()
            );
        });
        assert_eq!(load.requests.len(), 101);
    }

    /// Adds or removes the rule that drops datagrams to the gateway.
    fn udp(&self, action: &str) {
        let mut iptables = Command::new("iptables");
        let port = GATEWAY.to_string();
        iptables.args(["-w", action, "INPUT", "-p", "udp", "--dport", &port]);
        iptables.args(["-j", "DROP"]);
        let setup = ChildSetup {
            network: Some(self.0.far.as_fd()),
            ..ChildSetup::default()
        };
        sys::prepare(&mut iptables, setup);
        let ended = iptables.output().expect("iptables starts");
        assert!(ended.status.success(), "{ended:?}");
    }

    /// curl beside the client. Returns the status of the response, unless `arguments` change this.
    fn curl(&self, arguments: &[&str]) -> String {
        let common = ["-sS", "-m", "60", "-o", "/dev/null", "-w", "%{http_code}"];
        self.output(&[&common[..], arguments].concat())
    }

    /// Returns the standard output of curl beside the client.
    fn output(&self, arguments: &[&str]) -> String {
        let mut curl = Command::new("curl");
        curl.args(arguments);
        sys::prepare(
            &mut curl,
            ChildSetup {
                network: Some(self.0.near.as_fd()),
                ..ChildSetup::default()
            },
        );
        let ended = curl.stdin(Stdio::null()).output().expect("curl starts");
        String::from_utf8_lossy(&ended.stdout).into_owned()
    }
}

/// A packet's sender, receiver, protocol and ports.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Packet {
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    ports: Option<(u16, u16)>,
}

/// Everything in a capture (pcap of raw IP packets in this machine's byte order).
fn packets(file: &Path) -> Vec<Packet> {
    let bytes = std::fs::read(file).expect("the capture");
    let mut rest = &bytes[24..];
    let mut found = Vec::new();
    while let Some(head) = rest.get(..16) {
        let len = u32::from_ne_bytes(head[8..12].try_into().expect("four bytes")) as usize;
        found.push(packet(&rest[16..16 + len]));
        rest = &rest[16 + len..];
    }
    found
}

fn packet(bytes: &[u8]) -> Packet {
    let ports = |at: usize| {
        let port = |at: usize| {
            bytes
                .get(at..at + 2)
                .map(|two| u16::from_be_bytes([two[0], two[1]]))
        };
        Some((port(at)?, port(at + 2)?))
    };
    if bytes[0] >> 4 == 4 {
        let address =
            |at: usize| IpAddr::from(<[u8; 4]>::try_from(&bytes[at..at + 4]).expect("four bytes"));
        let header = usize::from(bytes[0] & 15) * 4;
        Packet {
            from: address(12),
            to: address(16),
            protocol: bytes[9],
            ports: ports(header),
        }
    } else {
        let address = |at: usize| {
            IpAddr::from(<[u8; 16]>::try_from(&bytes[at..at + 16]).expect("sixteen bytes"))
        };
        Packet {
            from: address(8),
            to: address(24),
            protocol: bytes[6],
            ports: ports(40),
        }
    }
}

/// Returns true if a packet belongs to a connection between the client's host and the far end. The
/// kernels of both hosts may refuse a datagram by ICMP.
fn is_allowed(packet: &Packet, far_end: FarEnd) -> bool {
    let (near, far) = (IpAddr::from(NEAR), IpAddr::from(FAR));
    let there = packet.from == near && packet.to == far;
    let back = packet.from == far && packet.to == near;
    let to_gateway = packet.ports.is_some_and(|ports| ports.1 == GATEWAY);
    let from_gateway = packet.ports.is_some_and(|ports| ports.0 == GATEWAY);
    let is_connection = there && to_gateway || back && from_gateway;
    match i32::from(packet.protocol) {
        libc::IPPROTO_TCP => far_end.is_over_tcp() && is_connection,
        libc::IPPROTO_UDP => far_end.is_over_udp() && is_connection,
        libc::IPPROTO_ICMP => far_end.is_over_udp() && (there || back),
        _ => false,
    }
}

/// The program at the far end of the client's only connections.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FarEnd {
    Gateway,
    /// A gateway that the client reaches by DTLS over UDP.
    GatewayOverDtls,
    /// A gateway that the client reaches by QUIC over UDP.
    GatewayOverQuic,
    /// A gateway that the client reaches by QUIC, or by TCP where UDP does not work.
    GatewayByWays,
    /// A SOCKS proxy, for a client without a gateway.
    Proxy,
}

impl FarEnd {
    fn is_over_udp(self) -> bool {
        !matches!(self, Self::Gateway | Self::Proxy)
    }

    fn is_over_tcp(self) -> bool {
        !matches!(self, Self::GatewayOverDtls | Self::GatewayOverQuic)
    }
}

#[test]
fn only_the_gateway_is_ever_spoken_to() {
    records_only_permitted_packets(FarEnd::Gateway);
}

#[test]
fn client_over_dtls_sends_only_to_its_gateway() {
    records_only_permitted_packets(FarEnd::GatewayOverDtls);
}

#[test]
fn client_over_quic_sends_only_to_its_gateway() {
    records_only_permitted_packets(FarEnd::GatewayOverQuic);
}

#[test]
fn client_with_two_ways_sends_only_to_its_gateway() {
    records_only_permitted_packets(FarEnd::GatewayByWays);
}

#[test]
fn solo_speaks_to_its_proxy_only() {
    records_only_permitted_packets(FarEnd::Proxy);
}

fn records_only_permitted_packets(far_end: FarEnd) {
    require(&[
        ("curl", "curl"),
        ("unshare", "util-linux"),
        ("iptables", "iptables"),
    ]);
    let scratch = Scratch::new(match far_end {
        FarEnd::Gateway => "failclosed-test",
        FarEnd::GatewayOverDtls => "failclosed-dtls",
        FarEnd::GatewayOverQuic => "failclosed-quic",
        FarEnd::GatewayByWays => "failclosed-ways",
        FarEnd::Proxy => "failclosed-solo",
    });
    let capture = scratch.file("near.pcap");
    let wire = Wire::new(&capture);
    let client = scenes(&wire, &scratch, far_end);
    drop(client);
    let (_, written) = wire.0.emulator.stop();
    written.expect("no packet is missing");
    let seen = packets(&capture);
    let strange: Vec<_> = seen
        .iter()
        .filter(|packet| !is_allowed(packet, far_end))
        .collect();
    assert!(
        seen.len() > 100,
        "a page is more than {} packets",
        seen.len()
    );
    assert!(
        strange.is_empty(),
        "{} of {} packets: {:?}",
        strange.len(),
        seen.len(),
        &strange[..strange.len().min(10)]
    );
}

/// Returns the endpoints of the gateway's listener and of the client's gateway over UDP.
fn udp_endpoints(scratch: &Scratch, address: SocketAddr, far_end: FarEnd) -> [String; 2] {
    let made = rcgen::generate_simple_self_signed(vec![FAR.to_string()]).expect("random numbers");
    let (cert, key) = (scratch.file("gateway.pem"), scratch.file("gateway.key"));
    std::fs::write(&cert, made.cert.pem()).expect("scratch space");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("scratch space");
    let (cert, key) = (cert.display(), key.display());
    let scheme = if far_end == FarEnd::GatewayOverDtls {
        "h3+dtls"
    } else {
        "h3+quic"
    };
    let over_tcp = if far_end == FarEnd::GatewayByWays {
        format!(",h2+tcp://{address}")
    } else {
        String::new()
    };
    [
        format!("{scheme}://{address}?cert={cert}&key={key}"),
        format!("{scheme}://{address}?ca={cert}{over_tcp}"),
    ]
}

/// Runs the scenes in which a client could contact another host.
fn scenes(wire: &Wire, scratch: &Scratch, far_end: FarEnd) -> Running {
    let origin = SocketAddr::from((FAR, 80));
    let mut command = Command::new(LAB);
    command.args([
        "origin",
        "--page",
        PAGE,
        "--authority",
        SITE,
        "--listen",
        &origin.to_string(),
    ]);
    dns::serve(&wire.0.far, FAR).expect("a name server for the gateway");
    let resolver = scratch.file("resolv.conf");
    std::fs::write(&resolver, "nameserver 127.0.0.1\n").expect("scratch space");
    let _origin = wire.start(&wire.0.far, command, &[origin], &scratch.file("origin.log"));
    let address = SocketAddr::from((FAR, GATEWAY));
    // With the far host's own resolver in its own view of the files.
    let mut command = Command::new("unshare");
    command
        .args([
            "-m",
            "/bin/sh",
            "-c",
            "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"",
        ])
        .arg(resolver);
    command.arg(tandem());
    let [over_udp, dialled] = udp_endpoints(scratch, address, far_end);
    match far_end {
        FarEnd::Gateway
        | FarEnd::GatewayOverDtls
        | FarEnd::GatewayOverQuic
        | FarEnd::GatewayByWays => {
            command.args(["gateway", "--open", "--mode", "forward"]);
            command.args(["--allow-dest", &format!("{FAR}/32")]);
            // The listener over TCP also tells when the gateway is up.
            command.args(["--listen", &format!("h2+tcp://{address}")]);
            command.args(["--listen", &over_udp]);
        }
        FarEnd::Proxy => {
            command.args(["client", "--solo=direct", "--push=false"]);
            command.args(["--solo-allow-dest", &format!("{FAR}/32")]);
            command.args(["--listen", &format!("socks5://{address}")]);
        }
    }
    let gateway = wire.start(
        &wire.0.far,
        command,
        &[address],
        &scratch.file("gateway.log"),
    );
    let mut command = Command::new(tandem());
    command.args([
        "client",
        "--listen",
        &format!("http://{HTTP}"),
        "--listen",
        &format!("socks5://{SOCKS}"),
        "--metrics",
        METRICS,
    ]);
    match far_end {
        FarEnd::Gateway => command.args(["--gateway", &format!("h2+tcp://{address}")]),
        FarEnd::GatewayOverDtls | FarEnd::GatewayOverQuic | FarEnd::GatewayByWays => {
            command.args(["--gateway", &dialled])
        }
        FarEnd::Proxy => command.args(["--solo", "--via", &format!("socks5://{address}")]),
    };
    let listens = [HTTP, SOCKS].map(|address| address.parse().expect("an address"));
    let client = wire.start(&wire.0.near, command, &listens, &scratch.file("client.log"));

    if far_end == FarEnd::GatewayByWays {
        drops_of_udp(wire);
    }
    wire.load_page(&scratch.file("client.log"));
    let (http, socks) = (format!("http://{HTTP}"), format!("socks5h://{SOCKS}"));
    for proxy in [&http, &socks] {
        for path in ["/", "/images/0001.png", "/images/0019.png"] {
            assert_eq!(
                wire.curl(&["-x", proxy, &format!("http://{SITE}{path}")]),
                "200"
            );
            assert_eq!(
                wire.curl(&["-x", proxy, &format!("http://{FAR}{path}")]),
                "200"
            );
        }
        // Names that do not exist, and addresses that the gateway must not go to.
        let unknown = wire.curl(&["-x", proxy, "http://no-such-name.invalid/"]);
        assert!(["502", "504"].contains(&&*unknown), "{unknown}");
        assert_eq!(wire.curl(&["-x", proxy, "http://127.0.0.1:25/"]), "403");
    }
    // A tunnel to where nothing is; plain DNS over TCP through the proxy; an upgrade.
    wire.curl(&["-x", &http, "https://no-such-name.invalid/"]);
    wire.curl(&["-x", &socks, "https://no-such-name.invalid/"]);
    wire.curl(&[
        "-m",
        "2",
        "-x",
        &http,
        "-H",
        "Connection: Upgrade",
        "-H",
        "Upgrade: websocket",
        &format!("http://{FAR}/"),
    ]);

    drop(gateway);
    for proxy in [&http, &socks] {
        assert_eq!(
            wire.curl(&["-x", proxy, &format!("http://{FAR}/")]),
            "502",
            "the gateway is dead"
        );
        assert_eq!(
            wire.curl(&["-x", proxy, "http://no-such-name.invalid/"]),
            "502"
        );
        assert_eq!(
            wire.curl(&["-x", proxy, "https://no-such-name.invalid/"]),
            "000"
        );
    }
    client
}

/// Drops the datagrams to the gateway, and passes them again. The client's requests succeed all the
/// time, by the way that works.
fn drops_of_udp(wire: &Wire) {
    let proxy = format!("http://{HTTP}");
    let get = || {
        let url = format!("http://{SITE}/images/0001.png");
        assert_eq!(wire.curl(&["-x", &proxy, &url]), "200");
    };
    let until_way = |way: &str| {
        let url = format!("http://{METRICS}/status");
        let told = || {
            let status = wire.output(&["-sS", "-m", "5", &url]);
            status.contains(way).then_some(())
        };
        wait(way, Duration::from_secs(30), told);
    };
    get();
    until_way("h3 over QUIC");
    wire.udp("-A");
    get();
    until_way("h2 over TCP");
    wire.udp("-D");
    get();
}

/// Checks that the recorder sees forbidden packets.
#[test]
fn other_packets_would_be_seen() {
    require(&[]);
    let scratch = Scratch::new("failclosed-control");
    let capture = scratch.file("near.pcap");
    let wire = Wire::new(&capture);
    let sent = wire.0.near.run(|| {
        let socket = UdpSocket::bind((NEAR, 0))?;
        socket.send_to(b"a question", (Ipv4Addr::new(198, 18, 0, 53), 53))
    });
    sent.expect("everything goes to the device");
    let to = SocketAddr::from((FAR, 81));
    wire.0
        .near
        .run(|| TcpStream::connect(to))
        .expect_err("nobody listens there");
    let (_, written) = wire.0.emulator.stop();
    written.expect("no packet is missing");
    let seen = packets(&capture);
    let udp = Packet {
        from: NEAR.into(),
        to: Ipv4Addr::new(198, 18, 0, 53).into(),
        protocol: 17,
        ports: None,
    };
    assert!(
        seen.iter().any(|packet| Packet {
            ports: None,
            ..packet.clone()
        } == udp
            && !is_allowed(packet, FarEnd::Gateway)
            && !is_allowed(packet, FarEnd::GatewayOverDtls)),
        "{seen:?}"
    );
    assert!(
        seen.iter()
            .any(|packet| packet.ports.is_some_and(|ports| ports.1 == 81)
                && !is_allowed(packet, FarEnd::Gateway)),
        "{seen:?}"
    );
}
