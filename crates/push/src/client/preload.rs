//! The hint that tells a browser about a push with its page (RFC 8288; HTML standard, "preload").
//!
//! A browser uses a preload only for a request with the same mode and credentials. If an element of
//! the page requests the resource by CORS, the response to a preload without CORS may serve it from
//! the browser's cache. CDNs that name permitted origins only in responses to requests with
//! `Origin` then break the page. So hints name resources of other origins only if the mode of their
//! requests is certain, and that is so for fonts.

use tandem_http::{Method, RequestHead};

use crate::fetch_standard::{is_navigation, is_own_origin};

/// Returns the value of a `Link` field that makes the browser request a promised resource.
/// `document` is the browser's request to whose response the field is added. Returns `None` for a
/// push without a body, and for a resource of unknown kind or mode, which a browser would fetch
/// twice. The browser's request has no `Referer` if the promised one has none.
pub fn preload_link(document: Option<&RequestHead>, request: &RequestHead) -> Option<String> {
    if request.method != Method::Get {
        return None;
    }
    let path = request.path.split('?').next().unwrap_or_default();
    let kind = match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("css") => "style",
        Some("js") => "script",
        Some("woff2" | "woff") => "font",
        Some("png" | "jpg" | "jpeg" | "gif" | "webp" | "avif" | "svg") => "image",
        _ => return None,
    };
    // Fonts are always fetched by CORS, without credentials for other origins (CSS Fonts,
    // section 4.9, "font fetching requirements").
    let is_font = kind == "font";
    if !is_font && !document.is_some_and(|document| is_of_document(document, request)) {
        return None;
    }
    let is_by_cors = is_font || request.fields.get("sec-fetch-mode") == Some(b"cors");
    let mode = if is_by_cors { "; crossorigin" } else { "" };
    let policy = match request.fields.contains("referer") {
        true => "",
        false => "; referrerpolicy=no-referrer",
    };
    Some(format!(
        "<{}>; rel=preload; as={kind}{mode}{policy}",
        request.url()
    ))
}

/// Returns whether a resource has the origin of the document that a request asks for. Such a
/// resource needs no permission in either mode. The document of a style sheet is unknown, and a
/// document in a frame may be sandboxed.
fn is_of_document(document: &RequestHead, request: &RequestHead) -> bool {
    is_navigation(document) && is_own_origin(document, request.scheme.as_str(), &request.authority)
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    fn request(authority: &str, path: &str, fields: &[(&str, &str)]) -> RequestHead {
        let own = [("referer", "http://h/")];
        RequestHead {
            fields: own.iter().chain(fields).copied().collect(),
            ..RequestHead::get(Scheme::Http, authority, path)
        }
    }

    fn document() -> RequestHead {
        request("h", "/", &[("accept", "text/html")])
    }

    fn link_of(request: &RequestHead) -> Option<String> {
        preload_link(Some(&document()), request)
    }

    #[test]
    fn preload_names_the_kind_by_extension() {
        for (path, expected) in [
            (
                "/a.css?v=1.js",
                Some("</a.css?v=1.js>; rel=preload; as=style"),
            ),
            ("/a.js", Some("</a.js>; rel=preload; as=script")),
            (
                "/f.woff2",
                Some("</f.woff2>; rel=preload; as=font; crossorigin"),
            ),
            ("/i.avif", Some("</i.avif>; rel=preload; as=image")),
            ("/page", None),
            ("/a.html", None),
        ] {
            let link = link_of(&request("h", path, &[]));
            let expected = expected.map(|link| link.replacen('<', "<http://h", 1));
            assert_eq!(link, expected, "{path}");
        }
        let without_referrer = RequestHead::get(Scheme::Http, "h", "/a.css");
        let link = "<http://h/a.css>; rel=preload; as=style; referrerpolicy=no-referrer";
        assert_eq!(link_of(&without_referrer).as_deref(), Some(link));
        let check = RequestHead {
            method: Method::Head,
            ..request("h", "/a.css", &[])
        };
        assert_eq!(link_of(&check), None, "it has no body");
    }

    #[test]
    fn preload_has_the_mode_of_the_promise() {
        for (mode, expected) in [("cors", true), ("no-cors", false)] {
            let link = link_of(&request("h", "/a.js", &[("sec-fetch-mode", mode)]));
            let link = link.expect("it has the origin of the document");
            assert_eq!(link.ends_with("; crossorigin"), expected, "{link}");
        }
    }

    #[test]
    fn preload_names_only_fonts_of_other_origins() {
        for (authority, fields) in [
            ("cdn", &[][..]),
            ("h:81", &[]),
            ("cdn", &[("origin", "http://h"), ("sec-fetch-mode", "cors")]),
        ] {
            for (path, expected) in [("/a.js", false), ("/a.png", false), ("/a.woff2", true)] {
                let link = link_of(&request(authority, path, fields));
                assert_eq!(link.is_some(), expected, "{authority} {path}");
            }
        }
    }

    #[test]
    fn preload_needs_a_known_document() {
        let script = request("h", "/a.js", &[]);
        assert!(link_of(&script).is_some());
        assert_eq!(preload_link(None, &script), None);
        for fields in [
            ("accept", "text/css,*/*;q=0.1"),
            ("sec-fetch-dest", "iframe"),
        ] {
            let other = request("h", "/other", &[fields]);
            assert_eq!(preload_link(Some(&other), &script), None, "{fields:?}");
        }
    }
}
