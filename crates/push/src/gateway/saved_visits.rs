//! The visits of one user as a text, for a file that only this user reads.
//!
//! ```text
//!  tandem visits 1
//!  page POLICY TIME URL
//!  need KIND URGENCY FLAGS UNTIL REFERRER VIA FRAME URL
//!  end
//! ```
//!
//! Each page precedes its used needs, and the page that was visited last comes last. `TIME` is the
//! time of this visit, and `UNTIL` the end of the copy's freshness, both in seconds since 1970. `-`
//! stands for a value that is missing. The flags are `a` for an anonymous need, `c` for one by
//! CORS, and `v` for a copy with a validator. A file that was cut lacks the last line.
//!
//! All URLs are of plain HTTP and without user information. Neither the text nor its parser admits
//! others. The text has no URL of an onion service, also if transparent Tor hides that service from
//! the client's options. The parser skips those of earlier programs.

use std::fmt::Write as _;
use std::sync::Arc;

use tandem_http::onion;
use tandem_preload::{Kind, Need, Referrer, resolve, split};

use super::revisits::{MAX_BYTES, MAX_PAGES, Revisits, UsedNeed};
use crate::response_rules::KeptCopy;

/// The name of the format.
const NAME: &str = "tandem visits ";

/// The version of the format.
const VERSION: u32 = 1;

/// The last line.
const END: &str = "end";

/// The largest text that is written or read, in bytes. The URLs of documents that make requests are
/// not in the bound of the pages.
pub const MAX_TEXT: usize = 4 * MAX_BYTES;

const KINDS: [(&str, Kind); 8] = [
    ("document", Kind::Document),
    ("style", Kind::Style),
    ("script", Kind::Script),
    ("image", Kind::Image),
    ("font", Kind::Font),
    ("media", Kind::Media),
    ("fetch", Kind::Fetch),
    ("other", Kind::Other),
];

const POLICIES: [(&str, Referrer); 5] = [
    ("none", Referrer::None),
    ("own", Referrer::Own),
    ("origin", Referrer::Origin),
    ("origin-to-others", Referrer::OriginToOthers),
    ("whole", Referrer::Whole),
];

/// The reason for which visits cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VisitsError {
    /// Another program wrote the text.
    #[error("this is no file of visited pages")]
    Foreign,
    /// A newer program wrote the text in another format.
    #[error("a newer version of this program wrote the visited pages, in format {0}")]
    Newer(u32),
    /// A line is not valid, or the text is too long or incomplete.
    #[error("the visited pages are damaged at line {0}")]
    Damaged(usize),
}

impl Revisits {
    /// Returns the pages with their used needs. The latest pages precede others if the text would
    /// become too long.
    pub(super) fn to_text(&self) -> String {
        let pages: Vec<_> = self.iter().collect();
        let mut blocks = Vec::new();
        let first = format!("{NAME}{VERSION}\n");
        let mut length = first.len() + END.len() + 1;
        for (url, visit) in pages.into_iter().rev() {
            let used = visit.needs.iter().filter(|it| it.is_used);
            let lines: String = used.filter_map(need_line).collect();
            // The next process would not know that the needs wait for the head.
            if lines.is_empty() || !is_kept(url) || visit.changes_cookies() {
                continue;
            }
            let policy = name_of(&POLICIES, visit.policy);
            let block = format!("page {policy} {} {url}\n{lines}", visit.time);
            if length + block.len() <= MAX_TEXT {
                length += block.len();
                blocks.push(block);
            }
        }
        blocks.reverse();
        format!("{first}{}{END}\n", blocks.concat())
    }

    /// Reads a text of [`Self::to_text`].
    pub(super) fn read(text: &str) -> Result<Self, VisitsError> {
        let mut lines = text.lines().enumerate();
        let first = lines.next().map_or("", |(_, line)| line);
        let version = first.strip_prefix(NAME).ok_or(VisitsError::Foreign)?;
        // A later format may have a minor number.
        let digits = version.split('.').next().unwrap_or_default();
        match digits.parse() {
            Ok(VERSION) if digits == version => {}
            Ok(newer) if newer > VERSION => return Err(VisitsError::Newer(newer)),
            _ => return Err(VisitsError::Damaged(1)),
        }
        if text.len() > MAX_TEXT {
            return Err(VisitsError::Damaged(1));
        }
        let mut revisits = Self::default();
        let mut page = None;
        let mut pages = 0;
        for (number, line) in lines {
            let damaged = || VisitsError::Damaged(number + 1);
            if line == END {
                revisits.take_change();
                revisits.retain(|url| !is_onion(url));
                return Ok(revisits);
            }
            match (line.split_once(' '), page) {
                (Some(("page", rest)), _) => {
                    pages += 1;
                    let read = read_page(rest).filter(|_| pages <= MAX_PAGES);
                    let (policy, time, url) = read.ok_or_else(damaged)?;
                    revisits.set_time(time);
                    page = Some((url, policy));
                }
                (Some(("need", rest)), Some((url, policy))) => {
                    let UsedNeed { need, copy, .. } = read_need(rest).ok_or_else(damaged)?;
                    revisits.note_need(url, policy, &need);
                    revisits.note_use(url, &need.url, true);
                    revisits.note_copy(url, &need.url, copy);
                }
                _ => return Err(damaged()),
            }
        }
        Err(VisitsError::Damaged(text.lines().count()))
    }
}

/// Returns the name of a value.
fn name_of<T: PartialEq>(names: &[(&'static str, T)], value: T) -> &'static str {
    let found = names.iter().find(|(_, own)| *own == value);
    found.map_or("-", |(name, _)| name)
}

/// Returns the value with a name.
fn value_of<T: Copy>(names: &[(&str, T)], name: &str) -> Option<T> {
    let found = names.iter().find(|(own, _)| *own == name);
    found.map(|(_, value)| *value)
}

/// Returns whether a URL of plain HTTP is one that the scanner of pages returns.
fn is_resource(url: &str) -> bool {
    is_page(url) && resolve(url, url).is_some_and(|normal| normal == url)
}

/// Returns whether a URL can be that of a page over plain HTTP. Browsers choose its form.
fn is_page(url: &str) -> bool {
    let is_plain =
        |(scheme, authority, _): (&str, &str, &str)| scheme == "http" && !authority.contains('@');
    split(url).is_some_and(is_plain) && url.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns whether the text may have the URL of a page.
fn is_kept(url: &str) -> bool {
    is_page(url) && !is_onion(url)
}

/// Returns whether the host of a URL is an onion service.
fn is_onion(url: &str) -> bool {
    let authority = split(url).map_or("", |(_, authority, _)| authority);
    let host = authority.split(':').next().unwrap_or_default();
    onion::is_onion(host)
}

fn need_line(used: &UsedNeed) -> Option<String> {
    let UsedNeed { need, copy, .. } = used;
    let documents = [&need.via, &need.frame];
    let documents = documents.map(|url| url.as_deref().unwrap_or("-"));
    let are_documents = documents.iter().all(|url| *url == "-" || is_kept(url));
    // The format has no name for objects, and earlier programs would refuse a new one.
    let is_object = need.kind == Kind::Object;
    if !is_resource(&need.url) || is_onion(&need.url) || !are_documents || is_object {
        return None;
    }
    let mut line = format!("need {} {} ", name_of(&KINDS, need.kind), need.urgency);
    let flags = [
        (need.anonymous, 'a'),
        (copy.is_some_and(|copy| copy.has_validator), 'v'),
        (need.by_cors, 'c'),
    ];
    let set: String = flags.iter().filter(|it| it.0).map(|it| it.1).collect();
    line.push_str(if set.is_empty() { "-" } else { &set });
    match copy {
        Some(copy) => {
            let _ = write!(line, " {} ", copy.until);
        }
        None => line.push_str(" - "),
    }
    line.push_str(match need.referrer {
        Some(policy) => name_of(&POLICIES, policy),
        None => "-",
    });
    let [via, frame] = documents;
    let _ = writeln!(line, " {via} {frame} {}", need.url);
    Some(line)
}

fn read_page(rest: &str) -> Option<(Referrer, u64, &str)> {
    let (policy, rest) = rest.split_once(' ')?;
    let (time, url) = rest.split_once(' ')?;
    let policy = value_of(&POLICIES, policy)?;
    is_page(url).then_some((policy, time.parse().ok()?, url))
}

fn read_need(rest: &str) -> Option<UsedNeed> {
    let fields: Vec<&str> = rest.split(' ').collect();
    let [kind, urgency, flags, until, referrer, via, frame, url] = fields.try_into().ok()?;
    let document = |url: &str| match url {
        "-" => Some(None),
        url => is_page(url).then(|| Some(Arc::from(url))),
    };
    let [is_anonymous, has_validator, is_by_cors] =
        ['a', 'v', 'c'].map(|flag| flags.contains(flag));
    let until = match until {
        "-" => None,
        until => Some(until.parse().ok()?),
    };
    let need = Need {
        url: Some(url).filter(|url| is_resource(url))?.to_owned(),
        kind: value_of(&KINDS, kind)?,
        urgency: urgency.parse().ok().filter(|urgency| *urgency < 8)?,
        anonymous: is_anonymous,
        // Earlier programs have not written it.
        by_cors: is_anonymous || is_by_cors,
        referrer: match referrer {
            "-" => None,
            policy => Some(value_of(&POLICIES, policy)?),
        },
        via: document(via)?,
        frame: document(frame)?,
        has_nonce: false,
    };
    Some(UsedNeed {
        need,
        is_used: true,
        is_learned: false,
        named: 0,
        copy: until.map(|until| KeptCopy {
            until,
            has_validator,
        }),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn need(url: &str) -> Need {
        Need {
            url: url.to_owned(),
            kind: Kind::Font,
            urgency: 3,
            anonymous: true,
            by_cors: true,
            referrer: Some(Referrer::Own),
            via: Some("http://a.test/s.css".into()),
            frame: None,
            has_nonce: false,
        }
    }

    fn visited(page: &str, url: &str, copy: Option<KeptCopy>) -> Revisits {
        let mut revisits = Revisits::default();
        revisits.set_time(5);
        revisits.note_need(page, Referrer::Origin, &need(url));
        revisits.note_need(page, Referrer::Origin, &need("http://a.test/unused"));
        revisits.note_use(page, url, true);
        revisits.note_copy(page, url, copy);
        revisits
    }

    #[test]
    fn saved_visits_hold_used_needs() {
        let copy = Some(KeptCopy {
            until: 7,
            has_validator: true,
        });
        let text = visited("http://a.test/?q=|", "http://a.test/f", copy).to_text();
        let expected = "tandem visits 1\n\
                        page origin 5 http://a.test/?q=|\n\
                        need font 3 avc 7 own http://a.test/s.css - http://a.test/f\n\
                        end\n";
        assert_eq!(text, expected);
        let mut again = Revisits::read(&text).expect("it was written");
        assert_eq!(again.to_text(), text);
        assert!(!again.take_change());
        let (policy, needs) = again.visit("http://a.test/?q=|").expect("a visit");
        assert_eq!(policy, Referrer::Origin);
        assert_eq!(needs, [(need("http://a.test/f"), copy)]);
    }

    #[test]
    fn saved_visits_leave_strange_urls_out() {
        for (page, url) in [
            ("http://a.test/ b", "http://a.test/f"),
            ("page", "http://a.test/f"),
            ("https://a.test/", "http://a.test/f"),
            ("http://u:p@a.test/", "http://a.test/f"),
            ("http://a.test/", "http://a.test/ f"),
            ("http://a.test/", "ftp://a.test/f"),
            ("http://a.test/", "https://a.test/f"),
            ("http://a.test/", "http://u:p@a.test/f"),
            ("http://a.onion/", "http://a.test/f"),
            ("http://a.onion./", "http://a.test/f"),
            ("http://www.a.ONION:8080/", "http://a.test/f"),
            ("http://a.test/", "http://a.onion/f"),
        ] {
            let text = visited(page, url, None).to_text();
            assert_eq!(text, "tandem visits 1\nend\n", "{page} {url}");
        }
    }

    #[test]
    fn saved_visits_leave_onion_documents_out() {
        for (via, frame) in [
            (Some("http://a.onion/s.css"), None),
            (None, Some("http://a.onion/")),
        ] {
            let need = Need {
                via: via.map(Into::into),
                frame: frame.map(Into::into),
                has_nonce: false,
                ..need("http://a.test/f")
            };
            let mut revisits = Revisits::default();
            revisits.note_need("http://a.test/", Referrer::Origin, &need);
            revisits.note_use("http://a.test/", &need.url, true);
            assert_eq!(revisits.to_text(), "tandem visits 1\nend\n");
        }
        let others = visited("http://onion.test/", "http://a.test/onion", None).to_text();
        assert!(others.contains("http://onion.test/"), "{others}");
    }

    #[test]
    fn visits_of_onion_services_are_skipped() {
        let text = "tandem visits 1\n\
                    page none 5 http://a.onion/\n\
                    need font 3 - - - - - http://a.onion/f\n\
                    page none 5 http://a.test/\n\
                    need font 3 - - - - - http://a.onion/f\n\
                    need font 3 - - - - - http://a.test/f\n\
                    end\n";
        let mut read = Revisits::read(text).expect("an earlier program wrote it");
        assert!(read.visit("http://a.onion/").is_none());
        assert!(read.take_change(), "the file is written again");
        let expected: Vec<_> = text.lines().filter(|it| !it.contains("onion")).collect();
        assert_eq!(read.to_text(), expected.join("\n") + "\n");
    }

    #[test]
    fn saved_visits_are_bounded() {
        let long = |number: usize| Arc::from(format!("http://a.test/{number}").repeat(600));
        let mut revisits = Revisits::default();
        for number in 0..2_000 {
            let page = format!("http://a.test/{}", number / 500);
            let need = Need {
                via: Some(long(number)),
                ..need(&format!("http://a.test/{number}.png"))
            };
            revisits.note_need(&page, Referrer::None, &need);
            revisits.note_use(&page, &need.url, true);
        }
        let text = revisits.to_text();
        assert!(text.len() <= MAX_TEXT, "{}", text.len());
        assert!(Revisits::read(&text).is_ok());
    }

    #[test]
    fn damaged_visits_are_refused() {
        let head = "tandem visits 1\n";
        let page = "page none 5 http://a.test/\n";
        for (text, expected) in [
            (String::new(), VisitsError::Foreign),
            ("else".into(), VisitsError::Foreign),
            ("tandem visits 2\nend\n".into(), VisitsError::Newer(2)),
            ("tandem visits 2.1\nend\n".into(), VisitsError::Newer(2)),
            ("tandem visits 1.1\nend\n".into(), VisitsError::Damaged(1)),
            ("tandem visits 0\nend\n".into(), VisitsError::Damaged(1)),
            ("tandem visits \nend\n".into(), VisitsError::Damaged(1)),
            (head.into(), VisitsError::Damaged(1)),
            (format!("{head}{page}"), VisitsError::Damaged(2)),
            (format!("{head}need\nend\n"), VisitsError::Damaged(2)),
            (
                format!("{head}page some 5 http://a.test/\nend\n"),
                VisitsError::Damaged(2),
            ),
            (
                format!("{head}page none 5 a.test\nend\n"),
                VisitsError::Damaged(2),
            ),
            (
                format!("{head}page none http://a.test/\nend\n"),
                VisitsError::Damaged(2),
            ),
            (
                format!("{head}page none 5 https://a.test/\nend\n"),
                VisitsError::Damaged(2),
            ),
            (
                format!("{head}{page}need font 3 - - - - - https://a.test/f\nend\n"),
                VisitsError::Damaged(3),
            ),
            (
                format!("{head}{page}need font 3 - - - http://u@a.test/ - http://a.test/f\nend\n"),
                VisitsError::Damaged(3),
            ),
            (
                format!("{head}need font 3 - - - - - http://a.test/f\nend\n"),
                VisitsError::Damaged(2),
            ),
            (
                format!("{head}{page}need font 8 - - - - - http://a.test/f\nend\n"),
                VisitsError::Damaged(3),
            ),
            (
                format!("{head}{page}need font 3 - - - - - http://a.test/../f\nend\n"),
                VisitsError::Damaged(3),
            ),
            (
                format!("{head}{}end\n", page.repeat(65)),
                VisitsError::Damaged(66),
            ),
            (
                format!("{head}{}", "x".repeat(MAX_TEXT)),
                VisitsError::Damaged(1),
            ),
        ] {
            assert_eq!(Revisits::read(&text).err(), Some(expected), "{text:.60}");
        }
    }

    proptest! {
        #[test]
        fn visits_survive_any_line(line in "(page|need)( [a-z0-9:/.-]{0,9}){0,9}", cut in 0..90_usize) {
            let text = visited("http://a.test/", "http://a.test/f", None).to_text();
            let text = text.replace("end\n", &format!("{line}\nend\n"));
            for text in [&text[..], &text[..cut.min(text.len())]] {
                if let Ok(read) = Revisits::read(text) {
                    let again = read.to_text();
                    let twice = Revisits::read(&again).map(|read| read.to_text());
                    prop_assert_eq!(twice, Ok(again));
                }
            }
        }
    }
}
