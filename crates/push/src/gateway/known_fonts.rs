//! The fonts that visits to a page have requested.
//!
//! A style sheet may name many fonts, and browsers request those that text needs. Once visits to a
//! page have requested fonts, the other fonts of its style sheets are left to the browser.

use std::collections::HashSet;

use tandem_http::{RequestHead, ResponseHead};
use tandem_preload as scan;

use super::document::DocumentReader;
use super::page_view::PageView;
use super::predictor::{Predictor, known_fonts};
use super::session::Gateway;
use crate::fetch_standard::is_navigation;
use crate::url::is_same_origin;

impl Gateway {
    /// Returns the fonts that visits to a document requested, or to the document of a style sheet.
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
        let documents = documents_of_style(referrer, self.view.as_deref().map(PageView::url));
        let mut documents = documents.into_iter().flatten();
        documents.find_map(|document| known_fonts(predictor, document))
    }
}

/// Returns the documents to which a style sheet may belong, the likelier first. `Referer` may name
/// the origin alone. The document of that origin that was loaded last (`view`) precedes it then.
fn documents_of_style<'a>(referrer: &'a str, view: Option<&'a str>) -> [Option<&'a str>; 2] {
    let view = view.filter(|view| is_same_origin(view, referrer));
    let names_origin = scan::split(referrer).is_none_or(|(_, _, path)| path == "/");
    match names_origin {
        true => [view, Some(referrer)],
        false => [Some(referrer), view],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_as_referrer_means_the_last_document() {
        let (page, root) = (Some("https://a/page"), Some("https://a/"));
        for (referrer, view, expected) in [
            ("https://a/", page, [page, root]),
            ("https://a/page", root, [page, root]),
            ("https://a/", Some("https://b/page"), [None, root]),
            ("https://a/page", None, [page, None]),
        ] {
            assert_eq!(documents_of_style(referrer, view), expected, "{referrer}");
        }
    }
}
