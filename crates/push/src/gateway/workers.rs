//! The service workers of a session's browsers, and the resources that they have requested.
//!
//! A service worker can answer the requests of pages from a store of its own. It fills the store
//! when it is installed, by requests whose referrer is the worker's script. Such a request shows no
//! need of a page. A page that names such a resource is likely to get it from the worker. The
//! push of the resource therefore waits for a claim, whatever is known of the browser's cache, and
//! a copy of it is not checked. A request of a page for the resource shows that the worker did not
//! answer it, and ends this.

use std::collections::{HashSet, VecDeque};

use tandem_http::RequestHead;

use crate::fetch_standard::is_worker_script;
use crate::wire::url_hash_of;

/// The largest number of scripts of workers that are remembered. The oldest makes way.
const MAX_SCRIPTS: usize = 16;

/// The largest number of resources that are remembered. A full set starts again.
const MAX_RESOURCES: usize = 1024;

/// The workers of a session, once it has any.
#[derive(Default)]
pub(super) struct Workers(Option<Box<Known>>);

#[derive(Default)]
struct Known {
    /// The URL hashes of the workers' scripts, the latest first.
    scripts: VecDeque<u32>,
    /// The URL hashes of the resources that workers have requested, and pages have not since.
    resources: HashSet<u32>,
}

impl Workers {
    /// Notes a request of the browser. `hash` is that of the URL.
    pub(super) fn note_request(&mut self, request: &RequestHead, hash: u32) {
        if is_worker_script(request) {
            let scripts = &mut self.0.get_or_insert_default().scripts;
            scripts.retain(|known| *known != hash);
            scripts.truncate(MAX_SCRIPTS - 1);
            scripts.push_front(hash);
        } else if !self.have_caused(request) {
            self.note_need(hash);
        } else if let Some(known) = &mut self.0 {
            if known.resources.len() >= MAX_RESOURCES {
                known.resources.clear();
            }
            known.resources.insert(hash);
        }
    }

    /// Notes that a page has requested a resource.
    pub(super) fn note_need(&mut self, hash: u32) {
        if let Some(known) = &mut self.0 {
            known.resources.remove(&hash);
        }
    }

    /// Returns whether a worker has made a request of its own.
    pub(super) fn have_caused(&self, request: &RequestHead) -> bool {
        let is_known = |known: &Known| {
            let referrer = std::str::from_utf8(request.fields.get("referer")?).ok()?;
            Some(known.scripts.contains(&url_hash_of(referrer)?))
        };
        self.0.as_deref().and_then(is_known).unwrap_or(false)
    }

    /// Returns whether a worker may answer the requests of pages for a resource.
    pub(super) fn may_answer(&self, hash: u32) -> bool {
        let known = self.0.as_deref();
        known.is_some_and(|known| known.resources.contains(&hash))
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;
    use crate::wire::url_hash;

    fn note(workers: &mut Workers, path: &str, fields: &[(&str, &str)]) -> u32 {
        let request = RequestHead {
            fields: fields.iter().copied().collect(),
            ..RequestHead::get(Scheme::Https, "a.test", path)
        };
        let hash = url_hash(&request);
        workers.note_request(&request, hash);
        hash
    }

    fn known(workers: &Workers) -> &Known {
        workers.0.as_deref().expect("there are workers")
    }

    #[test]
    fn workers_are_bounded() {
        let mut workers = Workers::default();
        for number in 0..2 * MAX_SCRIPTS {
            // The script of one worker is requested again and again.
            for path in ["/again.js", &format!("/{number}.js")] {
                note(&mut workers, path, &[("service-worker", "script")]);
            }
            assert!(known(&workers).scripts.len() <= MAX_SCRIPTS);
        }
        let by_oldest = [("referer", "https://a.test/0.js")];
        let hash = note(&mut workers, "/x.png", &by_oldest);
        assert!(!workers.may_answer(hash), "its script is forgotten");
        let by_repeated = [("referer", "https://a.test/again.js")];
        let hash = note(&mut workers, "/y.png", &by_repeated);
        assert!(workers.may_answer(hash), "its script is known");
        let script = format!("https://a.test/{}.js", 2 * MAX_SCRIPTS - 1);
        for number in 0..2 * MAX_RESOURCES {
            let path = format!("/{number}.png");
            let hash = note(&mut workers, &path, &[("referer", &script)]);
            assert!(workers.may_answer(hash));
            assert!(known(&workers).resources.len() <= MAX_RESOURCES);
        }
    }
}
