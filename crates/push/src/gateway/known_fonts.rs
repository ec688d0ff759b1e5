//! The fonts that visits to a page have requested.
//!
//! A style sheet may name many fonts, and browsers request those that text needs. Once visits to a
//! page are known, the other fonts of its style sheets are left to the browser.

use std::collections::HashSet;

use tandem_http::{RequestHead, ResponseHead};

use super::document::DocumentReader;
use super::page_view::PageView;
use super::predictor::{Predictor, known_fonts};
use super::session::Gateway;
use crate::fetch_standard::is_navigation;
use crate::url::is_same_origin;

impl Gateway {
    /// Returns the fonts that visits to a document requested, or to the document of a style sheet.
    /// If `Referer` names the origin of that document only, it is the one that was loaded last.
    pub(super) fn fonts_of(
        &self,
        url: &str,
        request: &RequestHead,
        head: &ResponseHead,
        predictor: &dyn Predictor,
    ) -> Option<HashSet<u32>> {
        if is_navigation(request) {
            return known_fonts(predictor, url);
        }
        if !DocumentReader::is_style(head) {
            return None;
        }
        let referrer = std::str::from_utf8(request.fields.get("referer")?).ok()?;
        let view = self.view.as_deref().map(PageView::url);
        let view = view.filter(|view| is_same_origin(view, referrer));
        let fonts = || known_fonts(predictor, view?);
        known_fonts(predictor, referrer).or_else(fonts)
    }
}
