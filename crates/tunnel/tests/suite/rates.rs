//! Rates and delays on emulated links, in virtual time: exact figures, whatever the machine does.

use std::time::Duration;

use bytes::Bytes;
use tandem_link::LinkConfig;
use tandem_link::delay::{Jitter, Shape};
use tandem_link::loss::Loss;
use tandem_link::queue::QueueLimits;
use tandem_link::rate::{Rate, Trace};
use tandem_tunnel::{Algorithm, Config, Coupling, StreamId};

use crate::path::{MS, Path};

/// A link of 100 ms round trip with a queue of one bandwidth-delay product.
fn link(mbit: u32, loss: f64) -> LinkConfig {
    LinkConfig {
        delay: 50 * MS,
        rate: format!("{mbit}mbit").parse().expect("a rate"),
        loss: Loss::Independent(loss),
        queue: QueueLimits {
            packets: Some(mbit as usize * 100_000 / 8 / 1500),
            ..QueueLimits::default()
        },
        ..LinkConfig::default()
    }
}

fn config(coupling: Coupling, algorithm: Algorithm) -> Config {
    Config {
        coupling,
        algorithm,
        ..Config::default()
    }
}

/// Streams that always have something to send.
struct Bulk(Vec<StreamId>);

impl Bulk {
    fn new(path: &mut Path, count: usize) -> Self {
        path.server.counts_only = true;
        Self(
            (0..count)
                .map(|_| path.client.tunnel.open(path.now).expect("open"))
                .collect(),
        )
    }

    fn fill(&self, path: &mut Path) {
        for id in &self.0 {
            path.client
                .tunnel
                .write(*id, &mut Bytes::from_static(&[7; 1 << 20]))
                .expect("an open stream");
        }
    }

    fn received(&self, path: &Path) -> u64 {
        self.0
            .iter()
            .filter_map(|id| path.server.bytes_read.get(id))
            .sum()
    }

    /// Runs for `time`; returns the goodput in Mbit/s.
    fn run(&self, path: &mut Path, time: Duration) -> f64 {
        let (begun, before) = (path.now, self.received(path));
        while path.now < begun + time {
            self.fill(path);
            path.run_for(20 * MS);
        }
        let bytes = self.received(path) - before;
        bytes as f64 * 8e-6 / time.as_secs_f64()
    }
}

fn goodput(config: &Config, link: &LinkConfig, streams: usize, seed: u64) -> f64 {
    let mut path = Path::new(config, link, seed);
    let bulk = Bulk::new(&mut path, streams);
    bulk.run(&mut path, Duration::from_secs(4));
    bulk.run(&mut path, Duration::from_secs(12))
}

#[test]
fn one_stream_fills_a_link_without_loss() {
    for (coupling, algorithm) in [
        (Coupling::Coupled, Algorithm::Cubic),
        (Coupling::PerStream, Algorithm::Cubic),
        (Coupling::Coupled, Algorithm::Bbr),
    ] {
        let rate = goodput(&config(coupling, algorithm), &link(100, 0.0), 1, 1);
        assert!(rate >= 90.0, "{coupling:?} {algorithm:?}: {rate:.1} Mbit/s");
    }
}

#[test]
fn bbr_keeps_its_rate_under_one_percent_loss() {
    let rate = goodput(
        &config(Coupling::Coupled, Algorithm::Bbr),
        &link(100, 0.01),
        8,
        1,
    );
    assert!(rate >= 85.0, "{rate:.1} Mbit/s");
}

#[test]
fn bbr_does_not_overrun_a_queue_of_one_product() {
    for mbit in [20, 100] {
        let link = link(mbit, 0.0);
        let mut path = Path::new(&config(Coupling::Coupled, Algorithm::Bbr), &link, 1);
        let bulk = Bulk::new(&mut path, 20);
        bulk.run(&mut path, Duration::from_secs(2));
        let product = u64::from(mbit) * 100_000 / 8 / 1500;
        let lost = path.client.tunnel.stats().lost;
        assert!(lost < product, "{mbit} Mbit/s: {lost} of {product}");
        let rate = bulk.run(&mut path, Duration::from_secs(1));
        assert!(rate > 0.9 * f64::from(mbit), "{rate:.1} of {mbit} Mbit/s");
    }
}

/// A tunnel over BBR that has carried 100 Mbit/s, after this time without a datagram.
fn warm_tunnel(idle: Duration) -> Path {
    let mut path = Path::new(
        &config(Coupling::Coupled, Algorithm::Bbr),
        &link(100, 0.0),
        1,
    );
    let server = path.server.tunnel.open(path.now).expect("open");
    for _ in 0..100 {
        let mut data = Bytes::from_static(&[7; 1 << 20]);
        let taken = path.server.tunnel.write(server, &mut data);
        taken.expect("an open stream");
        path.run_for(20 * MS);
    }
    path.run_for(idle);
    path
}

/// Sends a request and waits until the server has it.
fn request(path: &mut Path) -> StreamId {
    let stream = path.client.tunnel.open(path.now).expect("open");
    let mut request = Bytes::from_static(b"GET");
    let tunnel = &mut path.client.tunnel;
    tunnel.write(stream, &mut request).expect("an open stream");
    path.run_for(51 * MS);
    stream
}

fn respond(path: &mut Path, stream: StreamId, size: usize) {
    let mut response = Bytes::from(vec![7; size]);
    let tunnel = &mut path.server.tunnel;
    tunnel.write(stream, &mut response).expect("an open stream");
}

#[test]
fn warm_tunnel_carries_a_response_in_one_round_trip() {
    let mut path = warm_tunnel(Duration::from_secs(3));
    let stream = request(&mut path);
    respond(&mut path, stream, 200_000);
    // Half a round trip, and 16 ms for the bytes.
    path.run_for(90 * MS);
    assert_eq!(path.client.bytes_read.get(&stream), Some(&200_000));
}

#[test]
fn warm_tunnel_keeps_its_window_after_an_idle_time() {
    const SIZE: usize = 200_000;
    let mut path = warm_tunnel(Duration::from_secs(20));
    let page = request(&mut path);
    let images = [(); 5].map(|()| request(&mut path));
    respond(&mut path, page, 20_000);
    // The first acknowledgements of the page have come.
    path.run_for(105 * MS);
    for image in images {
        respond(&mut path, image, SIZE);
    }
    // Half a round trip, and 80 ms for the bytes.
    path.run_for(155 * MS);
    let came = images.map(|image| path.client.bytes_read.get(&image).copied());
    assert_eq!(came, [Some(SIZE as u64); 5]);
}

#[test]
fn streams_of_their_own_flows_outrun_coupled_ones() {
    let link = link(100, 0.01);
    let coupled = goodput(&config(Coupling::Coupled, Algorithm::Cubic), &link, 8, 1);
    let apart = goodput(&config(Coupling::PerStream, Algorithm::Cubic), &link, 8, 1);
    assert!(apart > 5.0 * coupled, "{apart:.1} and {coupled:.1} Mbit/s");
}

#[test]
fn reordering_is_not_taken_for_loss() {
    let mut link = link(100, 0.0);
    link.jitter = Some(Jitter {
        shape: Shape::Exponential,
        scale: 5 * MS,
        reorder: true,
    });
    let rate = goodput(&config(Coupling::Coupled, Algorithm::Cubic), &link, 8, 1);
    assert!(rate >= 90.0, "{rate:.1} Mbit/s");
}

/// The median round trip of a request of 64 bytes with an answer of 512, sent each 50 ms.
fn quiet_delay(path: &mut Path, bulk: Option<&Bulk>, count: usize) -> Duration {
    let mut delays = Vec::new();
    for _ in 0..count {
        if let Some(bulk) = bulk {
            bulk.fill(path);
        }
        let id = path.client.tunnel.open(path.now).expect("open");
        path.client.tunnel.prioritise(id, 1).expect("open");
        path.client
            .tunnel
            .write(id, &mut Bytes::from_static(&[1; 64]))
            .expect("open");
        path.client.tunnel.finish(id).expect("open");
        let begun = path.now;
        path.run_while(Duration::from_secs(20), |path| {
            path.server
                .bytes_read
                .get(&id)
                .is_none_or(|bytes| *bytes < 64)
        });
        path.server
            .tunnel
            .write(id, &mut Bytes::from_static(&[2; 512]))
            .expect("open");
        path.server.tunnel.finish(id).expect("open");
        path.run_while(Duration::from_secs(20), |path| {
            path.client
                .received
                .get(&id)
                .is_none_or(|(_, ended)| !ended)
        });
        delays.push(path.now - begun);
        path.run_for(50 * MS);
    }
    delays.sort();
    delays[count / 2]
}

/// The delay of a quiet stream beside eight bulk streams, over its delay alone.
fn quiet_ratio(coupling: Coupling, algorithm: Algorithm, loss: f64) -> f64 {
    let config = config(coupling, algorithm);
    let link = link(100, loss);
    let alone = quiet_delay(&mut Path::new(&config, &link, 3), None, 40);
    let mut path = Path::new(&config, &link, 3);
    let bulk = Bulk::new(&mut path, 8);
    bulk.run(&mut path, Duration::from_secs(6));
    let beside = quiet_delay(&mut path, Some(&bulk), 60);
    beside.as_secs_f64() / alone.as_secs_f64()
}

#[test]
fn quiet_stream_waits_for_the_shared_queue_only() {
    let ratio = quiet_ratio(Coupling::Coupled, Algorithm::Bbr, 0.0);
    assert!(ratio <= 1.3, "{ratio:.3}");
}

#[test]
fn quiet_stream_does_not_wait_for_others_losses() {
    let ratio = quiet_ratio(Coupling::PerStream, Algorithm::Cubic, 0.001);
    assert!(ratio <= 1.02, "{ratio:.3}");
    let ratio = quiet_ratio(Coupling::Coupled, Algorithm::Cubic, 0.001);
    assert!(ratio <= 1.25, "{ratio:.3}");
}

/// A user of a mobile link moves, and its rate grows fourfold.
#[test]
fn bbr_follows_a_rate_that_grows() {
    let trace = Trace::parse("3s 4mbit\n60s 16mbit").expect("a trace");
    let link = LinkConfig {
        delay: 30 * MS,
        rate: Rate::Trace(trace.into()),
        ..link(16, 0.0)
    };
    let mut path = Path::new(&config(Coupling::Coupled, Algorithm::Bbr), &link, 1);
    let bulk = Bulk::new(&mut path, 1);
    let before = bulk.run(&mut path, 3000 * MS);
    let goodput = bulk.run(&mut path, 2000 * MS);
    assert!(goodput > 9.5, "{before} Mbit/s, and {goodput} afterwards");
}

/// The rate of a mobile link falls and grows, and its queue is deep.
#[test]
fn bbr_keeps_the_queue_of_a_mobile_link_short() {
    const LTE: &str = include_str!("../../../../experiments/traces/lte-down.steps");
    let link = LinkConfig {
        delay: 30 * MS,
        rate: Rate::Trace(Trace::parse(LTE).expect("a trace").into()),
        ..link(60, 0.0)
    };
    let mut path = Path::new(&config(Coupling::Coupled, Algorithm::Bbr), &link, 1);
    let bulk = Bulk::new(&mut path, 1);
    bulk.run(&mut path, 4000 * MS);
    let (mut sum, mut carried) = (Duration::ZERO, 0.0);
    for _ in 0..400 {
        carried += bulk.run(&mut path, 100 * MS);
        sum += path.client.tunnel.rtt().expect("a round trip");
    }
    let (goodput, round_trip) = (carried / 400.0, sum / 400);
    assert!(goodput > 6.9, "{goodput} Mbit/s");
    assert!(round_trip < 300 * MS, "{round_trip:?}");
}

/// A lost segment keeps the bytes after it in the send buffer for at least another round trip.
#[test]
fn one_stream_fills_a_fast_satellite_with_losses() {
    let link = LinkConfig {
        delay: 200 * MS,
        ..link(100, 0.01)
    };
    let mut path = Path::new(&config(Coupling::Coupled, Algorithm::Bbr), &link, 1);
    let bulk = Bulk::new(&mut path, 1);
    bulk.run(&mut path, 6000 * MS);
    let goodput = bulk.run(&mut path, 8000 * MS);
    assert!(goodput > 60.0, "{goodput} Mbit/s");
}
