//! The hint that tells a browser about a push with its page (RFC 8288; HTML standard, "preload").

use tandem_http::{Method, RequestHead};

/// Returns the value of a `Link` field that makes the browser request a promised resource; `None`
/// for a resource of unknown kind, which a browser would fetch twice, and for a push without a
/// body.
pub fn preload_link(request: &RequestHead) -> Option<String> {
    if request.method != Method::Get {
        return None;
    }
    let path = request.path.split('?').next().unwrap_or_default();
    let kind = match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("css") => "style",
        Some("js") => "script",
        Some("woff2" | "woff") => "font; crossorigin",
        Some("png" | "jpg" | "jpeg" | "gif" | "webp" | "avif" | "svg") => "image",
        _ => return None,
    };
    Some(format!("<{}>; rel=preload; as={kind}", request.url()))
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

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
            let link = preload_link(&RequestHead::get(Scheme::Http, "h", path));
            let expected = expected.map(|link| link.replacen('<', "<http://h", 1));
            assert_eq!(link, expected, "{path}");
        }
        let check = RequestHead {
            method: Method::Head,
            ..RequestHead::get(Scheme::Http, "h", "/a.css")
        };
        assert_eq!(preload_link(&check), None, "it has no body");
    }
}
