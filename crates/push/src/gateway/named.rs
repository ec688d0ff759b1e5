//! Resources that a page may need and that its scripts name: a URL in a string of a script is
//! promised if earlier visits requested it.
//!
//! Scripts have many strings, and name resources that only some pages need. Hence a string alone
//! promises nothing. The predictor knows the resources that the page, its kind or its site has
//! requested before, but too rarely for a push without such a hint.

use std::collections::HashMap;

use tandem_preload::{Need, resolve};

/// The share of visits from which a resource is promised if a separate script names it. Many pages
/// use the same script, so that its strings tell little about one page. A push pays at the default
/// omega if the string doubles the odds of such a resource. The value is an assumption: logs have
/// no scripts, so they cannot show a better one.
pub(super) const LEAST_SHARE: f64 = 1.0 / 3.0;

/// A resource that visits to a page may request.
#[derive(Debug)]
pub(super) struct PossibleNeed {
    pub(super) need: Need,
    /// The share of visits that request it.
    pub(super) share: f64,
}

/// The resources that a page may need, until scripts name them.
#[derive(Debug, Default)]
pub(super) struct PossibleNeeds {
    by_url: HashMap<String, PossibleNeed>,
    /// The number of resources that may still be promised.
    left: usize,
    /// The base URL that the page's own bytes have set.
    base: Option<String>,
}

impl PossibleNeeds {
    /// Collects the resources that a page may need. At most `most` of them are promised.
    pub(super) fn new(needs: Vec<PossibleNeed>, most: usize) -> Self {
        let by_url = needs.into_iter().map(|it| (it.need.url.clone(), it));
        Self {
            by_url: by_url.collect(),
            left: most,
            base: None,
        }
    }

    /// Returns whether the strings of scripts are of no use.
    pub(super) fn is_empty(&self) -> bool {
        self.by_url.is_empty() || self.left == 0
    }

    /// Sets the base URL of the page.
    pub(super) fn set_base(&mut self, base: &str) {
        if self.base.as_deref() != Some(base) {
            self.base = Some(base.to_owned());
        }
    }

    /// Takes the resources that strings of a script name. As `fetch` does, a script uses the base
    /// URL of its document, which is `document` unless the page has set another. The scripts in a
    /// page (`is_inline`) belong to it alone, so rare resources count as well.
    pub(super) fn take(
        &mut self,
        document: &str,
        strings: &[String],
        is_inline: bool,
    ) -> Vec<Need> {
        let mut found = Vec::new();
        for string in strings {
            if self.is_empty() {
                break;
            }
            let base = self.base.as_deref().unwrap_or(document);
            let Some(url) = resolve(base, string) else {
                continue;
            };
            let is_likely = |it: &PossibleNeed| is_inline || it.share >= LEAST_SHARE;
            if self.by_url.get(&url).is_some_and(is_likely)
                && let Some(named) = self.by_url.remove(&url)
            {
                self.left -= 1;
                found.push(named.need);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use tandem_preload::Kind;

    use super::*;

    const PAGE: &str = "http://a.test/dir/page";
    const MOST: usize = 32;

    fn possible(urls: &[(&str, f64)]) -> PossibleNeeds {
        let of = |(url, share): &(&str, f64)| PossibleNeed {
            need: Need {
                url: (*url).to_owned(),
                kind: Kind::Fetch,
                urgency: 3,
                anonymous: true,
                by_cors: true,
                referrer: None,
                via: None,
                frame: None,
                has_nonce: false,
            },
            share: *share,
        };
        PossibleNeeds::new(urls.iter().map(of).collect(), MOST)
    }

    fn take(needs: &mut PossibleNeeds, strings: &[&str], is_inline: bool) -> Vec<String> {
        let strings: Vec<String> = strings.iter().map(|it| (*it).to_owned()).collect();
        let taken = needs.take(PAGE, &strings, is_inline);
        taken.into_iter().map(|need| need.url).collect()
    }

    #[test]
    fn strings_name_known_resources_once() {
        let known = [("http://a.test/x.json", 0.4), ("http://b.test/y", 0.4)];
        let mut needs = possible(&known);
        assert_eq!(take(&mut needs, &["/other.json", "x.json"], false), [""; 0]);
        let strings = ["../x.json#top", "/x.json", "http://b.test/y"];
        assert_eq!(take(&mut needs, &strings, false), [known[0].0, known[1].0]);
        assert!(needs.is_empty());
    }

    #[test]
    fn base_of_the_page_resolves_strings() {
        let mut needs = possible(&[("http://a.test/base/x.json", 0.4)]);
        needs.set_base("http://a.test/base/");
        assert_eq!(take(&mut needs, &["x.json"], false).len(), 1);
    }

    #[test]
    fn rare_resources_count_in_scripts_of_the_page_alone() {
        let mut needs = possible(&[("http://a.test/x.json", LEAST_SHARE / 2.0)]);
        assert_eq!(take(&mut needs, &["/x.json"], false), [""; 0]);
        assert_eq!(take(&mut needs, &["/x.json"], true).len(), 1);
    }

    #[test]
    fn named_resources_are_bounded() {
        let urls: Vec<String> = (0..50).map(|at| format!("http://a.test/{at}")).collect();
        let known: Vec<(&str, f64)> = urls.iter().map(|url| (&**url, 1.0)).collect();
        let mut needs = possible(&known);
        let strings: Vec<&str> = urls.iter().map(|url| &**url).collect();
        assert_eq!(take(&mut needs, &strings, false).len(), MOST);
        assert!(needs.is_empty());
    }
}
