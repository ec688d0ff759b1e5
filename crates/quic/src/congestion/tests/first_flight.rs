//! The first flight of a connection, on links of different round trips.

use super::*;

#[test]
fn first_flight_of_a_long_path_has_32_packets() {
    for algorithm in [Algorithm::Cubic, Algorithm::Bbr] {
        let mut download = Download::over(algorithm, &link(20 * MEGA, ROUND), None);
        // Two packets carry no data of the stream.
        let time = download.time_for(30 * 1150);
        assert!(time < ROUND, "{algorithm:?}: {time:?}");
    }
}

#[test]
fn first_flight_of_a_short_path_has_ten_packets() {
    let round_trip = 40 * MS;
    for algorithm in [Algorithm::Cubic, Algorithm::Bbr] {
        let mut download = Download::over(algorithm, &link(20 * MEGA, round_trip), None);
        let time = download.time_for(12 * 1200);
        assert!(time > round_trip, "{algorithm:?}: {time:?}");
    }
}
