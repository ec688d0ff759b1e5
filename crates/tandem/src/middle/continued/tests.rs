//! Tests of the stage before origins that follow a script.

mod moving;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use tandem_http::{Fields, Priority, Scheme};
use tokio::time::Instant;

use super::download::{PAUSES, PROGRESS};
use super::rest_request::{LIMIT, LOOK};
use super::*;
use crate::exchange::PushedPart;
use crate::priority::Precedence;

/// A response of the script.
#[derive(Default)]
struct Answer {
    parts: Vec<Part>,
    end: End,
}

/// The end of a response.
#[derive(Default)]
enum End {
    #[default]
    Regular,
    Error(Error),
    /// A reply that neither goes on nor ends.
    Never,
}

/// A stage that answers in turn, and remembers the exchanges.
#[derive(Default)]
struct Script {
    answers: RefCell<VecDeque<Answer>>,
    asked: RefCell<Vec<Exchange>>,
}

impl Stage for Script {
    fn call(&self, exchange: Exchange) -> Reply {
        self.asked.borrow_mut().push(exchange);
        let answer = self.answers.borrow_mut().pop_front();
        let answer = answer.expect("another request");
        Reply::generate(|mut sink| async move {
            for part in answer.parts {
                sink.send(part).await;
            }
            match answer.end {
                End::Regular => Ok(()),
                End::Error(error) => Err(error),
                End::Never => std::future::pending().await,
            }
        })
    }
}

const FILE: &[u8] = b"the whole file";

fn data(bytes: &[u8]) -> Part {
    Part::Data(Bytes::copy_from_slice(bytes))
}

fn head(status: u16, fields: &[(&str, &str)]) -> Part {
    let fields: Fields = fields.iter().copied().collect();
    Part::Head(ResponseHead { status, fields })
}

fn reset() -> Error {
    Error::new(Kind::Reset, Side::Peer, "reset")
}

/// Returns the first bytes of the file, and a reset.
fn first(count: usize) -> Answer {
    let length = FILE.len().to_string();
    let fields = [("etag", "\"1\""), ("content-length", &length)];
    Answer {
        parts: vec![head(200, &fields), data(&FILE[..count])],
        end: End::Error(reset()),
    }
}

/// Returns the head of the rest of the file.
fn rest_head(from: usize) -> Part {
    let range = format!("bytes {from}-{}/{}", FILE.len() - 1, FILE.len());
    head(206, &[("etag", "\"1\""), ("content-range", &range)])
}

/// Returns the rest of the file.
fn rest(from: usize) -> Answer {
    Answer {
        parts: vec![rest_head(from), data(&FILE[from..])],
        end: End::Regular,
    }
}

fn failing(error: Error) -> Answer {
    Answer {
        parts: Vec::new(),
        end: End::Error(error),
    }
}

fn get() -> Exchange {
    Exchange::internal(RequestHead::get(Scheme::Http, "own.example", "/file"))
}

/// The parts that the reader got: the number of heads and of other parts, the body and the error.
#[derive(Debug, Default, PartialEq)]
struct Got {
    heads: usize,
    others: usize,
    body: Vec<u8>,
    error: Option<Error>,
}

/// Runs an exchange before a script. Returns the result and the exchanges behind the stage.
async fn run(
    exchange: Exchange,
    answers: impl IntoIterator<Item = Answer>,
) -> (Got, Vec<Exchange>) {
    let script = Rc::new(Script {
        answers: RefCell::new(answers.into_iter().collect()),
        ..Script::default()
    });
    let next = Rc::clone(&script) as _;
    let after_reload = AfterReload::default();
    let mut reply = Continue { next, after_reload }.call(exchange);
    let got = read(&mut reply).await;
    (got, script.asked.take())
}

/// Reads a reply to its end.
async fn read(reply: &mut Reply) -> Got {
    let mut got = Got::default();
    while let Some(part) = reply.part().await {
        match part {
            Ok(Part::Head(_)) => got.heads += 1,
            Ok(Part::Data(data)) => got.body.extend_from_slice(&data),
            Ok(_) => got.others += 1,
            Err(error) => got.error = Some(error),
        }
    }
    got
}

fn whole() -> Got {
    Got {
        heads: 1,
        body: FILE.to_vec(),
        ..Got::default()
    }
}

fn broken(count: usize) -> Got {
    Got {
        heads: 1,
        body: FILE[..count].to_vec(),
        error: Some(reset()),
        ..Got::default()
    }
}

#[tokio::test(start_paused = true)]
async fn broken_download_is_continued_as_the_same_exchange() {
    let exchange = Exchange {
        isolation: Isolation::new(b"user", b"key"),
        priority: SharedPriority::new(Precedence::request(Priority(5))),
        ..get()
    };
    let (isolation, priority) = (exchange.isolation.clone(), exchange.priority.clone());
    let mut second = rest(4);
    second.parts.pop();
    second.parts.push(data(&FILE[4..9]));
    second.end = End::Error(reset());
    let (got, asked) = run(exchange, [first(4), second, rest(9)]).await;
    assert_eq!(got, whole());
    let ranges: Vec<_> = asked
        .iter()
        .map(|it| it.request.fields.get("range"))
        .collect();
    assert_eq!(ranges, [None, Some(&b"bytes=4-"[..]), Some(b"bytes=9-")]);
    // A change of the priority reaches the present session.
    priority.set(Precedence::request(Priority(1)));
    for exchange in &asked {
        assert_eq!(exchange.isolation, isolation);
        assert_eq!(exchange.priority.get().priority, Priority(1));
    }
    assert_eq!(asked[2].request.fields.get("if-range"), Some(&b"\"1\""[..]));
}

#[tokio::test(start_paused = true)]
async fn own_range_of_the_browser_is_continued() {
    let mut exchange = get();
    exchange.request_mut().fields.push("range", "bytes=2-");
    let mut part = rest(2);
    part.parts = vec![rest_head(2), data(&FILE[2..5])];
    part.end = End::Error(reset());
    let (got, asked) = run(exchange, [part, rest(5)]).await;
    assert_eq!((got.body, got.error), (FILE[2..].to_vec(), None));
    assert_eq!(asked[1].request.fields.get("range"), Some(&b"bytes=5-"[..]));
}

#[tokio::test(start_paused = true)]
async fn own_range_is_continued_by_a_whole_response() {
    let mut exchange = get();
    exchange.request_mut().fields.push("range", "bytes=2-");
    let mut part = rest(2);
    part.parts = vec![rest_head(2), data(&FILE[2..5])];
    part.end = End::Error(reset());
    let fields = [("etag", "\"1\""), ("content-length", "14")];
    let again = Answer {
        parts: vec![head(200, &fields), data(FILE)],
        end: End::Regular,
    };
    let (got, _) = run(exchange, [part, again]).await;
    assert_eq!((got.body, got.error), (FILE[2..].to_vec(), None));
}

/// An origin may announce more bytes than it has.
#[tokio::test(start_paused = true)]
async fn download_ends_after_two_requests_without_bytes() {
    let empty = || Answer {
        parts: vec![rest_head(4)],
        end: End::Error(reset()),
    };
    let (got, asked) = run(get(), [first(4), empty(), empty(), rest(4)]).await;
    assert_eq!((got, asked.len()), (broken(4), 3));
}

#[tokio::test(start_paused = true)]
async fn other_response_is_never_mixed_in() {
    let other = |status, fields: &[(&str, &str)]| Answer {
        parts: vec![head(status, fields), data(b"other bytes")],
        end: End::Regular,
    };
    let range = ("content-range", "bytes 4-13/14");
    let length = ("content-length", "14");
    for answer in [
        other(200, &[("etag", "\"2\""), length]),
        other(200, &[length]),
        other(206, &[("etag", "\"2\""), range]),
        other(206, &[("etag", "W/\"1\""), range]),
        other(
            206,
            &[("etag", "\"1\""), ("content-range", "bytes 5-13/14")],
        ),
        other(206, &[("etag", "\"1\""), range, ("content-encoding", "br")]),
        other(416, &[("content-range", "bytes */14")]),
        other(412, &[]),
        other(503, &[]),
        Answer::default(),
    ] {
        let is_empty = answer.parts.is_empty();
        let more = is_empty.then(|| rest(4));
        let (got, asked) = run(get(), [first(4), answer].into_iter().chain(more)).await;
        match is_empty {
            true => assert_eq!(got, whole(), "a reply without a head is another break"),
            false => assert_eq!(got, broken(4), "{asked:?}"),
        }
    }
    let mut long = rest(4);
    long.parts.push(data(b"x"));
    let (got, _) = run(get(), [first(4), long]).await;
    assert_eq!(got.error.map(|error| error.kind), Some(Kind::Protocol));
    assert_eq!(got.body, FILE);
}

/// A relay has lost its gateway, which restarts.
#[tokio::test(start_paused = true)]
async fn error_page_of_a_relay_is_another_break() {
    let page = |status, told| Answer {
        parts: vec![head(status, &[("proxy-status", told)]), data(b"<h1>")],
        end: End::Regular,
    };
    let lost = "relay; error=connection_refused; details=\"x\"";
    for (status, told, expected) in [
        (502, lost, true),
        (504, "gateway; error=connection_timeout", true),
        (503, "relay; error=connection_limit_reached", true),
        (502, "relay; error=dns_error", true),
        (502, "gateway; error=dns_error", false),
        (502, "relay; error=connection_limit_reached", false),
        (502, "relay; error=http_protocol_error", false),
        (502, "cdn; error=connection_refused", false),
        (403, lost, false),
    ] {
        let more = expected.then(|| [page(status, told), rest(4)]);
        let answers = [first(4), page(status, told)].into_iter();
        let (got, asked) = run(get(), answers.chain(more.into_iter().flatten())).await;
        match expected {
            true => assert_eq!((got, asked.len()), (whole(), 4), "{told}"),
            false => assert_eq!((got, asked.len()), (broken(4), 2), "{told}"),
        }
    }
    // The pages are bounded too.
    let pages = (0..6).map(|_| page(502, lost));
    let (got, asked) = run(get(), [first(4)].into_iter().chain(pages)).await;
    assert_eq!((got, asked.len()), (broken(4), 7));
}

#[tokio::test(start_paused = true)]
async fn known_bytes_of_a_whole_response_are_dropped() {
    let length = FILE.len().to_string();
    let fields = [("etag", "\"1\""), ("content-length", &length)];
    let parts = [&FILE[..3], &FILE[3..6], &FILE[6..]].map(data);
    let answer = Answer {
        parts: [head(200, &fields)].into_iter().chain(parts).collect(),
        end: End::Regular,
    };
    let (got, _) = run(get(), [first(4), answer]).await;
    assert_eq!(got, whole());
}

#[tokio::test(start_paused = true)]
async fn refused_or_cancelled_download_is_not_repeated() {
    for (kind, side) in [
        (Kind::Forbidden, Side::Peer),
        (Kind::Unauthorized, Side::Peer),
        (Kind::Busy, Side::Local),
        (Kind::Protocol, Side::Peer),
        (Kind::Tls, Side::Origin),
        (Kind::Timeout, Side::Local),
        (Kind::Reset, Side::Client),
    ] {
        let error = Error::new(kind, side, "over");
        let mut answer = first(4);
        answer.end = End::Error(error.clone());
        let (got, asked) = run(get(), [answer]).await;
        assert_eq!(
            (got.error, asked.len()),
            (Some(error.clone()), 1),
            "{error:?}"
        );
        // The request for the rest is refused: the download ends with its own error.
        let (got, asked) = run(get(), [first(4), failing(error)]).await;
        assert_eq!((got, asked.len()), (broken(4), 2));
    }
}

#[tokio::test(start_paused = true)]
async fn rest_is_asked_again_of_a_busy_or_unknown_gateway() {
    for kind in [Kind::Busy, Kind::Full, Kind::Dns] {
        let busy = || Error::new(kind, Side::Peer, "busy");
        let (got, asked) = run(get(), [first(4), failing(busy()), rest(4)]).await;
        assert_eq!((got, asked.len()), (whole(), 3));
        let refusals = (0..6).map(|_| failing(busy()));
        let (got, asked) = run(get(), [first(4)].into_iter().chain(refusals)).await;
        assert_eq!((got, asked.len()), (broken(4), 7));
        // The first response is not repeated from its beginning.
        let mut answer = first(4);
        answer.end = End::Error(busy());
        let (got, asked) = run(get(), [answer]).await;
        assert_eq!((got.error, asked.len()), (Some(busy()), 1));
    }
}

#[tokio::test(start_paused = true)]
async fn only_plain_downloads_are_continued() {
    let request = |change: fn(&mut RequestHead)| {
        let mut exchange = get();
        change(exchange.request_mut());
        exchange
    };
    for exchange in [
        request(|request| request.method = Method::Post),
        request(|request| request.method = Method::Head),
        request(|request| request.protocol = Some("websocket".to_owned())),
        request(|request| request.authority = "push.tandem.invalid".to_owned()),
        Exchange {
            body: Body::new(NoChunks, None),
            ..get()
        },
    ] {
        let (got, asked) = run(exchange, [first(4)]).await;
        assert_eq!((got, asked.len()), (broken(4), 1), "{:?}", asked[0].request);
    }
}

struct NoChunks;

impl crate::exchange::Chunks for NoChunks {
    fn poll_chunk(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<crate::exchange::Chunk, Error>>> {
        Poll::Ready(None)
    }
}

#[tokio::test(start_paused = true)]
async fn requests_without_progress_end() {
    let begun = Instant::now();
    let refused = || failing(Error::new(Kind::ConnectionRefused, Side::Peer, "refused"));
    let answers = [first(4)].into_iter().chain((0..6).map(|_| refused()));
    let (got, asked) = run(get(), answers).await;
    assert_eq!((got, asked.len()), (broken(4), 7));
    assert_eq!(begun.elapsed().as_secs(), 15);
    // A few bytes are no progress, and their breaks count as well.
    let slow = (4..11).map(|from| Answer {
        parts: vec![rest_head(from), data(&FILE[from..=from])],
        end: End::Error(reset()),
    });
    let (got, asked) = run(get(), [first(4)].into_iter().chain(slow)).await;
    assert_eq!((got, asked.len()), (broken(10), 7));
}

#[tokio::test(start_paused = true)]
async fn request_for_the_rest_has_a_time_limit() {
    let begun = Instant::now();
    let hanging = Answer {
        parts: Vec::new(),
        end: End::Never,
    };
    let (got, asked) = run(get(), [first(4), failing(reset()), hanging]).await;
    assert_eq!((got, asked.len()), (broken(4), 3));
    assert_eq!(begun.elapsed().as_secs(), LIMIT.as_secs());
    // A body has none: its origin may be slow.
    let slow = Answer {
        parts: vec![rest_head(4), data(b"w")],
        end: End::Never,
    };
    let limit = tokio::time::timeout(10 * LIMIT, run(get(), [first(4), slow]));
    assert!(limit.await.is_err());
}

#[tokio::test(start_paused = true)]
async fn download_with_progress_is_continued_without_end() {
    const STEP: usize = PROGRESS as usize;
    let (steps, total) = (40, 40 * STEP);
    let length = total.to_string();
    let answers = (0..steps).map(|step| {
        let from = step * STEP;
        let range = format!("bytes {from}-{}/{total}", total - 1);
        let fields = match step {
            0 => ("content-length", &*length),
            _ => ("content-range", &*range),
        };
        let status = if step == 0 { 200 } else { 206 };
        Answer {
            parts: vec![
                head(status, &[("etag", "\"1\""), fields]),
                data(&vec![step as u8; STEP]),
            ],
            end: End::Error(reset()),
        }
    });
    let begun = Instant::now();
    let (got, asked) = run(get(), answers).await;
    let expected: Vec<u8> = (0..steps).flat_map(|step| vec![step as u8; STEP]).collect();
    assert!(got.body == expected && got.error.is_none());
    assert_eq!(asked.len(), steps);
    let waits = u32::try_from(steps - 2).unwrap();
    assert_eq!(begun.elapsed(), waits * PAUSES[1], "all but the first");
}

#[tokio::test(start_paused = true)]
async fn early_end_of_a_body_is_a_break() {
    let mut short = first(4);
    short.end = End::Regular;
    assert_eq!(run(get(), [short, rest(4)]).await.0, whole());
    let (got, asked) = run(get(), [first(FILE.len())]).await;
    assert_eq!((got, asked.len()), (whole(), 1), "all bytes have come");
}

#[tokio::test(start_paused = true)]
async fn rest_passes_pushes_on_and_no_fields() {
    let mut answer = rest(4);
    let hints = Part::Hints(ResponseHead::new(103));
    let push = Part::Pushed(Box::new(PushedPart {
        request: RequestHead::get(Scheme::Http, "own.example", "/a"),
        reply: Reply::ready(ResponseHead::new(200), Bytes::new()),
        priority: SharedPriority::default(),
        session: None,
    }));
    answer.parts.splice(0..0, [hints, push]);
    let digest = [("content-digest", "sha-256=:AAAA:")];
    answer
        .parts
        .push(Part::Trailers(digest.into_iter().collect()));
    let (got, _) = run(get(), [first(4), answer]).await;
    assert_eq!(
        got,
        Got {
            others: 1,
            ..whole()
        }
    );
}

/// Tells whether a reply is bound to its session.
type Binding = Box<dyn Fn() -> bool>;

/// A stage behind learns at the head whether it may propose a move.
#[tokio::test(start_paused = true)]
async fn suitable_reply_permits_a_move() {
    for (tag, expected) in [("\"1\"", true), ("W/\"1\"", false)] {
        let binding = Rc::<RefCell<Option<Binding>>>::default();
        let told = Rc::clone(&binding);
        let next = move |_: Exchange| {
            let told = Rc::clone(&told);
            Reply::generate(|mut sink| async move {
                told.replace(Some(Box::new(sink.binding())));
                sink.send(head(200, &[("etag", tag), ("content-length", "4")]))
                    .await;
                std::future::pending().await
            })
        };
        let (next, after_reload) = (Rc::new(next), AfterReload::default());
        let mut reply = Continue { next, after_reload }.call(get());
        assert!(matches!(reply.part().await, Some(Ok(Part::Head(_)))));
        let binding = binding.take().expect("the reply was polled");
        assert_eq!(!binding(), expected, "{tag}");
    }
}

/// Begins a download that a reload precedes and a break follows. `continuing` is the stage of the
/// next configuration.
async fn reloaded(goes_on: bool, continuing: Option<Rc<dyn Stage>>) -> (Got, usize) {
    let script = Rc::new(Script {
        answers: RefCell::new([first(4)].into()),
        ..Script::default()
    });
    let end = AfterReload::default();
    let stage = Continue {
        next: Rc::clone(&script) as _,
        after_reload: match goes_on {
            true => end.going_on(),
            false => end.clone(),
        },
    };
    let mut reply = stage.call(get());
    end.set(continuing);
    let got = read(&mut reply).await;
    (got, script.asked.take().len())
}

#[tokio::test(start_paused = true)]
async fn rest_after_a_reload_goes_by_the_next_configuration() {
    let next = Rc::new(Script {
        answers: RefCell::new([rest(4)].into()),
        ..Script::default()
    });
    let got = reloaded(true, Some(Rc::clone(&next) as _)).await;
    assert_eq!(got, (whole(), 1));
    assert_eq!(next.asked.take().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn rest_without_a_way_after_a_reload_is_not_requested() {
    let next = Rc::new(Script::default());
    for (goes_on, continuing) in [(true, None), (false, Some(Rc::clone(&next) as _))] {
        let (got, asked) = reloaded(goes_on, continuing).await;
        assert_eq!((got.body, got.error), (FILE[..4].to_vec(), Some(reset())));
        assert_eq!(asked, 1);
    }
    assert!(next.asked.take().is_empty());
}

/// The gateway of the former configuration is gone, which may be the reason for the reload.
#[tokio::test(start_paused = true)]
async fn rest_waiting_at_a_reload_goes_by_the_next_lane() {
    let next = Rc::new(Script {
        answers: RefCell::new([rest(4)].into()),
        ..Script::default()
    });
    let silent = Answer {
        parts: Vec::new(),
        end: End::Never,
    };
    let gone = Rc::new(Script {
        answers: RefCell::new([first(4), silent].into()),
        ..Script::default()
    });
    let end = AfterReload::default();
    let stage = Continue {
        next: Rc::clone(&gone) as _,
        after_reload: end.going_on(),
    };
    let mut reply = stage.call(get());
    let begun = tokio::time::Instant::now();
    let (done, mut reading) = tokio::sync::oneshot::channel();
    let tasks = tokio::task::LocalSet::new();
    // Nothing wakes the reader but its own timer.
    tasks.spawn_local(async move {
        let _ = done.send(read(&mut reply).await);
    });
    let reload = Duration::from_secs(10);
    let got = tasks.run_until(async {
        assert!(tokio::time::timeout(reload, &mut reading).await.is_err());
        end.set(Some(Rc::clone(&next) as _));
        reading.await.expect("the reader")
    });
    assert_eq!(got.await, whole());
    assert!(begun.elapsed() <= reload + LOOK, "{:?}", begun.elapsed());
    assert_eq!((gone.asked.take().len(), next.asked.take().len()), (2, 1));
}
