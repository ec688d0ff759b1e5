//! The metadata of requests (Fetch Metadata Request Headers standard, section 2): the use of a
//! request, and its relation to the page that causes it. Browsers send them to potentially
//! trustworthy URLs only.

use tandem_http::Fields;
use tandem_preload::{Kind, LAZY, Need, split};

use super::content_security::kind_of;
use crate::site::is_same_site;

/// The names of the fields, except `sec-fetch-user`.
const NAMES: [&str; 3] = ["sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site"];
const USER: &str = "sec-fetch-user";
const BY_USER: &str = "?1";

/// The destinations of requests (Fetch standard, section 2.2.5, "destination").
const DESTINATIONS: [&str; 23] = [
    "audio",
    "audioworklet",
    "document",
    "embed",
    "empty",
    "fencedframe",
    "font",
    "frame",
    "iframe",
    "image",
    "json",
    "manifest",
    "object",
    "paintworklet",
    "report",
    "script",
    "serviceworker",
    "sharedworker",
    "style",
    "track",
    "video",
    "worker",
    "xslt",
];

/// The modes of requests that a push can answer (Fetch standard, section 2.2.5, "mode").
const MODES: [&str; 4] = ["cors", "navigate", "no-cors", "same-origin"];

pub(super) const CROSS_SITE: &str = "cross-site";

const SITES: [&str; 4] = [CROSS_SITE, "none", "same-origin", "same-site"];

/// The metadata of one request. Each text is one of the lists above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Metadata {
    destination: &'static str,
    mode: &'static str,
    site: &'static str,
    /// True if a user's action causes the navigation.
    is_by_user: bool,
}

/// The uses of resources that origins distinguish most.
#[derive(PartialEq, Eq)]
enum DestinationClass {
    Page,
    Frame,
    Embedded,
    Part,
}

impl Metadata {
    /// Returns the metadata that a request carries; `None` if they are incomplete or unknown.
    pub(crate) fn of(fields: &Fields) -> Option<Self> {
        let known = |list: &[&'static str], name: &str| {
            let mut values = fields.get_all(name);
            let value = values.next().filter(|_| values.next().is_none())?;
            list.iter().copied().find(|it| it.as_bytes() == value)
        };
        let [destination, mode, site] = NAMES;
        Some(Self {
            destination: known(&DESTINATIONS, destination)?,
            mode: known(&MODES, mode)?,
            site: known(&SITES, site)?,
            is_by_user: fields.get(USER) == Some(BY_USER.as_bytes()),
        })
    }

    /// Returns the metadata of the browser's request for a need of a page; `None` if they are
    /// unknown. `site` is the relation of the need to the document, and `is_nested` tells that the
    /// page is a document inside another one. Sections 2.1 to 2.4 define the fields, and section
    /// 2.2.5 of the Fetch standard defines destination and mode.
    pub(super) fn of_need(need: &Need, site: &'static str, is_nested: bool) -> Option<Self> {
        let is_late = need.urgency >= LAZY;
        let destination = match need.kind {
            // `meta refresh` leads a document to another one in its place.
            Kind::Document if need.urgency == 0 && need.frame.is_none() && !is_nested => "document",
            // This is a lazy frame, a later `meta refresh`, or a document for a later page.
            Kind::Document if is_late => return None,
            Kind::Document => "iframe",
            Kind::Image => "image",
            // Other late resources are those of `rel=prefetch`.
            Kind::Style | Kind::Script | Kind::Font | Kind::Fetch | Kind::Other if is_late => {
                "empty"
            }
            Kind::Other => destination_of(kind_of(&need.url))?,
            kind => destination_of(kind)?,
        };
        let mode = match need.kind {
            Kind::Document => "navigate",
            _ if need.by_cors => "cors",
            _ => "no-cors",
        };
        Some(Self {
            destination,
            mode,
            site,
            is_by_user: false,
        })
    }

    /// Returns the metadata of the request for a document whose link the user follows.
    pub(super) const fn of_link(site: &'static str) -> Self {
        Self {
            destination: "document",
            mode: "navigate",
            site,
            is_by_user: true,
        }
    }

    /// Adds the fields to a request.
    pub(super) fn add_to(self, fields: &mut Fields) {
        for (name, value) in NAMES
            .into_iter()
            .zip([self.destination, self.mode, self.site])
        {
            fields.push(name, value);
        }
        if self.is_by_user {
            fields.push(USER, BY_USER);
        }
    }

    /// Returns the value of a field with a name in lower case. The inner `None` stands for a
    /// request without the field, and the outer one for a field that is no metadata.
    pub(crate) fn value_of(self, name: &str) -> Option<Option<&'static str>> {
        let values = [self.destination, self.mode, self.site];
        let mut fields = NAMES.into_iter().zip(values);
        let value = fields.find(|(of, _)| *of == name).map(|(_, value)| value);
        match value {
            None if name == USER => Some(self.is_by_user.then_some(BY_USER)),
            None => None,
            value => Some(value),
        }
    }

    /// Returns the metadata as a text.
    pub(crate) fn encode(self) -> String {
        let user = if self.is_by_user { " ?1" } else { "" };
        format!("{} {} {}{user}", self.destination, self.mode, self.site)
    }

    /// Reads a text of [`Self::encode`].
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let words = text.split(|byte| *byte == b' ');
        let fields: Fields = NAMES.into_iter().chain([USER]).zip(words).collect();
        Self::of(&fields).filter(|found| found.encode().as_bytes() == text)
    }

    /// Returns whether the response to a request with these metadata may serve a request with the
    /// fields `asked`, as far as it names its metadata.
    ///
    /// Origins answer pages, frames and the parts of pages in different ways, and scripts in
    /// another way than style sheets. The gateway is less sure of the mode of a part, and a script
    /// may request any part as data. A link of the same origin (`same-origin`) and an address that
    /// the user enters (`none`) count as equal.
    pub(crate) fn fits(self, asked: &Fields) -> bool {
        let [destination, mode, site] = NAMES.map(|name| asked.get(name));
        let is_direct = |site: &[u8]| matches!(site, b"none" | b"same-origin");
        destination.is_none_or(|it| serves_destination(self.destination.as_bytes(), it))
            && mode.is_none_or(|it| (it == b"navigate") == (self.mode == "navigate"))
            && site.is_none_or(|it| {
                it == self.site.as_bytes() || (is_direct(it) && is_direct(self.site.as_bytes()))
            })
    }
}

/// Returns whether a request carries metadata.
pub(crate) fn has_metadata(fields: &Fields) -> bool {
    fields
        .iter()
        .any(|field| field.name.starts_with(b"sec-fetch-"))
}

/// Returns the relation of a document to the URL that it requests (section 2.3, "set the
/// Sec-Fetch-Site header"). The schemes of a site must be the same.
pub(super) fn site_between(document: &str, target: &str) -> Option<&'static str> {
    let (scheme, authority, _) = split(document)?;
    let (target_scheme, target_authority, _) = split(target)?;
    let is_same_scheme = scheme == target_scheme;
    Some(
        match is_same_scheme && is_same_site(authority, target_authority) {
            true if authority.eq_ignore_ascii_case(target_authority) => "same-origin",
            true => "same-site",
            false => CROSS_SITE,
        },
    )
}

/// Returns the destination of the requests for resources of a kind; `None` for a kind with several
/// ones.
const fn destination_of(kind: Kind) -> Option<&'static str> {
    Some(match kind {
        Kind::Style => "style",
        Kind::Script => "script",
        Kind::Image => "image",
        Kind::Font => "font",
        Kind::Fetch => "empty",
        Kind::Document | Kind::Media | Kind::Object | Kind::Other => return None,
    })
}

/// Returns whether the response for one destination may serve a request with another one.
fn serves_destination(own: &[u8], asked: &[u8]) -> bool {
    let of = |destination: &[u8]| match destination {
        b"document" => DestinationClass::Page,
        b"iframe" | b"frame" | b"fencedframe" => DestinationClass::Frame,
        b"object" | b"embed" => DestinationClass::Embedded,
        _ => DestinationClass::Part,
    };
    let is_script = |destination: &[u8]| {
        let mut endings = ["script", "worker", "worklet"].into_iter();
        endings.any(|ending| destination.ends_with(ending.as_bytes()))
    };
    of(own) == of(asked)
        && (of(own) != DestinationClass::Part
            || own == asked
            || [own, asked].contains(&&b"empty"[..])
            || (is_script(own) && is_script(asked)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(url: &str, kind: Kind, urgency: u8) -> Need {
        Need {
            url: url.to_owned(),
            kind,
            urgency,
            anonymous: false,
            by_cors: false,
            referrer: None,
            via: None,
            frame: None,
            has_nonce: false,
        }
    }

    fn text_of(need: &Need) -> Option<String> {
        Metadata::of_need(need, "same-site", false).map(Metadata::encode)
    }

    #[test]
    fn metadata_follow_the_kind_and_the_mode() {
        for (kind, urgency, by_cors, expected) in [
            (Kind::Style, 1, false, Some("style no-cors same-site")),
            (Kind::Style, 1, true, Some("style cors same-site")),
            (Kind::Script, 3, false, Some("script no-cors same-site")),
            (Kind::Script, 3, true, Some("script cors same-site")),
            (Kind::Script, LAZY, false, Some("empty no-cors same-site")),
            (Kind::Image, 4, false, Some("image no-cors same-site")),
            (Kind::Image, LAZY, false, Some("image no-cors same-site")),
            (Kind::Font, 4, true, Some("font cors same-site")),
            (Kind::Fetch, 3, true, Some("empty cors same-site")),
            (Kind::Fetch, 3, false, Some("empty no-cors same-site")),
            (Kind::Document, 4, false, Some("iframe navigate same-site")),
            (Kind::Document, LAZY, false, None),
            (
                Kind::Document,
                0,
                false,
                Some("document navigate same-site"),
            ),
            (Kind::Other, LAZY, false, Some("empty no-cors same-site")),
            (Kind::Other, 4, false, None),
            (Kind::Media, 6, false, None),
            (Kind::Object, 5, false, None),
        ] {
            let mut need = need("http://a/x", kind, urgency);
            need.by_cors = by_cors;
            assert_eq!(text_of(&need).as_deref(), expected, "{kind:?} {urgency}");
        }
        let mut refresh = need("http://a/x", Kind::Document, 0);
        refresh.frame = Some("http://a/frame".into());
        assert_eq!(
            text_of(&refresh).as_deref(),
            Some("iframe navigate same-site")
        );
        refresh.frame = None;
        let nested = Metadata::of_need(&refresh, "same-site", true).map(Metadata::encode);
        assert_eq!(nested.as_deref(), Some("iframe navigate same-site"));
        let other = |path: &str| text_of(&need(&format!("http://a{path}"), Kind::Other, 4));
        assert_eq!(other("/x.css").as_deref(), Some("style no-cors same-site"));
        assert_eq!(other("/x.html"), None);
    }

    #[test]
    fn site_needs_the_same_scheme() {
        let document = "https://www.a.test/page";
        for (target, expected) in [
            ("https://WWW.a.test/x", "same-origin"),
            ("https://www.a.test:81/x", "same-site"),
            ("https://i.a.test/x", "same-site"),
            ("http://www.a.test/x", "cross-site"),
            ("https://b.test/x", "cross-site"),
        ] {
            assert_eq!(site_between(document, target), Some(expected), "{target}");
        }
        assert_eq!(site_between("about:blank", document), None);
    }

    #[test]
    fn metadata_are_complete_and_known() {
        let of = |fields: &[(&str, &str)]| {
            let fields: Fields = fields.iter().copied().collect();
            (has_metadata(&fields), Metadata::of(&fields).is_some())
        };
        let [style, mode, site] = [
            ("sec-fetch-dest", "style"),
            ("sec-fetch-mode", "no-cors"),
            ("sec-fetch-site", "same-origin"),
        ];
        assert_eq!(of(&[style, mode, site]), (true, true));
        assert_eq!(of(&[style, mode]), (true, false));
        assert_eq!(of(&[style, style, mode, site]), (true, false));
        assert_eq!(of(&[("sec-fetch-dest", "x"), mode, site]), (true, false));
        assert_eq!(of(&[("sec-ch-ua", "x")]), (false, false));
    }

    #[test]
    fn uses_of_a_resource_are_distinguished() {
        let own = |text: &str| Metadata::parse(text.as_bytes()).unwrap();
        let fits = |one: &str, other: &str| {
            let mut fields = Fields::new();
            own(other).add_to(&mut fields);
            own(one).fits(&fields)
        };
        for (one, other, expected) in [
            (
                "document navigate none",
                "document navigate same-origin",
                true,
            ),
            (
                "document navigate none",
                "document navigate cross-site",
                false,
            ),
            (
                "document navigate same-origin",
                "iframe navigate same-origin",
                false,
            ),
            (
                "iframe navigate same-origin",
                "frame navigate same-origin",
                true,
            ),
            (
                "iframe navigate same-origin",
                "image no-cors same-origin",
                false,
            ),
            (
                "object navigate same-origin",
                "iframe navigate same-origin",
                false,
            ),
            (
                "script no-cors same-origin",
                "script cors same-origin",
                true,
            ),
            (
                "script no-cors same-origin",
                "worker same-origin same-origin",
                true,
            ),
            (
                "script cors same-origin",
                "audioworklet cors same-origin",
                true,
            ),
            (
                "script no-cors same-origin",
                "style no-cors same-origin",
                false,
            ),
            ("image no-cors same-origin", "empty cors same-origin", true),
            (
                "empty no-cors same-origin",
                "script no-cors same-origin",
                true,
            ),
            (
                "image no-cors same-origin",
                "empty navigate same-origin",
                false,
            ),
            (
                "image no-cors same-site",
                "image no-cors same-origin",
                false,
            ),
            ("image no-cors cross-site", "image no-cors cross-site", true),
        ] {
            assert_eq!(fits(one, other), expected, "{one}, {other}");
            assert_eq!(fits(other, one), expected, "{other}, {one}");
        }
        assert!(own("image no-cors same-site").fits(&Fields::new()));
    }

    #[test]
    fn metadata_values_are_those_of_the_fields() {
        let link = Metadata::of_link("same-origin");
        assert_eq!(link.value_of("sec-fetch-dest"), Some(Some("document")));
        assert_eq!(link.value_of("sec-fetch-site"), Some(Some("same-origin")));
        assert_eq!(link.value_of("sec-fetch-user"), Some(Some("?1")));
        assert_eq!(link.value_of("accept"), None);
        let part = Metadata::parse(b"style no-cors same-site").unwrap();
        assert_eq!(part.value_of("sec-fetch-user"), Some(None));
        for bad in [
            "",
            "style",
            "style no-cors",
            "style no-cors same-site x",
            "x no-cors none",
        ] {
            assert_eq!(Metadata::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn metadata_are_read_as_written(
            destination in proptest::sample::select(&DESTINATIONS[..]),
            mode in proptest::sample::select(&MODES[..]),
            site in proptest::sample::select(&SITES[..]),
            is_by_user in proptest::bool::ANY,
        ) {
            let metadata = Metadata { destination, mode, site, is_by_user };
            let text = metadata.encode();
            proptest::prop_assert_eq!(Metadata::parse(text.as_bytes()), Some(metadata));
            let mut fields = Fields::new();
            metadata.add_to(&mut fields);
            proptest::prop_assert_eq!(Metadata::of(&fields), Some(metadata));
            proptest::prop_assert!(metadata.fits(&fields));
        }
    }
}
