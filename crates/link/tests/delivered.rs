//! Packets delivered by a link, compared with its configuration: distributions by chi-square and
//! Kolmogorov-Smirnov tests at the 0.1 % level (with fixed seeds, so that no run fails by chance),
//! rates exactly.

use std::time::Duration;

use tandem_link::damage::Reset;
use tandem_link::delay::{Jitter, Shape};
use tandem_link::gaps::Gaps;
use tandem_link::loss::Loss;
use tandem_link::queue::QueueLimits;
use tandem_link::rate::{Rate, Trace};
use tandem_link::{Link, LinkConfig};

const MS: Duration = Duration::from_millis(1);

/// A packet that carries its number.
fn numbered(n: u64, len: usize) -> Vec<u8> {
    let mut packet = vec![0; len.max(8)];
    packet[..8].copy_from_slice(&n.to_be_bytes());
    packet
}

fn number(packet: &[u8]) -> u64 {
    u64::from_be_bytes(
        packet[..8]
            .try_into()
            .expect("packets of these tests carry eight bytes of number"),
    )
}

/// Sends `count` packets, one each `gap`; returns number and arrival time of all packets that come
/// out, in order of arrival.
fn run(
    config: LinkConfig,
    seed: u64,
    count: u64,
    gap: Duration,
    len: usize,
) -> Vec<(u64, Duration)> {
    let mut link = Link::new(config, seed).expect("valid configuration");
    let mut out = Vec::new();
    let drain = |link: &mut Link, until: Duration, out: &mut Vec<(u64, Duration)>| {
        while let Some(due) = link.next_due().filter(|due| *due <= until) {
            while let Some((at, packet)) = link.pop_due(due) {
                out.push((number(&packet), at));
            }
        }
    };
    for n in 0..count {
        let now = gap * n as u32;
        drain(&mut link, now, &mut out);
        link.ingress(now, numbered(n, len));
    }
    drain(&mut link, Duration::MAX, &mut out);
    assert_eq!(link.stats().delivered.packets, out.len() as u64);
    out
}

fn lost(delivered: &[(u64, Duration)], count: u64) -> Vec<bool> {
    let mut lost = vec![true; count as usize];
    delivered
        .iter()
        .for_each(|(n, _)| lost[*n as usize] = false);
    lost
}

/// Largest distance between an empirical distribution and `cdf`, scaled so that 1.95 is the 0.1 %
/// level.
fn kolmogorov_smirnov(mut sample: Vec<f64>, cdf: impl Fn(f64) -> f64) -> f64 {
    sample.sort_by(f64::total_cmp);
    let n = sample.len() as f64;
    let distance = |(i, x): (usize, &f64)| {
        (cdf(*x) - i as f64 / n)
            .abs()
            .max((cdf(*x) - (i + 1) as f64 / n).abs())
    };
    sample.iter().enumerate().map(distance).fold(0.0, f64::max) * n.sqrt()
}

fn chi_square(observed: &[u64], expected: &[f64]) -> f64 {
    observed
        .iter()
        .zip(expected)
        .map(|(o, e)| (*o as f64 - e).powi(2) / e)
        .sum()
}

/// The standard normal distribution by Simpson's rule: slow and plain.
fn normal_cdf(x: f64) -> f64 {
    let x = x.clamp(-8.0, 8.0);
    let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let h = x / 200.0;
    let inner: f64 = (1..200)
        .map(|i| density(h * f64::from(i)) * if i % 2 == 1 { 4.0 } else { 2.0 })
        .sum();
    0.5 + h / 3.0 * (density(0.0) + inner + density(x))
}

/// Gaps between losses, in packets.
fn gaps(lost: &[bool]) -> Vec<f64> {
    let at: Vec<usize> = lost
        .iter()
        .enumerate()
        .filter(|(_, l)| **l)
        .map(|(i, _)| i)
        .collect();
    at.windows(2).map(|w| (w[1] - w[0]) as f64).collect()
}

#[test]
fn independent_loss_is_binomial_in_every_block() {
    const BLOCK: usize = 100;
    let config = LinkConfig {
        loss: Loss::Independent(0.02),
        ..LinkConfig::default()
    };
    let lost = lost(&run(config, 11, 400_000, MS, 100), 400_000);
    // Losses per 100 packets against Binomial(100, 0.02): classes 0..=5 and 6 or more; 6 degrees of
    // freedom.
    let mut observed = [0; 7];
    lost.chunks(BLOCK)
        .for_each(|block| observed[block.iter().filter(|l| **l).count().min(6)] += 1);
    let binomial = |k: i32| {
        let choose = (0..k).fold(1.0, |c, i| c * f64::from(100 - i) / f64::from(i + 1));
        choose * 0.02f64.powi(k) * 0.98f64.powi(100 - k)
    };
    let mut expected: Vec<f64> = (0..6).map(|k| binomial(k) * 4000.0).collect();
    expected.push(4000.0 - expected.iter().sum::<f64>());
    let x = chi_square(&observed, &expected);
    assert!(
        x < 22.46,
        "chi-square {x}: {observed:?} against {expected:?}"
    );
}

#[test]
fn gilbert_elliott_bursts_have_share_and_length() {
    const N: u64 = 400_000;
    let loss = Loss::GilbertElliott {
        worsen: 0.01,
        recover: 0.25,
        good: 0.0,
        bad: 1.0,
    };
    let lost = lost(
        &run(
            LinkConfig {
                loss,
                ..LinkConfig::default()
            },
            12,
            N,
            MS,
            100,
        ),
        N,
    );
    let share = lost.iter().filter(|l| **l).count() as f64 / N as f64;
    assert!((share / loss.expected() - 1.0).abs() < 0.05, "{share}");
    // Runs of losses are geometric with mean 4: classes 1..=11, 12 or more; 11 degrees of freedom.
    let mut observed = [0u64; 12];
    lost.chunk_by(|a, b| a == b)
        .filter(|run| run[0])
        .for_each(|run| observed[run.len().min(12) - 1] += 1);
    let runs = observed.iter().sum::<u64>() as f64;
    let mut expected: Vec<f64> = (0..11).map(|k| runs * 0.25 * 0.75f64.powi(k)).collect();
    expected.push(runs * 0.75f64.powi(11));
    let x = chi_square(&observed, &expected);
    assert!(
        x < 31.26,
        "chi-square {x}: {observed:?} against {expected:?}"
    );
}

#[test]
fn exponential_gaps_keep_share_and_distribution() {
    const N: u64 = 2_000_000;
    let config = LinkConfig {
        loss: Loss::ExponentialGaps(0.001),
        ..LinkConfig::default()
    };
    let lost = lost(&run(config, 13, N, MS, 40), N);
    let gaps = gaps(&lost);
    let share = gaps.len() as f64 / N as f64;
    assert!((share / 0.001 - 1.0).abs() < 0.07, "{share}");
    let d = kolmogorov_smirnov(gaps, |g| 1.0 - (-g * 0.001).exp());
    assert!(d < 1.95, "{d}");
}

#[test]
fn jitter_has_its_distribution_and_reordering_shows() {
    const N: u64 = 50_000;
    for (shape, cdf) in distributions() {
        let jitter = Jitter {
            shape,
            scale: 5 * MS,
            reorder: true,
        };
        let config = LinkConfig {
            delay: 50 * MS,
            jitter: Some(jitter),
            ..LinkConfig::default()
        };
        let out = run(config, 14, N, MS / 2, 100);
        let inversions = out.windows(2).filter(|w| w[1].0 < w[0].0).count();
        assert!(inversions > N as usize / 5, "{shape:?}: {inversions}");
        let d = kolmogorov_smirnov(standardised(&out, MS / 2), cdf);
        assert!(d < 1.95, "{shape:?}: {d}");
    }
}

#[test]
fn jitter_in_order_has_its_distribution_too() {
    // One packet per second: far apart compared with the process's memory, so the samples are
    // independent.
    const N: u64 = 50_000;
    for (shape, cdf) in distributions() {
        let jitter = Jitter {
            shape,
            scale: 5 * MS,
            reorder: false,
        };
        let config = LinkConfig {
            delay: 50 * MS,
            jitter: Some(jitter),
            ..LinkConfig::default()
        };
        let out = run(config.clone(), 15, N, Duration::from_millis(997), 100);
        let d = kolmogorov_smirnov(standardised(&out, Duration::from_millis(997)), cdf);
        assert!(d < 1.95, "{shape:?}: {d}");
        // At 10,000 packets a second the mean must not creep up, and nothing overtakes.
        let dense = run(config, 15, 600_000, MS / 10, 100);
        assert!(dense.windows(2).all(|w| w[0].0 < w[1].0));
        let sample = standardised(&dense, MS / 10);
        let mean = sample.iter().sum::<f64>() / sample.len() as f64;
        let wanted = if shape == Shape::Normal { 0.0 } else { 1.0 };
        assert!((mean - wanted).abs() < 0.1, "{shape:?}: {mean}");
    }
}

/// A cumulative distribution.
type Cdf = fn(f64) -> f64;

fn distributions() -> [(Shape, Cdf); 2] {
    [
        (Shape::Normal, normal_cdf),
        (Shape::Exponential, |x| 1.0 - (-x).exp()),
    ]
}

/// Delays in units of 5 ms of jitter around 50 ms.
fn standardised(out: &[(u64, Duration)], gap: Duration) -> Vec<f64> {
    out.iter()
        .map(|(n, at)| ((*at - gap * *n as u32).as_secs_f64() - 0.050) / 0.005)
        .collect()
}

#[test]
fn a_constant_rate_is_exact_to_the_nanosecond() {
    let rate = 7_777_777;
    let queue = QueueLimits {
        packets: None,
        bytes: None,
        codel: None,
    };
    let config = LinkConfig {
        rate: Rate::Constant(rate),
        delay: 20 * MS,
        queue,
        ..LinkConfig::default()
    };
    let out = run(config, 1, 10_000, MS / 2, 1500);
    for (n, at) in out {
        // Offered at 24 Mbit/s: the server never idles, so packet n leaves after n + 1 packets'
        // worth of bits.
        let ns = u128::from(n + 1) * 12_000 * 1_000_000_000 / u128::from(rate);
        assert_eq!(at.as_nanos(), ns + 20_000_000, "packet {n}");
    }
}

#[test]
fn a_trace_is_followed_step_by_step() {
    // 12 Mbit/s for half a second, then silence for half a second.
    let text: String = (1..=500)
        .map(|ms| format!("{ms}\n"))
        .chain(["1000\n".into()])
        .collect();
    let rate = Rate::Trace(Trace::parse(&text).expect("valid").into());
    let queue = QueueLimits {
        packets: None,
        bytes: None,
        codel: None,
    };
    let out = run(
        LinkConfig {
            rate,
            queue,
            ..LinkConfig::default()
        },
        1,
        1002,
        MS / 10,
        1500,
    );
    let times: Vec<u128> = out.iter().map(|(_, at)| at.as_millis()).collect();
    let expected: Vec<u128> = [0, 1000]
        .iter()
        .flat_map(|base| (1..=500).chain([1000]).map(move |ms| base + ms))
        .collect();
    assert_eq!(times, expected);
}

#[test]
fn the_queue_counts_only_what_waits() {
    // 1 Mbit/s: 12 ms a packet; 100 ms of line hold eight more, which must not count.
    let queue = QueueLimits {
        packets: Some(10),
        bytes: None,
        codel: None,
    };
    let config = LinkConfig {
        rate: Rate::Constant(1_000_000),
        delay: 100 * MS,
        queue,
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 1).expect("valid");
    (0..100).for_each(|n| link.ingress(Duration::ZERO, numbered(n, 1500)));
    assert_eq!(link.queued(), (10, 15_000));
    assert_eq!(
        link.stats().overflowed.packets,
        89,
        "one being sent, ten waiting"
    );
    assert_eq!(link.stats().effective_loss(), 0.89);
    assert!(link.pop_due(12 * MS).is_none());
    link.ingress(12 * MS, numbered(100, 1500));
    assert_eq!(
        link.queued(),
        (10, 15_000),
        "the place that became free is taken"
    );
    assert_eq!(
        link.pop_due(112 * MS).map(|(at, p)| (at, number(&p))),
        Some((112 * MS, 0))
    );
}

#[test]
fn one_seed_one_fate_however_packets_are_timed() {
    let jitter = Jitter {
        shape: Shape::Exponential,
        scale: 5 * MS,
        reorder: true,
    };
    let loss = Loss::GilbertElliott {
        worsen: 0.02,
        recover: 0.2,
        good: 0.001,
        bad: 0.6,
    };
    let config = LinkConfig {
        loss,
        duplicate: 0.05,
        corrupt: 0.05,
        ..LinkConfig::default()
    };
    let fates = |config: &LinkConfig, seed, gap| {
        let mut fates: Vec<u64> = run(config.clone(), seed, 5000, gap, 100)
            .into_iter()
            .map(|(n, _)| n)
            .collect();
        fates.sort_unstable();
        fates
    };
    let reference = fates(&config, 1, MS);
    assert_eq!(fates(&config, 1, 3 * MS), reference);
    let jittered = LinkConfig {
        jitter: Some(jitter),
        delay: 10 * MS,
        ..config.clone()
    };
    assert_eq!(
        fates(&jittered, 1, MS),
        reference,
        "another impairment changes no fate"
    );
    assert_ne!(fates(&config, 2, MS), reference);
    assert_eq!(
        run(jittered.clone(), 1, 5000, MS, 100),
        run(jittered, 1, 5000, MS, 100)
    );
}

#[test]
fn duplicates_and_corruption_come_at_their_rates() {
    let config = LinkConfig {
        duplicate: 0.1,
        corrupt: 0.2,
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 21).expect("valid");
    let mut damaged = 0;
    for n in 0..20_000 {
        link.ingress(Duration::ZERO, vec![0x45; 100]);
        let copies: Vec<_> = std::iter::from_fn(|| link.pop_due(Duration::ZERO)).collect();
        assert!((1..=2).contains(&copies.len()), "packet {n}");
        damaged += copies
            .iter()
            .filter(|(_, packet)| *packet != vec![0x45; 100])
            .count();
    }
    let stats = link.stats();
    assert_eq!(stats.corrupted.packets, damaged as u64);
    assert!(
        (1850..2150).contains(&stats.duplicated.packets),
        "{}",
        stats.duplicated.packets
    );
    assert!(
        (3800..4200).contains(&stats.corrupted.packets),
        "{}",
        stats.corrupted.packets
    );
}

#[test]
fn reset_attack_begins_after_its_segment_count() {
    let segment = |port: u8| {
        let mut packet = vec![0u8; 40];
        packet[0] = 0x45;
        packet[9] = 6;
        packet[23] = port;
        packet[33] = 0x10;
        packet
    };
    let reset = Some(Reset {
        port: 80,
        after: 3,
        probability: 1.0,
    });
    let mut link = Link::new(
        LinkConfig {
            reset,
            ..LinkConfig::default()
        },
        1,
    )
    .expect("valid");
    let mut flags = |port| {
        link.ingress(Duration::ZERO, segment(port));
        link.pop_due(Duration::ZERO).expect("passed on").1[33]
    };
    let seen: Vec<u8> = [80, 81, 80, 80, 81, 80, 80, 81]
        .into_iter()
        .map(&mut flags)
        .collect();
    assert_eq!(seen, [0x10, 0x10, 0x10, 0x10, 0x10, 0x14, 0x14, 0x10]);
}

/// A packet each millisecond, while nothing leaves for 300 ms of each second.
#[test]
fn gaps_hold_packets_back_and_lose_none() {
    let length = 300 * MS;
    let gaps = Gaps {
        every: 1000 * MS,
        shortest: length,
        longest: length,
        first: 500 * MS,
    };
    let is_open = |at: Duration| !(500..800).contains(&(at.as_millis() % 1000));
    // Without a rate, packets of a gap arrive together at its end.
    let unlimited = LinkConfig {
        gaps: Some(gaps),
        ..LinkConfig::default()
    };
    let out = run(unlimited.clone(), 1, 3000, MS, 1500);
    assert_eq!(out.len(), 3000);
    for (n, at) in &out {
        let sent = MS * *n as u32;
        let left = if is_open(sent) {
            sent
        } else {
            MS * (*n as u32 / 1000 * 1000 + 800)
        };
        assert_eq!(*at, left, "packet {n}");
    }
    // With the rate of the packets, they arrive later by the gaps. A full packet takes 1 ms.
    let limited = LinkConfig {
        rate: Rate::Constant(12_000_000),
        ..unlimited.clone()
    };
    let out = run(limited, 1, 3000, MS, 1500);
    assert_eq!(out.len(), 3000);
    for (n, at) in &out {
        // The work of n packets and this one, and the gaps before its end: 700 ms of a second work.
        let gaps = (*n as u32 + 1 + 200 - 1) / 700;
        assert_eq!(*at, MS * (*n as u32 + 1 + gaps * 300), "packet {n}");
        assert!(is_open(*at - MS), "packet {n}");
    }
    // A short queue overflows in a gap.
    let short = LinkConfig {
        rate: Rate::Constant(24_000_000),
        queue: QueueLimits {
            packets: Some(100),
            ..QueueLimits::default()
        },
        ..unlimited
    };
    let lost = 3000 - run(short, 1, 3000, MS, 1500).len();
    assert!((3 * 190..3 * 210).contains(&lost), "{lost}");
}

#[test]
fn bad_configurations_are_refused() {
    let refused = |config: LinkConfig| {
        Link::new(config, 1)
            .expect_err("must be refused")
            .to_string()
    };
    refused(LinkConfig {
        duplicate: 1.5,
        ..LinkConfig::default()
    });
    refused(LinkConfig {
        corrupt: f64::NAN,
        ..LinkConfig::default()
    });
    refused(LinkConfig {
        loss: Loss::Independent(-0.1),
        ..LinkConfig::default()
    });
    refused(LinkConfig {
        rate: Rate::Constant(0),
        ..LinkConfig::default()
    });
    assert!(
        refused(LinkConfig {
            delay: Duration::MAX,
            ..LinkConfig::default()
        })
        .contains("hour")
    );
}
