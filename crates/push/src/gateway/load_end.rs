//! The end of the load of a session's page. Requests that a click may cause later are no needs of
//! the page.
//!
//! A script requests data while its page loads, but also when the user clicks, and such a request
//! may have effects. The same holds for frames and for URLs with a query. After the load, they
//! therefore teach nothing. The load is over when no element of a page of the session was requested
//! or arrived for a while. Data do not count, since pages that ask for news request data without
//! end. Only the next document begins another load.
//!
//! Data that a page requests after an unsafe request show the state after a change, and a push that
//! leaves with the page would show an older one. They teach nothing either.

use std::time::{Duration, Instant};

use tandem_http::RequestHead;
use tandem_predict::auto::url::{Kind, parts};

use crate::fetch_standard::{is_framed, is_navigation, is_prefetch};
use crate::image_accept::is_for_image;

/// The time without an element after which the load is over, beyond two round trips of the path. A
/// script that was sent leads to the next request within a round trip and the time that it runs. A
/// longer time would save a round trip for slow scripts, but learn the requests of quick clicks,
/// whose early repetition may do harm.
const QUIET_PERIOD: Duration = Duration::from_millis(700);
/// The assumed round trip of a path that cannot be measured, such as that behind Tor.
const UNKNOWN_ROUND_TRIP: Duration = Duration::from_millis(500);

/// The longest load. Another tab may request elements without end, or hold one open.
const LONGEST: Duration = Duration::from_mins(1);

/// The largest number of changed hosts that are remembered.
const MAX_CHANGED: usize = 8;

/// The progress of the load.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadProgress {
    /// The time of the last event, unless the load is over.
    last: Option<Instant>,
    /// The time at which the document was requested.
    begun: Option<Instant>,
    /// The round trip of the path, if it was measured.
    pub(super) round_trip: Option<Duration>,
    /// The number of elements whose responses are under way.
    pub(super) arriving: usize,
    /// The hosts of the origins whose state the page may have changed.
    changed: Vec<Box<str>>,
}

impl LoadProgress {
    /// Returns whether the load is over.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        let round_trip = self.round_trip.unwrap_or(UNKNOWN_ROUND_TRIP);
        let period = QUIET_PERIOD + round_trip.saturating_mul(2);
        let since = |time| now.saturating_duration_since(time);
        self.begun.is_none_or(|begun| since(begun) >= LONGEST)
            || self
                .last
                .is_none_or(|last| self.arriving == 0 && since(last) >= period)
    }

    /// Notes the request for a document, which begins a load.
    pub(super) fn begin(&mut self, now: Instant) {
        (self.begun, self.last) = (Some(now), Some(now));
        self.changed.clear();
    }

    /// Notes an unsafe request. It may change the state of its target's origin and of the origin
    /// whose page makes it.
    pub(super) fn note_change(&mut self, request: &RequestHead) {
        let page = request.fields.get("origin").and_then(|origin| {
            let origin = std::str::from_utf8(origin).ok()?;
            Some(origin.split_once("://")?.1)
        });
        for host in page.into_iter().chain([&*request.authority]) {
            if self.changed.len() < MAX_CHANGED && !self.has_changed(host) {
                self.changed.push(host.into());
            }
        }
    }

    /// Returns whether the page may have changed the state of a host.
    pub(super) fn has_changed(&self, host: &str) -> bool {
        self.changed.iter().any(|it| it.eq_ignore_ascii_case(host))
    }

    /// Notes an element: its request or its arrival.
    pub(super) fn note(&mut self, now: Instant) {
        self.last = (!self.is_over(now)).then_some(now);
    }
}

/// Returns whether a script requests data, as far as the request shows it.
pub(super) fn is_data_request(request: &RequestHead) -> bool {
    if is_navigation(request) || is_framed(request) {
        return false;
    }
    match request.fields.get("sec-fetch-dest") {
        Some(destination) => destination == b"empty" && !is_prefetch(request),
        None => match Kind::of_path(parts(&request.path).path) {
            Kind::Data => true,
            // Without metadata, only `Accept` tells data from elements whose paths have no ending.
            // Tools request pages without a referrer.
            Kind::Open | Kind::Page => {
                let accept = request.fields.get("accept").unwrap_or_default();
                request.fields.contains("referer")
                    && !is_for_image(&request.fields)
                    && !accept.starts_with(b"text/css")
            }
            _ => request.fields.contains("x-requested-with"),
        },
    }
}

/// Returns whether a click of the user may cause a request that has effects, other than by leading
/// to another page.
pub(super) fn may_have_effects(request: &RequestHead) -> bool {
    let has_query = || request.path.contains('?');
    !is_navigation(request) && (is_framed(request) || has_query() || is_data_request(request))
}

/// Returns whether a request is for an element that belongs to the load. Media are not, since they
/// arrive for as long as they play.
pub(super) fn is_element(request: &RequestHead) -> bool {
    let is_media = |it: &[u8]| matches!(it, b"audio" | b"video" | b"track");
    let destination = request.fields.get("sec-fetch-dest");
    !is_data_request(request) && !is_prefetch(request) && !destination.is_some_and(is_media)
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    fn request(destination: &str, mode: &str) -> RequestHead {
        let mut request = RequestHead::get(Scheme::Http, "a.test", "/a");
        request.fields.push("sec-fetch-dest", destination);
        request.fields.push("sec-fetch-mode", mode);
        request
    }

    #[test]
    fn load_is_over_after_a_quiet_period() {
        let now = Instant::now();
        let at = |millis| now + Duration::from_millis(millis);
        let mut load = LoadProgress::default();
        assert!(load.is_over(now), "none has begun");
        load.begin(now);
        load.arriving += 1;
        assert!(!load.is_over(at(40_000)), "the page arrives");
        load.note(at(40_000));
        load.arriving -= 1;
        load.note(at(41_000));
        assert!(!load.is_over(at(42_699)), "an unknown round trip");
        assert!(load.is_over(at(42_700)));
        load.round_trip = Some(Duration::from_millis(300));
        assert!(!load.is_over(at(42_299)));
        assert!(load.is_over(at(42_300)));
        load.note(at(47_000));
        assert!(load.is_over(at(47_000)), "a late element");
        load.begin(at(48_000));
        assert!(!load.is_over(at(48_000)), "the next page");
        load.arriving += 1;
        for millis in (48_000..108_000).step_by(1000) {
            load.note(at(millis));
        }
        assert!(load.is_over(at(108_000)), "elements without end");
    }

    #[test]
    fn change_concerns_target_and_page_until_the_next() {
        let mut load = LoadProgress::default();
        let mut post = RequestHead::get(Scheme::Https, "api.test", "/a");
        post.fields.push("origin", "https://a.test");
        load.note_change(&post);
        for (host, expected) in [("api.test", true), ("A.test", true), ("b.test", false)] {
            assert_eq!(load.has_changed(host), expected, "{host}");
        }
        for number in 0..2 * MAX_CHANGED {
            post.authority = format!("{number}.test");
            load.note_change(&post);
        }
        assert_eq!(load.changed.len(), MAX_CHANGED);
        load.begin(Instant::now());
        assert!(!load.has_changed("a.test"), "the next page");
    }

    #[test]
    fn elements_and_data_are_told_apart() {
        for (destination, mode, has_element, has_data) in [
            ("document", "navigate", true, false),
            ("iframe", "navigate", true, false),
            ("script", "no-cors", true, false),
            ("image", "no-cors", true, false),
            ("empty", "cors", false, true),
            ("empty", "same-origin", false, true),
            ("video", "no-cors", false, false),
        ] {
            let request = request(destination, mode);
            assert_eq!(is_element(&request), has_element, "{destination}");
            assert_eq!(is_data_request(&request), has_data, "{destination}");
        }
        for (path, accept, has_data) in [
            ("/a.json", "*/*", true),
            ("/a.js", "*/*", false),
            ("/vote/3", "*/*", true),
            ("/vote/3", "application/json", true),
            ("/image/3", "image/avif,image/webp,*/*;q=0.8", false),
            ("/style/3", "text/css,*/*;q=0.1", false),
            ("/", "text/html", false),
        ] {
            let mut request = RequestHead::get(Scheme::Http, "a.test", path);
            request.fields.push("accept", accept);
            request.fields.push("referer", "http://a.test/");
            assert_eq!(is_data_request(&request), has_data, "{path}");
            assert_eq!(may_have_effects(&request), has_data, "{path}");
        }
        let request = RequestHead::get(Scheme::Http, "a.test", "/like.gif?id=3");
        assert!(may_have_effects(&request) && !is_data_request(&request));
        assert!(may_have_effects(&self::request("iframe", "navigate")));
        let mut page = self::request("document", "navigate");
        page.path = "/search?q=a".to_owned();
        assert!(!may_have_effects(&page), "another page");
    }
}
