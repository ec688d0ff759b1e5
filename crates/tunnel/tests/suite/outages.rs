//! Paths that are gone for a while, and clients that probe them.

use std::time::Duration;

use bytes::Bytes;
use tandem_link::LinkConfig;
use tandem_tunnel::Config;

use crate::path::{MS, Path, pattern};

const SECOND: Duration = Duration::from_secs(1);
const OUTAGE: u32 = 33;

fn link() -> LinkConfig {
    LinkConfig {
        delay: 50 * MS,
        rate: "10mbit".parse().expect("a rate"),
        ..LinkConfig::default()
    }
}

/// Cuts the path for half a minute. The client probes it each second meanwhile, and once more when
/// it is back.
fn interrupt(path: &mut Path) {
    path.is_cut = true;
    for _ in 0..OUTAGE {
        path.run_for(SECOND);
        assert!(path.client.tunnel.unanswered_since().is_some());
        path.client.tunnel.probe();
    }
    path.run_for(SECOND);
    path.is_cut = false;
    path.client.tunnel.probe();
}

/// The timeouts double, so that the next one may be half a minute away.
#[test]
fn upload_goes_on_with_the_answer_to_a_probe() {
    let mut path = Path::new(&Config::default(), &link(), 1);
    let data = pattern(400_000, 1);
    let id = path.upload(&data);
    path.run_for(200 * MS);
    interrupt(&mut path);
    path.run_while(4 * SECOND, |path| {
        path.server
            .received
            .get(&id)
            .is_none_or(|(_, ended)| !ended)
    });
    assert_eq!(path.server.received[&id].0, data);
}

#[test]
fn download_goes_on_with_a_probe_of_the_client() {
    let mut path = Path::new(&Config::default(), &link(), 1);
    let id = path.upload(b"request");
    path.run_for(100 * MS);
    let data = pattern(400_000, 1);
    let mut rest = Bytes::copy_from_slice(&data);
    path.server.tunnel.write(id, &mut rest).expect("open");
    assert!(rest.is_empty());
    path.server.tunnel.finish(id).expect("open");
    path.run_for(200 * MS);
    // The client has something to say too, since it would not notice the outage otherwise.
    path.client.tunnel.probe();
    interrupt(&mut path);
    path.run_while(4 * SECOND, |path| {
        path.client
            .received
            .get(&id)
            .is_none_or(|(_, ended)| !ended)
    });
    assert_eq!(path.client.received[&id].0, data);
}

#[test]
fn end_owes_no_answer_once_it_was_heard() {
    let mut path = Path::new(&Config::default(), &link(), 1);
    let unanswered = |path: &Path| {
        let ends = [&path.client, &path.server];
        ends.map(|end| end.tunnel.unanswered_since())
    };
    path.upload(&pattern(100_000, 1));
    assert_eq!(unanswered(&path), [None, None], "nothing has left");
    path.flush();
    assert_eq!(unanswered(&path), [Some(Duration::ZERO), None]);
    path.run_for(3 * SECOND);
    // The last datagrams of both ends only acknowledge.
    assert_eq!(unanswered(&path), [None, None]);
}

/// The datagrams of one direction may vanish, as after a change of this end's route.
#[test]
fn data_of_the_peer_is_no_answer() {
    let mut path = Path::new(&Config::default(), &link(), 1);
    let id = path.client.tunnel.open(path.now).expect("open");
    let write = |path: &mut Path, is_client: bool| {
        let end = if is_client {
            &mut path.client
        } else {
            &mut path.server
        };
        let mut data = Bytes::from_static(b"some data");
        end.tunnel.write(id, &mut data).expect("open");
    };
    write(&mut path, true);
    path.run_for(SECOND);
    assert_eq!(path.client.tunnel.unanswered_since(), None);
    path.lose_after = Some(0);
    write(&mut path, true);
    write(&mut path, false);
    let asked = path.now;
    path.run_for(60 * MS);
    assert!(path.client.received[&id].0 == b"some data");
    assert_eq!(path.client.tunnel.unanswered_since(), Some(asked));
    path.run_for(SECOND);
    assert_eq!(path.client.tunnel.unanswered_since(), None);
}

/// The sender had nothing to send when the window was shut, so it did not probe the window then.
#[test]
fn write_at_a_shut_window_begins_probes() {
    let config = Config {
        first_window: 0,
        ..Config::default()
    };
    let link = LinkConfig {
        delay: 50 * MS,
        ..LinkConfig::default()
    };
    let mut path = Path::new(&config, &link, 1);
    path.server.is_paused = true;
    let stream = path.client.tunnel.open(path.now).expect("an open tunnel");
    let write = |path: &mut Path, bytes: usize| {
        let written = path.client.tunnel.write(stream, &mut vec![7; bytes].into());
        assert_eq!(written, Ok(bytes));
    };
    write(&mut path, 16 << 10);
    path.run_for(Duration::from_secs(2));
    assert_eq!(path.client.tunnel.unacknowledged(stream), 0);
    write(&mut path, 1);
    path.run_for(MS);
    path.server.is_paused = false;
    path.is_cut = true;
    path.run_for(MS);
    path.is_cut = false;
    path.run_for(Duration::from_secs(10));
    assert_eq!(path.server.bytes_read[&stream], (16 << 10) + 1);
}
