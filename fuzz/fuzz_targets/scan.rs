//! The URLs found in a document, style sheet or script do not depend on how its bytes are cut, and
//! can be fetched. Neither do the strings of scripts, which are bounded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_preload::{MAX_URL, Need, Scanner, resolve, split};

const URL: &str = "https://h.example/a/b.html?c";
const MOST: usize = 64;
/// The bounds on the strings of a document's scripts, and on their bytes.
const MOST_LITERALS: usize = 1_024;
const LONGEST_LITERAL: usize = 1_024;

fuzz_target!(|data: &[u8]| {
    let Some((&first, data)) = data.split_first() else {
        return;
    };
    let (whole, literals) = scan(first, data, data.len().max(1));
    let in_pieces = scan(first, data, usize::from(first >> 3) + 1);
    assert_eq!((&whole, &literals), (&in_pieces.0, &in_pieces.1));
    assert!(whole.len() <= MOST && literals.len() <= MOST_LITERALS);
    assert!(literals.iter().all(|it| it.len() <= LONGEST_LITERAL));
    for need in &whole {
        assert!(need.urgency <= 7 && need.url.len() <= MAX_URL && need.url != URL);
        assert!(split(&need.url).is_some() && need.url.is_ascii());
        assert_eq!(resolve(URL, &need.url).as_ref(), Some(&need.url));
    }
});

/// Scans `data`, and returns its needs and the strings of its scripts. The lowest bits of `first`
/// choose the language and the mode.
fn scan(first: u8, data: &[u8], step: usize) -> (Vec<Need>, Vec<String>) {
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
    scanner.read_literals();
    let (mut found, mut literals) = (Vec::new(), Vec::new());
    for piece in data.chunks(step) {
        scanner.feed(piece, &mut found);
        literals.append(&mut scanner.take_literals());
    }
    scanner.finish(&mut found);
    (found, literals)
}
