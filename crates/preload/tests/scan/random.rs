//! Random pages: no cut of the stream changes the needs, and no input breaks the scan.

use proptest::prelude::*;
use tandem_preload::{MAX_URL, Scanner, resolve, split};

use crate::{PAGE, all, css, html, script};

/// A page of pieces that mean something, in any order, cut and broken anywhere.
fn pages() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => prop::sample::select(PIECES).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..12),
        1 => (0..40_u32).prop_map(|n| format!("i{n}.png").into_bytes()),
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

const PIECES: &[&str] = &[
    "<",
    ">",
    "/",
    "!",
    "--",
    "-->",
    "<!--",
    "\"",
    "'",
    "=",
    " ",
    "\n",
    "&",
    ";",
    ",",
    "(",
    ")",
    "{",
    "}",
    "\\",
    "@",
    "*",
    "/*",
    "*/",
    "#",
    "?",
    ":",
    "//",
    "..",
    "%2e",
    "data:",
    "http:",
    "https://h.test",
    "<img src=",
    "<img srcset='",
    " 1x",
    " 640w",
    " sizes='(min-width:1px) calc(50vw - 1em)'",
    "<link rel=stylesheet href=",
    "<link rel=preload as=image href=",
    "<script",
    "</script",
    "<script src=",
    "<style",
    "<style>",
    "</style>",
    "<svg>",
    "</svg>",
    "<![CDATA[",
    "]]>",
    "<title>",
    "</title>",
    "<template>",
    "</template>",
    "<noscript>",
    "</noscript>",
    "<picture>",
    "<source srcset=",
    "</picture>",
    "<base href=",
    "<div style=\"",
    "<meta http-equiv=refresh content='0;url=",
    "<plaintext>",
    "<iframe src=",
    "url(",
    "url('",
    "@import ",
    "@media print",
    "@media screen",
    "@font-face{src:",
    "format('woff2')",
    "unicode-range:U+4?",
    "image-set(",
    "&amp;",
    "&#x26;",
    "&#99999999;",
    "\u{e4}",
    "\u{feff}",
    " media='(max-width:",
    "<math>",
    "<foreignObject>",
    "<script type=module>",
    "import ",
    "import{a as b}from'./a.js';",
    "import*as c from\"/c.js\"",
    "export{d}from'../d.js'\n",
    "from",
    "with{type:'json'}",
    "export",
];

fn check(scanner: fn() -> Scanner, bytes: &[u8], cuts: &[usize]) -> Result<(), TestCaseError> {
    let whole = all(scanner(), bytes, bytes.len());
    let mut found = Vec::new();
    let mut pieces = scanner();
    let mut rest = bytes;
    for cut in cuts.iter().cycle().take(4 * bytes.len()) {
        let (piece, after) = rest.split_at((*cut).min(rest.len()));
        pieces.feed(piece, &mut found);
        rest = after;
    }
    pieces.feed(rest, &mut found);
    pieces.finish(&mut found);
    prop_assert_eq!(&found, &whole);
    for need in &whole {
        let (scheme, authority, path) = split(&need.url).expect("an absolute URL");
        prop_assert!(need.urgency <= 7 && need.url.len() <= MAX_URL);
        prop_assert!(!authority.contains(['@', '\\', '?', '#']) && !need.url.contains(['#', ' ']));
        prop_assert!(need.url.is_ascii() && path.starts_with('/') && scheme.starts_with("http"));
        prop_assert_eq!(resolve(PAGE, &need.url), Some(need.url.clone()));
    }
    let urls = whole
        .iter()
        .map(|need| &need.url)
        .collect::<std::collections::HashSet<_>>();
    prop_assert_eq!(urls.len(), whole.len());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn cuts_change_nothing(bytes in pages(), cuts in prop::collection::vec(0..20_usize, 1..8)) {
        check(html, &bytes, &cuts)?;
        check(css, &bytes, &cuts)?;
        check(script, &bytes, &cuts)?;
        check(script, &[b"import './a.js';", &*bytes].concat(), &cuts)?;
    }

    #[test]
    fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..2_000), cuts in prop::collection::vec(0..300_usize, 1..4)) {
        check(html, &bytes, &cuts)?;
        check(css, &bytes, &cuts)?;
        check(script, &bytes, &cuts)?;
    }

    #[test]
    fn references_resolve_to_urls_that_stay(base in "https?://[a-z]{1,4}(:[0-9]{1,5})?/[a-z./%?]{0,12}", reference in "[a-z./\\\\%?#: 2eE\u{e4}@\\[\\]-]{0,24}") {
        if let Some(url) = resolve(&base, &reference) {
            prop_assert_eq!(resolve(&base, &url), Some(url.clone()));
            let (_, authority, path) = split(&url).expect("an absolute URL");
            prop_assert!(!authority.is_empty() && url.len() <= MAX_URL);
            let path = path.split('?').next().unwrap_or(path);
            prop_assert!(!path.split('/').any(|segment| segment == "." || segment == ".."), "{}", url);
        }
    }
}
