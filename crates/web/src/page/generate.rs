//! Pages that the documents describe by numbers: the 1315-resource page of the thesis, and pages
//! like Twitter, YouTube and imgur; and even ones.

use super::fill::Fill;
use super::{Caching, Page, Resource, ResourceKind};

/// Images of the thesis' page.
const IMAGES: usize = 1311;
/// Body bytes of the thesis' page.
const THESIS_BYTES: usize = 3_560_921;
const THESIS_HTML: usize = 385_024;
const THESIS_CSS: [usize; 3] = [10_240, 20_480, 30_000];
const IMAGE_MIN: usize = 100;
const IMAGE_MAX: usize = 30_000;

impl Page {
    /// The large page of the thesis: 1315 resources of 3,560,921 body bytes: one HTML, three style
    /// sheets, 1311 images of 100 to 30,000 bytes, most of them small.
    pub fn thesis() -> Self {
        let mut page = Self::document("thesis", THESIS_HTML);
        for (index, size) in THESIS_CSS.into_iter().enumerate() {
            page.add(format!("/style/{index}.css"), ResourceKind::Css, size);
        }
        for (index, size) in thesis_images().into_iter().enumerate() {
            page.add(format!("/images/{index:04}.png"), ResourceKind::Image, size);
        }
        page
    }

    /// `count` images of `size` bytes, all known from the start: for loaders.
    pub fn uniform(count: usize, size: usize) -> Self {
        let mut page = Self {
            name: format!("uniform-{count}x{size}"),
            hosts: vec![HOST.into()],
            resources: Vec::new(),
        };
        for index in 0..count {
            page.resources.push(Resource {
                parent: None,
                ..image(index, size)
            });
        }
        page
    }

    /// An HTML document and `count` images of `size` bytes: for browsers.
    pub fn gallery(count: usize, size: usize) -> Self {
        let mut page = Self::document(&format!("gallery-{count}x{size}"), size);
        page.resources
            .extend((0..count).map(|index| image(index, size)));
        page
    }

    /// A page like Twitter's in 2013: 7 resources of 46.4 kB.
    pub fn twitter() -> Self {
        Self {
            name: "twitter".into(),
            ..Self::gallery(6, 46_400)
        }
    }

    /// A page like YouTube's in 2013: 50 resources of 10.63 kB.
    pub fn youtube() -> Self {
        Self {
            name: "youtube".into(),
            ..Self::gallery(49, 10_630)
        }
    }

    /// A page like imgur's in 2013: 133 resources of 11.78 kB.
    pub fn imgur() -> Self {
        Self {
            name: "imgur".into(),
            ..Self::gallery(132, 11_780)
        }
    }

    fn document(name: &str, size: usize) -> Self {
        let html = Resource {
            path: "/".into(),
            host: 0,
            mime: "text/html".into(),
            kind: ResourceKind::Html,
            size,
            status: 200,
            parent: None,
            caching: Caching::default(),
            cookies: Vec::new(),
        };
        Self {
            name: name.into(),
            hosts: vec![HOST.into()],
            resources: vec![html],
        }
    }

    fn add(&mut self, path: String, kind: ResourceKind, size: usize) {
        let mime = if kind == ResourceKind::Css {
            "text/css"
        } else {
            "image/png"
        };
        self.resources.push(Resource {
            path,
            host: 0,
            mime: mime.into(),
            kind,
            size,
            status: 200,
            parent: Some(0),
            caching: Caching::default(),
            cookies: Vec::new(),
        });
    }
}

/// Name of the one host of a generated page.
const HOST: &str = "page.example";

fn image(index: usize, size: usize) -> Resource {
    Resource {
        path: format!("/images/{index:04}.png"),
        host: 0,
        mime: "image/png".into(),
        kind: ResourceKind::Image,
        size,
        status: 200,
        parent: Some(0),
        caching: Caching::default(),
        cookies: Vec::new(),
    }
}

/// Sizes of the thesis' images: the smallest and the largest once at least, the rest drawn from
/// classes that make most of them small, then moved a little so that the sum is exact.
fn thesis_images() -> Vec<usize> {
    const CLASSES: [(u64, usize, usize); 6] = [
        (30, IMAGE_MIN, 500),
        (60, 500, 1500),
        (80, 1500, 3000),
        (92, 3000, 6000),
        (98, 6000, 12_000),
        (100, 12_000, IMAGE_MAX),
    ];
    let mut fill = Fill::new(1315);
    let mut sizes = vec![IMAGE_MIN; IMAGES];
    sizes[1] = IMAGE_MAX;
    for size in &mut sizes[2..] {
        let draw = fill.number() % 100;
        let class = CLASSES
            .iter()
            .find(|class| draw < class.0)
            .unwrap_or(&CLASSES[0]);
        *size = fill.between(class.1, class.2);
    }
    let wanted = THESIS_BYTES - THESIS_HTML - THESIS_CSS.iter().sum::<usize>();
    let mut sum: usize = sizes.iter().sum();
    // Two images keep their bounds; the others can give and take far more than the draw is off by.
    for index in (2..IMAGES).cycle() {
        if sum == wanted {
            break;
        }
        let size = &mut sizes[index];
        let step = (sum.abs_diff(wanted)).min(16);
        if sum < wanted && *size + step <= IMAGE_MAX {
            *size += step;
            sum += step;
        } else if sum > wanted && *size >= IMAGE_MIN + step {
            *size -= step;
            sum -= step;
        }
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thesis_is_exact() {
        let page = Page::thesis();
        assert_eq!((page.resources.len(), page.bytes()), (1315, 3_560_921));
        let images: Vec<usize> = page
            .resources
            .iter()
            .filter(|r| r.kind == ResourceKind::Image)
            .map(|r| r.size)
            .collect();
        assert_eq!(images.len(), 1311);
        assert_eq!(
            (images.iter().min(), images.iter().max()),
            (Some(&100), Some(&30_000))
        );
        assert_eq!(page, Page::thesis());
        assert!(page.checked().is_ok());
    }

    #[test]
    fn counts_of_the_others() {
        for (page, count) in [
            (Page::twitter(), 7),
            (Page::youtube(), 50),
            (Page::imgur(), 133),
        ] {
            assert_eq!(page.resources.len(), count);
        }
        assert_eq!(Page::uniform(100, 2000).bytes(), 200_000);
        assert!(
            Page::uniform(100, 2000)
                .resources
                .iter()
                .all(|r| r.parent.is_none())
        );
    }
}
