//! Page models: the resources of a page, their sizes and their dependencies.
//!
//! ```text
//!  recorded page · HAR file · generator ──▶ Page ──▶ Site (bodies) ──▶ origin serves it, loader checks it
//! ```
//!
//! A model has no bodies. [`Site`] makes them: real HTML, CSS, scripts and images of the right size
//! with references to their children, so that a browser loads the page in the recorded order.

mod body;
mod caching;
mod cookies;
mod fill;
mod generate;
mod record;
mod site;

use std::collections::HashMap;
use std::path::Path;

pub use caching::Caching;
pub(crate) use caching::{Kept, date};
pub(crate) use cookies::name as cookie_name;
pub use fill::seed;
pub use site::{Asset, Reference, Site};

/// Most resources of a page.
const MAX_RESOURCES: usize = 20_000;
/// Most body bytes of a page.
const MAX_BYTES: u64 = 1 << 30;

/// A page: resources, each caused by an earlier one or known from the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The name of the page in reports.
    pub name: String,
    /// Hosts as recorded; resources say which is theirs.
    pub hosts: Vec<String>,
    /// The resources in order of their first request. A parent comes before its children.
    pub resources: Vec<Resource>,
}

/// A resource of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Path and query, beginning with `/`; no two resources of a page have the same, whatever their
    /// hosts.
    pub path: String,
    /// Index into [`Page::hosts`].
    pub host: usize,
    /// `Content-Type`, without parameters.
    pub mime: String,
    /// The type of the resource.
    pub kind: ResourceKind,
    /// Bytes of the body on the wire. [`Site`] makes it larger where the references do not fit.
    pub size: usize,
    /// Status; 301 to 308 lead to the one child.
    pub status: u16,
    /// The index of the resource that causes it; `None` if it is known from the start.
    pub parent: Option<usize>,
    /// The caching fields of its response.
    pub caching: Caching,
    /// The `Set-Cookie` fields of its response, to a request without these cookies.
    pub cookies: Vec<String>,
}

/// The type of a resource of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ResourceKind {
    /// The document, or a frame in it.
    Html,
    /// Style sheet.
    Css,
    /// Script.
    Script,
    /// Image.
    Image,
    /// Font.
    Font,
    /// Loaded by a script: data, beacons, manifests, media.
    Fetch,
}

impl ResourceKind {
    /// Returns true if it can refer to a resource of `child`'s kind.
    const fn can_name(self, child: Self) -> bool {
        match self {
            Self::Html | Self::Script => true,
            Self::Css => matches!(child, Self::Css | Self::Image | Self::Font),
            Self::Image | Self::Font | Self::Fetch => false,
        }
    }

    /// Returns the rank of its requests among those that a browser can send: 0 is first.
    pub const fn rank(self) -> u8 {
        match self {
            Self::Html => 0,
            Self::Css => 1,
            Self::Script | Self::Font => 2,
            Self::Fetch => 3,
            Self::Image => 4,
        }
    }
}

/// An error in a page model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The file has no page.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// The cause.
        source: Box<Self>,
    },
    /// The text is not JSON, or not of the shape of a page.
    #[error("not a page: {0}")]
    Json(#[from] serde_json::Error),
    /// JSON, but none of the three shapes.
    #[error(
        "neither a recorded page (\"entries\"), a HAR file (\"log\") nor a page model (\"resources\")"
    )]
    Shape,
    /// The page has no resource that can be loaded over HTTP.
    #[error("the page has no http or https resource")]
    Empty,
    /// It is too large to be meant.
    #[error("the page has more than {MAX_RESOURCES} resources or {MAX_BYTES} bytes")]
    TooLarge,
    /// A resource contradicts the model.
    #[error("resource {index}: {what}")]
    Resource {
        /// The index of the resource.
        index: usize,
        /// The error in the resource.
        what: &'static str,
    },
    /// A browser begins with one document.
    #[error(
        "{path} has no cause, and is not the document that the page begins with: no browser would load it"
    )]
    NotBrowsable {
        /// The resource.
        path: String,
    },
    /// A name that is neither a built-in page nor a file.
    #[error(
        "unknown page {0:?}: a file, or one of demo, thesis, twitter, youtube, imgur, uniform:NxBYTES, gallery:NxBYTES"
    )]
    Unknown(String),
    /// A site needs at least one authority, and valid ones.
    #[error("not a host with an optional port: {0:?}")]
    Authority(String),
}

impl Page {
    /// A built-in page by name (`demo`, `thesis`, `twitter`, `youtube`, `imgur`, `uniform:NxBYTES`,
    /// `gallery:NxBYTES`) or a file (recorded page, HAR, page model).
    pub fn open(name: &str) -> Result<Self, PageError> {
        let sized = |text: &str| {
            let (count, size) = text.split_once('x')?;
            Some((count.parse().ok()?, size.parse().ok()?))
        };
        match name {
            "demo" => Self::demo(),
            "thesis" => Ok(Self::thesis()),
            "twitter" => Ok(Self::twitter()),
            "youtube" => Ok(Self::youtube()),
            "imgur" => Ok(Self::imgur()),
            _ if Path::new(name).is_file() => Self::read(Path::new(name)),
            _ => {
                let (kind, sizes) = name.split_once(':').unwrap_or((name, ""));
                let page = match (kind, sized(sizes)) {
                    (_, Some((count, _))) if count > MAX_RESOURCES => {
                        return Err(PageError::TooLarge);
                    }
                    ("uniform", Some((count, size))) => Self::uniform(count, size),
                    ("gallery", Some((count, size))) => Self::gallery(count, size),
                    _ => return Err(PageError::Unknown(name.to_owned())),
                };
                page.checked()
            }
        }
    }

    /// Reads a recorded page, a HAR 1.2 file or a page model.
    pub fn read(path: &Path) -> Result<Self, PageError> {
        let text = std::fs::read(path).map_err(|source| PageError::Read {
            path: path.display().to_string(),
            source,
        })?;
        let name = path
            .file_stem()
            .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        Self::from_json(&name, &text).map_err(|error| PageError::File {
            path: path.display().to_string(),
            source: Box::new(error),
        })
    }

    /// Body bytes of all resources.
    pub fn bytes(&self) -> u64 {
        self.resources
            .iter()
            .fold(0, |sum, resource| sum.saturating_add(resource.size as u64))
    }

    /// Checks that a browser can load it: all resources descend from one document, or from a
    /// redirect to it.
    pub fn check_browsable(&self) -> Result<(), PageError> {
        let fits = |(index, resource): (usize, &Resource)| match resource.parent {
            None => index == 0 && resource.kind == ResourceKind::Html,
            Some(_) => true,
        };
        match self.resources.iter().enumerate().find(|&at| !fits(at)) {
            None => Ok(()),
            Some((_, resource)) => Err(PageError::NotBrowsable {
                path: resource.path.clone(),
            }),
        }
    }

    /// Makes a page from parts of unknown quality: unique paths in a safe alphabet, parents that
    /// can name their children.
    fn normalised(mut self) -> Result<Self, PageError> {
        if self.resources.is_empty() {
            return Err(PageError::Empty);
        }
        if self.resources.len() > MAX_RESOURCES {
            return Err(PageError::TooLarge);
        }
        let mut seen = HashMap::new();
        for index in 0..self.resources.len() {
            let path = safe_path(&self.resources[index].path);
            self.resources[index].path = unique(path, &mut seen);
            self.resources[index].parent = self.able_parent(index);
        }
        self.drop_dead_redirects();
        self.type_redirects();
        self.checked()
    }

    /// Returns the parent of `index`: the recorded one if it can have such references, such as a
    /// redirect. A document without a parent descends from the redirect before it.
    fn able_parent(&self, index: usize) -> Option<usize> {
        let recorded = self.resources[index].parent.filter(|&p| p < index);
        match recorded {
            Some(at) if self.resources[at].is_redirect() => recorded,
            _ => self.nearest_able(recorded, index).or_else(|| {
                let before = index.checked_sub(1)?;
                self.resources[before].is_redirect().then_some(before)
            }),
        }
    }

    /// Returns the nearest ancestor, from `parent` upwards, that can refer to `index`: references
    /// are text in HTML, style sheets and scripts. A resource without such an ancestor belongs to
    /// the first document.
    fn nearest_able(&self, mut parent: Option<usize>, index: usize) -> Option<usize> {
        let kind = self.resources[index].kind;
        while let Some(at) = parent {
            if self.resources[at].can_name(kind) {
                return Some(at);
            }
            parent = self.resources[at].parent;
        }
        self.resources[..index]
            .iter()
            .position(|r| r.kind == ResourceKind::Html && r.can_name(kind))
    }

    /// A redirect leads to one place: its first child; further ones belong to whatever it leads to.
    /// Without any it is an ordinary answer.
    fn drop_dead_redirects(&mut self) {
        for index in 0..self.resources.len() {
            if !self.resources[index].is_redirect() {
                continue;
            }
            let mut children = (index + 1..self.resources.len())
                .filter(|&c| self.resources[c].parent == Some(index));
            let Some(first) = children.next() else {
                self.resources[index].status = 200;
                continue;
            };
            for child in children.collect::<Vec<_>>() {
                let target = &self.resources[first];
                let heir = target.is_redirect() || target.can_name(self.resources[child].kind);
                self.resources[child].parent = if heir {
                    Some(first)
                } else {
                    self.nearest_able(self.resources[index].parent, child)
                };
            }
        }
    }

    /// Gives redirects the kind of the resource to which they lead. A browser requests both alike,
    /// and recorders name the kind of an empty response in their own way.
    fn type_redirects(&mut self) {
        for index in (1..self.resources.len()).rev() {
            let is_target = |it: &&Resource| it.parent == Some(index);
            let target = self.resources.iter().find(is_target);
            let Some(kind) = target.map(|target| target.kind) else {
                continue;
            };
            let redirect = &self.resources[index];
            let parent = redirect.parent.map(|parent| &self.resources[parent]);
            let may_be = parent.is_none_or(|it| it.is_redirect() || it.can_name(kind));
            if redirect.is_redirect() && may_be {
                self.resources[index].kind = kind;
            }
        }
    }

    /// Checks the invariants of a page.
    fn checked(self) -> Result<Self, PageError> {
        if self.resources.len() > MAX_RESOURCES || self.bytes() > MAX_BYTES {
            return Err(PageError::TooLarge);
        }
        let mut seen = HashMap::new();
        for (index, resource) in self.resources.iter().enumerate() {
            if let Some(what) = self.fault(index, resource, &mut seen) {
                return Err(PageError::Resource { index, what });
            }
        }
        Ok(self)
    }

    fn fault<'a>(
        &self,
        index: usize,
        resource: &'a Resource,
        seen: &mut HashMap<&'a str, ()>,
    ) -> Option<&'static str> {
        if safe_path(&resource.path) != resource.path {
            return Some("the path has bytes that must be escaped");
        }
        if seen.insert(&resource.path, ()).is_some() {
            return Some("the path is there twice");
        }
        if resource.host >= self.hosts.len() {
            return Some("its host is not in the list");
        }
        if !(200..600).contains(&resource.status) {
            return Some("the status is not within 200 to 599");
        }
        if !resource.mime.bytes().all(|b| b.is_ascii_graphic()) {
            return Some("the type is not valid");
        }
        if !resource.caching.is_valid() {
            return Some("the Cache-Control is not a field value of at most 300 letters");
        }
        if !resource.cookies.iter().all(|it| cookies::is_valid(it)) {
            return Some("a cookie has no name, or is no field value of at most 1,024 letters");
        }
        match resource.parent.map(|p| (p, self.resources.get(p))) {
            None => None,
            Some((at, Some(parent))) if at < index => (!parent.is_redirect()
                && !parent.can_name(resource.kind))
            .then_some("its parent cannot name it"),
            Some(_) => Some("its parent does not stand before it"),
        }
    }
}

impl Resource {
    /// Returns true if the response redirects to another resource.
    pub const fn is_redirect(&self) -> bool {
        matches!(self.status, 301 | 302 | 303 | 307 | 308)
    }

    /// Returns true if its body can make a browser load a resource of this kind: error pages can,
    /// failed sheets and scripts are not used.
    const fn can_name(&self, kind: ResourceKind) -> bool {
        let used = match self.kind {
            ResourceKind::Html => self.status != 204 && !self.is_redirect(),
            _ => self.status == 200,
        };
        used && self.kind.can_name(kind)
    }
}

/// Escapes characters that are invalid in a request target or would end an attribute, and drops a
/// fragment. Changes segments that a browser would remove (`.` and `..`, RFC 3986 section 5.2.4).
fn safe_path(path: &str) -> String {
    let path = path.split_once('#').map_or(path, |(path, _)| path);
    let mut safe = String::with_capacity(path.len() + 1);
    if !path.starts_with('/') {
        safe.push('/');
    }
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/?&=%-._~!$*+,;:@|".contains(&byte) {
            safe.push(char::from(byte));
        } else {
            safe.push_str(&format!("%{byte:02X}"));
        }
    }
    without_dots(safe)
}

fn without_dots(path: String) -> String {
    let (base, query) = path
        .split_once('?')
        .map_or((path.as_str(), None), |(base, query)| (base, Some(query)));
    let is_dots = |segment: &str| {
        matches!(
            segment.to_ascii_lowercase().replace("%2e", ".").as_str(),
            "." | ".."
        )
    };
    if !base.split('/').any(is_dots) {
        return path;
    }
    let segments = base.split('/').map(|segment| {
        if is_dots(segment) {
            format!("{segment}_")
        } else {
            segment.to_owned()
        }
    });
    let base = segments.collect::<Vec<_>>().join("/");
    query.map_or_else(|| base.clone(), |query| format!("{base}?{query}"))
}

/// Makes a path unlike all earlier ones, as resources of several hosts may be served by one.
fn unique(path: String, seen: &mut HashMap<String, usize>) -> String {
    let count = seen.entry(path.clone()).or_insert(0);
    *count += 1;
    if *count == 1 {
        return path;
    }
    let mark = if path.contains('?') { '&' } else { '?' };
    let candidate = format!("{path}{mark}again={count}");
    unique(candidate, seen)
}
