//! A file of visited pages is refused, or written again as another one that reads the same. It is
//! bounded, and names plain HTTP only.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_push::gateway::{MAX_VISITS, Visits};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let Ok(visits) = Visits::read(&text) else {
        return;
    };
    // The visits of onion services are skipped.
    let has_skipped = text.to_ascii_lowercase().contains("onion");
    assert!(!visits.take_change() || has_skipped, "nothing is new");
    let written = visits.to_text();
    assert!(written.len() <= MAX_VISITS);
    for word in written.split_ascii_whitespace() {
        assert!(
            !word.contains("://") || word.starts_with("http://"),
            "{word}"
        );
    }
    let again = Visits::read(&written).expect("its own text");
    assert_eq!(again.to_text(), written);
    visits.retain(|url| url.len() % 2 == 0);
    visits.forget_old(1 << 31);
    let rest = visits.to_text();
    assert!(rest.len() <= written.len());
    assert!(Visits::read(&rest).is_ok());
});
