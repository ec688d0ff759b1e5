//! Downloads whose sender writes only while few bytes are unsent.

use tandem_link::loss::Loss;

use super::*;

/// The bytes that the session writes at once.
const WRITE: u64 = 16 << 10;

/// A download from a sender that writes late.
fn late(algorithm: Algorithm, link: &LinkConfig) -> Download {
    Download::from_sender(Some(0), algorithm, link, None)
}

/// The bytes that were taken and have not arrived exceed those on their way by little, over any
/// number of packets.
#[test]
fn connection_holds_few_unsent_bytes() {
    for (rate, round_trip) in [(20 * MEGA, ROUND), (100 * MEGA, 100 * MS)] {
        let mut link = link(rate, round_trip);
        // Bytes that arrive behind a lost packet would count as missing.
        link.queue.packets = None;
        let mut download = late(Algorithm::Bbr, &link);
        let mut windows = [0; 10];
        for round in 0..200 {
            download.run(round_trip / 2);
            let held = download.accepted.expect("a late sender") - download.received;
            let controller = download.controller();
            windows[round % windows.len()] = controller.window();
            let window = windows.into_iter().max().unwrap_or_default();
            let limit = controller.state().unsent_limit();
            let most = window + limit + WRITE + 32_000;
            assert!(held <= most, "{held} of {most} in half round {round}");
        }
    }
}

/// The sender has something to send whenever it may, also after losses.
#[test]
fn late_sender_keeps_its_rate() {
    for algorithm in [Algorithm::Bbr, Algorithm::Cubic] {
        for loss in [0.0, 0.01] {
            let link = LinkConfig {
                loss: Loss::Independent(loss),
                ..link(20 * MEGA, 100 * MS)
            };
            let mut early = Download::over(algorithm, &link, None);
            let mut late = late(algorithm, &link);
            let time = 200 * MS;
            let (early, late) = (early.run(60 * time), late.run(60 * time));
            let ratio = late as f64 / early as f64;
            assert!(ratio > 0.95, "{algorithm:?}, loss {loss}: {ratio:.3}");
        }
    }
}
