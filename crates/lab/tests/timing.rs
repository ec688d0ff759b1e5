//! Timing client and server: straight, through proxies that misbehave, and over an emulated link.

#[path = "../../web/tests/programs/mod.rs"]
mod programs;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use programs::output;
use serde_json::Value;
use tandem_lab::timing::TimingError;
use tandem_lab::timing::client::{Direction, TimingPhase, TimingPlan, WarmUp, run};
use tandem_lab::timing::connect::open;
use tandem_lab::timing::report::TimingReport;
use tandem_lab::timing::server::TimingServer;
use tandem_web::loader::Via;
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

const LAB: &str = env!("CARGO_BIN_EXE_tandem-lab");

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Starts a timing server in a separate thread.
fn server(listen: &str) -> SocketAddr {
    let listen = listen.parse().expect("an address");
    let (told, address) = std::sync::mpsc::channel();
    thread::spawn(move || {
        runtime().block_on(async {
            let server = TimingServer::bind(listen).await.expect("a free port");
            told.send(server.address().expect("bound"))
                .expect("awaited");
            server.run().await;
        });
    });
    address.recv().expect("it listens")
}

fn plan(server: impl ToString) -> TimingPlan {
    TimingPlan {
        server: server.to_string(),
        via: Via::Direct,
        streams: 1,
        direction: Direction::Down,
        interval: Duration::from_millis(50),
        fresh: Some(Duration::from_millis(250)),
        base: Duration::from_secs(1),
        warm_up: WarmUp::For(Duration::from_secs(1)),
        time: Duration::from_secs(2),
    }
}

fn measured(plan: &TimingPlan) -> Result<TimingReport, TimingError> {
    LocalSet::new().block_on(&runtime(), run(plan, |_| {}))
}

#[test]
fn bulk_goes_both_ways_and_stamps_come_back() {
    let address = server("127.0.0.1:0");
    for direction in [Direction::Down, Direction::Up] {
        let report = measured(&TimingPlan {
            direction,
            streams: 2,
            ..plan(address)
        })
        .expect("measured");
        let phases: Vec<TimingPhase> = report.seconds.iter().map(|second| second.phase).collect();
        assert_eq!(
            phases,
            [
                TimingPhase::Base,
                TimingPhase::WarmUp,
                TimingPhase::Measured,
                TimingPhase::Measured
            ]
        );
        let throughput = report.throughput_mbit.expect("bulk");
        assert!(
            throughput.count == 2 && throughput.mean > 0.0,
            "{throughput:?}"
        );
        assert!(report.same_clock && report.block_age_ms.is_some_and(|age| age.mean >= 0.0));
        let base = report.base.as_ref().expect("a base");
        assert_eq!(
            (base.round_trip.count, base.failed, report.measured.failed),
            (20, 0, 0)
        );
        for latency in [base, &report.measured] {
            let (up, down) = (
                latency.up.expect("one clock"),
                latency.down.expect("one clock"),
            );
            assert!(
                (up.mean + down.mean - latency.round_trip.mean).abs() < 1e-6,
                "{latency:?}"
            );
            let (connect, fresh) = (
                latency.connect.expect("connections"),
                latency.fresh.expect("connections"),
            );
            assert!(
                connect.count == fresh.count && connect.max < fresh.max,
                "{latency:?}"
            );
        }
        let csv = report.csv();
        let mut lines = csv.lines().skip_while(|line| line.starts_with('#'));
        let columns = lines.next().map(|head| head.split(',').count());
        assert_eq!(columns, Some(10));
        assert_eq!(
            lines
                .map(|line| Some(line.split(',').count()))
                .collect::<Vec<_>>(),
            [columns; 4]
        );
        assert!(
            report.text().contains("beside bulk: new connection"),
            "{}",
            report.text()
        );
    }
}

#[test]
fn stamps_alone_need_no_bulk() {
    let plan = TimingPlan {
        streams: 0,
        base: Duration::ZERO,
        fresh: None,
        ..plan(server("127.0.0.1:0"))
    };
    let report = measured(&plan).expect("measured");
    assert!(
        report.throughput_mbit.is_none()
            && report.base.is_none()
            && report.measured.fresh.is_none()
    );
    assert_eq!(
        (report.seconds.len(), report.measured.round_trip.count),
        (2, 40)
    );
}

/// A rate that jumps for longer than it may take to become steady counts from then on, and says so.
#[test]
fn unsteady_runs_are_reported() {
    let warm_up = WarmUp::Steady(Duration::from_secs(2));
    let plan = TimingPlan {
        warm_up,
        base: Duration::ZERO,
        time: Duration::from_secs(1),
        ..plan(server("127.0.0.1:0"))
    };
    let report = measured(&plan).expect("measured");
    assert_eq!((report.steady, report.seconds.len()), (Some(false), 3));
    assert!(report.text().contains("never steady"), "{}", report.text());
}

/// Answers each connection with fixed bytes once it has spoken, then ends its own direction. Bytes
/// that stayed unread would turn the end of the connection into a reset.
fn answering(bytes: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for mut stream in listener.incoming().filter_map(Result::ok) {
            thread::spawn(move || {
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(bytes);
                let _ = stream.shutdown(Shutdown::Write);
                let _ = std::io::copy(&mut stream, &mut std::io::sink());
            });
        }
    });
    address
}

#[test]
fn proxies_that_refuse_or_misbehave_are_clear_errors() {
    let through = |scheme: &str, bytes: &'static [u8]| {
        let via = format!("{scheme}://{}", answering(bytes))
            .parse()
            .expect("a way");
        runtime()
            .block_on(open(&via, "target.example:7777"))
            .expect_err("no tunnel")
            .to_string()
    };
    for (scheme, bytes, expected) in [
        ("http", &b"HTTP/1.1 403 Forbidden\r\n\r\n"[..], "status 403"),
        (
            "http",
            b"HTTP/1.1 200 OK\r\n\r\nsurprise",
            "bytes of its own",
        ),
        ("http", b"HTTP/1.1 20", "closed the connection"),
        (
            "http",
            b"SSH-2.0-OpenSSH\r\n\r\n",
            "the proxy opens no tunnel",
        ),
        (
            "socks5",
            b"\x05\x00\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00",
            "refused",
        ),
        (
            "socks5",
            b"\x05\xff",
            "does not take this way of authentication",
        ),
        ("socks5", b"\x05\x00", "closed the connection"),
        (
            "socks5",
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "not SOCKS version 5",
        ),
    ] {
        let error = through(scheme, bytes);
        assert!(
            error.to_lowercase().contains(&expected.to_lowercase()),
            "{scheme} {bytes:?}: {error}"
        );
    }
    let error = runtime()
        .block_on(open(&Via::Direct, "no port"))
        .expect_err("no target")
        .to_string();
    assert!(error.contains("\"no port\""), "{error}");
}

#[test]
fn another_kind_of_server_is_a_clear_error() {
    let error = measured(&plan(answering(b"HTTP/1.1 400 Bad Request\r\n\r\n")))
        .expect_err("no timing server");
    assert_eq!(error.to_string(), "the server: is no timing server");
}

#[test]
fn the_server_says_what_is_wrong_with_a_request() {
    let address = server("127.0.0.1:0");
    let long = [b'x'; 10_000];
    for (request, expected) in [
        (
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            "error this is a timing server\n",
        ),
        (b"tandem-timing sideways\n", "error no such mode\n"),
        (&long, "error a request is one short line\n"),
    ] {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.write_all(request).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        assert_eq!(answer, expected);
    }
}

/// 8 Mbit/s and 100 ms: nothing is faster than the link.
#[test]
fn over_an_emulated_link() {
    let port = server("0.0.0.0:0").port();
    let client = format!(
        "{LAB} timing client $TANDEM_LINK_PEER:{port} --base 2s --warm-up 3s --time 4s --json -q"
    );
    let mut link = Command::new(programs::built("tandem-link", "tandem-net"));
    let text = output(link.args([
        "-q", "--rtt", "100ms", "--rate", "8mbit", "--", "sh", "-c", &client,
    ]));
    let report: Value = serde_json::from_str(&text).expect("JSON");
    let number = |pointer: &str| {
        report
            .pointer(pointer)
            .and_then(Value::as_f64)
            .unwrap_or_else(|| panic!("{pointer}"))
    };
    assert!(
        number("/base/round_trip/p50") >= 100.0 && number("/base/connect/p50") >= 100.0,
        "{report}"
    );
    assert!(
        number("/base/fresh/p50") >= 200.0,
        "a connection and a stamp are two round trips: {report}"
    );
    let throughput = number("/throughput_mbit/mean");
    // A second that was counted late may hold a little of the one before.
    assert!(throughput > 0.0 && throughput < 8.0 * 1.25, "{report}");
    assert!(report["run"]["link"].is_array(), "{report}");
}

#[test]
fn program_writes_completions() {
    for (shell, part) in [("bash", "complete -F"), ("fish", "complete -c tandem-lab")] {
        let written = Command::new(LAB).args(["completions", shell]).output();
        let written = written.expect("it starts");
        let text = String::from_utf8(written.stdout).expect("text");
        assert!(written.status.success() && text.contains(part), "{shell}");
        assert!(
            text.contains("tornet") && text.contains("attack"),
            "{shell}"
        );
    }
}
