//! A probe of the path while everything in flight is lost.

use super::*;

const ROUND_TRIP: Duration = Duration::from_millis(100);

/// Returns the number of datagrams that a ping of the server causes before its next timer.
fn datagrams_of_ping(download: &mut Download) -> u64 {
    let before = download.server.connection().stats().udp_tx.datagrams;
    download.server.connection().ping();
    let now = download.start + download.at;
    download.server.drive(now, download.at);
    download.server.connection().stats().udp_tx.datagrams - before
}

/// quinn doubles the time between its own probes. Those of the guard must not wait for them.
#[test]
fn permitted_probe_leaves_although_the_window_is_full() {
    for algorithm in [Algorithm::Bbr, Algorithm::Cubic] {
        let mut download = Download::over(algorithm, &link(20 * MEGA, ROUND_TRIP), None);
        download.run(2 * ROUND);
        download.is_cut = true;
        download.run(Duration::from_secs(6));
        assert_eq!(datagrams_of_ping(&mut download), 0, "the window has room");
        download.controller().permit_probe();
        let sent = datagrams_of_ping(&mut download);
        assert!((1..=2).contains(&sent), "{algorithm:?}: {sent}");
        assert_eq!(datagrams_of_ping(&mut download), 0, "a second probe left");
        // The answer to a probe ends the pause.
        download.is_cut = false;
        download.controller().permit_probe();
        datagrams_of_ping(&mut download);
        assert!(download.run(5 * ROUND_TRIP) > 0, "{algorithm:?}");
    }
}

/// quinn reports losses after the bytes in flight, so that they would permit as many bytes more.
#[test]
fn permitted_probe_is_no_burst_after_losses() {
    for algorithm in [Algorithm::Bbr, Algorithm::Cubic] {
        let mut download = Download::over(algorithm, &link(20 * MEGA, ROUND_TRIP), None);
        download.server.max_datagrams = 10;
        download.run(2 * ROUND);
        for is_cut in [true, false, true] {
            download.is_cut = is_cut;
            download.run(10 * MS);
        }
        let before = download.lost();
        download.run(Duration::from_secs(6));
        assert!(download.lost() > before + 10, "{algorithm:?}: no losses");
        assert_eq!(datagrams_of_ping(&mut download), 0, "the window has room");
        download.controller().permit_probe();
        let sent = datagrams_of_ping(&mut download);
        assert!((1..=2).contains(&sent), "{algorithm:?}: {sent}");
    }
}
