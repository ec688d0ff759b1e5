//! Pages from files (recorded pages, HAR, models) give an error, or a valid page that can be served
//! and names its resources.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_web::page::{Page, Site};

/// Pages above this are not rendered: their bodies are only filling.
const MOST: u64 = 1 << 20;

fuzz_target!(|input: &[u8]| {
    let Ok(page) = Page::from_json("fuzz", input) else {
        return;
    };
    let _ = page.check_browsable();
    let again = Page::from_json("", page.to_json().as_bytes()).expect("what was read is valid");
    assert_eq!(again, page);
    if page.bytes() > MOST || page.resources.len() > 1000 {
        return;
    }
    let site = Site::new(page, &["a.example", "b.example:81"]).expect("what was read is valid");
    let mut mentioned = vec![false; site.page().resources.len()];
    for (index, resource) in site.page().resources.iter().enumerate() {
        assert_eq!(site.find(&resource.path), Some(index));
        let asset = site.asset(index);
        for reference in &asset.references {
            assert!(reference.end <= asset.body.len());
            assert_eq!(site.page().resources[reference.child].parent, Some(index));
            assert!(!std::mem::replace(&mut mentioned[reference.child], true));
        }
    }
    for (resource, mentioned) in site.page().resources.iter().zip(mentioned) {
        assert_eq!(resource.parent.is_some(), mentioned);
    }
});
