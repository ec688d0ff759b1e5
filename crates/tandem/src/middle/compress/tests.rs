//! Tests of the stage with paths of given rates.

use std::cell::Cell;
use std::io::Write as _;

use flate2::write::GzEncoder;
use tandem_http::Scheme;
use tokio::time::Instant;

use super::*;
use crate::exchange::Sink;
use crate::path::Measure;
use crate::priority::SharedPriority;

/// A path with this rate in bytes per second.
struct Rate(f64);

impl Facts for Rate {
    fn below(&self) -> Option<&dyn Facts> {
        None
    }

    fn peer_address(&self) -> Option<std::net::SocketAddr> {
        "203.0.113.5:443".parse().ok()
    }

    fn measure(&self) -> Option<Measure> {
        Some(Measure {
            round_trip: 0.1,
            rate: self.0,
        })
    }
}

/// A stage that counts the bytes of bodies from the next one.
struct Counting(Rc<Cell<usize>>, Rc<dyn Stage>);

impl Stage for Counting {
    fn call(&self, exchange: Exchange) -> Reply {
        let (count, mut reply) = (Rc::clone(&self.0), self.1.call(exchange));
        Reply::generate(|mut sink: Sink| async move {
            while let Some(part) = reply.part().await {
                let part = part?;
                if let Part::Data(data) = &part {
                    count.set(count.get() + data.len());
                }
                sink.send(part).await;
            }
            Ok(())
        })
    }
}

fn stage(rate: f64, budget: usize, next: Rc<dyn Stage>) -> (Compress, Rc<dyn Facts>) {
    let path: Rc<dyn Facts> = Rc::new(Rate(rate));
    (
        Compress::new(&CodingMemory::new(budget, ALL_VERSIONS), &path, true, next),
        path,
    )
}

/// Returns the stage before `next`, and the number of bytes of bodies that it has sent.
pub(in super::super) fn gateway(next: Rc<dyn Stage>) -> (Rc<dyn Stage>, Rc<Cell<usize>>) {
    let path: Rc<dyn Facts> = Rc::new(Rate(1e6));
    let compress = Compress::new(&CodingMemory::of_gateway(), &path, true, next);
    let sent = Rc::new(Cell::new(0));
    let counting = Counting(Rc::clone(&sent), Rc::new(compress));
    (Rc::new(counting), sent)
}

fn text() -> ResponseHead {
    ResponseHead {
        status: 200,
        fields: [("content-type", "text/html")].into_iter().collect(),
    }
}

fn asking(offers: bool, change: impl FnOnce(&mut RequestHead)) -> Exchange {
    let mut request = RequestHead::get(Scheme::Http, "own.example", "/");
    if offers {
        wire::offer(&mut request.fields, true);
    }
    change(&mut request);
    Exchange::internal(request)
}

async fn parts(mut reply: Reply) -> Vec<Result<Part, Error>> {
    let mut parts = Vec::new();
    while let Some(part) = reply.part().await {
        parts.push(part);
    }
    parts
}

/// Returns whether the body of the first head is coded.
fn is_coded(parts: &[Result<Part, Error>]) -> bool {
    match parts.first() {
        Some(Ok(Part::Head(head))) => {
            matches!(wire::restore(&mut head.clone()), Ok(Some(_)))
        }
        other => panic!("{other:?}"),
    }
}

fn answering() -> Rc<dyn Stage> {
    Rc::new(|exchange: Exchange| {
        assert!(
            !wire::has_offer(&exchange.request.fields),
            "the offer goes no further"
        );
        Reply::ready(text(), Bytes::from_static(&[b'a'; 4000]))
    })
}

#[tokio::test]
async fn body_is_coded_on_offer_over_slow_paths() {
    for (offers, rate, budget, expected) in [
        (true, 1e6, ALL_ENCODERS, true),
        (false, 1e6, ALL_ENCODERS, false),
        (true, 1e9, ALL_ENCODERS, false),
        (true, 1e6, 1000, false),
    ] {
        let (stage, _path) = stage(rate, budget, answering());
        let parts = parts(stage.call(asking(offers, |_| {}))).await;
        assert_eq!(is_coded(&parts), expected, "{offers} {rate} {budget}");
    }
    let (stage, _path) = stage(1e6, ALL_ENCODERS, answering());
    let post = |request: &mut RequestHead| request.method = Method::Post;
    assert!(!is_coded(&parts(stage.call(asking(true, post))).await));
}

#[tokio::test]
async fn memory_returns_with_the_end_of_each_body() {
    let enough = Encoder::memory(None, 0) + MAX_DICTIONARY;
    let (stage, _path) = stage(1e6, enough, answering());
    for _ in 0..3 {
        let mut first = stage.call(asking(true, |_| {}));
        let head = first.part().await.expect("a head");
        assert!(is_coded(&[head]), "the memory is free");
        assert!(!is_coded(&parts(stage.call(asking(true, |_| {}))).await));
        let rest = parts(first).await;
        assert!(rest.iter().all(Result::is_ok) && !rest.is_empty());
    }
}

#[tokio::test]
async fn body_that_breaks_off_reaches_the_client() {
    let next = |_: Exchange| {
        Reply::generate(|mut sink: Sink| async move {
            sink.send(Part::Head(text())).await;
            sink.send(Part::Data(Bytes::from_static(b"half"))).await;
            Err(Error::new(Kind::Truncated, Side::Origin, "cut"))
        })
    };
    let (stage, _path) = stage(1e6, ALL_ENCODERS, Rc::new(next));
    let parts = parts(stage.call(asking(true, |_| {}))).await;
    let [Ok(Part::Head(_)), Ok(Part::Data(data)), Err(_)] = &parts[..] else {
        panic!("{parts:?}");
    };
    let mut decoder = tandem_coding::Decoder::new(None).expect("memory");
    decoder.write(data.clone());
    assert_eq!(decoder.read(), Ok(Some(Bytes::from_static(b"half"))));
    assert!(decoder.finish().is_err());
}

#[tokio::test]
async fn push_with_unknown_credentials_stays_plain() {
    let described = |cookie: Option<&str>| {
        let fields = cookie.map(|cookie| ("cookie", cookie));
        RequestHashes::of(&fields.into_iter().collect()).encode()
    };
    for (asked, expected) in [
        (None, false),
        (Some(described(None)), true),
        (Some(described(Some("a=b"))), false),
    ] {
        let next = move |_: Exchange| {
            let asked = asked.clone();
            Reply::generate(|mut sink: Sink| async move {
                let mut head = text();
                if let Some(asked) = asked {
                    head.fields.push(ASKED_FIELD, asked);
                }
                sink.send(Part::Pushed(Box::new(PushedPart {
                    request: RequestHead::get(Scheme::Http, "own.example", "/a"),
                    reply: Reply::ready(head, Bytes::from_static(b"pushed")),
                    priority: SharedPriority::default(),
                    session: None,
                })))
                .await;
                Ok(())
            })
        };
        let (stage, _path) = stage(1e6, ALL_ENCODERS, Rc::new(next));
        let carried = parts(stage.call(asking(true, |request| request.method = Method::Post)));
        let Some(Ok(Part::Pushed(pushed))) = carried.await.pop() else {
            panic!("no push");
        };
        assert_eq!(is_coded(&parts(pushed.reply).await), expected);
    }
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    encoder.write_all(body).expect("a vector takes all");
    encoder.finish().expect("a vector takes all")
}

/// Returns an origin that sends gzip.
fn sending_gzip(coded: Vec<u8>) -> Rc<dyn Stage> {
    let coded = Bytes::from(coded);
    Rc::new(move |_: Exchange| {
        let mut head = text();
        head.fields.push("content-encoding", "gzip");
        Reply::ready(head, coded.clone())
    })
}

fn accept_gzip(request: &mut RequestHead) {
    request.fields.push("accept-encoding", "gzip");
}

#[tokio::test]
async fn text_before_damaged_gzip_reaches_the_client() {
    let (first, second) = (gzip(b"first"), gzip(b"second"));
    // The second member has a block of an unknown kind, or ends before it.
    let damaged = [&first[..], &second[..10], &[0xff]].concat();
    let truncated = [&first[..], &second[..10]].concat();
    for coded in [damaged, truncated] {
        let (stage, _path) = stage(1e6, ALL_ENCODERS, sending_gzip(coded));
        let parts = parts(stage.call(asking(true, accept_gzip))).await;
        let [Ok(Part::Head(_)), Ok(Part::Data(data)), Err(_)] = &parts[..] else {
            panic!("{parts:?}");
        };
        let mut decoder = tandem_coding::Decoder::new(None).expect("memory");
        decoder.write(data.clone());
        assert_eq!(decoder.read(), Ok(Some(Bytes::from_static(b"first"))));
        assert!(decoder.finish().is_err());
    }
}

/// Returns the length of a body that the stage recoded, and the time that it paused.
async fn recoded(body: Vec<u8>) -> (usize, Duration) {
    let next = sending_gzip(gzip(&body));
    let (stage, _path) = stage(1e6, ALL_ENCODERS, next);
    let before = Instant::now();
    let parts = parts(stage.call(asking(true, accept_gzip))).await;
    let paused = before.elapsed();
    assert!(is_coded(&parts));
    let mut decoder = tandem_coding::Decoder::new(None).expect("memory");
    let mut length = 0;
    for part in parts.into_iter().skip(1) {
        let Ok(Part::Data(data)) = part else {
            panic!("{part:?}");
        };
        decoder.write(data);
        while let Some(piece) = decoder.read().expect("valid") {
            length += piece.len();
        }
    }
    decoder.finish().expect("complete");
    (length, paused)
}

#[tokio::test(start_paused = true)]
async fn body_that_expands_like_no_text_pauses() {
    let beyond = 2 << 20;
    let unpaused = usize::try_from(UNPAUSED).expect("a small number");
    assert_eq!(recoded(vec![0; unpaused]).await, (unpaused, Duration::ZERO));
    let (length, paused) = recoded(vec![0; unpaused + beyond]).await;
    assert_eq!(length, unpaused + beyond);
    let turns = u32::try_from(beyond / TURN).expect("a small number");
    assert!(paused >= PAUSE * (turns - 1), "{paused:?}");
    let line = |n: usize| format!("<li>{}</li>{}", n * n, " ".repeat(200));
    let text: String = (0..(unpaused + beyond) / 200).map(line).collect();
    assert_eq!(
        recoded(text.clone().into_bytes()).await,
        (text.len(), Duration::ZERO)
    );
}
