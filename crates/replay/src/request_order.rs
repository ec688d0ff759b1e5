//! The order of requests, as far as a log with whole seconds reveals it.
//!
//! Lines are sorted by time. Among lines of one client and one second, a resource goes before those
//! whose Referer names it. Lines go first if their Referer is absent, names the line itself, or
//! names no URL requested in that second.

use tandem_predict::ids::IdMap;

use crate::interner::UrlId;
use crate::log::{AccessLog, NO_REFERER, Record};

/// Puts a log's records in order.
pub fn order(log: &mut AccessLog) {
    if !log.records.is_sorted_by_key(|record| record.time) {
        log.records.sort_by_key(|record| record.time);
    }
    if log.referers.is_empty() {
        return;
    }
    let referred = log.referer_urls();
    let mut start = 0;
    while start < log.records.len() {
        let time = log.records[start].time;
        let length = log.records[start..]
            .iter()
            .take_while(|record| record.time == time)
            .count();
        if length > 1 {
            order_second(&mut log.records[start..start + length], &referred);
        }
        start += length;
    }
}

/// Orders the records of one second, each client's within the positions they hold.
fn order_second(records: &mut [Record], referred: &[Option<UrlId>]) {
    let mut by_user: Vec<(u32, u32)> = records
        .iter()
        .zip(0..)
        .map(|(record, at)| (record.user, at))
        .collect();
    by_user.sort_unstable();
    for set in by_user.chunk_by(|a, b| a.0 == b.0) {
        if set.len() > 1 {
            let set: Vec<u32> = set.iter().map(|&(_, at)| at).collect();
            let placed = levels(records, &set, referred);
            let moved: Vec<Record> = placed.iter().map(|&at| records[at as usize]).collect();
            for (&at, record) in set.iter().zip(moved) {
                records[at as usize] = record;
            }
        }
    }
}

/// Orders the set level by level: first the roots, then the resources that refer to the last level.
/// Cycles come last.
fn levels(records: &[Record], set: &[u32], referred: &[Option<UrlId>]) -> Vec<u32> {
    let mut children: IdMap<UrlId, Vec<u32>> = IdMap::default();
    for &at in set {
        children.entry(records[at as usize].url).or_default();
    }
    let mut level = Vec::new();
    for &at in set {
        let record = &records[at as usize];
        let parent = if record.referer == NO_REFERER {
            None
        } else {
            referred[record.referer as usize]
        };
        match parent
            .filter(|&parent| parent != record.url)
            .and_then(|parent| children.get_mut(&parent))
        {
            Some(siblings) => siblings.push(at),
            None => level.push(at),
        }
    }
    let mut placed = Vec::with_capacity(set.len());
    while !level.is_empty() {
        let mut next = Vec::new();
        for &at in &level {
            next.append(
                &mut children
                    .remove(&records[at as usize].url)
                    .unwrap_or_default(),
            );
        }
        next.sort_unstable();
        placed.append(&mut level);
        level = next;
    }
    if placed.len() < set.len() {
        let mut left: Vec<u32> = children.into_values().flatten().collect();
        left.sort_unstable();
        placed.extend(left);
    }
    placed
}
