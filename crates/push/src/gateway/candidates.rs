//! Candidates of the predictor as needs of a page.

use std::sync::Arc;
use std::time::Duration;

use tandem_predict::Candidate;
use tandem_predict::auto::url::{Kind as ResourceKind, parts};
use tandem_preload::{Kind, Need};

use crate::scripts::DataFields;
use crate::wire::url_hash_of;

/// Returns the hash of a candidate's URL, and the time for which the predictor has known it.
pub(super) fn known_for(candidate: &Candidate) -> Option<(u32, Duration)> {
    Some((url_hash_of(&candidate.url)?, candidate.known_for))
}

/// Returns a candidate as a need. `referrer` is the style sheet or module that requests it, if that
/// is not the page. A candidate that is a page is no need, since the user chooses pages. Data that
/// is requested with unknown fields is no need either, since no request would match its push.
pub(super) fn need_of(
    candidate: &Candidate,
    referrer: Option<String>,
    fields_of_data: &DataFields,
) -> Option<Need> {
    let is_scripted = matches!(fields_of_data, DataFields::Scripted(_));
    // Data with a path like that of a page is a frame too.
    let has_name_of_page = ResourceKind::of_path(parts(&candidate.url).path) == ResourceKind::Page;
    let is_frame = match (candidate.kind, fields_of_data) {
        (ResourceKind::Data | ResourceKind::Open, DataFields::Frame { .. }) => true,
        (ResourceKind::Data, DataFields::Plain | DataFields::Unknown) => has_name_of_page,
        _ => false,
    };
    let (kind, urgency) = match candidate.kind {
        _ if is_frame => (Kind::Document, 3),
        _ if is_scripted => (Kind::Fetch, 3),
        ResourceKind::Data if *fields_of_data == DataFields::Unknown => return None,
        ResourceKind::Style => (Kind::Style, 1),
        ResourceKind::Script => (Kind::Script, 2),
        ResourceKind::Font => (Kind::Font, 3),
        ResourceKind::Data => (Kind::Fetch, 3),
        ResourceKind::Image => (Kind::Image, 4),
        ResourceKind::Open => (Kind::Other, 4),
        ResourceKind::Page | ResourceKind::Download => return None,
    };
    let is_by_script = referrer.as_deref().is_some_and(|referrer| {
        ResourceKind::of_path(parts(referrer).path) == ResourceKind::Script
    });
    Some(Need {
        url: candidate.url.to_string(),
        kind,
        urgency,
        // Fonts are always fetched by CORS, and data usually is.
        anonymous: matches!(kind, Kind::Font | Kind::Fetch),
        // A script that another one requests is a module.
        by_cors: matches!(kind, Kind::Font | Kind::Fetch) || (kind == Kind::Script && is_by_script),
        referrer: None,
        via: referrer.map(Arc::from),
        frame: None,
        has_nonce: false,
    })
}

/// Returns whether a URL is that of a document in a frame. `fields` returns the fields of earlier
/// requests for it.
pub(super) fn is_frame_document(url: &str, fields: impl FnOnce(&str) -> DataFields) -> bool {
    let kind = ResourceKind::of_path(parts(url).path);
    matches!(kind, ResourceKind::Page | ResourceKind::Open)
        && matches!(fields(url), DataFields::Frame { .. })
}

/// Returns whether a response is data, as far as the predictor can tell. `media_kind` is the kind
/// that its `Content-Type` shows.
pub(super) fn is_data(
    url: &str,
    destination: Option<&str>,
    media_kind: Option<ResourceKind>,
) -> bool {
    let of_destination = destination.and_then(ResourceKind::of_destination);
    let kind = of_destination.or(media_kind);
    kind.unwrap_or_else(|| ResourceKind::of_path(parts(url).path)) == ResourceKind::Data
}
