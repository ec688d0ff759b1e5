//! Tests of the `tandem` program as its users run it: files, signals, output, and the pair.

#![expect(
    clippy::unwrap_used,
    reason = "a scene that cannot be set up has failed"
)]

mod bridges;
mod cached_files;
#[path = "../../../tandem/tests/suite/certificates.rs"]
mod certificates;
mod configuration;
mod counters;
mod dashboard;
mod doctor;
mod drains;
#[expect(dead_code, reason = "the tests of the library use the rest")]
#[path = "../../../tandem/tests/suite/harness.rs"]
mod harness;
mod hostile_parties;
mod init;
mod lost_logs;
mod messages;
#[path = "../../../tandem/tests/suite/one_listener.rs"]
mod one_listener;
mod output;
mod packaging;
mod probes;
mod process;
mod relays;
mod scarcity;
mod signals;
mod solo_state;
mod submission_client;
mod submission_instances;
#[expect(dead_code, reason = "the tests of the library use the rest")]
#[path = "../../../tandem/tests/suite/submission_server.rs"]
mod submission_server;
mod submission_store;
mod submissions;
#[expect(dead_code, reason = "the tests of the store use the rest")]
#[path = "../../../store/src/test_database.rs"]
mod test_database;
mod timing;
mod token_rates;
mod unlinkable;
