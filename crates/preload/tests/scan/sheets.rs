//! Style sheets: imports, fonts and images.

use tandem_preload::Referrer;

use crate::{PAGE, SHEET, all, css, html, page, sheet};

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
