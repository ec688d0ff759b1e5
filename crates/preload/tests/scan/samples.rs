//! Whole pages and a style sheet, each with the list of its needs.

use crate::{page, sheet};

#[test]
fn a_news_page() {
    page(
        include_str!("news.html"),
        &include_str!("news.txt").lines().collect::<Vec<_>>(),
    );
}

#[test]
fn an_application() {
    page(
        include_str!("application.html"),
        &include_str!("application.txt").lines().collect::<Vec<_>>(),
    );
}

#[test]
fn a_page_of_the_nineties() {
    let text = String::from_utf8_lossy(include_bytes!("nineties.html"));
    page(
        &text,
        &include_str!("nineties.txt").lines().collect::<Vec<_>>(),
    );
}

#[test]
fn a_site_s_style_sheet() {
    sheet(
        include_str!("site.css"),
        &include_str!("site.txt").lines().collect::<Vec<_>>(),
    );
}
