//! A page load in one set-up, on a separate network: no state of a kernel or proxy comes from
//! another load.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::ExperimentError;
use super::download::{self, Downloads};
use super::file::{Experiment, SessionProtocol, Setup, Way};
use super::plan::Trial;
use super::point::{Conditions, Origins};
use super::results::{Measured, Outcome, Push, Record};
use super::trial_network::{FAR, PROXY, TrialContext, TrialNetwork};
use crate::bench::BenchError;
use tandem_http::Scheme;
use tandem_web::loader::{Discovery, Loader, Protocol, Via};
use tandem_web::measure::{Client, MeasureError, Outcome as Loaded};
use tandem_web::origin::{Origin, Protocols};
use tandem_web::page::{Page, Site};

/// The connections that Chromium opens to one HTTP proxy (`kDefaultMaxSocketsPerProxyChain`).
const PROXY_SOCKETS: usize = 32;
const HOUR: Duration = Duration::from_secs(3600);
/// The time of downloads before the page that they accompany.
const BULK_LEAD: Duration = Duration::from_secs(5);
/// The longest name of a trace, without its ending.
const LONGEST_NAME: usize = 200;
/// Between two users, so that the gateway learns of the end of a session on the longest path.
const BETWEEN_USERS: Duration = Duration::from_secs(1);

/// Makes a load. An error is one of the machine; a page that does not come is a result.
pub fn run(
    context: &TrialContext,
    experiment: &Experiment,
    trial: &Trial,
) -> Result<Record, ExperimentError> {
    let began = Instant::now();
    let conditions = trial.point.conditions("point")?;
    let setup = &experiment.setups[trial.setup];
    let site = site(experiment, &conditions, setup)?;
    let read_trace = |name: &str| experiment.trace(name);
    let pass = if experiment.same_seed {
        0
    } else {
        trial.pass as u64
    };
    let seed = link_seed(experiment.seed, pass, &conditions.page);
    let capture = trace_file(context, setup, trial, "pcap");
    let mut network = TrialNetwork::set_up(context, &conditions, &read_trace, seed, capture)?;
    let origin = match site.scheme() {
        Scheme::Https => Origin::secure(site.clone(), Protocols::Both),
        _ => Ok(Origin::new(site.clone())),
    };
    network.serve(&origin.map_err(|error| BenchError::Value(error.to_string()))?)?;
    network.start_gateway(setup)?;
    let loader = loader(experiment, setup, &conditions);
    let newcomer = Loader {
        revisit: None,
        ..loader.clone()
    };
    let other_users = if setup.way == Way::Solo {
        0
    } else {
        setup.visits
    };
    for _ in 0..other_users {
        let client = network.start_client(setup)?;
        let visited = load(&network, &newcomer, &site)?;
        // A browser goes on after its load, and the client reports the last pushes.
        network.until_quiet();
        network.stop(client);
        std::thread::sleep(BETWEEN_USERS);
        if let Err(failed) = visited {
            return Ok(record(
                setup,
                trial,
                began,
                Outcome::Failed(format!("an earlier user: {failed}")),
            ));
        }
    }
    let har = trace_file(context, setup, trial, "har");
    let outcome = measure(&network, setup, &loader, &site, conditions.bulk, har)?;
    let snapshot = network.take_down()?;
    let outcome = match outcome {
        Ok(measured) => {
            let (late_ms, trouble) = (snapshot.lateness.p99_ms, snapshot.trouble());
            Outcome::Measured(Box::new(Measured {
                late_ms,
                trouble,
                ..measured
            }))
        }
        Err(failed) => Outcome::Failed(failed),
    };
    Ok(record(setup, trial, began, outcome))
}

/// Returns the file for the requests or packets of a trial, if they are kept.
fn trace_file(context: &TrialContext, setup: &Setup, trial: &Trial, kind: &str) -> Option<PathBuf> {
    let directory = context.traces.as_ref()?;
    Some(directory.join(format!("{}.{kind}", trace_name(&setup.name, trial))))
}

/// Returns the name of a trial's trace: its set-up, pass and point, with the last part of paths.
fn trace_name(setup: &str, trial: &Trial) -> String {
    let values = trial.point.values().map(|(_, value)| {
        let file = value.rsplit('/').next().unwrap_or(value);
        file.strip_suffix(".json").unwrap_or(file)
    });
    let parts: Vec<&str> = values.collect();
    let name = format!("{setup}-{}-{}", trial.pass, parts.join("-"));
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.chars()
        .map(|c| if is_plain(c) { c } else { '_' })
        .take(LONGEST_NAME)
        .collect()
}

fn record(setup: &Setup, trial: &Trial, began: Instant, outcome: Outcome) -> Record {
    Record {
        key: trial.key.clone(),
        point: trial.point.clone(),
        setup: setup.name.clone(),
        pass: trial.pass,
        took_s: began.elapsed().as_secs_f64(),
        outcome,
    }
}

/// Returns the seed of a trial's link. It is the same for all set-ups and conditions of a page and
/// pass.
///
/// The name of the page is part of it. Otherwise, all pages would lose the same packets of a
/// handshake or a warm-up, and their median would be that of a single sample.
fn link_seed(seed: u64, pass: u64, page: &str) -> u64 {
    let name = page.rsplit('/').next().unwrap_or(page);
    seed.wrapping_mul(1009).wrapping_add(pass) ^ tandem_web::page::seed(name.as_bytes())
}

fn site(
    experiment: &Experiment,
    conditions: &Conditions,
    setup: &Setup,
) -> Result<Site, ExperimentError> {
    let failed = |source| ExperimentError::Page {
        key: format!("page {:?}", conditions.page),
        source,
    };
    let secure = setup.is_secure();
    let scheme = if secure { Scheme::Https } else { Scheme::Http };
    let mut page = experiment.page(&conditions.page).map_err(failed)?;
    if let Origins::Shards(shards) = conditions.origins {
        deal(&mut page, shards);
    }
    let authorities = TrialNetwork::authorities(conditions.origins, &page, secure);
    Site::with_scheme(page, scheme, &authorities).map_err(failed)
}

/// Gives the resources of a page on one host to several in turn; the document stays.
fn deal(page: &mut Page, shards: usize) {
    if page.hosts.len() == 1 && shards > 1 {
        page.hosts = (0..shards)
            .map(|shard| format!("shard{shard}.{}", page.hosts[0]))
            .collect();
        page.resources
            .iter_mut()
            .enumerate()
            .for_each(|(index, resource)| resource.host = index % shards);
    }
}

fn loader(experiment: &Experiment, setup: &Setup, conditions: &Conditions) -> Loader {
    let via = match setup.way {
        Way::Http | Way::Https | Way::H2 => Via::Direct,
        Way::Pair | Way::Nghttpx | Way::Solo | Way::Other => Via::Http {
            proxy: PROXY.to_string(),
        },
    };
    let per_host = setup.parallel.or(conditions.parallel).unwrap_or(1);
    let total = match (conditions.origins, &via) {
        (Origins::Shards(shards), _) => per_host.saturating_mul(shards).max(256),
        (Origins::Recorded, Via::Direct) => 256,
        (Origins::Recorded, _) => PROXY_SOCKETS.max(per_host),
    };
    let resolve = match conditions.origins {
        Origins::Shards(_) => Vec::new(),
        Origins::Recorded => vec![("*".to_owned(), FAR.to_string())],
    };
    Loader {
        protocol: if setup.way == Way::H2 {
            Protocol::H2
        } else {
            Protocol::Http1
        },
        per_host,
        total,
        ahead: setup.ahead,
        resolve,
        revisit: (setup.revisit_hours).map(|hours| HOUR.saturating_mul(hours)),
        discovery: if experiment.list {
            Discovery::List
        } else {
            Discovery::Triggers
        },
        deadline: experiment.deadline,
        ..Loader::new(via)
    }
}

/// Loads the page. The outer error is one of the machine.
fn load(
    network: &TrialNetwork<'_>,
    loader: &Loader,
    site: &Site,
) -> Result<Result<Loaded, String>, BenchError> {
    let client = Client::Loader(loader.clone());
    match network
        .near(async || client.load(site).await)
        .map_err(BenchError::system("start the loader"))?
    {
        Ok(loaded) => Ok(Ok(loaded)),
        Err(MeasureError::Load(error)) => Ok(Err(error.to_string())),
        Err(error) => Err(BenchError::Value(error.to_string())),
    }
}

/// Starts the client of a set-up, and lets it do everything that precedes the load.
fn prepare(
    network: &TrialNetwork<'_>,
    setup: &Setup,
    loader: &Loader,
    site: &Site,
) -> Result<Result<(), String>, BenchError> {
    network.start_client(setup)?;
    if setup.resume {
        download::earlier(network, setup)?;
    }
    if setup.warm {
        // Our client opens its session at its start; a request here would come from a different
        // browser.
        match setup.way {
            Way::Pair => _ = network.until_quiet(),
            _ => network.warm_up()?,
        }
    }
    if setup.way == Way::Solo {
        for _ in 0..setup.visits {
            if let Err(failed) = load(network, loader, site)? {
                return Ok(Err(failed));
            }
            network.until_quiet();
        }
    }
    Ok(Ok(()))
}

fn measure(
    network: &TrialNetwork<'_>,
    setup: &Setup,
    loader: &Loader,
    site: &Site,
    bulk: usize,
    har: Option<PathBuf>,
) -> Result<Result<Measured, String>, BenchError> {
    if let Err(failed) = prepare(network, setup, loader, site)? {
        return Ok(Err(failed));
    }
    let before = if setup.warm || setup.visits > 0 || setup.resume {
        network.until_quiet()
    } else {
        Default::default()
    };
    let before_load = network.served();
    let downloads = Downloads::begin(network, setup, bulk)?;
    if bulk > 0 {
        std::thread::sleep(BULK_LEAD);
    }
    let (began, downloaded) = (Instant::now(), downloads.bytes());
    let loaded = load(network, loader, site)?;
    let downloaded = downloads.bytes() - downloaded;
    let bulk_mbit = downloaded as f64 * 8e-6 / began.elapsed().as_secs_f64();
    drop(downloads);
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(failed) => return Ok(Err(failed)),
    };
    if let Some(path) = har {
        let text = loaded.har.to_json(&serde_json::Value::Null).to_string();
        std::fs::write(&path, text)
            .map_err(BenchError::system(format!("write {}", path.display())))?;
    }
    let carried = network.until_quiet().since(before);
    let after = network.served();
    if setup.resume
        && let Some(missing) = not_resumed(network, setup)?
    {
        return Ok(Err(missing.to_owned()));
    }
    let push = if setup.way == Way::Solo || (setup.way == Way::Pair && setup.push) {
        Some(push(&network.metrics()?)?)
    } else {
        None
    };
    Ok(Ok(Measured {
        page_load_ms: loaded.page_load_ms,
        time_on_wire_ms: loaded.time_on_wire_ms,
        first_byte_ms: loaded.first_byte_ms,
        connections: loaded.connections,
        requests: loaded.requests,
        body_bytes: loaded.body_bytes,
        served_bytes: after.body_bytes.saturating_sub(before_load.body_bytes),
        served_requests: after.requests.saturating_sub(before_load.requests),
        up: carried.up,
        down: carried.down,
        lost: carried.lost,
        bulk_mbit: (bulk > 0).then_some(bulk_mbit),
        push,
        ..Measured::default()
    }))
}

/// Returns the part of a return to the gateway that did not happen.
fn not_resumed(
    network: &TrialNetwork<'_>,
    setup: &Setup,
) -> Result<Option<&'static str>, BenchError> {
    if counter(&network.gateway_metrics()?, "tandem_sessions_resumed_total")? == 0 {
        return Ok(Some(
            "the session began without the speed of the earlier one",
        ));
    }
    let is_dtls = setup.session == SessionProtocol::H3Dtls;
    let accepted = "tandem_dtls_tokens_accepted_total";
    if is_dtls && counter(&network.gateway_metrics()?, accepted)? == 0 {
        return Ok(Some("the gateway accepted no address token"));
    }
    let is_quic = setup.session == SessionProtocol::H3Quic;
    if is_quic && counter(&network.metrics()?, "tandem_early_data_accepted_total")? == 0 {
        return Ok(Some("no request left before the handshake"));
    }
    Ok(None)
}

/// Returns a counter of a program's metrics.
fn counter(metrics: &str, name: &str) -> Result<u64, BenchError> {
    let mut lines = metrics.lines().filter(|line| !line.starts_with('#'));
    let found = lines.find_map(|line| line.split_once(' ').filter(|(own, _)| *own == name));
    let number = found.and_then(|(_, value)| value.trim().parse::<f64>().ok());
    number
        .map(|number| number as u64)
        .ok_or_else(|| BenchError::Value(format!("the program has no counter {name}")))
}

/// Parses the push counters of our client's metrics.
fn push(metrics: &str) -> Result<Push, BenchError> {
    Ok(Push {
        received: counter(metrics, "tandem_push_bytes_received_total")?,
        used: counter(metrics, "tandem_push_bytes_used_total")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::point::{Axis, Point};

    #[test]
    fn reads_the_clients_counters() {
        let text = "# HELP tandem_push_bytes_used_total y\ntandem_push_bytes_received_total 300\ntandem_push_bytes_used_total 120\n";
        assert_eq!(
            push(text).expect("both"),
            Push {
                received: 300,
                used: 120
            }
        );
        assert!(
            push("")
                .expect_err("none")
                .to_string()
                .contains("push_bytes_received")
        );
    }

    #[test]
    fn seed_of_a_link_depends_on_pass_and_page() {
        let seed = link_seed(1, 0, "pages/essay.json");
        assert_eq!(seed, link_seed(1, 0, "/elsewhere/essay.json"));
        for other in [
            link_seed(1, 0, "pages/shop.json"),
            link_seed(1, 1, "pages/essay.json"),
            link_seed(2, 0, "pages/essay.json"),
        ] {
            assert_ne!(seed, other);
        }
    }

    #[test]
    fn trace_is_named_by_its_trial() {
        let point = Point::default()
            .with(Axis::Page, "/pages/a b.json")
            .with(Axis::Rtt, "400ms");
        let trial = Trial {
            point,
            setup: 0,
            pass: 1,
            key: String::new(),
        };
        assert_eq!(trace_name("push", &trial), "push-1-a_b-400ms");
        let long = Trial {
            point: Point::default().with(Axis::Page, &"x".repeat(999)),
            ..trial
        };
        assert_eq!(trace_name("push", &long).len(), LONGEST_NAME);
    }

    #[test]
    fn pages_of_one_host_are_dealt_to_shards() {
        let mut page = Page::uniform(6, 100);
        deal(&mut page, 3);
        assert_eq!(page.hosts.len(), 3);
        assert_eq!(
            page.resources
                .iter()
                .map(|resource| resource.host)
                .collect::<Vec<_>>(),
            [0, 1, 2, 0, 1, 2]
        );
    }
}
