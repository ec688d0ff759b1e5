//! The elements of HTML that request resources, and markup that requests none.

use tandem_preload::{Referrer, Scanner};

use crate::{all, html, lines, page};

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
    // The image needs no attribute of its own.
    page(
        "<picture><source srcset='a.png 1x'><img alt=''></picture>\
            <picture><source srcset=''><img></picture><img alt=''>",
        &["4 Image /news/a.png"],
    );
}

#[test]
fn other_elements() {
    page("<iframe src=f.html></iframe>", &["3 Document /news/f.html"]);
    page(
        "<iframe sandbox src=f.html></iframe><iframe src=g.html sandbox='allow-scripts'></iframe>\
         <iframe credentialless src=i.html></iframe>\
         <iframe src=h.html sandbox='allow-scripts Allow-Same-Origin'></iframe>",
        &["3 Document /news/h.html"],
    );
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
        &["3 Document /news/a.html"],
    );
    page(
        "<object data=a.svg type=image/svg+xml></object><embed src=b.pdf><object data=c.swf></object><embed src=d type=application/x-shockwave-flash>",
        &["5 Object /news/a.svg", "5 Object /news/b.pdf"],
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

#[test]
fn scanner_reads_the_referrer_policy_of_each_element() {
    for element in [
        "<link rel=stylesheet href=a referrerpolicy=no-referrer>",
        "<link rel=preload as=image href=a referrerpolicy=no-referrer>",
        "<link rel=modulepreload href=a referrerpolicy=no-referrer>",
        "<link rel=prefetch as=script href=a referrerpolicy=no-referrer>",
        "<script src=a referrerpolicy=no-referrer></script>",
        "<script type=module src=a referrerpolicy=no-referrer></script>",
        "<img src=a referrerpolicy=no-referrer>",
        "<img srcset='a 1x' referrerpolicy=no-referrer>",
        "<picture><source srcset='a 1x'><img src=b referrerpolicy=no-referrer></picture>",
        "<iframe src=a referrerpolicy=no-referrer></iframe>",
    ] {
        let referrer: Vec<_> = all(html(), element.as_bytes(), 64)
            .iter()
            .map(|need| need.referrer)
            .collect();
        assert_eq!(referrer, [Some(Referrer::None)], "{element}");
    }
}

#[test]
fn element_has_the_nonce_of_its_policy() {
    let has_nonce = |html: &str, nonce: Option<&str>| {
        let scanner = Scanner::html("http://example.test/").unwrap();
        let mut scanner = scanner.nonce(nonce.map(str::to_owned));
        let mut needs = Vec::new();
        // Each byte alone.
        html.bytes()
            .for_each(|byte| scanner.feed(&[byte], &mut needs));
        scanner.finish(&mut needs);
        assert_eq!(needs.len(), 1, "{html}");
        needs[0].has_nonce
    };
    for html in [
        "<script nonce=Ab+/= src=a.js></script>",
        "<script type=module src=a.js nonce='Ab+/='></script>",
        "<link rel=stylesheet nonce=Ab+/= href=a.css>",
        "<link rel=preload as=script nonce=Ab+/= href=a.js>",
        "<link rel=modulepreload nonce=Ab+/= href=a.js>",
    ] {
        assert!(has_nonce(html, Some("Ab+/=")), "{html}");
        assert!(!has_nonce(html, Some("ab+/=")), "{html}");
        assert!(!has_nonce(html, None), "{html}");
    }
    for html in [
        "<script nonce=b src=a.js></script>",
        "<script src=a.js></script><script nonce=a></script>",
        "<img nonce=a src=a.png>",
        "<link rel=preload as=image nonce=a href=a.png>",
        // Open markup of an attacker swallows the next element.
        "<script src=//evil.test/ <script nonce=a src=b.js></script>",
        "<script src=//evil.test/ x=\"<script \" nonce=a></script>",
        "<script src=//evil.test/ nonce=a src=b.js></script>",
    ] {
        assert!(!has_nonce(html, Some("a")), "{html}");
    }
}
