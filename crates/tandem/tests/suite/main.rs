//! Tests of the pair over real sockets, as its users meet it, in one test binary (a single link
//! step).

#![expect(
    clippy::unwrap_used,
    reason = "a scene that cannot be set up has failed"
)]

mod admission;
mod at_once;
mod browser;
mod cached_pushes;
mod caching;
mod carrying;
mod certificates;
mod client_cache;
mod compressing;
mod crowds;
mod discovery;
mod downloads;
mod early_ends;
mod edges;
mod faults;
mod file_origin;
mod fleet;
mod fleet_cache;
mod fleet_faults;
mod fleet_rights;
mod h3_carriers;
mod h3_order;
mod half_open;
mod harness;
mod isolation;
mod learning;
mod learning_without_pushes;
mod limits;
mod many_streams;
mod name_record;
mod named;
mod next_pages;
mod odd_responses;
mod one_listener;
mod opened;
mod origins;
mod outside_transport;
mod pairs;
mod parsers;
mod patience;
mod poisoning;
mod preconnect;
mod priorities;
mod probing;
mod push_matrix;
mod pushes;
mod redis_server;
mod relays;
mod reloads;
mod repeats;
mod roundtrips;
mod routes;
mod solo;
mod spdy;
#[cfg(target_os = "linux")]
mod stalled;
mod stopped_tunnels;
mod stream_messages;
mod submission_bounds;
mod submission_server;
mod submissions;
#[expect(dead_code, reason = "the tests of the store use the rest")]
#[path = "../../../store/src/test_database.rs"]
mod test_database;
mod tunnel_scenes;
mod tunnels;
mod udp;
mod unlinkable;
mod unread_streams;
mod upgrades;
