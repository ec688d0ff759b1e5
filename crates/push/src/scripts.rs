//! The fields with which pages request data, once requests of several users have agreed on those
//! that scripts choose. A frame counts as data here, but its request is not that of a script. The
//! predictor knows that a page causes a request, and this module knows its fields.

use std::sync::Arc;

use tandem_http::RequestHead;
use tandem_http::cache::RequestPolicy;
use tandem_predict::crowd::{Crowd, tag};
use tandem_predict::ids::IdMap;

use crate::fetch_standard::{ScriptFields, is_framed, is_navigation};

/// The largest number of URLs in a table. A table that is full starts again.
const MAX_URLS: usize = 1 << 14;

/// The largest number of users that may have to agree on fields.
const MAX_USERS: usize = 4;

/// The number of users, if there are several, that show a frame to be sandboxed.
const USERS_OF_SANDBOX: u8 = 2;

/// The number of users whose last requests tell whether pages want validated data.
const RECENT_USERS: usize = 8;

/// The fields with which pages request a URL with data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DataFields {
    /// The request has the fields that browsers send by default.
    #[default]
    Plain,
    /// Scripts choose these fields.
    Scripted(Arc<ScriptFields>),
    /// The request asks for a document in a frame.
    Frame {
        /// True if requests that the document causes come from an opaque origin, as those of a
        /// sandboxed frame do. Two users have to agree on that, if there are several.
        is_sandboxed: bool,
    },
    /// Too few requests show the fields.
    Unknown,
}

/// The fields with which pages request URLs with data, by numbers of the URLs.
#[derive(Debug, Default)]
pub struct ScriptTable {
    urls: IdMap<u64, KnownFields>,
}

/// The fields of the last requests for a URL.
#[derive(Debug)]
struct KnownFields {
    /// The fields that a script chose, if it chose any.
    fields: Option<Arc<ScriptFields>>,
    frame: Option<Frame>,
    /// The users whose requests had these fields.
    users: Crowd<MAX_USERS>,
    demands: Demands,
}

/// A document in a frame, as requests have shown it.
#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    /// The users for whom a request that it caused came from an opaque origin.
    sandboxed_for: Crowd<MAX_USERS>,
}

/// The recent users of a URL, and whether the last request of each wanted a response that its
/// origin has confirmed. One user may reload a page that all others open.
#[derive(Debug, Default)]
struct Demands {
    /// The tags of the users and their demands, the most recent first.
    users: [(u16, bool); RECENT_USERS],
    count: usize,
}

impl Demands {
    /// Notes the last request of a user, in place of an earlier one.
    fn note(&mut self, user: u64, is_validated: bool) {
        let tag = tag(user);
        let known = self.users[..self.count].iter();
        let at = known.take_while(|(known, _)| *known != tag).count();
        self.count = self.count.max((at + 1).min(RECENT_USERS));
        self.users[..self.count.min(at + 1)].rotate_right(1);
        self.users[0] = (tag, is_validated);
    }

    /// Returns whether more than half of the users wanted a validated response.
    fn are_for_validation(&self) -> bool {
        let demands = self.users[..self.count].iter();
        2 * demands.filter(|(_, is_validated)| *is_validated).count() > self.count
    }
}

impl ScriptTable {
    /// Notes the request of a user for a URL with data. A request with other fields begins the
    /// count of users again. A navigation counts as the request for a frame. If no metadata
    /// confirms that, it replaces no other fields.
    pub fn note(&mut self, url: u64, user: u64, request: &RequestHead) {
        let fields = ScriptFields::of(request);
        let is_frame = is_framed(request) || is_navigation(request);
        let is_validated = RequestPolicy::of(&request.fields).wants_validation();
        let is_same = |known: &&mut KnownFields| {
            known.fields.as_deref() == fields.as_ref() && known.frame.is_some() == is_frame
        };
        let known = self.urls.get_mut(&url);
        let is_other = known.as_ref().is_some_and(|known| known.frame.is_none());
        if is_frame && is_other && !is_framed(request) {
            return;
        }
        if let Some(known) = known.filter(is_same) {
            known.users.note(user);
            known.demands.note(user, is_validated);
            return;
        }
        if self.urls.len() >= MAX_URLS {
            self.urls.clear();
        }
        let mut known = KnownFields {
            fields: fields.map(Arc::new),
            frame: is_frame.then(Frame::default),
            users: Crowd::default(),
            demands: Demands::default(),
        };
        known.users.note(user);
        known.demands.note(user, is_validated);
        self.urls.insert(url, known);
    }

    /// Notes whether a request that the document at a URL has caused came from an opaque origin. A
    /// request from the origin of the document ends the knowledge of earlier ones.
    pub fn note_sandbox(&mut self, url: u64, user: u64, is_sandboxed: bool) {
        let known = self.urls.get_mut(&url);
        match known.and_then(|known| known.frame.as_mut()) {
            Some(frame) if is_sandboxed => {
                frame.sandboxed_for.note(user);
            }
            Some(frame) => *frame = Frame::default(),
            None => {}
        }
    }

    /// Returns whether most of the recent users wanted a response of a URL that its origin has
    /// confirmed.
    pub fn is_validated(&self, url: u64) -> bool {
        let known = self.urls.get(&url);
        known.is_some_and(|known| known.demands.are_for_validation())
    }

    /// Returns the fields with which pages request a URL. Fields that scripts chose count once
    /// `least_users` different users have sent them.
    pub fn data_fields(&self, url: u64, least_users: u8) -> DataFields {
        match self.urls.get(&url) {
            None => DataFields::Unknown,
            Some(KnownFields {
                frame: Some(frame), ..
            }) => DataFields::Frame {
                is_sandboxed: frame.sandboxed_for.count >= least_users.min(USERS_OF_SANDBOX),
            },
            Some(KnownFields { fields: None, .. }) => DataFields::Plain,
            Some(KnownFields {
                fields: Some(fields),
                users,
                ..
            }) => match users.count >= least_users.min(MAX_USERS as u8) {
                true => DataFields::Scripted(Arc::clone(fields)),
                false => DataFields::Unknown,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    fn request(accept: &str) -> RequestHead {
        RequestHead {
            fields: [("accept", accept)].into_iter().collect(),
            ..RequestHead::get(Scheme::Http, "a.test", "/data")
        }
    }

    fn validated() -> RequestHead {
        RequestHead {
            fields: [("cache-control", "max-age=0")].into_iter().collect(),
            ..request("*/*")
        }
    }

    fn accept_of(table: &ScriptTable, url: u64, least_users: u8) -> Option<String> {
        match table.data_fields(url, least_users) {
            DataFields::Scripted(fields) => Some(fields.accept().to_owned()),
            DataFields::Plain | DataFields::Frame { .. } | DataFields::Unknown => None,
        }
    }

    #[test]
    fn table_gives_fields_on_which_enough_users_agree() {
        let mut table = ScriptTable::default();
        let (json, plain) = (request("application/json"), request("*/*"));
        assert_eq!(table.data_fields(1, 3), DataFields::Unknown);
        for user in [7, 7, 8] {
            table.note(1, user, &json);
            assert_eq!(table.data_fields(1, 3), DataFields::Unknown);
        }
        table.note(1, 9, &json);
        assert_eq!(accept_of(&table, 1, 3).as_deref(), Some("application/json"));
        assert_eq!(table.data_fields(2, 3), DataFields::Unknown, "another URL");
        table.note(1, 7, &plain);
        assert_eq!(table.data_fields(1, 3), DataFields::Plain);
        table.note(1, 7, &json);
        assert_eq!(
            table.data_fields(1, 3),
            DataFields::Unknown,
            "one user changed it"
        );
        assert!(accept_of(&table, 1, 1).is_some());
    }

    #[test]
    fn table_tells_frames_from_data() {
        let mut table = ScriptTable::default();
        let frame = RequestHead {
            fields: [("sec-fetch-dest", "iframe")].into_iter().collect(),
            ..request("text/html")
        };
        let of = |is_sandboxed| DataFields::Frame { is_sandboxed };
        table.note_sandbox(1, 7, true);
        assert_eq!(table.data_fields(1, 1), DataFields::Unknown);
        table.note(1, 7, &frame);
        assert_eq!(table.data_fields(1, 3), of(false));
        let guessed = request("text/html,*/*");
        table.note(2, 7, &guessed);
        assert_eq!(table.data_fields(2, 3), of(false), "without metadata");
        for (user, is_sandboxed) in [(7, false), (7, false), (8, true)] {
            table.note_sandbox(1, user, true);
            assert_eq!(table.data_fields(1, 1), of(true), "there is one user");
            assert_eq!(table.data_fields(1, 3), of(is_sandboxed));
        }
        table.note(1, 8, &frame);
        assert_eq!(table.data_fields(1, 3), of(true));
        table.note_sandbox(1, 9, false);
        assert_eq!(table.data_fields(1, 1), of(false), "its origin asks");
        table.note(1, 8, &request("*/*"));
        assert_eq!(table.data_fields(1, 3), DataFields::Plain, "a script asks");
        table.note_sandbox(1, 8, true);
        table.note(1, 8, &guessed);
        assert_eq!(table.data_fields(1, 3), DataFields::Plain);
        table.note(1, 8, &frame);
        assert_eq!(table.data_fields(1, 3), of(false), "metadata tells");
        table.note(3, 8, &request("application/json"));
        table.note(3, 9, &guessed);
        assert!(accept_of(&table, 3, 1).is_some());
    }

    #[test]
    fn table_knows_which_data_is_validated() {
        let mut table = ScriptTable::default();
        let validated = validated();
        assert!(!table.is_validated(1));
        for (asked, expected) in [
            (&validated, true),
            (&request("*/*"), false),
            (&validated, true),
        ] {
            table.note(1, 7, asked);
            assert_eq!(table.is_validated(1), expected);
            assert_eq!(table.data_fields(1, 3), DataFields::Plain);
        }
    }

    #[test]
    fn most_of_the_recent_users_decide_about_validation() {
        let mut table = ScriptTable::default();
        let (plain, validated) = (request("*/*"), validated());
        for user in 0..4 {
            table.note(1, user, &plain);
        }
        for _ in 0..9 {
            table.note(1, 9, &validated);
            assert!(!table.is_validated(1), "one user reloads");
        }
        for (user, expected) in [(10, false), (11, false), (12, false), (13, true)] {
            table.note(1, user, &validated);
            assert_eq!(table.is_validated(1), expected, "{user}");
        }
        for (user, expected) in [(14, true), (13, false)] {
            table.note(1, user, &plain);
            assert_eq!(
                table.is_validated(1),
                expected,
                "the last request of {user}"
            );
        }
    }

    #[test]
    fn users_of_long_ago_do_not_decide_about_validation() {
        let mut table = ScriptTable::default();
        for user in 0..20 {
            table.note(1, user, &request("*/*"));
        }
        for user in 20..25 {
            assert!(!table.is_validated(1), "{user}");
            table.note(1, user, &validated());
        }
        assert!(table.is_validated(1));
    }

    #[test]
    fn script_table_is_bounded() {
        let (mut table, json) = (ScriptTable::default(), request("application/json"));
        for url in 0..MAX_URLS as u64 + 9 {
            table.note(url, 1, &json);
            assert!(table.urls.len() <= MAX_URLS);
        }
        assert!(accept_of(&table, MAX_URLS as u64 + 8, 1).is_some());
        assert_eq!(table.data_fields(0, 1), DataFields::Unknown);
    }
}
