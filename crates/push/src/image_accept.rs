//! The `Accept` of browsers' own requests for images.
//!
//! A site may choose the format of an image by this field, and not tell so in `Vary`. Its value
//! depends on the browser and its version. A table keeps the last one for each `User-Agent`. Each
//! session has a table of its user's browsers, and the sessions of a process share another one. A
//! value of the latter counts once several users have sent it: one user alone must not choose the
//! format that the others get.

use std::collections::VecDeque;
use std::sync::Arc;

use tandem_http::{Fields, RequestHead};
use tandem_predict::crowd::Crowd;

use crate::fetch_standard::has_only_browser_fields;

/// The length of the longest value of either field that is kept, in bytes.
const MAX_VALUE: usize = 512;

/// The largest number of users that may have to agree on a value.
const MAX_USERS: usize = 4;

/// The last `Accept` for images of at most `N` user agents, the newest one last.
#[derive(Debug, Default)]
pub struct ImageAccept<const N: usize>(VecDeque<AgentAccept>);

#[derive(Debug)]
struct AgentAccept {
    agent: Box<[u8]>,
    accept: Arc<[u8]>,
    /// The users whose requests had this value.
    users: Crowd<MAX_USERS>,
}

impl<const N: usize> ImageAccept<N> {
    /// Notes a user's request. A request with another value begins the count of users again.
    pub fn note(&mut self, user: u64, request: &RequestHead) {
        let fields = &request.fields;
        let Some(accept) = fields.get("accept").filter(|_| is_for_image(fields)) else {
            return;
        };
        let agent = agent(fields);
        if accept.len() > MAX_VALUE || agent.len() > MAX_VALUE || !has_only_browser_fields(fields) {
            return;
        }
        let at = self.0.iter().position(|known| *known.agent == *agent);
        let known = at.and_then(|at| self.0.remove(at));
        let known = known.filter(|known| *known.accept == *accept);
        let mut known = known.unwrap_or_else(|| AgentAccept {
            agent: agent.into(),
            accept: accept.into(),
            users: Crowd::default(),
        });
        known.users.note(user);
        if self.0.len() >= N {
            self.0.pop_front();
        }
        self.0.push_back(known);
    }

    /// Returns the value for the browser that has sent `request`, if `least_users` different users
    /// have sent it.
    pub fn of(&self, request: &RequestHead, least_users: u8) -> Option<Arc<[u8]>> {
        let agent = agent(&request.fields);
        let known = self.0.iter().find(|known| *known.agent == *agent)?;
        let is_known = known.users.count >= least_users.min(MAX_USERS as u8);
        is_known.then(|| Arc::clone(&known.accept))
    }
}

fn agent(fields: &Fields) -> &[u8] {
    fields.get("user-agent").unwrap_or_default()
}

/// Returns whether an element of a page requests an image, and no script does.
pub(crate) fn is_for_image(fields: &Fields) -> bool {
    match fields.get("sec-fetch-dest") {
        Some(destination) => destination == b"image",
        None => {
            let accept = fields.get("accept").unwrap_or_default();
            accept.starts_with(b"image/") && fields.get("sec-fetch-mode").is_none()
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    const MAX: usize = 8;

    fn request(fields: &[(&str, &str)]) -> RequestHead {
        RequestHead {
            fields: fields.iter().copied().collect(),
            ..RequestHead::get(Scheme::Http, "a", "/")
        }
    }

    fn known(accepts: &ImageAccept<MAX>, agent: &str) -> Option<String> {
        let accept = accepts.of(&request(&[("user-agent", agent)]), 1)?;
        Some(String::from_utf8_lossy(&accept).into_owned())
    }

    #[test]
    fn last_value_of_a_browser_counts() {
        let mut accepts = ImageAccept::<MAX>::default();
        for accept in ["image/png,*/*", "image/webp,*/*"] {
            accepts.note(7, &request(&[("user-agent", "S"), ("accept", accept)]));
        }
        assert_eq!(known(&accepts, "S").as_deref(), Some("image/webp,*/*"));
        assert_eq!(known(&accepts, "T"), None);
        for other in [
            &[("accept", "text/html")][..],
            &[("accept", "image/gif"), ("sec-fetch-dest", "empty")],
            &[("accept", "image/gif"), ("x-script", "1")],
        ] {
            let fields = [&[("user-agent", "S")], other].concat();
            accepts.note(7, &request(&fields));
            assert_eq!(known(&accepts, "S").as_deref(), Some("image/webp,*/*"));
        }
        let fields = [
            ("user-agent", "S"),
            ("accept", "*/*"),
            ("sec-fetch-dest", "image"),
        ];
        accepts.note(7, &request(&fields));
        assert_eq!(known(&accepts, "S").as_deref(), Some("*/*"));
    }

    #[test]
    fn image_accept_memory_is_bounded() {
        let mut accepts = ImageAccept::<MAX>::default();
        let long = "image/".repeat(200);
        accepts.note(7, &request(&[("user-agent", "S"), ("accept", &long)]));
        assert_eq!(known(&accepts, "S"), None);
        for agent in 0..20 {
            let agent = agent.to_string();
            accepts.note(
                7,
                &request(&[("user-agent", &agent), ("accept", "image/*")]),
            );
        }
        assert_eq!(accepts.0.len(), MAX);
        assert!(known(&accepts, "19").is_some() && known(&accepts, "0").is_none());
    }

    #[test]
    fn value_counts_once_enough_users_have_sent_it() {
        let mut accepts = ImageAccept::<MAX>::default();
        let of = |accept| request(&[("user-agent", "S"), ("accept", accept)]);
        let (webp, other) = (of("image/webp,*/*"), of("image/other"));
        for (user, asked, expected) in [
            (1, &webp, false),
            (1, &webp, false),
            (2, &webp, false),
            (3, &webp, true),
            (4, &other, false),
            (1, &webp, false),
        ] {
            accepts.note(user, asked);
            assert_eq!(accepts.of(asked, 3).is_some(), expected, "{user}");
        }
        assert!(accepts.of(&webp, 1).is_some());
    }
}
