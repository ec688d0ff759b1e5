//! The users that were counted for names that few users know, for gateways that count together.
//!
//! A name is a URL, a context, or an asset of a context. Each is known to enough users if all
//! gateways together have counted enough of them.

use super::Auto;
use super::store::{Context, ContextId, Crowd, Key};
use crate::crowd::tag;

/// The most counted users that wait. They need about 1 MiB.
const MAX_WAITING: usize = 1 << 16;

/// The longest name that is reported, in bytes.
const MAX_NAME: usize = 4096;

/// The separator of the context and the asset in a name. It stands in no URL.
const SEPARATOR: char = '\n';

/// An item that users are counted for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Name {
    Url(u32),
    Context(ContextId),
    Asset(ContextId, u32),
}

/// The counted users that wait.
#[derive(Debug)]
pub(super) struct SightingQueue {
    waiting: Vec<(Name, u16)>,
    least_users: u8,
}

impl SightingQueue {
    /// Adds a user, unless enough users were known before.
    fn push(&mut self, name: Name, user: u64, crowd: Crowd) {
        if crowd.count <= self.least_users && self.waiting.len() < MAX_WAITING {
            self.waiting.push((name, tag(user)));
        }
    }

    /// Forgets all users, because the store reuses the numbers of names.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }
}

/// Counts a user in the crowd of an item. Reports the user if it is new and users are reported.
pub(super) fn count_user(
    queue: &mut Option<SightingQueue>,
    name: Name,
    user: u64,
    crowd: &mut Crowd,
) {
    if crowd.note(user)
        && let Some(queue) = queue
    {
        queue.push(name, user, *crowd);
    }
}

impl Auto {
    /// Begins to report counted users, for gateways that count together.
    pub fn report_users(&mut self) {
        let least_users = self.least_users();
        self.sightings.get_or_insert_with(|| SightingQueue {
            waiting: Vec::new(),
            least_users,
        });
    }

    /// Takes at most `limit` counted users: the name and the tag of the user.
    pub fn take_users(&mut self, limit: usize) -> Vec<(String, u16)> {
        let Some(queue) = &mut self.sightings else {
            return Vec::new();
        };
        let rest = queue.waiting.split_off(queue.waiting.len().min(limit));
        let taken = std::mem::replace(&mut queue.waiting, rest);
        let named = taken
            .into_iter()
            .filter_map(|(name, tag)| Some((self.name(name)?, tag)));
        named.filter(|(name, _)| name.len() <= MAX_NAME).collect()
    }

    /// Counts a user of another gateway, by a name that [`take_users`](Self::take_users) returned
    /// here. Unknown names are ignored.
    pub fn note_user(&mut self, name: &str, tag: u16) {
        let (context, asset) = match name.split_once(SEPARATOR) {
            Some((context, asset)) => (context, Some(asset)),
            None => (name, None),
        };
        if let Some(url) = context.strip_prefix('U') {
            if let Some(id) = self.store.find(url) {
                self.store.at_mut(id).crowd.note_tag(tag);
            }
            return;
        }
        let Some(id) = self.context_named(context) else {
            return;
        };
        let asset = asset.map(|asset| self.store.find(asset));
        let context = self.store.context_mut(id);
        match asset {
            None => {
                context.crowd.note_tag(tag);
            }
            Some(url) => {
                let entry = context.entries.iter_mut();
                if let Some(entry) = entry.into_iter().find(|entry| Some(entry.url) == url) {
                    entry.crowd.note_tag(tag);
                }
            }
        }
    }

    /// Returns the name of an item.
    fn name(&self, name: Name) -> Option<String> {
        let of_context = |id: ContextId| {
            let context = self.store.contexts.get(id as usize)?.as_ref()?;
            Some(self.context_name(context))
        };
        Some(match name {
            Name::Url(id) => format!("U{}", self.store.at(id).name),
            Name::Context(id) => of_context(id)?,
            Name::Asset(id, url) => {
                format!("{}{SEPARATOR}{}", of_context(id)?, self.store.at(url).name)
            }
        })
    }

    fn context_name(&self, context: &Context) -> String {
        match &context.key {
            Key::Page(page) => format!("P{}", self.store.at(*page).name),
            Key::Named(name) => format!("N{name}"),
        }
    }

    fn context_named(&self, name: &str) -> Option<ContextId> {
        match (name.strip_prefix('P'), name.strip_prefix('N')) {
            (Some(page), _) => {
                let page = self.store.find(page)?;
                let context = self.store.at(page).contexts[0];
                (context != super::store::NONE).then_some(context)
            }
            (_, Some(named)) => self.store.find_named(named),
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AutoConfig, Exchange};
    use super::*;

    const URLS: [&str; 3] = ["http://h/", "http://h/a.css", "http://h/b.js"];

    fn visit(auto: &mut Auto, user: u64) -> usize {
        let mut offers = 0;
        for url in URLS {
            let exchange = Exchange {
                session: user,
                user,
                now: user as i64 * 60_000,
                url,
                get: true,
                status: 200,
                referer: (url != URLS[0]).then_some(URLS[0]),
                ..Exchange::default()
            };
            offers += auto.sending(&exchange).len();
        }
        auto.session_closed(user);
        offers
    }

    fn gateways(users: [u64; 3]) -> [Auto; 3] {
        users.map(|user| {
            let mut auto = Auto::new(AutoConfig {
                credit: 6.0,
                ..AutoConfig::default()
            });
            auto.report_users();
            visit(&mut auto, user);
            auto
        })
    }

    /// Tells each gateway the users of the others.
    fn exchange(gateways: &mut [Auto; 3]) {
        let reports: Vec<_> = gateways
            .iter_mut()
            .map(|auto| auto.take_users(1000))
            .collect();
        for (at, auto) in gateways.iter_mut().enumerate() {
            for (from, report) in reports.iter().enumerate().filter(|(from, _)| *from != at) {
                assert!(!report.is_empty(), "gateway {from}");
                report
                    .iter()
                    .for_each(|(name, tag)| auto.note_user(name, *tag));
            }
        }
    }

    #[test]
    fn users_of_three_gateways_make_a_page_known() {
        let mut gateways = gateways([11, 12, 13]);
        assert!(
            gateways
                .iter()
                .all(|auto| auto.resources(URLS[0]).is_empty())
        );
        exchange(&mut gateways);
        for auto in &mut gateways {
            assert_eq!(auto.resources(URLS[0]).len(), 2);
            assert!(visit(auto, 14) > 0);
        }
    }

    #[test]
    fn one_user_of_three_gateways_counts_once() {
        let mut gateways = gateways([11, 11, 12]);
        exchange(&mut gateways);
        for auto in &mut gateways {
            assert!(auto.resources(URLS[0]).is_empty());
        }
    }

    #[test]
    fn known_names_are_not_reported() {
        let mut auto = Auto::new(AutoConfig::default());
        auto.report_users();
        for user in 11..14 {
            visit(&mut auto, user);
        }
        assert_eq!(auto.take_users(10).len(), 10);
        assert!(!auto.take_users(1000).is_empty());
        visit(&mut auto, 14);
        assert!(auto.take_users(1000).is_empty());
        for name in [
            "",
            "U",
            "P",
            "Nx",
            "Uhttp://h/none",
            "Phttp://h/\nnone",
            "X",
        ] {
            auto.note_user(name, 1);
        }
    }
}
