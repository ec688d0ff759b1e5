//! The sources that a directive lists, read once (sections 2.3.1 and 6.7.2).

use tandem_preload::split;

use crate::site::is_loopback;

/// A URL as sources are compared with it.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    scheme: Scheme,
    authority: &'a str,
    host: &'a str,
    port: u16,
    path: &'a str,
}

/// The schemes of the URLs that pages name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

impl Scheme {
    fn parse(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "http" => Some(Self::Http),
            "https" => Some(Self::Https),
            _ => None,
        }
    }

    const fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }

    /// Returns whether a source with this scheme names URLs of another one. An `http` source names
    /// `https` as well.
    fn names(self, other: Self) -> bool {
        self == Self::Http || self == other
    }
}

impl<'a> Target<'a> {
    /// Reads a normalised URL.
    pub(super) fn parse(url: &'a str) -> Option<Self> {
        let (scheme, authority, path) = split(url)?;
        let scheme = Scheme::parse(scheme)?;
        let (host, port) = host_and_port(authority);
        let port = match port {
            Some(port) => port.parse().ok()?,
            None => scheme.default_port(),
        };
        Some(Self {
            scheme,
            authority,
            host,
            port,
            path: path.split('?').next().unwrap_or_default(),
        })
    }

    /// Returns whether browsers replace `http` by `https` in the URL for a document that upgrades
    /// requests. They exempt the computer itself.
    pub(super) fn is_upgraded(&self) -> bool {
        self.scheme == Scheme::Http && !is_loopback(self.host)
    }
}

/// Returns the host of an authority, and its port if it names one.
fn host_and_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    }
}

/// The origin of a document, which `'self'` stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    scheme: Scheme,
    authority: Box<str>,
}

impl Origin {
    /// Returns the origin of a normalised URL.
    pub(super) fn of(url: &str) -> Option<Self> {
        let target = Target::parse(url)?;
        Some(Self {
            scheme: target.scheme,
            authority: target.authority.into(),
        })
    }

    /// Returns the number of bytes of the text.
    pub(super) const fn text_bytes(&self) -> usize {
        self.authority.len()
    }
}

/// A list of sources. Of nonces and hashes only their presence is kept: they differ with each
/// response, and the policies of two responses would differ too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sources {
    names_all: bool,
    names_own: bool,
    /// The widest scheme that is named alone.
    scheme: Option<Scheme>,
    hosts: Vec<HostSource>,
    has_nonce: bool,
    /// True with `'strict-dynamic'`, which makes browsers ignore hosts and schemes for scripts.
    is_dynamic: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct HostSource {
    scheme: Scheme,
    host: Host,
    port: Port,
    path: Box<str>,
}

/// The hosts that a source names, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Any,
    /// The hosts that end with this text, which begins with a dot.
    Below(Box<str>),
    Named(Box<str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Port {
    Any,
    Default,
    Named(u16),
}

impl Sources {
    /// Reads the words of a directive in a document of this origin. Sources that no URL of a page
    /// matches are left out.
    pub(super) fn parse<'a>(words: impl Iterator<Item = &'a str>, own: &Origin) -> Self {
        let mut sources = Self::default();
        for word in words {
            sources.add(word, own);
        }
        sources.hosts.shrink_to_fit();
        sources
    }

    fn add(&mut self, word: &str, own: &Origin) {
        if word == "*" {
            self.names_all = true;
        } else if word.starts_with('\'') {
            self.names_own |= word.eq_ignore_ascii_case("'self'");
            self.is_dynamic |= word.eq_ignore_ascii_case("'strict-dynamic'");
            self.has_nonce |= nonce(word).is_some();
        } else if let Some(name) = word.strip_suffix(':') {
            self.scheme = match (self.scheme, Scheme::parse(name)) {
                (Some(Scheme::Http), _) => Some(Scheme::Http),
                (known, named) => named.or(known),
            };
        } else if let Some(host) = HostSource::parse(word, own) {
            self.hosts.push(host);
        }
    }

    /// Makes the list one whose nonces admit nothing.
    pub(super) const fn without_nonce(mut self) -> Self {
        self.has_nonce = false;
        self
    }

    /// Returns the number of hosts that a URL is compared with.
    pub(super) const fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Returns the number of bytes of the texts that are kept.
    pub(super) fn text_bytes(&self) -> usize {
        self.hosts.iter().map(HostSource::text_bytes).sum()
    }

    /// Returns the number of bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.hosts.len() * size_of::<HostSource>() + self.text_bytes()
    }

    /// Returns whether browsers ignore the hosts and schemes of the list for scripts.
    pub(super) const fn is_dynamic(&self) -> bool {
        self.is_dynamic
    }

    /// Returns whether the list admits elements with the nonce of the response.
    pub(super) const fn has_nonce(&self) -> bool {
        self.has_nonce
    }

    /// Returns whether a source of the list names the URL.
    pub(super) fn name(&self, target: &Target<'_>, own: &Origin) -> bool {
        self.names_all
            || self.scheme.is_some_and(|named| named.names(target.scheme))
            || (self.names_own
                && own.scheme == target.scheme
                && *own.authority == *target.authority)
            || self.hosts.iter().any(|host| host.names(target))
    }
}

impl HostSource {
    fn parse(word: &str, own: &Origin) -> Option<Self> {
        let (scheme, rest) = match word.split_once("://") {
            Some((name, rest)) => (Scheme::parse(name)?, rest),
            None => (own.scheme, word),
        };
        let (place, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = host_and_port(place);
        let host = host.to_ascii_lowercase();
        let host = match host.strip_prefix('*') {
            Some("") => Host::Any,
            Some(parent) if parent.starts_with('.') => Host::Below(parent.into()),
            Some(_) => return None,
            None if host.is_empty() => return None,
            None => Host::Named(host.into()),
        };
        let port = match port {
            None => Port::Default,
            Some("*") => Port::Any,
            Some(port) => Port::Named(port.parse().ok()?),
        };
        Some(Self {
            scheme,
            host,
            port,
            path: path.into(),
        })
    }

    fn text_bytes(&self) -> usize {
        let host = match &self.host {
            Host::Any => 0,
            Host::Below(host) | Host::Named(host) => host.len(),
        };
        host + self.path.len()
    }

    fn names(&self, target: &Target<'_>) -> bool {
        #[cfg(test)]
        comparisons::add();
        let is_host = match &self.host {
            Host::Any => true,
            Host::Below(parent) => target
                .host
                .strip_suffix(&**parent)
                .is_some_and(|it| !it.is_empty()),
            Host::Named(host) => **host == *target.host,
        };
        let is_port = match self.port {
            Port::Any => true,
            Port::Default => target.port == target.scheme.default_port(),
            Port::Named(port) => target.port == port,
        };
        is_host && is_port && self.scheme.names(target.scheme) && self.has_path(target.path)
    }

    /// Returns whether a path is the named one, or is below it if that ends with a slash.
    fn has_path(&self, path: &str) -> bool {
        match &*self.path {
            "" => true,
            named if named.ends_with('/') => path.starts_with(named),
            named => path == named,
        }
    }
}

/// Returns the nonce that a source names.
pub(super) fn nonce(word: &str) -> Option<&str> {
    const BEGIN: &str = "'nonce-";
    let begin = word.get(..BEGIN.len())?;
    let nonce = word.get(BEGIN.len()..)?.strip_suffix('\'')?;
    (begin.eq_ignore_ascii_case(BEGIN) && !nonce.is_empty()).then_some(nonce)
}

/// The number of comparisons of a host with a URL in the current thread.
#[cfg(test)]
pub(crate) mod comparisons {
    use std::cell::Cell;

    thread_local!(static COUNT: Cell<usize> = const { Cell::new(0) });

    pub(super) fn add() {
        COUNT.set(COUNT.get() + 1);
    }

    pub(crate) fn take() -> usize {
        COUNT.take()
    }
}
