//! Tests of the messages of the program in each situation that a user may meet.

use std::io::Write as _;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

use crate::certificates::Certificates;
use crate::harness::{Client, PATIENCE, Scene, endpoint, gateway_options, start_gateway};
use crate::process::{Process, file, run};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Returns an address without a listener. No other process listens at its host: at 127.0.0.1, a
/// test that runs at the same time could get the port.
pub(crate) fn nowhere() -> SocketAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    TcpListener::bind((Ipv4Addr::new(127, 99, high, low), 0))
        .unwrap()
        .local_addr()
        .unwrap()
}

fn client(gateway: &str, more: &[&str]) -> Process {
    let mut arguments = vec!["client", "--listen", "http://127.0.0.1:0"];
    arguments.extend(["--gateway", gateway]);
    arguments.extend(more);
    Process::start(&arguments)
}

/// Starts a SOCKS5 proxy that answers each request with one code.
pub(crate) fn refusing_proxy(code: u8) -> SocketAddr {
    let refuse = move |_, mut client: Client| {
        answer_socks(&mut client, code);
        // The first bytes of the session may still come. If they stayed unread, the end of the
        // connection would be a reset, and the client could fail before it reads the answer.
        client.is_closed();
    };
    Scene::new(refuse).address
}

/// Starts a SOCKS5 proxy for which every name is this machine.
pub(crate) fn local_proxy() -> SocketAddr {
    let proxy = Scene::new(|_, mut client| {
        let port = answer_socks(&mut client, 0);
        let mut far = TcpStream::connect(("127.0.0.1", port)).unwrap();
        // The first bytes may come with the request for the connection.
        far.write_all(client.stream.buffer()).unwrap();
        let mut near = client.stream.into_inner();
        let (mut from, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
        let _ = std::io::copy(&mut far, &mut near);
        let _ = near.shutdown(Shutdown::Write);
    });
    proxy.address
}

/// Answers a request for SOCKS5 with this code, and returns the requested port.
fn answer_socks(client: &mut Client, code: u8) -> u16 {
    let greeting = client.read_exact(2);
    let methods = client.read_exact(usize::from(greeting[1]));
    client.send([5, methods[0]]);
    if methods[0] == 2 {
        let user = usize::from(client.read_exact(2)[1]);
        client.read_exact(user);
        let password = usize::from(client.read_exact(1)[0]);
        client.read_exact(password);
        client.send([1, 0]);
    }
    let host = usize::from(client.read_exact(5)[4]);
    client.read_exact(host);
    let port = client.read_exact(2);
    client.send([5, code, 0, 1, 0, 0, 0, 0, 0, 0]);
    u16::from_be_bytes([port[0], port[1]])
}

/// Creates a self-signed certificate for 127.0.0.1, valid between two years; returns the paths of
/// certificate and key.
pub(crate) fn self_signed(name: &str, from: i32, until: i32) -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(from, 3, 3);
    params.not_after = rcgen::date_time_ymd(until, 3, 3);
    let certificate = params.self_signed(&key).unwrap();
    let cert = file(&format!("{name}.pem"), &certificate.pem());
    let key = file(&format!("{name}.key"), &key.serialize_pem());
    (cert.display().to_string(), key.display().to_string())
}

fn tls_gateway(cert: &str, key: &str) -> (tandem::runtime::Running, SocketAddr) {
    let mut options = gateway_options();
    let listen = format!("h2+tls://127.0.0.1:0?cert={cert}&key={key}");
    options.listen = vec![endpoint(&listen)];
    start_gateway(options)
}

#[test]
fn tls_failures_name_gateway_and_remedy() {
    let (cert, key) = self_signed("valid", 2020, 4000);
    let (old, old_key) = self_signed("old", 2019, 2020);
    let (_valid, valid) = tls_gateway(&cert, &key);
    let (_expired, expired) = tls_gateway(&old, &old_key);
    let (_plain, plain) = start_gateway(gateway_options());
    for (gateway, says) in [
        (
            format!("h2+tls://{valid}"),
            vec!["authority that is not known here", "?ca=FILE"],
        ),
        (
            format!("h2+tls://{expired}?ca={old}"),
            vec!["expired on 3 March 2020", "the clock of this machine says"],
        ),
        (
            format!("h2+tls://{plain}"),
            vec!["does not speak TLS", "log-in page", "--listen"],
        ),
        (
            format!("h2+tcp://{valid}"),
            vec!["the other end seems to speak TLS: use h2+tls"],
        ),
    ] {
        let mut client = client(&gateway, &[]);
        let line = client.wait_for("cannot be used");
        let authority = endpoint(&gateway).authority();
        for part in says.into_iter().chain([authority.as_str(), "WARN"]) {
            assert!(line.contains(part), "{gateway}: {part:?} is not in {line}");
        }
    }
    for file in [cert, key, old, old_key] {
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn client_distinguishes_gateway_and_tor_failures() {
    let (down, proxy) = (nowhere(), nowhere());
    let mut direct = client(&format!("h2+tcp://{down}"), &[]);
    let line = direct.wait_for("does not answer");
    let words = format!("gateway {down} does not answer: connection refused ({down})");
    assert!(line.contains(&words), "{line}");
    let answer = Client::to(direct.address).get("http://site.example/");
    let page = String::from_utf8(answer.body).unwrap();
    assert_eq!(answer.status, 502);
    assert!(page.contains("gateway: connection refused"), "{page}");
    assert!(!page.contains(&down.port().to_string()), "{page}");

    let via = format!("socks5://{proxy}");
    let mut over_tor = client("h2+tcp://example.onion:9980", &["--via", &via]);
    let line = over_tor.wait_for("does not answer");
    let words = format!(
        "the proxy on the way to gateway example.onion:9980 does not answer: \
         connection refused ({proxy}): is Tor running"
    );
    assert!(line.contains(&words), "{line}");
    let answer = Client::to(over_tor.address).get("http://site.example/");
    let page = String::from_utf8(answer.body).unwrap();
    assert!(
        page.contains("The proxy on the way to the gateway"),
        "{page}"
    );
    assert!(!page.contains(&proxy.port().to_string()), "{page}");

    let control = format!("tor://{proxy}");
    let mut over_control = client("h2+tcp://example.onion:9980", &["--via", &control]);
    let line = over_control.wait_for("does not answer");
    assert!(
        line.contains("Tor's control port: connection refused"),
        "{line}"
    );
}

#[test]
fn each_extended_socks_error_has_a_message() {
    for (code, words) in [
        (0x01, "flag ExtendedErrors"),
        (0xf0, "descriptor was not found: no such service"),
        (0xf1, "descriptor is not valid"),
        (0xf2, "introduction to the onion service failed"),
        (0xf3, "rendezvous with the onion service failed"),
        (0xf4, "wants client authorization: give Tor its key"),
        (0xf5, "refuses the client authorization"),
        (0xf6, "not a valid onion address"),
        (0xf7, "introduction to the onion service timed out"),
    ] {
        let via = format!("socks5://{}", refusing_proxy(code));
        let mut client = client("h2+tcp://example.onion:9980", &["--via", &via]);
        let line = client.wait_for("gateway example.onion:9980 does not answer");
        assert!(line.contains(words), "{code:#x}: {line}");
    }
}

#[test]
fn both_ends_log_a_wrong_token() {
    let right = file("right-token", "correct-horse-battery-staple\n");
    let wrong = file("wrong-token", "incorrect-horse-battery-staple\n");
    let auth = format!("token-file={}", right.display());
    let listen = "h2+tcp://127.0.0.1:0";
    let mut gateway = Process::start(&["gateway", "--listen", listen, "--auth", &auth]);
    let to = format!("h2+tcp://{}", gateway.address);
    let mut without = client(&to, &[]);
    let line = without.wait_for("does not let this client in");
    assert!(line.contains("--token-file"), "{line}");
    let mut with = client(&to, &["--token-file", wrong.to_str().unwrap()]);
    let line = with.wait_for("does not let this client in");
    assert!(line.contains("does not accept the access token"), "{line}");
    let line = gateway.wait_for("access token");
    assert!(line.contains("WARN") && !line.contains("horse"), "{line}");
    // A browser gets the error too: its tunnel is refused, not agreed to and reset.
    let mut browser = Client::to(with.address);
    browser.send("CONNECT site.example:443 HTTP/1.1\r\nHost: site.example:443\r\n\r\n");
    assert_eq!(browser.answer("CONNECT").status, 407);
    let mut good = client(&to, &["--token-file", right.to_str().unwrap()]);
    good.wait_for("session with gateway");
    for file in [right, wrong] {
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn client_logs_loss_and_return_of_sessions() {
    let place = nowhere().to_string();
    let listen = format!("h2+tcp://{place}");
    let start = || Process::start(&["gateway", "--open", "--listen", &listen]);
    let mut gateway = start();
    let mut client = client(&listen, &[]);
    let line = client.wait_for("session with gateway");
    let words = format!("session with gateway {place}: h2 over TCP, ");
    assert!(line.contains(&words) && line.contains(" ms"), "{line}");
    assert!(line.contains("INFO") && !line.contains('\u{1b}'), "{line}");
    gateway.kill();
    client.wait_for("does not answer: connection refused");
    let _gateway = start();
    client.wait_for(&words);
}

#[test]
fn client_logs_silent_gateway_in_time() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let gateway = format!("h2+tcp://{}", silent.local_addr().unwrap());
    let mut client = client(&gateway, &[]);
    let line = client.wait_for("has not answered in 4 s");
    assert!(line.contains("still trying"), "{line}");
}

#[test]
fn both_ends_log_a_refused_destination() {
    let origin = Scene::answering(OK);
    let listen = "h2+tcp://127.0.0.1:0";
    let mut gateway = Process::start(&["gateway", "--open", "--listen", listen]);
    let mut client = client(&format!("h2+tcp://{}", gateway.address), &[]);
    client.wait_for("session with gateway");
    let answer = Client::to(client.address).get(&origin.url("/"));
    let page = String::from_utf8(answer.body).unwrap();
    assert_eq!(answer.status, 403);
    assert!(
        page.contains("gateway: that address or port is not allowed"),
        "{page}"
    );
    let line = gateway.wait_for("destination was refused");
    assert!(line.contains("--allow-dest"), "{line}");
    assert!(!line.contains(&origin.address.port().to_string()), "{line}");

    // The client agrees to the tunnel early, and resets it. The log has the reason, and so has the
    // next response.
    let connect = format!("CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n", origin.address);
    let mut tunnel = Client::to(client.address);
    tunnel.send(&connect);
    assert_eq!(tunnel.head().unwrap().status, 200);
    assert!(tunnel.is_closed());
    let line = client.wait_for("a tunnel that was agreed to early has failed");
    assert!(
        line.contains("that address or port is not allowed"),
        "{line}"
    );
    let mut again = Client::to(client.address);
    again.send(&connect);
    let answer = again.answer("CONNECT");
    assert_eq!(answer.status, 403);
    let said = answer.field("proxy-status").unwrap();
    assert!(said.contains("destination_ip_prohibited"), "{said}");
}

#[test]
fn option_errors_list_valid_values() {
    let certificates = Certificates::new("wording");
    let path = |name: &str| certificates.path(name);
    std::fs::write(path("empty"), "").unwrap();
    std::fs::File::create(path("der"))
        .unwrap()
        .write_all(&[0x30, 0x82, 1, 1])
        .unwrap();
    let listen = |cert: &str, key: &str| {
        format!("h2+tls://127.0.0.1:0?cert={}&key={}", path(cert), path(key))
    };
    let good = listen("gateway.pem", "gateway.key");
    for (arguments, says, hides) in [
        (
            vec!["client", "--gateway", "https://gw.example"],
            "it may be h2, h3, spdy3, spdy3.1, such as h2+tls://HOST:443",
            "socks5",
        ),
        (
            vec![
                "client",
                "--gateway",
                "h2://127.0.0.1:1",
                "--listen",
                "spdy3://127.0.0.1:1",
            ],
            "it may be http, h2, socks5",
            "spdy3.1",
        ),
        (
            vec![
                "gateway",
                "--open",
                "--listen",
                &listen("gateway.key", "gateway.key"),
            ],
            "gateway.key: no certificate is in it: it holds PRIVATE KEY",
            "no items found",
        ),
        (
            vec![
                "gateway",
                "--open",
                "--listen",
                &listen("gateway.pem", "gateway.pem"),
            ],
            "gateway.pem: no private key is in it: it holds CERTIFICATE",
            "no items found",
        ),
        (
            vec![
                "gateway",
                "--open",
                "--listen",
                &listen("gateway.pem", "client.key"),
            ],
            "does not belong to the certificate in",
            "KeyMismatch",
        ),
        (
            vec![
                "gateway",
                "--open",
                "--listen",
                &listen("empty", "gateway.key"),
            ],
            "empty: no certificate is in it: it is empty",
            "no items found",
        ),
        (
            vec![
                "gateway",
                "--listen",
                &good,
                "--auth",
                &format!("client-ca={}", path("der")),
            ],
            "der: no certificate is in it: it looks like DER",
            "no items found",
        ),
    ] {
        let (ok, _, error) = run(&arguments);
        assert!(!ok && error.contains(says), "{arguments:?}: {error}");
        assert!(!error.contains(hides), "{arguments:?}: {error}");
    }
}

#[test]
fn unknown_key_error_names_the_nearest_key() {
    let path = file("nearest.toml", "[client]\ngatway = []\n");
    let (ok, _, error) = run(&["check-config", path.to_str().unwrap()]);
    let words = "line 2: unknown key `gatway`; did you mean `gateway`?";
    assert!(!ok && error.contains(words), "{error}");
    let text = "[client]\ngateway = [\"https://gw.example\"]\n";
    std::fs::write(&path, text).unwrap();
    let (ok, _, error) = run(&["check-config", path.to_str().unwrap()]);
    assert!(
        !ok && error.contains("it may be h2, h3, spdy3, spdy3.1"),
        "{error}"
    );
    std::fs::remove_file(path).unwrap();
}

#[test]
fn check_config_warns_of_doubtful_options() {
    use std::os::unix::fs::PermissionsExt as _;
    let (old, old_key) = self_signed("expired", 2019, 2020);
    let (new, new_key) = self_signed("future", 3000, 3001);
    let token = file("open-token", "correct-horse-battery-staple\n");
    let token = token.display().to_string();
    let permit = |file: &str, mode| {
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for key in [&old_key, &new_key] {
        permit(key, 0o600);
    }
    permit(&token, 0o644);
    let gateway = |listen: &str| {
        format!("[gateway]\nlisten = [\"{listen}\"]\nauth = [\"token-file={token}\"]\n")
    };
    let client =
        |gateway: &str| format!("[client]\ngateway = [\"{gateway}\"]\ntoken-file = \"{token}\"\n");
    for (text, says) in [
        (
            gateway(&format!("h2+tls://127.0.0.1:0?cert={old}&key={old_key}")),
            "expired on 3 March 2020",
        ),
        (
            gateway(&format!("h2+tls://127.0.0.1:0?cert={new}&key={new_key}")),
            "is valid from 3 March 3000 only",
        ),
        (
            gateway("h2+tcp://0.0.0.0:0"),
            "access tokens come in clear text there",
        ),
        (
            "[gateway]\nlisten = [\"h2+tcp://0.0.0.0:0\"]\nopen = true\n".to_owned(),
            "anyone who reaches this listener loads any site",
        ),
        (
            client("h2+tcp://203.0.113.5:1"),
            "the access token goes there in clear text",
        ),
        (
            client("h2+tcp://127.0.0.1:1"),
            "every user of this machine can read it",
        ),
    ] {
        let path = file("doubtful.toml", &text);
        let (ok, out, error) = run(&["check-config", path.to_str().unwrap()]);
        assert!(ok && out.contains(says), "{says}: {out}{error}");
        assert!(out.contains("warning") && !out.contains(": good"), "{out}");
        std::fs::remove_file(path).unwrap();
    }
    // The same warnings come at the start; the one about the token is gone once no other user can
    // read it.
    permit(&token, 0o600);
    let listen = format!("h2+tls://127.0.0.1:0?cert={old}&key={old_key}");
    let auth = format!("token-file={token}");
    let started = Process::start(&["gateway", "--listen", &listen, "--auth", &auth]);
    assert!(
        started.before.contains("expired on 3 March 2020"),
        "{}",
        started.before
    );
    assert!(
        !started.before.contains("can read it"),
        "{}",
        started.before
    );
    assert!(
        started.banner.contains("listening on h2+tls://127.0.0.1:"),
        "{}",
        started.banner
    );
    for file in [old, old_key, new, new_key, token] {
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn access_log_has_urls_only_with_log_urls() {
    let origin = Scene::answering(OK);
    for (flag, has_url) in [("--log-requests", false), ("--log-urls", true)] {
        let (listen, dest) = ("h2+tcp://127.0.0.1:0", "127.0.0.0/8");
        let options = [
            "gateway",
            "--open",
            "--allow-dest",
            dest,
            "--listen",
            listen,
        ];
        let mut gateway = Process::start(&[&options[..], &[flag]].concat());
        let mut client = client(&format!("h2+tcp://{}", gateway.address), &[flag]);
        let url = origin.url("/private");
        assert_eq!(Client::to(client.address).get(&url).status, 200);
        for end in [&mut client, &mut gateway] {
            let line = end.wait_for("request method=GET");
            assert!(line.contains("status=200 bytes=2 ms="), "{line}");
            assert_eq!(line.contains(&url), has_url, "{line}");
        }
    }
}

/// The gateway of a site reports that the origin closed, and the client repeats the request without
/// it.
#[test]
fn repeated_request_has_one_line_in_the_log() {
    let behind = Scene::new(|_, mut client| {
        while let Some(asked) = client.request() {
            if asked.line.contains("/lost") {
                return;
            }
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\ngateway");
        }
    });
    let mut options = gateway_options();
    options.mode = Some(
        format!("reverse=http://{}", behind.address)
            .parse()
            .unwrap(),
    );
    let (_gateway, address) = start_gateway(options);
    let field = format!("Session-Gateway: \"h2+tcp://a.onion:{}\"", address.port());
    let direct = Scene::answering(format!(
        "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n{field}\r\n\r\ndirect"
    ));
    let via = format!("socks5://{}", local_proxy());
    let listen = ["client", "--listen", "http://127.0.0.1:0"];
    let options = ["--solo", "--via", &via, "--log-urls"];
    let mut client = Process::start(&[&listen[..], &options].concat());
    let host = format!("a.onion:{}", direct.address.port());
    let get = |path: &str| {
        Client::to(client.address)
            .get(&format!("http://{host}{path}"))
            .body
    };
    let begun = std::time::Instant::now();
    while get("/") != b"gateway" {
        assert!(begun.elapsed() < PATIENCE, "the gateway was not discovered");
    }
    assert_eq!(get("/lost"), b"direct");
    let line = client.wait_for("/lost");
    assert!(line.contains("status=200 bytes=6 ms="), "{line}");
}

#[test]
fn renewed_certificates_and_tokens_are_taken_over() {
    let origin = Scene::answering(OK);
    let (cert, key) = self_signed("renewed", 2020, 4000);
    let (next, next_key) = self_signed("renewal", 2020, 4001);
    let token = file("renewed-token", "the-first-token-of-all\n");
    let old_token = file("kept-token", "the-first-token-of-all\n");
    let token_file = token.to_str().unwrap();
    let (listen, auth) = (
        format!("h2+tls://127.0.0.1:0?cert={cert}&key={key}"),
        format!("token-file={token_file}"),
    );
    let options = ["gateway", "--listen", &listen, "--auth", &auth];
    let mut gateway = Process::start(&[&options[..], &["--allow-dest", "127.0.0.0/8"]].concat());
    let to = |ca: &str| format!("h2+tls://{}?ca={ca}", gateway.address);
    let with_new = to(&next);
    let copy = file("renewed-ca.pem", &std::fs::read_to_string(&cert).unwrap());
    let old_ca = to(copy.to_str().unwrap());
    let tokens = ["--token-file", old_token.to_str().unwrap()];
    let mut first = client(&old_ca, &tokens);
    first.wait_for("session with gateway");
    assert_eq!(Client::to(first.address).get(&origin.url("/")).status, 200);

    std::fs::write(&token, "too short\n").unwrap();
    let line = gateway.wait_for("the old one stays");
    assert!(
        line.contains("WARN") && line.contains("at least 16"),
        "{line}"
    );
    std::fs::write(&token, "another-token-than-the-first\n").unwrap();
    gateway.wait_for("renewed: ");
    std::fs::write(&cert, "no certificate\n").unwrap();
    let line = gateway.wait_for("the old one stays");
    assert!(line.contains("no certificate is in it"), "{line}");
    std::fs::copy(&next, &cert).unwrap();
    std::fs::copy(&next_key, &key).unwrap();
    gateway.wait_for("renewed: ");

    // The session that stands goes on; new ones meet the new certificate and the new token.
    assert_eq!(Client::to(first.address).get(&origin.url("/")).status, 200);
    let mut refused = client(&with_new, &tokens);
    refused.wait_for("does not accept the access token");
    let mut admitted = client(&with_new, &["--token-file", token_file]);
    admitted.wait_for("session with gateway");
    for path in [cert, key, next, next_key] {
        std::fs::remove_file(path).unwrap();
    }
    for path in [token, old_token, copy] {
        std::fs::remove_file(path).unwrap();
    }
}
