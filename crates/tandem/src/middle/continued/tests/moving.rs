//! Tests of moves: a reply proposes to request the rest on another session, and goes on.

use std::cell::Cell;

use tandem_http::cache::rest::MAX_SKIPPED;

use super::super::download::MAX_REPEATED;
use super::*;

/// The time after which a reply that has proposed a move goes on.
const LATER: Duration = Duration::from_secs(5);
const MAX: usize = MAX_SKIPPED as usize;
const REPEATED: usize = MAX_REPEATED as usize;
const STEP: usize = PROGRESS as usize;

/// A step of a reply.
enum Step {
    Part(Part),
    Propose,
    Wait(Duration),
    Fail(Error),
    Never,
}

use Step::{Fail, Never, Propose, Wait};

/// A stage whose replies follow a list of steps, and that counts their requests and bytes.
#[derive(Default)]
struct Steps {
    answers: RefCell<VecDeque<Vec<Step>>>,
    ranges: RefCell<Vec<Option<String>>>,
    /// The bytes that were read of all replies.
    bytes: Rc<Cell<usize>>,
    /// The replies that have not ended.
    open: Rc<Cell<usize>>,
}

struct OpenReply(Rc<Cell<usize>>);

impl Drop for OpenReply {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Stage for Steps {
    fn call(&self, exchange: Exchange) -> Reply {
        let range = exchange.request.fields.get("range");
        let range = range.map(|range| String::from_utf8_lossy(range).into_owned());
        self.ranges.borrow_mut().push(range);
        let steps = self.answers.borrow_mut().pop_front();
        let steps = steps.expect("another request");
        let bytes = Rc::clone(&self.bytes);
        self.open.set(self.open.get() + 1);
        let open = OpenReply(Rc::clone(&self.open));
        Reply::generate(|mut sink| async move {
            let (_open, propose) = (open, sink.proposal());
            for step in steps {
                match step {
                    Step::Part(part) => {
                        if let Part::Data(data) = &part {
                            bytes.set(bytes.get() + data.len());
                        }
                        sink.send(part).await;
                    }
                    Propose => propose(),
                    Wait(time) => tokio::time::sleep(time).await,
                    Fail(error) => return Err(error),
                    Never => std::future::pending().await,
                }
            }
            Ok(())
        })
    }
}

/// Begins a download before replies that follow a list of steps.
fn begin<const N: usize>(answers: [Vec<Step>; N]) -> (Reply, Rc<Steps>) {
    let steps = Rc::new(Steps {
        answers: RefCell::new(answers.into()),
        ..Steps::default()
    });
    let stage = Continue {
        next: Rc::clone(&steps) as _,
        after_reload: AfterReload::default(),
    };
    (stage.call(get()), steps)
}

/// Reads a download to its end. Returns the result, the ranges and the time.
async fn download<const N: usize>(answers: [Vec<Step>; N]) -> (Got, Vec<String>, Duration) {
    let begun = Instant::now();
    let (mut reply, steps) = begin(answers);
    let got = read(&mut reply).await;
    assert_eq!(steps.open.get(), 0, "no request outlives the download");
    let ranges = steps.ranges.take().into_iter().flatten().collect();
    (got, ranges, begun.elapsed())
}

/// A file of the given length, which no two pieces have in common.
fn file(length: usize) -> Vec<u8> {
    let byte = |at: usize| ((at as u32).wrapping_mul(0x9e37_79b9) >> 24) as u8;
    (0..length).map(byte).collect()
}

fn bytes(data: &[u8]) -> Step {
    Step::Part(super::data(data))
}

/// Returns the head of a whole file.
fn file_head(file: &[u8]) -> Step {
    let length = file.len().to_string();
    let fields = [("etag", "\"1\""), ("content-length", &length)];
    Step::Part(head(200, &fields))
}

/// Returns the head of the rest of a file.
fn tail_head(file: &[u8], from: usize) -> Step {
    let range = format!("bytes {from}-{}/{}", file.len() - 1, file.len());
    Step::Part(head(206, &[("etag", "\"1\""), ("content-range", &range)]))
}

/// Returns the rest of the file after some time.
fn tail(file: &[u8], from: usize, time: Duration) -> Vec<Step> {
    vec![Wait(time), tail_head(file, from), bytes(&file[from..])]
}

/// Returns the first bytes of the file and a proposal. `steps` follow.
fn slow(steps: impl IntoIterator<Item = Step>) -> Vec<Step> {
    let begin = [file_head(FILE), bytes(&FILE[..4]), Propose];
    begin.into_iter().chain(steps).collect()
}

/// Returns the reply that a session brings in full, though late.
fn late() -> Vec<Step> {
    slow([Wait(LATER), bytes(&FILE[4..])])
}

#[tokio::test(start_paused = true)]
async fn proposed_download_goes_on_by_the_other_reply() {
    let got = download([late(), tail(FILE, 4, Duration::ZERO)]).await;
    assert_eq!(got, (whole(), vec!["bytes=4-".to_owned()], Duration::ZERO));
}

/// The page may have changed, and its session still brings it.
#[tokio::test(start_paused = true)]
async fn proposed_download_stays_if_its_rest_does_not_come() {
    let other = |status, fields: &[(&str, &str)]| {
        vec![Step::Part(head(status, fields)), bytes(b"other bytes")]
    };
    let length = ("content-length", "14");
    let range = ("content-range", "bytes 4-13/14");
    for answer in [
        other(200, &[("etag", "\"2\""), length]),
        other(
            200,
            &[("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT"), length],
        ),
        other(206, &[("etag", "\"2\""), range]),
        other(416, &[("content-range", "bytes */14")]),
        other(503, &[]),
        vec![Fail(Error::new(Kind::Protocol, Side::Peer, "no"))],
        vec![Never],
    ] {
        let (got, asked, time) = download([late(), answer]).await;
        assert_eq!((got, asked.len(), time), (whole(), 1, LATER));
    }
}

/// The request for the rest hangs until its limit.
#[tokio::test(start_paused = true)]
async fn proposed_download_outlives_the_limit_of_its_rest() {
    let first = slow([Wait(2 * LIMIT), bytes(&FILE[4..])]);
    let (got, asked, time) = download([first, vec![Never]]).await;
    assert_eq!((got, asked.len(), time), (whole(), 1, 2 * LIMIT));
}

/// The other gateway may be restarting.
#[tokio::test(start_paused = true)]
async fn proposed_download_asks_again_after_a_failure() {
    let answers = [late(), vec![Fail(reset())], tail(FILE, 4, Duration::ZERO)];
    let (got, asked, time) = download(answers).await;
    assert_eq!((got, asked.len(), time), (whole(), 2, PAUSES[1]));
    // No more requests than after a break leave.
    let refused = || vec![Fail(Error::new(Kind::Busy, Side::Peer, "busy"))];
    let first = slow([Wait(LIMIT), bytes(&FILE[4..])]);
    let answers = [
        first,
        refused(),
        refused(),
        refused(),
        refused(),
        refused(),
        refused(),
    ];
    let (got, asked, time) = download(answers).await;
    assert_eq!((got, asked.len(), time), (whole(), PAUSES.len(), LIMIT));
}

/// Each session brings the head of the rest, and then nothing but a proposal to leave it.
#[tokio::test(start_paused = true)]
async fn path_that_passes_heads_only_ends_a_download() {
    let empty = || vec![tail_head(FILE, 4), Propose, Never];
    let answers = [slow([Never]), empty(), empty(), empty(), empty()];
    let (got, asked, time) = download(answers).await;
    assert_eq!((&got.body[..], asked.len()), (&FILE[..4], 2));
    assert_eq!(got.error.map(|error| error.kind), Some(Kind::Timeout));
    assert_eq!(time, PAUSES[1]);
}

/// A break soon after another one counts as a request, and not as a response without a byte.
#[tokio::test(start_paused = true)]
async fn first_empty_rest_ends_no_download_with_progress() {
    let file = file(4 * STEP);
    let part = |from: usize| [bytes(&file[from..from + STEP]), Fail(reset())];
    let first = [file_head(&file)].into_iter().chain(part(0));
    let second = [tail_head(&file, STEP)].into_iter().chain(part(STEP));
    let empty = vec![tail_head(&file, 2 * STEP), Fail(reset())];
    let answers = [
        first.collect(),
        second.collect(),
        empty,
        tail(&file, 2 * STEP, Duration::ZERO),
    ];
    let (got, asked, _) = download(answers).await;
    assert_eq!((got.body.len(), asked.len()), (file.len(), 3));
    assert!(got.body == file && got.error.is_none());
}

/// Moves and breaks share the requests that one progress permits.
#[tokio::test(start_paused = true)]
async fn moves_with_little_progress_are_bounded() {
    let one = |from: usize, end: Step| {
        let byte = bytes(&FILE[from..=from]);
        vec![tail_head(FILE, from), byte, end, Wait(LATER), Fail(reset())]
    };
    let answers = [
        slow([Never]),
        one(4, Propose),
        one(5, Fail(reset())),
        one(6, Propose),
        one(7, Fail(reset())),
        one(8, Propose),
        one(9, Propose),
        tail(FILE, 10, Duration::ZERO),
    ];
    let (got, asked, time) = download(answers).await;
    assert_eq!((got, asked.len()), (broken(10), PAUSES.len()));
    let pauses: Duration = PAUSES.iter().sum();
    assert_eq!(time, pauses + LATER, "the last one stays until its break");
}

#[tokio::test(start_paused = true)]
async fn break_during_a_move_keeps_its_request() {
    let first = || slow([Wait(LATER), Fail(reset())]);
    let (got, asked, time) = download([first(), tail(FILE, 4, 2 * LATER)]).await;
    assert_eq!((got, asked.len(), time), (whole(), 1, 2 * LATER));
    // An early end is a break too.
    let short = slow([Wait(LATER)]);
    let (got, asked, _) = download([short, tail(FILE, 4, 2 * LATER)]).await;
    assert_eq!((got, asked.len()), (whole(), 1));
    // The head has the whole time from the break.
    let (got, asked, _) = download([first(), tail(FILE, 4, LATER + LIMIT)]).await;
    assert_eq!((got, asked.len()), (whole(), 1));
    let (got, asked, time) = download([first(), vec![Never]]).await;
    assert_eq!((got, asked.len(), time), (broken(4), 1, LATER + LIMIT));
    // No other request follows one that is refused.
    let changed = [("etag", "\"2\""), ("content-length", "14")];
    let changed = vec![Wait(2 * LATER), Step::Part(head(200, &changed))];
    let (got, asked, _) = download([first(), changed]).await;
    assert_eq!((got, asked.len()), (broken(4), 1));
}

/// The present reply brings some bytes before its break, and before the head of the rest.
#[tokio::test(start_paused = true)]
async fn bytes_before_the_head_of_the_rest_come_once() {
    for end in [Never, Fail(reset())] {
        // The parts that are there precede the request.
        let first = slow([bytes(&FILE[4..6]), Wait(LATER), bytes(&FILE[6..9]), end]);
        let (got, asked, time) = download([first, tail(FILE, 6, 2 * LATER)]).await;
        assert_eq!((got, asked), (whole(), vec!["bytes=6-".to_owned()]));
        assert_eq!(time, 2 * LATER);
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_bytes_of_a_move_are_bounded() {
    let file = file(2 * REPEATED);
    // The bytes before the proposal, those that come twice, and whether a part is requested.
    for (before, since, is_part, moves) in [
        (2 * MAX, REPEATED, true, true),
        (2 * MAX, REPEATED + 1, true, false),
        (STEP, MAX - STEP, false, true),
        (STEP, MAX - STEP + 1, false, false),
    ] {
        let end = before + since;
        let first = vec![
            file_head(&file),
            bytes(&file[..before]),
            Propose,
            Wait(LATER),
            bytes(&file[before..end]),
            Wait(2 * LATER),
            bytes(&file[end..]),
        ];
        let other = match is_part {
            true => tail(&file, before, 2 * LATER),
            false => vec![Wait(2 * LATER), file_head(&file), bytes(&file)],
        };
        let (mut reply, steps) = begin([first, other]);
        let begun = Instant::now();
        let got = read(&mut reply).await;
        assert!(got.body == file && got.error.is_none());
        assert_eq!(steps.ranges.borrow().len(), 2);
        let expected = if moves { 2 } else { 3 };
        assert_eq!(begun.elapsed(), expected * LATER, "{before} {since}");
        let repeated = steps.bytes.get() - file.len();
        let most = if is_part { REPEATED } else { MAX };
        assert_eq!(repeated, if moves { most } else { 0 });
    }
}

/// A throttled path by satellite has a high rate and a long round trip. The verdict comes once.
#[tokio::test(start_paused = true)]
async fn download_leaves_a_fast_throttled_path() {
    const PIECE: usize = 20_000;
    let file = file(4 << 20);
    let mut first = vec![file_head(&file), bytes(&file[..STEP]), Propose];
    for piece in file[STEP..].chunks(PIECE) {
        // Slightly less than 8 Mbit/s.
        first.extend([Wait(Duration::from_millis(21)), bytes(piece)]);
    }
    let head_after = Duration::from_millis(900);
    let (got, asked, time) = download([first, tail(&file, STEP, head_after)]).await;
    assert!(got.body == file && got.error.is_none());
    assert_eq!((asked.len(), time), (1, head_after));
}

/// The bytes that are there precede the limit.
#[tokio::test(start_paused = true)]
async fn head_of_the_rest_is_taken_at_the_limit() {
    let first = vec![file_head(FILE), bytes(&FILE[..4]), Fail(reset())];
    let (got, asked, time) = download([first, tail(FILE, 4, LIMIT)]).await;
    assert_eq!((got, asked.len(), time), (whole(), 1, LIMIT));
}

#[tokio::test(start_paused = true)]
async fn move_ends_with_the_last_byte() {
    // The end of the stream is late, with the bytes of a request or without one.
    let first = slow([Wait(LATER), bytes(&FILE[4..]), Never]);
    let (got, asked, time) = download([first, tail(FILE, 4, 2 * LATER)]).await;
    assert_eq!((got, asked.len(), time), (whole(), 1, LATER));
    let first = vec![file_head(FILE), bytes(FILE), Propose, Never];
    let (got, asked, _) = download([first]).await;
    assert_eq!((got, asked.len()), (whole(), 0));
    // Fields behind the body that are there reach the reader.
    let trailers = Step::Part(Part::Trailers(Fields::new()));
    let first = slow([Wait(LATER), bytes(&FILE[4..]), trailers]);
    let (got, ..) = download([first, vec![Never]]).await;
    let expected = Got {
        others: 1,
        ..whole()
    };
    assert_eq!(got, expected);
}

/// A request that was refused does not follow another verdict at once.
#[tokio::test(start_paused = true)]
async fn another_move_needs_progress() {
    let file = file(4 * STEP);
    for (progress, moves) in [(STEP, true), (STEP - 1, false)] {
        let end = 4 + progress;
        let first = vec![
            file_head(&file),
            bytes(&file[..4]),
            Propose,
            Wait(LATER),
            bytes(&file[4..end]),
            Wait(LATER),
            Propose,
            Wait(LATER),
            bytes(&file[end..]),
        ];
        let refused = vec![Step::Part(head(503, &[]))];
        let again = tail(&file, end, Duration::ZERO);
        let (got, asked, time) = download([first, refused, again]).await;
        assert!(got.body == file && got.error.is_none());
        let expected = if moves { (2, 2) } else { (1, 3) };
        let times = (time.as_millis() / LATER.as_millis()) as usize;
        assert_eq!((asked.len(), times), expected);
    }
}

/// The pool may propose another move after that progress, and not before.
#[tokio::test(start_paused = true)]
async fn declined_move_binds_the_reply_until_progress() {
    let file = file(4 * STEP);
    let binding = Rc::<RefCell<Option<Binding>>>::default();
    let (told, content) = (Rc::clone(&binding), file.clone());
    let next = move |exchange: Exchange| {
        if exchange.request.fields.contains("range") {
            return Reply::fail(Error::new(Kind::Protocol, Side::Peer, "no"));
        }
        let (told, file) = (Rc::clone(&told), content.clone());
        Reply::generate(|mut sink| async move {
            told.replace(Some(Box::new(sink.binding())));
            let Step::Part(head) = file_head(&file) else {
                return Ok(());
            };
            sink.send(head).await;
            sink.proposal()();
            for piece in file.chunks(STEP / 2) {
                tokio::time::sleep(LATER).await;
                sink.send(super::data(piece)).await;
            }
            Ok(())
        })
    };
    let stage = Continue {
        next: Rc::new(next),
        after_reload: AfterReload::default(),
    };
    let mut reply = stage.call(get());
    assert!(matches!(reply.part().await, Some(Ok(Part::Head(_)))));
    let is_bound = binding.take().expect("the reply was polled");
    assert!(!is_bound());
    let mut states = Vec::new();
    while let Some(part) = reply.part().await {
        assert!(matches!(part, Ok(Part::Data(_))));
        states.push(is_bound());
    }
    assert_eq!(states[..4], [true, true, false, false]);
}
