//! Finds the resources that a page will need in its HTML, CSS and modules as they pass. This is the
//! work of a browser's preload scanner, but done at the gateway, so that a resource is on its way
//! before the browser requests it.
//!
//! [`Scanner::feed`] takes any cut of the stream and appends [`Need`]s in document order. It reads
//! tags and rules only, runs no script and builds no tree. Choices that depend on the window or on
//! image formats follow Chromium. Memory is bounded for any input: the relevant parts of one tag or
//! rule, each at most 8 KiB, and a hash for each need.
//!
//! The modules, from structure to bytes: `html` separates tags from text, `attribute` keeps their
//! attributes, and `element` derives needs from both. `css` separates rules from text, and `rules`
//! derives needs from them. `module` reads imports, and `literal` the URLs in strings of scripts.
//! `image` and `media` choose among alternatives; `resolve` makes references absolute; `text` and
//! `token` hold byte-level helpers.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod attribute;
mod css;
mod element;
mod html;
mod image;
mod literal;
mod media;
mod module;
mod resolve;
mod rules;
mod text;
mod token;

use css::Css;
pub use element::is_script_type;
use html::Html;
use image::Formats;
use literal::Literals;
use media::Viewport;
use module::Module;
use resolve::Url;
pub use resolve::{MAX_URL, resolve, split};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Urgency of resources that may never be requested: those loaded only once they are nearly in
/// view, and those that another page may need.
pub const LAZY: u8 = urgency::LAZY;

/// Urgency of fonts that a style sheet names. Browsers request those that text needs.
pub const FACE: u8 = urgency::FACE;

/// The use of a resource by the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Another document: in a frame, or where the page sends its reader on.
    Document,
    /// A style sheet.
    Style,
    /// A script or module.
    Script,
    /// An image.
    Image,
    /// A font.
    Font,
    /// Audio, video or a text track.
    Media,
    /// Data that a script will fetch.
    Fetch,
    /// The content of an `object` or `embed` element.
    Object,
    /// Anything else.
    Other,
}

/// Something that a page will ask for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Need {
    /// Absolute `http` or `https` URL, normalised, without a fragment, at most [`MAX_URL`] bytes.
    pub url: String,
    /// The use of the resource by the page.
    pub kind: Kind,
    /// Urgency as in RFC 9218 section 4.1: 0, the most urgent, to 7.
    pub urgency: u8,
    /// True if the browser will request it without credentials: by CORS, from another origin than
    /// the page's.
    pub anonymous: bool,
    /// True if the browser will request it by CORS, whatever its origin.
    pub by_cors: bool,
    /// The referrer policy of the request, if the page or the element names one.
    pub referrer: Option<Referrer>,
    /// The style sheet or module that makes the request, if it is not the document. It is the
    /// referrer.
    pub via: Option<Arc<str>>,
    /// The frame that needs the resource, if it is not the page. The scanner leaves it empty.
    pub frame: Option<Arc<str>>,
    /// True if the element that names it has the nonce of [`Scanner::nonce`].
    pub has_nonce: bool,
}

/// The referrer policy of requests (Referrer Policy section 3), between origins that both use TLS
/// or both do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Referrer {
    /// No referrer.
    None,
    /// The page's URL within its origin, and no referrer to others.
    Own,
    /// The page's origin.
    Origin,
    /// The page's URL within its origin, and only its origin to others.
    #[default]
    OriginToOthers,
    /// The page's URL.
    Whole,
}

impl Referrer {
    /// Returns the policy with this name, or with this old name (HTML standard, "referrer"); `None`
    /// if no policy has it.
    pub fn parse(policy: &str) -> Option<Self> {
        Some(match policy.trim().to_ascii_lowercase().as_str() {
            "no-referrer" | "never" => Self::None,
            "same-origin" => Self::Own,
            "origin" | "strict-origin" => Self::Origin,
            "strict-origin-when-cross-origin"
            | "origin-when-cross-origin"
            | "origin-when-crossorigin"
            | "default" => Self::OriginToOthers,
            "no-referrer-when-downgrade" | "unsafe-url" | "always" => Self::Whole,
            _ => return None,
        })
    }
}

/// The kinds of `meta` elements for client hints that a document has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HintElements {
    /// True if the document asks for hints (`accept-ch`).
    pub ask: bool,
    /// True if it asks for hints to other origins (`delegate-ch`).
    pub delegate: bool,
}

/// Returns whether a list of content security policies permits a base URL. The arguments are the
/// list, the URL of its document, and the base URL.
pub type BaseRule = fn(&str, &str, &str) -> bool;

/// Reads one document or style sheet.
#[derive(Debug)]
pub struct Scanner {
    body: Body,
    sink: Sink,
}

#[derive(Debug)]
enum Body {
    Html(Box<Html>),
    Css(Css),
    Module(Module),
}

impl Scanner {
    /// Needs listed of one document unless told otherwise.
    pub const MAX_NEEDS: usize = 4_096;

    /// Reads the HTML document at `url`; `None` if that is no `http` or `https` URL.
    pub fn html(url: &str) -> Option<Self> {
        let url = Url::parse(url)?;
        let sink = Sink::new(url.clone(), Some(url));
        Some(Self {
            body: Body::Html(Box::new(Html::new())),
            sink,
        })
    }

    /// Reads the style sheet at `url`; `None` if that is no `http` or `https` URL.
    pub fn css(url: &str) -> Option<Self> {
        Some(Self {
            body: Body::Css(Css::sheet()),
            sink: Sink::part(Url::parse(url)?),
        })
    }

    /// Creates a scanner of the script at `url`; its imports count if it is a module. Returns
    /// `None` if `url` is no `http` or `https` URL.
    pub fn script(url: &str) -> Option<Self> {
        Some(Self {
            body: Body::Module(Module::new()),
            sink: Sink::part(Url::parse(url)?),
        })
    }

    /// The browser's window: its width in CSS pixels and its device pixels per CSS pixel. 1280 and
    /// 1 unless told.
    #[must_use]
    pub fn viewport(mut self, width: u32, ratio: f32) -> Self {
        // A window of no size or beyond any screen is somebody's mistake.
        let width = u16::try_from(width.clamp(1, 20_000)).map_or(1_280.0, f32::from);
        let ratio = if ratio.is_finite() {
            ratio.clamp(0.1, 16.0)
        } else {
            1.0
        };
        self.sink.viewport = Viewport {
            width,
            height: width * 9.0 / 16.0,
            ratio,
        };
        self
    }

    /// The field `Accept` of the browser's requests for images or documents: which of AVIF, WebP
    /// and JPEG XL are in it. The first two are taken to be unless told.
    #[must_use]
    pub fn accept(mut self, accept: &str) -> Self {
        let accept = accept.to_ascii_lowercase();
        let has = |media_type| accept.contains(media_type);
        self.sink.formats = Formats {
            avif: has("image/avif"),
            webp: has("image/webp"),
            jxl: has("image/jxl"),
        };
        self
    }

    /// Sets the largest number of needs, which is [`Self::MAX_NEEDS`] by default.
    #[must_use]
    pub fn max_needs(mut self, most: usize) -> Self {
        self.sink.left = most;
        self
    }

    /// Sets the document that uses a style sheet or script. Its origin decides which resources are
    /// requested without credentials. If it is not set, every font and module is.
    #[must_use]
    pub fn page(mut self, url: &str) -> Self {
        self.sink.page = Url::parse(url);
        self
    }

    /// Sets the referrer policy that applies unless an element names another.
    #[must_use]
    pub fn referrer(mut self, policy: Option<Referrer>) -> Self {
        self.sink.referrer = policy;
        self
    }

    /// Sets the nonce of the document's content security policies, by which they admit scripts and
    /// style sheets. None by default.
    #[must_use]
    pub fn nonce(mut self, nonce: Option<String>) -> Self {
        self.sink.nonce = nonce;
        self
    }

    /// Sets the policies in the head of the document that may restrict its base URL, and the rule
    /// that reads them. The rule also reads the policies in `meta` elements. A `base` element that
    /// one of these policies does not permit is ignored.
    #[must_use]
    pub fn base_rule(mut self, rule: BaseRule, policies: Vec<String>) -> Self {
        self.sink.base_rule = Some(rule);
        self.sink.base_policies = policies;
        self
    }

    /// Reads the string literals of scripts as well, see [`Self::take_literals`].
    pub fn read_literals(&mut self) {
        self.sink.literals = Some(Literals::new());
    }

    /// Takes the string literals of scripts that may be URLs, as they were found since the last
    /// call: 1,024 for each document at most. They are not resolved, since scripts use the base URL
    /// of their document.
    pub fn take_literals(&mut self) -> Vec<String> {
        let literals = self.sink.literals.as_mut();
        literals.map(Literals::take).unwrap_or_default()
    }

    /// Returns the base URL of the document's references that was found so far.
    pub fn base(&self) -> &str {
        self.sink.base.as_str()
    }

    /// Returns the referrer policy that the document has declared so far, or that
    /// [`Self::referrer`] has set.
    pub const fn policy(&self) -> Option<Referrer> {
        self.sink.referrer
    }

    /// Takes the kinds of `meta` elements for client hints that were found since the last call.
    pub fn take_hint_elements(&mut self) -> HintElements {
        std::mem::take(&mut self.sink.hint_elements)
    }

    /// Reads a preload of the field `Link` in the head of the document, as if it were an element of
    /// the document. `parameters` are the names, in lower case, and values beside `target`. The
    /// first of a name counts.
    pub fn preload_link<'a>(
        &mut self,
        target: &'a str,
        parameters: impl IntoIterator<Item = (&'a str, &'a str)>,
        found: &mut Vec<Need>,
    ) {
        element::preload_link(target, parameters, &mut self.sink);
        found.append(&mut self.sink.queue);
    }

    /// Takes the texts of the content security policies in `meta` elements that were found since
    /// the last call. A text that is too long, and each beyond a bound, is replaced by one that
    /// permits nothing.
    pub fn take_content_policies(&mut self) -> Vec<String> {
        std::mem::take(&mut self.sink.content_policies)
    }

    /// Returns true if no more needs can be found in any further input.
    pub fn is_over(&self) -> bool {
        let reads_literals = self.sink.literals.as_ref().is_some_and(|it| !it.is_over());
        let is_read = |body: &Body| matches!(body, Body::Module(module) if module.is_over());
        self.sink.left == 0 || (is_read(&self.body) && !reads_literals)
    }

    /// Takes the next bytes of the body, decoded from any content coding, and appends the needs
    /// that they contain.
    pub fn feed(&mut self, bytes: &[u8], found: &mut Vec<Need>) {
        if self.sink.left == 0 {
            return;
        }
        match &mut self.body {
            Body::Html(html) => html.feed(bytes, &mut self.sink),
            Body::Css(css) => css.feed(bytes, &mut self.sink),
            Body::Module(module) => {
                self.sink.read_literals(bytes);
                module.feed(bytes, &mut self.sink);
            }
        }
        found.append(&mut self.sink.queue);
    }

    /// Ends the body and appends the needs that only its end reveals.
    pub fn finish(&mut self, found: &mut Vec<Need>) {
        match &mut self.body {
            Body::Html(html) => html.finish(&mut self.sink),
            Body::Css(css) => css.finish(&mut self.sink),
            // An import is whole with its last quote.
            Body::Module(_) => {}
        }
        found.append(&mut self.sink.queue);
    }
}

/// The largest number of content policies in one document.
const MAX_POLICIES: usize = 16;

/// The urgency values of needs (RFC 9218).
mod urgency {
    pub(super) const REDIRECT: u8 = 0;
    pub(super) const HEAD_STYLE: u8 = 1;
    pub(super) const IMPORT: u8 = 1;
    pub(super) const BODY_STYLE: u8 = 2;
    pub(super) const HEAD_SCRIPT: u8 = 2;
    pub(super) const PRELOADED_FONT: u8 = 2;
    pub(super) const BODY_SCRIPT: u8 = 3;
    pub(super) const DEFERRED_SCRIPT: u8 = 3;
    pub(super) const FETCH: u8 = 3;
    pub(super) const FRAME: u8 = 3;
    pub(super) const ASYNC_SCRIPT: u8 = 4;
    pub(super) const FACE: u8 = 4;
    pub(super) const FIRST_IMAGE: u8 = 4;
    pub(super) const LATER_IMAGE: u8 = 5;
    pub(super) const STYLE_IMAGE: u8 = 5;
    pub(super) const EMBED: u8 = 5;
    pub(super) const UNUSED_STYLE: u8 = 6;
    pub(super) const POINTER: u8 = 6;
    pub(super) const TRACK: u8 = 6;
    pub(super) const ICON: u8 = 6;
    pub(super) const LAZY: u8 = 7;
    pub(super) const PREFETCH: u8 = 7;
}

/// The CORS mode of a request (Fetch section 3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cors {
    /// A request without CORS, with credentials.
    None,
    Anonymous,
    Credentials,
}

impl Cors {
    /// Modules are fetched by CORS even where nothing says so.
    fn or_anonymous(self) -> Self {
        if self == Self::None {
            Self::Anonymous
        } else {
            self
        }
    }
}

/// The fields of a need except its URL.
#[derive(Clone, Copy, Debug)]
struct Ask {
    kind: Kind,
    urgency: u8,
    cors: Cors,
}

impl Ask {
    const fn new(kind: Kind, urgency: u8) -> Self {
        Self {
            kind,
            urgency,
            cors: Cors::None,
        }
    }

    const fn cors(self, cors: Cors) -> Self {
        Self { cors, ..self }
    }
}

/// The collector of needs, with each URL at most once.
#[derive(Debug)]
struct Sink {
    /// The URL of the scanned resource, which is never a need.
    own: Url,
    /// The base URL of references.
    base: Url,
    /// The document that all this is for, if known.
    page: Option<Url>,
    /// The URL of the scanned resource if it is not the document.
    via: Option<Arc<str>>,
    viewport: Viewport,
    formats: Formats,
    /// Hashes of the URLs listed. Two of one hash lose a need, which costs no more than a request.
    seen: HashSet<u64>,
    /// The number of needs that may still be listed.
    left: usize,
    /// The referrer policy of the document and of the element that is being read.
    referrer: Option<Referrer>,
    element_referrer: Option<Referrer>,
    /// The nonce of the document's policies, and whether the element that is being read has it.
    nonce: Option<String>,
    element_has_nonce: bool,
    queue: Vec<Need>,
    /// The policies for the document's resources, and the number of all so far.
    content_policies: Vec<String>,
    content_policy_count: usize,
    hint_elements: HintElements,
    /// The rule for base URLs, and the policies so far that it reads.
    base_rule: Option<BaseRule>,
    base_policies: Vec<String>,
    /// The search for URLs in scripts, if the caller wants them.
    literals: Option<Literals>,
}

impl Sink {
    fn new(own: Url, page: Option<Url>) -> Self {
        Self {
            base: own.clone(),
            own,
            page,
            via: None,
            viewport: Viewport {
                width: 1_280.0,
                height: 720.0,
                ratio: 1.0,
            },
            formats: Formats {
                avif: true,
                webp: true,
                jxl: false,
            },
            seen: HashSet::new(),
            left: Scanner::MAX_NEEDS,
            referrer: None,
            element_referrer: None,
            nonce: None,
            element_has_nonce: false,
            queue: Vec::new(),
            content_policies: Vec::new(),
            content_policy_count: 0,
            hint_elements: HintElements::default(),
            base_rule: None,
            base_policies: Vec::new(),
            literals: None,
        }
    }

    /// Creates a sink for a part of an unknown page.
    fn part(own: Url) -> Self {
        Self {
            via: Some(own.as_str().into()),
            ..Self::new(own, None)
        }
    }

    /// Searches bytes of a script for URLs.
    fn read_literals(&mut self, bytes: &[u8]) {
        if let Some(literals) = &mut self.literals {
            literals.feed(bytes);
        }
    }

    /// Adds a policy for the document's resources; `None` if it could not be read.
    fn add_content_policy(&mut self, text: Option<&str>) {
        if self.content_policy_count > MAX_POLICIES {
            return;
        }
        self.content_policy_count += 1;
        let is_full = self.content_policy_count > MAX_POLICIES;
        let text = text.filter(|_| !is_full).unwrap_or("default-src 'none'");
        self.content_policies.push(text.to_owned());
        if self.base_rule.is_some() {
            self.base_policies.push(text.to_owned());
        }
    }

    fn set_base(&mut self, href: &str) {
        let Some(base) = self.own.join(href) else {
            return;
        };
        let own = self.own.as_str();
        let permits = |rule: BaseRule| {
            let mut policies = self.base_policies.iter();
            policies.all(|list| rule(list, own, base.as_str()))
        };
        if self.base_rule.is_none_or(permits) {
            self.base = base;
        }
    }

    /// Lists the resource that `reference` names, unless it cannot be fetched or is listed already.
    fn offer(&mut self, reference: &str, ask: Ask) {
        if let Some(url) = self.absolute(reference) {
            self.list(url, ask);
        }
    }

    /// The same where only the page's own origin is allowed.
    fn offer_own(&mut self, reference: &str, ask: Ask) {
        if let Some(url) = self
            .absolute(reference)
            .filter(|url| url.origin() == self.own.origin())
        {
            self.list(url, ask);
        }
    }

    /// A fragment alone, or nothing, names something in the document itself.
    fn absolute(&self, reference: &str) -> Option<Url> {
        let reference = reference.trim_start_matches(|c: char| c <= ' ');
        if self.left == 0 || reference.is_empty() || reference.starts_with('#') {
            return None;
        }
        self.base.join(reference).filter(|url| *url != self.own)
    }

    fn list(&mut self, url: Url, ask: Ask) {
        let mut hasher = DefaultHasher::new();
        url.as_str().hash(&mut hasher);
        if !self.seen.insert(hasher.finish()) {
            return;
        }
        self.left -= 1;
        let foreign = self
            .page
            .as_ref()
            .is_none_or(|page| page.origin() != url.origin());
        self.queue.push(Need {
            kind: ask.kind,
            urgency: ask.urgency,
            anonymous: ask.cors == Cors::Anonymous && foreign,
            by_cors: ask.cors != Cors::None,
            referrer: self.element_referrer.or(self.referrer),
            via: self.via.clone(),
            frame: None,
            has_nonce: self.element_has_nonce && matches!(ask.kind, Kind::Script | Kind::Style),
            url: url.into_string(),
        });
    }
}
