//! Facts that a User-Agent string reveals: whether it is a browser, a mobile one, and which one.
//!
//! Replays are compared with each other by these word lists. A changed word changes counts.

/// A browser's string contains one of these (lower case) ...
const BROWSERS: &[&str] = &[
    "firefox/",
    "fxios/",
    "chrome/",
    "crios/",
    "safari/",
    "msie ",
    "trident/",
    "opera",
    "opr/",
    "edge/",
    "edg/",
    "konqueror/",
    "netscape",
    "seamonkey/",
    "epiphany/",
    "camino/",
    "ucbrowser",
];
/// ... and none of these.
const MACHINES: &[&str] = &[
    "bot",
    "crawl",
    "spider",
    "slurp",
    "http:",
    "https:",
    "www.",
    "@",
    "curl",
    "wget",
    "python",
    "java/",
    "libwww",
    "perl",
    "php",
    "ruby",
    "go-http",
    "okhttp",
    "httpclient",
    "wordpress",
    "monitor",
    "preview",
    "feed",
    "scan",
    "check",
    "validator",
    "archive",
    "headless",
    "phantom",
    "favicon",
    "fetch",
    "mediapartners",
    "facebookexternalhit",
    "transcoder",
    "nutch",
    "apache",
];
const MOBILES: &[&str] = &[
    "mobile",
    "android",
    "iphone",
    "ipad",
    "ipod",
    "blackberry",
    "opera mini",
    "opera mobi",
    "windows phone",
    "symbian",
    "webos",
    "kindle",
    "silk/",
    "nokia",
];

/// Browser families with statistics of their own under *consider browser*.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Browser {
    /// Edge, old and new.
    Edge,
    /// Opera, old and new.
    Opera,
    /// Firefox, also on iOS.
    Firefox,
    /// Internet Explorer.
    InternetExplorer,
    /// Chrome, also on iOS.
    Chrome,
    /// Safari.
    Safari,
    /// Any other, and where the log has no User-Agent.
    #[default]
    Other,
}

impl Browser {
    /// How many families there are.
    pub const COUNT: usize = 7;

    fn of(agent: &str) -> Self {
        const WORDS: [(Browser, &[&str]); 6] = [
            (Browser::Edge, &["edge/", "edg/"]),
            (Browser::Opera, &["opera", "opr/"]),
            (Browser::Firefox, &["firefox/", "fxios/"]),
            (Browser::InternetExplorer, &["msie ", "trident/"]),
            (Browser::Chrome, &["chrome/", "crios/"]),
            (Browser::Safari, &["safari/"]),
        ];
        WORDS
            .into_iter()
            .find(|(_, words)| contains_any(agent, words))
            .map_or(Self::Other, |(browser, _)| browser)
    }
}

/// The properties of a client's software that the predictor uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agent {
    /// A browser known by name that does not call itself a machine as well.
    pub known: bool,
    /// On a phone or tablet.
    pub mobile: bool,
    /// Family.
    pub browser: Browser,
}

impl Agent {
    /// The value for logs without User-Agent: one known browser.
    pub const UNRECORDED: Self = Self {
        known: true,
        mobile: false,
        browser: Browser::Other,
    };

    /// Reads a User-Agent field.
    #[must_use]
    pub fn of(field: &[u8]) -> Self {
        let agent = String::from_utf8_lossy(field).to_ascii_lowercase();
        Self {
            known: contains_any(&agent, BROWSERS) && !contains_any(&agent, MACHINES),
            mobile: contains_any(&agent, MOBILES),
            browser: Browser::of(&agent),
        }
    }
}

fn contains_any(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word))
}

/// Returns whether the path of `url` ends in `/favicon.ico`, which browsers request at any time and
/// which disturbs learning.
#[must_use]
pub fn is_favicon(url: &[u8]) -> bool {
    url.split(|&byte| byte == b'?')
        .next()
        .is_some_and(|path| path.ends_with(b"/favicon.ico"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_that_names_itself_a_robot_is_one() {
        let chrome = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/87.0 Safari/537.36";
        assert_eq!(
            Agent::of(chrome.as_bytes()),
            Agent {
                known: true,
                mobile: false,
                browser: Browser::Chrome
            }
        );
        assert!(!Agent::of(format!("{chrome} (compatible; Googlebot/2.1)").as_bytes()).known);
        assert!(!Agent::of(b"-").known);
        let edge = Agent::of(format!("{chrome} Edg/87.0").as_bytes());
        assert_eq!(edge.browser, Browser::Edge);
        assert!(Agent::of(b"Opera/9.8 (Android; Opera Mini/7)").mobile);
    }

    #[test]
    fn favicon_is_told_by_its_path() {
        assert!(is_favicon(b"http://h/favicon.ico?v=2"));
        assert!(!is_favicon(b"/favicon.ico/x"));
        assert!(!is_favicon(b"favicon.ico"));
    }
}
