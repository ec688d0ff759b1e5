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

/// An application that keeps its data gives a slice, and takes up no more of a full pool.
#[test]
fn copied_data_take_up_the_same_memory() {
    let fill = |copies: bool| {
        let config = Config {
            memory: 256 << 10,
            ..Config::default()
        };
        let mut tunnel = Tunnel::new(Side::Client, config, Duration::ZERO);
        let id = tunnel.open(Duration::ZERO).expect("an open tunnel");
        let mut taken = Vec::new();
        while taken.last() != Some(&0) {
            let mut data = Bytes::from(vec![7; 64 << 10]);
            let written = match copies {
                true => tunnel.write_copy(id, &data),
                false => tunnel.write(id, &mut data),
            };
            taken.push(written.expect("an open stream"));
        }
        (taken, tunnel.unacknowledged(id))
    };
    assert_eq!(fill(true), fill(false));
}
