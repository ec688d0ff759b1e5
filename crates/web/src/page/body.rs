//! Bodies: real HTML, CSS, scripts and images of a given size with references to their children.
//!
//! Comments fill up text, and a chunk or block that decoders skip fills up images. References are
//! spread over a document as in real ones, so that a browser meets them one after the other while
//! it arrives.

use super::fill::Fill;
use super::{Resource, ResourceKind};

/// A body, and where each reference in it ends.
pub(super) struct Body {
    pub(super) bytes: Vec<u8>,
    /// Child and offset behind its mention, in order.
    pub(super) references: Vec<(usize, usize)>,
}

/// A resource that the body must name.
pub(super) struct Child {
    pub(super) index: usize,
    pub(super) kind: ResourceKind,
    /// Path, or absolute URL where it is on another host.
    pub(super) url: String,
    /// An image of a type that not every browser knows.
    pub(super) is_new: bool,
}

/// Makes the body of `resource`. `sheets` are the style sheets below it: a document has an element
/// for each, since browsers load the references of a sheet only for elements that use them.
pub(super) fn body(
    resource: &Resource,
    own_index: usize,
    children: &[Child],
    sheets: &[usize],
    seed: u64,
) -> Body {
    let fill = Fill::new(seed);
    match resource.kind {
        ResourceKind::Html => html(resource.size, children, sheets, fill),
        ResourceKind::Css => css(resource.size, own_index, children, fill),
        ResourceKind::Script => script(resource.size, children, fill),
        ResourceKind::Image => Body::plain(image(&resource.mime, resource.size, fill)),
        ResourceKind::Font | ResourceKind::Fetch => {
            Body::plain(data(&resource.mime, resource.size, fill))
        }
    }
}

impl Body {
    fn plain(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            references: Vec::new(),
        }
    }
}

/// Text with comments between its parts that bring it to `size`; longer where the parts alone are.
struct Spread<'a> {
    open: &'a str,
    close: &'a str,
    /// Bytes still to be filled.
    left: usize,
    /// Parts still to come, each with a gap behind it.
    gaps: usize,
    fill: Fill,
    out: Vec<u8>,
}

impl<'a> Spread<'a> {
    fn new(size: usize, text: usize, gaps: usize, comment: (&'a str, &'a str), fill: Fill) -> Self {
        let out = Vec::with_capacity(size.max(text));
        Self {
            open: comment.0,
            close: comment.1,
            left: size.saturating_sub(text),
            gaps,
            fill,
            out,
        }
    }

    /// Appends text and its share of filling.
    fn put(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
        if self.gaps == 0 {
            return;
        }
        let share = self.left / self.gaps;
        self.gaps -= 1;
        let share = if self.gaps == 0 { self.left } else { share };
        let marks = self.open.len() + self.close.len();
        if share >= marks {
            self.left -= share;
            self.out.extend_from_slice(self.open.as_bytes());
            self.fill.text(&mut self.out, share - marks);
            self.out.extend_from_slice(self.close.as_bytes());
        } else if self.gaps == 0 {
            self.left -= share;
            self.out.extend(std::iter::repeat_n(b' ', share));
        }
    }
}

fn html(size: usize, children: &[Child], sheets: &[usize], fill: Fill) -> Body {
    // Without a declared icon a browser would request one.
    const HEAD: &str = "<!DOCTYPE html><html><head><meta charset=utf-8><title>Page</title><link rel=icon href=\"data:,\">";
    const BODY: &str = "</head><body>";
    const END: &str = "</body></html>";
    let in_head = |child: &&Child| matches!(child.kind, ResourceKind::Css | ResourceKind::Script);
    let (first, second): (Vec<&Child>, Vec<&Child>) = children.iter().partition(in_head);
    let elements: String = sheets
        .iter()
        .map(|sheet| format!("<i class=s{sheet}>x</i>"))
        .collect();
    let tags: Vec<(usize, String)> = first
        .iter()
        .chain(&second)
        .map(|c| (c.index, tag(c)))
        .collect();
    let text = HEAD.len()
        + BODY.len()
        + elements.len()
        + END.len()
        + tags.iter().map(|t| t.1.len()).sum::<usize>();
    let mut spread = Spread::new(size, text, tags.len() + 1, ("<!--", "-->"), fill);
    let mut references = Vec::with_capacity(tags.len());
    spread.out.extend_from_slice(HEAD.as_bytes());
    for (place, (index, tag)) in tags.iter().enumerate() {
        if place == first.len() {
            spread.out.extend_from_slice(BODY.as_bytes());
        }
        spread.put(tag);
        let behind = spread.out.len();
        references.push((*index, behind));
    }
    if second.is_empty() {
        spread.out.extend_from_slice(BODY.as_bytes());
    }
    spread.put(&elements);
    spread.out.extend_from_slice(END.as_bytes());
    Body {
        bytes: spread.out,
        references,
    }
}

/// The element that loads a resource. Images of newer types come as pages offer them, by `srcset`;
/// there a comma at its end would not belong to a URL.
fn tag(child: &Child) -> String {
    let url = child.url.replace('&', "&amp;");
    match child.kind {
        ResourceKind::Image if child.is_new && !url.ends_with(',') => {
            format!("<picture><source srcset=\"{url} 1x\"><img alt=\"\"></picture>")
        }
        ResourceKind::Css => format!("<link rel=stylesheet href=\"{url}\">"),
        ResourceKind::Script => format!("<script src=\"{url}\"></script>"),
        ResourceKind::Image => format!("<img src=\"{url}\" alt=\"\">"),
        ResourceKind::Html => format!("<iframe src=\"{url}\"></iframe>"),
        ResourceKind::Font | ResourceKind::Fetch => {
            format!("<script>{}</script>", statement(child))
        }
    }
}

/// Returns the statement of a script that loads a resource. A failed load must not stop the script.
fn statement(child: &Child) -> String {
    let url = &child.url;
    match child.kind {
        ResourceKind::Font => format!("new FontFace(\"f\",'url(\"{url}\")').load().catch(()=>0);"),
        ResourceKind::Fetch => format!("fetch(\"{url}\").catch(()=>0);"),
        ResourceKind::Image => format!("new Image().src=\"{url}\";"),
        ResourceKind::Script => format!("t(\"script\",{{src:\"{url}\"}});"),
        ResourceKind::Css => format!("t(\"link\",{{rel:\"stylesheet\",href:\"{url}\"}});"),
        ResourceKind::Html => format!("t(\"iframe\",{{src:\"{url}\"}});"),
    }
}

fn script(size: usize, children: &[Child], fill: Fill) -> Body {
    const HELPER: &str = "function t(n,a){document.documentElement.appendChild(Object.assign(document.createElement(n),a))}\n";
    let helper = if children.iter().any(|c| statement(c).starts_with('t')) {
        HELPER
    } else {
        ""
    };
    let parts: Vec<(usize, String)> = children.iter().map(|c| (c.index, statement(c))).collect();
    text_body(size, helper, &parts, fill)
}

fn css(size: usize, own_index: usize, children: &[Child], fill: Fill) -> Body {
    let of_kind = |kind: ResourceKind| children.iter().filter(move |c| c.kind == kind);
    let mut parts: Vec<(usize, String)> = Vec::new();
    parts.extend(
        of_kind(ResourceKind::Css).map(|c| (c.index, format!("@import url(\"{}\");", c.url))),
    );
    // One family in parts: a browser loads a part only for a character in its range.
    let fonts = of_kind(ResourceKind::Font).count();
    let mut characters = String::new();
    for (place, child) in of_kind(ResourceKind::Font).enumerate() {
        let code = 0xe000 + place;
        characters.push_str(&format!("\\{code:x}"));
        let mut part = format!(
            "@font-face{{font-family:f{own_index};src:url(\"{}\");unicode-range:U+{code:x}}}",
            child.url
        );
        if place + 1 == fonts {
            part.push_str(&format!(
                ".s{own_index}::before{{content:\"{characters}\";font-family:f{own_index}}}"
            ));
        }
        parts.push((child.index, part));
    }
    let images = of_kind(ResourceKind::Image).count();
    for (place, child) in of_kind(ResourceKind::Image).enumerate() {
        let open = if place == 0 {
            format!(".s{own_index}{{background-image:")
        } else {
            String::new()
        };
        let close = if place + 1 == images { "}" } else { "," };
        parts.push((child.index, format!("{open}url(\"{}\"){close}", child.url)));
    }
    text_body(size, "", &parts, fill)
}

/// CSS and scripts share their comments.
fn text_body(size: usize, start: &str, parts: &[(usize, String)], fill: Fill) -> Body {
    let text = start.len() + parts.iter().map(|p| p.1.len()).sum::<usize>();
    let mut spread = Spread::new(size, text, parts.len() + 1, ("/*", "*/"), fill);
    spread.put(start);
    let mut references = Vec::with_capacity(parts.len());
    for (index, part) in parts {
        spread.put(part);
        references.push((*index, spread.out.len()));
    }
    Body {
        bytes: spread.out,
        references,
    }
}

/// An image that decodes: SVG for its own type, PNG for all others (browsers go by the content),
/// GIF where a PNG would be larger than wanted.
fn image(mime: &str, size: usize, mut fill: Fill) -> Vec<u8> {
    if mime.starts_with("image/svg") {
        return svg(size, fill);
    }
    if size < PNG_MIN {
        gif(size)
    } else {
        png(size, &mut fill)
    }
}

fn svg(size: usize, fill: Fill) -> Vec<u8> {
    const START: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1\" height=\"1\">";
    const END: &str = "</svg>";
    let mut spread = Spread::new(size, START.len() + END.len(), 1, ("<!--", "-->"), fill);
    spread.put(START);
    spread.out.extend_from_slice(END.as_bytes());
    spread.out
}

/// Signature, IHDR, IDAT of one pixel, IEND.
const PNG_MIN: usize = 70;
/// Length, type and check sum of a chunk.
const CHUNK: usize = 12;

/// A grey PNG of one row, its pixels stored uncompressed, filled up by a private chunk or, for less
/// than a chunk's size, by more pixels.
fn png(size: usize, fill: &mut Fill) -> Vec<u8> {
    let over = size - PNG_MIN;
    let (width, padding) = if over < CHUNK {
        (1 + over, None)
    } else {
        (1, Some(over - CHUNK))
    };
    let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut header = (width as u32).to_be_bytes().to_vec();
    header.extend(1u32.to_be_bytes());
    // 8 bits, grey, deflate, no filters, not interlaced.
    header.extend([8, 0, 0, 0, 0]);
    chunk(&mut out, b"IHDR", &header);
    if let Some(padding) = padding {
        let mut bytes = Vec::with_capacity(padding);
        fill.bytes(&mut bytes, padding);
        // Ancillary, private, safe to copy.
        chunk(&mut out, b"fiLl", &bytes);
    }
    let row = vec![0; 1 + width];
    let len = row.len() as u16;
    let mut pixels = vec![0x78, 0x01, 0x01];
    pixels.extend(len.to_le_bytes());
    pixels.extend((!len).to_le_bytes());
    pixels.extend(&row);
    pixels.extend(adler32(&row).to_be_bytes());
    chunk(&mut out, b"IDAT", &pixels);
    chunk(&mut out, b"IEND", &[]);
    out
}

fn chunk(out: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    out.extend((data.len() as u32).to_be_bytes());
    let start = out.len();
    out.extend_from_slice(kind);
    out.extend_from_slice(data);
    let sum = crc32(&out[start..]);
    out.extend(sum.to_be_bytes());
}

fn crc32(bytes: &[u8]) -> u32 {
    static TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut index = 0;
        while index < 256 {
            let mut value = index as u32;
            let mut bit = 0;
            while bit < 8 {
                value = if value & 1 == 1 {
                    0xedb8_8320 ^ (value >> 1)
                } else {
                    value >> 1
                };
                bit += 1;
            }
            table[index] = value;
            index += 1;
        }
        table
    };
    !bytes
        .iter()
        .fold(!0, |sum, &b| TABLE[usize::from(sum as u8 ^ b)] ^ (sum >> 8))
}

fn adler32(bytes: &[u8]) -> u32 {
    let (low, high) = bytes.iter().fold((1u32, 0u32), |(low, high), &b| {
        let low = (low + u32::from(b)) % 65521;
        (low, (high + low) % 65521)
    });
    high << 16 | low
}

/// A GIF of one pixel: 35 bytes, or a few more by a comment or by zeros behind the end.
fn gif(size: usize) -> Vec<u8> {
    let mut out = b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff".to_vec();
    let over = size.saturating_sub(35);
    if over >= 4 {
        out.extend([0x21, 0xfe, (over - 4) as u8]);
        out.extend(std::iter::repeat_n(b'x', over - 4));
        // A comment without data has no block but the last, empty one.
        if over > 4 {
            out.push(0);
        }
    }
    out.extend(b",\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02\x44\x01\x00;");
    out.resize(out.len().max(size), 0);
    out
}

/// Data for scripts: JSON where the type says so, else bytes.
fn data(mime: &str, size: usize, mut fill: Fill) -> Vec<u8> {
    let mut out = Vec::with_capacity(size);
    if mime.contains("json") && size >= 2 {
        out.push(b'"');
        fill.text(&mut out, size - 2);
        out.push(b'"');
    } else if mime.starts_with("text/") || mime.contains("xml") {
        fill.text(&mut out, size);
    } else {
        fill.bytes(&mut out, size);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_have_every_size() {
        for size in (35..300).chain([4096, 30_000]) {
            assert_eq!(image("image/png", size, Fill::new(1)).len(), size);
        }
        assert_eq!(
            image("image/gif", 1, Fill::new(1)).len(),
            35,
            "the smallest image there is"
        );
        for size in 68..300 {
            assert_eq!(image("image/svg+xml", size, Fill::new(1)).len(), size);
        }
    }

    #[test]
    fn check_sums() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
    }

    #[test]
    fn text_has_every_size() {
        for size in 0..200 {
            assert_eq!(text_body(size, "", &[], Fill::new(2)).bytes.len(), size);
            assert_eq!(data("application/json", size, Fill::new(2)).len(), size);
        }
        let children: Vec<Child> = (0..9)
            .map(|index| Child {
                index,
                kind: ResourceKind::Image,
                url: format!("/{index}"),
                is_new: false,
            })
            .collect();
        for size in 600..900 {
            let body = html(size, &children, &[4], Fill::new(3));
            assert_eq!(body.bytes.len(), size);
            for (child, end) in &body.references {
                let before = String::from_utf8_lossy(&body.bytes[..*end]).into_owned();
                assert!(before.contains(&format!("src=\"/{child}\"")), "{before}");
            }
        }
    }
}
