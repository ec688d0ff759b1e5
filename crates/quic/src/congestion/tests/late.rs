//! Downloads whose sender writes only while few bytes are unsent.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

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

/// The heads of packets are longer on a stream with a large number and a large offset. The error of
/// the estimate does not grow with the bytes.
#[test]
fn estimate_of_unsent_bytes_holds_over_a_download() {
    let mut link = link(100 * MEGA, 100 * MS);
    link.queue.packets = None;
    let mut download = late(Algorithm::Bbr, &link);
    download.run(100 * MS);
    // The number of the next stream takes two bytes.
    for _ in 0..20 {
        download.stream = download.server.connection().streams().open(Dir::Uni);
    }
    download.run(Duration::from_secs(6));
    assert!(download.received > 50 << 20, "{}", download.received);
    let limit = download.controller().state().unsent_limit();
    let sent = |download: &mut Download| download.server.connection().stats().udp_tx.bytes;
    let before = sent(&mut download);
    download.is_paused = true;
    download.run(Duration::from_secs(2));
    let unsent = sent(&mut download) - before;
    let most = limit + WRITE + 20_000;
    assert!(unsent <= most, "{unsent} of {most}");
}

/// The sender has something to send whenever it may, also after losses. The round trips shift the
/// losses, whose pattern decides about single downloads.
#[test]
fn late_sender_keeps_its_rate() {
    for algorithm in [Algorithm::Bbr, Algorithm::Cubic] {
        for loss in [0.0, 0.01] {
            let mut sums = [0, 0];
            for round_trip in [95, 100, 105] {
                let link = LinkConfig {
                    loss: Loss::Independent(loss),
                    ..link(20 * MEGA, round_trip * MS)
                };
                let mut early = Download::over(algorithm, &link, None);
                let mut late = late(algorithm, &link);
                let time = Duration::from_secs(8);
                sums[0] += early.run(time);
                sums[1] += late.run(time);
            }
            let ratio = sums[1] as f64 / sums[0] as f64;
            assert!(ratio > 0.9, "{algorithm:?}, loss {loss}: {ratio:.3}");
        }
    }
}

/// Counts its wakes.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A session that was refused room is woken once when packets have left, and not before.
#[test]
fn packets_that_leave_wake_a_session_without_room() {
    let mut download = late(Algorithm::Bbr, &link(20 * MEGA, ROUND));
    download.run(10 * MS);
    download.is_paused = true;
    let wakes = Arc::new(Wakes::default());
    let waker = Arc::clone(&wakes).into();
    let controller = download.controller();
    controller.accept(4 * WRITE as usize);
    let asked = controller.poll_room(&Context::from_waker(&waker));
    assert!(asked.is_pending());
    assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
    let stream = download.stream.expect("a stream");
    let connection = download.server.connection();
    let taken = connection
        .send_stream(stream)
        .write(&[7; 4 * WRITE as usize]);
    assert_eq!(taken, Ok(4 * WRITE as usize));
    download.run(10 * ROUND);
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    let asked = controller.poll_room(&Context::from_waker(&waker));
    assert!(asked.is_ready());
}
