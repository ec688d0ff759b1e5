//! Networks described by a TOML file: hosts, routers, and the properties of the links between them.
//!
//! ```toml
//! seed = 7
//! routers = ["exchange"]
//!
//! [hosts.server]
//! addresses = ["10.1.0.1"]        # default: one of 10.77.0.0/16
//! run = "python3 -m http.server"  # started before the command
//!
//! [hosts.user]
//!
//! [[links]]
//! between = ["server", "exchange"]
//! delay = "40ms"
//!
//! [[links]]
//! between = ["exchange", "user"]
//! profile = "3g"
//! rate = "8mbit/1mbit"            # first to second / back
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use serde::Deserialize;
use tandem_link::damage::Reset;
use tandem_link::delay::Jitter;
use tandem_link::gaps::Gaps;
use tandem_link::random::split_seed;
use tandem_link::rate::{Rate, Trace};
use tandem_link::{ConfigError, Link, LinkConfig, profile, text};

use super::router::{NodeId, Plan, Prefix};

/// The host that stands for the network around the emulator: the namespace that the program was
/// started in.
pub const OUTSIDE: &str = "outside";

/// Most hosts, routers or links of one network.
const MOST: usize = 1000;

/// An error in a topology.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// The text is not TOML, or has unknown or missing keys.
    #[error("topology: {0}")]
    Toml(#[from] toml::de::Error),
    /// A link's parameter.
    #[error("{link}: {source}")]
    Link {
        /// The link, by its ends.
        link: String,
        /// The error in the parameter.
        source: ConfigError,
    },
    /// A trace file that cannot be read.
    #[error("trace {path}: {source}")]
    TraceFile {
        /// The path as given.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// Two values for a quantity that has only one.
    #[error("{0}")]
    Shape(String),
}

/// A network.
#[derive(Debug)]
pub struct Topology {
    /// Seed of every packet's fate.
    pub seed: u64,
    /// Ends of the network.
    pub hosts: Vec<HostPlan>,
    /// The nodes that only forward.
    pub routers: Vec<String>,
    /// Links.
    pub links: Vec<LinkPlan>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPlan {
    /// The host's name.
    pub name: String,
    /// The host's addresses.
    pub addresses: Vec<IpAddr>,
    /// Addresses that are reached through it.
    pub networks: Vec<Prefix>,
    /// A shell command that it runs from the beginning.
    pub run: Option<String>,
}

/// A link between two nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkPlan {
    /// Names of its ends.
    pub between: [String; 2],
    /// The directions: first to second, second to first.
    pub directions: [LinkConfig; 2],
}

/// A link as text, from the command line or a file. Values given as `A/B` are for the two
/// directions: on the command line towards the command and from it, in a file from the first end to
/// the second and back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, clap::Args)]
#[serde(default)]
#[allow(
    rustdoc::broken_intra_doc_links,
    reason = "the brackets are the help text's"
)]
pub struct LinkText {
    /// Begin with a named profile; the other options change it (see `tandem-link profiles`)
    #[arg(long, value_name = "NAME", help_heading = "Link")]
    pub profile: Option<String>,
    /// Round trip time, half of it each way
    #[arg(
        long,
        value_name = "TIME",
        help_heading = "Link",
        conflicts_with = "delay"
    )]
    pub rtt: Option<String>,
    /// Delay in one direction
    #[arg(long, value_name = "TIME[/TIME]", help_heading = "Link")]
    pub delay: Option<String>,
    /// Variation of the delay: normal:5ms, exp:5ms; ",reorder" lets packets overtake
    #[arg(long, value_name = "JITTER[/JITTER]", help_heading = "Link")]
    pub jitter: Option<String>,
    /// Loss: 1%, ge:P,R[,GOOD,BAD] (bursts), every:N, exp:1% (exponential gaps)
    #[arg(long, value_name = "LOSS[/LOSS]", help_heading = "Link")]
    pub loss: Option<String>,
    /// Rate: 8mbit, unlimited, or trace:FILE with one delivery opportunity (ms) or one step (250ms
    /// 8mbit) per line
    #[arg(long, value_name = "RATE[/RATE]", help_heading = "Link")]
    pub rate: Option<String>,
    /// Queue before the rate: packets (256), bytes (64kB), codel[:TARGET:INTERVAL], joined by
    /// commas; or unlimited
    #[arg(long, value_name = "QUEUE[/QUEUE]", help_heading = "Link")]
    pub queue: Option<String>,
    /// Gaps in which nothing leaves, EVERY:SHORTEST-LONGEST[:FIRST], e.g. 15s:100ms-500ms
    #[arg(long, value_name = "GAPS[/GAPS]", help_heading = "Link")]
    pub gaps: Option<String>,
    /// Probability that a packet arrives twice
    #[arg(long, value_name = "P[/P]", help_heading = "Link")]
    pub duplicate: Option<String>,
    /// Probability that a packet has a wrong bit
    #[arg(long, value_name = "P[/P]", help_heading = "Link")]
    pub corrupt: Option<String>,
    /// Attack: set RST on TCP segments to a port, PORT[:after=N][,p=P] (port 0: all)
    #[arg(long, value_name = "RESET[/RESET]", help_heading = "Link")]
    pub reset: Option<String>,
}

/// Reads a trace file, for `rate = "trace:FILE"`.
pub type ReadTrace<'a> = &'a dyn Fn(&str) -> std::io::Result<String>;

impl LinkText {
    /// The two directions; `name` is for errors.
    pub fn directions(
        &self,
        name: &str,
        read: ReadTrace<'_>,
    ) -> Result<[LinkConfig; 2], TopologyError> {
        let wrong = |source| TopologyError::Link {
            link: name.into(),
            source,
        };
        let mut both = match &self.profile {
            None => [LinkConfig::default(), LinkConfig::default()],
            Some(profile) => profile::named(profile)
                .map(|p| [p.down, p.up])
                .map_err(wrong)?,
        };
        if let Some(rtt) = &self.rtt {
            let half = text::duration(rtt).map_err(wrong)? / 2;
            both.iter_mut().for_each(|direction| direction.delay = half);
        }
        for (index, direction) in both.iter_mut().enumerate() {
            self.apply(direction, index).map_err(wrong)?;
            if let Some(rate) = part(&self.rate, index) {
                direction.rate = read_rate(rate, name, read)?;
            }
            direction.check().map_err(wrong)?;
        }
        Ok(both)
    }

    /// Everything but the delay of a round trip and the rate, for one direction.
    fn apply(&self, to: &mut LinkConfig, index: usize) -> Result<(), ConfigError> {
        if let Some(delay) = part(&self.delay, index) {
            to.delay = text::duration(delay)?;
        }
        if let Some(jitter) = part(&self.jitter, index) {
            to.jitter = if jitter.trim() == "0" {
                None
            } else {
                Some(jitter.parse::<Jitter>()?)
            };
        }
        if let Some(loss) = part(&self.loss, index) {
            to.loss = loss.parse()?;
        }
        if let Some(queue) = part(&self.queue, index) {
            to.queue = queue.parse()?;
        }
        if let Some(gaps) = part(&self.gaps, index) {
            to.gaps = match gaps.trim() {
                "none" => None,
                gaps => Some(gaps.parse::<Gaps>()?),
            };
        }
        if let Some(p) = part(&self.duplicate, index) {
            to.duplicate = text::probability(p)?;
        }
        if let Some(p) = part(&self.corrupt, index) {
            to.corrupt = text::probability(p)?;
        }
        if let Some(reset) = part(&self.reset, index) {
            to.reset = if reset.trim() == "none" {
                None
            } else {
                Some(reset.parse::<Reset>()?)
            };
        }
        Ok(())
    }
}

/// Returns the part of a value that is for one direction: `A/B` is A one way and B the other, `A`
/// alone is both. Traces are files, and their names may contain slashes.
fn part(value: &Option<String>, index: usize) -> Option<&str> {
    let text = value.as_deref()?;
    let cut = if text.starts_with("trace:") {
        text.find("/trace:")
    } else {
        text.find('/')
    };
    Some(cut.map_or(text, |at| [&text[..at], &text[at + 1..]][index]))
}

fn read_rate(rate: &str, link: &str, read: ReadTrace<'_>) -> Result<Rate, TopologyError> {
    let wrong = |source| TopologyError::Link {
        link: link.into(),
        source,
    };
    let Some(path) = rate.strip_prefix("trace:") else {
        return rate.parse().map_err(wrong);
    };
    let content = read(path).map_err(|source| TopologyError::TraceFile {
        path: path.into(),
        source,
    })?;
    Trace::parse(&content)
        .map(|trace| Rate::Trace(trace.into()))
        .map_err(wrong)
}

/// A file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTopology {
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    routers: Vec<String>,
    hosts: BTreeMap<String, RawHost>,
    links: Vec<RawLink>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHost {
    #[serde(default)]
    addresses: Vec<IpAddr>,
    run: Option<String>,
}

#[derive(Debug, Deserialize)]
struct RawLink {
    /// Two; counted later, because a reader of two values passes over a third.
    between: Vec<String>,
    #[serde(flatten)]
    text: LinkText,
    #[serde(flatten)]
    rest: BTreeMap<String, toml::Value>,
}

impl Topology {
    /// Reads a description; `read` gets the traces that it names.
    pub fn parse(text: &str, read: ReadTrace<'_>) -> Result<Self, TopologyError> {
        let raw: RawTopology = toml::from_str(text)?;
        let hosts = raw
            .hosts
            .into_iter()
            .enumerate()
            .map(|(index, (name, host))| host_plan(index, name, host))
            .collect();
        let links = raw
            .links
            .into_iter()
            .map(|link| link_plan(link, read))
            .collect::<Result<_, _>>()?;
        let topology = Self {
            seed: raw.seed,
            hosts,
            routers: raw.routers,
            links,
        };
        topology.check()?;
        Ok(topology)
    }

    /// Checks names and addresses.
    pub fn check(&self) -> Result<(), TopologyError> {
        let fail = |problem: String| Err(TopologyError::Shape(problem));
        if self.hosts.len() + self.routers.len() > MOST || self.links.len() > MOST {
            return fail(format!("more than {MOST} nodes or links"));
        }
        let mut names = BTreeSet::new();
        for name in self
            .hosts
            .iter()
            .map(|host| &host.name)
            .chain(&self.routers)
        {
            if name.is_empty()
                || name.contains(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_')
            {
                return fail(format!("node name {name:?}: only letters, digits, - and _"));
            }
            if !names.insert(name.as_str()) {
                return fail(format!("two nodes are called {name:?}"));
            }
        }
        let mut addresses = BTreeSet::new();
        if let Some(double) = self
            .hosts
            .iter()
            .flat_map(|h| &h.addresses)
            .find(|address| !addresses.insert(**address))
        {
            return fail(format!("two hosts have the address {double}"));
        }
        for end in self.links.iter().flat_map(|link| &link.between) {
            if !names.contains(end.as_str()) {
                return fail(format!(
                    "a link ends at {end:?}, which is neither a host nor a router"
                ));
            }
        }
        match self
            .links
            .iter()
            .find(|link| link.between[0] == link.between[1])
        {
            Some(loops) => fail(format!("a link joins {:?} with itself", loops.between[0])),
            None => Ok(()),
        }
    }

    /// The network in virtual time, and the node of each host in the order of [`Self::hosts`].
    pub fn plan(&self) -> Result<(Plan, Vec<NodeId>), TopologyError> {
        self.check()?;
        let mut plan = Plan::default();
        let mut nodes = BTreeMap::new();
        let mut ids = Vec::new();
        for host in &self.hosts {
            let id = plan.host(&host.name, &host.addresses);
            host.networks
                .iter()
                .for_each(|network| plan.route(*network, id));
            if host.name == OUTSIDE {
                plan.set_outside(id);
            }
            nodes.insert(host.name.as_str(), id);
            ids.push(id);
        }
        for router in &self.routers {
            nodes.insert(router, plan.router(router));
        }
        for (index, link) in self.links.iter().enumerate() {
            let [a, b] = [&link.between[0], &link.between[1]].map(|name| nodes[name.as_str()]);
            let half = |direction: usize| {
                Link::new(
                    link.directions[direction].clone(),
                    split_seed(self.seed, (2 * index + direction) as u64),
                )
                .map_err(|source| TopologyError::Link {
                    link: link.between.join("-"),
                    source,
                })
            };
            plan.join(a, b, half(0)?, half(1)?);
        }
        Ok((plan, ids))
    }
}

fn host_plan(index: usize, name: String, raw: RawHost) -> HostPlan {
    let default = || {
        vec![IpAddr::from([
            10,
            77,
            ((index + 1) >> 8) as u8,
            (index + 1) as u8,
        ])]
    };
    let addresses = if raw.addresses.is_empty() {
        default()
    } else {
        raw.addresses
    };
    HostPlan {
        name,
        addresses,
        networks: Vec::new(),
        run: raw.run,
    }
}

fn link_plan(raw: RawLink, read: ReadTrace<'_>) -> Result<LinkPlan, TopologyError> {
    let name = raw.between.join("-");
    let Ok(between) = <[String; 2]>::try_from(raw.between) else {
        return Err(TopologyError::Shape(format!(
            "{name}: a link is between two nodes"
        )));
    };
    if let Some(key) = raw.rest.keys().next() {
        return Err(TopologyError::Shape(format!(
            "{name}: no such parameter {key:?}"
        )));
    }
    if raw.text.rtt.is_some() && raw.text.delay.is_some() {
        return Err(TopologyError::Shape(format!("{name}: either rtt or delay")));
    }
    Ok(LinkPlan {
        directions: raw.text.directions(&name, read)?,
        between,
    })
}

/// A fixed delay in both directions.
pub fn delayed(delay: Duration) -> [LinkConfig; 2] {
    let one_way = LinkConfig {
        delay,
        ..LinkConfig::default()
    };
    [one_way.clone(), one_way]
}

#[cfg(test)]
mod tests {
    use tandem_link::loss::Loss;

    use super::*;

    fn no_files(path: &str) -> std::io::Result<String> {
        Err(std::io::Error::new(
            std::io::ErrorKind::NotFound,
            path.to_owned(),
        ))
    }

    fn parse(text: &str) -> Result<Topology, TopologyError> {
        Topology::parse(text, &no_files)
    }

    const TWO: &str = "[hosts.a]\n[hosts.b]\naddresses = ['10.1.0.1', 'fd00::1']\n[[links]]\nbetween = ['a', 'b']\n";

    #[test]
    fn directions_may_differ() {
        let text = format!(
            "{TWO}rate = '8mbit/1mbit'\ndelay = '10ms'\nloss = '0/every:5'\n\
             queue = '20,codel:5ms:100ms'\ngaps = '1s:0-9ms/none'"
        );
        let link = parse(&text).expect("valid").links.remove(0);
        let [there, back] = link.directions;
        assert_eq!(
            (there.rate, back.rate),
            (Rate::Constant(8_000_000), Rate::Constant(1_000_000))
        );
        assert_eq!((there.loss, back.loss), (Loss::Never, Loss::EveryNth(5)));
        assert_eq!((there.delay, there.queue), (back.delay, back.queue));
        let gaps = there.gaps.map(|gaps| gaps.to_string());
        assert_eq!(gaps.as_deref(), Some("1000ms:0ms-9ms:1000ms"));
        assert_eq!(back.gaps, None);
    }

    #[test]
    fn profiles_are_a_beginning() {
        let link = parse(&format!("{TWO}profile = '3g'\nrtt = '1s'"))
            .expect("valid")
            .links
            .remove(0);
        let [down, up] = link.directions;
        assert_eq!(
            (down.delay, up.delay),
            (Duration::from_millis(500), Duration::from_millis(500))
        );
        assert_eq!(up.rate, Rate::Constant(250_000));
    }

    #[test]
    fn traces_are_read_by_name() {
        let read = |path: &str| {
            Ok(if path == "/t/down" {
                "1\n2\n".into()
            } else {
                "5\n".to_owned()
            })
        };
        let text = format!("{TWO}rate = 'trace:/t/down/trace:/t/up'");
        let [down, up] = Topology::parse(&text, &read)
            .expect("valid")
            .links
            .remove(0)
            .directions;
        assert_ne!(down.rate, up.rate);
        let error = parse(&text).expect_err("no such file").to_string();
        assert!(error.contains("/t/down"), "{error}");
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let cases = [
            ("hosts = 1", "hosts"),
            (
                "[hosts.a]\n[[links]]\nbetween = ['a', 'b', 'c']",
                "a-b-c: a link is between two nodes",
            ),
            (
                "[hosts.a]\n[[links]]\nbetween = ['a']",
                "a: a link is between two nodes",
            ),
            (&format!("{TWO}rate = '1mbit/2mbit/3mbit'"), "2mbit/3mbit"),
            (&format!("{TWO}addresses = ['10.0.0.1']"), "addresses"),
            ("[hosts.a]\n", "links"),
            (&format!("{TWO}loss = '200%'"), "a-b: probability \"200%\""),
            (&format!("{TWO}lag = '1s'"), "lag"),
            (&format!("{TWO}rtt = '1s'\ndelay = '1s'"), "either"),
            (&format!("{TWO}profile = '9g'"), "9g"),
            (&format!("{TWO}[[links]]\nbetween = ['a', 'c']"), "\"c\""),
            (&format!("{TWO}[[links]]\nbetween = ['a', 'a']"), "itself"),
            (
                "routers = ['a']\n[hosts.a]\n[[links]]\nbetween = ['a', 'a']",
                "two nodes",
            ),
            ("links = []\n[hosts.'../x']\n", "../x"),
            (
                "links = []\n[hosts.a]\naddresses = ['1.1.1.1']\n[hosts.b]\naddresses = ['1.1.1.1']\n",
                "1.1.1.1",
            ),
        ];
        for (text, expected) in cases {
            let error = parse(text).expect_err(text).to_string();
            assert!(
                error.contains(expected),
                "{error:?} should contain {expected:?}"
            );
        }
    }

    #[test]
    fn hosts_without_addresses_get_some() {
        let topology = parse(TWO).expect("valid");
        assert_eq!(topology.hosts[0].addresses, [IpAddr::from([10, 77, 0, 1])]);
        assert_eq!(topology.hosts[1].addresses.len(), 2);
    }
}
