//! The policies of a document for its resources (Content Security Policy Level 3).
//!
//! A browser blocks a request that one of the policies forbids. A request that the gateway makes
//! early would reach the origin all the same. Hence a policy must plainly admit a URL: by `*`,
//! `'self'`, a scheme or a host, or by the nonce of an element that the gateway reads together with
//! the policy. Hashes and unknown sources admit nothing here, although a browser may allow the
//! request because of them.
//!
//! The work for a hostile page is bounded: the policies of a document have at most [`MAX_HOSTS`]
//! hosts in all, and a check compares each of them with the URL once at most. Beyond the bounds
//! nothing is admitted.

mod sources;
#[cfg(test)]
mod tests;

use std::str::SplitAsciiWhitespace;
use std::sync::Arc;

use sources::{Origin, Sources, Target, nonce};
use tandem_http::ResponseHead;
use tandem_predict::auto::url::{Kind as ResourceKind, parts};
use tandem_preload::{Kind, Need, split};

use crate::site::{host_of, is_loopback};

#[cfg(test)]
pub(crate) use sources::comparisons;

/// The field that carries policies. `Content-Security-Policy-Report-Only` blocks nothing.
pub(crate) const CONTENT_SECURITY_POLICY: &str = "content-security-policy";

/// The field that tells whether requests to other origins need their permission.
const EMBEDDER_POLICY: &str = "cross-origin-embedder-policy";

/// The largest number of different policies of one document.
const MAX_POLICIES: usize = 16;

/// The largest number of hosts in all policies of one document.
pub(crate) const MAX_HOSTS: usize = 512;

/// The largest number of bytes of one policy, and of the texts that are kept of all policies of one
/// document.
const MAX_TEXT: usize = 16 << 10;

/// The bytes of memory that a shared value takes besides its own: two counters, and the records of
/// the allocator.
const ALLOCATION: usize = 32;

/// The policies of one document, all of which must admit a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContentSecurity {
    policies: Vec<Arc<Policy>>,
    /// True if the browser replaces `http` by `https`.
    upgrades: bool,
    /// True if the document is sandboxed and runs no scripts.
    forbids_scripts: bool,
    /// True if nothing is admitted: the document has an opaque origin, or a bound is exceeded.
    is_closed: bool,
    /// True if requests to other origins without CORS have no cookies.
    is_credentialless: bool,
}

/// A policy: the list of sources for each use of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Policy {
    own: Origin,
    lists: Vec<Sources>,
    /// The index of the list that governs each use. Without a list, all is admitted.
    by_use: [Option<u8>; USES],
}

/// The uses of resources that policies distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PolicyUse {
    Style,
    Script,
    Image,
    Font,
    Connect,
    Frame,
    Media,
    Object,
}

const USES: usize = 8;

/// The directives that govern each use, the nearest first (section 6.8.3).
const GOVERNING: [(PolicyUse, &[&str]); USES] = [
    (
        PolicyUse::Style,
        &["style-src-elem", "style-src", "default-src"],
    ),
    (
        PolicyUse::Script,
        &["script-src-elem", "script-src", "default-src"],
    ),
    (PolicyUse::Image, &["img-src", "default-src"]),
    (PolicyUse::Font, &["font-src", "default-src"]),
    (PolicyUse::Connect, &["connect-src", "default-src"]),
    (PolicyUse::Frame, &["frame-src", "child-src", "default-src"]),
    (PolicyUse::Media, &["media-src", "default-src"]),
    (PolicyUse::Object, &["object-src", "default-src"]),
];

/// The uses that a resource of unknown use may have. Frames, objects and media are found by their
/// elements.
const UNKNOWN: [PolicyUse; 5] = [
    PolicyUse::Script,
    PolicyUse::Style,
    PolicyUse::Image,
    PolicyUse::Font,
    PolicyUse::Connect,
];

impl PolicyUse {
    const fn of(kind: Kind) -> Option<Self> {
        Some(match kind {
            Kind::Style => Self::Style,
            Kind::Script => Self::Script,
            Kind::Image => Self::Image,
            Kind::Font => Self::Font,
            Kind::Fetch => Self::Connect,
            Kind::Document => Self::Frame,
            Kind::Media => Self::Media,
            Kind::Object => Self::Object,
            Kind::Other => return None,
        })
    }
}

impl ContentSecurity {
    /// Reads the policies that the head of the document at `url` carries.
    pub(crate) fn of(url: &str, head: &ResponseHead) -> Self {
        let mut policies = Self::default();
        for value in head.fields.get_all(CONTENT_SECURITY_POLICY) {
            policies.add_list(url, &String::from_utf8_lossy(value), false);
        }
        policies.is_credentialless = is_credentialless(url, head);
        policies
    }

    /// Returns policies that admit nothing.
    pub(crate) fn closed() -> Self {
        Self {
            is_closed: true,
            ..Self::default()
        }
    }

    /// Adds the policies of a `meta` element, where `sandbox` has no effect (section 3.3). Their
    /// nonces admit nothing.
    pub(crate) fn add_meta(&mut self, url: &str, list: &str) {
        self.add_list(url, list, true);
    }

    /// Adds all policies of others.
    pub(crate) fn merge(&mut self, others: &Self) {
        self.upgrades |= others.upgrades;
        self.forbids_scripts |= others.forbids_scripts;
        self.is_credentialless |= others.is_credentialless;
        if others.is_closed {
            self.close();
        }
        for policy in &others.policies {
            self.push(Arc::clone(policy));
        }
    }

    /// Returns whether there are no policies.
    pub(crate) fn is_empty(&self) -> bool {
        self.admits_all() && !self.is_credentialless
    }

    /// Returns whether all is admitted, so that only cookies may be missing.
    pub(crate) const fn admits_all(&self) -> bool {
        self.policies.is_empty() && !self.upgrades && !self.forbids_scripts && !self.is_closed
    }

    /// Returns whether nothing is admitted.
    pub(crate) const fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns whether requests to other origins without CORS have no cookies (Fetch standard,
    /// section 3.8, "`Cross-Origin-Embedder-Policy` allows credentials").
    pub(crate) const fn is_credentialless(&self) -> bool {
        self.is_credentialless
    }

    /// Returns the number of bytes of memory. Policies that several documents share count for each
    /// of them.
    pub(crate) fn bytes(&self) -> usize {
        let pointers = self.policies.capacity() * size_of::<Arc<Policy>>();
        let policies = self.policies.iter().map(|policy| policy.bytes());
        size_of::<Self>() + ALLOCATION + pointers + policies.sum::<usize>()
    }

    /// Returns whether the browser requests a URL over TLS instead.
    pub(crate) fn upgrades(&self, url: &str) -> bool {
        self.upgrades && Target::parse(url).is_none_or(|target| target.is_upgraded())
    }

    /// Returns whether each policy plainly admits the request for a need.
    pub(crate) fn admits(&self, need: &Need) -> bool {
        let Some(target) = Target::parse(&need.url).filter(|_| !self.is_closed) else {
            return false;
        };
        let kind = match need.kind {
            Kind::Other => kind_of(&need.url),
            kind => kind,
        };
        let is_run = matches!(kind, Kind::Script | Kind::Document | Kind::Other);
        let is_upgraded = self.upgrades && target.is_upgraded();
        let mut policies = self.policies.iter();
        !(is_upgraded || (is_run && self.forbids_scripts))
            && policies.all(|policy| policy.admits(kind, &target, need.has_nonce))
    }

    fn add_list(&mut self, url: &str, list: &str, is_meta: bool) {
        for text in list.split(',') {
            self.add(url, text, is_meta);
        }
    }

    fn add(&mut self, url: &str, text: &str, is_meta: bool) {
        let own = Origin::of(url).filter(|_| text.len() <= MAX_TEXT);
        let Some(own) = own.filter(|_| !self.is_closed) else {
            return self.close();
        };
        // The first directive of a name counts.
        let mut directives: Vec<(String, &str)> = Vec::new();
        for directive in text.split(';') {
            let directive = directive.trim_ascii();
            let end = directive.find(|it: char| it.is_ascii_whitespace());
            let (name, rest) = directive.split_at(end.unwrap_or(directive.len()));
            let name = name.to_ascii_lowercase();
            match name.as_str() {
                "upgrade-insecure-requests" => self.upgrades = true,
                "sandbox" if !is_meta => self.sandbox(rest),
                _ => {}
            }
            let is_governing = GOVERNING.iter().any(|(_, names)| names.contains(&&*name));
            if is_governing && !directives.iter().any(|(known, _)| *known == name) {
                directives.push((name, rest));
            }
        }
        let policy = Policy::of(own, &directives, is_meta);
        if !policy.lists.is_empty() {
            self.push(Arc::new(policy));
        }
    }

    /// Sets the flags of a sandboxed document (HTML standard, "parse a sandboxing directive").
    fn sandbox(&mut self, flags: &str) {
        let has = |flag: &str| {
            let mut flags = flags.split_ascii_whitespace();
            flags.any(|it| it.eq_ignore_ascii_case(flag))
        };
        self.forbids_scripts |= !has("allow-scripts");
        if !has("allow-same-origin") {
            self.close();
        }
    }

    fn close(&mut self) {
        self.is_closed = true;
        self.policies = Vec::new();
    }

    fn push(&mut self, policy: Arc<Policy>) {
        if self.is_closed || self.policies.contains(&policy) {
            return;
        }
        self.policies.push(policy);
        let hosts: usize = self.policies.iter().map(|policy| policy.hosts()).sum();
        let text: usize = self.policies.iter().map(|policy| policy.text_bytes()).sum();
        if self.policies.len() > MAX_POLICIES || hosts > MAX_HOSTS || text > MAX_TEXT {
            self.close();
        }
    }
}

/// Returns whether the document at `url` has the embedder policy `credentialless` (HTML standard,
/// "obtain an embedder policy"). The field is a structured item, and several values are none.
/// Browsers ignore the field over plain HTTP, except for the computer itself.
pub(crate) fn is_credentialless(url: &str, head: &ResponseHead) -> bool {
    let mut values = head.fields.get_all(EMBEDDER_POLICY);
    let (Some(value), None) = (values.next(), values.next()) else {
        return false;
    };
    let token = value.split(|byte| *byte == b';').next();
    let is_secure = split(url)
        .is_some_and(|(scheme, authority, _)| scheme == "https" || is_loopback(host_of(authority)));
    is_secure && token.unwrap_or_default().trim_ascii() == b"credentialless"
}

impl Policy {
    fn of(own: Origin, directives: &[(String, &str)], is_meta: bool) -> Self {
        let mut policy = Self {
            own,
            lists: Vec::new(),
            by_use: [None; USES],
        };
        // The place in `lists` of each directive that governs a use.
        let mut places = vec![None; directives.len()];
        for (of, names) in GOVERNING {
            let governs = |name: &&str| directives.iter().position(|(known, _)| known == name);
            let Some(at) = names.iter().find_map(governs) else {
                continue;
            };
            if let (None, Some((_, words))) = (places[at], directives.get(at)) {
                let list = Sources::parse(words.split_ascii_whitespace(), &policy.own);
                places[at] = u8::try_from(policy.lists.len()).ok();
                policy.lists.push(match is_meta {
                    true => list.without_nonce(),
                    false => list,
                });
            }
            policy.by_use[of as usize] = places[at];
        }
        policy.lists.shrink_to_fit();
        policy
    }

    fn hosts(&self) -> usize {
        self.lists.iter().map(Sources::hosts).sum()
    }

    /// Returns the number of bytes of the texts that are kept.
    fn text_bytes(&self) -> usize {
        self.lists.iter().map(Sources::text_bytes).sum()
    }

    /// Returns the number of bytes of memory.
    fn bytes(&self) -> usize {
        let lists = self.lists.iter().map(Sources::bytes).sum::<usize>();
        size_of::<Self>() + ALLOCATION + self.own.text_bytes() + lists
    }

    /// Returns the list that governs a use, and its index.
    fn list(&self, of: PolicyUse) -> Option<(u8, &Sources)> {
        let index = self.by_use[of as usize]?;
        Some((index, self.lists.get(usize::from(index))?))
    }

    fn admits(&self, kind: Kind, target: &Target<'_>, has_nonce: bool) -> bool {
        let Some(of) = PolicyUse::of(kind) else {
            return self.admits_unknown(target);
        };
        self.list(of).is_none_or(|(_, list)| {
            let is_nonce =
                has_nonce && matches!(of, PolicyUse::Script | PolicyUse::Style) && list.has_nonce();
            let is_ignored = of == PolicyUse::Script && list.is_dynamic();
            is_nonce || (!is_ignored && list.name(target, &self.own))
        })
    }

    /// Returns whether each list admits a resource that it may govern. Each is read once.
    fn admits_unknown(&self, target: &Target<'_>) -> bool {
        let mut read = 0_u32;
        UNKNOWN.into_iter().all(|of| {
            self.list(of).is_none_or(|(index, list)| {
                let is_read = read & (1 << index) != 0;
                read |= 1 << index;
                let is_ignored = of == PolicyUse::Script && list.is_dynamic();
                is_read || (!is_ignored && list.name(target, &self.own))
            })
        })
    }
}

/// Returns the kind of a resource that the ending of its path shows.
pub(super) fn kind_of(url: &str) -> Kind {
    match ResourceKind::of_path(parts(url).path) {
        ResourceKind::Style => Kind::Style,
        ResourceKind::Script => Kind::Script,
        ResourceKind::Image => Kind::Image,
        ResourceKind::Font => Kind::Font,
        ResourceKind::Data => Kind::Fetch,
        ResourceKind::Page => Kind::Document,
        ResourceKind::Open | ResourceKind::Download => Kind::Other,
    }
}

/// Returns the policies in the head of a document.
pub(crate) fn content_policies(head: &ResponseHead) -> Vec<String> {
    let values = head.fields.get_all(CONTENT_SECURITY_POLICY);
    values
        .map(|value| String::from_utf8_lossy(value).into_owned())
        .collect()
}

/// Returns whether each policy of a list plainly permits a base URL of the document at `document`
/// (section 6.3.1, "base-uri").
pub(crate) fn permits_base(list: &str, document: &str, base: &str) -> bool {
    let (Some(own), Some(target)) = (Origin::of(document), Target::parse(base)) else {
        return false;
    };
    list.split(',').all(|text| {
        let names = |words| Sources::parse(words, &own).name(&target, &own);
        text.len() <= MAX_TEXT && directive(text, "base-uri").is_none_or(names)
    })
}

/// Returns whether no page may show a document with this head in a frame (section 6.4.2,
/// "frame-ancestors"). The directive overrides `X-Frame-Options`.
pub(crate) fn forbids_framing(head: &ResponseHead) -> bool {
    let mut has_directive = false;
    for list in content_policies(head) {
        for text in list.split(',') {
            let ancestors = directive(text, "frame-ancestors").map(Vec::from_iter);
            has_directive |= ancestors.is_some();
            let is_none = |words: &[&str]| match words {
                [] => true,
                [word] => word.eq_ignore_ascii_case("'none'"),
                _ => false,
            };
            if ancestors.is_some_and(|words| is_none(&words)) {
                return true;
            }
        }
    }
    let mut options = head.fields.get_all("x-frame-options").flat_map(|value| {
        let values = value.split(|byte| *byte == b',');
        values.map(<[u8]>::trim_ascii)
    });
    !has_directive && options.any(|value| value.eq_ignore_ascii_case(b"deny"))
}

/// Returns the words of the first directive of a policy with this name.
fn directive<'a>(text: &'a str, name: &str) -> Option<SplitAsciiWhitespace<'a>> {
    text.split(';').find_map(|directive| {
        let mut words = directive.split_ascii_whitespace();
        words.next()?.eq_ignore_ascii_case(name).then_some(words)
    })
}

/// Returns the nonce of the policies in the head of a document. Elements with this nonce are
/// admitted. Returns `None` if there are several.
pub(crate) fn policy_nonce(head: &ResponseHead) -> Option<String> {
    let mut found: Option<String> = None;
    for value in head.fields.get_all(CONTENT_SECURITY_POLICY) {
        let value = String::from_utf8_lossy(value);
        let words = value.split([' ', '\t', ';', ',']);
        for nonce in words.filter_map(nonce) {
            match &found {
                Some(known) if known == nonce => {}
                Some(_) => return None,
                None => found = Some(nonce.to_owned()),
            }
        }
    }
    found
}
