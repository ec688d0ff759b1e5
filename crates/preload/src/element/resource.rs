//! Single elements: the resource that an element names, its kind, and its urgency.

use super::super::attribute::{Attributes, Name};
use super::super::image::{self, Offer};
use super::super::media;
use super::super::{Ask, Cors, Kind, Referrer, Sink, urgency};
use super::*;

/// Handles a target of the field `Link` that may be a preload.
pub(crate) fn preload_link<'a>(
    target: &'a str,
    parameters: impl IntoIterator<Item = (&'a str, &'a str)>,
    sink: &mut Sink,
) {
    let mut attributes = Attributes::new();
    for (name, value) in [("href", target)].into_iter().chain(parameters) {
        attributes.begin(Some(name.as_bytes()));
        // Values of elements may have character references, those of fields have none.
        attributes.push(value.replace('&', "&amp;").as_bytes());
        attributes.end();
    }
    let rel = attributes.text(Name::Rel);
    let mut relations = rel.split_ascii_whitespace();
    let is_preload = relations.any(|rel| rel.eq_ignore_ascii_case("preload"));
    if is_preload && media::matches(&attributes.text(Name::Media), sink.viewport) != Some(false) {
        sink.element_referrer = Referrer::parse(&attributes.text(Name::Referrerpolicy));
        sink.element_has_nonce = attributes.has_nonce(sink.nonce.as_deref());
        preload(&attributes, sink);
        sink.element_referrer = None;
        sink.element_has_nonce = false;
    }
}

pub(super) fn preload(attributes: &Attributes, sink: &mut Sink) {
    let destination = attributes.text(Name::As).trim().to_ascii_lowercase();
    let media_type = attributes.text(Name::Type);
    let (kind, usual, known) = match destination.as_str() {
        "style" => (Kind::Style, urgency::HEAD_STYLE, true),
        "script" => (
            Kind::Script,
            urgency::HEAD_SCRIPT,
            media_type.is_empty() || is_script_type(&media_type),
        ),
        "font" => (
            Kind::Font,
            urgency::PRELOADED_FONT,
            is_font_type(&media_type),
        ),
        "image" => (
            Kind::Image,
            urgency::FIRST_IMAGE,
            sink.formats.shows(&media_type),
        ),
        "track" => (Kind::Media, urgency::TRACK, true),
        "fetch" => (Kind::Fetch, urgency::FETCH, true),
        _ => return,
    };
    if !known {
        return;
    }
    let ask = Ask::new(kind, by_priority(usual, attributes)).cors(cors(attributes));
    if kind == Kind::Image {
        return offer_image(
            attributes,
            [Name::Href, Name::Imagesrcset, Name::Imagesizes],
            ask,
            sink,
        );
    }
    sink.offer(&attributes.text(Name::Href), ask);
}

/// Returns true if browsers use fonts of this type; an absent type counts as usable.
pub(super) fn is_font_type(media_type: &str) -> bool {
    let name = media_type.trim().to_ascii_lowercase();
    name.is_empty()
        || [
            "woff",
            "ttf",
            "otf",
            "truetype",
            "opentype",
            "sfnt",
            "collection",
        ]
        .iter()
        .any(|known| name.contains(known))
}

/// Returns the kind of need for a destination (the attribute `as`).
pub(super) fn kind_of(destination: &str) -> Option<Kind> {
    Some(match destination.trim().to_ascii_lowercase().as_str() {
        "style" => Kind::Style,
        "script" | "worker" | "sharedworker" => Kind::Script,
        "image" => Kind::Image,
        "font" => Kind::Font,
        "audio" | "video" | "track" => Kind::Media,
        "fetch" => Kind::Fetch,
        "document" => Kind::Document,
        _ => return None,
    })
}

pub(super) fn offer_image(
    attributes: &Attributes,
    [plain, set, sizes]: [Name; 3],
    ask: Ask,
    sink: &mut Sink,
) {
    let (plain, set, sizes) = (
        attributes.text(plain),
        attributes.text(set),
        attributes.text(sizes),
    );
    let offer = Offer {
        plain: &plain,
        set: &set,
        sizes: &sizes,
        width: width(attributes),
    };
    if let Some(url) = image::choose(offer, sink.viewport) {
        sink.offer(url, ask);
    }
}

pub(super) fn width(attributes: &Attributes) -> Option<f32> {
    attributes
        .get(Name::Width)?
        .trim()
        .parse::<f32>()
        .ok()
        .filter(|width| width.is_finite())
}

/// A sandboxed frame has an origin of its own unless the attribute lists `allow-same-origin`
/// (HTML standard, "sandboxed origin browsing context flag"). Its requests differ from those of
/// other documents at its URL, so it is no need. With `credentialless`, they have other cookies.
pub(super) fn frame(attributes: &Attributes, sink: &mut Sink) {
    let sandbox = attributes.text(Name::Sandbox);
    let mut flags = sandbox.split_ascii_whitespace();
    let keeps_origin = flags.any(|flag| flag.eq_ignore_ascii_case("allow-same-origin"));
    let is_sandboxed = attributes.has(Name::Sandbox) && !keeps_origin;
    let has_own_requests = is_sandboxed || attributes.has(Name::Credentialless);
    if attributes.has(Name::Srcdoc) || has_own_requests {
        return;
    }
    let lazy = attributes.is(Name::Loading, "lazy");
    let urgency = if lazy { urgency::LAZY } else { urgency::FRAME };
    sink.offer(
        &attributes.text(Name::Src),
        Ask::new(Kind::Document, urgency),
    );
}

/// Handles `embed` and `object`, which show images and documents. The policies of a page govern
/// them by a directive of their own, so their kind is not that of an image or frame.
pub(super) fn embed(attributes: &Attributes, address: Name, sink: &mut Sink) {
    let media_type = attributes.text(Name::Type).trim().to_ascii_lowercase();
    let is_shown = match media_type.as_str() {
        "" | "text/html" | "application/xhtml+xml" | "application/pdf" => true,
        image => image.starts_with("image/") && sink.formats.shows(image),
    };
    if !is_shown {
        return;
    }
    let url = attributes.text(address);
    if !url
        .split(['?', '#'])
        .next()
        .is_some_and(|path| path.ends_with(".swf"))
    {
        sink.offer(&url, Ask::new(Kind::Object, urgency::EMBED));
    }
}

/// `<meta http-equiv=refresh content="0; url=…">`, `<meta name=referrer content=…>`, and content
/// security policies.
pub(super) fn meta(attributes: &Attributes, sink: &mut Sink) {
    if attributes.is(Name::Called, "referrer") {
        sink.referrer = Referrer::parse(&attributes.text(Name::Content)).or(sink.referrer);
    }
    if attributes.is(Name::HttpEquiv, "content-security-policy") && attributes.has(Name::Content) {
        sink.add_content_policy(attributes.get(Name::Content).as_deref());
    }
    let delegates = attributes.is(Name::HttpEquiv, "delegate-ch");
    sink.hint_elements.delegate |= delegates;
    sink.hint_elements.ask |= delegates || attributes.is(Name::HttpEquiv, "accept-ch");
    if !attributes.is(Name::HttpEquiv, "refresh") {
        return;
    }
    let content = attributes.text(Name::Content);
    let content = content.trim_start();
    let digits = content
        .bytes()
        .take_while(|b| b.is_ascii_digit() || *b == b'.')
        .count();
    let (seconds, rest) = content.split_at(digits);
    let Some(seconds) = seconds
        .parse::<f32>()
        .ok()
        .filter(|&seconds| seconds <= SOON)
    else {
        return;
    };
    let rest = rest
        .trim_start()
        .trim_start_matches([';', ','])
        .trim_start();
    let url = refresh_url(rest);
    let urgency = if seconds <= 1.0 {
        urgency::REDIRECT
    } else {
        urgency::PREFETCH
    };
    sink.offer(url, Ask::new(Kind::Document, urgency));
}

/// `url='…'`, with or without the name and the quotes.
pub(super) fn refresh_url(text: &str) -> &str {
    let named = text
        .get(..3)
        .filter(|name| name.eq_ignore_ascii_case("url"))
        .and_then(|_| text[3..].trim_start().strip_prefix('='));
    let url = named.unwrap_or(text).trim_start();
    match url
        .strip_prefix('"')
        .map(|url| (url, '"'))
        .or_else(|| url.strip_prefix('\'').map(|url| (url, '\'')))
    {
        Some((url, quote)) => url.split(quote).next().unwrap_or(url),
        None => url,
    }
}

pub(super) fn cors(attributes: &Attributes) -> Cors {
    if !attributes.has(Name::Crossorigin) {
        Cors::None
    } else if attributes.is(Name::Crossorigin, "use-credentials") {
        Cors::Credentials
    } else {
        Cors::Anonymous
    }
}

/// The urgency that `fetchpriority` makes of the usual one.
pub(super) fn by_priority(usual: u8, attributes: &Attributes) -> u8 {
    if attributes.is(Name::Fetchpriority, "high") {
        usual.saturating_sub(1).max(1)
    } else if attributes.is(Name::Fetchpriority, "low") {
        usual.max((usual + 1).min(urgency::UNUSED_STYLE))
    } else {
        usual
    }
}

/// Returns true if a `style` element holds a style sheet that applies.
pub(super) fn is_style(attributes: &Attributes, sink: &Sink) -> bool {
    let kind = attributes.text(Name::Type);
    (kind.is_empty() || kind.eq_ignore_ascii_case("text/css"))
        && media::matches(&attributes.text(Name::Media), sink.viewport) != Some(false)
}

/// Returns true if a `script` element holds a module.
pub(crate) fn holds_module(attributes: &Attributes) -> bool {
    !attributes.has(Name::Src) && is_module(&attributes.text(Name::Type))
}

pub(super) fn is_module(kind: &str) -> bool {
    kind.trim().eq_ignore_ascii_case("module")
}

/// Returns true if a script that is no module is fetched and run. An absent type means JavaScript
/// unless `language` names another.
pub(super) fn is_classic(attributes: &Attributes, media_type: &str) -> bool {
    if attributes.has(Name::Type) {
        return media_type.is_empty() || is_script_type(media_type);
    }
    let language = attributes.text(Name::Language);
    language.is_empty() || is_script_type(&format!("text/{language}"))
}

/// Returns true if this is a media type of JavaScript without parameters: parameters make it
/// another type (WHATWG MIME Sniffing section 4.6).
pub fn is_script_type(media_type: &str) -> bool {
    let Some((top_level, name)) = media_type.trim().split_once('/') else {
        return false;
    };
    let is_text = top_level.eq_ignore_ascii_case("text");
    if !is_text && !top_level.eq_ignore_ascii_case("application") {
        return false;
    }
    let plain = match name.split_at_checked(2) {
        Some((prefix, plain)) if prefix.eq_ignore_ascii_case("x-") => plain,
        _ => name,
    };
    let is_one_of = |names: &[&str]| names.iter().any(|it| plain.eq_ignore_ascii_case(it));
    is_one_of(&["javascript", "ecmascript"])
        || (is_text && (is_one_of(&["jscript", "livescript"]) || is_old_javascript(plain)))
}

/// Returns true for `javascript1.0` to `javascript1.5`.
fn is_old_javascript(name: &str) -> bool {
    name.split_at_checked("javascript1.".len())
        .is_some_and(|(name, minor)| {
            name.eq_ignore_ascii_case("javascript1.")
                && matches!(minor, "0" | "1" | "2" | "3" | "4" | "5")
        })
}

/// Elements that end foreign content (HTML section 13.2.6.5).
pub(super) fn breaks_out(name: &[u8]) -> bool {
    matches!(
        name,
        b"b" | b"big"
            | b"blockquote"
            | b"body"
            | b"br"
            | b"center"
            | b"code"
            | b"dd"
            | b"div"
            | b"dl"
            | b"dt"
            | b"em"
            | b"embed"
            | b"h1"
            | b"h2"
            | b"h3"
            | b"h4"
            | b"h5"
            | b"h6"
            | b"head"
            | b"hr"
            | b"i"
            | b"img"
            | b"li"
            | b"listing"
            | b"menu"
            | b"meta"
            | b"nobr"
            | b"ol"
            | b"p"
            | b"pre"
            | b"ruby"
            | b"s"
            | b"small"
            | b"span"
            | b"strong"
            | b"strike"
            | b"sub"
            | b"sup"
            | b"table"
            | b"tt"
            | b"u"
            | b"ul"
            | b"var"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_type_is_a_name_of_javascript() {
        for script in [
            "text/javascript",
            " Application/JavaScript ",
            "application/x-javascript",
            "text/X-ECMAScript",
            "text/jscript",
            "text/LiveScript",
            "text/javascript1.0",
            "text/x-JavaScript1.5",
        ] {
            assert!(is_script_type(script), "{script}");
        }
        for other in [
            "",
            "javascript",
            "text/javascript;charset=utf-8",
            "text/javascript1.6",
            "text/javascript1.",
            "application/javascript1.1",
            "application/jscript",
            "image/javascript",
            "text/x-x-javascript",
            "text/\u{e9}\u{e9}javascript",
        ] {
            assert!(!is_script_type(other), "{other}");
        }
    }
}
