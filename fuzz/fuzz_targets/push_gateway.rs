//! The gateway's half of push survives events in any order: its bounds hold, each promise ends, and
//! a session that has ended leaves no records.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/push/tests/gateway/events.rs"]
mod events;

fuzz_target!(|data: &[u8]| events::run(data));
