//! Any bytes from Tor's control port: an answer or an error, and an end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem::fuzzing::control_reply;

fuzz_target!(|data: &[u8]| {
    // The connection borrows its input for as long as it lives, so the buffer is freed below.
    let bytes = Box::leak(data.to_vec().into_boxed_slice());
    let pointer: *mut [u8] = bytes;
    if let Ok(Some(value)) = control_reply(bytes, "ns/all") {
        assert!(
            value.len() <= data.len() * 3,
            "what is no UTF-8 becomes three bytes"
        );
        assert!(data.windows(7).any(|window| window == b"ns/all="));
    }
    // SAFETY: it comes from a box, and the connection that read it has ended.
    drop(unsafe { Box::from_raw(pointer) });
});
