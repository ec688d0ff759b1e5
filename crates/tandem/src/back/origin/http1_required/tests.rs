//! Tests of origins that refuse requests over HTTP/2 and serve them over HTTP/1.1, in virtual time.

use std::cell::Cell;
use std::future::ready;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use tandem_http::h1::Form;
use tandem_http::{
    ByteMux as _, Event, Method, Mux as _, MuxConfig, Reason, RequestHead, ResponseHead, Role,
    Scheme, SendBuf, h2,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::back::doubles::{Negotiated, body_of, no_transport, run};
use crate::back::origin::{Limits, Mode, OriginProtocols, OriginTransports, ToOrigin};
use crate::exchange::{Body, Chunk, Chunks, Part, Peer, Reply};
use crate::path::Path;
use crate::role_name::RoleName;
use crate::session::http1::Http1Session;
use crate::session::mux::{Multiplexed, MuxSession};
use crate::session::{Drain, Serve as _};
use crate::stage::Stage as _;
use crate::transport::doubles::{FakeDial, served};

/// Refuses each request of a session of HTTP/2: it resets the stream, or ends the session.
async fn refuse(mut far: Path, ends_session: bool) -> io::Result<()> {
    let mut core = h2::Connection::new(MuxConfig::new(Role::Server));
    let mut input = [0; 4096];
    loop {
        let mut out = SendBuf::new();
        core.poll_output(&mut out, usize::MAX);
        far.write_all(&out.copy_to_bytes(out.remaining())).await?;
        let count = far.read(&mut input).await?;
        let now = std::time::Instant::now();
        if count == 0 || core.handle_input(now, &input[..count]).is_err() {
            return Ok(());
        }
        while let Some(event) = core.poll_event() {
            match event {
                // GOAWAY with HTTP_1_1_REQUIRED, for no stream.
                Event::Request { .. } if ends_session => {
                    let goaway = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xd];
                    far.write_all(&goaway).await?;
                }
                Event::Request { id, .. } => core.reset(id, Reason::Http11Required),
                _ => {}
            }
        }
    }
}

struct Text(Option<&'static str>);

impl Chunks for Text {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        let text = self.0.take();
        Poll::Ready(text.map(|text| Ok(Chunk::Data(Bytes::from_static(text.as_bytes())))))
    }
}

/// An origin that serves requests over HTTP/1.1 only, and the numbers of connections to it.
struct Scene {
    stage: ToOrigin,
    over_h2: Rc<Cell<usize>>,
    over_http1: Rc<Cell<usize>>,
}

fn count(counter: &Cell<usize>) {
    counter.set(counter.get() + 1);
}

impl Scene {
    fn new(ends_session: bool) -> Self {
        let (over_h2, over_http1) = (Rc::<Cell<usize>>::default(), Rc::<Cell<usize>>::default());
        let counter = Rc::clone(&over_h2);
        let secure = FakeDial::new(move |_| {
            count(&counter);
            let near = served(|far| refuse(far, ends_session));
            ready(Ok(Path::new(near, Rc::new(Negotiated))))
        });
        let counter = Rc::clone(&over_http1);
        let http1 = Http1Session {
            scheme: Scheme::Https,
            ..Http1Session::new(Form::Origin, RoleName::Gateway)
        };
        let serving = http1.clone();
        let secure_http1 = FakeDial::new(move |_| {
            count(&counter);
            let stage = Rc::new(|mut exchange: Exchange| {
                Reply::generate(|mut sink| async move {
                    let head = Part::Head(ResponseHead::new(200));
                    sink.send(head).await;
                    while let Some(chunk) =
                        std::future::poll_fn(|cx| exchange.body.poll_chunk(cx)).await
                    {
                        if let Chunk::Data(data) = chunk? {
                            sink.send(Part::Data(data)).await;
                        }
                    }
                    let end = Bytes::from_static(b" over HTTP/1.1");
                    sink.send(Part::Data(end)).await;
                    Ok(())
                })
            });
            let serving = serving.clone();
            let near = served(|far| serving.serve(far.into(), Peer::none(), stage, Drain::new()));
            ready(Ok(near))
        });
        let transports = OriginTransports {
            plain: no_transport(),
            secure,
            secure_http1,
            tunnels: no_transport(),
        };
        let config = MuxConfig::new(Role::Client);
        let protocols = OriginProtocols {
            http1,
            multiplexed: Rc::new(MuxSession::new(Multiplexed::H2, config, RoleName::Gateway)),
            always: None,
        };
        let origin = Origin::with(Mode::Forward, transports, protocols, Limits::default());
        Self {
            stage: ToOrigin(origin),
            over_h2,
            over_http1,
        }
    }

    async fn post(&self, text: &'static str) -> String {
        let mut request = RequestHead::get(Scheme::Https, "site.example", "/");
        request.method = Method::Post;
        let exchange = Exchange {
            body: Body::new(Text(Some(text)), None),
            ..Exchange::internal(request)
        };
        let body = body_of(self.stage.call(exchange)).await;
        String::from_utf8(body.expect("a response")).expect("a text")
    }

    fn connections(&self) -> (usize, usize) {
        (self.over_h2.get(), self.over_http1.get())
    }
}

#[test]
fn origin_that_requires_http1_gets_it_for_a_time() {
    for ends_session in [false, true] {
        run(async move {
            let scene = Scene::new(ends_session);
            assert_eq!(scene.post("first").await, "first over HTTP/1.1");
            assert_eq!(scene.post("second").await, "second over HTTP/1.1");
            assert_eq!(scene.connections(), (1, 1), "the origin is remembered");
            tokio::time::sleep(REMEMBERED).await;
            assert_eq!(scene.post("third").await, "third over HTTP/1.1");
            assert_eq!(scene.over_h2.get(), 2 - usize::from(!ends_session));
        });
    }
}

/// A body that cannot be sent again once the origin has refused it.
struct Long(bool);

impl Chunks for Long {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        let is_first = !std::mem::replace(&mut self.0, true);
        let piece = Bytes::from_static(&[7; 80 << 10]);
        Poll::Ready(is_first.then(|| Ok(Chunk::Data(piece))))
    }
}

#[test]
fn upload_that_cannot_be_repeated_says_what_helps() {
    run(async {
        let scene = Scene::new(false);
        let mut request = RequestHead::get(Scheme::Https, "site.example", "/");
        request.method = Method::Post;
        let exchange = Exchange {
            body: Body::new(Long(false), None),
            ..Exchange::internal(request)
        };
        let failed = body_of(scene.stage.call(exchange)).await;
        let error = failed.map(drop).expect_err("the body is lost");
        assert_eq!((error.kind, error.status()), (Kind::Http11Required, 502));
        assert!(error.detail.contains("send the request again"), "{error}");
        assert_eq!(scene.post("again").await, "again over HTTP/1.1");
        assert_eq!(scene.connections(), (1, 1));
    });
}
