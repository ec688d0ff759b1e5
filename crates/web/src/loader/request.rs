//! Requests as Chromium makes them.

use tandem_http::message::is_token;
use tandem_http::{RequestHead, Scheme};

use super::{Loader, Via};
use crate::page::{ResourceKind, Site};

const USER_AGENT: &str = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/143.0.0.0 Safari/537.36";

/// The resource that a request is for, and the state of the browser.
pub(super) struct Asked {
    pub(super) resource: usize,
    /// The browser has a copy that must be validated.
    pub(super) is_conditional: bool,
    /// The field `Cookie`.
    pub(super) cookies: Option<String>,
}

/// The fields of a request between those of the connection and those of the user.
fn fields(loader: &Loader, site: &Site, asked: &Asked) -> Vec<(&'static str, String)> {
    let index = asked.resource;
    let kind = site.page().resources[index].kind;
    let mut fields: Vec<(&'static str, String)> = Vec::new();
    if kind == ResourceKind::Html {
        fields.push(("Upgrade-Insecure-Requests", "1".into()));
    }
    fields.push(("User-Agent", USER_AGENT.into()));
    fields.push(("Accept", accept(kind).into()));
    fields.extend(origin(site, index).map(|origin| ("Origin", origin)));
    fields.extend(referer(site, index).map(|referer| ("Referer", referer)));
    let more = loader.protocol == super::Protocol::H2 || site.scheme() == Scheme::Https;
    fields.push((
        "Accept-Encoding",
        if more {
            "gzip, deflate, br, zstd"
        } else {
            "gzip, deflate"
        }
        .into(),
    ));
    fields.push(("Accept-Language", "en-US,en;q=0.9".into()));
    if asked.is_conditional {
        fields.push(("If-None-Match", site.asset(index).etag.clone()));
    }
    fields.extend(asked.cookies.clone().map(|cookies| ("Cookie", cookies)));
    fields
}

/// The request for HTTP/2.
pub(super) fn head(loader: &Loader, site: &Site, asked: &Asked) -> RequestHead {
    let path = site.page().resources[asked.resource].path.clone();
    let authority = site.authority(asked.resource);
    let mut head = RequestHead::get(site.scheme(), authority, path);
    for (name, value) in fields(loader, site, asked) {
        head.fields.push(name, value);
    }
    for (name, value) in &loader.headers {
        head.fields.push(name, value);
    }
    head
}

/// The bytes of a request in HTTP/1.1, in absolute form for a proxy.
pub(super) fn bytes(loader: &Loader, site: &Site, asked: &Asked) -> Vec<u8> {
    let index = asked.resource;
    let resource = &site.page().resources[index];
    let authority = site.authority(index);
    let (target, connection) = match loader.via {
        Via::Http { .. } if site.scheme() == Scheme::Http => (site.url(index), "Proxy-Connection"),
        _ => (resource.path.clone(), "Connection"),
    };
    let mut text =
        format!("GET {target} HTTP/1.1\r\nHost: {authority}\r\n{connection}: keep-alive\r\n");
    for (name, value) in fields(loader, site, asked) {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    for (name, value) in &loader.headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    text.into_bytes()
}

const fn accept(kind: ResourceKind) -> &'static str {
    match kind {
        ResourceKind::Html => {
            "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8,\
             application/signed-exchange;v=b3;q=0.7"
        }
        ResourceKind::Css => "text/css,*/*;q=0.1",
        ResourceKind::Image => "image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8",
        ResourceKind::Script | ResourceKind::Font | ResourceKind::Fetch => "*/*",
    }
}

/// Returns the `Origin` of fonts and data on another origin than the document's: the document's
/// origin (Fetch section 3.2).
fn origin(site: &Site, index: usize) -> Option<String> {
    let resources = &site.page().resources;
    if !matches!(
        resources[index].kind,
        ResourceKind::Font | ResourceKind::Fetch
    ) {
        return None;
    }
    let document = above(site, index, |kind| kind == ResourceKind::Html)?;
    (site.authority(document) != site.authority(index))
        .then(|| format!("{}://{}", site.scheme().as_str(), site.authority(document)))
}

/// Returns the nearest resource of such a kind that leads to this one, or else the first that does.
/// Redirects are none: a redirected request keeps its referrer (Fetch section 4.4). A navigation
/// without a referrer has none after its redirects either.
fn above(site: &Site, index: usize, is: impl Fn(ResourceKind) -> bool) -> Option<usize> {
    let resources = &site.page().resources;
    let parents = std::iter::successors(resources[index].parent, |at| resources[*at].parent);
    let mut first = None;
    for parent in parents.filter(|at| !resources[*at].is_redirect()) {
        if is(resources[parent].kind) {
            return Some(parent);
        }
        first = Some(parent);
    }
    first
}

/// Returns the `Referer`: the whole URL of the referring resource on the same authority, and only
/// its origin elsewhere. The document is the referrer of resources that scripts load; style sheets
/// are referrers themselves.
fn referer(site: &Site, index: usize) -> Option<String> {
    let parent = above(site, index, |kind| kind != ResourceKind::Script)?;
    if site.authority(parent) == site.authority(index) {
        Some(site.url(parent))
    } else {
        Some(format!(
            "{}://{}/",
            site.scheme().as_str(),
            site.authority(parent)
        ))
    }
}

/// Returns true if a field can be written unchanged.
pub(super) fn is_field(name: &str, value: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(is_token)
        && value.bytes().all(|b| b == b' ' || b.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Caching, Page, Resource};

    #[test]
    fn redirected_request_keeps_its_referrer() {
        let resource = |path: &str, host, kind, parent, status| Resource {
            path: path.into(),
            host,
            mime: "x/y".into(),
            kind,
            size: 2000,
            status,
            parent,
            caching: Caching::default(),
            cookies: Vec::new(),
        };
        let page = Page {
            name: String::new(),
            hosts: vec!["a".into(), "b".into()],
            resources: vec![
                resource("/", 0, ResourceKind::Html, None, 301),
                resource("/on", 1, ResourceKind::Html, Some(0), 302),
                resource("/page", 1, ResourceKind::Html, Some(1), 200),
                resource("/moved.png", 0, ResourceKind::Image, Some(2), 302),
                resource("/i.png", 1, ResourceKind::Image, Some(3), 200),
            ],
        };
        let site = Site::new(page, &["site.test", "www.site.test"]).expect("valid");
        let referers = (0..5).map(|index| referer(&site, index));
        let page = "http://www.site.test/page";
        let origin = "http://www.site.test/";
        let said: Vec<_> = referers.collect();
        let said: Vec<_> = said.iter().map(Option::as_deref).collect();
        assert_eq!(said, [None, None, None, Some(origin), Some(page)]);
    }

    #[test]
    fn origin_and_referer_follow_browsers() {
        let resource = |path: &str, host, kind, parent| Resource {
            path: path.into(),
            host,
            mime: "x/y".into(),
            kind,
            size: 2000,
            status: 200,
            parent,
            caching: Caching::default(),
            cookies: Vec::new(),
        };
        let page = Page {
            name: "page".into(),
            hosts: vec!["site".into(), "cdn".into()],
            resources: vec![
                resource("/", 0, ResourceKind::Html, None),
                resource("/a.css", 1, ResourceKind::Css, Some(0)),
                resource("/f.woff2", 1, ResourceKind::Font, Some(1)),
                resource("/m.js", 0, ResourceKind::Script, Some(0)),
                resource("/i.png", 0, ResourceKind::Image, Some(3)),
                resource("/api", 1, ResourceKind::Fetch, Some(3)),
                resource("/own.woff2", 0, ResourceKind::Font, Some(1)),
            ],
        };
        let site = Site::new(page, &["site.test", "cdn.test"]).expect("valid");
        let said = |index| (referer(&site, index), origin(&site, index));
        let by = |referer: &str| Some(format!("http://{referer}"));
        assert_eq!(said(0), (None, None));
        assert_eq!(
            said(1),
            (by("site.test/"), None),
            "another host learns no more than the origin"
        );
        assert_eq!(
            said(2),
            (by("cdn.test/a.css"), by("site.test")),
            "a style sheet asks in its own name, by the page's leave"
        );
        assert_eq!(
            said(4),
            (by("site.test/"), None),
            "a script asks in its document's name"
        );
        assert_eq!(said(5), (by("site.test/"), by("site.test")));
        assert_eq!(said(6), (by("cdn.test/"), None));
    }
}
