//! The resources that the head of a response names. Two fields name them:
//!
//! - `X-Associated-Content: "url"[:priority], …`, a field of mod_spdy. The gateway removes it.
//! - `Link: <url>; rel=preload; as=…` (RFC 8288), unless it has `nopush`.

use tandem_http::ResponseHead;
use tandem_preload::{Kind, Need, resolve};

const ASSOCIATED: &str = "x-associated-content";

/// Returns whether the head of a response may name resources.
pub(crate) fn names_resources(head: &ResponseHead) -> bool {
    head.fields.contains("link") || head.fields.contains(ASSOCIATED)
}

/// Returns the resources that the head of the response to a request for `page` names, in order.
pub fn named_resources(page: &str, head: &mut ResponseHead) -> Vec<Need> {
    let mut needs = Vec::new();
    for value in head.fields.get_all(ASSOCIATED) {
        for item in String::from_utf8_lossy(value).split(',') {
            let mut quoted = item.trim().splitn(3, '"');
            let (Some(""), Some(url), Some(rest)) = (quoted.next(), quoted.next(), quoted.next())
            else {
                continue;
            };
            let priority = rest
                .trim()
                .strip_prefix(':')
                .and_then(|n| n.parse().ok())
                .filter(|n| *n < 8);
            needs.extend(need(page, url, Kind::Other, priority.unwrap_or(4)));
        }
    }
    for value in head.fields.get_all("link") {
        preloads(page, &String::from_utf8_lossy(value), &mut needs);
    }
    head.fields.remove(ASSOCIATED);
    needs
}

fn need(page: &str, url: &str, kind: Kind, urgency: u8) -> Option<Need> {
    Some(Need {
        url: resolve(page, url)?,
        kind,
        urgency,
        anonymous: kind == Kind::Font,
        referrer: None,
        via: None,
        frame: None,
    })
}

/// Appends the targets of a `Link` field that have `rel=preload`.
fn preloads(page: &str, value: &str, needs: &mut Vec<Need>) {
    let mut rest = value;
    while let Some((_, after)) = rest.split_once('<') {
        let Some((url, after)) = after.split_once('>') else {
            break;
        };
        // Parameters run up to the next target.
        let (parameters, _) = after
            .split_once(",<")
            .or_else(|| after.split_once(", <"))
            .unwrap_or((after, ""));
        rest = &after[parameters.len()..];
        let parameter = |name: &str| {
            parameters
                .split(';')
                .find_map(|p| p.trim().strip_prefix(name)?.trim().strip_prefix('='))
                .map(|v| v.trim().trim_end_matches(',').trim_matches('"'))
        };
        let is_preload = parameter("rel")
            .is_some_and(|rel| rel.split(' ').any(|r| r.eq_ignore_ascii_case("preload")));
        let nopush = parameters
            .split(';')
            .any(|p| p.trim().eq_ignore_ascii_case("nopush"));
        if is_preload && !nopush {
            let (kind, urgency) = match parameter("as") {
                Some("style") => (Kind::Style, 1),
                Some("script") => (Kind::Script, 2),
                Some("font") => (Kind::Font, 3),
                Some("image") => (Kind::Image, 4),
                _ => (Kind::Other, 4),
            };
            needs.extend(need(page, url.trim(), kind, urgency));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_read_from_both_fields() {
        let mut head = ResponseHead::new(200);
        head.fields.push(
            "x-associated-content",
            "\"/a.css\":1, \"http://h/b.js\", nonsense, \"",
        );
        head.fields.push(
            "link",
            "</c.css>; rel=preload; as=style, </d>; rel=next, <e.png>;rel=\"preload\";as=image, \
             </f>; rel=preload; nopush",
        );
        let needs = named_resources("http://h/dir/page", &mut head);
        let found: Vec<_> = needs
            .iter()
            .map(|need| (need.url.as_str(), need.urgency))
            .collect();
        assert_eq!(
            found,
            [
                ("http://h/a.css", 1),
                ("http://h/b.js", 4),
                ("http://h/c.css", 1),
                ("http://h/dir/e.png", 4)
            ]
        );
        assert!(!head.fields.contains(ASSOCIATED) && head.fields.contains("link"));
    }

    #[test]
    fn preload_has_the_kind_of_its_destination() {
        let mut head = ResponseHead::new(200);
        assert!(!names_resources(&head));
        head.fields.push(
            "link",
            "</a.css>; rel=preload; as=style, </b.js>; rel=preload; as=script, \
             </c.woff2>; rel=preload; as=font, </d.png>; rel=preload; as=image, \
             </e>; rel=preload; as=track",
        );
        assert!(names_resources(&head));
        let needs = named_resources("http://h/", &mut head);
        let found: Vec<_> = needs
            .iter()
            .map(|need| (need.kind, need.urgency, need.anonymous))
            .collect();
        let expected = [
            (Kind::Style, 1, false),
            (Kind::Script, 2, false),
            (Kind::Font, 3, true),
            (Kind::Image, 4, false),
            (Kind::Other, 4, false),
        ];
        assert_eq!(found, expected);
        let mut head = ResponseHead::new(200);
        head.fields.push(ASSOCIATED, "\"/a.css\"");
        assert!(names_resources(&head));
    }

    proptest::proptest! {
        #[test]
        fn resources_have_absolute_urls(
            link in "(<?[a-z/:.#?,;]{0,12}>?;? ?(rel=\"?preload\"?|as=style|nopush)?,? ?){0,6}",
            associated in "(\"?[a-z/:.]{0,10}\"?:?[0-9]?,? ?){0,6}",
        ) {
            let mut head = ResponseHead::new(200);
            head.fields.push("link", link);
            head.fields.push("x-associated-content", associated);
            for need in named_resources("http://h/dir/page?x", &mut head) {
                proptest::prop_assert!(need.urgency < 8);
                let is_http = need.url.starts_with("http://") || need.url.starts_with("https://");
                proptest::prop_assert!(is_http, "{}", need.url);
            }
        }
    }
}
