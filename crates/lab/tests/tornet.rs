//! Tests of the pair over a private network of the real tor: pages through the gateway at the exit
//! and through the one behind the onion service, with curl and with Chromium. The client uses
//! circuits of three hops to the exit, prepared beforehand, and one circuit per isolation key. A
//! dead gateway gives an error, and no process is left behind.

#[path = "../../web/tests/programs/mod.rs"]
mod programs;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use programs::{Running, Scratch, output, require, tandem, wait};
use tandem_lab::tornet::control::Control;
use tandem_lab::tornet::layout::prefix;
use tandem_lab::tornet::{RunDirectory, State, namespaces, take_down};
use tandem_net::emulator::sys;
use tandem_web::page::{Page, Site};

const LAB: &str = env!("CARGO_BIN_EXE_tandem-lab");

const PAGE: &str = "gallery:12x2000";
const IMAGES: usize = 12;

/// How long a page may take: a first circuit may fail and be built again.
const LOAD_SECONDS: &str = "60";

const HTTP: &str = "127.0.0.1:8118";
const HTTP_ONION: &str = "127.0.0.1:8119";
const SOCKS: &str = "127.0.0.1:9150";

/// A network of this test's own, taken down with this value; by a watchdog, too, if this process is
/// killed.
struct Network {
    instance: String,
    state: State,
    _watchdog: Running,
}

impl Network {
    fn up() -> Self {
        remove_stale();
        let instance = format!("test{}", std::process::id());
        let line = format!(
            "while kill -0 {} 2>/dev/null; do sleep 1; done; exec {LAB} tornet down --instance {instance}",
            std::process::id()
        );
        let mut watchdog = Command::new("/bin/sh");
        watchdog
            .args(["-c", &line])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let watchdog = Running(watchdog.spawn().expect("a shell"));
        let guard = TakeDown(instance.clone());
        let mut up = Command::new(LAB);
        up.args([
            "tornet",
            "up",
            "--instance",
            &instance,
            "--plain-exits",
            "1",
            "--page",
            PAGE,
            "--gateway",
        ]);
        output(up.arg(tandem()));
        let state = RunDirectory::of(&instance)
            .and_then(|directory| directory.load())
            .expect("a readable state");
        std::mem::forget(guard);
        Self {
            instance,
            state: state.expect("it is up"),
            _watchdog: watchdog,
        }
    }

    /// A program beside the client.
    fn inside(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.state.endpoints.client_namespace])
            .arg(program);
        command
    }

    fn onion(&self) -> &str {
        self.state
            .endpoints
            .onion
            .as_deref()
            .expect("every network has an onion service")
    }

    /// The near end of the pair, listening when this returns. It opens no session before the first
    /// request: a scene that closes circuits would break a dial that it did not begin, and the
    /// client would then choose its exit again.
    fn client(&self, scratch: &Scratch, listen: &[&str], gateway: &str, via: &str) -> Running {
        let log = scratch.file("client.log");
        let file = std::fs::File::create(&log).expect("scratch space");
        let mut command = self.inside(tandem());
        command
            .arg("client")
            .args(listen.iter().flat_map(|url| ["--listen", url]))
            .args(["--gateway", gateway]);
        command
            .args(["--via", via, "--preconnect=false"])
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("open"))
            .stderr(file);
        let client = Running(command.spawn().expect("ip starts"));
        let wanted: Vec<&str> = listen
            .iter()
            .filter_map(|url| url.split("://").nth(1))
            .collect();
        wait("the client listens", Duration::from_secs(20), || {
            let text = output(self.inside("ss").args(["-Hltn"]));
            wanted
                .iter()
                .all(|address| text.contains(address))
                .then_some(())
        });
        client
    }

    /// Fetches with curl: head and body.
    fn fetch(&self, scratch: &Scratch, arguments: &[&str]) -> (String, Vec<u8>) {
        let (head, body) = (scratch.file("head"), scratch.file("body"));
        let mut curl = self.inside("curl");
        curl.args([
            "-sS",
            "-m",
            LOAD_SECONDS,
            "--retry",
            "2",
            "--retry-all-errors",
            "-D",
        ])
        .arg(&head);
        output(curl.arg("-o").arg(&body).args(arguments));
        let read = |file: &PathBuf| std::fs::read(file).expect("curl wrote it");
        (String::from_utf8(read(&head)).expect("ASCII"), read(&body))
    }

    fn control(&self) -> Control {
        Control::connect(&self.state.endpoints.control_socket).expect("tor's control socket")
    }

    fn down(self) -> State {
        output(Command::new(LAB).args(["tornet", "down", "--instance", &self.instance]));
        self.state.clone()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(TakeDown(self.instance.clone()));
    }
}

/// Removes a network, also half of one.
struct TakeDown(String);

impl Drop for TakeDown {
    fn drop(&mut self) {
        if let Err(error) = take_down(&self.0, &mut |_| {}) {
            eprintln!("cannot take {} down: {error}", self.0);
        }
    }
}

/// Removes the remains of an earlier run of this test, in case even its watchdog was killed.
fn remove_stale() {
    for name in namespaces::existing("tandem-test") {
        let instance = name.split('-').nth(1).unwrap_or_default();
        let pid = instance
            .strip_prefix("test")
            .filter(|pid| !pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit()));
        if pid.is_some_and(|pid| !PathBuf::from(format!("/proc/{pid}")).exists()) {
            drop(TakeDown(instance.to_owned()));
        }
    }
}

/// Uses one network for all scenes, since its start takes a minute.
#[test]
fn the_pair_over_tor() {
    require(&[
        ("tor", "tor"),
        ("curl", "curl"),
        ("chromium", "chromium"),
        ("ip", "iproute2"),
        ("ss", "iproute2"),
    ]);
    let scratch = Scratch::new("tornet-test");
    let network = Network::up();
    gateways_are_found(&network);
    set_ups_test_their_path(&network, &scratch);
    let exit = network.client(
        &scratch,
        &[&format!("http://{HTTP}"), &format!("socks5://{SOCKS}")],
        "h2+tcp://192.0.2.80:9980?exit=auto",
        &format!("tor://{}", network.state.endpoints.control),
    );
    let onion_gateway = format!("h2+tcp://{}:9980", network.onion());
    let via = format!("socks5://{}", network.state.endpoints.socks);
    let onion = network.client(
        &scratch,
        &[&format!("http://{HTTP_ONION}")],
        &onion_gateway,
        &via,
    );
    let site = network.state.endpoints.sites[0].host.clone();
    streams_find_circuits_of_three_hops(&network, &scratch, &site);
    pages_are_exact(&network, &scratch, HTTP, &site);
    pages_are_exact(&network, &scratch, HTTP_ONION, network.onion());
    browsers_load_images(&network, &scratch, HTTP, &site);
    browsers_load_images(&network, &scratch, HTTP_ONION, network.onion());
    keys_have_circuits_of_their_own(&network, &scratch, &site);
    each_measured_load_fetches_the_descriptor(&network);
    a_dead_gateway_is_a_502(&network, &scratch, &site);
    drop((exit, onion));
    nothing_is_left(network.down());
}

/// `tandem init` reaches the gateway, the proxy or the site of each set-up through this network.
fn set_ups_test_their_path(network: &Network, scratch: &Scratch) {
    let ends = &network.state.endpoints;
    let (socks, control) = (&ends.socks, &ends.control);
    let (socks, control) = (format!("socks5://{socks}"), format!("tor://{control}"));
    let set_up = |name: &str, arguments: &[&str], result: &str| {
        let to = scratch.file(name);
        // The first circuit to a service may fail.
        wait(result, Duration::from_secs(120), || {
            let mut init = network.inside(tandem());
            init.args(["init", "--yes", "--to"]).arg(&to);
            output(init.args(arguments)).contains(result).then_some(())
        });
        to.join("client")
    };
    let works = "The path works.";
    let with_gateway = ["tor-user", "--via", &socks, "--gateway", network.onion()];
    set_up("init-gateway", &with_gateway, works);
    let at_exit = ["tor-user", "--via", &control, "--gateway", "exit"];
    set_up("init-exit", &at_exit, works);
    let sites = ["tor-user", "--via", &socks, "--gateway", "sites"];
    let client = set_up("init-sites", &sites, "Tor answers.");
    // Tor does not close circuits of this purpose.
    let circuits = network.control().info("circuit-status").expect("tor tells");
    assert!(!circuits.contains("PURPOSE=CONTROLLER"), "{circuits}");
    // The command that `init` prints for the rest of the way.
    wait("the site", Duration::from_secs(120), || {
        let mut doctor = network.inside(tandem());
        doctor.current_dir(&client);
        let arguments = ["doctor", "client", "-c", "client.toml", "--site"];
        let found = doctor.args(arguments).arg(network.onion()).output();
        let found = String::from_utf8(found.expect("starts").stdout).expect("text");
        let reached = format!("reaches {}:80", network.onion());
        found.contains(&reached).then_some(())
    });
}

/// Full descriptors are in the directory a consensus or two after the network is up.
fn gateways_are_found(network: &Network) {
    let ends = &network.state.endpoints;
    let text = wait(
        "an exit announces its gateway",
        Duration::from_secs(60),
        || {
            let mut command = network.inside(tandem());
            let found = command
                .args(["gateways", "--via", &format!("tor://{}", ends.control)])
                .output()
                .expect("starts");
            found
                .status
                .success()
                .then(|| String::from_utf8_lossy(&found.stdout).into_owned())
        },
    );
    let lines: Vec<&str> = text.lines().skip(1).collect();
    assert_eq!(
        lines.len(),
        1,
        "the exit without a gateway is not one: {text}"
    );
    assert!(lines[0].starts_with(&ends.exit_fingerprint), "{text}");
}

/// Parses tor's line about a circuit, if the circuit is complete: its number, its hops, its
/// purpose.
fn built(line: &str) -> Option<(String, Vec<String>, String)> {
    let words: Vec<&str> = line.split(' ').collect();
    let (["BUILT", path], purpose) = (
        words.get(1..3)?,
        words
            .iter()
            .find_map(|word| word.strip_prefix("PURPOSE="))?,
    ) else {
        return None;
    };
    Some((
        words[0].into(),
        path.split(',').map(str::to_owned).collect(),
        purpose.into(),
    ))
}

/// The client prepares a circuit before the first stream, which takes it, and another before the
/// next. All others that end at the exit are closed just before: otherwise tor would extend a
/// circuit with another end to four hops.
fn streams_find_circuits_of_three_hops(network: &Network, scratch: &Scratch, host: &str) {
    let mut control = network.control();
    let exit = format!("${}", network.state.endpoints.exit_fingerprint);
    for user in ["first", "next"] {
        let mut to_exit = || {
            let status = control.info("circuit-status").expect("tor tells");
            let mut circuits: Vec<_> = status.lines().filter_map(built).collect();
            circuits.retain(|(_, path, _)| path.len() == 3 && path[2].starts_with(&exit));
            circuits
        };
        let ready = wait("a circuit is ready", Duration::from_secs(120), || {
            to_exit()
                .into_iter()
                .find(|(_, _, purpose)| purpose == "CONTROLLER")
        });
        for (id, ..) in to_exit()
            .iter()
            .filter(|(id, _, purpose)| *id != ready.0 && !purpose.starts_with("HS_"))
        {
            // The circuit may have ended already.
            let _ = network.control().ask(&format!("CLOSECIRCUIT {id}"));
        }
        let (head, _) = network.fetch(
            scratch,
            &[
                "-x",
                &format!("socks5h://{user}:x@{SOCKS}"),
                &format!("http://{host}/"),
            ],
        );
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        let streams = control.info("stream-status").expect("tor tells");
        let circuits = control.info("circuit-status").expect("tor tells");
        let key = format!("SOCKS_USERNAME=\"{user}\"");
        let own: Vec<_> = circuits
            .lines()
            .filter(|line| line.contains(&key))
            .filter_map(built)
            .collect();
        let [(id, path, _)] = &own[..] else {
            panic!("one circuit for {user}:\n{circuits}")
        };
        let on_it = |line: &&str| {
            line.contains(&format!(" SUCCEEDED {id} ")) && line.ends_with(".exit:9980")
        };
        assert_eq!(
            streams.lines().filter(on_it).count(),
            1,
            "{streams}\n{circuits}"
        );
        assert_eq!(path.len(), 3, "{path:?}");
        assert_eq!(*id, ready.0, "{circuits}");
    }
}

/// Status, fields and body through the pair are those that tor alone brings.
fn pages_are_exact(network: &Network, scratch: &Scratch, proxy: &str, host: &str) {
    let site = Site::new(Page::open(PAGE).expect("built in"), &[host]).expect("a host");
    let tor = format!("socks5h://{}", network.state.endpoints.socks);
    for index in [0, IMAGES] {
        let url = site.url(index);
        let (plain, _) = network.fetch(scratch, &["-x", &tor, &url]);
        let (head, body) = network.fetch(scratch, &["-x", &format!("http://{proxy}"), &url]);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert_eq!(head, plain, "{url}");
        assert!(
            body == site.asset(index).body,
            "{url}: {} bytes are not the page's",
            body.len()
        );
    }
}

/// A test document counts the browser's events for the page in a frame and for each of its images.
fn browsers_load_images(network: &Network, scratch: &Scratch, proxy: &str, host: &str) {
    let site = Site::new(Page::open(PAGE).expect("built in"), &[host]).expect("a host");
    let images: String = (1..=IMAGES)
        .map(|index| {
            format!(
                "<img src=\"{}\" onload=\"good++\" onerror=\"bad++\">\n",
                site.url(index)
            )
        })
        .collect();
    let page = format!(
        "<!DOCTYPE html><script>var good = 0, bad = 0, frames = 0;\n\
         onload = () => document.title = `images ${{good}} failed ${{bad}} frames ${{frames}}`</script>\n\
         {images}<iframe src=\"{}\" onload=\"frames++\"></iframe>\n",
        site.url(0)
    );
    let file = scratch.file("page.html");
    std::fs::write(&file, page).expect("scratch space");
    let profile = scratch.file("profile");
    let mut chromium = network.inside("timeout");
    chromium.args([
        "60",
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
    ]);
    chromium.args([
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ]);
    chromium
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("--proxy-server=http://{proxy}"));
    let text = output(
        chromium
            .arg("--dump-dom")
            .arg(format!("file://{}", file.display())),
    );
    std::fs::remove_dir_all(profile).expect("Chromium has ended");
    let wanted = format!("<title>images {IMAGES} failed 0 frames 1</title>");
    assert!(text.contains(&wanted), "{host} through {proxy}: {text}");
}

/// Two SOCKS users have two sessions, on two circuits of tor that belong to these users.
fn keys_have_circuits_of_their_own(network: &Network, scratch: &Scratch, host: &str) {
    for user in ["anna", "berta"] {
        let (head, _) = network.fetch(
            scratch,
            &[
                "-x",
                &format!("socks5h://{user}:x@{SOCKS}"),
                &format!("http://{host}/"),
            ],
        );
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    }
    let mut control = network.control();
    let streams = control.info("stream-status").expect("tor tells");
    let circuits = control.info("circuit-status").expect("tor tells");
    // StreamID, state, circuit, target; and circuit, state, path, then SOCKS_USERNAME="…" and more.
    let circuit = |user: &str| {
        let key = format!("SOCKS_USERNAME=\"{user}\"");
        let own: Vec<&str> = circuits
            .lines()
            .filter(|line| line.contains(&key))
            .collect();
        let own: Vec<&str> = own
            .iter()
            .filter_map(|line| line.split(' ').next())
            .collect();
        let open = streams
            .lines()
            .filter(|line| line.contains(" SUCCEEDED ") && line.ends_with(".exit:9980"));
        let mut used: Vec<&str> = open.filter_map(|line| line.split(' ').nth(2)).collect();
        used.retain(|circuit| own.contains(circuit));
        assert_eq!(
            used.len(),
            1,
            "one session for {user}:\n{streams}\n{circuits}"
        );
        used[0].to_owned()
    };
    assert_ne!(circuit("anna"), circuit("berta"), "{streams}");
}

/// Earlier scenes have visited the onion service, so tor has its descriptor.
fn each_measured_load_fetches_the_descriptor(network: &Network) {
    let mut control = network.control();
    control.subscribe("HS_DESC").expect("tor knows the event");
    let mut measure = Command::new(LAB);
    measure.args(["tornet", "measure", "--instance", &network.instance]);
    measure.args(["--pages", PAGE, "--no-pair", "--onion", "--no-exit"]);
    measure.args(["--solo", "first", "--passes", "1", "--tandem"]);
    output(measure.arg(tandem()));
    let events = control.events().expect("tor answers");
    let received = events
        .iter()
        .filter(|event| event.starts_with("HS_DESC RECEIVED "));
    assert!(
        received.count() >= 2,
        "by tor alone and by solo: {events:?}"
    );
}

/// The client tries no other way, and its response names the cause.
fn a_dead_gateway_is_a_502(network: &Network, scratch: &Scratch, host: &str) {
    let mut processes = network.state.processes.iter();
    let gateway = processes.find(|process| process.program == "gateway" && process.node == "exit");
    let gateway = gateway.expect("the exit has a gateway");
    sys::kill(gateway.pid, libc::SIGKILL).expect("it runs");
    wait("the gateway is gone", Duration::from_secs(10), || {
        (!gateway.is_alive()).then_some(())
    });
    // No `--retry-all-errors` here: one request, one answer.
    let head = scratch.file("head");
    let mut curl = network.inside("curl");
    curl.args(["-sS", "-m", LOAD_SECONDS, "-o", "/dev/null", "-D"])
        .arg(&head);
    output(curl.args(["-x", &format!("http://{HTTP}"), &format!("http://{host}/")]));
    let head = std::fs::read_to_string(head).expect("curl wrote it");
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    assert!(
        head.to_ascii_lowercase().contains("\r\nproxy-status: "),
        "{head}"
    );
}

fn nothing_is_left(state: State) {
    let alive: Vec<_> = state
        .processes
        .iter()
        .filter(|process| process.is_alive())
        .collect();
    assert!(alive.is_empty(), "{alive:?}");
    assert!(!state.supervisor.is_alive());
    assert_eq!(
        namespaces::existing(&prefix(&state.instance)),
        Vec::<String>::new()
    );
    let directory = RunDirectory::of(&state.instance).expect("a name");
    assert!(!directory.path().exists(), "{}", directory.path().display());
}
