//! Facts that a URL alone reveals: its host, the kind of resource that it names, and the pages of
//! its kind.

use std::borrow::Cow;

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
        let name = path.rsplit('/').next().unwrap_or(path);
        let Some((stem, ending)) = name.rsplit_once('.') else {
            return if name.is_empty() {
                Self::Page
            } else {
                Self::Open
            };
        };
        if stem.is_empty() || ending.len() > 8 {
            return Self::Open;
        }
        match ending.to_ascii_lowercase().as_str() {
            "html" | "htm" | "xhtml" | "shtml" => Self::Page,
            "css" => Self::Style,
            "js" | "mjs" | "wasm" => Self::Script,
            "png" | "gif" | "jpg" | "jpeg" | "webp" | "svg" | "ico" | "bmp" | "avif" | "xbm"
            | "cur" => Self::Image,
            "woff" | "woff2" | "ttf" | "otf" | "eot" => Self::Font,
            "json" | "map" | "webmanifest" => Self::Data,
            "mp4" | "mp3" | "mpg" | "mpeg" | "avi" | "mov" | "wav" | "au" | "ogg" | "webm"
            | "zip" | "gz" | "tgz" | "tar" | "bz2" | "xz" | "rar" | "7z" | "exe" | "msi"
            | "dmg" | "iso" | "deb" | "rpm" | "apk" | "pdf" | "doc" | "docx" | "ppt" | "pptx"
            | "xls" | "xlsx" | "ps" | "txt" | "csv" | "xml" | "rss" | "atom" | "bin" | "jar"
            | "swf" | "dll" | "class" | "rtf" | "odt" | "epub" | "tex" | "c" | "h" | "log"
            | "md5" | "sig" | "asc" | "patch" | "diff" | "torrent" | "mid" | "midi" | "ra"
            | "ram" | "wmv" | "flv" | "m4a" | "flac" | "bak" | "sql" | "tif" | "tiff" | "psd" => {
                Self::Download
            }
            _ => Self::Open,
        }
    }

    /// Returns the kind that a response's media type shows, if it tells more than the path.
    #[must_use]
    pub fn of_media_type(media_type: &str) -> Option<Self> {
        let essence = media_type.split(';').next().unwrap_or(media_type).trim();
        // Nearly all servers write media types in lower case.
        let lower = match essence.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => Cow::Owned(essence.to_ascii_lowercase()),
            false => Cow::Borrowed(essence),
        };
        Some(match &*lower {
            "text/html" | "application/xhtml+xml" => return None,
            "text/css" => Self::Style,
            "text/javascript"
            | "application/javascript"
            | "application/x-javascript"
            | "application/wasm" => Self::Script,
            "application/json" => Self::Data,
            other if other.starts_with("image/") => Self::Image,
            other if other.starts_with("font/") || other.contains("font") => Self::Font,
            other if other.starts_with("audio/") || other.starts_with("video/") => Self::Download,
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
    let url = url.split('#').next().unwrap_or(url);
    let path_at = match url.find("://") {
        Some(at) if !url[..at].contains(['/', '?']) => url[at + 3..]
            .find(['/', '?'])
            .map_or(url.len(), |end| at + 3 + end),
        _ => 0,
    };
    let (site, rest) = url.split_at(path_at);
    let (path, query) = match rest.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (rest, None),
    };
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
    let mut in_digits = false;
    for c in text.chars() {
        let digit = c.is_ascii_digit();
        if !digit {
            out.push(c);
        } else if !in_digits {
            out.push('0');
        }
        in_digits = digit;
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(
            parts("https://h?q"),
            Parts {
                site: "https://h",
                path: "/",
                query: Some("q")
            }
        );
    }

    #[test]
    fn pages_of_a_kind_share_a_template() {
        let of = |url| template(&parts(url));
        assert_eq!(of("/2015/03/19/spark-guide/"), of("/2016/1/2/other/"));
        assert_eq!(
            of("/shuttle/missions/sts-71/mission.html"),
            "/shuttle/missions/sts-0/*.html"
        );
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
        ] {
            assert_eq!(Kind::of_path(path), kind, "{path}");
        }
        assert_eq!(Kind::of_media_type("image/png"), Some(Kind::Image));
        assert_eq!(Kind::of_media_type("text/html; charset=utf-8"), None);
    }
}
