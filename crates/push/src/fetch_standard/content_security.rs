//! The policies of a document for its resources (Content Security Policy Level 3).
//!
//! A browser blocks a request that one of the policies forbids. A request that the gateway makes
//! early would reach the origin all the same. Hence a policy must plainly admit a URL: by `*`,
//! `'self'`, a scheme or a host. Nonces, hashes and unknown sources admit nothing here, although a
//! browser may allow the request because of them.

use tandem_http::ResponseHead;
use tandem_preload::{Kind, split};

/// The field that carries policies. `Content-Security-Policy-Report-Only` blocks nothing.
pub(crate) const CONTENT_SECURITY_POLICY: &str = "content-security-policy";

/// The largest number of policies of one document.
const MAX_POLICIES: usize = 16;

/// The largest number of sources of one policy.
const MAX_SOURCES: usize = 512;

/// The largest number of bytes of one policy.
const MAX_TEXT: usize = 16 << 10;

/// The policies of one document, all of which must admit a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContentSecurity {
    policies: Vec<Policy>,
    /// True if the browser replaces `http` by `https`.
    upgrades: bool,
    /// True if nothing is admitted: the document is sandboxed, or a bound is exceeded.
    is_closed: bool,
}

/// A policy: the sources of each directive that governs requests.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Policy {
    /// The origin of the document, which `'self'` stands for.
    own: Box<str>,
    directives: Vec<(Directive, Sources)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Sources {
    list: Vec<Box<str>>,
    /// True with `'strict-dynamic'`, which makes browsers ignore hosts and schemes.
    needs_trust: bool,
}

/// The directives that govern requests (sections 6.1 and 6.8.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Directive {
    Child,
    Connect,
    Default,
    Font,
    Frame,
    Image,
    Manifest,
    Media,
    Object,
    Script,
    ScriptElement,
    Style,
    StyleElement,
    Worker,
}

impl Directive {
    fn parse(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "child-src" => Self::Child,
            "connect-src" => Self::Connect,
            "default-src" => Self::Default,
            "font-src" => Self::Font,
            "frame-src" => Self::Frame,
            "img-src" => Self::Image,
            "manifest-src" => Self::Manifest,
            "media-src" => Self::Media,
            "object-src" => Self::Object,
            "script-src" => Self::Script,
            "script-src-elem" => Self::ScriptElement,
            "style-src" => Self::Style,
            "style-src-elem" => Self::StyleElement,
            "worker-src" => Self::Worker,
            _ => return None,
        })
    }
}

/// The directives that govern a kind of request, each with those that replace it if it is absent.
const fn governing(kind: Kind) -> &'static [&'static [Directive]] {
    use Directive::*;
    const STYLE: &[Directive] = &[StyleElement, Style, Default];
    const SCRIPT: &[Directive] = &[ScriptElement, Script, Default];
    const IMAGE: &[Directive] = &[Image, Default];
    const FONT: &[Directive] = &[Font, Default];
    const CONNECT: &[Directive] = &[Connect, Default];
    const FRAME: &[Directive] = &[Frame, Child, Default];
    const MEDIA: &[Directive] = &[Media, Default];
    match kind {
        Kind::Style => &[STYLE],
        Kind::Script => &[SCRIPT],
        Kind::Image => &[IMAGE],
        Kind::Font => &[FONT],
        Kind::Fetch => &[CONNECT],
        Kind::Document => &[FRAME],
        Kind::Media => &[MEDIA],
        // The use is unknown, so each must admit it.
        Kind::Other => &[
            STYLE,
            SCRIPT,
            IMAGE,
            FONT,
            CONNECT,
            FRAME,
            MEDIA,
            &[Object, Default],
            &[Manifest, Default],
            &[Worker, Child, Script, Default],
        ],
    }
}

impl ContentSecurity {
    /// Reads the policies that the head of the document at `url` carries.
    pub(crate) fn of(url: &str, head: &ResponseHead) -> Self {
        let mut policies = Self::default();
        for value in head.fields.get_all(CONTENT_SECURITY_POLICY) {
            policies.add_list(url, &String::from_utf8_lossy(value), false);
        }
        policies
    }

    /// Adds the policies of a `meta` element, where `sandbox` has no effect (section 3.3).
    pub(crate) fn add_meta(&mut self, url: &str, list: &str) {
        self.add_list(url, list, true);
    }

    /// Adds all policies of others.
    pub(crate) fn merge(&mut self, others: &Self) {
        self.upgrades |= others.upgrades;
        self.is_closed |= others.is_closed;
        for policy in &others.policies {
            self.push(policy.clone());
        }
    }

    /// Returns whether there are no policies.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether the browser requests plain resources over TLS instead.
    pub(crate) const fn upgrades(&self) -> bool {
        self.upgrades
    }

    /// Returns whether each policy plainly admits a request for `url`.
    pub(crate) fn admits(&self, kind: Kind, url: &str) -> bool {
        let is_upgraded = self.upgrades && url.starts_with("http:");
        !self.is_closed && !is_upgraded && self.policies.iter().all(|it| it.admits(kind, url))
    }

    fn add_list(&mut self, url: &str, list: &str, is_meta: bool) {
        for text in list.split(',') {
            self.add(url, text, is_meta);
        }
    }

    fn add(&mut self, url: &str, text: &str, is_meta: bool) {
        if text.len() > MAX_TEXT {
            self.is_closed = true;
            return;
        }
        let mut policy = Policy {
            own: origin(url).unwrap_or_default().into(),
            directives: Vec::new(),
        };
        let mut left = MAX_SOURCES;
        for directive in text.split(';') {
            let mut words = directive.split_ascii_whitespace();
            let Some(name) = words.next() else {
                continue;
            };
            if name.eq_ignore_ascii_case("upgrade-insecure-requests") {
                self.upgrades = true;
            } else if name.eq_ignore_ascii_case("sandbox") {
                self.is_closed |= !is_meta;
            }
            let Some(name) = Directive::parse(name) else {
                continue;
            };
            // The first directive of a name counts.
            if policy.directives.iter().any(|(known, _)| *known == name) {
                continue;
            }
            let mut sources = Sources {
                list: Vec::new(),
                needs_trust: false,
            };
            for word in words {
                let Some(rest) = left.checked_sub(1) else {
                    self.is_closed = true;
                    return;
                };
                left = rest;
                sources.needs_trust |= word.eq_ignore_ascii_case("'strict-dynamic'");
                sources.list.push(word.into());
            }
            policy.directives.push((name, sources));
        }
        if !policy.directives.is_empty() {
            self.push(policy);
        }
    }

    fn push(&mut self, policy: Policy) {
        if self.policies.contains(&policy) {
            return;
        }
        if self.policies.len() >= MAX_POLICIES {
            self.is_closed = true;
            return;
        }
        self.policies.push(policy);
    }
}

impl Policy {
    fn admits(&self, kind: Kind, url: &str) -> bool {
        governing(kind).iter().all(|directives| {
            let sources = directives.iter().find_map(|name| {
                let mut known = self.directives.iter();
                known.find_map(|(known, sources)| (known == name).then_some(sources))
            });
            sources.is_none_or(|sources| {
                let mut list = sources.list.iter();
                !sources.needs_trust && list.any(|source| self.matches(source, url))
            })
        })
    }

    /// Returns whether a source names a URL (section 6.7.2).
    fn matches(&self, source: &str, url: &str) -> bool {
        let Some((scheme, authority, path)) = split(url) else {
            return false;
        };
        if source == "*" {
            return true;
        }
        if source.starts_with('\'') {
            return source.eq_ignore_ascii_case("'self'")
                && origin(url).is_some_and(|origin| origin.eq_ignore_ascii_case(&self.own));
        }
        // An `http` source names `https` as well.
        let names_scheme = |name: &str| name == scheme || (name == "http" && scheme == "https");
        if let Some(name) = source.strip_suffix(':') {
            return names_scheme(&name.to_ascii_lowercase());
        }
        let (named, rest) = match source.split_once("://") {
            Some((named, rest)) => (named.to_ascii_lowercase(), rest),
            None => {
                let own = self.own.split_once("://");
                (own.map_or("", |(own, _)| own).to_owned(), source)
            }
        };
        let (place, named_path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let path = path.split('?').next().unwrap_or_default();
        names_scheme(&named)
            && matches_place(place, scheme, authority)
            && matches_path(named_path, path)
    }
}

/// Returns the scheme, host and port of a URL.
fn origin(url: &str) -> Option<&str> {
    let (scheme, authority, _) = split(url)?;
    url.get(..scheme.len() + 3 + authority.len())
}

/// Returns the host of an authority, and its port if it names one.
fn host_and_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    }
}

fn matches_place(source: &str, scheme: &str, authority: &str) -> bool {
    let default = if scheme == "https" { "443" } else { "80" };
    let (named_host, named_port) = host_and_port(source);
    let (host, port) = host_and_port(authority);
    let port = port.unwrap_or(default);
    let is_port = named_port.map_or(port == default, |named| named == "*" || named == port);
    is_port
        && match named_host.strip_prefix('*') {
            Some("") => true,
            Some(parent) => {
                let at = host.len().checked_sub(parent.len());
                let end = at.filter(|at| *at > 0).and_then(|at| host.get(at..));
                parent.starts_with('.') && end.is_some_and(|it| it.eq_ignore_ascii_case(parent))
            }
            None => !named_host.is_empty() && named_host.eq_ignore_ascii_case(host),
        }
}

/// Returns whether a path is the named one, or is below it if that ends with a slash.
fn matches_path(named: &str, path: &str) -> bool {
    match named {
        "" => true,
        _ if named.ends_with('/') => path.starts_with(named),
        _ => path == named,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "http://a.test:81/dir/page";

    fn of(fields: &[&str]) -> ContentSecurity {
        let mut head = ResponseHead::new(200);
        for field in fields {
            head.fields.push(CONTENT_SECURITY_POLICY, *field);
        }
        ContentSecurity::of(PAGE, &head)
    }

    fn admits(policy: &str, kind: Kind, url: &str) -> bool {
        of(&[policy]).admits(kind, url)
    }

    #[test]
    fn source_names_urls() {
        for (source, url, expected) in [
            ("*", "http://b.test/", true),
            ("'self'", "http://a.test:81/x", true),
            ("'SELF'", "http://a.test:81/x", true),
            ("'self'", "http://a.test/x", false),
            ("'self'", "https://a.test:81/x", false),
            ("http:", "http://b.test/", true),
            ("HTTP:", "https://b.test/", true),
            ("https:", "http://b.test/", false),
            ("data:", "http://b.test/", false),
            ("b.test", "http://b.test/x", true),
            ("B.test", "http://b.test/x", true),
            ("b.test", "https://b.test/x", true),
            ("b.test", "http://b.test:81/x", false),
            ("b.test:81", "http://b.test:81/x", true),
            ("b.test:80", "http://b.test/x", true),
            ("b.test:*", "http://b.test:81/x", true),
            ("b.test", "http://c.b.test/x", false),
            ("*.b.test", "http://c.b.test/x", true),
            ("*.b.test", "http://b.test/x", false),
            ("*.b.test", "http://cb.test/x", false),
            ("*b.test", "http://cb.test/x", false),
            ("https://b.test", "http://b.test/x", false),
            ("http://b.test", "http://b.test/x", true),
            ("http://*", "http://b.test/x", true),
            ("*:81", "http://b.test:81/x", true),
            ("*:81", "http://b.test/x", false),
            ("b.test/x/", "http://b.test/x/y?z", true),
            ("b.test/x/", "http://b.test/xy", false),
            ("b.test/x", "http://b.test/x?y", true),
            ("b.test/x", "http://b.test/x/y", false),
            ("b.test/", "http://b.test/x", true),
            ("127.0.0.1:8080", "http://127.0.0.1:8080/x", true),
            ("[::1]:8080", "http://[::1]:8080/x", true),
            ("[::1]", "http://[::1]/x", true),
            ("'nonce-abc'", "http://a.test:81/x", false),
            ("'sha256-abc'", "http://a.test:81/x", false),
            ("'none'", "http://a.test:81/x", false),
            ("'unsafe-inline'", "http://a.test:81/x", false),
            ("://", "http://a.test:81/x", false),
            ("", "http://a.test:81/x", false),
        ] {
            let policy = format!("img-src {source}");
            assert_eq!(
                admits(&policy, Kind::Image, url),
                expected,
                "{source} {url}"
            );
        }
    }

    #[test]
    fn kind_has_its_directive() {
        for (directive, kinds) in [
            ("style-src-elem", &[Kind::Style][..]),
            ("style-src", &[Kind::Style]),
            ("script-src-elem", &[Kind::Script]),
            ("script-src", &[Kind::Script]),
            ("img-src", &[Kind::Image]),
            ("font-src", &[Kind::Font]),
            ("connect-src", &[Kind::Fetch]),
            ("Frame-Src", &[Kind::Document]),
            ("child-src", &[Kind::Document]),
            ("media-src", &[Kind::Media]),
            ("object-src", &[]),
            ("manifest-src", &[]),
            ("worker-src", &[]),
            (
                "default-src",
                &[
                    Kind::Style,
                    Kind::Script,
                    Kind::Image,
                    Kind::Font,
                    Kind::Fetch,
                    Kind::Document,
                    Kind::Media,
                ],
            ),
        ] {
            for kind in [
                Kind::Style,
                Kind::Script,
                Kind::Image,
                Kind::Font,
                Kind::Fetch,
                Kind::Document,
                Kind::Media,
            ] {
                let is_governed = kinds.contains(&kind);
                let policy = format!("{directive} 'none'");
                assert_eq!(
                    !admits(&policy, kind, PAGE),
                    is_governed,
                    "{policy} {kind:?}"
                );
                let policy = format!("default-src 'none'; {directive} 'self'");
                assert_eq!(
                    admits(&policy, kind, PAGE),
                    is_governed && directive != "default-src",
                    "{policy} {kind:?}"
                );
            }
            assert!(!admits(&format!("{directive} 'none'"), Kind::Other, PAGE));
        }
        assert!(admits("default-src 'self'", Kind::Other, PAGE));
        let nearer = "style-src 'none'; style-src-elem 'self'";
        assert!(admits(nearer, Kind::Style, PAGE));
    }

    #[test]
    fn all_policies_must_admit() {
        assert!(of(&[]).is_empty() && of(&[""]).admits(Kind::Image, PAGE));
        for fields in [
            &["img-src *", "img-src 'none'"][..],
            &["img-src *, default-src 'none'"],
            &["img-src 'none'; img-src *"],
        ] {
            assert!(!of(fields).admits(Kind::Image, PAGE), "{fields:?}");
        }
        assert!(of(&["report-uri /x, base-uri 'none'"]).admits(Kind::Image, PAGE));
        let dynamic = "script-src 'nonce-a' 'strict-dynamic' 'self' http:";
        assert!(!admits(dynamic, Kind::Script, PAGE));
        assert!(admits("script-src 'nonce-a' 'self'", Kind::Script, PAGE));
    }

    #[test]
    fn sandbox_and_upgrade_admit_nothing() {
        for policy in [
            "sandbox",
            "SANDBOX allow-scripts",
            "Upgrade-Insecure-Requests",
        ] {
            assert!(!admits(policy, Kind::Image, PAGE), "{policy}");
        }
        let upgrade = of(&["upgrade-insecure-requests"]);
        assert!(upgrade.upgrades() && upgrade.admits(Kind::Image, "https://a.test/"));
        let mut meta = ContentSecurity::default();
        meta.add_meta(PAGE, "sandbox; img-src 'self'");
        assert!(meta.admits(Kind::Image, PAGE) && !meta.admits(Kind::Image, "http://b.test/"));
    }

    #[test]
    fn more_than_the_bounds_admits_nothing() {
        let many: Vec<String> = (0..=MAX_POLICIES)
            .map(|at| format!("img-src * /{at}"))
            .collect();
        for (count, expected) in [(MAX_POLICIES, true), (MAX_POLICIES + 1, false)] {
            let policies = of(&[&many[..count].join(",")]);
            assert_eq!(policies.admits(Kind::Image, PAGE), expected);
            assert!(policies.policies.len() <= MAX_POLICIES);
        }
        for (count, expected) in [(MAX_SOURCES, true), (MAX_SOURCES + 1, false)] {
            let policy = format!("img-src{}", " *".repeat(count));
            assert_eq!(admits(&policy, Kind::Image, PAGE), expected);
        }
        let long = format!("img-src * {}", "x".repeat(MAX_TEXT));
        assert!(!admits(&long, Kind::Image, PAGE));
    }

    #[test]
    fn merged_policies_keep_their_origins() {
        let mut policies = of(&["img-src 'self'"]);
        policies.merge(&of(&["img-src 'self'"]));
        assert_eq!(policies.policies.len(), 1);
        policies.add_meta("http://b.test/", "img-src 'self'");
        assert!(!policies.admits(Kind::Image, PAGE));
        policies.merge(&of(&["sandbox"]));
        assert!(policies.is_closed);
    }

    proptest::proptest! {
        #[test]
        fn any_policy_is_read(text in "[a-z' ;,:/.*-]{0,60}", url in "http://[a-z.:0-9\\[\\]]{1,9}/[a-z]{0,3}") {
            let _ = of(&[&text, &format!("img-src {text}")]).admits(Kind::Other, &url);
        }
    }
}
