//! Tests of origins that send more bytes than a response has, on a connection that is kept.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tandem_http::{Method, RequestHead, Scheme};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::tests_scripted::run;
use super::{ConnectionLimits, Limits, Mode, ToOrigin};
use crate::back::tests_over_paths;
use crate::carrier::LocalBoxFuture;
use crate::error::Error;
use crate::exchange::{Exchange, Isolation, Part};
use crate::path::Path;
use crate::stage::Stage as _;
use crate::transport::{Dial, Target};

const RESPONSE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody";
const OTHER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";

/// The time at which late bytes of the first response on a connection leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Late {
    /// While no request is under way.
    Idle(&'static str),
    /// After the next request has arrived.
    Asked(&'static str),
}

struct LateOrigin {
    late: Late,
    dials: Rc<Cell<usize>>,
}

impl Dial for LateOrigin {
    fn below(&self) -> Option<&dyn Dial> {
        None
    }

    fn dial<'a>(
        &'a self,
        _: &'a Target,
        _: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        self.dials.set(self.dials.get() + 1);
        let (near, far) = Path::pair(1 << 16);
        // A client that leaves breaks the connection.
        tokio::task::spawn_local(serve(far, self.late));
        Box::pin(std::future::ready(Ok(near)))
    }
}

async fn serve(mut path: Path, late: Late) -> std::io::Result<()> {
    for answered in 0.. {
        let mut input = Vec::new();
        while !input.ends_with(b"\r\n\r\n") {
            if path.read_buf(&mut input).await? == 0 {
                return Ok(());
            }
        }
        if let (1, Late::Asked(bytes)) = (answered, late) {
            path.write_all(bytes.as_bytes()).await?;
        }
        path.write_all(RESPONSE.as_bytes()).await?;
        if let (0, Late::Idle(bytes)) = (answered, late) {
            tokio::time::sleep(Duration::from_millis(10)).await;
            path.write_all(bytes.as_bytes()).await?;
        }
    }
    Ok(())
}

/// Sends two requests one after the other. Returns the second body and the number of dials.
async fn second(late: Late, method: Method, pipelines: bool) -> (Result<Vec<u8>, Error>, usize) {
    let dials = Rc::new(Cell::new(0));
    let origin = LateOrigin {
        late,
        dials: Rc::clone(&dials),
    };
    let stage: ToOrigin =
        tests_over_paths::to_origin(Mode::Forward, Rc::new(origin), Limits::default());
    if pipelines {
        let limits = ConnectionLimits { most: 1, ahead: 0 };
        stage.0.pipeline(Box::new(move |_, _| limits));
    }
    let fetch = async |method| {
        let request = RequestHead {
            method,
            ..RequestHead::get(Scheme::Http, "site.example", "/")
        };
        let mut reply = stage.call(Exchange::internal(request));
        let mut body = Vec::new();
        while let Some(part) = reply.part().await {
            if let Part::Data(data) = part? {
                body.extend_from_slice(&data);
            }
        }
        Ok(body)
    };
    assert_eq!(fetch(Method::Get).await, Ok(b"body".to_vec()));
    tokio::time::sleep(Duration::from_millis(100)).await;
    (fetch(method).await, dials.get())
}

#[test]
fn late_bytes_cost_a_new_connection() {
    run(async {
        for pipelines in [false, true] {
            let (body, dials) = second(Late::Asked("<p>"), Method::Get, pipelines).await;
            assert_eq!(body, Ok(b"body".to_vec()), "{pipelines}");
            assert_eq!(dials, 2, "{pipelines}");
        }
    });
}

#[test]
fn late_bytes_repeat_no_unsafe_request() {
    run(async {
        let (body, dials) = second(Late::Asked("<p>"), Method::Post, false).await;
        assert!(body.is_err(), "{body:?}");
        assert_eq!(dials, 1);
    });
}

/// A response that was there before its request belongs to nobody.
#[test]
fn early_response_is_never_taken_for_one() {
    run(async {
        for pipelines in [false, true] {
            for bytes in [OTHER, "<p>"] {
                let late = Late::Idle(bytes);
                for method in [Method::Get, Method::Post] {
                    let (body, dials) = second(late, method, pipelines).await;
                    assert_eq!(body, Ok(b"body".to_vec()), "{late:?}, {pipelines}");
                    assert_eq!(dials, 2, "{late:?}, {pipelines}");
                }
            }
        }
    });
}
