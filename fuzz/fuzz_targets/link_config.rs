//! Descriptions of links and networks in any text give an error or a usable value, in bounded time.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tandem_link::delay::Jitter;
use tandem_link::loss::Loss;
use tandem_link::queue::QueueLimits;
use tandem_link::rate::{Rate, Trace};
use tandem_link::{Link, LinkConfig, text};
use tandem_net::emulator::topology::Topology;

fuzz_target!(|input: &[u8]| {
    let Ok(input) = std::str::from_utf8(input) else {
        return;
    };
    quantities(input);
    if let Ok(trace) = Trace::parse(input) {
        assert!(trace.mean_rate() > 0.0);
        carry(LinkConfig {
            rate: Rate::Trace(trace.into()),
            ..LinkConfig::default()
        });
    }
    // The text after the separator serves as every trace file that the topology names.
    let (topology, trace) = input.split_once("\n\n---\n").unwrap_or((input, "1\n"));
    if let Ok(topology) = Topology::parse(topology, &|_| Ok(trace.to_owned())) {
        let (plan, hosts) = topology
            .plan()
            .expect("a topology that was parsed was checked");
        let mut router = plan.build();
        for (host, plan) in hosts.iter().zip(&topology.hosts).take(8) {
            let mut packet = vec![0x45; 40];
            if let Some(std::net::IpAddr::V4(address)) = plan.addresses.first() {
                packet[16..20].copy_from_slice(&address.octets());
            }
            router.ingress(Duration::ZERO, *host, packet.clone());
            router.ingress(Duration::ZERO, hosts[0], packet);
        }
        while router.pop_due(Duration::MAX).is_some() {}
        assert_eq!(router.next_due(), None);
    }
});

/// Parses each value alone, and combines those that can be part of one link.
fn quantities(input: &str) {
    let _ = (
        text::duration(input),
        text::bits_per_second(input),
        text::probability(input),
        text::bytes(input),
    );
    let mut config = LinkConfig::default();
    config.jitter = input.parse::<Jitter>().ok();
    config.loss = input.parse::<Loss>().unwrap_or_default();
    config.rate = input.parse::<Rate>().unwrap_or_default();
    config.queue = input.parse::<QueueLimits>().unwrap_or_default();
    config.reset = input.parse().ok();
    config.gaps = input.parse().ok();
    carry(config);
}

/// Checks that a parsed link is accepted, and that it delivers or counts every packet.
fn carry(config: LinkConfig) {
    let mut link = Link::new(config, 1).expect("what the parsers accept is valid");
    for n in 0..20 {
        link.ingress(Duration::from_millis(n), vec![0x45; 100]);
    }
    while link.pop_due(Duration::MAX).is_some() {}
    let stats = link.stats();
    let gone = stats.lost.packets + stats.overflowed.packets + stats.managed.packets;
    assert_eq!(
        stats.delivered.packets + gone,
        stats.received.packets + stats.duplicated.packets
    );
}
