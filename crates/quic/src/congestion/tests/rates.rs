//! The rates of CUBIC and BBR on links that lose and reorder packets.

use tandem_link::delay::{Jitter, Shape};
use tandem_link::loss::Loss;

use super::*;

const RTT: Duration = Duration::from_millis(100);

/// A link with this share of lost packets.
fn lossy(rate: u64, loss: f64) -> LinkConfig {
    LinkConfig {
        loss: Loss::Independent(loss),
        ..link(rate, RTT)
    }
}

/// A link that delays each packet by 5 ms more on average, whatever its order.
fn reordering(rate: u64) -> LinkConfig {
    let (shape, scale, reorder) = (Shape::Exponential, 5 * MS, true);
    LinkConfig {
        jitter: Some(Jitter {
            shape,
            scale,
            reorder,
        }),
        ..link(rate, RTT)
    }
}

/// Returns the goodput of a download in Mbit/s, after its first 4 s.
fn goodput(algorithm: Algorithm, link: &LinkConfig) -> f64 {
    let mut download = Download::over(algorithm, link, None);
    download.run(40 * RTT);
    let time = 80 * RTT;
    download.run(time) as f64 * 8e-6 / time.as_secs_f64()
}

#[test]
fn bbr_keeps_its_rate_under_random_loss() {
    for (mbit, loss, least) in [(100, 0.01, 85.0), (100, 0.0, 90.0), (8, 0.02, 7.0)] {
        let rate = goodput(Algorithm::Bbr, &lossy(mbit * MEGA, loss));
        assert!(rate >= least, "{rate:.1} of {mbit} Mbit/s");
    }
}

#[test]
fn cubic_fills_a_link_without_loss() {
    for mbit in [8, 100] {
        let rate = goodput(Algorithm::Cubic, &lossy(mbit * MEGA, 0.0));
        assert!(rate >= 0.9 * mbit as f64, "{rate:.1} of {mbit} Mbit/s");
    }
}

/// A slow start without a limit loses every second packet of two windows, and quinn ends a
/// connection that misses 1,024 parts of a stream.
#[test]
fn slow_start_loses_little() {
    for algorithm in [Algorithm::Cubic, Algorithm::Bbr] {
        for queue in [833, 83] {
            let mut link = lossy(100 * MEGA, 0.0);
            link.queue.packets = Some(queue);
            let mut download = Download::over(algorithm, &link, None);
            let rate = download.run(60 * RTT) as f64 * 8e-6 / (60 * RTT).as_secs_f64();
            let lost = download.lost();
            let most = if queue > 800 { 300 } else { 5000 };
            let case = format!("{algorithm:?}, queue {queue}: {lost} lost, {rate:.1} Mbit/s");
            assert!(lost <= most && rate >= 60.0, "{case}");
        }
    }
}

#[test]
fn reordering_is_not_taken_for_loss() {
    for algorithm in [Algorithm::Cubic, Algorithm::Bbr] {
        let rate = goodput(algorithm, &reordering(8 * MEGA));
        assert!(rate >= 7.2, "{algorithm:?}: {rate:.1} of 8 Mbit/s");
    }
}

/// The tolerance of reordering grows to the delays of the path, and packets that are 129 late or
/// more are no duplicates.
#[test]
fn connections_adapt_to_reordering() {
    let cases = [
        (Algorithm::Cubic, 100, 100, 90.0),
        (Algorithm::Bbr, 100, 100, 90.0),
        (Algorithm::Cubic, 50, 40, 40.0),
        (Algorithm::Bbr, 50, 40, 40.0),
        (Algorithm::Bbr, 100, 20, 60.0),
    ];
    for (algorithm, mbit, rtt, least) in cases {
        let jitter = reordering(mbit * MEGA).jitter;
        let link = LinkConfig {
            jitter,
            ..link(mbit * MEGA, rtt * MS)
        };
        let rate = goodput(algorithm, &link);
        let case = format!("{algorithm:?}, {rtt} ms");
        assert!(rate >= least, "{case}: {rate:.1} of {mbit} Mbit/s");
    }
}

/// The repair of a loss leaves once a later packet has arrived, and not half a round trip later.
#[test]
fn lost_packet_is_repaired_within_a_round_trip() {
    let rtt = 400 * MS;
    let mut download = Download::over(Algorithm::Bbr, &link(20 * MEGA, rtt), None);
    download.run(20 * rtt);
    download.is_cut = true;
    download.run(MS);
    download.is_cut = false;
    let (begun, received) = (download.at, download.received);
    while download.received == received {
        download.run(MS);
    }
    let missing = download.at - begun;
    assert!(missing >= rtt && missing <= rtt * 5 / 4, "{missing:?}");
}

/// BBR behind a bulk download leaves the queue nearly empty.
#[test]
fn bbr_keeps_the_queue_short() {
    let mut download = Download::over(Algorithm::Bbr, &lossy(20 * MEGA, 0.0), None);
    download.run(40 * RTT);
    let round_trip = download.server.connection().rtt();
    assert!(round_trip <= RTT * 13 / 10, "{round_trip:?}");
}

/// Marks of routers (ECN) limit the data in flight to the product of rate and round trip.
#[test]
fn marks_lower_the_window() {
    for algorithm in [Algorithm::Cubic, Algorithm::Bbr] {
        let mut download = Download::over(algorithm, &lossy(20 * MEGA, 0.0), None);
        download.run(40 * RTT);
        let mut most = |marks| {
            download.marks = marks;
            download.run(2 * RTT);
            let windows = (0..10).map(|_| {
                download.run(RTT);
                download.controller().window()
            });
            windows.max().expect("a window")
        };
        let (without, with) = (most(false), most(true));
        assert!(
            with * 5 <= without * 4,
            "{algorithm:?}: {with} and {without}"
        );
    }
}

#[test]
fn bbr_finds_a_rate_that_changes() {
    let mut download = Download::over(Algorithm::Bbr, &lossy(20 * MEGA, 0.0), None);
    download.run(40 * RTT);
    for (mbit, least) in [(5, 4.2), (50, 42.0)] {
        for end in [&mut download.server, &mut download.client] {
            end.out = Link::new(lossy(mbit * MEGA, 0.0), 1).expect("a valid link");
        }
        download.run(40 * RTT);
        let rate = download.run(20 * RTT) as f64 * 8e-6 / (20 * RTT).as_secs_f64();
        assert!(rate >= least, "{rate:.1} of {mbit} Mbit/s");
    }
}

#[test]
fn resume_fills_a_long_path_over_bbr() {
    let link = link(20 * MEGA, ROUND);
    let saved = learned(&link);
    let cold = Download::over(Algorithm::Bbr, &link, None).rounds_to_fill(20 * MEGA);
    let mut resumed = Download::over(Algorithm::Bbr, &link, Some(saved));
    let warm = resumed.rounds_to_fill(20 * MEGA);
    assert!(warm <= 1 && cold >= 4, "{warm} and {cold}");
}
