//! The `Accept` of the browser's own requests for images.
//!
//! A site may choose the format of an image by this field, and not tell so in `Vary`. Its value
//! depends on the browser and its version. The session keeps the last one for each `User-Agent`.

use std::collections::VecDeque;
use std::sync::Arc;

use tandem_http::{Fields, RequestHead};

use crate::fetch_standard::has_only_browser_fields;

/// The most user agents of a session.
const MAX_AGENTS: usize = 8;
/// The length of the longest value of either field that is kept, in bytes.
const MAX_VALUE: usize = 512;

/// The last `Accept` for images by user agent, the newest one last.
#[derive(Debug, Default)]
pub(super) struct ImageAccept(VecDeque<AgentAccept>);

#[derive(Debug)]
struct AgentAccept {
    agent: Box<[u8]>,
    accept: Arc<[u8]>,
}

impl ImageAccept {
    /// Notes a request of the browser.
    pub(super) fn note(&mut self, request: &RequestHead) {
        let fields = &request.fields;
        let Some(accept) = fields.get("accept").filter(|_| is_for_image(fields)) else {
            return;
        };
        let agent = agent(fields);
        if accept.len() > MAX_VALUE || agent.len() > MAX_VALUE || !has_only_browser_fields(fields) {
            return;
        }
        self.0.retain(|known| *known.agent != *agent);
        if self.0.len() == MAX_AGENTS {
            self.0.pop_front();
        }
        self.0.push_back(AgentAccept {
            agent: agent.into(),
            accept: accept.into(),
        });
    }

    /// Returns the value for the browser that has sent `request`.
    pub(super) fn of(&self, request: &RequestHead) -> Option<Arc<[u8]>> {
        let agent = agent(&request.fields);
        let known = self.0.iter().find(|known| *known.agent == *agent)?;
        Some(Arc::clone(&known.accept))
    }
}

fn agent(fields: &Fields) -> &[u8] {
    fields.get("user-agent").unwrap_or_default()
}

/// Returns whether an element of a page requests an image, and no script does.
fn is_for_image(fields: &Fields) -> bool {
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

    fn request(fields: &[(&str, &str)]) -> RequestHead {
        RequestHead {
            fields: fields.iter().copied().collect(),
            ..RequestHead::get(Scheme::Http, "a", "/")
        }
    }

    fn known(accepts: &ImageAccept, agent: &str) -> Option<String> {
        let accept = accepts.of(&request(&[("user-agent", agent)]))?;
        Some(String::from_utf8_lossy(&accept).into_owned())
    }

    #[test]
    fn last_value_of_a_browser_counts() {
        let mut accepts = ImageAccept::default();
        for accept in ["image/png,*/*", "image/webp,*/*"] {
            accepts.note(&request(&[("user-agent", "S"), ("accept", accept)]));
        }
        assert_eq!(known(&accepts, "S").as_deref(), Some("image/webp,*/*"));
        assert_eq!(known(&accepts, "T"), None);
        for other in [
            &[("accept", "text/html")][..],
            &[("accept", "image/gif"), ("sec-fetch-dest", "empty")],
            &[("accept", "image/gif"), ("x-script", "1")],
        ] {
            let fields = [&[("user-agent", "S")], other].concat();
            accepts.note(&request(&fields));
            assert_eq!(known(&accepts, "S").as_deref(), Some("image/webp,*/*"));
        }
        let fields = [
            ("user-agent", "S"),
            ("accept", "*/*"),
            ("sec-fetch-dest", "image"),
        ];
        accepts.note(&request(&fields));
        assert_eq!(known(&accepts, "S").as_deref(), Some("*/*"));
    }

    #[test]
    fn image_accept_memory_is_bounded() {
        let mut accepts = ImageAccept::default();
        let long = "image/".repeat(200);
        accepts.note(&request(&[("user-agent", "S"), ("accept", &long)]));
        assert_eq!(known(&accepts, "S"), None);
        for agent in 0..20 {
            let agent = agent.to_string();
            accepts.note(&request(&[("user-agent", &agent), ("accept", "image/*")]));
        }
        assert_eq!(accepts.0.len(), MAX_AGENTS);
        assert!(known(&accepts, "19").is_some() && known(&accepts, "0").is_none());
    }
}
