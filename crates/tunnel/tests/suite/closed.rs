//! The data of a tunnel that was closed before the application has read everything.

use tandem_link::LinkConfig;
use tandem_tunnel::{Closed, Config, Read, StreamError, StreamId};

use crate::path::{MS, Path, pattern};

const CLOSED: Closed = Closed::Peer(0);

/// Uploads `data`, which the server does not read before the client closes the tunnel. The stream
/// is finished if all of it fits the windows.
fn unread(data: &[u8]) -> (Path, StreamId) {
    let link = LinkConfig {
        delay: MS * 10,
        ..LinkConfig::default()
    };
    let mut path = Path::new(&Config::default(), &link, 1);
    path.server.is_paused = true;
    let id = path.upload(data);
    path.run_for(MS * 500);
    path.client.tunnel.close(0);
    path.run_for(MS * 50);
    assert_eq!(path.server.tunnel.closed(), Some(CLOSED));
    (path, id)
}

/// Reads 1000 bytes at a time. Returns the data, and the result after it.
fn read_all(path: &mut Path, id: StreamId) -> (Vec<u8>, Result<Read, StreamError>) {
    let mut read = Vec::new();
    loop {
        match path.server.tunnel.read(path.now, id, 1000) {
            Ok(Read::Data(data)) => read.extend_from_slice(&data),
            end => return (read, end),
        }
    }
}

#[test]
fn stream_is_read_to_its_end_after_a_close() {
    let data = pattern(100_000, 1);
    let (mut path, id) = unread(&data);
    assert!(path.server.tunnel.memory() >= 100_000);
    let (read, end) = read_all(&mut path, id);
    assert_eq!((read == data, end), (true, Ok(Read::End)));
    assert_eq!(path.server.tunnel.memory(), 0);
    let after = path.server.tunnel.read(path.now, id, 1000);
    assert_eq!(after, Err(StreamError::Closed(CLOSED)));
}

#[test]
fn stream_that_is_cut_off_does_not_end_regularly() {
    // The window of the server is smaller.
    let data = pattern(2_000_000, 2);
    let (mut path, id) = unread(&data);
    let (read, end) = read_all(&mut path, id);
    assert!(!read.is_empty() && data.starts_with(&read) && read.len() < data.len());
    assert_eq!(end, Err(StreamError::Closed(CLOSED)));
    assert_eq!(path.server.tunnel.memory(), 0);
}

#[test]
fn end_that_closes_the_tunnel_keeps_no_data() {
    let (mut path, id) = unread(&pattern(1000, 3));
    path.client.tunnel.close(0);
    assert_eq!(path.client.tunnel.memory(), 0);
    let read = path.client.tunnel.read(path.now, id, 1000);
    assert_eq!(read, Err(StreamError::Closed(Closed::Local)));
}
