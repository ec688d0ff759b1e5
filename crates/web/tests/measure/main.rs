//! Page loads, measured: by Chromium and by the loader, on pages with everything that pages have.
//!
//! Needs chromium and firefox-esr; behind a link, root or user namespaces and /dev/net/tun.

mod browsers;
mod faults;
mod files;
#[path = "../programs/mod.rs"]
mod programs;

use tandem_web::har::Entry;
use tandem_web::measure::{Client, Listen, Outcome, Served};
use tandem_web::origin::Protocols;
use tandem_web::page::Page;

const MEASURE: &str = env!("CARGO_BIN_EXE_tandem-measure");

/// Redirects, frames, imports, fonts, srcset, scripts that load scripts, errors, nothing at all; on
/// three hosts.
const EVERYTHING: &str = r#"{"name": "everything", "hosts": ["a", "b", "c"], "resources": [
    ["/", 0, "text/html", "html", 10, null, 302],
    ["/home?a=1&b=2", 0, "text/html", "html", 30000, 0],
    ["/a.css", 0, "text/css", "css", 3000, 1],
    ["/b.css", 1, "text/css", "css", 700, 2],
    ["/f.woff2", 1, "font/woff2", "font", 5000, 3],
    ["/g.woff2", 2, "font/woff2", "font", 900, 3],
    ["/bg.png", 0, "image/png", "image", 800, 2],
    ["/bg2.png", 2, "image/png", "image", 801, 2],
    ["/a.js", 2, "text/javascript", "script", 4000, 1],
    ["/b.js", 0, "text/javascript", "script", 900, 8],
    ["/late.css", 0, "text/css", "css", 300, 9],
    ["/late.png", 1, "image/png", "image", 300, 10],
    ["/data", 1, "application/json", "fetch", 2000, 9],
    ["/beacon", 2, "text/plain", "fetch", 0, 9, 204],
    ["/pixel", 1, "image/gif", "image", 0, 9, 204],
    ["/frame", 1, "text/html", "html", 1500, 1],
    ["/i.svg", 1, "image/svg+xml", "image", 300, 15],
    ["/c.js", 1, "text/javascript", "script", 200, 15],
    ["/gone.png", 0, "image/png", "image", 70, 1, 404],
    ["/gone.css", 0, "text/css", "css", 90, 1, 404],
    ["/none.png", 0, "image/png", "image", 0, 1, 204],
    ["/moved.png", 2, "image/png", "image", 0, 1, 301],
    ["/there.png", 1, "image/webp", "image", 12000, 21],
    ["/new.webp", 1, "image/webp", "image", 900, 1],
    ["/x.jpg", 2, "image/jpeg", "image", 40, 1],
    ["/script.html", 0, "text/html", "html", 400, 9]
]}"#;

fn everything() -> Page {
    Page::from_json("", EVERYTHING.as_bytes()).expect("valid")
}

fn listen(shards: usize, tls: Option<Protocols>) -> Listen {
    Listen {
        address: ([127, 0, 0, 1], 0).into(),
        shards,
        authorities: Vec::new(),
        tls,
    }
}

async fn load(client: &Client, served: &Served) -> Outcome {
    let outcome = client.load(served.site()).await.expect("loads");
    assert!(outcome.is_complete(), "{:?}", outcome.faults);
    assert_eq!(outcome.requests, served.site().page().resources.len());
    check_times(&outcome);
    outcome
}

/// Phases without gaps or negative spans, inside the times of the whole.
fn check_times(outcome: &Outcome) {
    let Outcome {
        time_on_wire_ms,
        page_load_ms,
        first_byte_ms,
        har,
        ..
    } = outcome;
    let last = har.entries.iter().map(Entry::end).fold(0.0, f64::max);
    assert!(*first_byte_ms > 0.0 && first_byte_ms <= page_load_ms);
    assert!(*time_on_wire_ms > 0.0 && *time_on_wire_ms <= last + 0.001);
    for entry in &har.entries {
        let t = &entry.timings;
        let phases = [
            t.blocked,
            t.dns,
            t.connect,
            t.ssl,
            Some(t.send),
            Some(t.wait),
            Some(t.receive),
        ];
        assert!(
            phases.iter().flatten().all(|&phase| phase >= 0.0),
            "{}: {t:?}",
            entry.url
        );
        assert!(t.ssl.unwrap_or(0.0) <= t.connect.unwrap_or(0.0) + 0.001);
    }
}

#[test]
fn program_writes_completions() {
    for (shell, part) in [
        ("bash", "complete -F"),
        ("fish", "complete -c tandem-measure"),
    ] {
        let written = std::process::Command::new(MEASURE)
            .args(["completions", shell])
            .output();
        let written = written.expect("it starts");
        let text = String::from_utf8(written.stdout).expect("text");
        assert!(written.status.success() && text.contains(part), "{shell}");
        assert!(text.contains("serve") && text.contains("listen"), "{shell}");
    }
}
