//! The hosts whose cookies a browser may refuse.

use std::collections::HashMap;

use tandem_http::RequestHead;

/// The largest number of hosts that are known to set cookies.
const MAX_HOSTS: usize = 1024;

/// The hosts of pages that have set cookies, each with true if the browser has returned one.
#[derive(Debug, Default)]
pub(super) struct CookieHosts(HashMap<String, bool>);

impl CookieHosts {
    /// Notes the cookies of a request.
    pub(super) fn note_request(&mut self, request: &RequestHead) {
        if !self.0.is_empty()
            && request.fields.contains("cookie")
            && let Some(returns) = self.0.get_mut(&request.authority.to_ascii_lowercase())
        {
            *returns = true;
        }
    }

    /// Returns whether the browser has had cookies of a host before, and has never returned one.
    pub(super) fn may_refuse(&self, request: &RequestHead) -> bool {
        let known = self.0.get(&request.authority.to_ascii_lowercase());
        known == Some(&false) && !request.fields.contains("cookie")
    }

    /// Notes that the response to a request sets cookies, if the host is not known yet.
    pub(super) fn note_set(&mut self, request: &RequestHead) {
        if !self.0.contains_key(&request.authority.to_ascii_lowercase()) {
            self.set(request);
        }
    }

    /// Notes that the response to a request sets cookies. Returns false if the browser has had
    /// cookies of this host before, and has never returned one.
    pub(super) fn set(&mut self, request: &RequestHead) -> bool {
        let host = request.authority.to_ascii_lowercase();
        if self.0.len() >= MAX_HOSTS && !self.0.contains_key(&host) {
            self.0.clear();
        }
        let has_cookie = request.fields.contains("cookie");
        let known = self.0.insert(host.clone(), has_cookie);
        if known == Some(true) {
            self.0.insert(host, true);
        }
        has_cookie || known != Some(false)
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    fn request(host: &str, cookie: Option<&str>) -> RequestHead {
        RequestHead {
            fields: cookie
                .map(|cookie| ("cookie", cookie))
                .into_iter()
                .collect(),
            ..RequestHead::get(Scheme::Http, host, "/")
        }
    }

    #[test]
    fn host_may_be_refused_until_a_cookie_returns() {
        let mut hosts = CookieHosts::default();
        let (with, without) = (request("A.test", Some("a=b")), request("a.test", None));
        assert!(hosts.set(&without), "the first response");
        assert!(!hosts.set(&without));
        assert!(hosts.set(&request("b.test", None)), "another host");
        hosts.note_request(&without);
        assert!(!hosts.set(&without));
        hosts.note_request(&with);
        assert!(hosts.set(&without) && hosts.set(&without));
        let mut hosts = CookieHosts::default();
        assert!(hosts.set(&with) && hosts.set(&without));
    }

    #[test]
    fn cookie_hosts_are_bounded() {
        let mut hosts = CookieHosts::default();
        for number in 0..3 * MAX_HOSTS {
            hosts.set(&request(&format!("{number}.test"), None));
            assert!(hosts.0.len() <= MAX_HOSTS);
        }
    }
}
