//! A token for the speed of a path: no text opens that the gateway did not write. The content of a
//! token is refused, or written again unchanged.
#![no_main]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tandem::fuzzing::token_content;
use tandem::resume::token::Keys;

static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys::new(&[7; 32]));

fuzz_target!(|input: &[u8]| {
    if let Some(again) = token_content(input) {
        assert!(again == input);
    }
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let home = IpAddr::V4(Ipv4Addr::LOCALHOST);
    assert_eq!(KEYS.open(Duration::from_secs(90_000), home, text), None);
});
