//! An origin's `Link` and `X-Associated-Content` fields of any bytes name URLs that can be fetched,
//! in eight urgencies.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_http::ResponseHead;
use tandem_preload::{resolve, split};

const PAGE: &str = "https://h.example/a/b.html?c";

fuzz_target!(|data: &[u8]| {
    let mut head = ResponseHead::new(200);
    for (index, value) in data.split(|byte| *byte == b'\n').enumerate() {
        head.fields.push(
            if index % 2 == 0 {
                "link"
            } else {
                "x-associated-content"
            },
            value,
        );
    }
    for need in tandem_push::hints::named_resources(PAGE, &mut head, true) {
        assert!(need.urgency <= 7 && need.url.is_ascii() && split(&need.url).is_some());
        assert_eq!(resolve(PAGE, &need.url), Some(need.url));
    }
    assert!(!head.fields.contains("x-associated-content"));
});
