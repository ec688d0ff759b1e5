//! A page with bodies, laid out on the authorities that serve it.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use tandem_http::Scheme;
use tandem_http::h1::Authority;

use super::body::{Body, Child, body};
use super::fill::seed;
use super::{Page, PageError, ResourceKind};

/// A page ready to be served and loaded: the same model and authorities give the same bytes
/// everywhere. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Site(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    page: Page,
    scheme: Scheme,
    authorities: Vec<String>,
    assets: Vec<Asset>,
    by_path: HashMap<String, usize>,
}

/// A resource's body.
#[derive(Debug)]
pub struct Asset {
    /// The body.
    pub body: Bytes,
    /// The references of the body, in their order.
    pub references: Vec<Reference>,
    /// Entity tag, quotes included.
    pub etag: String,
}

/// A mention of a resource in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The index of the referenced resource.
    pub child: usize,
    /// Bytes of the body that must have arrived for it to be known.
    pub end: usize,
}

impl Site {
    /// Makes the bodies. The page's hosts are dealt to `authorities` (`host` or `host:port`) in
    /// turn, so that one authority serves all of them and several act as shards.
    pub fn new(page: Page, authorities: &[impl AsRef<str>]) -> Result<Self, PageError> {
        Self::with_scheme(page, Scheme::Http, authorities)
    }

    /// The same, with URLs of either scheme.
    pub fn with_scheme(
        page: Page,
        scheme: Scheme,
        authorities: &[impl AsRef<str>],
    ) -> Result<Self, PageError> {
        let authorities: Vec<String> = authorities.iter().map(|a| a.as_ref().to_owned()).collect();
        if let Some(bad) = authorities
            .iter()
            .find(|a| Authority::parse(a.as_bytes()).is_none())
        {
            return Err(PageError::Authority(bad.clone()));
        }
        if authorities.is_empty() {
            return Err(PageError::Authority(String::new()));
        }
        let page = page.checked()?;
        let mut inner = Inner {
            page,
            scheme,
            authorities,
            assets: Vec::new(),
            by_path: HashMap::new(),
        };
        inner.assets = inner.render();
        inner.by_path = inner
            .page
            .resources
            .iter()
            .enumerate()
            .map(|(i, r)| (r.path.clone(), i))
            .collect();
        Ok(Self(Arc::new(inner)))
    }

    /// The model.
    pub fn page(&self) -> &Page {
        &self.0.page
    }

    /// The scheme of its URLs.
    pub fn scheme(&self) -> Scheme {
        self.0.scheme
    }

    /// Returns the authorities at which it is served.
    pub fn authorities(&self) -> &[String] {
        &self.0.authorities
    }

    /// A resource's body; `index` as in [`Page::resources`].
    pub fn asset(&self, index: usize) -> &Asset {
        &self.0.assets[index]
    }

    /// The resource with this path.
    pub fn find(&self, path: &str) -> Option<usize> {
        self.0.by_path.get(path).copied()
    }

    /// The authority that serves a resource.
    pub fn authority(&self, index: usize) -> &str {
        self.0.authority(index)
    }

    /// The absolute URL of a resource.
    pub fn url(&self, index: usize) -> String {
        format!(
            "{}://{}{}",
            self.0.scheme.as_str(),
            self.authority(index),
            self.0.page.resources[index].path
        )
    }

    /// How `parent` mentions `child`: by its path where both have the same authority, so that a
    /// site is the same under any name.
    pub fn mention(&self, parent: usize, child: usize) -> String {
        self.0.mention(parent, child)
    }

    /// Body bytes of all resources, as served.
    pub fn bytes(&self) -> u64 {
        self.0.assets.iter().map(|a| a.body.len() as u64).sum()
    }
}

impl Inner {
    fn authority(&self, index: usize) -> &str {
        &self.authorities[self.page.resources[index].host % self.authorities.len()]
    }

    /// Returns the reference to `child` in the body of `parent`.
    fn mention(&self, parent: usize, child: usize) -> String {
        let path = &self.page.resources[child].path;
        if self.authority(parent) != self.authority(child) {
            format!("{}://{}{path}", self.scheme.as_str(), self.authority(child))
        } else if path.starts_with("//") {
            // Two slashes at the start would name a host; the dot goes when the reference is
            // resolved.
            format!("/.{path}")
        } else {
            path.clone()
        }
    }

    fn render(&self) -> Vec<Asset> {
        let count = self.page.resources.len();
        let mut children: Vec<Vec<Child>> = (0..count).map(|_| Vec::new()).collect();
        let mut sheets: Vec<Vec<usize>> = vec![Vec::new(); count];
        // The document that each is part of; parents stand before their children.
        let mut documents: Vec<Option<usize>> = vec![None; count];
        for (index, resource) in self.page.resources.iter().enumerate() {
            if let Some(parent) = resource.parent {
                let is_new = matches!(
                    resource.mime.as_str(),
                    "image/webp" | "image/avif" | "image/jxl"
                );
                let url = self.mention(parent, index);
                children[parent].push(Child {
                    index,
                    kind: resource.kind,
                    url,
                    is_new,
                });
            }
            documents[index] = resource.parent.and_then(|p| {
                if self.is_document(p) {
                    Some(p)
                } else {
                    documents[p]
                }
            });
            if let Some(document) = documents[index].filter(|_| resource.kind == ResourceKind::Css)
            {
                sheets[document].push(index);
            }
        }
        (0..count)
            .map(|index| self.asset(index, &children[index], &sheets[index]))
            .collect()
    }

    fn is_document(&self, index: usize) -> bool {
        let resource = &self.page.resources[index];
        resource.kind == ResourceKind::Html && !resource.is_redirect()
    }

    fn asset(&self, index: usize, children: &[Child], sheets: &[usize]) -> Asset {
        let resource = &self.page.resources[index];
        let seed = seed(resource.path.as_bytes());
        let body = match resource.status {
            204 => Body {
                bytes: Vec::new(),
                references: Vec::new(),
            },
            _ if resource.is_redirect() => redirect_body(children),
            _ => body(resource, index, children, sheets, seed),
        };
        Asset {
            etag: format!("\"{:016x}\"", seed ^ body.bytes.len() as u64),
            references: body
                .references
                .iter()
                .map(|&(child, end)| Reference { child, end })
                .collect(),
            body: body.bytes.into(),
        }
    }
}

/// The body of a redirect says where it leads, for people.
fn redirect_body(children: &[Child]) -> Body {
    let url = children.first().map_or("", |c| &c.url);
    let bytes = format!("<a href=\"{}\">moved</a>\n", url.replace('&', "&amp;")).into_bytes();
    let references = children.iter().map(|c| (c.index, bytes.len())).collect();
    Body { bytes, references }
}
