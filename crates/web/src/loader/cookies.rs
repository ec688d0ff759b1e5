//! The cookies of a load (RFC 6265 section 5). The loader keeps and sends them for hosts of the
//! page's own site only: browsers without an exception refuse all others over plain HTTP.

use std::sync::{Arc, Mutex, PoisonError};

use cookie_store::{Cookie, CookieStore};
use tandem_http::Fields;
use url::Url;

use crate::page::Site;

/// The cookies that one browser has.
#[derive(Debug, Default)]
pub(super) struct Cookies(Mutex<CookieJar>);

/// The cookies of a browser that visits a site several times. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct BrowserCookies(pub(super) Arc<Cookies>);

/// Domain, path and name of a cookie.
type CookieKey = (String, String, String);

#[derive(Debug, Default)]
struct CookieJar {
    store: CookieStore,
    /// The cookies in the order of their creation.
    created: Vec<CookieKey>,
}

impl CookieJar {
    /// Keeps a cookie. Chromium takes one with another value for a new one.
    fn keep(&mut self, cookie: &str, url: &Url) {
        let Ok(cookie) = Cookie::parse(cookie.to_owned(), url) else {
            return;
        };
        let key = key(&cookie);
        let old = self.store.get(&key.0, &key.1, &key.2);
        let is_same = old.is_some_and(|old| old.value() == cookie.value());
        // A cookie for a foreign domain is refused, as in a browser.
        if self.store.insert(cookie, url).is_ok() && !is_same {
            self.created.retain(|other| *other != key);
            self.created.push(key);
        }
    }

    /// Returns the pairs for a URL: cookies with long paths first, and old ones before new ones
    /// (RFC 6265 section 5.4).
    fn pairs(&self, url: &Url) -> Vec<String> {
        let mut cookies = self.store.matches(url);
        cookies.sort_by_cached_key(|cookie| {
            let key = key(cookie);
            let place = self.created.iter().position(|other| *other == key);
            (std::cmp::Reverse(cookie.path.len()), place)
        });
        let pairs = cookies.iter().map(|cookie| cookie.name_value());
        pairs
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }
}

fn key(cookie: &Cookie<'_>) -> CookieKey {
    let domain = cookie.domain.as_cow().unwrap_or_default();
    (
        domain.into_owned(),
        cookie.path.to_string(),
        cookie.name().to_owned(),
    )
}

impl Cookies {
    /// Creates the cookies of a first visit, or those that an earlier visit has left.
    pub(super) fn new(site: &Site, is_return: bool) -> Self {
        let cookies = Self::default();
        for index in (0..site.page().resources.len()).filter(|_| is_return) {
            for cookie in &site.page().resources[index].cookies {
                cookies.keep(site, index, cookie);
            }
        }
        cookies
    }

    /// Returns the `Cookie` field for a request.
    pub(super) fn field(&self, site: &Site, index: usize) -> Option<String> {
        let url = Self::url(site, index)?;
        let jar = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pairs = jar.pairs(&url);
        (!pairs.is_empty()).then(|| pairs.join("; "))
    }

    /// Keeps the cookies of a response.
    pub(super) fn take(&self, site: &Site, index: usize, response: &Fields) {
        for value in response.get_all("set-cookie") {
            if let Ok(cookie) = std::str::from_utf8(value) {
                self.keep(site, index, cookie);
            }
        }
    }

    fn keep(&self, site: &Site, index: usize, cookie: &str) {
        if let Some(url) = Self::url(site, index) {
            let mut jar = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            jar.keep(cookie, &url);
        }
    }

    /// Returns the URL of a resource of the page's own site.
    fn url(site: &Site, index: usize) -> Option<Url> {
        let url = Url::parse(&site.url(index)).ok()?;
        let page = Url::parse(&site.url(0)).ok()?;
        let (own, pages) = (url.host_str()?, page.host_str()?);
        let site_of = |host| psl::domain_str(host).unwrap_or(host);
        (site_of(own) == site_of(pages)).then_some(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Page;

    fn site() -> Site {
        let mut page = Page::gallery(3, 700);
        page.hosts = vec!["www".into(), "img".into(), "ads".into()];
        for (index, resource) in page.resources.iter_mut().enumerate() {
            resource.host = [0, 1, 2, 0][index];
        }
        page.resources[0].cookies = vec!["sid=1; Domain=a.test".into()];
        page.resources[1].cookies = vec!["img=2".into(), "own=3; Path=/elsewhere".into()];
        page.resources[2].cookies = vec!["ad=4".into()];
        Site::new(page, &["www.a.test:81", "img.a.test", "b.test"]).expect("a valid page")
    }

    fn sent(cookies: &Cookies, site: &Site) -> Vec<Option<String>> {
        (0..4).map(|index| cookies.field(site, index)).collect()
    }

    #[test]
    fn cookies_go_to_the_hosts_that_set_them() {
        let site = site();
        let cookies = Cookies::new(&site, false);
        assert_eq!(sent(&cookies, &site), [None, None, None, None]);
        let set = |value: &str| -> Fields { [("set-cookie", value)].into_iter().collect() };
        cookies.take(&site, 0, &set("sid=1; Domain=a.test"));
        cookies.take(&site, 0, &set("x=y; Domain=b.test"));
        cookies.take(&site, 2, &set("ad=4"));
        let own = Some("sid=1".to_owned());
        assert_eq!(
            sent(&cookies, &site),
            [own.clone(), own.clone(), None, own.clone()]
        );
        cookies.take(&site, 0, &set("sid=; Max-Age=0; Domain=a.test"));
        assert_eq!(cookies.field(&site, 0), None);
    }

    #[test]
    fn long_paths_and_old_cookies_come_first() {
        let site = site();
        let cookies = Cookies::new(&site, false);
        for number in 0..8 {
            let cookie = format!("c{number}={number}; Domain=a.test; Path=/");
            cookies.take(&site, 0, &[("set-cookie", cookie)].into_iter().collect());
        }
        for cookie in [
            "c0=0; Domain=a.test; Path=/",
            "c1=x; Domain=a.test; Path=/",
            "own=8",
        ] {
            cookies.take(&site, 0, &[("set-cookie", cookie)].into_iter().collect());
        }
        let all = "c0=0; c2=2; c3=3; c4=4; c5=5; c6=6; c7=7; c1=x; own=8";
        assert_eq!(cookies.field(&site, 0).as_deref(), Some(all));
    }

    #[test]
    fn return_visit_begins_with_the_cookies_of_the_page() {
        let site = site();
        let mut fields = sent(&Cookies::new(&site, true), &site);
        let image = fields.remove(1).expect("two cookies");
        let mut pairs: Vec<_> = image.split("; ").collect();
        pairs.sort_unstable();
        assert_eq!(pairs, ["img=2", "sid=1"]);
        let own = Some("sid=1".to_owned());
        assert_eq!(fields, [own.clone(), None, own]);
    }
}
