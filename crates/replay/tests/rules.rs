//! The rules that the documented replay follows, each on a log of a few lines with its counts
//! worked out by hand.

use tandem_replay::log::{AccessLog, Filter};
use tandem_replay::{Algorithm, Options, Tally, replay_basic};

const AGENT: &str = "Mozilla/5.0 Firefox/115.0";
const HOUR: i64 = 3_600_000;

/// A line of the Combined Log Format, on 1 July 2024, of one browser.
fn line(host: &str, time: &str, request: &str, status: u16, size: &str, referer: &str) -> String {
    format!(
        r#"{host} - - [01/Jul/2024:{time} +0000] "{request} HTTP/1.1" {status} {size} "{referer}" "{AGENT}""#
    )
}

/// A GET of client `h`, answered 200 with 100 bytes.
fn get(time: &str, url: &str, referer: &str) -> String {
    line("h", time, &format!("GET {url}"), 200, "100", referer)
}

fn log(lines: &[String]) -> AccessLog {
    let mut log = AccessLog::default();
    lines
        .iter()
        .for_each(|line| log.push_line(line.as_bytes(), Filter::default()));
    log.finish();
    log
}

fn run(lines: &[String], options: &Options) -> Tally {
    replay_basic(&log(lines), options, HOUR, |_| {})
}

fn options() -> Options {
    Options {
        threshold: 0.5,
        ..Options::default()
    }
}

/// Pages, assets, pushes, hits, mistakes.
fn counts(tally: &Tally) -> [u64; 5] {
    [
        tally.pages,
        tally.assets,
        tally.pushes,
        tally.hits,
        tally.mistakes,
    ]
}

/// Client `a` teaches that `/` needs two assets; then `more` happens.
fn after_lesson(more: &[String]) -> Vec<String> {
    let teach = ["/", "/a.css", "/b.js"]
        .map(|url| line("a", "08:00:00", &format!("GET {url}"), 200, "100", "-"));
    teach.into_iter().chain(more.iter().cloned()).collect()
}

#[test]
fn a_hit_and_a_mistake() {
    let tally = run(
        &after_lesson(&[get("09:00:00", "/", "-"), get("09:00:00", "/a.css", "/")]),
        &options(),
    );
    assert_eq!((counts(&tally), tally.sessions), ([2, 3, 2, 1, 1], 2));
    // 1 + (1 - 2 / 2) / 3, and the mistake's mean size.
    assert!(
        (tally.push_cost(0.5) - 1.0).abs() < 1e-12
            && (tally.mean_mistake_bytes() - 100.0).abs() < 1e-12
    );
}

#[test]
fn replay_counts_hits_of_any_method_and_answer() {
    for (request, status) in [
        ("GET /a.css", 304),
        ("HEAD /a.css", 200),
        ("POST /a.css", 404),
        ("GET /a.css", 206),
    ] {
        let more = [
            get("09:00:00", "/", "-"),
            line("h", "09:00:00", request, status, "-", "/"),
        ];
        let tally = run(&after_lesson(&more), &options());
        assert_eq!(counts(&tally), [2, 3, 2, 1, 1], "{request} {status}");
        assert_eq!(tally.hits_not_modified, u64::from(status == 304));
        assert_eq!(tally.hits_without_transfer, u64::from(status == 304));
        // 1 + (1 - 2 / 2) / 3 or 1 + (2 - 2 / 2) / 3.
        let strict = 1.0 + f64::from(u8::from(status == 304)) / 3.0;
        assert!((tally.strict_push_cost(0.5) - strict).abs() < 1e-12);
    }
}

#[test]
fn only_a_fresh_get_teaches_an_asset() {
    for (request, status, pushes) in [
        ("GET /x.js", 200, 1),
        ("HEAD /x.js", 200, 0),
        ("POST /x.js", 200, 0),
        ("GET /x.js", 304, 0),
        ("GET /x.js", 206, 0),
    ] {
        let lines = [
            line("a", "08:00:00", "GET /", 200, "1", "-"),
            line("a", "08:00:00", request, status, "-", "/"),
            get("09:00:00", "/", "-"),
        ];
        assert_eq!(run(&lines, &options()).pushes, pushes, "{request} {status}");
    }
}

#[test]
fn a_page_teaches_by_its_status_not_by_its_method() {
    for (request, status, pushes) in [
        ("GET /", 200, 1),
        ("POST /", 200, 1),
        ("HEAD /", 301, 1),
        ("GET /", 302, 1),
        ("GET /", 303, 0),
        ("GET /", 304, 0),
        ("GET /", 404, 0),
    ] {
        let lines = [
            line("a", "08:00:00", request, status, "-", "-"),
            line("a", "08:00:00", "GET /x.js", 200, "1", "/"),
            get("09:00:00", "/", "-"),
        ];
        assert_eq!(run(&lines, &options()).pushes, pushes, "{request} {status}");
    }
}

#[test]
fn a_pause_must_be_longer_than_its_limit() {
    // An unknown URL starts a load after more than one second, a known asset after more than
    // twenty.
    for (times, pages) in [(["09:00:00", "09:00:01"], 1), (["09:00:00", "09:00:02"], 2)] {
        assert_eq!(
            run(
                &[get(times[0], "/", "-"), get(times[1], "/new", "-")],
                &options()
            )
            .pages,
            pages,
            "{times:?}"
        );
    }
    for (time, pages) in [("09:00:20", 2), ("09:00:21", 3)] {
        let tally = run(
            &after_lesson(&[get("09:00:00", "/", "-"), get(time, "/a.css", "/")]),
            &options(),
        );
        assert_eq!(
            (tally.pages, tally.hits),
            (pages, 1),
            "{time}: a hit either way"
        );
        assert_eq!(
            (tally.delayed_hits, tally.hits_on_pages),
            (pages - 2, pages - 2)
        );
    }
}

#[test]
fn replay_splits_sessions_by_time_address_and_agent() {
    let at = |time: &str| {
        run(
            &after_lesson(&[get("09:00:00", "/", "-"), get(time, "/a.css", "/")]),
            &options(),
        )
    };
    assert_eq!((at("10:00:00").sessions, at("10:00:00").hits), (2, 1));
    assert_eq!(
        (
            at("10:00:01").sessions,
            at("10:00:01").hits,
            at("10:00:01").mistakes
        ),
        (3, 0, 2)
    );
    let other = get("09:00:00", "/a.css", "/").replace("Firefox/115.0", "Firefox/116.0");
    let tally = run(
        &after_lesson(&[get("09:00:00", "/", "-"), other]),
        &options(),
    );
    assert_eq!((tally.sessions, tally.hits), (3, 0));
}

#[test]
fn order_puts_pages_before_their_assets() {
    let lines = [
        get("09:00:00", "/c.png", "http://site.example:8080/a.css?x"),
        get("09:00:00", "/a.css?x", "https://other.example/#part"),
        line("v6", "09:00:00", "GET /z", 200, "1", "-"),
        get("09:00:00", "/", "http://elsewhere.example/"),
        get("09:00:00", "/self", "http://site.example/self"),
    ];
    let order: Vec<u32> = log(&lines)
        .records
        .iter()
        .map(|record| record.line)
        .collect();
    // Roots: /self, whose Referer is itself. The Referer of / is its own URL. The other client
    // keeps its place.
    assert_eq!(order, [3, 4, 2, 1, 0]);
}

#[test]
fn log_orders_lines_of_different_zones() {
    let at = |time: &str, url: &str| {
        get("00:00:00", url, "-").replace("01/Jul/2024:00:00:00 +0000", time)
    };
    // The night in which clocks were set back: 02:59 of summer is before 02:01 of winter.
    let lines = [
        at("27/Oct/2024:02:01:00 +0100", "/2"),
        at("27/Oct/2024:02:59:30 +0200", "/1"),
        at("26/Oct/2024:18:00:00 -0700", "/3"),
    ];
    let log = log(&lines);
    let urls: Vec<&[u8]> = log
        .records
        .iter()
        .map(|record| log.urls.name(record.url))
        .collect();
    assert_eq!(urls, [&b"/1"[..], b"/3", b"/2"]);
    assert_eq!(log.records[2].time - log.records[0].time, 90_000);
}

#[test]
fn lines_that_do_not_count_leave_no_trace() {
    let favicon = ["/favicon.ico", "/x/favicon.ico?v=2", "http://h/favicon.ico"]
        .map(|url| get("09:30:00", url, "-"));
    let robot = get("09:30:00", "/a.css", "-").replace(AGENT, "Mozilla/5.0 Firefox/1 (a bot)");
    let empty = get("09:30:00", "/a.css", "-").replace(AGENT, "-");
    let ignored: Vec<String> = favicon.into_iter().chain([robot, empty]).collect();
    // Were one of the favicons considered, it would keep the session alive beyond its hour.
    let lines: Vec<String> = after_lesson(&[get("09:00:00", "/", "-")])
        .into_iter()
        .chain(ignored)
        .chain([get("10:00:01", "/a.css", "-")])
        .collect();
    let tally = run(&lines, &options());
    assert_eq!(
        (tally.ignored, tally.considered, tally.sessions, tally.hits),
        (5, 5, 3, 0)
    );
}

#[test]
fn log_detects_formats_line_by_line() {
    let mut log = AccessLog::default();
    let lines: [&[u8]; 10] = [
        b"2001:db8::1 - - [01/Jul/2024:09:00:00 +0000] \"GET /caf\xe9 HTTP/1.0\" 200 -\r",
        b"www.example:443 2001:db8::1 - bob [01/Jul/2024:09:00:00 +0000] \"GET /b HTTP/2.0\" 200 18446744073 \"-\" \"Firefox/1\" 0.2\r",
        b"h - - [01/Jul/2024:09:00:00 +0000] \"GET http://h/a b?c=%20\\\"d HTTP/1.1\" 404 5 \"\" \"\"",
        b"Jul 01 09:00:00.123 7f Request: example.com/",
        b"h - - [01/Jul/2024:09:00:00 +0000] \"-\" 408 - \"-\" \"-\"",
        b"h - - [01/Jul/2024:09:00:00 +0000] \"GET  HTTP/1.1\" 400 0",
        b"h - - [31/Foo/2024:09:00:00 +0000] \"GET / HTTP/1.1\" 200 1",
        b"",
        b"h - - [01/Jul/2024:09:00:00 +0000] \"GET /old\" 200 7",
        b"h - - [01/Jul/2024:09:00:00 +0000] \"get /lower HTTP/1.1\" 200 7",
    ];
    lines
        .iter()
        .for_each(|line| log.push_line(line, Filter::default()));
    log.finish();
    assert_eq!((log.lines, log.unparsable), (10, 5));
    let of = |line: u32| {
        log.records
            .iter()
            .find(|record| record.line == line)
            .copied()
            .expect("a parsed line")
    };
    let url = |line| log.urls.name(of(line).url);
    assert_eq!(
        (url(0), url(1), url(2)),
        (
            &b"/caf\xe9"[..],
            &b"/b"[..],
            &b"http://h/a b?c=%20\\\"d"[..]
        )
    );
    assert_eq!(
        (url(8), of(0).size, of(1).size),
        (&b"/old"[..], 0, 18_446_744_073)
    );
    // The same address with and without an agent is two users; a line without the field is a known
    // browser, an empty one none.
    assert_ne!(of(0).user, of(1).user);
    let known = |line| log.agents[of(line).agent as usize].known;
    assert_eq!(
        (known(0), known(1), known(2), known(8)),
        (true, true, false, true)
    );
}

#[test]
fn sizes_average_and_limits_compare_with_the_mean() {
    let teach = |time: &str, size: &str| {
        [
            line("a", time, "GET /", 200, "1", "-"),
            line("a", time, "GET /a.css", 200, size, "/"),
        ]
    };
    let lines: Vec<String> = [teach("06:00:00", "-"), teach("07:30:00", "3000")].concat();
    let with = |max_size| {
        let lines: Vec<String> = lines
            .iter()
            .cloned()
            .chain([get("09:00:00", "/", "-")])
            .collect();
        // The second lesson's client is pushed the asset too, at its mean size of then: 0.
        run(
            &lines,
            &Options {
                max_size: Some(max_size),
                ..options()
            },
        )
    };
    assert_eq!((with(1499).pushes, with(1500).pushes), (1, 2));
    assert!((with(1500).mistake_bytes - 1500.0).abs() < 1e-9);
}

#[test]
fn history_holds_requests_of_ended_sessions() {
    let visit = |time: &str, asset: bool| -> Vec<String> {
        let page = get(time, "/", "-");
        if asset {
            vec![page, get(time, "/a.css", "/")]
        } else {
            vec![page]
        }
    };
    let lines: Vec<String> = [
        after_lesson(&[]),
        visit("09:00:00", true),
        visit("10:30:00", false),
        visit("12:00:00", false),
    ]
    .concat();
    let with = |keep_history| {
        run(
            &lines,
            &Options {
                keep_history,
                threshold: 0.1,
                ..options()
            },
        )
    };
    // Three visits, two known assets each; in the second and third one of them is history.
    assert_eq!((with(false).pushes, with(true).pushes), (6, 4));
}

#[test]
fn the_best_come_first_and_equal_ones_by_url() {
    let teach = |host: &str, urls: &[&str]| -> Vec<String> {
        urls.iter()
            .map(|url| line(host, "08:00:00", &format!("GET {url}"), 200, "100", "-"))
            .collect()
    };
    let mut lines = [
        teach("a", &["/", "/z.js", "/b.js", "/B.js"]),
        teach("b", &["/", "/z.js"]),
    ]
    .concat();
    lines.push(get("09:00:00", "/", "-"));
    for (limit, want) in [
        (1, &["/z.js"][..]),
        (2, &["/z.js", "/B.js"]),
        (3, &["/z.js", "/B.js", "/b.js"]),
    ] {
        let log = log(&lines);
        let mut pushed = Vec::new();
        let options = Options {
            max_assets: Some(limit),
            ..options()
        };
        replay_basic(&log, &options, HOUR, |event| {
            if let tandem_replay::run::Event::Push { line: 6, asset, .. } = event {
                pushed.push(String::from_utf8_lossy(log.urls.name(asset)).into_owned());
            }
        });
        assert_eq!(pushed, want);
    }
}

#[test]
fn duplicate_ends_the_learning_of_its_load() {
    let visit = |host: &str, urls: &[&str]| -> Vec<String> {
        urls.iter()
            .map(|url| line(host, "08:00:00", &format!("GET {url}"), 200, "100", "-"))
            .collect()
    };
    let pushes = |urls: &[&str]| {
        let mut lines = visit("a", urls);
        lines.push(get("09:00:00", "/", "-"));
        run(&lines, &options()).pushes
    };
    assert_eq!(pushes(&["/", "/a", "/b"]), 2);
    assert_eq!(pushes(&["/", "/a", "/a", "/b"]), 1);
    assert_eq!(pushes(&["/", "/", "/a", "/b"]), 0);
}

#[test]
fn probabilities_of_the_three_algorithms() {
    // In one of two loads; the second load's session had the asset before its page.
    for (algorithm, page_later, want) in [
        (Algorithm::Basic, 0, 0.5),
        (Algorithm::BasicLess, 0, 0.25),
        (Algorithm::BasicMore, 0, 0.5),
        (Algorithm::BasicMore, 1, 1.0),
        (Algorithm::BasicMore, 4, 0.625),
    ] {
        assert!(
            (algorithm.probability(1, 2, 1, page_later) - want).abs() < 1e-12,
            "{algorithm} {page_later}"
        );
    }
}
