//! The command lines of the proxies between two protocols and of their load, and the report that
//! the load program prints.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use serde::Serialize;

use super::super::BenchError;
use super::super::programs::{backend, find, nghttpx};
use super::super::testbed::Testbed;
use super::BridgeCell;

/// The body of each request, which has the length of that in the study.
pub(super) const BODY: &str = "method=viaSANE&message=abcd";

/// A version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 without TLS, by prior knowledge.
    H2,
}

impl Version {
    /// Returns the version's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http1 => "http1",
            Self::H2 => "h2",
        }
    }

    /// Returns the scheme of the bridge's endpoints.
    const fn scheme(self) -> &'static str {
        match self {
            Self::Http1 => "http",
            Self::H2 => "h2+tcp",
        }
    }
}

/// A proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Peer {
    /// Our bridge.
    Tandem,
    /// nghttp2's proxy.
    Nghttpx,
    /// nginx, which has HTTP/1.1 only towards its origins.
    Nginx,
}

impl Peer {
    /// Returns the proxy's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tandem => "tandem",
            Self::Nghttpx => "nghttpx",
            Self::Nginx => "nginx",
        }
    }

    /// Returns true if the proxy has this version towards an origin.
    pub(super) fn speaks(self, back: Version) -> bool {
        self != Self::Nginx || back == Version::Http1
    }
}

/// A load: the number of requests, and of the clients that send them one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BridgeLoad {
    /// The requests of all clients.
    pub requests: usize,
    /// The clients, each with a connection of its own.
    pub clients: usize,
}

impl BridgeLoad {
    /// The load before the first pass.
    pub(super) const WARM_UP: Self = Self {
        requests: 200,
        clients: 10,
    };
}

impl FromStr for BridgeLoad {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Self, BenchError> {
        let bad = || {
            let form = "write REQUESTSxCLIENTS, such as 100x10, with at most 1000 clients";
            BenchError::Value(format!("not a load: {text:?} ({form})"))
        };
        let (requests, clients) = text.split_once('x').ok_or_else(bad)?;
        let number = |text: &str| text.parse::<usize>().map_err(|_| bad());
        let (requests, clients) = (number(requests)?, number(clients)?);
        let fits = (1..=1000).contains(&clients) && (clients..=1_000_000).contains(&requests);
        fits.then_some(Self { requests, clients }).ok_or_else(bad)
    }
}

/// The times of one run in milliseconds: means over the requests or clients, and the whole run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BridgeTimes {
    /// From the start of a client until its connection stands.
    pub connect: f64,
    /// From a request until its whole response.
    pub request: f64,
    /// From the start of a client until the first byte of its first response.
    pub first_byte: f64,
    /// The whole run.
    pub total: f64,
}

/// Returns the call of a proxy with one worker.
pub(super) fn command(
    cell: BridgeCell,
    testbed: &Testbed,
    tandem: &Path,
    listen: SocketAddr,
    origin: SocketAddr,
) -> Result<Command, BenchError> {
    match cell.peer {
        Peer::Tandem => {
            let mut command = Command::new(tandem);
            command.args(["bridge", "--workers=1", "--open", "--allow-host=*"]);
            let (front, back) = (cell.front.scheme(), cell.back.scheme());
            command.arg(format!("--listen={front}://{listen}"));
            command.arg(format!("--mode=reverse={back}://{origin}"));
            Ok(command)
        }
        Peer::Nghttpx => {
            let protocol = match cell.back {
                Version::Http1 => "",
                Version::H2 => ";;proto=h2",
            };
            let front = format!("{},{};no-tls", listen.ip(), listen.port());
            nghttpx(&front, &format!("{}{protocol}", backend(origin)), testbed)
        }
        Peer::Nginx => nginx(cell, testbed, listen, origin),
    }
}

fn nginx(
    cell: BridgeCell,
    testbed: &Testbed,
    listen: SocketAddr,
    origin: SocketAddr,
) -> Result<Command, BenchError> {
    let directory = testbed.directory().display();
    let name = cell.name();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!(" {kind}_temp_path {directory}/{name}-{kind};\n"))
        .collect();
    let h2 = match cell.front {
        Version::Http1 => "",
        Version::H2 => " http2",
    };
    let text = format!(
        "daemon off;\nmaster_process off;\npid {directory}/{name}.pid;\nevents {{}}\nhttp {{\n\
         {temporary} access_log off;\n keepalive_requests 100000000;\n upstream origin {{\n  \
         server {origin};\n  keepalive 64;\n  keepalive_requests 100000000;\n }}\n \
         server {{\n  listen {listen}{h2};\n  location / {{\n   proxy_pass http://origin;\n   proxy_http_version 1.1;\n   \
         proxy_set_header Connection \"\";\n  }}\n }}\n}}\n"
    );
    let configuration = testbed.write(&format!("{name}.conf"), text)?;
    let mut command = Command::new(find("nginx", "nginx-light")?);
    let log = testbed.directory().join(format!("{name}-error.log"));
    command.arg("-e").arg(log).arg("-c").arg(configuration);
    Ok(command)
}

/// Returns the call of the load program.
pub(super) fn h2load(
    front: Version,
    load: BridgeLoad,
    body: &Path,
    address: SocketAddr,
) -> Result<Command, BenchError> {
    let mut command = Command::new(find("h2load", "nghttp2-client")?);
    command.arg("-t1");
    command.arg(format!("-n{}", load.requests));
    command.arg(format!("-c{}", load.clients));
    if front == Version::Http1 {
        command.arg("--h1");
    }
    command.arg("-d").arg(body);
    command.arg(format!("http://{address}/request"));
    Ok(command)
}

/// Reads the report of the load program. Returns `None` unless all requests succeeded.
pub(super) fn times(text: &str, load: BridgeLoad) -> Option<BridgeTimes> {
    let line = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
    let codes = line("status codes: ")?.split(' ').next()?;
    if codes.parse() != Ok(load.requests) {
        return None;
    }
    let mean = |start: &str| milliseconds(line(start)?.split_whitespace().nth(2)?);
    Some(BridgeTimes {
        connect: mean("time for connect:")?,
        request: mean("time for request:")?,
        first_byte: mean("time to 1st byte:")?,
        total: milliseconds(line("finished in ")?.split(',').next()?)?,
    })
}

/// Reads a time such as `63us`, `8.04ms` or `1.20s`.
fn milliseconds(text: &str) -> Option<f64> {
    let units = [("us", 0.001), ("ms", 1.0), ("s", 1000.0)];
    units.into_iter().find_map(|(unit, factor)| {
        let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
        Some(number * factor)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "finished in 1.03s, 97.0 req/s, 590.73KB/s\n\
        requests: 100 total, 100 started, 100 done, 100 succeeded, 0 failed, 0 errored, 0 timeout\n\
        status codes: 100 2xx, 0 3xx, 0 4xx, 0 5xx\n\
        \x20                    min         max         mean         sd        +/- sd\n\
        time for request:       63us      8.04ms      2.03ms      3.09ms    80.00%\n\
        time for connect:       73us       622us       250us       153us    80.00%\n\
        time to 1st byte:     7.58ms      8.10ms      7.73ms       146us    80.00%\n";

    #[test]
    fn reads_the_times_of_a_whole_run() {
        let load = BridgeLoad {
            requests: 100,
            clients: 10,
        };
        let expected = BridgeTimes {
            connect: 0.25,
            request: 2.03,
            first_byte: 7.73,
            total: 1030.0,
        };
        assert_eq!(times(REPORT, load), Some(expected));
        assert_eq!(times(&REPORT.replace(": 100 2xx", ": 99 2xx"), load), None);
        assert_eq!(times("", load), None);
    }

    #[test]
    fn load_names_requests_and_clients() {
        let load: BridgeLoad = "100x10".parse().expect("a load");
        assert_eq!((load.requests, load.clients), (100, 10));
        for text in [
            "",
            "100",
            "1x2",
            "0x0",
            "5x0",
            "ax1",
            "9999999x1",
            "2000x1001",
        ] {
            let error = text.parse::<BridgeLoad>().expect_err(text).to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
