//! Tests of origins that send more bytes than a response has, on a connection that is kept.

use std::future::ready;
use std::rc::Rc;
use std::time::Duration;

use tandem_http::{Method, RequestHead, Scheme};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{ConnectionLimits, Limits, Mode};
use crate::back::doubles::{body_of, run};
use crate::back::tests_over_paths;
use crate::error::Error;
use crate::exchange::Exchange;
use crate::path::Path;
use crate::stage::Stage as _;
use crate::transport::doubles::{FakeDial, served};

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

/// Serves a connection. It sends the late bytes after its first response.
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
    let origin = FakeDial::new(move |_| ready(Ok(served(|far| serve(far, late)))));
    let transport = Rc::clone(&origin) as _;
    let stage = tests_over_paths::to_origin(Mode::Forward, transport, Limits::default());
    if pipelines {
        let limits = ConnectionLimits {
            most: 1,
            dials_are_free: false,
            ahead: 0,
        };
        stage.0.pipeline(Box::new(move |_, _| limits));
    }
    let fetch = async |method| {
        let request = RequestHead {
            method,
            ..RequestHead::get(Scheme::Http, "site.example", "/")
        };
        body_of(stage.call(Exchange::internal(request))).await
    };
    assert_eq!(fetch(Method::Get).await, Ok(b"body".to_vec()));
    tokio::time::sleep(Duration::from_millis(100)).await;
    (fetch(method).await, origin.dials())
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
