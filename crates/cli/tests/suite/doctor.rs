//! Tests of `tandem doctor`: it names each planted fault, with a remedy, in one line.

use crate::certificates::Certificates;
use crate::harness::{endpoint, gateway_options, start_gateway};
use crate::messages::{nowhere, self_signed};
use crate::process::{file, run};

/// Runs the command. Returns its success and the lines of its output.
fn doctor(role: &str, arguments: &[&str]) -> (bool, Vec<String>) {
    let (ok, out, _) = run(&[&["doctor", role], arguments].concat());
    (ok, out.lines().map(str::to_owned).collect())
}

/// Returns the text of the only fault of a check.
fn the_fault(lines: &[String], check: &str) -> String {
    let faults: Vec<_> = lines
        .iter()
        .filter(|line| line.starts_with("FAULT"))
        .collect();
    assert_eq!(faults.len(), 1, "{lines:#?}");
    let rest = faults[0].strip_prefix("FAULT").unwrap().trim_start();
    let text = rest.strip_prefix(check);
    text.unwrap_or_else(|| panic!("{check}: {rest}")).to_owned()
}

/// A client's arguments for one gateway. Its listener takes any port, and the kernel's own
/// congestion control is enough.
fn client<'a>(gateway: &'a str, more: &[&'a str]) -> (bool, Vec<String>) {
    let mut arguments = vec!["--listen", "http://127.0.0.1:0", "--gateway", gateway];
    if !more.contains(&"--congestion") {
        arguments.push("--congestion=");
    }
    arguments.extend(more);
    doctor("client", &arguments)
}

#[test]
fn doctor_finds_no_fault_in_a_good_pair() {
    let (_gateway, address) = start_gateway(gateway_options());
    let (ok, lines) = client(&format!("h2+tcp://{address}"), &[]);
    assert!(ok, "{lines:#?}");
    for check in [
        "configuration",
        "port",
        "congestion",
        "gateway",
        "clock",
        "versions",
    ] {
        let is_good = |line: &String| {
            let rest = line.strip_prefix("ok").map(str::trim_start);
            rest.is_some_and(|rest| rest.starts_with(check))
        };
        assert!(lines.iter().any(is_good), "{check}: {lines:#?}");
    }
}

#[test]
fn doctor_names_each_fault_of_a_client() {
    let right = file("doctor-right", "correct-horse-battery-staple\n");
    let wrong = file("doctor-wrong", "incorrect-horse-battery-staple\n");
    let mut options = gateway_options();
    options.open = None;
    options.auth = vec![format!("token-file={}", right.display())];
    let (_closed, token) = start_gateway(options);
    let (_open, open) = start_gateway(gateway_options());

    let certificates = Certificates::new("doctor");
    let ca = certificates.path("ca.pem");
    let listen = format!("h2+tls://127.0.0.1:0?{}", certificates.identity());
    let mut options = gateway_options();
    options.listen = vec![endpoint(&listen)];
    let (_tls, tls) = start_gateway(options);

    let (future, future_key) = self_signed("doctor-future", 3900, 4000);
    let mut options = gateway_options();
    let listen = format!("h2+tls://127.0.0.1:0?cert={future}&key={future_key}");
    options.listen = vec![endpoint(&listen)];
    let (_later, later) = start_gateway(options);

    let (down, tor) = (nowhere(), nowhere());
    let (control, socks) = (format!("tor://{tor}"), format!("socks5://{tor}"));
    let wrong = wrong.to_str().unwrap();
    let port = tls.port();
    let direct = format!("h2+tcp://{open}");
    for (fault, gateway, more, check, words) in [
        (
            "wrong token",
            format!("h2+tcp://{token}"),
            vec!["--token-file", wrong],
            "token",
            "compare the first line",
        ),
        (
            "no token",
            format!("h2+tcp://{token}"),
            vec![],
            "token",
            "ask its operator",
        ),
        (
            "missing file",
            direct.clone(),
            vec!["--token-file", "/nonexistent"],
            "token",
            "cannot read",
        ),
        (
            "wrong name",
            format!("h2+tls://other.example:{port}?ip=127.0.0.1&ca={ca}"),
            vec![],
            "certificate",
            "use the name of the certificate",
        ),
        (
            "unknown authority",
            format!("h2+tls://{tls}"),
            vec![],
            "certificate",
            "add ?ca=FILE",
        ),
        (
            "closed port",
            format!("h2+tcp://{down}"),
            vec![],
            "port",
            "is the port right?",
        ),
        (
            "wrong clock",
            format!("h2+tls://{later}?ca={future}"),
            vec![],
            "clock",
            "set the clock",
        ),
        (
            "no BBR",
            direct.clone(),
            vec!["--congestion", "no-such"],
            "congestion",
            "modprobe tcp_bbr",
        ),
        (
            "no SOCKS proxy",
            "h2+tcp://example.onion:9980".into(),
            vec!["--via", &socks],
            "Tor",
            "is Tor running",
        ),
        (
            "a name to resolve",
            "h2+tls://gw.example:443".into(),
            vec![],
            "configuration",
            "add ?ip=ADDRESS",
        ),
    ] {
        let (ok, lines) = client(&gateway, &more);
        assert!(!ok, "{fault}: {lines:#?}");
        let text = the_fault(&lines, check);
        assert!(text.contains(words), "{fault}: {text}");
    }

    // Without the control port, both the port and the path to the gateway fail.
    let (ok, lines) = client("h2+tcp://192.0.2.80:9980?exit=auto", &["--via", &control]);
    let faults: Vec<_> = lines
        .iter()
        .filter(|line| line.starts_with("FAULT    Tor"))
        .collect();
    assert!(!ok && faults.len() == 2, "{lines:#?}");
    assert!(faults[0].contains("is Tor running"), "{faults:?}");
    for file in [&future, &future_key, &right.display().to_string(), wrong] {
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn doctor_names_each_fault_of_a_gateway() {
    let (cert, key) = self_signed("doctor-own", 2020, 4000);
    let (_, other_key) = self_signed("doctor-other", 2020, 4000);
    let with = |key: &str| format!("h2+tls://127.0.0.1:0?cert={cert}&key={key}");
    let (good, mismatched) = (with(&key), with(&other_key));
    let base = |listen: &str, more: &[&str]| {
        let arguments = ["--open", "--listen", listen, "--congestion=", "--resolve"];
        doctor("gateway", &[&arguments[..], more].concat())
    };
    let (ok, lines) = base(&good, &["localhost"]);
    assert!(ok, "{lines:#?}");
    let elsewhere = "h2+tcp://192.0.2.1:0";
    for (listen, name, check, words) in [
        (good.as_str(), "no-such-name.invalid", "DNS", "resolv.conf"),
        (&mismatched, "localhost", "certificate", "does not belong"),
        (elsewhere, "localhost", "port", "no interface"),
    ] {
        let (ok, lines) = base(listen, &[name]);
        let text = the_fault(&lines, check);
        assert!(!ok && text.contains(words), "{check}: {text}");
    }
}
