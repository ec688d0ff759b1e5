//! The memory that the data of an application use.

use std::time::Duration;

use bytes::Bytes;
use tandem_tunnel::{Config, Side, Tunnel};

/// Unread streams fill the pool, and then each of them takes a small part of the free memory.
#[test]
fn taken_part_keeps_no_memory_of_the_rest() {
    let config = Config {
        memory: 256 << 10,
        ..Config::default()
    };
    let mut tunnel = Tunnel::new(Side::Client, config, Duration::ZERO);
    let id = tunnel.open(Duration::ZERO).expect("an open tunnel");
    let mut parts = 0;
    loop {
        let mut data = Bytes::from(vec![7; 64 << 10]);
        let taken = tunnel.write(id, &mut data).expect("an open stream");
        if taken == 0 {
            break;
        }
        if !data.is_empty() {
            parts += 1;
            assert!(data.is_unique(), "the tunnel keeps all for {taken} bytes");
        }
    }
    assert!(parts > 0, "the pool is full");
}
