//! The cost of the scan on its way through the gateway, for pages of much text, pages of much
//! markup, scripts and style sheets.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::fmt::Write;
use std::hint::black_box;
use tandem_preload::Scanner;

/// Bytes of one read, as a body arrives.
const READ: usize = 16_384;
const PAGE: &str = "https://www.example.org/news/index.html";
const TEXT: &str = "The committee met on Tuesday, as it has done every week since spring, to look at what the flood had left \
    of the lower town &amp; its bridges; nobody knew who would pay. ";

/// An article: long paragraphs, a few links, now and then an image.
fn article() -> String {
    let mut page =
        String::from("<!DOCTYPE html><html><head><link rel=stylesheet href=/a.css></head><body>\n");
    for part in 0..400 {
        let _ = writeln!(
            page,
            "<p class=\"body\">{TEXT}{TEXT}<a href=\"/more/{part}.html\">More</a> {TEXT}</p>"
        );
        if part % 10 == 0 {
            let _ = writeln!(page, "<img src=\"/img/{part}.jpg\" alt=\"\" width=\"640\">");
        }
    }
    page
}

/// A list made by components: short texts in many elements with many attributes.
fn markup() -> String {
    let mut page =
        String::from("<!DOCTYPE html><html><head><link rel=stylesheet href=/a.css></head><body>\n");
    for part in 0..400 {
        let _ = write!(
            page,
            "<div class=\"flex items-center justify-between px-4 py-2 md:px-8\" data-id=\"{part}\" role=\"listitem\">\
             <a class=\"text-sm font-medium text-gray-900 hover:underline\" href=\"/item/{part}?ref=list&amp;pos={part}\">\
             <img class=\"h-10 w-10 rounded-full\" src=\"/img/{part}.jpg\" srcset=\"/img/{part}.jpg 1x, /img/{part}@2x.jpg 2x\" \
             alt=\"Item {part}\" loading=\"lazy\"><span class=\"truncate\">Item {part}</span></a>\
             <span class=\"badge\" style=\"color:#333;width:40px\">{part}</span></div>"
        );
    }
    page
}

/// A page that is mostly data in a script.
fn script() -> String {
    let data = "{\"id\":4711,\"name\":\"Item\",\"html\":\"<b>x<\\/b>\",\"tags\":[\"a\",\"b\"]},"
        .repeat(4_000);
    format!(
        "<html><head><script>window.__DATA__=[{data}]</script></head><body><img src=a.png></body></html>"
    )
}

/// A minified style sheet of a framework.
fn sheet() -> String {
    (0..3_000).fold(String::new(), |mut sheet, part| {
        let _ = write!(
            sheet,
            ".col-{part}{{flex:0 0 auto;width:{part}px;padding-right:calc(var(--g)*.5);margin:0 auto}}.btn-{part}:hover{{color:#fff}}"
        );
        if part % 50 == 0 {
            let _ = write!(sheet, ".icon-{part}{{background:url(\"../img/{part}.png\") 0 0 no-repeat}}");
        }
        sheet
    })
}

fn scan(criterion: &mut Criterion) {
    let cases = [
        ("article", article(), false),
        ("markup", markup(), false),
        ("script", script(), false),
        ("sheet", sheet(), true),
    ];
    let mut group = criterion.benchmark_group("scan");
    for (name, text, css) in cases {
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(name, |bench| {
            bench.iter(|| {
                let scanner = if css {
                    Scanner::css(PAGE)
                } else {
                    Scanner::html(PAGE)
                };
                let mut scanner = scanner.expect("an https URL");
                let mut found = Vec::new();
                for read in text.as_bytes().chunks(READ) {
                    scanner.feed(black_box(read), &mut found);
                }
                scanner.finish(&mut found);
                found.len()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, scan);
criterion_main!(benches);
