//! Tests of submissions with slow clients, with servers that hang or redirect, and with another
//! server than before.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use tandem_submit::problem::Document;
use tandem_submit::submission::State;

use crate::harness::{Answer, Client, Gate};
use crate::submission_server::{Files, SubmissionServer, TOKEN, sha256};
use crate::submissions::{exchange, get, options, post, start, wait_for_answer};

const OTHER_TOKEN: &str = "token-of-the-drone";

/// Returns the slug of a problem document.
fn slug(answer: &Answer) -> &'static str {
    let document = Document::read(&answer.body).unwrap();
    document.problem().unwrap().slug()
}

/// Returns the head of a POST with a body of this length, which is not sent.
fn head(number: u8, length: usize) -> String {
    let announced = format!("Content-Length: {length}");
    post("/submissions", number, "", "").replace("Content-Length: 0", &announced)
}

fn pause() {
    std::thread::sleep(Duration::from_millis(10));
}

#[test]
fn slow_uploads_leave_room_for_other_clients() {
    const LARGE: usize = 40 << 20;
    let rights = format!(
        "max-bytes = 67108864\n[[client]]\nname = \"drone\"\ntoken-sha256 = \"{}\"\n",
        HEXLOWER.encode(&sha256(OTHER_TOKEN.as_bytes()))
    );
    let (files, server) = (Files::new("submit-slow", &rights), SubmissionServer::new());
    let mut options = options(&files, &server.url(""));
    options.workers = Some(1);
    // A slow disk needs more than the usual time for the large body.
    let patience = Duration::from_secs(120);
    options.submit_wait = Some("120s".parse().unwrap());
    options.response_timeout = Some("120s".parse().unwrap());
    let gateway = start(options);
    let mut silent = Client::to(gateway.address);
    silent.send(head(1, 64 << 20));
    let mut slow = Client::to(gateway.address);
    slow.send(head(2, LARGE));
    slow.stream
        .get_ref()
        .set_read_timeout(Some(patience))
        .unwrap();
    slow.send(vec![b'x'; LARGE - 1]);
    // The slow body exceeds the share of its client, and takes the place for one such body.
    let second = exchange(&gateway, "POST", &head(3, LARGE));
    assert_eq!((second.status, slug(&second)), (503, "busy"));
    let small = post("/submissions", 4, "", "a report").replace(TOKEN, OTHER_TOKEN);
    assert_eq!(exchange(&gateway, "POST", &small).status, 201);
    slow.send("x");
    assert_eq!(
        slow.answer("POST").body,
        format!("took {LARGE} bytes").as_bytes()
    );
}

#[test]
fn used_quota_is_noticed_before_the_body() {
    let files = Files::new("submit-early", "bytes-per-day = 10\n");
    let server = SubmissionServer::new();
    let gateway = start(options(&files, &server.url("")));
    // The body does not arrive.
    let early = exchange(&gateway, "POST", &head(1, 11));
    assert_eq!((early.status, slug(&early)), (429, "over-quota"));
    let request = post("/submissions", 2, "", "a report");
    assert_eq!(exchange(&gateway, "POST", &request).status, 201);
    // A repetition needs no quota.
    assert_eq!(exchange(&gateway, "POST", &request).status, 201);
    assert_eq!(server.requests(), 1);
}

#[test]
fn redirects_and_errors_are_repeated() {
    let files = Files::new("submit-redirect", "");
    let server = SubmissionServer::failing_first(vec![307, 500]);
    let gateway = start(options(&files, &server.url("")));
    let answer = exchange(&gateway, "POST", &post("/submissions", 1, "", "a report"));
    assert_eq!(answer.status, 202);
    let location = answer.field("location").unwrap();
    assert_ne!(location, "/else");
    let state = wait_for_answer(&gateway, location, 1);
    assert_eq!((state.state, state.status), (State::Answered, Some(201)));
    assert_eq!((server.requests(), server.processed().len()), (3, 1));
}

#[test]
fn redirect_is_not_passed_on_at_the_end() {
    let files = Files::new("submit-redirected", "");
    let server = SubmissionServer::failing_first(vec![302; 9]);
    let mut options = options(&files, &server.url(""));
    options.submit_retry = Some("1ms".parse().unwrap());
    let gateway = start(options);
    let answer = exchange(&gateway, "POST", &post("/submissions", 1, "", "a report"));
    let location = answer.field("location").unwrap();
    let state = wait_for_answer(&gateway, location, 1);
    assert_eq!(
        (state.state, state.status),
        (State::NotDelivered, Some(302))
    );
    let answer = get(&gateway, &format!("{location}/answer"), 1);
    assert_eq!((answer.status, slug(&answer)), (502, "not-delivered"));
    assert_eq!(answer.field("location"), Some(location));
    assert!(server.processed().is_empty());
}

#[test]
fn deliveries_to_a_hanging_server_are_bounded() {
    const COUNT: u8 = 120;
    let (files, gate) = (Files::new("submit-hang", ""), Arc::<Gate>::default());
    let server = SubmissionServer::waiting(&gate);
    let mut options = options(&files, &server.url(""));
    options.workers = Some(1);
    // The server answers after all submissions, each of which is written to the disk.
    options.response_timeout = Some("10m".parse().unwrap());
    let gateway = start(options);
    let mut client = Client::to(gateway.address);
    for number in 0..COUNT {
        let request = post(
            "/submissions",
            number,
            "Prefer: respond-async\r\n",
            "a report",
        );
        client
            .stream
            .get_mut()
            .write_all(request.as_bytes())
            .unwrap();
        assert_eq!(client.answer("POST").status, 202);
    }
    // 48 are delivered directly, and 16 from the store. The others wait in the store.
    while server.requests() < 64 {
        pause();
    }
    assert_eq!(server.requests(), 64);
    gate.open();
    while server.processed().len() < usize::from(COUNT) {
        pause();
    }
    // The server saw each of them once: none of them waited for a connection until its time limit.
    assert_eq!(server.requests(), usize::from(COUNT));
}

#[test]
fn submissions_stay_with_their_server() {
    let files = Files::new("submit-server", "");
    let first = SubmissionServer::failing_first(vec![503]);
    let second = SubmissionServer::failing_first(vec![503]);
    let is_async = "Prefer: respond-async\r\n";
    let gateway = start(options(&files, &first.url("/in")));
    let request = post("/submissions", 1, is_async, "for the first");
    assert_eq!(exchange(&gateway, "POST", &request).status, 202);
    while first.requests() < 1 {
        pause();
    }
    drop(gateway);
    // The second attempt at the other submission comes from the store, as the first one would.
    let gateway = start(options(&files, &second.url("/in")));
    let request = post("/submissions", 2, is_async, "for the second");
    let answer = exchange(&gateway, "POST", &request);
    wait_for_answer(&gateway, answer.field("location").unwrap(), 2);
    assert_eq!((second.requests(), first.requests()), (2, 1));
    drop(gateway);
    let _gateway = start(options(&files, &first.url("/in")));
    while first.processed().is_empty() {
        pause();
    }
    assert_eq!(first.processed()[0].body, b"for the first");
    assert_eq!(second.processed()[0].body, b"for the second");
}

#[test]
fn full_store_refuses_new_submissions_only() {
    let rights = "per-day = 9\nmax-bytes = 100000\n";
    let (files, gate) = (Files::new("submit-full", rights), Arc::<Gate>::default());
    let server = SubmissionServer::waiting(&gate);
    let mut options = options(&files, &server.url(""));
    options.submit_max_stored = Some("120000".parse().unwrap());
    let gateway = start(options);
    let body = "x".repeat(50_000);
    let request = |number| post("/submissions", number, "Prefer: respond-async\r\n", &body);
    let (first, second) = (request(1), request(2));
    let location = |answer: &Answer| answer.field("location").unwrap().to_owned();
    let stored = exchange(&gateway, "POST", &first);
    let also_stored = exchange(&gateway, "POST", &second);
    assert_eq!((stored.status, also_stored.status), (202, 202));
    // It is refused before its body arrives. The repetition of a stored one is not.
    let full = exchange(&gateway, "POST", &head(3, 50_000));
    assert_eq!((full.status, slug(&full)), (503, "store-full"));
    assert_eq!(full.field("retry-after"), Some("60"));
    let again = exchange(&gateway, "POST", &first);
    assert_eq!((again.status, location(&again)), (202, location(&stored)));
    gate.open();
    for (number, answer) in [(1, &stored), (2, &also_stored)] {
        let state = wait_for_answer(&gateway, &location(answer), number);
        assert_eq!(state.status, Some(201));
    }
    assert_eq!(exchange(&gateway, "POST", &request(3)).status, 202);
    while server.processed().len() < 3 {
        pause();
    }
}
