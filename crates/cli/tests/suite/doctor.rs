//! Tests of `tandem doctor`: it names each planted fault, with a remedy, in one line.

use std::net::SocketAddr;

use crate::certificates::Certificates;
use crate::harness::{
    Scene, client_options, endpoint, gateway_options, start_client, start_gateway,
};
use crate::messages::{local_proxy, nowhere, refusing_proxy, self_signed};
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

/// A client's arguments for one gateway, or for none if it is empty. Its listener takes any port,
/// and the kernel's own congestion control is enough.
fn client<'a>(gateway: &'a str, more: &[&'a str]) -> (bool, Vec<String>) {
    let mut arguments = vec!["--listen", "http://127.0.0.1:0"];
    if !gateway.is_empty() {
        arguments.extend(["--gateway", gateway]);
    }
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
        assert!(is_good(&lines, check), "{check}: {lines:#?}");
    }
}

/// Returns true if a line tells that a check found no fault.
fn is_good(lines: &[String], check: &str) -> bool {
    let mut good = lines.iter().filter_map(|line| line.strip_prefix("ok"));
    good.any(|rest| rest.trim_start().starts_with(check))
}

#[test]
fn doctor_checks_the_proxy_of_a_solo_client() {
    let origin = Scene::new(|_, _| ());
    let via = |proxy: SocketAddr| format!("socks5://{proxy}");
    let (good, refusing) = (via(local_proxy()), via(refusing_proxy(4)));
    let answering = |answer: &'static [u8]| {
        let proxy = Scene::new(move |_, mut client| {
            client.read_exact(3);
            client.send(answer);
            client.is_closed();
        });
        via(proxy.address)
    };
    let (no_keys, no_socks) = (answering(&[5, 0xff]), answering(b"HTTP/1.1 400 No\r\n\r\n"));
    let site = format!("site.example:{}", origin.address.port());
    let (ok, lines) = client("", &["--solo", "--via", &good, "--site", &site]);
    assert!(ok && is_good(&lines, "site"), "{lines:#?}");

    // Without a site, only the greeting is sent: the proxy is the SOCKS listener of a client.
    let (_gateway, address) = start_gateway(gateway_options());
    let (_client, _, socks) = start_client(client_options(&format!("h2+tcp://{address}")));
    let (ok, lines) = client("", &["--solo", "--via", &via(socks)]);
    assert!(ok && is_good(&lines, "Tor"), "{lines:#?}");

    let (ok, lines) = client("", &["--solo", "--via", &no_keys]);
    let warning = lines.iter().find(|line| line.starts_with("warning"));
    assert!(ok && !is_good(&lines, "Tor"), "{lines:#?}");
    assert!(warning.is_some_and(|line| line.contains("no user and password")));
    for (via, check, words) in [
        (refusing, "site", "does not reach site.example"),
        (no_socks, "Tor", "is that its SOCKS port?"),
    ] {
        let (ok, lines) = client("", &["--solo", "--via", &via, "--site", &site]);
        let text = the_fault(&lines, check);
        assert!(!ok && text.contains(words), "{via}: {text}");
    }
    let (ok, lines) = client(&format!("h2+tcp://{address}"), &["--site", &site]);
    assert!(!ok && lines.is_empty(), "{lines:#?}");
}

#[test]
fn doctor_reaches_the_site_without_a_proxy() {
    let origin = Scene::new(|_, _| ());
    let site = origin.address.to_string();
    let allowed = ["--solo=direct", "--solo-allow-dest", "127.0.0.0/8"];
    let (ok, lines) = client("", &[&allowed[..], &["--site", &site]].concat());
    assert!(ok && is_good(&lines, "site"), "{lines:#?}");
    let closed = nowhere().to_string();
    for (more, site) in [(&allowed[..], &closed), (&["--solo=direct"][..], &site)] {
        let (ok, lines) = client("", &[more, &["--site", site]].concat());
        let text = the_fault(&lines, "site");
        assert!(!ok && text.contains("does not reach 127."), "{text}");
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
            "check the host, or add ?sni=NAME",
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
            "no SOCKS proxy and no gateway",
            String::new(),
            vec!["--solo", "--via", &socks],
            "Tor",
            "is Tor running",
        ),
        (
            "no control port and no gateway",
            String::new(),
            vec!["--solo", "--via", &control],
            "Tor",
            "is Tor running",
        ),
        (
            "a name that the resolver does not find",
            "h2+tls://no-such-name.invalid:443?resolve=system".into(),
            vec![],
            "DNS",
            "check the name and the network, or add ip=",
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

/// The client would not start.
#[test]
fn doctor_reads_the_local_authority_of_a_client() {
    let name = format!("tandem-doctor-authority-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&directory).unwrap();
    let key = directory.join("authority.key");
    for (name, content) in [("authority.key", "garbage"), ("authority.pem", "garbage")] {
        let file = directory.join(name);
        std::fs::write(&file, content).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, private).unwrap();
    }
    assert!(key.exists());
    let (_running, gateway) = start_gateway(gateway_options());
    let gateway = format!("h2+tcp://{gateway}");
    let authority = directory.to_str().unwrap();
    let more = ["--listen", "h2+tls://127.0.0.1:0", "--authority", authority];
    let (ok, lines) = client(&gateway, &more);
    let text = the_fault(&lines, "certificate");
    let remedy = "run `tandem trust --remove`, and then `tandem trust` again";
    assert!(!ok && text.ends_with(remedy), "{text}");
    std::fs::remove_dir_all(directory).unwrap();
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
