//! Pages from files: recorded pages, HAR 1.2 files of any recorder, and page models in a compact
//! form of our own.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Caching, MAX_RESOURCES, Page, PageError, Resource, ResourceKind, cookies};

/// The page that the demonstration loads: the structure of a real article of Wikipedia.
const DEMO: &str = include_str!("demo.json");

/// A share of the decoded size that compressed text has on the wire, where the recorder did not
/// note it.
const COMPRESSED_TEXT: f64 = 0.3;

impl Page {
    /// The structure of a real page (an encyclopedia article with 111 resources on 3 hosts, loaded
    /// in 2018).
    pub fn demo() -> Result<Self, PageError> {
        Self::from_json("demo", DEMO.as_bytes())
    }

    /// Reads a recorded page (`entries`), a HAR file (`log`) or a page model (`resources`); `name`
    /// is for those that do not say theirs.
    pub fn from_json(name: &str, text: &[u8]) -> Result<Self, PageError> {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let value: Value = serde_json::from_slice(text)?;
        if value.get("resources").is_some() {
            Model::deserialize(value)?.into_page()
        } else if value.get("entries").is_some() {
            let recorded = Recorded::deserialize(value)?;
            page_from(
                recorded.name.unwrap_or_else(|| name.to_owned()),
                recorded.entries,
            )
        } else if value.get("log").is_some() {
            page_from(
                name.to_owned(),
                ImportedHar::deserialize(value)?.into_entries(),
            )
        } else {
            Err(PageError::Shape)
        }
    }

    /// The page in the compact form.
    pub fn to_json(&self) -> String {
        let resources = self.resources.iter().map(|r| {
            Row(
                r.path.clone(),
                r.host,
                r.mime.clone(),
                r.kind,
                r.size,
                r.parent,
                Some(r.status).filter(|&s| s != 200),
                Some(r.caching.clone()).filter(|c| *c != Caching::default()),
                r.cookies.clone(),
            )
        });
        let model = Model {
            name: self.name.clone(),
            hosts: self.hosts.clone(),
            resources: resources.collect(),
        };
        serde_json::to_string(&model).expect("strings and numbers are always JSON")
    }
}

/// The compact form.
#[derive(Serialize, Deserialize)]
struct Model {
    name: String,
    hosts: Vec<String>,
    resources: Vec<Row>,
}

/// Path, host, type, kind, size, parent, status unless 200, caching fields unless they are the
/// default, cookies.
#[derive(Serialize, Deserialize)]
struct Row(
    String,
    usize,
    String,
    ResourceKind,
    usize,
    Option<usize>,
    #[serde(default)] Option<u16>,
    #[serde(default)] Option<Caching>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")] Vec<String>,
);

impl Model {
    fn into_page(self) -> Result<Page, PageError> {
        let resources = self.resources.into_iter().map(
            |Row(path, host, mime, kind, size, parent, status, caching, cookies)| Resource {
                path,
                host,
                mime,
                kind,
                size,
                status: status.unwrap_or(200),
                parent,
                caching: caching.unwrap_or_default(),
                cookies,
            },
        );
        let page = Page {
            name: self.name,
            hosts: self.hosts,
            resources: resources.collect(),
        };
        if page.resources.is_empty() {
            Err(PageError::Empty)
        } else {
            page.checked()
        }
    }
}

/// A recorded page, with only the fields that a model needs.
#[derive(Deserialize)]
struct Recorded {
    name: Option<String>,
    entries: Vec<RecordedRequest>,
}

/// A recorded request.
#[derive(Deserialize)]
struct RecordedRequest {
    url: String,
    #[serde(default)]
    status: i64,
    #[serde(default)]
    mime: String,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    body: i64,
    #[serde(default)]
    parent: Option<usize>,
    /// Fields of the response.
    #[serde(default)]
    resp: Vec<(String, String)>,
}

/// Keeps the entries that HTTP can load, and adjusts the parents to the new indices.
fn page_from(name: String, entries: Vec<RecordedRequest>) -> Result<Page, PageError> {
    if entries.len() > MAX_RESOURCES {
        return Err(PageError::TooLarge);
    }
    let mut page = Page {
        name,
        hosts: Vec::new(),
        resources: Vec::new(),
    };
    let mut hosts: HashMap<String, usize> = HashMap::new();
    let mut places: Vec<Option<usize>> = Vec::new();
    for entry in entries {
        let parent = entry.parent.and_then(|p| places.get(p).copied().flatten());
        let Some((host, path)) = split_url(&entry.url) else {
            places.push(parent);
            continue;
        };
        let host = *hosts.entry(host.to_owned()).or_insert_with(|| {
            page.hosts.push(host.to_owned());
            page.hosts.len() - 1
        });
        let mime = entry.mime.split(';').next().unwrap_or_default().trim();
        let mime: String = mime.chars().filter(char::is_ascii_graphic).collect();
        let (kind, mime) = kind_of(&entry.kind, mime, path, page.resources.is_empty());
        places.push(Some(page.resources.len()));
        page.resources.push(Resource {
            path: path.to_owned(),
            host,
            mime,
            kind,
            size: usize::try_from(entry.body).unwrap_or(0),
            status: status_of(entry.status),
            parent,
            caching: Caching::recorded(&entry.resp, kind),
            cookies: cookies::recorded(&entry.resp),
        });
    }
    page.normalised()
}

/// Host and path of an http or https URL.
fn split_url(url: &str) -> Option<(&str, &str)> {
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"))?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let host = rest[..end]
        .rsplit_once('@')
        .map_or(&rest[..end], |(_, host)| host);
    (!host.is_empty()).then_some((host, &rest[end..]))
}

/// Returns the status for a model. Responses that could not be recorded, were aborted by the reader
/// or came from its cache count as ordinary ones, since a first visit gets them.
fn status_of(recorded: i64) -> u16 {
    match recorded {
        301 | 302 | 303 | 307 | 308 | 204 | 400..=599 => recorded as u16,
        _ => 200,
    }
}

/// Returns the kind of a resource. The recorder's type, the media type and the path decide in this
/// order; some recorders use `other` for many types.
fn kind_of(word: &str, mime: String, path: &str, first: bool) -> (ResourceKind, String) {
    let kind = match word.to_ascii_lowercase().as_str() {
        _ if first => ResourceKind::Html,
        "html" | "document" | "subdocument" | "iframe" => ResourceKind::Html,
        "css" | "stylesheet" => ResourceKind::Css,
        "js" | "script" => ResourceKind::Script,
        "image" | "imageset" | "img" => ResourceKind::Image,
        "font" => ResourceKind::Font,
        "xhr" | "fetch" | "ping" | "beacon" | "media" | "manifest" | "websocket" | "preflight" => {
            ResourceKind::Fetch
        }
        _ => kind_of_mime(&mime, path),
    };
    let fallback = match kind {
        ResourceKind::Html => "text/html",
        ResourceKind::Css => "text/css",
        ResourceKind::Script => "text/javascript",
        ResourceKind::Image => "image/png",
        ResourceKind::Font => "font/woff2",
        ResourceKind::Fetch => "application/octet-stream",
    };
    // A browser refuses a style sheet or document of a foreign type, and shows plain text without
    // loading anything.
    let fits = match kind {
        ResourceKind::Html | ResourceKind::Css => mime == fallback,
        ResourceKind::Script => mime.contains("javascript"),
        ResourceKind::Image => mime.starts_with("image/"),
        ResourceKind::Font | ResourceKind::Fetch => mime.contains('/'),
    };
    (kind, if fits { mime } else { fallback.to_owned() })
}

fn kind_of_mime(mime: &str, path: &str) -> ResourceKind {
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    let ends = |ends: &[&str]| ends.iter().any(|end| path.ends_with(end));
    if mime == "text/html" {
        ResourceKind::Html
    } else if mime == "text/css" || ends(&[".css"]) {
        ResourceKind::Css
    } else if mime.contains("javascript") || ends(&[".js"]) {
        ResourceKind::Script
    } else if mime.starts_with("image/")
        || ends(&[".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".ico"])
    {
        ResourceKind::Image
    } else if mime.contains("font") || ends(&[".woff", ".woff2", ".ttf", ".otf"]) {
        ResourceKind::Font
    } else {
        ResourceKind::Fetch
    }
}

/// HAR 1.2, with the extensions of Chrome and Firefox for the initiator of a request.
#[derive(Deserialize)]
struct ImportedHar {
    log: HarLog,
}

#[derive(Deserialize)]
struct HarLog {
    entries: Vec<HarEntry>,
}

#[derive(Deserialize)]
struct HarEntry {
    request: HarRequest,
    response: HarResponse,
    #[serde(default, rename = "_resourceType")]
    resource_type: Option<String>,
    #[serde(default, rename = "_initiator")]
    initiator: Value,
}

#[derive(Deserialize)]
struct HarRequest {
    url: String,
    #[serde(default)]
    headers: Vec<HarHeader>,
}

#[derive(Deserialize)]
struct HarHeader {
    name: String,
    #[serde(default)]
    value: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HarResponse {
    #[serde(default, deserialize_with = "number")]
    status: Option<i64>,
    #[serde(default, deserialize_with = "number")]
    body_size: Option<i64>,
    #[serde(default, deserialize_with = "number")]
    headers_size: Option<i64>,
    #[serde(default, rename = "_transferSize", deserialize_with = "number")]
    transfer_size: Option<i64>,
    #[serde(default)]
    content: HarContent,
    #[serde(default, rename = "redirectURL")]
    redirect_url: Option<String>,
    #[serde(default)]
    headers: Vec<HarHeader>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HarContent {
    #[serde(default, deserialize_with = "number")]
    size: Option<i64>,
    #[serde(default)]
    mime_type: Option<String>,
}

/// Reads a number of HAR 1.2, which may have a fraction. It may be `null` as well, as where the
/// recorder did not know it.
fn number<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.map(|number| number as i64))
}

impl ImportedHar {
    fn into_entries(self) -> Vec<RecordedRequest> {
        let mut by_url: HashMap<String, usize> = HashMap::new();
        let mut redirected: HashMap<String, usize> = HashMap::new();
        let mut entries = Vec::new();
        for (index, har) in self.log.entries.into_iter().enumerate() {
            let url = har.request.url.clone();
            let parent = redirected
                .get(&url)
                .copied()
                .or_else(|| har.parent(&by_url));
            let target = har.response.redirect_url.as_deref().unwrap_or_default();
            if !target.is_empty() {
                redirected.insert(absolute(&url, target), index);
            }
            by_url.entry(url.clone()).or_insert(index);
            entries.push(RecordedRequest {
                url,
                status: har.response.status.unwrap_or_default(),
                body: har.response.wire_size(),
                kind: har.resource_type.unwrap_or_default(),
                mime: har.response.content.mime_type.unwrap_or_default(),
                parent,
                resp: (har.response.headers.into_iter())
                    .map(|field| (field.name, field.value.unwrap_or_default()))
                    .collect(),
            });
        }
        entries
    }
}

impl HarEntry {
    /// Returns the initiator of the request: the one that the browser recorded, or else the
    /// referring resource.
    fn parent(&self, by_url: &HashMap<String, usize>) -> Option<usize> {
        let stack = self.initiator.pointer("/stack/callFrames/0/url");
        let named = self
            .initiator
            .get("url")
            .or(stack)
            .unwrap_or(&self.initiator)
            .as_str();
        let referer = self
            .request
            .headers
            .iter()
            .find(|h| h.name.eq_ignore_ascii_case("referer"));
        let known = |url: &str| by_url.get(url).copied();
        named
            .and_then(known)
            .or_else(|| known(referer?.value.as_deref()?))
    }
}

impl HarResponse {
    /// Bytes of the body on the wire as well as the recorder knew them.
    fn wire_size(&self) -> i64 {
        let size = self.content.size.unwrap_or_default();
        if self.body_size == Some(0) && size == 0 {
            return 0;
        }
        let transferred = self
            .transfer_size
            .filter(|&n| n > 0)
            .map(|n| n - self.headers_size.unwrap_or(0).max(0));
        let noted = self
            .body_size
            .filter(|&n| n > 0)
            .or_else(|| transferred.filter(|&n| n > 0));
        noted.unwrap_or_else(|| {
            let mime = self.content.mime_type.as_deref().unwrap_or_default();
            let text =
                mime.starts_with("text/") || mime.contains("javascript") || mime.contains("json");
            let share = if text { COMPRESSED_TEXT } else { 1.0 };
            (size as f64 * share) as i64
        })
    }
}

/// The target of a redirect as an absolute URL.
fn absolute(base: &str, target: &str) -> String {
    let Some((scheme, rest)) = base.split_once("://") else {
        return target.to_owned();
    };
    let host = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    if target.contains("://") {
        target.to_owned()
    } else if let Some(rest) = target.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if target.starts_with('/') {
        format!("{scheme}://{host}{target}")
    } else {
        let folder = base
            .rsplit_once('/')
            .filter(|(f, _)| f.len() > scheme.len() + 2)
            .map_or(base, |(f, _)| f);
        format!("{folder}/{target}")
    }
}
