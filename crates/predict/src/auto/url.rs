//! Facts that a URL alone reveals: its host, the kind of resource that it names, and the pages of
//! its kind.

use std::borrow::Cow;

/// The longest ending of a file's name that shows its kind, in bytes.
const LONGEST_ENDING: usize = 8;

/// The kind of a resource, as far as its URL, its media type or the request's destination reveal
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A document to look at: `.html`, a directory.
    Page,
    /// A path without a telling ending, or a script on the server: a page or a call made by one.
    Open,
    /// A style sheet.
    Style,
    /// A script.
    Script,
    /// An image.
    Image,
    /// A font.
    Font,
    /// Data fetched by a script.
    Data,
    /// Sound, film, an archive, a document to be stored: asked for on purpose, too large to guess
    /// at.
    Download,
}

impl Kind {
    /// All kinds in order.
    pub const ALL: [Self; 8] = [
        Self::Page,
        Self::Open,
        Self::Style,
        Self::Script,
        Self::Image,
        Self::Font,
        Self::Data,
        Self::Download,
    ];

    /// The number of kinds.
    pub const COUNT: usize = Self::ALL.len();

    /// Returns whether pages load such a resource on their own.
    #[must_use]
    pub fn is_asset(self) -> bool {
        matches!(
            self,
            Self::Style | Self::Script | Self::Image | Self::Font | Self::Data
        )
    }

    /// Returns the kind that the ending of a path shows.
    #[must_use]
    pub fn of_path(path: &str) -> Self {
        let name = match memchr::memrchr(b'/', path.as_bytes()) {
            Some(slash) => &path[slash + 1..],
            None => path,
        };
        let Some(dot) = memchr::memrchr(b'.', name.as_bytes()) else {
            return if name.is_empty() {
                Self::Page
            } else {
                Self::Open
            };
        };
        let (stem, letters) = (&name[..dot], &name[dot + 1..]);
        // Patterns of bytes are compared byte by byte, and most URLs are new.
        let mut lower = [0; LONGEST_ENDING];
        if stem.is_empty() || letters.len() > lower.len() {
            return Self::Open;
        }
        let ending = &mut lower[..letters.len()];
        ending.copy_from_slice(letters.as_bytes());
        ending.make_ascii_lowercase();
        match &ending[..] {
            b"html" | b"htm" | b"xhtml" | b"shtml" => Self::Page,
            b"css" => Self::Style,
            b"js" | b"mjs" | b"wasm" => Self::Script,
            b"png" | b"gif" | b"jpg" | b"jpeg" | b"webp" | b"svg" | b"ico" | b"bmp" | b"avif"
            | b"xbm" | b"cur" => Self::Image,
            b"woff" | b"woff2" | b"ttf" | b"otf" | b"eot" => Self::Font,
            b"json" | b"map" | b"webmanifest" => Self::Data,
            b"mp4" | b"mp3" | b"mpg" | b"mpeg" | b"avi" | b"mov" | b"wav" | b"au" | b"ogg"
            | b"webm" | b"zip" | b"gz" | b"tgz" | b"tar" | b"bz2" | b"xz" | b"rar" | b"7z"
            | b"exe" | b"msi" | b"dmg" | b"iso" | b"deb" | b"rpm" | b"apk" | b"pdf" | b"doc"
            | b"docx" | b"ppt" | b"pptx" | b"xls" | b"xlsx" | b"ps" | b"txt" | b"csv" | b"xml"
            | b"rss" | b"atom" | b"bin" | b"jar" | b"swf" | b"dll" | b"class" | b"rtf" | b"odt"
            | b"epub" | b"tex" | b"c" | b"h" | b"log" | b"md5" | b"sig" | b"asc" | b"patch"
            | b"diff" | b"torrent" | b"mid" | b"midi" | b"ra" | b"ram" | b"wmv" | b"flv"
            | b"m4a" | b"flac" | b"bak" | b"sql" | b"tif" | b"tiff" | b"psd" => Self::Download,
            _ => Self::Open,
        }
    }

    /// Returns the kind that a response's media type shows, if it tells more than the path.
    #[must_use]
    pub fn of_media_type(media_type: &[u8]) -> Option<Self> {
        let bytes = media_type;
        let end = memchr::memchr(b';', bytes).unwrap_or(bytes.len());
        let essence = bytes[..end].trim_ascii();
        // Nearly all servers write media types in lower case. Without a way out, the loop runs on
        // many bytes at once.
        let has_upper = |found: bool, byte: &u8| found | byte.is_ascii_uppercase();
        let lower = match essence.iter().fold(false, has_upper) {
            true => Cow::Owned(essence.to_ascii_lowercase()),
            false => Cow::Borrowed(essence),
        };
        let name_at = memchr::memchr(b'/', &lower).map_or(lower.len(), |slash| slash + 1);
        Some(match lower.split_at(name_at) {
            (b"text/", b"html") | (b"application/", b"xhtml+xml") => return None,
            (b"text/", b"css") => Self::Style,
            (b"text/", b"javascript")
            | (b"application/", b"javascript" | b"x-javascript" | b"wasm") => Self::Script,
            (b"application/", b"json") => Self::Data,
            (b"image/", _) => Self::Image,
            (b"font/", _) => Self::Font,
            _ if has_font(&lower) => Self::Font,
            (b"audio/" | b"video/", _) => Self::Download,
            _ => return None,
        })
    }

    /// Returns the kind that the request's `Sec-Fetch-Dest` shows.
    #[must_use]
    pub fn of_destination(destination: &str) -> Option<Self> {
        Some(match destination {
            "document" => Self::Page,
            "style" => Self::Style,
            "script" | "worker" | "sharedworker" | "serviceworker" => Self::Script,
            "image" => Self::Image,
            "font" => Self::Font,
            "empty" | "manifest" | "iframe" | "frame" => Self::Data,
            "audio" | "video" | "track" | "embed" | "object" => Self::Download,
            _ => return None,
        })
    }
}

/// Returns whether a media type in lower case has the word `font`.
fn has_font(media_type: &[u8]) -> bool {
    memchr::memchr_iter(b'f', media_type).any(|at| media_type[at..].starts_with(b"font"))
}

/// The parts of a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts<'a> {
    /// The scheme, host and port, or nothing for a path.
    pub site: &'a str,
    /// The path, `/` if it is empty.
    pub path: &'a str,
    /// The query without its question mark.
    pub query: Option<&'a str>,
}

/// Splits a URL into its parts. Text that is no absolute URL counts as a path.
///
/// The crate `url` does not fit: access logs hold paths without a host, and its normalisation would
/// allocate for each response and change the recorded figures.
#[must_use]
pub fn parts(url: &str) -> Parts<'_> {
    let bytes = url.as_bytes();
    // All these bytes are characters, so the text can be cut there.
    let mark = memchr::memchr2(b'?', b'#', bytes);
    let query_at = mark.filter(|&at| bytes[at] == b'?');
    let end = match query_at {
        Some(at) => memchr::memchr(b'#', &bytes[at..]).map(|fragment| at + fragment),
        None => mark,
    };
    let url = &url[..end.unwrap_or(url.len())];
    let named = &bytes[..query_at.unwrap_or(url.len())];
    // The slashes of `://` are the first ones of an absolute URL.
    let host_at = memchr::memchr(b'/', named)
        .filter(|&slash| named[slash..].starts_with(b"//") && named[..slash].ends_with(b":"))
        .map(|slash| slash + 2);
    let path_at = host_at.map_or(0, |host| {
        let path = memchr::memchr(b'/', &named[host..]);
        path.map_or(named.len(), |path| host + path)
    });
    let (site, path) = url[..named.len()].split_at(path_at);
    let query = query_at.map(|at| &url[at + 1..]);
    Parts {
        site,
        path: if path.is_empty() { "/" } else { path },
        query,
    }
}

/// Returns the template of a page: its directories with masked digits, the ending of its last name,
/// and the keys of its query. Pages of one template tend to need the same resources.
#[must_use]
pub fn template(parts: &Parts<'_>) -> String {
    let mut template = String::with_capacity(parts.site.len() + parts.path.len());
    template.push_str(parts.site);
    let path = parts.path.strip_suffix('/').unwrap_or(parts.path);
    let (directories, name) = path.rsplit_once('/').unwrap_or(("", path));
    mask_digits(directories, &mut template);
    template.push('/');
    if !name.is_empty() {
        template.push('*');
        if let Some((_, ending)) = name
            .rsplit_once('.')
            .filter(|(_, ending)| ending.len() <= 5)
        {
            template.push('.');
            template.push_str(ending);
        }
    }
    if !name.is_empty() && parts.path.len() > path.len() {
        template.push('/');
    }
    for (at, pair) in parts
        .query
        .into_iter()
        .flat_map(|query| query.split('&'))
        .take(8)
        .enumerate()
    {
        template.push(if at == 0 { '?' } else { '&' });
        template.push_str(pair.split('=').next().unwrap_or(pair));
    }
    template
}

/// Copies `text`, with each run of digits as one `0`.
fn mask_digits(text: &str, out: &mut String) {
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, digits) = rest.split_at(at);
        out.push_str(before);
        out.push('0');
        rest = digits.trim_start_matches(|c: char| c.is_ascii_digit());
    }
    out.push_str(rest);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        assert_eq!(
            parts("http://h:8/a?b#c"),
            Parts {
                site: "http://h:8",
                path: "/a",
                query: Some("b")
            }
        );
        assert_eq!(
            parts("https://h"),
            Parts {
                site: "https://h",
                path: "/",
                query: None
            }
        );
        assert_eq!(
            parts("/go?to=http://x/"),
            Parts {
                site: "",
                path: "/go",
                query: Some("to=http://x/")
            }
        );
        let sites = [
            ("a://b", "a://b"),
            ("://", "://"),
            ("//h/a", ""),
            ("a/b://c", ""),
            ("?://", ""),
            ("a:/b", ""),
            ("", ""),
        ];
        for (url, site) in sites {
            assert_eq!(parts(url).site, site, "{url}");
        }
        assert_eq!(
            parts("https://h?q"),
            Parts {
                site: "https://h",
                path: "/",
                query: Some("q")
            }
        );
    }

    proptest! {
        #[test]
        fn parts_make_up_the_url(url in "(https?|a)?[:/?#.b\u{e9}]{0,12}") {
            let before_fragment = url.split('#').next().unwrap_or_default();
            let (named, query) = match before_fragment.split_once('?') {
                Some((named, query)) => (named, Some(query)),
                None => (before_fragment, None),
            };
            let site = match named.split_once('/') {
                Some((scheme, rest)) if scheme.ends_with(':') && rest.starts_with('/') => {
                    let host = rest[1..].split('/').next().unwrap_or_default();
                    &named[..scheme.len() + 2 + host.len()]
                }
                _ => "",
            };
            let path = match &named[site.len()..] {
                "" => "/",
                path => path,
            };
            prop_assert_eq!(parts(&url), Parts { site, path, query });
        }
    }

    #[test]
    fn pages_of_a_kind_share_a_template() {
        let of = |url| template(&parts(url));
        assert_eq!(of("/2015/03/19/spark-guide/"), of("/2016/1/2/other/"));
        assert_eq!(
            of("/shuttle/missions/sts-71/mission.html"),
            "/shuttle/missions/sts-0/*.html"
        );
        assert_eq!(of("/1a22\u{e9}3/456/b"), "/0a0\u{e9}0/0/*");
        assert_ne!(of("/a"), of("/a/"));
        assert_eq!(of("http://h/?p=7&x=1"), "http://h/?p&x");
        assert_eq!(of("/"), "/");
    }

    #[test]
    fn kinds() {
        for (path, kind) in [
            ("/", Kind::Page),
            ("/a/index.html", Kind::Page),
            ("/a", Kind::Open),
            ("/a.php", Kind::Open),
            ("/v1.2/users", Kind::Open),
            ("/x/JQUERY.MIN.JS", Kind::Script),
            ("/film.mpg", Kind::Download),
            ("/a.WOFF2", Kind::Font),
            ("/.css", Kind::Open),
            ("/a.\u{e9}", Kind::Open),
        ] {
            assert_eq!(Kind::of_path(path), kind, "{path}");
        }
        for (media_type, kind) in [
            ("image/png", Some(Kind::Image)),
            ("Image/PNG ; a=b", Some(Kind::Image)),
            ("text/css;charset=utf-8", Some(Kind::Style)),
            ("application/x-javascript", Some(Kind::Script)),
            ("application/json", Some(Kind::Data)),
            ("font/woff2", Some(Kind::Font)),
            ("application/x-font-ttf", Some(Kind::Font)),
            ("application/vnd.ms-fontobject", Some(Kind::Font)),
            ("video/mp4", Some(Kind::Download)),
            ("audio/ogg", Some(Kind::Download)),
            ("application/octet-stream", None),
            ("text/html; charset=utf-8", None),
            ("application/xhtml+xml", None),
            ("a/fofon", None),
            ("image", None),
            ("font", Some(Kind::Font)),
            ("", None),
        ] {
            assert_eq!(
                Kind::of_media_type(media_type.as_bytes()),
                kind,
                "{media_type}"
            );
        }
    }
}
