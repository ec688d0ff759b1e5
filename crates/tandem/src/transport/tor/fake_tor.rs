//! A fake Tor client for tests: its control port.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

pub(super) const FINGERPRINT: &str = "000102030405060708090A0B0C0D0E0F10111213";

/// A fake Tor client. It starts with microdescriptors, and its state changes by counted queries.
#[derive(Clone, Debug)]
pub(super) struct FakeTor {
    /// The number of queries for the consensus before there is one.
    pub(super) starting: u32,
    /// The uptime that it reports, in seconds.
    pub(super) uptime: u64,
    /// The number of queries for full descriptors, once it fetches them, before they are there.
    pub(super) arriving: u32,
    /// The number of fetches of full descriptors before the exit announces a gateway.
    pub(super) announced_after: u32,
    pub(super) fetched: u32,
    /// The number of queries for the setting before another program restores it.
    pub(super) others_end: u32,
    pub(super) microdescriptors: &'static str,
    pub(super) has_descriptor: bool,
    pub(super) mapped: Vec<String>,
    pub(super) circuits: Circuits,
    /// The number of connections to the control port so far.
    pub(super) connections: usize,
    /// The prefix of the commands that get no reply.
    pub(super) silent: Option<&'static str>,
    /// The prefix of the commands at which the connection ends.
    pub(super) hangs_up: Option<&'static str>,
    /// The address of the SOCKS port, if it has changed.
    pub(super) moved: Option<SocketAddr>,
}

/// The state behind the circuit commands: relays, and circuits to them.
#[derive(Clone, Debug)]
pub(super) struct Circuits {
    /// The additional setting in the reply to `GETCONF`.
    pub(super) setting: &'static str,
    /// The paths of circuits that Tor chooses, in order. After the last one Tor builds none.
    pub(super) models: Vec<[&'static str; 3]>,
    /// The family line of every relay.
    pub(super) family: &'static str,
    /// The number of queries until a circuit is built.
    pub(super) slow: u32,
    /// True if other programs put a stream on any circuit that is open to all.
    pub(super) grabbed: bool,
    /// The fate of the stream on a circuit that was given away. If empty, the stream uses another
    /// circuit.
    pub(super) stream: &'static str,
    pub(super) open: Vec<Standing>,
    /// The events that the connection has subscribed to, and those to send.
    subscribed: String,
    events: String,
    /// The commands about settings and circuits, in order.
    pub(super) commands: Vec<String>,
    number: u32,
}

/// A circuit.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    pub(super) id: String,
    pub(super) path: Vec<String>,
    pub(super) purpose: &'static str,
    slow: u32,
    pub(super) stream: &'static str,
}

impl Circuits {
    fn new() -> Self {
        let (guard, middle, end) = (relay("A"), relay("B"), relay("C"));
        Self {
            setting: "NodeFamily",
            models: vec![[guard, middle, end]; 8],
            family: "",
            slow: 1,
            grabbed: false,
            stream: "SUCCEEDED",
            open: Vec::new(),
            subscribed: String::new(),
            events: String::new(),
            commands: Vec::new(),
            number: 16,
        }
    }

    /// Returns the circuits with the purpose of kept circuits.
    pub(super) fn kept(&self) -> Vec<&Standing> {
        self.open
            .iter()
            .filter(|circuit| circuit.purpose == "CONTROLLER" && circuit.slow == 0)
            .collect()
    }

    /// Returns the number of commands with this prefix.
    pub(super) fn count(&self, verb: &str) -> usize {
        self.commands
            .iter()
            .filter(|command| command.starts_with(verb))
            .count()
    }

    fn answer(&mut self, command: &str) -> Option<String> {
        let words: Vec<&str> = command.split(' ').collect();
        Some(match words[..] {
            ["GETCONF", "EnforceDistinctSubnets", ..] => {
                self.commands.push(command.to_owned());
                format!(
                    "250-EnforceDistinctSubnets=1\r\n250-{}\r\n250 UseBridges=0\r\n",
                    self.setting
                )
            }
            ["GETINFO", key @ "circuit-status"] => data(key, &self.status()),
            ["GETINFO", key @ "stream-status"] => data(key, &self.streams()),
            ["GETINFO", key] if key.starts_with("ns/id/") => {
                // Relays whose names begin with different letters are in different networks.
                let octet = key.as_bytes()[6];
                data(
                    key,
                    &format!(
                        "r {} id digest 2026-01-01 00:00:00 198.{octet}.1.1 5001 0\n",
                        &key[6..12]
                    ),
                )
            }
            ["GETINFO", key] if key.starts_with("md/id/") => {
                data(key, &format!("onion-key\n{}\n", self.family))
            }
            ["EXTENDCIRCUIT", "0"] => self.model(command),
            ["EXTENDCIRCUIT", "0", path, "purpose=controller"] => {
                let path = path
                    .split(',')
                    .map(|hop| hop.strip_prefix('$').expect("a fingerprint").to_owned())
                    .collect();
                self.begin(command, path, "CONTROLLER")
            }
            ["SETCIRCUITPURPOSE", id, "purpose=general"] => self.give(id),
            ["SETEVENTS", ..] => {
                self.subscribed = words[1..].join(" ");
                "250 OK\r\n".into()
            }
            ["CLOSECIRCUIT", id, "IfUnused"] => {
                self.commands.push(command.to_owned());
                self.open
                    .retain(|circuit| circuit.id != id || !circuit.stream.is_empty());
                "250 OK\r\n".into()
            }
            _ => return None,
        })
    }

    fn model(&mut self, command: &str) -> String {
        if self.models.is_empty() {
            return "551 Couldn't start circuit\r\n".into();
        }
        let path = self.models.remove(0).map(str::to_owned).to_vec();
        self.begin(command, path, "GENERAL")
    }

    fn begin(&mut self, command: &str, path: Vec<String>, purpose: &'static str) -> String {
        self.commands.push(command.to_owned());
        self.number += 1;
        let (id, slow) = (self.number.to_string(), self.slow);
        let stream = if self.grabbed && purpose == "GENERAL" {
            "SUCCEEDED"
        } else {
            ""
        };
        self.open.push(Standing {
            id: id.clone(),
            path,
            purpose,
            slow,
            stream,
        });
        format!("250 EXTENDED {id}\r\n")
    }

    fn give(&mut self, id: &str) -> String {
        let Some(circuit) = self.open.iter_mut().find(|circuit| circuit.id == id) else {
            return format!("552 Unknown circuit \"{id}\"\r\n");
        };
        (circuit.purpose, circuit.stream) = ("GENERAL", self.stream);
        self.tell("CIRC", &format!("{id} PURPOSE_CHANGED"));
        "250 OK\r\n".into()
    }

    /// Sends an event if the connection has subscribed to its kind.
    fn tell(&mut self, kind: &str, text: &str) {
        if self.subscribed.split(' ').any(|wanted| wanted == kind) {
            self.events += &format!("650 {kind} {text}\r\n");
        }
    }

    fn status(&mut self) -> String {
        // A circuit that is being built advances by one step.
        let building: Vec<String> = self
            .open
            .iter()
            .filter(|circuit| (1..u32::MAX).contains(&circuit.slow))
            .map(|circuit| circuit.id.clone())
            .collect();
        for id in building {
            self.tell("CIRC", &format!("{id} EXTENDED"));
        }
        let tell = |circuit: &mut Standing| {
            let Standing {
                id, path, purpose, ..
            } = circuit.clone();
            let built = circuit.slow == 0;
            circuit.slow = circuit.slow.saturating_sub(1);
            let path: Vec<_> = path[..if built { 3 } else { 1 }]
                .iter()
                .map(|hop| format!("${hop}~x"))
                .collect();
            let state = if built { "BUILT" } else { "EXTENDED" };
            format!(
                "{id} {state} {} BUILD_FLAGS=NEED_CAPACITY PURPOSE={purpose} TIME_CREATED=x\n",
                path.join(",")
            )
        };
        self.open.iter_mut().map(tell).collect()
    }

    fn streams(&self) -> String {
        let on = self
            .open
            .iter()
            .filter(|circuit| !circuit.stream.is_empty());
        on.map(|circuit| {
            format!(
                "7 {} {} 192.0.2.80.{FINGERPRINT}.exit:9980\n",
                circuit.stream, circuit.id
            )
        })
        .collect()
    }
}

/// Returns the fingerprint of the relay with this name.
pub(super) const fn relay(letter: &'static str) -> &'static str {
    match letter.as_bytes() {
        b"A" => "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        b"B" => "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB",
        b"C" => "CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC",
        _ => "DDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDD",
    }
}

fn data(key: &str, text: &str) -> String {
    format!(
        "250+{key}=\r\n{}.\r\n250 OK\r\n",
        text.replace('\n', "\r\n")
    )
}

impl FakeTor {
    pub(super) fn new() -> Self {
        Self {
            starting: 0,
            uptime: 3600,
            arriving: 0,
            announced_after: 0,
            fetched: 0,
            others_end: 0,
            microdescriptors: "auto",
            has_descriptor: false,
            mapped: Vec::new(),
            circuits: Circuits::new(),
            connections: 0,
            silent: None,
            hangs_up: None,
            moved: None,
        }
    }

    fn descriptor(&self) -> String {
        let policy = if self.fetched >= self.announced_after {
            "accept 192.0.2.80:9980"
        } else {
            "accept *:80"
        };
        format!(
            "router one 198.18.1.1 5001 0 0\nfingerprint 0001 0203 0405 0607 0809 0A0B 0C0D 0E0F 1011 1213\n{policy}\nreject *:*\n"
        )
    }

    /// Returns true once full descriptors have been queried often enough to be there.
    fn arrive(&mut self) -> bool {
        if self.microdescriptors == "0" && !self.has_descriptor {
            if self.arriving > 0 {
                self.arriving -= 1;
            } else {
                self.has_descriptor = true;
            }
        }
        self.has_descriptor
    }

    fn answer(&mut self, command: &str, socks: SocketAddr) -> String {
        let one = |key: &str, text: &str| format!("250-{key}={text}\r\n250 OK\r\n");
        match command {
            "PROTOCOLINFO 1" => "250-PROTOCOLINFO 1\r\n250-AUTH METHODS=NULL\r\n250 OK\r\n".into(),
            "AUTHENTICATE" => "250 OK\r\n".into(),
            "GETINFO net/listeners/socks" => {
                let address = self.moved.unwrap_or(socks);
                one("net/listeners/socks", &format!("\"{address}\""))
            }
            "GETINFO uptime" => one("uptime", &self.uptime.to_string()),
            "GETINFO status/bootstrap-phase" => one(
                "status/bootstrap-phase",
                "NOTICE BOOTSTRAP PROGRESS=30 TAG=loading_status SUMMARY=\"x\"",
            ),
            "GETINFO ns/all" if self.starting > 0 => {
                self.starting -= 1;
                "551 Internal error\r\n".into()
            }
            "GETINFO ns/all" => data(
                "ns/all",
                "r one AAECAwQFBgcICQoLDA0ODxAREhM x 2026-01-01 00:00:00 198.18.1.1 5001 0\ns Exit Running Valid\nw Bandwidth=700\n",
            ),
            "GETCONF UseMicrodescriptors" => {
                self.others_end = self.others_end.saturating_sub(1);
                if self.others_end == 1 {
                    self.microdescriptors = "auto";
                }
                format!("250 UseMicrodescriptors={}\r\n", self.microdescriptors)
            }
            "SETCONF UseMicrodescriptors=0" => {
                assert_eq!(self.microdescriptors, "auto", "only one at a time");
                (self.microdescriptors, self.has_descriptor) = ("0", false);
                self.fetched += 1;
                "250 OK\r\n".into()
            }
            "SETCONF UseMicrodescriptors=auto" => {
                self.microdescriptors = "auto";
                "250 OK\r\n".into()
            }
            "GETINFO desc/all-recent" => {
                let text = if self.arrive() {
                    self.descriptor()
                } else {
                    String::new()
                };
                data("desc/all-recent", &text)
            }
            _ if command == format!("GETINFO desc/id/{FINGERPRINT}") && self.arrive() => {
                data(&format!("desc/id/{FINGERPRINT}"), &self.descriptor())
            }
            _ if command.starts_with("GETINFO desc/id/") => {
                "551 We fetch microdescriptors, not router descriptors.\r\n".into()
            }
            _ if command.starts_with("MAPADDRESS ") => {
                self.mapped.push(command.to_owned());
                "250 OK\r\n".into()
            }
            other => self
                .circuits
                .answer(other)
                .unwrap_or_else(|| panic!("the client asked {other:?}")),
        }
    }
}

pub(super) async fn accept(listener: TcpListener, socks: SocketAddr, state: Rc<RefCell<FakeTor>>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::task::spawn_local(converse(stream, socks, Rc::clone(&state)));
    }
}

async fn converse(stream: TcpStream, socks: SocketAddr, state: Rc<RefCell<FakeTor>>) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    state.borrow_mut().connections += 1;
    while stream
        .read_line(&mut line)
        .await
        .is_ok_and(|count| count > 0)
    {
        let command = std::mem::take(&mut line);
        let begins = |part: Option<&str>| part.is_some_and(|part| command.starts_with(part));
        let (silent, hangs_up) = (state.borrow().silent, state.borrow().hangs_up);
        if begins(hangs_up) {
            return;
        }
        if begins(silent) {
            continue;
        }
        let mut answer = state.borrow_mut().answer(command.trim_end(), socks);
        answer += &std::mem::take(&mut state.borrow_mut().circuits.events);
        if stream.get_mut().write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}
