//! What an origin itself says that a page will need: the gateway fetches it and pushes it before it is asked for.
//!
//! `X-Associated-Content: "url"[:priority], …` (mod_spdy's field, removed here) and `Link: <url>; rel=preload` (RFC 8288)
//! of a 200 answer to a GET name it. Only resources of the page's own origin are pushed: the cookies that go along are its
//! own. What cannot be pushed on the session costs nothing: a reply that nobody pulls has not begun.

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll};

use tandem_http::{Fields, Method, Priority, RequestHead, ResponseHead};

use crate::error::Error;
use crate::exchange::{Body, Exchange, Isolation, Part, Parts, Peer, Reply};
use crate::metrics::METRICS;
use crate::stage::Stage;

/// Resources pushed for one page at most.
const MAX_PUSHES: usize = 64;

/// Fields of the page's request that a push repeats: what the browser would send again.
const INHERITED: [&[u8]; 7] =
    [b"user-agent", b"accept-encoding", b"accept-language", b"cookie", b"dnt", b"sec-gpc", b"authorization"];

/// The stage.
pub struct Associated {
    /// Where exchanges, and those made here, go on.
    pub next: Rc<dyn Stage>,
}

impl Stage for Associated {
    fn call(&self, exchange: Exchange) -> Reply {
        let page = (exchange.request.method == Method::Get).then(|| Page {
            request: exchange.request.clone(),
            peer: exchange.peer,
            isolation: exchange.isolation.clone(),
        });
        let reply = self.next.call(exchange);
        match page {
            Some(page) => {
                Reply::new(Associating { reply, page: Some(page), next: Rc::clone(&self.next), ready: VecDeque::new() })
            }
            None => reply,
        }
    }
}

/// What is known of a request whose answer may name others.
struct Page {
    request: RequestHead,
    peer: Peer,
    isolation: Isolation,
}

struct Associating {
    reply: Reply,
    /// Until the head has been seen.
    page: Option<Page>,
    next: Rc<dyn Stage>,
    ready: VecDeque<Part>,
}

impl Parts for Associating {
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        if let Some(part) = self.ready.pop_front() {
            return Poll::Ready(Some(Ok(part)));
        }
        let part = std::task::ready!(self.reply.poll_part(cx));
        let Some(Ok(Part::Head(mut head))) = part else { return Poll::Ready(part) };
        let named = named(&mut head);
        if let Some(page) = self.page.take().filter(|_| head.status == 200) {
            for (url, priority) in named.into_iter().take(MAX_PUSHES) {
                let Some(path) = own_path(&page.request, &url) else { continue };
                METRICS.pushes_promised.add(1);
                let (request, reply) = push(&page, path, priority, &*self.next);
                self.ready.push_back(Part::Pushed { request, reply });
            }
        }
        self.ready.push_back(Part::Head(head));
        Poll::Ready(self.ready.pop_front().map(Ok))
    }
}

fn push(page: &Page, path: String, priority: Priority, next: &dyn Stage) -> (RequestHead, Reply) {
    let mut fields: Fields = page
        .request
        .fields
        .iter()
        .filter(|field| INHERITED.contains(&field.name))
        .map(|field| (field.name, field.value))
        .collect();
    fields.push("accept", "*/*");
    let of = &page.request;
    fields.push("referer", format!("{}://{}{}", of.scheme.as_str(), of.authority, of.path));
    let request = RequestHead { path, fields, ..RequestHead::get(of.scheme, of.authority.clone(), "") };
    let exchange = Exchange {
        request: request.clone(),
        body: Body::empty(),
        isolation: page.isolation.clone(),
        peer: page.peer,
        priority,
    };
    (request, next.call(exchange))
}

/// The URLs that a head names, in order, and how urgent each is. `X-Associated-Content` is taken out: it is meant for us.
fn named(head: &mut ResponseHead) -> Vec<(String, Priority)> {
    let mut urls = Vec::new();
    for value in head.fields.get_all("x-associated-content") {
        for item in String::from_utf8_lossy(value).split(',') {
            let mut quoted = item.trim().splitn(3, '"');
            let (Some(""), Some(url), Some(rest)) = (quoted.next(), quoted.next(), quoted.next()) else { continue };
            let priority = rest.trim().strip_prefix(':').and_then(|n| n.parse().ok()).filter(|n| *n < 8);
            urls.push((url.to_owned(), Priority(priority.unwrap_or(4))));
        }
    }
    for value in head.fields.get_all("link") {
        urls.extend(preloads(&String::from_utf8_lossy(value)));
    }
    head.fields.remove("x-associated-content");
    urls
}

/// Targets of a `Link` field with `rel=preload`, unless they say `nopush`.
fn preloads(value: &str) -> Vec<(String, Priority)> {
    let mut found = Vec::new();
    let mut rest = value;
    while let Some((_, after)) = rest.split_once('<') {
        let Some((url, after)) = after.split_once('>') else { break };
        // Parameters run up to the next target.
        let (parameters, _) = after.split_once(",<").or_else(|| after.split_once(", <")).unwrap_or((after, ""));
        rest = &after[parameters.len()..];
        let parameter = |name: &str| {
            parameters
                .split(';')
                .find_map(|p| p.trim().strip_prefix(name)?.trim().strip_prefix('='))
                .map(|v| v.trim().trim_matches('"'))
        };
        let is_preload = parameter("rel").is_some_and(|rel| rel.split(' ').any(|r| r.eq_ignore_ascii_case("preload")));
        let nopush = parameters.split(';').any(|p| p.trim().eq_ignore_ascii_case("nopush"));
        if is_preload && !nopush {
            let priority = match parameter("as") {
                Some("style" | "script" | "font") => 3,
                _ => 5,
            };
            found.push((url.trim().to_owned(), Priority(priority)));
        }
    }
    found
}

/// The path of `url` when it is of the page's own origin; `None` otherwise.
fn own_path(page: &RequestHead, url: &str) -> Option<String> {
    let url = url.split('#').next().unwrap_or_default();
    if url.is_empty() {
        return None;
    }
    let path = if let Some((scheme, rest)) = url.split_once("://") {
        let (authority, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        let same = scheme.eq_ignore_ascii_case(page.scheme.as_str()) && authority.eq_ignore_ascii_case(&page.authority);
        same.then(|| path.to_owned())?
    } else if url.starts_with("//") {
        return own_path(page, &format!("{}:{url}", page.scheme.as_str()));
    } else if url.starts_with('/') {
        url.to_owned()
    } else if url.split(['/', '?']).next().is_some_and(|first| first.contains(':')) {
        // Another scheme, such as data.
        return None;
    } else {
        let base = page.path.split('?').next().unwrap_or_default();
        format!("{}{url}", &base[..=base.rfind('/')?])
    };
    let fit = !path.is_empty()
        && path.len() <= 4096
        && path != page.path
        && !path.contains("/.")
        && path.bytes().all(|b| b.is_ascii_graphic());
    fit.then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_http::Scheme;

    #[test]
    fn reads_both_fields() {
        let mut head = ResponseHead::new(200);
        head.fields.push("x-associated-content", "\"/a.css\":1, \"http://h/b.js\", nonsense, \"");
        head.fields.push("link", "</c.css>; rel=preload; as=style, </d>; rel=next, <e.png>;rel=\"preload\";as=image, </f>; rel=preload; nopush");
        let urls = named(&mut head);
        let expected = [("/a.css", 1), ("http://h/b.js", 4), ("/c.css", 3), ("e.png", 5)];
        assert_eq!(urls, expected.map(|(url, priority)| (url.to_owned(), Priority(priority))));
        assert!(!head.fields.contains("x-associated-content") && head.fields.contains("link"));
    }

    #[test]
    fn pushes_only_the_page_s_own() {
        let page = RequestHead::get(Scheme::Http, "h", "/dir/page?x");
        for (url, path) in [
            ("/a", Some("/a")),
            ("b.css", Some("/dir/b.css")),
            ("http://h/c#part", Some("/c")),
            ("//h/d", Some("/d")),
            ("http://other/e", None),
            ("https://h/f", None),
            ("/dir/page?x", None),
            ("/with space", None),
            ("", None),
            ("data:text/css,x", None),
            ("../up", None),
        ] {
            assert_eq!(own_path(&page, url).as_deref(), path, "{url}");
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_an_origin_names_is_of_the_page_s_origin(
            link in "(<?[a-z/:.#?,;]{0,12}>?;? ?(rel=\"?preload\"?|as=style|nopush)?,? ?){0,6}",
            associated in "(\"?[a-z/:.]{0,10}\"?:?[0-9]?,? ?){0,6}",
        ) {
            let mut head = ResponseHead::new(200);
            head.fields.push("link", link);
            head.fields.push("x-associated-content", associated);
            let page = RequestHead::get(Scheme::Http, "h", "/dir/page?x");
            for (url, priority) in named(&mut head) {
                proptest::prop_assert!(priority.0 < 8);
                if let Some(path) = own_path(&page, &url) {
                    proptest::prop_assert!(path.starts_with('/') && !path.contains("/."), "{}", path);
                }
            }
        }
    }
}
