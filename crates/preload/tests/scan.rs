//! The needs that the scan finds in pages and style sheets, compared with the requests of a
//! browser. No cut of the stream changes them, and no input breaks the scan.

use proptest::prelude::*;
use tandem_preload::{MAX_URL, Need, Referrer, Scanner, resolve, split};

const PAGE: &str = "https://www.example.org/news/index.html";
const SHEET: &str = "https://www.example.org/css/site.css";
const SCRIPT: &str = "https://www.example.org/js/main.js";

fn all(mut scanner: Scanner, bytes: &[u8], cut: usize) -> Vec<Need> {
    let mut found = Vec::new();
    for piece in bytes.chunks(cut.max(1)) {
        scanner.feed(piece, &mut found);
    }
    scanner.finish(&mut found);
    found
}

fn html() -> Scanner {
    Scanner::html(PAGE).expect("an https URL")
}

fn css() -> Scanner {
    Scanner::css(SHEET).expect("an https URL")
}

fn script() -> Scanner {
    Scanner::script(SCRIPT).expect("an https URL").page(PAGE)
}

/// Each need as a line: urgency, kind, URL (of this site without its origin), and whether
/// anonymous. Fed as a whole and byte by byte.
fn lines(scanner: fn() -> Scanner, text: &str) -> Vec<String> {
    let found = all(scanner(), text.as_bytes(), text.len());
    assert_eq!(
        all(scanner(), text.as_bytes(), 1),
        found,
        "cut into single bytes: {text}"
    );
    let line = |need: &Need| {
        let url = need
            .url
            .strip_prefix("https://www.example.org")
            .unwrap_or(&need.url);
        let anonymous = if need.anonymous { " anonymous" } else { "" };
        format!("{} {:?} {url}{anonymous}", need.urgency, need.kind)
    };
    found.iter().map(line).collect()
}

#[track_caller]
fn page(text: &str, expected: &[&str]) {
    assert_eq!(lines(html, text), expected, "{text}");
}

#[track_caller]
fn sheet(text: &str, expected: &[&str]) {
    assert_eq!(lines(css, text), expected, "{text}");
}

#[track_caller]
fn module(text: &str, expected: &[&str]) {
    assert_eq!(lines(script, text), expected, "{text}");
}

#[test]
fn a_news_page() {
    page(
        include_str!("scan/news.html"),
        &include_str!("scan/news.txt").lines().collect::<Vec<_>>(),
    );
}

#[test]
fn an_application() {
    page(
        include_str!("scan/application.html"),
        &include_str!("scan/application.txt")
            .lines()
            .collect::<Vec<_>>(),
    );
}

#[test]
fn a_page_of_the_nineties() {
    let text = String::from_utf8_lossy(include_bytes!("scan/nineties.html"));
    page(
        &text,
        &include_str!("scan/nineties.txt")
            .lines()
            .collect::<Vec<_>>(),
    );
}

#[test]
fn a_site_s_style_sheet() {
    sheet(
        include_str!("scan/site.css"),
        &include_str!("scan/site.txt").lines().collect::<Vec<_>>(),
    );
}

#[test]
fn links() {
    page("<link rel=stylesheet href=a.css>", &["1 Style /news/a.css"]);
    page(
        "<LINK REL='StyleSheet' HREF='a.css' MEDIA=Screen />",
        &["1 Style /news/a.css"],
    );
    page(
        "<link rel=stylesheet href=p.css media=print>",
        &["6 Style /news/p.css"],
    );
    page(
        "<link rel=stylesheet href=n.css media='(max-width: 700px)'>",
        &["6 Style /news/n.css"],
    );
    page(
        "<link rel='alternate stylesheet' href=dark.css title=dark>",
        &["6 Style /news/dark.css"],
    );
    page(
        "<link rel=stylesheet href=x.css disabled><link rel=stylesheet type=text/less href=y.less>",
        &[],
    );
    page(
        "<body><link rel=stylesheet href=late.css>",
        &["2 Style /news/late.css"],
    );
    page(
        "<link rel=preload as=font href=f.woff2 crossorigin>",
        &["2 Font /news/f.woff2"],
    );
    page(
        "<link rel=preload as=font href=//cdn.test/f.woff2 crossorigin>",
        &["2 Font https://cdn.test/f.woff2 anonymous"],
    );
    page(
        "<link rel=preload as=fetch href=/api crossorigin=use-credentials>",
        &["3 Fetch /api"],
    );
    page(
        "<link rel=preload as=style href=a.css><link rel=stylesheet href=a.css>",
        &["1 Style /news/a.css"],
    );
    page(
        "<link rel=preload as=video href=a.mp4><link rel=preload as=font type=application/vnd.ms-fontobject href=a.eot>",
        &[],
    );
    page(
        "<link rel=preload href=x><link rel=preload as=image type=image/jxl href=a.jxl>",
        &[],
    );
    page(
        "<link rel=preload as=image href=s.jpg imagesrcset='m.jpg 640w, l.jpg 1280w' imagesizes=50vw>",
        &["4 Image /news/m.jpg"],
    );
    page(
        "<link rel=preload as=image href=s.jpg media='(max-width:600px)'>",
        &[],
    );
    page(
        "<link rel=modulepreload href=m.js>",
        &["3 Script /news/m.js"],
    );
    page(
        "<link rel=prefetch href=next.html><link rel=prefetch as=script href=n.js>",
        &["7 Other /news/next.html", "7 Script /news/n.js"],
    );
    page(
        "<link rel='dns-prefetch preconnect' href=//cdn.test><link rel=canonical href=/x><link rel=next href=/y>",
        &[],
    );
    page(
        "<link rel=stylesheet href=a.css><link rel='shortcut icon' href=f.ico><img src=a.png>",
        &[
            "1 Style /news/a.css",
            "4 Image /news/a.png",
            "6 Image /news/f.ico",
        ],
    );
    page(
        "<link rel=icon sizes=32x32 href=32.png><link rel=icon sizes=192x192 href=192.png><link rel=apple-touch-icon href=t.png>",
        &["6 Image /news/32.png"],
    );
}

#[test]
fn scripts() {
    page("<script src=a.js></script>", &["2 Script /news/a.js"]);
    page(
        "<head></head><script src=a.js></script>",
        &["3 Script /news/a.js"],
    );
    page("<body><script src=a.js></script>", &["3 Script /news/a.js"]);
    page(
        "<script defer src=a.js></script><script async src=b.js></script>",
        &["3 Script /news/a.js", "4 Script /news/b.js"],
    );
    page(
        "<script type=module src=m.js></script><script nomodule src=old.js></script>",
        &["3 Script /news/m.js"],
    );
    page(
        "<script type=module src=//cdn.test/m.js></script>",
        &["3 Script https://cdn.test/m.js anonymous"],
    );
    page(
        "<script crossorigin=use-credentials src=//cdn.test/m.js></script>",
        &["2 Script https://cdn.test/m.js"],
    );
    page(
        "<script async fetchpriority=high src=a.js></script>",
        &["3 Script /news/a.js"],
    );
    page(
        "<script type=' Text/JavaScript1.5 ' src=a.js></script><script type=application/x-javascript src=b.js></script>\
        <script type='' src=c.js></script><script language=JavaScript src=d.js></script>",
        &[
            "2 Script /news/a.js",
            "2 Script /news/b.js",
            "2 Script /news/c.js",
            "2 Script /news/d.js",
        ],
    );
    page(
        "<script type=application/json src=a.json></script><script type=text/template src=b></script>",
        &[],
    );
    page(
        "<script type='text/javascript; charset=x' src=a></script><script language=vbscript src=b></script>",
        &[],
    );
    page(
        "<script>document.write('<img src=a.png>')</script ><img src=b.png>",
        &["4 Image /news/b.png"],
    );
    page(
        "<script>if (a</script src=x.js><img src=b.png>",
        &["4 Image /news/b.png"],
    );
    page(
        "<script></scripts><img src=a.png></script/><img src=b.png>",
        &["4 Image /news/b.png"],
    );
    page(
        "<script><!-- <script> </script> <img src=a.png> --></script><img src=b.png>",
        &["4 Image /news/b.png"],
    );
    page(
        "<script><!-- x </script><img src=a.png>",
        &["4 Image /news/a.png"],
    );
    page(
        "<script><!--><script></script><img src=a.png>",
        &["4 Image /news/a.png"],
    );
    page(
        "<script><!-- <script --></script><img src=a.png>",
        &["4 Image /news/a.png"],
    );
    page(
        "<script><!-- <script> </script> </script><img src=a.png>",
        &["4 Image /news/a.png"],
    );
}

#[test]
fn images() {
    page(
        "<img src=a.png><image src=b.png>",
        &["4 Image /news/a.png", "4 Image /news/b.png"],
    );
    page(
        "<img src=a.png loading=lazy><img loading=eager src=b.png>",
        &["7 Image /news/a.png", "4 Image /news/b.png"],
    );
    page(
        "<img src=a.jpg fetchpriority=high><img src=b.jpg fetchpriority=low>",
        &["3 Image /news/a.jpg", "5 Image /news/b.jpg"],
    );
    page(
        "<img src=s.jpg srcset='m.jpg 640w, l.jpg 1280w' sizes='(min-width: 900px) 40vw, 100vw'>",
        &["4 Image /news/m.jpg"],
    );
    page(
        "<img src=a.png srcset='b.png 2x'>",
        &["4 Image /news/a.png"],
    );
    page(
        "<img data-src=a.png src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>",
        &[],
    );
    page(
        "<img src=//cdn.test/a.png crossorigin>",
        &["4 Image https://cdn.test/a.png anonymous"],
    );
    page(
        "<input type=image src=go.png><input type=text src=no.png>",
        &["5 Image /news/go.png"],
    );
    page(
        "<video poster=p.jpg src=v.mp4 preload=auto><source src=v.webm></video><audio src=a.ogg>",
        &["5 Image /news/p.jpg"],
    );
    page(
        "<video><track src=a.vtt><track default src=b.vtt></video>",
        &["6 Media /news/b.vtt"],
    );
    page(
        "<body background=b.gif><table background=t.gif><a background=no.gif>",
        &["5 Image /news/b.gif", "5 Image /news/t.gif"],
    );
    let many = (0..14)
        .map(|n| format!("<img src={n}.png>"))
        .collect::<String>();
    let found = lines(html, &many);
    assert_eq!(
        (found[11].as_str(), found[12].as_str()),
        ("4 Image /news/11.png", "5 Image /news/12.png")
    );
}

#[test]
fn pictures() {
    let picture = "<picture><source type=image/jxl srcset=a.jxl><source media='(max-width:600px)' srcset=s.avif>\
        <source type=image/avif srcset='a.avif 1x, b.avif 2x'><source type=image/webp srcset=a.webp>\
        <img src=a.jpg loading=lazy></picture><img src=b.jpg>";
    page(picture, &["7 Image /news/a.avif", "4 Image /news/b.jpg"]);
    let urls = |scanner: Scanner| all(scanner, picture.as_bytes(), 7).remove(0).url;
    assert_eq!(
        urls(html().accept("text/html,image/webp,*/*")),
        "https://www.example.org/news/a.webp"
    );
    assert_eq!(
        urls(html().accept("*/*")),
        "https://www.example.org/news/a.jpg"
    );
    assert_eq!(
        urls(html().accept("image/jxl,image/avif")),
        "https://www.example.org/news/a.jxl"
    );
    assert_eq!(
        urls(html().viewport(1280, 2.0)),
        "https://www.example.org/news/b.avif"
    );
    assert_eq!(
        urls(html().viewport(400, 1.0)),
        "https://www.example.org/news/s.avif"
    );
    page(
        "<source srcset=a.png><picture><source srcset=''><img src=b.png></picture>",
        &["4 Image /news/b.png"],
    );
}

#[test]
fn other_elements() {
    page("<iframe src=f.html></iframe>", &["4 Document /news/f.html"]);
    page(
        "<iframe srcdoc='x' src=f.html></iframe><iframe loading=lazy src=g.html></iframe>",
        &["7 Document /news/g.html"],
    );
    page(
        "<iframe src=about:blank></iframe><iframe src='javascript:x'></iframe><iframe src=index.html#x></iframe>",
        &[],
    );
    page(
        "<frameset><frame src=a.html><noframes><img src=a.png></noframes></frameset>",
        &["4 Document /news/a.html"],
    );
    page(
        "<object data=a.svg type=image/svg+xml></object><embed src=b.pdf><object data=c.swf></object><embed src=d type=application/x-shockwave-flash>",
        &["5 Image /news/a.svg", "5 Other /news/b.pdf"],
    );
    page(
        "<meta http-equiv=refresh content='0; URL=/new/'>",
        &["0 Document /new/"],
    );
    page(
        "<meta http-equiv=Refresh content=\"3;url='next.html?a=1&amp;b=2' \">",
        &["7 Document /news/next.html?a=1&b=2"],
    );
    page(
        "<meta http-equiv=refresh content=0><meta http-equiv=refresh content='300; url=/x'><meta name=refresh content='0;url=/y'>",
        &[],
    );
    page(
        "<base href=/assets/><base href=/other/><img src=a.png>",
        &["4 Image /assets/a.png"],
    );
    page(
        "<img src=a.png><base target=_top><base href='https://cdn.test/x/'><img src=a.png>",
        &["4 Image /news/a.png", "4 Image https://cdn.test/x/a.png"],
    );
    page(
        "<base href='data:x'><img src=a.png>",
        &["4 Image /news/a.png"],
    );
    page(
        "<a href=/x><form action=/y><area href=/z><blockquote cite=/q>",
        &[],
    );
}

#[test]
fn inert_and_commented_markup_has_no_needs() {
    page(
        "<!-- <img src=a.png> --><img src=b.png>",
        &["4 Image /news/b.png"],
    );
    page(
        "<!--><img src=a.png>--><!---><img src=b.png>",
        &["4 Image /news/a.png", "4 Image /news/b.png"],
    );
    page(
        "<!-- -- > --!><img src=a.png><!-- --->",
        &["4 Image /news/a.png"],
    );
    page(
        "<!--!><img src=a.png>--><!x><img src=b.png><!-><img src=c.png>",
        &["4 Image /news/b.png", "4 Image /news/c.png"],
    );
    page(
        "<!-- <!-- <!-- --><img src=a.png>",
        &["4 Image /news/a.png"],
    );
    page(
        "<!DOCTYPE html PUBLIC \"a\" 'b'><?xml x?><img src=a.png></ x><img src=b.png>",
        &["4 Image /news/a.png", "4 Image /news/b.png"],
    );
    page(
        "<![CDATA[<img src=a.png>]]><img src=b.png>",
        &["4 Image /news/b.png"],
    );
    page(
        "<svg><![CDATA[<img src=a.png> ]] > ]]]></svg><img src=b.png>",
        &["4 Image /news/b.png"],
    );
    page(
        "<title><img src=a.png></title><textarea><img src=b.png></TEXTAREA ><xmp><img src=c.png></xmp>",
        &[],
    );
    page(
        "<noscript><img src=a.png><link rel=stylesheet href=a.css></noscript><img src=b.png>",
        &["4 Image /news/b.png"],
    );
    page(
        "<template><img src=a.png><template></template><style>a{b:url(x)}</style></template><img src=b.png>",
        &["4 Image /news/b.png"],
    );
    page(
        "<template shadowrootmode=open><img src=a.png></template></template><img src=b.png>",
        &["4 Image /news/a.png", "4 Image /news/b.png"],
    );
    page("<plaintext><img src=a.png></plaintext><img src=b.png>", &[]);
    page(
        "a < b <3 <<img src=a.png><img src=b.png",
        &["4 Image /news/a.png"],
    );
    page("<script><img src=a.png>", &[]);
}

#[test]
fn foreign_content() {
    page(
        "<svg><image href=a.png /><image xlink:href='b.png'/><use href=s.svg#i /><use href='#i'/><use href=//cdn.test/s.svg#i /></svg>",
        &[
            "4 Image /news/a.png",
            "4 Image /news/b.png",
            "5 Image /news/s.svg",
        ],
    );
    page(
        "<svg><title/><style/><desc>x</desc></svg><img src=a.png>",
        &["4 Image /news/a.png"],
    );
    page(
        "<svg><style><![CDATA[ a { fill: url(f.svg#x) } ]]></style></svg><img src=a.png>",
        &["5 Image /news/f.svg", "4 Image /news/a.png"],
    );
    page(
        "<svg><iframe src=a></iframe><foreignObject><link rel=stylesheet href=b.css></foreignObject><script href=c.js></script></svg>",
        &["1 Style /news/b.css", "3 Script /news/c.js"],
    );
    page(
        "<svg/><svg><div><title></svg><img src=a.png></title><img src=b.png>",
        &["4 Image /news/b.png"],
    );
    page(
        "<svg><g><link rel=stylesheet href=a.css>",
        &["1 Style /news/a.css"],
    );
    page(
        "<math><image href=b.png></image><mi>x</mi><img src=a.png>",
        &["4 Image /news/a.png"],
    );
}

#[test]
fn attributes() {
    page("<img src=a.png src=b.png>", &["4 Image /news/a.png"]);
    page(
        "<img/src=a.png/><img alt=\"x>y\" src = 'a b.png' >",
        &["4 Image /news/a.png/", "4 Image /news/a%20b.png"],
    );
    page("<img =src=a.png src=b.png>", &["4 Image /news/b.png"]);
    page(
        "<img src='?a=1&amp;b=2&#38;c&copy=3'>",
        &["4 Image /news/index.html?a=1&b=2&c&copy=3"],
    );
    page(
        "<img src><img src=''><img src=' '><img src='#a'><img src=index.html>",
        &[],
    );
    page(
        "<div style=\"background-image: url('a.png?x&amp;y')\"><p style='color:red'>",
        &["4 Image /news/a.png?x&y"],
    );
    page(
        "<div style='a:url(&quot;b.png&quot;);c:url(d.png'><x-a-very-long-name-for-an-element style='a:url(e.png)'>",
        &[
            "4 Image /news/b.png",
            "4 Image /news/d.png",
            "4 Image /news/e.png",
        ],
    );
}

#[test]
fn style_elements() {
    page(
        "<style>@import 'a.css'; b{c:url(d.png)}</style><img src=e.png>",
        &[
            "1 Style /news/a.css",
            "5 Image /news/d.png",
            "4 Image /news/e.png",
        ],
    );
    page(
        "<style>a{b:url(</st.png)}c{d:url(e.png)}</STYLE\n><img src=f.png>",
        &[
            "5 Image /news/%3C/st.png",
            "5 Image /news/e.png",
            "4 Image /news/f.png",
        ],
    );
    page(
        "<style media=print>a{b:url(c.png)}</style><style type=text/less>a{b:url(c.png)}</style>",
        &[],
    );
    page("<style>@import 'a.css'", &["1 Style /news/a.css"]);
    page(
        "<base href=/x/><style>a{b:url(c.png)}</style>",
        &["5 Image /x/c.png"],
    );
}

#[test]
fn imports() {
    sheet(
        "@charset 'utf-8'; @import url(a.css); @import \"b.css\" screen;",
        &["1 Style /css/a.css", "1 Style /css/b.css"],
    );
    sheet(
        "@import 'a.css' print; @import url('b.css') (max-width:600px);",
        &["6 Style /css/a.css", "6 Style /css/b.css"],
    );
    sheet(
        "@import 'a.css' layer(base) supports(display: grid) screen; @layer x; @import 'b.css' layer;",
        &["1 Style /css/a.css", "1 Style /css/b.css"],
    );
    sheet("a{} @import 'a.css';", &[]);
    sheet("@namespace url(http://x.test/); @import 'a.css';", &[]);
    sheet("@unknown x; @import 'a.css';", &["1 Style /css/a.css"]);
    sheet(
        "<!-- /* c */ @IMPORT/**/'a.css'; -->",
        &["1 Style /css/a.css"],
    );
    sheet(
        "@import 'a;b.css'; @import url(c;d.css);",
        &["1 Style /css/a;b.css", "1 Style /css/c;d.css"],
    );
    sheet("@import 'a.css'", &["1 Style /css/a.css"]);
    sheet("@import \"a.css", &["1 Style /css/a.css"]);
    sheet(
        "@import url(//fonts.test/css?family=A:400,700|B&display=swap);",
        &["1 Style https://fonts.test/css?family=A:400,700|B&display=swap"],
    );
}

#[test]
fn imports_of_modules() {
    module("import './a.js'", &["3 Script /js/a.js"]);
    module(
        "import a from './a.js';import * as b from \"../b.js\"\nimport c, { d as e, default as f } from '/c.js'",
        &["3 Script /js/a.js", "3 Script /b.js", "3 Script /c.js"],
    );
    module(
        "import{a as b}from\"./c.js\";const x=1;import './late.js'",
        &["3 Script /js/c.js"],
    );
    module(
        "export * from './a.js'; export * as b from './b.js'; export { c, d as 'e e' } from './c.js'",
        &[
            "3 Script /js/a.js",
            "3 Script /js/b.js",
            "3 Script /js/c.js",
        ],
    );
    module("export { a }; import './b.js'", &["3 Script /js/b.js"]);
    module(
        "/* import './no.js' * / **/ // import './no.js'\r'use strict'; import'./a.js'",
        &["3 Script /js/a.js"],
    );
    module(
        "import data from './d.json' with { type: 'json' };\nimport s from './s.js' with { a: 'b', c: 'd' }\nimport './e.js'",
        &[
            "3 Script /js/d.json",
            "3 Script /js/s.js",
            "3 Script /js/e.js",
        ],
    );
    module(
        "\u{feff}import $a\u{e9} from 'https://cdn.test/a.js'",
        &["3 Script https://cdn.test/a.js anonymous"],
    );
    module(
        "import from from './from.js'; import defer * as d from './d.js'",
        &["3 Script /js/from.js", "3 Script /js/d.js"],
    );
    // Specifiers that need an import map, and imports that only running the script reveals.
    module(
        "import react from 'react'; import '#own'; import './a.js'",
        &["3 Script /js/a.js"],
    );
    for none in [
        "import('./a.js')",
        "import.meta.url; import './a.js'",
        "var a = 1; import './a.js'",
        "(function(){})(); import './a.js'",
        "export default 1; import './a.js'",
        "export const a = 1; import './a.js'",
        "import './a\\.js'",
        "import './a.js",
        "import a './a.js'",
        "import a = from './a.js'",
        "importx './a.js'",
        "Import './a.js'",
        "#!/usr/bin/env node\nimport './a.js'",
        "`import './a.js'`",
        "/import './a.js'/",
        "{ import './a.js' }",
        "<!-- import './a.js'",
        "import { a } './a.js'",
    ] {
        module(none, &[]);
    }
    page(
        "<script type=module>import './a.js'</script>",
        &["3 Script /news/a.js"],
    );
    page(
        "<base href=/b/><script type=module>\n import x from '//cdn.test/a.js';\nrun(x < 1)</script><img src=i.png>",
        &[
            "3 Script https://cdn.test/a.js anonymous",
            "4 Image /b/i.png",
        ],
    );
    page(
        "<script>import './a.js'</script><script type=importmap>{}</script>",
        &[],
    );
    page(
        "<template><script type=module>import './a.js'</script></template>",
        &[],
    );
    page("<script type=module><!-- \nimport './a.js'</script>", &[]);
    page(
        "<script type=module src=m.js>import './a.js'</script>",
        &["3 Script /news/m.js"],
    );
}

/// The first word that is neither an import nor an export ends the reading of a script.
#[test]
fn a_script_is_read_no_longer_than_it_imports() {
    let mut found = Vec::new();
    let mut scanner = script();
    scanner.feed(b"// a comment\nimport './a.js'\n", &mut found);
    assert!(!scanner.is_over() && found.len() == 1);
    assert_eq!(found[0].via.as_deref(), Some(SCRIPT));
    scanner.feed(b"let ", &mut found);
    assert!(scanner.is_over());
    assert!(!html().is_over() && !css().is_over());
}

#[test]
fn a_style_sheet_asks_in_its_own_name() {
    let found = all(
        css().referrer(Some(Referrer::None)),
        b"a { background: url(a.png) }",
        5,
    );
    assert_eq!(
        (found[0].via.as_deref(), found[0].referrer),
        (Some(SHEET), Some(Referrer::None))
    );
    assert_eq!(
        all(html(), b"<style>a { background: url(a.png) }</style>", 5)[0].via,
        None
    );
}

#[test]
fn fonts() {
    sheet(
        "@font-face{font-family:x;src:url(a.woff2)format('woff2'),url(a.woff)format('woff')}",
        &["4 Font /css/a.woff2 anonymous"],
    );
    sheet(
        "@font-face { src: url('a.eot'); src: url('a.eot?#iefix') format('embedded-opentype'), local(x), url('a.woff') format('woff'), url(a.svg#a) format('svg') }",
        &["4 Font /css/a.woff anonymous"],
    );
    sheet(
        "@font-face{src:url(data:font/woff2;base64,AAAA) format('woff2'),url(a.woff) format('woff')}",
        &[],
    );
    sheet(
        "@font-face{src:url(a.ttf)}@font-face{src:url(b.eot)}@font-face{src:url(c.woff2) format(woff2) tech(variations)}",
        &[
            "4 Font /css/a.ttf anonymous",
            "4 Font /css/c.woff2 anonymous",
        ],
    );
    sheet(
        "@font-face{src:url(c.woff2);unicode-range:U+0460-052F,U+1C80}@font-face{src:url(l.woff2);unicode-range:U+0000-00FF}",
        &["4 Font /css/l.woff2 anonymous"],
    );
    sheet("@media print{@font-face{src:url(a.woff2)}}", &[]);
    sheet(
        "@font-face{src:url('a;b,c(.woff2')}",
        &["4 Font /css/a;b,c(.woff2 anonymous"],
    );
    let same = all(css().page(PAGE), b"@font-face{src:url(a.woff2)}", 3);
    assert!(!same[0].anonymous);
    let other = all(
        css().page("https://other.test/"),
        b"@font-face{src:url(a.woff2)}",
        3,
    );
    assert!(other[0].anonymous);
}

#[test]
fn images_in_rules() {
    sheet(
        "a{background:url(a.png) no-repeat,url( 'b.png' )}",
        &["5 Image /css/a.png", "5 Image /css/b.png"],
    );
    sheet(
        "a{b:URL(a.png)}c{d:url(\n\"b.png\"\n)}e{f:myurl(c.png)}g{h:url (d.png)}",
        &["5 Image /css/a.png", "5 Image /css/b.png"],
    );
    sheet("a{b:url(../i/a\\ b\\).png)}", &["5 Image /i/a%20b).png"]);
    sheet(
        "/* a{b:url(c.png)} */ /**/ /***/ a{b:url(/*x*/d.png)} /*/ e{f:url(g.png)} */",
        &["5 Image /*x*/d.png"],
    );
    sheet(
        "a::after{content:'url(b.png)'; c: \"\\\"url(d.png)\"}e{f:url(g.png)}",
        &["5 Image /css/g.png"],
    );
    sheet(
        "a{b:url(data:image/png;base64,AA==);c:url(#d);e:url();f:url('');g:url(blob:x)}",
        &[],
    );
    sheet(
        "a{b:url('data:image/svg+xml,<svg fill=\"red\">{}</svg>')}c{d:url(e.png)}",
        &["5 Image /css/e.png"],
    );
    sheet("a{cursor:url(p.cur),auto}", &["6 Image /css/p.cur"]);
    sheet(
        "@media print{a{b:url(c.png)}}d{e:url(f.png)}",
        &["5 Image /css/f.png"],
    );
    sheet(
        "@media (max-width:600px){a{b:url(c.png)} @media all{a{b:url(x.png)}}}@media screen{d{e:url(f.png)}}",
        &["5 Image /css/f.png"],
    );
    sheet(
        "@supports (display:grid){@layer x{a{&:hover{b:url(c.png)}}}}",
        &["5 Image /css/c.png"],
    );
    sheet(
        "a{b:image-set('a.avif' type('image/avif') 1x,'b.avif' type('image/avif') 2x,'c.jxl' type('image/jxl') 1x)}",
        &["5 Image /css/a.avif"],
    );
    sheet(
        "a{b:-webkit-image-set(url(a.png)1x, url(b.png) 2x);c:url(d.png)}",
        &["5 Image /css/a.png", "5 Image /css/d.png"],
    );
    sheet(
        "a{b:image-set(linear-gradient(red,blue) 1x, url(b.png) 192dpi)}",
        &["5 Image /css/b.png"],
    );
    sheet(
        ".md\\@x{a:url(b.png)} .\\{{c:url(d.png)}",
        &["5 Image /css/b.png", "5 Image /css/d.png"],
    );
    sheet(
        "url(x.png) @page url(y.png) {a:url(b.png)}",
        &["5 Image /css/b.png"],
    );
    sheet("a{b:url(c.png)", &["5 Image /css/c.png"]);
    sheet("a{b:url(c.png", &["5 Image /css/c.png"]);
    sheet("a{b:url('c.png", &["5 Image /css/c.png"]);
    sheet(
        "a{b:image-set('c.png' 1x, 'd.png' 2x",
        &["5 Image /css/c.png"],
    );
    sheet("a{b:'x\n} c{d:url(e.png)}", &["5 Image /css/e.png"]);
}

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

#[test]
fn needs_carry_the_referrer_policy() {
    let referrers = |page: &str| {
        let mut scanner = Scanner::html("http://h/").expect("a page");
        let mut found = Vec::new();
        scanner.feed(page.as_bytes(), &mut found);
        scanner.finish(&mut found);
        found
            .into_iter()
            .map(|need| need.referrer)
            .collect::<Vec<_>>()
    };
    let (none, origin) = (Some(Referrer::None), Some(Referrer::Origin));
    assert_eq!(referrers("<img src=a>"), [None]);
    assert_eq!(
        referrers(
            "<meta name=Referrer content=never><img src=a><style>p{background:url(b)}</style>"
        ),
        [none; 2]
    );
    assert_eq!(
        referrers("<img src=a><meta name=referrer content=origin><img src=b>"),
        [None, origin]
    );
    assert_eq!(
        referrers(
            "<meta name=referrer content=no-referrer><meta name=referrer content=what><img src=a>"
        ),
        [none]
    );
    let elements = "<script src=a referrerpolicy=no-referrer></script><img src=b><iframe src=c referrerpolicy=origin></iframe>";
    assert_eq!(
        referrers(&format!(
            "<meta name=referrer content=unsafe-url>{elements}"
        )),
        [none, Some(Referrer::Whole), origin]
    );
    for (policy, is) in [
        ("same-origin", Referrer::Own),
        ("strict-origin-when-cross-origin", Referrer::OriginToOthers),
        (" Strict-Origin ", Referrer::Origin),
        ("no-referrer-when-downgrade", Referrer::Whole),
    ] {
        assert_eq!(Referrer::parse(policy), Some(is), "{policy}");
    }
    assert_eq!(Referrer::parse(""), None);
}
