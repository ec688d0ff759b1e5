//! An HTTP/3 core against a peer that breaks one rule after the other, and against floods.

mod bounds;
mod frames;
mod messages;
mod pushed;
mod pushes;

use tandem_http::SessionError;
use tandem_http::h3::Code;

use crate::support::*;

fn server() -> Raw {
    Raw::new(server_config())
}

fn client() -> Raw {
    let mut raw = Raw::new(client_config());
    raw.open(&get("/"));
    raw
}

/// Checks that the session ends with this code, and takes nothing more.
fn assert_fatal(mut raw: Raw, result: Result<(), SessionError>, code: Code, case: &str) {
    let error = result.expect_err(case);
    let (seen, detail) = raw.end.core.failure().expect(case);
    assert_eq!((seen, detail), (code, error.detail), "{case}");
    assert_eq!(error.reason, code.reason(), "{case}");
    assert_eq!(raw.part(400, b"x", false), Err(error), "{case}");
    assert_eq!(raw.end.core.poll_ready(), None, "{case}");
}
