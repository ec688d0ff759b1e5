//! Stale pages of the gateway's cache: which of their resources are promised before the origin has
//! answered.

use tandem_http::ResponseHead;
use tandem_push::gateway::{PromiseStream, ResponseId};

use crate::NAVIGATION;
use crate::pair::{Pair, request};

const PAGE: &str = "http://a.test/page";

/// The body of the stale page.
const BODY: &str = "<link rel=stylesheet href=a.css><script src=b.js></script>\
    <img src=//other.test/c.png><img src=d.png loading=lazy>\
    <meta http-equiv=refresh content='0; url=http://app.a.test/next'>";

fn head(kind: &str) -> ResponseHead {
    let mut head = ResponseHead::new(200);
    head.fields.push("content-type", kind);
    head.fields.push("etag", "\"1\"");
    head
}

/// Requests the page with more fields while its stale copy is validated. `fresh` lists the paths
/// that the cache holds.
fn visit(pair: &mut Pair, fields: &[(&str, &str)], fresh: &[&str]) -> (ResponseId, Vec<String>) {
    let all: Vec<_> = NAVIGATION.iter().chain(fields).copied().collect();
    let time = pair.time();
    let id = pair
        .gateway
        .handle_request(time, &request(PAGE, &all).into(), true)
        .expect("a page");
    let is_fresh = |request: &tandem_http::RequestHead| fresh.contains(&&*request.path);
    let body = [BODY].into_iter();
    pair.gateway
        .handle_stale_page(time, id, &head("text/html"), body, &is_fresh);
    let next = || {
        Some(
            pair.gateway
                .take_promise(PromiseStream::Response(id))?
                .request
                .path,
        )
    };
    (id, std::iter::from_fn(next).collect())
}

#[test]
fn fresh_resources_of_the_own_site_are_promised() {
    let mut pair = Pair::new(&[]);
    let all = ["/a.css", "/b.js", "/c.png", "/d.png", "/next"];
    assert_eq!(visit(&mut pair, &[], &all).1, ["/a.css", "/b.js"]);
    let mut pair = Pair::new(&[]);
    assert_eq!(visit(&mut pair, &[], &["/b.js"]).1, ["/b.js"]);
}

#[test]
fn browser_with_the_resources_gets_no_early_promise() {
    for fields in [
        ("cookie", "a=1"),
        ("referer", "http://a.test/"),
        ("purpose", "prefetch"),
        ("if-none-match", "\"1\""),
        ("cache-control", "no-cache"),
    ] {
        let mut pair = Pair::new(&[]);
        let promised = visit(&mut pair, &[fields], &["/a.css", "/b.js"]).1;
        assert!(promised.is_empty(), "{fields:?}: {promised:?}");
    }
}

#[test]
fn page_is_read_again_after_its_validation() {
    let mut pair = Pair::new(&[]);
    let (id, _) = visit(&mut pair, &[], &["/a.css"]);
    let mut new = head("text/html");
    pair.gateway.handle_head(pair.time(), id, &mut new, None);
    pair.gateway.handle_data(
        id,
        b"<script src=a.css></script><script src=new.js></script>",
    );
    let next = || {
        Some(
            pair.gateway
                .take_promise(PromiseStream::Response(id))?
                .request
                .path,
        )
    };
    let promised: Vec<_> = std::iter::from_fn(next).collect();
    assert_eq!(promised, ["/new.js"], "each resource once");
}

#[test]
fn another_response_than_the_page_gives_the_pushes_up() {
    let mut pair = Pair::new(&[]);
    let (id, _) = visit(&mut pair, &[], &["/a.css"]);
    let mut other = head("image/png");
    pair.gateway.handle_head(pair.time(), id, &mut other, None);
    assert!(!pair.gateway.interest_in(id).promises);
}

/// A shared cache may hold a response that was made for another user.
#[test]
fn cookie_of_the_stale_page_ends_with_its_validation() {
    let mut pair = Pair::new(&[]);
    let id = pair
        .gateway
        .handle_request(pair.time(), &request(PAGE, NAVIGATION).into(), true)
        .expect("a page");
    let mut stale = head("text/html");
    stale.fields.push("set-cookie", "id=stale");
    pair.gateway
        .handle_stale_page(pair.time(), id, &stale, [BODY].into_iter(), &|_| true);
    while pair
        .gateway
        .take_promise(PromiseStream::Response(id))
        .is_some()
    {}
    let mut new = head("text/html");
    pair.gateway.handle_head(pair.time(), id, &mut new, None);
    pair.gateway
        .handle_data(id, b"<script src=new.js></script>");
    let promise = pair.gateway.take_promise(PromiseStream::Response(id));
    let request = promise.expect("the page names a script").request;
    assert_eq!(request.fields.get("cookie"), None);
}
