//! Tests of `tandem-link` as a user runs it: real packets of real programs, through namespaces of
//! this machine.
//!
//! The tests need /dev/net/tun, and root or user namespaces, as the program does; curl, bash and ss
//! are the programs behind the link.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tandem-link");

/// A directory of one test's own, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("tandem-link-test-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("temporary directory");
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn link(arguments: &[&str]) -> Output {
    Command::new(PROGRAM)
        .args(arguments)
        .output()
        .expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

/// A web server of this host that answers every request with `size` bytes; its port.
fn serve(size: usize) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        for mut stream in listener.incoming().filter_map(Result::ok) {
            thread::spawn(move || {
                let _ = stream.read(&mut [0; 4096]);
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
                );
                let _ = stream
                    .write_all(head.as_bytes())
                    .and_then(|()| stream.write_all(&vec![b'x'; size]));
                let _ = stream.read(&mut [0; 1]);
            });
        }
    });
    port
}

fn json(path: &str) -> Value {
    serde_json::from_slice(&fs::read(path).expect("written")).expect("JSON")
}

#[test]
fn outer_host_is_reached_with_the_link_s_delay() {
    let (scratch, port) = (Scratch::new("reach"), serve(300_000));
    let (counters, capture) = (scratch.file("counters"), scratch.file("pcap"));
    let fetch = format!(
        "curl -sS -o /dev/null -w '%{{http_code}} %{{size_download}} %{{time_connect}}' http://$TANDEM_LINK_PEER:{port}/"
    );
    let output = link(&[
        "-q", "--rtt", "100ms", "--json", &counters, "--pcap", &capture, "--", "sh", "-c", &fetch,
    ]);
    let answer = text(&output.stdout);
    let fields: Vec<&str> = answer.split(' ').collect();
    assert_eq!(
        fields[..2],
        ["200", "300000"],
        "{answer} {}",
        text(&output.stderr)
    );
    let connect: f64 = fields[2].parse().expect("seconds");
    assert!(
        connect >= 0.1,
        "connected after {connect} s: before a round trip"
    );
    let counters = json(&counters);
    assert_eq!(
        counters["run"]["links"][0]["directions"][0], "delay 50ms",
        "{counters}"
    );
    assert_eq!(
        (&counters["run"]["seed"], &counters["run"]["mtu"]),
        (&1.into(), &1500.into())
    );
    let down = &counters["links"][0];
    assert_eq!(
        (&down["from"], &down["to"]),
        (&"outside".into(), &"command".into())
    );
    assert!(
        down["delivered"]["bytes"].as_u64().expect("a number") > 300_000,
        "{down}"
    );
    assert_eq!(counters["ports"][1]["dropped_before"], 0, "{counters}");
    let packets = packets_of(&fs::read(&capture).expect("written"));
    let port_counters = &counters["ports"][1];
    let counted = port_counters["sent"]["packets"]
        .as_u64()
        .zip(port_counters["received"]["packets"].as_u64());
    assert_eq!(
        counted.map(|(sent, received)| sent + received),
        Some(packets.len() as u64)
    );
    assert!(
        packets[0].len() >= 40 && packets[0][33] & 0x12 == 0x02,
        "the first packet opens the connection"
    );
}

/// The packets of a capture file.
fn packets_of(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes = &bytes[24..];
    let mut packets = Vec::new();
    while !bytes.is_empty() {
        let len = u32::from_ne_bytes(bytes[8..12].try_into().expect("four bytes")) as usize;
        packets.push(bytes[16..16 + len].to_vec());
        bytes = &bytes[16 + len..];
    }
    packets
}

#[test]
fn lost_packets_are_sent_again_by_tcp_and_counted() {
    let (scratch, port) = (Scratch::new("loss"), serve(200_000));
    let counters = scratch.file("counters");
    let fetch =
        format!("curl -sS -o /dev/null -w '%{{size_download}}' http://$TANDEM_LINK_PEER:{port}/");
    let output = link(&[
        "-q",
        "--loss",
        "every:20/0",
        "--json",
        &counters,
        "--",
        "sh",
        "-c",
        &fetch,
    ]);
    assert_eq!(text(&output.stdout), "200000", "{}", text(&output.stderr));
    let down = &json(&counters)["links"][0];
    let (received, lost) = (down["received"]["packets"].as_u64(), down["lost"].as_u64());
    assert_eq!(received.map(|n| n / 20), lost, "{down}");
    assert!(lost >= Some(6), "200 kB are at least 138 packets: {down}");
}

#[test]
fn there_is_no_other_way_out() {
    let port = serve(10);
    let fetch = format!(
        "curl -s -m 2 -o /dev/null http://127.0.0.1:{port}/; echo $?; ls /sys/class/net 2>/dev/null | wc -l; tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort | tr '\\n' ' '"
    );
    let output = link(&["-q", "--", "sh", "-c", &fetch]);
    let answer = text(&output.stdout);
    assert!(
        answer.starts_with('7'),
        "connection refused inside, whatever listens outside: {answer}"
    );
    assert!(answer.ends_with("lo tandem0"), "{answer}");
}

#[test]
fn a_dead_link_ends_the_command_with_its_own_code() {
    let port = serve(10);
    let fetch = format!("curl -s -m 1 http://$TANDEM_LINK_PEER:{port}/");
    assert_eq!(
        link(&["-q", "--loss", "100%", "--", "sh", "-c", &fetch])
            .status
            .code(),
        Some(28),
        "curl's time-out"
    );
}

#[test]
fn exit_codes_are_the_commands() {
    assert_eq!(
        link(&["-q", "--", "sh", "-c", "exit 7"]).status.code(),
        Some(7)
    );
    assert_eq!(
        link(&["-q", "--", "sh", "-c", "kill -9 $$"]).status.code(),
        Some(128 + 9)
    );
    let missing = link(&["-q", "--", "no-such-program"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing.stderr).contains("no-such-program"));
}

#[test]
fn bad_parameters_and_files_are_clear_errors() {
    let cases: [(&[&str], &str); 8] = [
        (&["--loss", "200%", "--", "true"], "200%"),
        (
            &["--rate", "trace:/no/such/trace", "--", "true"],
            "/no/such/trace",
        ),
        (&["--profile", "9g", "--", "true"], "slow-4g"),
        (&["--pcap", "/dev/full", "--", "true"], "/dev/full"),
        (
            &["--log", "/no/such/dir/log", "--", "true"],
            "/no/such/dir/log",
        ),
        (&["--json", "/dev/full", "--", "true"], "/dev/full"),
        // The command does not run first.
        (
            &["--json", "/no/such/dir", "--", "echo", "ran"],
            "/no/such/dir",
        ),
        (
            &["--congestion", "no-such-control", "--", "true"],
            "no congestion control \"no-such-control\"",
        ),
    ];
    for (arguments, expected) in cases {
        let output = link(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
    assert!(text(&link(&["--queue", "20", "--", "true"]).stderr).contains("add --rate"));
}

#[test]
fn hosts_of_a_topology_reach_each_other() {
    let scratch = Scratch::new("topology");
    let file = scratch.file("net.toml");
    let topology = "routers = ['middle']\n[hosts.left]\n[hosts.right]\naddresses = ['10.9.0.1']\n\
        [[links]]\nbetween = ['left', 'middle']\ndelay = '30ms'\n\
        [[links]]\nbetween = ['middle', 'right']\ndelay = '20ms'\n";
    fs::write(&file, topology).expect("temporary file");
    let refused = "curl -s -m 20 -w '%{time_total}' http://$TANDEM_LINK_RIGHT:9/";
    let output = link(&[
        "topology", "-q", &file, "--on", "left", "--", "sh", "-c", refused,
    ]);
    assert_eq!(
        output.status.code(),
        Some(7),
        "refused by the host at the other end: {}",
        text(&output.stderr)
    );
    let seconds: f64 = text(&output.stdout).parse().expect("seconds");
    assert!(
        seconds >= 0.1,
        "refused after {seconds} s: before a round trip"
    );

    fs::write(
        &file,
        topology.replace("middle', 'right", "middle', 'nowhere"),
    )
    .expect("temporary file");
    let output = link(&["topology", &file, "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(
        text(&output.stderr).contains("\"nowhere\""),
        "{}",
        text(&output.stderr)
    );
    let output = link(&["topology", "/no/such/file", "--", "true"]);
    assert!(
        text(&output.stderr).contains("/no/such/file"),
        "{}",
        text(&output.stderr)
    );
}

/// Returns the processes of this machine that have `marker` in their command line.
fn processes_with(marker: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc")
        .expect("procfs")
        .filter_map(Result::ok);
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines
        .map(|line| text(&line).replace('\0', " "))
        .filter(|line| line.contains(marker))
        .collect()
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "never happened: {what}"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn nothing_outlives_a_killed_link() {
    let marker = format!("86400.{}", std::process::id());
    let commands = format!("sleep {marker} & setsid sleep {marker} & exec sleep {marker}");
    let mut child = Command::new(PROGRAM)
        .args(["-q", "--", "sh", "-c", &commands])
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    let sleeping = || {
        processes_with(&marker)
            .iter()
            .filter(|line| line.starts_with("sleep"))
            .count()
    };
    wait_for("three sleepers", || sleeping() == 3);
    let device = format!("tl{}", child.id());
    child.kill().expect("ours");
    child.wait().expect("ours");
    wait_for("the end of all", || processes_with(&marker).is_empty());
    wait_for("the end of the device", || {
        !fs::read_to_string("/proc/net/dev")
            .expect("procfs")
            .contains(&device)
    });
}

#[test]
fn a_signal_to_end_goes_on_to_the_command() {
    let script = "trap 'echo ended; exit 9' TERM; echo ready; while :; do sleep 0.1; done";
    let mut child = Command::new(PROGRAM)
        .args(["-q", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut stdout = child.stdout.take().expect("piped");
    let mut ready = [0; 6];
    stdout.read_exact(&mut ready).expect("the command speaks");
    tandem_net::emulator::sys::kill(child.id(), libc::SIGTERM).expect("ours");
    let status = child.wait().expect("ours");
    assert_eq!((status.code(), status.signal()), (Some(9), None));
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("text");
    assert_eq!(rest.trim(), "ended");
}

#[test]
fn links_nest_and_their_delays_add_up() {
    let port = serve(10);
    let script = format!(
        "OUTER=$TANDEM_LINK_PEER; export OUTER; {PROGRAM} -q --rtt 70ms -- \
         sh -c 'curl -sS -o /dev/null -w \"%{{http_code}} %{{time_connect}}\" http://$OUTER:{port}/'"
    );
    let output = link(&["-q", "--rtt", "50ms", "--", "sh", "-c", &script]);
    let answer = text(&output.stdout);
    let connect = answer
        .strip_prefix("200 ")
        .and_then(|seconds| seconds.parse::<f64>().ok());
    assert!(
        connect.is_some_and(|seconds| seconds >= 0.12),
        "{answer} {}",
        text(&output.stderr)
    );
}

#[test]
fn users_without_privileges_have_links_too() {
    let port = serve(1000);
    let scratch = Scratch::new("rootless");
    // Neither the build's directory nor the test's need be open to others.
    let copy = scratch.file("tandem-link");
    fs::copy(PROGRAM, &copy).expect("temporary file");
    let open = |path: &str| {
        Command::new("chmod")
            .args(["755", path])
            .status()
            .is_ok_and(|status| status.success())
    };
    assert!(open(&copy) && open(&scratch.0.display().to_string()));
    let fetch = format!(
        "id -u; curl -sS -o /dev/null -w '%{{http_code}} %{{size_download}}' http://$TANDEM_LINK_PEER:{port}/"
    );
    let root = text(&Command::new("id").arg("-u").output().expect("id").stdout) == "0";
    let output = if root {
        let drop = [
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            &copy,
            "-q",
            "--",
            "sh",
            "-c",
            &fetch,
        ];
        Command::new("setpriv")
            .args(drop)
            .current_dir("/")
            .output()
            .expect("setpriv of util-linux")
    } else {
        link(&["-q", "--", "sh", "-c", &fetch])
    };
    let answer = text(&output.stdout);
    assert!(
        answer.ends_with("200 1000"),
        "{answer} {}",
        text(&output.stderr)
    );
    assert!(
        !root || answer.starts_with("65534"),
        "the command runs as its user: {answer}"
    );
}

#[test]
fn other_shells_are_measured_beside_this_one() {
    let shell = format!("{PROGRAM} --quiet --delay {{ms}}ms --");
    let options = [
        "self-test",
        "--only",
        "beside",
        "--json",
        "--turns",
        "2",
        "--time",
        "200ms",
        "--beside",
    ];
    let output = link(&[&options[..], &[&shell]].concat());
    let rows: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let of = |shell: &str, what: &str| {
        let mut rows = rows.as_array().expect("rows").iter();
        let row = rows.find(|row| row["shell"] == shell && row["what"] == what);
        row.and_then(|row| row["value"].as_f64())
            .unwrap_or_else(|| panic!("no {what} of {shell}: {rows:?}"))
    };
    for shell in [&*shell, "tandem-link --delay {ms}ms --"] {
        assert!(of(shell, "TCP out at 0 ms") > 0.0 && of(shell, "TCP back at 20 ms") > 0.0);
        assert!(of(shell, "its processor time at 0 ms") >= 0.0);
        // An error of a whole delay would be a clock that is not one.
        assert!(of(shell, "delay error, p50") < 20.0);
        assert!((0.0..100.0).contains(&of(shell, "datagrams lost beside 100 Mbit/s")));
    }
}

#[test]
fn shells_that_do_not_work_are_clear_errors() {
    for (shell, expected) in [
        ("no-such-shell {ms}", "no-such-shell 0"),
        ("true", "true: ended before"),
    ] {
        let output = link(&["self-test", "--only", "beside", "--beside", shell]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}

/// A server of this host that takes bytes until the other end has no more; its port.
fn sink() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
        }
    });
    port
}

/// Returns the value of a field in a line of `ss -i`, such as `cwnd:10`.
fn field<'a>(said: &'a str, name: &str) -> &'a str {
    let value = said
        .split_whitespace()
        .find_map(|word| word.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("no {name} in {said:?}"))
}

fn round_trip(said: &str) -> f64 {
    field(said, "rtt")
        .split('/')
        .next()
        .and_then(|ms| ms.parse().ok())
        .expect("milliseconds")
}

#[test]
fn the_kernels_tcp_sees_the_link_and_its_settings() {
    let port = sink();
    let counters = Scratch::new("tcp");
    let json_file = counters.file("json");
    let script = format!(
        "exec 3<>/dev/tcp/$TANDEM_LINK_PEER/{port}; ss -tin state established; echo opened; read -r go"
    );
    let settings = [
        "--congestion",
        "reno",
        "--initcwnd",
        "23",
        "--json",
        &json_file,
    ];
    let mut child = Command::new(PROGRAM)
        .args(["-q", "--rtt", "80ms"])
        .args(settings)
        .args(["--", "bash", "-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let (mut inside, mut byte) = (Vec::new(), [0]);
    while !inside.ends_with(b"opened\n")
        && child
            .stdout
            .as_mut()
            .expect("piped")
            .read(&mut byte)
            .expect("text")
            > 0
    {
        inside.push(byte[0]);
    }
    let look = || {
        let ended = Command::new("ss")
            .args([
                "-tin",
                "state",
                "established",
                "sport",
                "=",
                &format!(":{port}"),
            ])
            .output();
        text(&ended.expect("ss of iproute2").stdout)
    };
    // The other end has the connection once the handshake's last packet has crossed the link.
    wait_for("a connection at the other end", || look().contains("cwnd"));
    let around = look();
    drop(child.stdin.take());
    assert_eq!(
        child.wait().expect("ours").code(),
        Some(1),
        "nothing was there to read"
    );
    for said in [text(&inside), around] {
        assert!(said.contains(" reno "), "{said}");
        assert_eq!(field(&said, "cwnd"), "23", "{said}");
        assert!(round_trip(&said) >= 80.0, "{said}");
    }
    let run = &json(&json_file)["run"];
    assert_eq!(
        (&run["congestion"], &run["initial_window"]),
        (&"reno".into(), &23.into()),
        "{run}"
    );
}

#[test]
fn the_kernels_tcp_counts_what_it_sends_again() {
    let port = sink();
    let script = format!(
        "exec 3<>/dev/tcp/$TANDEM_LINK_PEER/{port}; head -c 300000 /dev/zero >&3; \
         for turn in $(seq 1000); do ss -tin | grep -q bytes_acked:300001 && break; sleep 0.05; done; ss -tin"
    );
    let output = link(&[
        "-q",
        "--rtt",
        "20ms",
        "--loss",
        "0/every:20",
        "--",
        "bash",
        "-c",
        &script,
    ]);
    let said = text(&output.stdout);
    let again: u64 = field(&said, "bytes_retrans").parse().expect("a number");
    assert!(
        again >= 10 * 1000,
        "207 segments, of which every twentieth is lost: {said}"
    );
}
