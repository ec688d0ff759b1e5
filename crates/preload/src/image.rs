//! Which of several images a browser takes: `srcset` and `sizes` (HTML section 4.8.4),
//! `image-set()` (CSS Images 4).

use super::media::{Viewport, length, matches, split_top};

/// Image formats that a browser shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Formats {
    pub(super) avif: bool,
    pub(super) webp: bool,
    pub(super) jxl: bool,
}

impl Formats {
    /// Returns true if the browser shows images of this media type; an absent type may be any.
    pub(super) fn shows(self, media_type: &str) -> bool {
        let essence = media_type
            .split(';')
            .next()
            .unwrap_or("")
            .trim()
            .to_ascii_lowercase();
        match essence.as_str() {
            "image/avif" => self.avif,
            "image/webp" => self.webp,
            "image/jxl" => self.jxl,
            ""
            | "image/jpeg"
            | "image/jpg"
            | "image/pjpeg"
            | "image/png"
            | "image/x-png"
            | "image/apng"
            | "image/gif"
            | "image/svg+xml"
            | "image/bmp"
            | "image/x-icon"
            | "image/vnd.microsoft.icon" => true,
            _ => false,
        }
    }
}

/// The alternatives that an element offers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer<'a> {
    /// `src`.
    pub(super) plain: &'a str,
    /// `srcset`.
    pub(super) set: &'a str,
    /// `sizes`.
    pub(super) sizes: &'a str,
    /// `width` in pixels, which `sizes=auto` goes by.
    pub(super) width: Option<f32>,
}

/// A URL and the number of image pixels per CSS pixel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) url: &'a str,
    pub(super) density: f32,
}

/// The URL that Chromium loads.
pub(super) fn choose<'a>(offer: Offer<'a>, viewport: Viewport) -> Option<&'a str> {
    let plain = offer.plain.trim_matches(|c: char| c <= ' ');
    if offer.set.is_empty() {
        return (!plain.is_empty()).then_some(plain);
    }
    let mut candidates = Vec::new();
    let mut by_width = false;
    let mut size = None;
    for (url, descriptor) in Set(offer.set) {
        let density = match descriptor {
            Descriptor::Density(density) => density,
            Descriptor::Width(width) => {
                by_width = true;
                width / *size.get_or_insert_with(|| slot_width(offer, viewport))
            }
        };
        candidates.push(Candidate { url, density });
    }
    if !by_width && !plain.is_empty() {
        candidates.push(Candidate {
            url: plain,
            density: 1.0,
        });
    }
    nearest(candidates, viewport.ratio)
}

/// The candidate that suits a screen of `ratio` device pixels per CSS pixel: the lowest density
/// that is enough, or the one below it where that is nearer (by geometric mean). Of equals the
/// first.
pub(super) fn nearest(mut candidates: Vec<Candidate<'_>>, ratio: f32) -> Option<&str> {
    candidates.sort_by(|a, b| a.density.total_cmp(&b.density));
    candidates.dedup_by(|later, first| later.density.total_cmp(&first.density).is_eq());
    let enough = candidates
        .iter()
        .position(|candidate| candidate.density >= ratio);
    let Some(enough) = enough else {
        return candidates.last().map(|candidate| candidate.url);
    };
    let below = enough.checked_sub(1).map(|at| candidates[at]);
    let chosen = match below {
        Some(below)
            if ratio > 1.0 && ratio < (below.density * candidates[enough].density).sqrt() =>
        {
            below
        }
        _ => candidates[enough],
    };
    Some(chosen.url)
}

/// The width that the image is going to have, in CSS pixels, by `sizes`.
fn slot_width(offer: Offer<'_>, viewport: Viewport) -> f32 {
    let sizes = offer.sizes.to_ascii_lowercase();
    for size in split_top(&sizes, ',') {
        let size = size.trim();
        if size == "auto" {
            return offer.width.unwrap_or(viewport.width);
        }
        let at = last_component(size);
        let (condition, width) = size.split_at(at);
        let Some(width) = length(width, viewport) else {
            continue;
        };
        if condition.is_empty() || matches(condition, viewport) == Some(true) {
            return width.max(0.0);
        }
    }
    viewport.width
}

/// Returns the offset at which the last space-separated component begins. A function with its
/// arguments is one component.
fn last_component(size: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    let mut after_group = false;
    for (index, byte) in size.bytes().enumerate() {
        match byte {
            b'(' => {
                // Right after a word this is a function; otherwise, or after a group, it is a
                // separate component.
                if depth == 0 && after_group {
                    at = index;
                }
                depth += 1;
            }
            b')' => depth = depth.saturating_sub(1),
            b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => at = index + 1,
            _ => {
                if depth == 0 && after_group {
                    at = index;
                }
            }
        }
        after_group = depth == 0 && byte == b')';
    }
    at
}

enum Descriptor {
    Width(f32),
    Density(f32),
}

/// The image candidates of a `srcset` value; those with descriptors that mean nothing are left out.
struct Set<'a>(&'a str);

impl<'a> Iterator for Set<'a> {
    type Item = (&'a str, Descriptor);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let rest = self
                .0
                .trim_start_matches(|c: char| c.is_ascii_whitespace() || c == ',');
            let end = rest
                .find(|c: char| c.is_ascii_whitespace())
                .unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            let url = word.trim_end_matches(',');
            if url.is_empty() {
                return None;
            }
            if url.len() < word.len() {
                self.0 = after;
                return Some((url, Descriptor::Density(1.0)));
            }
            let descriptors = split_top(after, ',').next().unwrap_or("");
            self.0 = &after[descriptors.len()..];
            if let Some(descriptor) = descriptor(descriptors) {
                return Some((url, descriptor));
            }
        }
    }
}

fn descriptor(text: &str) -> Option<Descriptor> {
    let mut found = Descriptor::Density(1.0);
    for word in text.split_ascii_whitespace() {
        // `h` stands beside `w` in old pages and changes nothing.
        if let Some(number) = word.strip_suffix('w') {
            found = Descriptor::Width(f32::from(
                number.parse::<u16>().ok().filter(|&width| width > 0)?,
            ));
        } else if let Some(number) = word.strip_suffix('x') {
            let density = number
                .parse::<f32>()
                .ok()
                .filter(|density| density.is_finite() && *density >= 0.0)?;
            found = Descriptor::Density(density);
        } else {
            word.strip_suffix('h')?;
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCREEN: Viewport = Viewport {
        width: 1280.0,
        height: 720.0,
        ratio: 1.0,
    };

    fn chosen<'a>(
        plain: &'a str,
        set: &'a str,
        sizes: &'a str,
        width: f32,
        ratio: f32,
    ) -> Option<&'a str> {
        let viewport = Viewport {
            width,
            height: 720.0,
            ratio,
        };
        choose(
            Offer {
                plain,
                set,
                sizes,
                width: None,
            },
            viewport,
        )
    }

    #[test]
    fn densities() {
        let set = "one.png, two.png 2x,three.png 3x";
        assert_eq!(chosen("", set, "", 1280.0, 1.0), Some("one.png"));
        assert_eq!(chosen("", set, "", 1280.0, 2.0), Some("two.png"));
        assert_eq!(chosen("", set, "", 1280.0, 1.2), Some("one.png"));
        assert_eq!(chosen("", set, "", 1280.0, 1.5), Some("two.png"));
        assert_eq!(chosen("", set, "", 1280.0, 5.0), Some("three.png"));
        assert_eq!(
            chosen("src.png", "two.png 2x", "", 1280.0, 1.0),
            Some("src.png")
        );
        assert_eq!(
            chosen("src.png", "two.png 2x", "", 1280.0, 2.0),
            Some("two.png")
        );
        assert_eq!(
            chosen("src.png", "one.png 1x", "", 1280.0, 1.0),
            Some("one.png")
        );
        assert_eq!(chosen(" src.png ", "", "", 1280.0, 1.0), Some("src.png"));
        assert_eq!(chosen("", "", "", 1280.0, 1.0), None);
    }

    #[test]
    fn widths_and_sizes() {
        let set = "a.jpg 320w, b.jpg 640w, c.jpg 1280w, d.jpg 2560w";
        assert_eq!(chosen("src.jpg", set, "", 1280.0, 1.0), Some("c.jpg"));
        assert_eq!(chosen("src.jpg", set, "", 1280.0, 2.0), Some("d.jpg"));
        assert_eq!(
            chosen(
                "src.jpg",
                set,
                "(max-width: 600px) 100vw, 300px",
                1280.0,
                1.0
            ),
            Some("a.jpg")
        );
        assert_eq!(
            chosen(
                "src.jpg",
                set,
                "(max-width: 600px) 100vw, 300px",
                600.0,
                1.0
            ),
            Some("b.jpg")
        );
        assert_eq!(
            chosen(
                "src.jpg",
                set,
                "(min-width:900px)calc(50vw - 10px), 100vw",
                1280.0,
                1.0
            ),
            Some("b.jpg")
        );
        assert_eq!(
            chosen(
                "src.jpg",
                set,
                "(min-width:900px) and (min-height:1px) 50vw",
                1280.0,
                1.0
            ),
            Some("b.jpg")
        );
        assert_eq!(
            chosen("src.jpg", set, "nonsense, 20em", 1280.0, 1.0),
            Some("a.jpg")
        );
        assert_eq!(chosen("src.jpg", set, "0px", 1280.0, 1.0), Some("a.jpg"));
        assert_eq!(
            chosen("src.jpg", "a.jpg 100w", "", 1280.0, 1.0),
            Some("a.jpg")
        );
        let auto = Offer {
            plain: "",
            set,
            sizes: "auto, 100vw",
            width: Some(300.0),
        };
        assert_eq!(choose(auto, SCREEN), Some("a.jpg"));
    }

    #[test]
    fn commas_and_nonsense() {
        let urls = |set| Set(set).map(|(url, _)| url).collect::<Vec<_>>();
        assert_eq!(urls("a,b.png 1x, c,d.png"), ["a,b.png", "c,d.png"]);
        assert_eq!(urls("a.png, , ,b.png,, c.png"), ["a.png", "b.png", "c.png"]);
        assert_eq!(
            urls("a.png 1q, b.png 0w, c.png -1x, d.png 100w 50h"),
            ["d.png"]
        );
        assert_eq!(urls("a.png (x,y) 1x, b.png"), ["b.png"]);
        assert_eq!(
            urls("data:image/png;base64,AAAA 1x, b.png 2x"),
            ["data:image/png;base64,AAAA", "b.png"]
        );
        assert_eq!(urls(",,,"), [""; 0]);
        assert_eq!(urls("a.png 1e999x"), [""; 0]);
    }

    #[test]
    fn formats() {
        let all = Formats {
            avif: true,
            webp: true,
            jxl: true,
        };
        let old = Formats {
            avif: false,
            webp: false,
            jxl: false,
        };
        for (media_type, new_shows, old_shows) in [
            ("image/avif", true, false),
            ("image/webp", true, false),
            (" IMAGE/PNG; x=y", true, true),
            ("", true, true),
            ("image/jxl", true, false),
            ("image/heic", false, false),
            ("video/mp4", false, false),
        ] {
            assert_eq!(
                (all.shows(media_type), old.shows(media_type)),
                (new_shows, old_shows),
                "{media_type}"
            );
        }
    }
}
