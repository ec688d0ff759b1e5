//! The resources that the elements of a document request, in document order (HTML section 4).
//!
//! The tree is followed only as far as it decides that: templates are inert, foreign content (SVG,
//! MathML) has its own rules, the sources of a `picture` come before its image.

mod resource;

use super::attribute::{Attributes, Name};
use super::css::Css;
use super::image::{self, Offer};
use super::media;
use super::{Ask, Kind, Referrer, Sink, urgency};
pub(crate) use resource::holds_module;
pub use resource::is_script_type;
pub(super) use resource::preload_link;
use resource::{
    breaks_out, by_priority, cors, embed, frame, is_classic, is_module, is_style, kind_of, meta,
    offer_image, preload, width,
};

/// The way to read the content after a start tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inside {
    /// As tags and text.
    Content,
    /// As text up to the end tag.
    Text,
    /// As a style sheet up to the end tag.
    Style,
    /// As a script up to the end tag.
    Script,
    /// As text without end.
    Nothing,
}

/// The kind of content, which selects the parsing rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    Html,
    Svg,
    Math,
}

/// Foreign elements inside each other that are followed.
const MAX_SPACES: usize = 64;
/// Images that count as the first part of a document.
const FIRST_IMAGES: u32 = 12;
/// The seconds of a refresh, above which the page counts as one that is read.
const SOON: f32 = 5.0;

/// The state of a document that is kept between tags.
#[derive(Debug)]
pub(super) struct Page {
    spaces: Vec<Space>,
    /// Templates open, from the outermost inert one on.
    inert: u32,
    /// The number of open templates with live contents (shadow roots).
    shadows: u32,
    /// The state of an open `picture` and the URL that its sources gave.
    picture: Option<Option<String>>,
    /// True while the page's head, or the place where it would be, is being read.
    head: bool,
    base: bool,
    images: u32,
    icon: Option<String>,
}

impl Page {
    pub(super) const fn new() -> Self {
        Self {
            spaces: Vec::new(),
            inert: 0,
            shadows: 0,
            picture: None,
            head: true,
            base: false,
            images: 0,
            icon: None,
        }
    }

    /// Returns true where CDATA sections are recognised.
    pub(super) fn is_foreign(&self) -> bool {
        self.space() != Space::Html
    }

    /// Returns true if the current content belongs to the document and not to an inert template.
    pub(super) const fn applies(&self) -> bool {
        self.inert == 0
    }

    fn space(&self) -> Space {
        self.spaces.last().copied().unwrap_or(Space::Html)
    }

    /// The end of the document: its icon comes last.
    pub(super) fn finish(&mut self, sink: &mut Sink) {
        if let Some(icon) = self.icon.take() {
            sink.offer(&icon, Ask::new(Kind::Image, urgency::ICON));
        }
    }

    /// Handles a tag with a name too long to be a known one.
    pub(super) fn unknown(&mut self, attributes: &Attributes, closing: bool, sink: &mut Sink) {
        if !closing && self.inert == 0 {
            self.decoration(b"", attributes, sink);
        }
    }

    /// A start tag; `slash` where it ends with one, which closes foreign elements.
    pub(super) fn open(
        &mut self,
        name: &[u8],
        attributes: &Attributes,
        slash: bool,
        sink: &mut Sink,
    ) -> Inside {
        if self.is_foreign() {
            if !breaks_out(name) {
                return self.open_foreign(name, attributes, slash, sink);
            }
            while self.is_foreign() {
                self.spaces.pop();
            }
        }
        match name {
            b"svg" => self.enter(Space::Svg, slash),
            b"math" => self.enter(Space::Math, slash),
            b"template" => self.open_template(attributes),
            _ => {}
        }
        if self.inert == 0 {
            self.decoration(name, attributes, sink);
            let is_of_source = name == b"img" && matches!(self.picture, Some(Some(_)));
            if !attributes.is_empty() || is_of_source {
                self.element(name, attributes, sink);
            }
            match name {
                b"picture" => self.picture = Some(None),
                b"body" => self.head = false,
                _ => {}
            }
        }
        self.inside(name, attributes, sink)
    }

    /// An end tag.
    pub(super) fn close(&mut self, name: &[u8]) {
        match name {
            b"template" if self.inert > 0 => self.inert -= 1,
            b"template" => self.shadows = self.shadows.saturating_sub(1),
            b"picture" => self.picture = None,
            b"head" => self.head = false,
            b"svg" => self.leave(Space::Svg),
            b"math" => self.leave(Space::Math),
            b"foreignobject" => self.leave(Space::Html),
            _ => {}
        }
    }

    fn enter(&mut self, space: Space, slash: bool) {
        if !slash && self.spaces.len() < MAX_SPACES {
            self.spaces.push(space);
        }
    }

    fn leave(&mut self, space: Space) {
        if let Some(at) = self.spaces.iter().rposition(|&open| open == space) {
            self.spaces.truncate(at);
        }
    }

    fn open_template(&mut self, attributes: &Attributes) {
        let shadow = ["open", "closed"]
            .iter()
            .any(|mode| attributes.is(Name::Shadowrootmode, mode));
        if self.inert > 0 || !shadow {
            self.inert = self.inert.saturating_add(1);
        } else {
            self.shadows = self.shadows.saturating_add(1);
        }
    }

    fn inside(&self, name: &[u8], attributes: &Attributes, sink: &Sink) -> Inside {
        match name {
            b"script" => Inside::Script,
            b"style" if self.inert == 0 && is_style(attributes, sink) => Inside::Style,
            b"style" | b"textarea" | b"title" | b"noscript" | b"iframe" | b"noembed"
            | b"noframes" | b"xmp" => Inside::Text,
            b"plaintext" => Inside::Nothing,
            _ => Inside::Content,
        }
    }

    fn open_foreign(
        &mut self,
        name: &[u8],
        attributes: &Attributes,
        slash: bool,
        sink: &mut Sink,
    ) -> Inside {
        match name {
            b"svg" => self.enter(Space::Svg, slash),
            b"math" => self.enter(Space::Math, slash),
            b"foreignobject" => self.enter(Space::Html, slash),
            _ => {}
        }
        if self.inert == 0 {
            self.style_attribute(attributes, sink);
            match (name, self.space()) {
                // No style sheet here, but Chromium's own scanner asks for it, and an `svg` that
                // was left open is likely.
                (b"link", _) => self.link(attributes, sink),
                (_, Space::Svg) => self.svg_element(name, attributes, sink),
                _ => {}
            }
        }
        match name {
            _ if slash => Inside::Content,
            b"style" if self.inert == 0 && is_style(attributes, sink) => Inside::Style,
            b"script" | b"style" => Inside::Text,
            _ => Inside::Content,
        }
    }

    fn svg_element(&mut self, name: &[u8], attributes: &Attributes, sink: &mut Sink) {
        let Some(url) = attributes
            .get(Name::Href)
            .or_else(|| attributes.get(Name::XlinkHref))
        else {
            return;
        };
        match name {
            b"image" | b"feimage" => sink.offer(&url, Ask::new(Kind::Image, self.count_image())),
            b"use" => sink.offer_own(&url, Ask::new(Kind::Image, urgency::LATER_IMAGE)),
            b"script" => sink.offer(&url, Ask::new(Kind::Script, urgency::BODY_SCRIPT)),
            _ => {}
        }
    }

    /// Handles the attributes that any element may have.
    fn decoration(&self, name: &[u8], attributes: &Attributes, sink: &mut Sink) {
        if attributes.is_empty() {
            return;
        }
        self.style_attribute(attributes, sink);
        if matches!(
            name,
            b"body" | b"table" | b"thead" | b"tbody" | b"tfoot" | b"tr" | b"td" | b"th"
        ) && let Some(url) = attributes.get(Name::Background)
        {
            sink.offer(&url, Ask::new(Kind::Image, urgency::STYLE_IMAGE));
        }
    }

    fn style_attribute(&self, attributes: &Attributes, sink: &mut Sink) {
        if let Some(style) = attributes.get(Name::Style)
            && style.contains('(')
        {
            let mut css = Css::declarations(self.image_urgency());
            css.feed(style.as_bytes(), sink);
            css.finish(sink);
        }
    }

    fn element(&mut self, name: &[u8], attributes: &Attributes, sink: &mut Sink) {
        sink.element_referrer = match name {
            b"link" | b"script" | b"img" | b"image" | b"iframe" => {
                Referrer::parse(&attributes.text(Name::Referrerpolicy))
            }
            _ => None,
        };
        sink.element_has_nonce =
            matches!(name, b"link" | b"script") && attributes.has_nonce(sink.nonce.as_deref());
        self.known_element(name, attributes, sink);
        sink.element_referrer = None;
        sink.element_has_nonce = false;
    }

    fn known_element(&mut self, name: &[u8], attributes: &Attributes, sink: &mut Sink) {
        match name {
            b"link" => self.link(attributes, sink),
            b"script" => self.script(attributes, sink),
            b"img" | b"image" => self.image(attributes, sink),
            b"source" => self.source(attributes, sink),
            b"base" => self.base(attributes, sink),
            b"meta" => meta(attributes, sink),
            b"iframe" => frame(attributes, sink),
            b"frame" => sink.offer(
                &attributes.text(Name::Src),
                Ask::new(Kind::Document, urgency::FRAME),
            ),
            b"video" => sink.offer(
                &attributes.text(Name::Poster),
                Ask::new(Kind::Image, urgency::LATER_IMAGE),
            ),
            b"track" if attributes.has(Name::Default) => {
                sink.offer(
                    &attributes.text(Name::Src),
                    Ask::new(Kind::Media, urgency::TRACK),
                );
            }
            b"embed" => embed(attributes, Name::Src, sink),
            b"object" => embed(attributes, Name::Data, sink),
            b"input" if attributes.is(Name::Type, "image") => {
                sink.offer(
                    &attributes.text(Name::Src),
                    Ask::new(Kind::Image, urgency::LATER_IMAGE),
                );
            }
            _ => {}
        }
    }

    /// The first `base` counts.
    fn base(&mut self, attributes: &Attributes, sink: &mut Sink) {
        if let Some(href) = attributes.get(Name::Href)
            && !self.base
        {
            self.base = true;
            sink.set_base(&href);
        }
    }

    fn script(&mut self, attributes: &Attributes, sink: &mut Sink) {
        let kind = attributes.text(Name::Type);
        let module = is_module(&kind);
        if !module && (!is_classic(attributes, &kind) || attributes.has(Name::Nomodule)) {
            return;
        }
        let usual = if attributes.has(Name::Async) {
            urgency::ASYNC_SCRIPT
        } else if module || attributes.has(Name::Defer) {
            urgency::DEFERRED_SCRIPT
        } else if self.head {
            urgency::HEAD_SCRIPT
        } else {
            urgency::BODY_SCRIPT
        };
        let cors = if module {
            cors(attributes).or_anonymous()
        } else {
            cors(attributes)
        };
        let ask = Ask::new(Kind::Script, by_priority(usual, attributes)).cors(cors);
        sink.offer(&attributes.text(Name::Src), ask);
    }

    /// The sources of a picture: the first that is shown and applies.
    fn source(&mut self, attributes: &Attributes, sink: &Sink) {
        let Some(chosen @ None) = &mut self.picture else {
            return;
        };
        let set = attributes.text(Name::Srcset);
        let applies = media::matches(&attributes.text(Name::Media), sink.viewport) == Some(true);
        if applies && sink.formats.shows(&attributes.text(Name::Type)) {
            let sizes = attributes.text(Name::Sizes);
            let offer = Offer {
                plain: "",
                set: &set,
                sizes: &sizes,
                width: width(attributes),
            };
            *chosen = image::choose(offer, sink.viewport).map(str::to_owned);
        }
    }

    fn image(&mut self, attributes: &Attributes, sink: &mut Sink) {
        self.head = false;
        let usual = if attributes.is(Name::Loading, "lazy") {
            urgency::LAZY
        } else {
            by_priority(self.count_image(), attributes)
        };
        let ask = Ask::new(Kind::Image, usual).cors(cors(attributes));
        if let Some(Some(chosen)) = &self.picture {
            return sink.offer(chosen, ask);
        }
        offer_image(
            attributes,
            [Name::Src, Name::Srcset, Name::Sizes],
            ask,
            sink,
        );
    }

    fn count_image(&mut self) -> u8 {
        let urgency = self.image_urgency();
        self.images = self.images.saturating_add(1);
        urgency
    }

    const fn image_urgency(&self) -> u8 {
        if self.images < FIRST_IMAGES {
            urgency::FIRST_IMAGE
        } else {
            urgency::LATER_IMAGE
        }
    }

    fn link(&mut self, attributes: &Attributes, sink: &mut Sink) {
        let rel = attributes.text(Name::Rel).to_ascii_lowercase();
        let has = |word: &str| rel.split_ascii_whitespace().any(|rel| rel == word);
        let applies = media::matches(&attributes.text(Name::Media), sink.viewport) != Some(false);
        if has("stylesheet") {
            let used = applies && !has("alternate");
            self.style_link(attributes, used, sink);
        } else if has("preload") {
            if applies {
                preload(attributes, sink);
            }
        } else if has("modulepreload") {
            let ask = Ask::new(
                Kind::Script,
                by_priority(urgency::DEFERRED_SCRIPT, attributes),
            );
            sink.offer(
                &attributes.text(Name::Href),
                ask.cors(cors(attributes).or_anonymous()),
            );
        } else if has("icon") {
            self.icon(attributes, sink);
        } else if has("prefetch") {
            // `as=image` is no lazy image, which has the same urgency.
            let kind = kind_of(&attributes.text(Name::As))
                .filter(|kind| *kind != Kind::Image)
                .unwrap_or(Kind::Other);
            sink.offer(
                &attributes.text(Name::Href),
                Ask::new(kind, urgency::PREFETCH).cors(cors(attributes)),
            );
        }
    }

    fn style_link(&self, attributes: &Attributes, used: bool, sink: &mut Sink) {
        let kind = attributes.text(Name::Type);
        let css = kind.split(';').next().unwrap_or("").trim();
        if attributes.has(Name::Disabled)
            || !(css.is_empty() || css.eq_ignore_ascii_case("text/css"))
        {
            return;
        }
        let usual = match (used, self.head) {
            (false, _) => urgency::UNUSED_STYLE,
            (true, true) => urgency::HEAD_STYLE,
            (true, false) => urgency::BODY_STYLE,
        };
        sink.offer(
            &attributes.text(Name::Href),
            Ask::new(Kind::Style, usual).cors(cors(attributes)),
        );
    }

    /// Browsers fetch one icon: the last of those that suit a tab, or else the last.
    fn icon(&mut self, attributes: &Attributes, sink: &Sink) {
        let Some(href) = attributes
            .get(Name::Href)
            .filter(|href| !href.trim().is_empty())
        else {
            return;
        };
        let sizes = attributes.text(Name::Sizes).to_ascii_lowercase();
        let suits = sizes.is_empty()
            || sizes
                .split_ascii_whitespace()
                .any(|size| ["16x16", "32x32", "any"].contains(&size));
        if (suits || self.icon.is_none()) && sink.formats.shows(&attributes.text(Name::Type)) {
            self.icon = Some(href.into_owned());
        }
    }
}
