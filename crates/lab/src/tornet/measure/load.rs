//! A load of a page: a new client for it, the loader beside it, and the counters of the surrounding
//! links.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::ops::Sub;
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::pushes::{Pushes, changed_counters};
use super::{
    BROWSER_CONNECTIONS, BoundKnowledge, GatewayProtocol, MeasureError, MeasurePlan, MeasureSetup,
    MeasuredPage, PagePlace, PushMode,
};
use crate::bench::programs::without_compression;
use crate::tornet::client::{Client, Ground, load_page};
use crate::tornet::control::Control;
use crate::tornet::layout::MARKER;
use crate::tornet::{RunDirectory, State, TornetError};
use tandem_net::emulator::report::{Snapshot, Traffic};
use tandem_net::emulator::sys;
use tandem_net::netns::Netns;
use tandem_web::loader::{self, BrowserCookies, Discovery, Load, Loader, Via};
use tandem_web::measure::loader_har;
use tandem_web::page::{Page, Site};

/// Time that a page may take.
const DEADLINE: Duration = Duration::from_secs(300);

/// Time until the directory has full descriptors.
const DIRECTORY_LIMIT: Duration = Duration::from_secs(90);

/// The largest traffic of the link in a quiet second.
const QUIET_BYTES: u64 = 4_000;

/// The longest wait, in seconds, for traffic that a load left in flight.
const SETTLE_LIMIT: u32 = 20;

/// The duration and the traffic of a load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadedPage {
    /// The time from the loader's first byte to its last.
    pub time_s: f64,
    /// From the start to the first byte of the first answer: mostly the circuit's, which may have
    /// to be built first.
    pub first_byte_s: f64,
    /// IP bytes from the client's host into the network.
    pub bytes_up: u64,
    /// And back.
    pub bytes_down: u64,
    /// IP packets from the client's host into the network.
    pub packets_up: u64,
    /// And back.
    pub packets_down: u64,
    /// The same between the exit and the relays before it; none where no exit is on the way.
    pub exit: Option<ExitLink>,
    /// Bytes that the loader wrote.
    pub loader_up: u64,
    /// Bytes that it read.
    pub loader_down: u64,
    /// Connections that it opened.
    pub connections: usize,
    /// Requests that it made.
    pub requests: usize,
    /// The client's counters of pushes or early requests; `None` without a client.
    pub pushes: Option<Pushes>,
}

/// Traffic between middle relay and exit, as IP packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ExitLink {
    /// Bytes towards the exit.
    pub bytes_up: u64,
    /// And from it.
    pub bytes_down: u64,
    /// Packets towards the exit.
    pub packets_up: u64,
    /// And from it.
    pub packets_down: u64,
}

/// The traffic of the client's interface, and of the link between the exit's side and all other
/// relays.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CountedTraffic {
    up: Traffic,
    down: Traffic,
    to_exit: Traffic,
    from_exit: Traffic,
}

impl CountedTraffic {
    fn of(snapshot: &Snapshot) -> Option<Self> {
        let port = snapshot.port("client")?;
        let link = |from: &str, to: &str| {
            let link = snapshot
                .links
                .iter()
                .find(|link| link.from == from && link.to == to);
            link.map(|link| link.received)
        };
        let (to_exit, from_exit) = (link("core", "edge")?, link("edge", "core")?);
        Some(Self {
            up: port.sent,
            down: port.received,
            to_exit,
            from_exit,
        })
    }

    pub(super) fn bytes(self) -> u64 {
        self.up.bytes + self.down.bytes
    }
}

impl Sub for CountedTraffic {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        let less = |now: Traffic, before: Traffic| Traffic {
            packets: now.packets.saturating_sub(before.packets),
            bytes: now.bytes.saturating_sub(before.bytes),
        };
        Self {
            up: less(self.up, before.up),
            down: less(self.down, before.down),
            to_exit: less(self.to_exit, before.to_exit),
            from_exit: less(self.from_exit, before.from_exit),
        }
    }
}

/// The network and the client's place in it.
pub(super) struct LoadBench<'a> {
    plan: &'a MeasurePlan,
    directory: RunDirectory,
    state: State,
    network: Netns,
    /// Makes every load's isolation key and host name unlike all others.
    loads: AtomicUsize,
}

impl<'a> LoadBench<'a> {
    pub(super) fn open(plan: &'a MeasurePlan) -> Result<Self, MeasureError> {
        let Ground {
            directory,
            state,
            network,
        } = Ground::open(&plan.instance)?;
        Ok(Self {
            plan,
            directory,
            state,
            network,
            loads: AtomicUsize::new(0),
        })
    }

    pub(super) const fn plan(&self) -> &MeasurePlan {
        self.plan
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    pub(super) fn counters(&self) -> Result<CountedTraffic, MeasureError> {
        let snapshot = self.directory.counters()?;
        Ok(CountedTraffic::of(&snapshot)
            .ok_or_else(|| TornetError::State("the client's or the exit's link is gone".into()))?)
    }

    /// Returns the reason to distrust the figures, if there is one.
    pub(super) fn trouble(&self) -> Option<String> {
        self.directory.counters().ok()?.trouble()
    }

    /// Waits, up to a limit, until earlier traffic has ended and tor has fetched its directory
    /// documents.
    pub(super) fn settle(&self) -> Result<CountedTraffic, MeasureError> {
        let mut before = self.counters()?;
        for _ in 0..SETTLE_LIMIT {
            thread::sleep(Duration::from_secs(1));
            let now = self.counters()?;
            if (now - before).bytes() < QUIET_BYTES {
                return Ok(now);
            }
            before = now;
        }
        Ok(before)
    }

    /// Loads the page once, as a user that is new to the gateway. The inner error is a load that
    /// failed; the outer ends the measurement.
    pub(super) fn load(
        &self,
        subject: &MeasuredPage,
        setup: MeasureSetup,
        visits: usize,
    ) -> Result<Result<LoadedPage, String>, MeasureError> {
        let number = self.loads.fetch_add(1, Ordering::Relaxed);
        let key = format!("measure-{}-{number}", std::process::id());
        let site = self.site(subject, setup, &key)?;
        if subject.way == PagePlace::Onion {
            self.forget_onions()?;
        }
        let started = match setup {
            MeasureSetup::Plain | MeasureSetup::Bound { .. } => None,
            MeasureSetup::Pair { session, push, .. } => {
                Some(self.start_client(self.pair_arguments(subject.way, session, push)))
            }
            MeasureSetup::Solo { .. } => Some(self.start_client(self.solo_arguments())),
        };
        let client = match started.transpose() {
            Ok(client) => client,
            Err(error) => return Ok(Err(format!("the client did not start: {error}"))),
        };
        let loader = self.loader(
            subject,
            setup,
            client.as_ref().map(|client| client.listen),
            &key,
        );
        let once = || load_page(&self.network, &loader, &site);
        if (self.plan.warm || setup.is_second_visit())
            && let Err(error) = once()
        {
            return Ok(Err(format!("warming up: {error}")));
        }
        let metrics = || {
            client
                .as_ref()
                .map(|client| client.metrics(&self.network))
                .transpose()
        };
        let metrics = || metrics().map_err(TornetError::of("read the client's counters"));
        let (before, counted) = (self.settle()?, metrics()?);
        let loaded = once();
        let moved = self.settle()? - before;
        let load = match loaded {
            Ok(load) => load,
            Err(error) => {
                let told = client.as_ref().map_or_else(String::new, Client::last_words);
                return Ok(Err(format!("{error}{told}")));
            }
        };
        let name = format!("{}-{setup}-{number}", subject.name);
        self.write_har(&load, &site, &name)?;
        let counted = counted.zip(metrics()?);
        if let Some((before, after)) = &counted {
            self.write_counters(before, after, &name)?;
        }
        let pushes = counted.map(|(before, after)| Pushes::between(&before, &after, visits));
        Ok(Ok(summary(&load, moved, subject.way, pushes)))
    }

    /// Makes tor forget which onion services it has visited, so that each load pays for the
    /// descriptor of its service. Otherwise only the first load of a page in each pass would.
    fn forget_onions(&self) -> Result<(), MeasureError> {
        let mut control = Control::connect(&self.state.endpoints.control_socket)?;
        Ok(control.new_identity()?)
    }

    /// Makes tor fetch full descriptors, which contain an exit's policy for single addresses. With
    /// microdescriptors alone tor would not use the gateway's exit, even if it is named. The
    /// descriptors are in the directory a consensus or two after the network is up.
    pub(super) fn find_gateways(&self) -> Result<(), MeasureError> {
        let until = Instant::now() + DIRECTORY_LIMIT;
        loop {
            let mut command = Command::new(&self.plan.tandem);
            command.args([
                "gateways",
                "--via",
                &format!("tor://{}", self.state.endpoints.control),
            ]);
            sys::prepare_supervised(&mut command, Some(self.network.as_fd()));
            let ended = command
                .stdin(Stdio::null())
                .output()
                .map_err(TornetError::of("run tandem gateways"))?;
            if ended.status.success() {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(MeasureError::NotFound(
                    String::from_utf8_lossy(&ended.stderr).trim().to_owned(),
                ));
            }
            thread::sleep(Duration::from_secs(1));
        }
    }

    /// Returns the page under a different name for each load, so that the gateway has never seen
    /// the site. Visited pages have one name for all loads.
    fn site(
        &self,
        subject: &MeasuredPage,
        setup: MeasureSetup,
        key: &str,
    ) -> Result<Site, MeasureError> {
        let ends = &self.state.endpoints;
        let host = match subject.way {
            PagePlace::Exit => ends
                .sites
                .iter()
                .find(|site| site.page == subject.page)
                .map(|site| {
                    let visited = format!("visited-{}", std::process::id());
                    let label = if setup.push() == Some(PushMode::Visited) {
                        &visited
                    } else {
                        key
                    };
                    format!("{label}.{}", site.host)
                }),
            PagePlace::Onion => ends.onion_of(&subject.page).map(str::to_owned),
        };
        let host =
            host.ok_or_else(|| TornetError::State(format!("no site serves {}", subject.page)))?;
        Ok(Site::new(Page::open(&subject.page)?, &[host])?)
    }

    fn loader(
        &self,
        subject: &MeasuredPage,
        setup: MeasureSetup,
        proxy: Option<SocketAddr>,
        key: &str,
    ) -> Loader {
        let in_flight = match setup {
            MeasureSetup::Pair { in_flight, .. } => in_flight,
            MeasureSetup::Bound { connections, .. } => connections,
            MeasureSetup::Plain | MeasureSetup::Solo { .. } => BROWSER_CONNECTIONS,
        };
        let (is_bound, discovery) = match setup {
            MeasureSetup::Bound {
                knows: BoundKnowledge::Everything,
                ..
            } => (true, Discovery::List),
            MeasureSetup::Bound { .. } => (true, Discovery::Triggers),
            _ => (false, subject.discovery),
        };
        let (via, headers) = match proxy {
            Some(proxy) => {
                let isolation = ("Proxy-Authorization".to_owned(), format!("Key {key}"));
                (
                    Via::Http {
                        proxy: proxy.to_string(),
                    },
                    vec![isolation],
                )
            }
            None => {
                let credentials = Some((key.to_owned(), "x".to_owned()));
                (
                    Via::Socks5 {
                        proxy: self.state.endpoints.socks.clone(),
                        credentials,
                    },
                    vec![],
                )
            }
        };
        Loader {
            per_host: in_flight,
            total: in_flight.max(256),
            discovery,
            deadline: DEADLINE,
            optimistic: is_bound || (self.plan.optimistic && setup == MeasureSetup::Plain),
            // A second load is one of the same browser, whose cache is empty.
            jar: Some(BrowserCookies::default()),
            headers,
            ..Loader::new(via)
        }
    }

    /// Returns the arguments of a client with a gateway. Its exit is named, so that looking for one
    /// is not in the numbers.
    fn pair_arguments(
        &self,
        way: PagePlace,
        session: GatewayProtocol,
        push: PushMode,
    ) -> Vec<String> {
        let ends = &self.state.endpoints;
        let GatewayProtocol { name, port } = session;
        let (gateway, via) = match way {
            PagePlace::Exit => {
                let exit = &ends.exit_fingerprint;
                (
                    format!("{name}+tcp://{MARKER}:{port}?exit={exit}"),
                    format!("tor://{}", ends.control),
                )
            }
            PagePlace::Onion => {
                let onion = ends.onion.as_deref().unwrap_or_default();
                (
                    format!("{name}+tcp://{onion}:{port}"),
                    format!("socks5://{}", ends.socks),
                )
            }
        };
        let mut arguments = vec!["--gateway".to_owned(), gateway, "--via".to_owned(), via];
        arguments.push(format!("--push={}", push != PushMode::Off));
        arguments.extend(without_compression(&self.plan.client_arguments).map(str::to_owned));
        arguments
    }

    /// Returns the arguments of a client without a gateway. It looks for none, and makes early
    /// requests for every page.
    fn solo_arguments(&self) -> Vec<String> {
        let via = format!("socks5://{}", self.state.endpoints.socks);
        [
            "--solo",
            "--via",
            &via,
            "--discover=false",
            "--solo-hold-out=0",
        ]
        .map(str::to_owned)
        .to_vec()
    }

    /// Starts a client that has no session yet.
    fn start_client(&self, mut arguments: Vec<String>) -> io::Result<Client> {
        arguments.extend(self.plan.client_arguments.iter().cloned());
        let log = self.directory.path().join("measure-client.log");
        Client::start(&self.network, &self.plan.tandem, &arguments, None, log)
    }

    fn write_har(&self, load: &Load, site: &Site, name: &str) -> Result<(), MeasureError> {
        let har = loader_har(load, loader::Protocol::Http1, site).to_json(&serde_json::Value::Null);
        self.write(&format!("{name}.har"), &har.to_string())
    }

    /// Writes the counters of the client that have changed during a load.
    fn write_counters(&self, before: &str, after: &str, name: &str) -> Result<(), MeasureError> {
        let counters = changed_counters(before, after);
        self.write(&format!("{name}.counters"), &counters)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), MeasureError> {
        let Some(directory) = &self.plan.har else {
            return Ok(());
        };
        let file = directory.join(name.replace([' ', '/', ',', ':'], "-"));
        let failed = TornetError::of(format!("write {}", file.display()));
        Ok(fs::write(&file, text).map_err(failed)?)
    }
}

fn summary(
    load: &Load,
    moved: CountedTraffic,
    way: PagePlace,
    pushes: Option<Pushes>,
) -> LoadedPage {
    let exit = (way == PagePlace::Exit).then_some(ExitLink {
        bytes_up: moved.to_exit.bytes,
        bytes_down: moved.from_exit.bytes,
        packets_up: moved.to_exit.packets,
        packets_down: moved.from_exit.packets,
    });
    let first_byte = load
        .requests
        .iter()
        .map(|request| request.end() - request.receive)
        .min()
        .unwrap_or_default();
    LoadedPage {
        time_s: load.time.as_secs_f64(),
        first_byte_s: first_byte.as_secs_f64(),
        bytes_up: moved.up.bytes,
        bytes_down: moved.down.bytes,
        packets_up: moved.up.packets,
        packets_down: moved.down.packets,
        exit,
        loader_up: load.bytes_up,
        loader_down: load.bytes_down,
        connections: load.connections,
        requests: load.requests.len(),
        pushes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_net::emulator::report::{LinkReport, PortReport};

    fn traffic(bytes: u64) -> Traffic {
        Traffic {
            packets: bytes / 100,
            bytes,
        }
    }

    fn link(from: &str, to: &str, bytes: u64) -> LinkReport {
        LinkReport {
            from: from.into(),
            to: to.into(),
            received: traffic(bytes),
            ..LinkReport::default()
        }
    }

    #[test]
    fn counts_both_ends_of_the_path() {
        let client = PortReport {
            host: "client".into(),
            sent: traffic(300),
            received: traffic(4000),
            ..PortReport::default()
        };
        let links = vec![
            link("web", "edge", 9000),
            link("core", "edge", 500),
            link("edge", "core", 6000),
        ];
        let snapshot = Snapshot {
            ports: vec![client],
            links,
            ..Snapshot::default()
        };
        let now = CountedTraffic::of(&snapshot).expect("all links are there");
        let moved = now
            - CountedTraffic {
                up: traffic(100),
                to_exit: traffic(200),
                ..CountedTraffic::default()
            };
        assert_eq!(
            (moved.bytes(), moved.to_exit.bytes, moved.from_exit.packets),
            (4200, 300, 60)
        );
        assert!(
            CountedTraffic::of(&Snapshot {
                links: Vec::new(),
                ..snapshot
            })
            .is_none()
        );
    }
}
