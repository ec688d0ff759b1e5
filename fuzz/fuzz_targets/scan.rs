//! The URLs found in a document, style sheet or script do not depend on how its bytes are cut, and
//! can be fetched.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_preload::{MAX_URL, Need, Scanner, resolve, split};

const URL: &str = "https://h.example/a/b.html?c";
const MOST: usize = 64;

fuzz_target!(|data: &[u8]| {
    let Some((&first, data)) = data.split_first() else {
        return;
    };
    let whole = needs(first, data, data.len().max(1));
    assert_eq!(whole, needs(first, data, usize::from(first >> 3) + 1));
    assert!(whole.len() <= MOST);
    for need in &whole {
        assert!(need.urgency <= 7 && need.url.len() <= MAX_URL && need.url != URL);
        assert!(split(&need.url).is_some() && need.url.is_ascii());
        assert_eq!(resolve(URL, &need.url).as_ref(), Some(&need.url));
    }
});

/// Scans `data`; the lowest bits of `first` choose the language and the mode.
fn needs(first: u8, data: &[u8], step: usize) -> Vec<Need> {
    let scanner = match first & 5 {
        0 => Scanner::html(URL),
        1 => Scanner::css(URL),
        _ => Scanner::script(URL),
    };
    let mut scanner = scanner.expect("an https URL").max_needs(MOST);
    if first & 2 != 0 {
        scanner = scanner
            .viewport(u32::from(first) * 16, 2.0)
            .accept("image/webp,*/*");
    }
    let mut found = Vec::new();
    for piece in data.chunks(step) {
        scanner.feed(piece, &mut found);
    }
    scanner.finish(&mut found);
    found
}
