//! A consensus and descriptors of any text yield only gateways of the consensus, each with a policy
//! line.
#![no_main]

use std::net::Ipv4Addr;

use libfuzzer_sys::fuzz_target;
use tandem::fuzzing::{gateways, is_gateway};

const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);

fuzz_target!(|text: &str| {
    let (consensus, descriptors) = text.split_once('\0').unwrap_or((text, text));
    for exit in gateways(consensus, descriptors, ADDRESS, 9980) {
        assert!(
            exit.fingerprint.len() == 40
                && exit
                    .fingerprint
                    .bytes()
                    .all(|byte| byte.is_ascii_hexdigit())
        );
        assert!(descriptors.contains("accept 192.0.2.80:9980"));
    }
    // No line announces two ports.
    if is_gateway(descriptors, ADDRESS, 9980) {
        assert!(!is_gateway(
            &descriptors.replace("192.0.2.80:9980", "192.0.2.80:9981"),
            ADDRESS,
            9980
        ));
    }
});
