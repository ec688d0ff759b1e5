//! Encodings, and the bounds on needs, URLs and memory.

use tandem_preload::{MAX_URL, Scanner};

use crate::{all, html, page, sheet};

#[test]
fn encodings() {
    let urls = |bytes: &[u8]| {
        all(html(), bytes, 1)
            .into_iter()
            .map(|need| need.url)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        urls(b"<img src=caf\xe9.png?\xe9>"),
        ["https://www.example.org/news/caf%C3%A9.png?%E9"]
    );
    assert_eq!(
        urls("\u{feff}<img src=caf\u{e9}.png>".as_bytes()),
        ["https://www.example.org/news/caf%C3%A9.png"]
    );
    for big in [true, false] {
        let bytes = |unit: u16| {
            if big {
                unit.to_be_bytes()
            } else {
                unit.to_le_bytes()
            }
        };
        let text = "<img src=a.png>"
            .encode_utf16()
            .flat_map(bytes)
            .collect::<Vec<_>>();
        assert_eq!(urls(&text), [""; 0]);
        let marked = bytes(0xfeff).into_iter().chain(text).collect::<Vec<_>>();
        assert_eq!(urls(&marked), [""; 0]);
    }
    assert_eq!(
        urls(b"\xff<img src=a.png>"),
        ["https://www.example.org/news/a.png"]
    );
}

#[test]
fn only_fetchable_documents() {
    for url in [
        "",
        "x",
        "ftp://h/",
        "data:,x",
        "about:blank",
        "//h/",
        "http://user@h/",
        "http://",
    ] {
        assert!(
            Scanner::html(url).is_none() && Scanner::css(url).is_none(),
            "{url}"
        );
    }
}

#[test]
fn each_thing_once_and_not_too_many() {
    page(
        "<img src=a.png><img src=./a.png#x><img src='https://WWW.example.org:443/news/a.png'>",
        &["4 Image /news/a.png"],
    );
    let many = (0..1_000_000)
        .map(|n| format!("<img src={n}>"))
        .collect::<String>();
    let found = all(html(), many.as_bytes(), 16_384);
    assert_eq!(found.len(), Scanner::MAX_NEEDS);
    assert_eq!(
        all(html().max_needs(10), many.as_bytes(), 16_384),
        found[..10]
    );
    assert_eq!(all(html().max_needs(0), many.as_bytes(), 16_384), []);
    let icon = all(
        html().max_needs(1),
        b"<link rel=icon href=a.png><img src=b.png>",
        100,
    );
    assert_eq!(icon.len(), 1);
}

#[test]
fn scan_skips_tokens_over_the_limit() {
    let long = "x".repeat(8 * 1_024 + 1);
    page(
        &format!("<img src={long}><img src='{long}' srcset=a.png><img src=b.png>"),
        &["4 Image /news/a.png", "4 Image /news/b.png"],
    );
    page(
        &format!("<img src='{long}' src=a.png><{long} src=c.png><img {long}=x src=b.png>"),
        &["4 Image /news/b.png"],
    );
    sheet(
        &format!("a{{b:url({long});c:url('{long}');d:url(e.png)}}"),
        &["5 Image /css/e.png"],
    );
    sheet(
        &format!("@import '{long}'; @import 'a.css'; @media {long}{{a{{b:url(c.png)}}}}"),
        &["1 Style /css/a.css", "5 Image /css/c.png"],
    );
    sheet(
        &format!("@font-face{{src:url(a.woff2);x:{long}}}@font-face{{src:url(b.woff2)}}"),
        &["4 Font /css/b.woff2 anonymous"],
    );
    let path = "x".repeat(MAX_URL);
    page(
        &format!("<img src={path}><img src=a.png>"),
        &["4 Image /news/a.png"],
    );
}

#[test]
fn memory_is_bounded_whatever_does_not_end() {
    let endless = [
        ("", "<img alt='' src="),
        ("", "<!-- "),
        ("", "<svg><template><picture>"),
        ("<", "x"),
        ("<img src='", "y"),
        ("<img ", "srcset=\"a 1x\" style='b:url(c)' d=e "),
        ("<img srcset='", "a.png 1w, "),
        ("<style>", "a{b:url("),
        ("<style>@import '", "x"),
        ("<style>@font-face{src:", "url(a.woff2),"),
        ("<style>@media ", "(a) and "),
        ("<style>a{b:image-set(", "(url(x) 1x,"),
        ("<script><!-- <script>", "</script <!--"),
        ("<base href='", "../"),
        ("<script type=module>import '", "x"),
        ("<script type=module>import {", "abc as def,"),
        ("<script type=module>", "import './"),
        ("<script type=module>/*", "*"),
    ];
    for (start, unit) in endless {
        let mut scanner = html();
        let mut found = Vec::new();
        scanner.feed(start.as_bytes(), &mut found);
        let filler = unit.repeat(65_536 / unit.len());
        for _ in 0..64 {
            scanner.feed(filler.as_bytes(), &mut found);
        }
        // The debugging form shows the held memory: each byte as a number of up to three digits.
        let held = format!("{scanner:?}").len() / 5;
        assert!(held < 128 * 1_024, "{start}{unit}: {held}");
        assert!(found.len() <= Scanner::MAX_NEEDS);
    }
}
