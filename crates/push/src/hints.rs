//! The resources that the head of a response names. Two fields name them:
//!
//! - `X-Associated-Content: "url"[:priority], …`, a field of mod_spdy. The gateway removes it.
//! - `Link: <url>; rel=preload; as=…` (RFC 8288), unless it has `nopush`. The rules for `as`,
//!   `media`, `type`, `imagesrcset`, `crossorigin` and others are those of `<link rel=preload>`.

use tandem_http::ResponseHead;
use tandem_preload::{Kind, LAZY, Need, Scanner, resolve};

use crate::fetch_standard::policy_nonce;

/// The largest number of `Link` targets of one head that are read.
const MAX_LINKS: usize = 64;

/// The largest number of parameters of a target. A target with more of them is left out, since a
/// later one may be `nopush`.
const MAX_PARAMETERS: usize = 32;

const ASSOCIATED: &str = "x-associated-content";

/// Returns whether the head of a response may name resources.
pub(crate) fn names_resources(head: &ResponseHead) -> bool {
    head.fields.contains("link") || head.fields.contains(ASSOCIATED)
}

/// Returns the resources that the head of the response to a request for `page` names, in order.
/// Only the head of a document has policies, and a nonce with which they admit a resource.
pub fn named_resources(page: &str, head: &mut ResponseHead, is_document: bool) -> Vec<Need> {
    let mut needs = Vec::new();
    for value in head.fields.get_all(ASSOCIATED) {
        for item in String::from_utf8_lossy(value).split(',') {
            let mut quoted = item.trim().splitn(3, '"');
            let (Some(""), Some(url), Some(rest)) = (quoted.next(), quoted.next(), quoted.next())
            else {
                continue;
            };
            // The urgency of lazy resources is no priority here.
            let priority = rest
                .trim()
                .strip_prefix(':')
                .and_then(|n| n.parse().ok())
                .filter(|n| *n < 8)
                .map(|n: u8| n.min(LAZY - 1));
            needs.extend(need(page, url, Kind::Other, priority.unwrap_or(4)));
        }
    }
    if let Some(scanner) = Scanner::html(page) {
        let mut scanner = scanner.nonce(policy_nonce(head).filter(|_| is_document));
        let mut left = MAX_LINKS;
        for value in head.fields.get_all("link") {
            let value = String::from_utf8_lossy(value);
            for link in Links(&value) {
                if left == 0 {
                    break;
                }
                left -= 1;
                if !link.has("nopush") && !link.is_unclear {
                    let parameters = link.parameters.iter();
                    let parameters = parameters.map(|(name, value)| (&**name, &**value));
                    scanner.preload_link(link.target, parameters, &mut needs);
                }
            }
        }
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
        by_cors: kind == Kind::Font,
        referrer: None,
        via: None,
        frame: None,
        has_nonce: false,
    })
}

/// A target of the field `Link`, and its parameters with names in lower case.
struct Link<'a> {
    target: &'a str,
    parameters: Vec<(String, String)>,
    /// True if a part of the parameters was not read. It may contain `nopush`.
    is_unclear: bool,
}

impl Link<'_> {
    fn has(&self, name: &str) -> bool {
        self.parameters.iter().any(|(known, _)| known == name)
    }
}

/// The targets of a `Link` field that are still unread (RFC 8288, appendix B.2). Each byte is read
/// once.
struct Links<'a>(&'a str);

impl<'a> Iterator for Links<'a> {
    type Item = Link<'a>;

    fn next(&mut self) -> Option<Link<'a>> {
        let rest = self.0.trim_start_matches([' ', '\t', ',']);
        let (target, mut rest) = rest.strip_prefix('<')?.split_once('>')?;
        let mut parameters = Vec::new();
        let mut is_unclear = false;
        loop {
            rest = rest.trim_start_matches([' ', '\t']);
            let Some(after) = rest.strip_prefix(';') else {
                break;
            };
            let Some((parameter, after)) = parameter(after) else {
                is_unclear = true;
                rest = "";
                break;
            };
            match parameter {
                Some(_) if parameters.len() >= MAX_PARAMETERS => is_unclear = true,
                parameter => parameters.extend(parameter),
            }
            rest = after;
        }
        // Text after a parameter belongs to no target.
        let end = rest.find(',').unwrap_or(rest.len());
        self.0 = rest.get(end..).unwrap_or_default();
        let target = target.trim();
        Some(Link {
            target,
            parameters,
            is_unclear,
        })
    }
}

/// A parameter with its value, unless it has no name, and the text after it.
type Read<'a> = (Option<(String, String)>, &'a str);

/// Reads a parameter. Its value may be quoted. Returns `None` if the quote has no end.
fn parameter(text: &str) -> Option<Read<'_>> {
    let text = text.trim_start_matches([' ', '\t']);
    let (name, rest) = text.split_at(text.find(['=', ';', ',']).unwrap_or(text.len()));
    let name = name.trim().to_ascii_lowercase();
    let Some(rest) = rest.strip_prefix('=') else {
        let named = (!name.is_empty()).then(|| (name, String::new()));
        return Some((named, rest));
    };
    let rest = rest.trim_start_matches([' ', '\t']);
    let Some(quoted) = rest.strip_prefix('"') else {
        let (value, rest) = rest.split_at(rest.find([';', ',']).unwrap_or(rest.len()));
        return Some((Some((name, value.trim().to_owned())), rest));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => {
                let after = quoted.get(at + 1..).unwrap_or_default();
                return Some((Some((name, value)), after));
            }
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            _ => value.push(character),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_read_from_both_fields() {
        let mut head = ResponseHead::new(200);
        head.fields.push(
            "x-associated-content",
            "\"/a.css\":1, \"http://h/b.js\", nonsense, \"/z.js\":7, \"",
        );
        head.fields.push(
            "link",
            "</c.css>; rel=preload; as=style, </d>; rel=next, <e.png>;rel=\"preload\";as=image, \
             </f>; rel=preload; as=image; nopush",
        );
        let needs = named_resources("http://h/dir/page", &mut head, true);
        let found: Vec<_> = needs
            .iter()
            .map(|need| (need.url.as_str(), need.urgency))
            .collect();
        assert_eq!(
            found,
            [
                ("http://h/a.css", 1),
                ("http://h/b.js", 4),
                ("http://h/z.js", 6),
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
             </e>; rel=preload; as=fetch",
        );
        assert!(names_resources(&head));
        let needs = named_resources("http://h/", &mut head, true);
        let found: Vec<_> = needs
            .iter()
            .map(|need| (need.kind, need.urgency, need.anonymous))
            .collect();
        let expected = [
            (Kind::Style, 1, false),
            (Kind::Script, 2, false),
            (Kind::Font, 2, false),
            (Kind::Image, 4, false),
            (Kind::Fetch, 3, false),
        ];
        assert_eq!(found, expected);
        let mut head = ResponseHead::new(200);
        head.fields.push(ASSOCIATED, "\"/a.css\"");
        assert!(names_resources(&head));
    }

    fn links(value: &str) -> Vec<(String, bool)> {
        let mut head = ResponseHead::new(200);
        head.fields.push("link", value);
        let needs = named_resources("http://h/dir/page", &mut head, true).into_iter();
        needs.map(|need| (need.url, need.anonymous)).collect()
    }

    #[test]
    fn link_preload_has_the_rules_of_an_element() {
        for refused in [
            "</v>; rel=preload; as=video",
            "</v>; rel=preload; as=audio",
            "</v>; rel=preload; as=unknown",
            "</v>; rel=preload",
            "</v>; rel=prefetch; as=image",
            "</v>; as=image",
            "</v>; rel=preload; as=style; media=print",
            "</v>; rel=preload; as=image; media=\"(max-width: 100px)\"",
            "</v>; rel=preload; as=image; type=image/unknown",
            "</v>; rel=preload; as=font; type=\"text/plain\"",
            "</v>; rel=preload; as=image; NoPush",
            "</v>; rel=next; rel=preload; as=image",
            "</v>; title=\"no end; rel=preload; as=image",
            "</v>; rel=preload; as=image; title=\"no end; nopush",
            "</v>; rel=preload; as=image; title=\"no end, </w>; rel=preload; as=image",
        ] {
            assert_eq!(links(refused), [], "{refused}");
        }
        for (value, url, anonymous) in [
            (
                "</v?a&copy=1>; REL=Preload; as=\"Image\"",
                "http://h/v?a&copy=1",
                false,
            ),
            (
                "</v>; rel=\"next preload\"; as=image; media=screen",
                "http://h/v",
                false,
            ),
            (
                "<http://b/f>; rel=preload; as=font; crossorigin",
                "http://b/f",
                true,
            ),
            ("<http://b/f>; rel=preload; as=font", "http://b/f", false),
            (
                "<s.jpg>; rel=preload; as=image; imagesrcset=\"m.jpg 640w, l.jpg 1280w\"; \
                 imagesizes=50vw",
                "http://h/dir/m.jpg",
                false,
            ),
        ] {
            assert_eq!(links(value), [(url.to_owned(), anonymous)], "{value}");
        }
    }

    #[test]
    fn link_with_too_many_parameters_is_left_out() {
        let link = |others: usize, last: &str| {
            let others = "; x=1".repeat(others);
            links(&format!(
                "</v>; rel=preload; as=image{others}{last}, </w>; rel=preload; as=image"
            ))
        };
        let of = |urls: &[&str]| -> Vec<(String, bool)> {
            urls.iter().map(|url| ((*url).to_owned(), false)).collect()
        };
        let most = MAX_PARAMETERS - 2;
        assert_eq!(link(most, ""), of(&["http://h/v", "http://h/w"]));
        assert_eq!(link(most - 1, "; nopush"), of(&["http://h/w"]));
        assert_eq!(link(most, "; nopush"), of(&["http://h/w"]));
        assert_eq!(link(most, "; x=1"), of(&["http://h/w"]));
    }

    #[test]
    fn preload_may_have_the_nonce_of_its_policy() {
        let mut head = ResponseHead::new(200);
        let policy = "script-src 'nonce-a' 'strict-dynamic'";
        head.fields.push("content-security-policy", policy);
        let link = "</a.js>; rel=preload; as=script; nonce=a, </b.js>; rel=preload; as=script; \
                    nonce=b, </c.png>; rel=preload; as=image; nonce=a";
        head.fields.push("link", link);
        for (is_document, expected) in [(true, [true, false, false]), (false, [false; 3])] {
            let needs = named_resources("http://h/", &mut head, is_document).into_iter();
            let found: Vec<_> = needs.map(|need| need.has_nonce).collect();
            assert_eq!(found, expected, "{is_document}");
        }
    }

    #[test]
    fn quotes_hide_separators() {
        let value = "</a>; title=\"x, <y>; nopush \\\" ;\"; rel=preload; as=image, nonsense , \
                     </b>;rel=preload;as=image,</c>; rel = preload ; as = image";
        let found: Vec<_> = links(value).into_iter().map(|(url, _)| url).collect();
        assert_eq!(found, ["http://h/a"]);
        let value = value.replace("nonsense , ", "");
        let found: Vec<_> = links(&value).into_iter().map(|(url, _)| url).collect();
        assert_eq!(found, ["http://h/a", "http://h/b", "http://h/c"]);
    }

    #[test]
    fn large_head_is_read_once() {
        let value: String = (0..2000)
            .map(|at| format!("</{at:05}>; rel=preload; as=image, "))
            .collect();
        assert!(value.len() > 64 << 10);
        assert_eq!(links(&value).len(), MAX_LINKS);
        let mut head = ResponseHead::new(200);
        for value in [
            "<".repeat(64 << 10),
            "<>,".repeat(64 << 10),
            ";".repeat(64 << 10),
        ] {
            head.fields.push("link", value);
        }
        assert!(named_resources("http://h/", &mut head, true).is_empty());
        // Targets that are not preloads count as well.
        let others = "</x>; rel=next, ".repeat(MAX_LINKS);
        assert_eq!(links(&format!("{others}</a>; rel=preload; as=image")), []);
        let parameters = format!("</a>{}; rel=preload; as=image", "; x=1".repeat(12 << 10));
        assert_eq!(links(&parameters), []);
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
            for need in named_resources("http://h/dir/page?x", &mut head, true) {
                proptest::prop_assert!(need.urgency < 8);
                let is_http = need.url.starts_with("http://") || need.url.starts_with("https://");
                proptest::prop_assert!(is_http, "{}", need.url);
            }
        }
    }
}
