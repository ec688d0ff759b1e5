//! Merges the URLs and contexts of two predictors.

use super::mixer::Rate;
use super::state::link;
use super::store::{Context, ContextId, Entry, Key, LIMITS, MEMORY, NONE, Store, Url};
use super::transfer::{OUTCOME_MEMORY, SITE_MEMORY};
use crate::ids::IdMap;

/// Adds the knowledge of `theirs` to `mine`.
pub(super) fn merge_store(mine: &mut Store, theirs: &Store) {
    let ids: Vec<u32> = theirs
        .urls
        .iter()
        .map(|url| url.as_ref().map_or(NONE, |url| merge_url(mine, url)))
        .collect();
    for context in theirs.contexts.iter().flatten() {
        let id = match &context.key {
            Key::Page(page) => {
                let page = ids[*page as usize];
                match mine.at(page).contexts[0] {
                    NONE => {
                        let id = mine.new_context(Key::Page(page));
                        link(mine, page, id);
                        id
                    }
                    id => id,
                }
            }
            Key::Named(name) => mine.named(name.to_string()),
        };
        mine.link_followers(id);
        merge_context(mine, id, context, &ids);
    }
}

fn merge_url(mine: &mut Store, theirs: &Url) -> u32 {
    let id = mine.url(&theirs.name);
    let url = mine.at_mut(id);
    url.kind = theirs.kind;
    url.count = url.count.saturating_add(theirs.count);
    url.crowd = url.crowd.merged(theirs.crowd);
    let sizes = url.sizes + theirs.sizes;
    if sizes > 0.0 {
        url.size += (theirs.size - url.size) * theirs.sizes / sizes;
        url.sizes = sizes.min(50.0);
    }
    url.as_page += theirs.as_page;
    url.as_asset += theirs.as_asset;
    url.leads = merged(url.leads, theirs.leads, 30.0);
    url.again = merged(url.again, theirs.again, 30.0);
    url.transfers = merged(url.transfers, theirs.transfers, OUTCOME_MEMORY);
    url.again_transfers = merged(url.again_transfers, theirs.again_transfers, OUTCOME_MEMORY);
    id
}

fn merge_context(mine: &mut Store, id: ContextId, theirs: &Context, ids: &[u32]) {
    let level = match &theirs.key {
        Key::Page(_) => 0,
        Key::Named(name) if name.starts_with('S') => 2,
        Key::Named(_) => 1,
    };
    let context = mine.context_mut(id);
    let before = context.loads;
    context.loads += theirs.loads;
    context.crowd = context.crowd.merged(theirs.crowd);
    context.fetches = merged(context.fetches, theirs.fetches, 200.0);
    context.transfers = merged(context.transfers, theirs.transfers, SITE_MEMORY);
    // An asset that only one of the two knows was absent from the loads of the other.
    let absent = |loads: f32| Rate {
        p: 0.0,
        n: loads.min(MEMORY),
    };
    let mut added: IdMap<u32, &Entry> = theirs
        .entries
        .iter()
        .map(|entry| (ids[entry.url as usize], entry))
        .collect();
    for known in &mut context.entries {
        let Some(entry) = added.remove(&known.url) else {
            known.rate = known.rate.merged(absent(theirs.loads), MEMORY);
            continue;
        };
        known.rate = known.rate.merged(entry.rate, MEMORY);
        known.crowd = known.crowd.merged(entry.crowd);
        for (mine, theirs) in known.later.iter_mut().zip(entry.later) {
            *mine = mine.merged(theirs, 100.0);
        }
    }
    for entry in &theirs.entries {
        let url = ids[entry.url as usize];
        if added.remove(&url).is_some() {
            let rate = entry.rate.merged(absent(before), MEMORY);
            mine.add_entry(id, LIMITS[level], url, rate, entry.crowd);
        }
    }
}

fn merged(mine: Option<Rate>, theirs: Option<Rate>, memory: f32) -> Option<Rate> {
    match (mine, theirs) {
        (Some(mine), Some(theirs)) => Some(mine.merged(theirs, memory)),
        (mine, theirs) => mine.or(theirs),
    }
}
