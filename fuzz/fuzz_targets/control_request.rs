//! Any line to the control socket: refused, or a verb and points that are asked for by their own
//! names just so.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem::admin::control::{ControlResponse, MAX_REQUEST, answer, parse};

fuzz_target!(|line: &[u8]| {
    match parse(line) {
        Ok((verb, points)) => {
            assert!(
                !points.is_empty()
                    && line.len() <= MAX_REQUEST
                    && line.starts_with(verb.as_str().as_bytes())
            );
            for point in points {
                let again = format!("{} {}\n", verb.as_str(), point.full_name());
                let (same, one) = parse(again.as_bytes()).expect("a point's own name");
                assert!(same == verb && one.len() == 1 && std::ptr::eq(one[0], point));
            }
        }
        Err(_) => assert!(matches!(answer(line), ControlResponse::Error(_))),
    }
});
