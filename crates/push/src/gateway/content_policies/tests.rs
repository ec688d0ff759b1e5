//! Tests of the policies that a session knows.

use tandem_http::ResponseHead;

use super::*;

fn policies(text: &str) -> Arc<ContentSecurity> {
    let mut policies = ContentSecurity::default();
    policies.add_meta("http://a.test/", text);
    policies.into()
}

fn closed() -> Option<Arc<ContentSecurity>> {
    Some(ContentSecurity::closed().into())
}

fn url(at: usize) -> String {
    format!("http://a.test/{at}")
}

type Set = fn(&mut ContentPolicies, &str, Arc<ContentSecurity>);

const SETS: [Set; 3] = [
    ContentPolicies::set_document,
    ContentPolicies::set_frame,
    ContentPolicies::set_subresource,
];

fn counts(known: &ContentPolicies) -> [usize; 3] {
    [&known.documents, &known.frames, &known.subresources].map(|it| it.entries.len())
}

#[test]
fn lost_policies_of_a_host_admit_nothing_there() {
    for (set, is_document) in SETS.into_iter().zip([true, true, false]) {
        let mut known = ContentPolicies::default();
        set(&mut known, &url(0), policies("img-src 'none'"));
        for at in 1..MAX_DOCUMENTS {
            set(&mut known, &url(at), policies(""));
        }
        let kept = Some(policies("img-src 'none'"));
        assert_eq!(known.of_referrer(&url(0), []), kept, "it is still there");
        set(&mut known, &url(MAX_DOCUMENTS), policies(""));
        assert_eq!(counts(&known).iter().sum::<usize>(), MAX_DOCUMENTS);
        for unknown in [&url(0), "http://a.test/x"] {
            assert_eq!(known.of_referrer(unknown, []), closed());
            let expected = closed().filter(|_| is_document);
            assert_eq!(known.of(unknown), expected);
            assert_eq!(known.of_each(unknown), expected);
        }
        assert_eq!(known.of_referrer("http://a.test/", []), closed());
        assert_eq!(known.of_all(), closed().filter(|_| is_document));
        let last = url(MAX_DOCUMENTS);
        let found = known.of_referrer(&last, []).filter(|it| !it.is_empty());
        assert_eq!(found, None, "it has none");
        for other in ["http://b.test/", "http://b.test/x", "http://a.test:81/x"] {
            assert_eq!(known.of(other), None, "{other}");
            assert_eq!(known.of_referrer(other, []), None, "{other}");
        }
    }
}

/// Such a document admits as much as one without policies.
#[test]
fn lost_embedder_policy_leaves_its_host_open() {
    let mut head = ResponseHead::new(200);
    head.fields
        .push("cross-origin-embedder-policy", "credentialless");
    let of = |at| format!("https://a.test/{at}");
    let policies = Arc::new(ContentSecurity::of(&of(0), &head));
    let mut known = ContentPolicies::default();
    for at in 0..=MAX_DOCUMENTS {
        known.set_document(&of(at), Arc::clone(&policies));
    }
    assert_eq!(known.of(&of(0)), None, "it is lost");
    let kept = known.of(&of(1));
    assert!(kept.is_some_and(|kept| kept.is_credentialless()));
    let merged = known.of_all();
    assert!(merged.is_some_and(|all| all.is_credentialless() && !all.is_closed()));
}

#[test]
fn hosts_with_lost_policies_are_bounded() {
    let mut known = ContentPolicies::default();
    let host = |at| format!("http://h{at}.test/");
    for at in 0..MAX_DOCUMENTS + MAX_LOST {
        known.set_frame(&host(at), policies("img-src 'none'"));
    }
    assert_eq!(known.of("http://b.test/"), None);
    assert_eq!(known.of(&host(0)), closed());
    known.set_frame("http://b.test/", policies("img-src 'none'"));
    assert_eq!(known.of("http://c.test/"), closed());
    assert_eq!(known.frames.lost.0.as_ref().unwrap().hashes.len(), MAX_LOST);
}

/// Many style sheets have the policies of one document.
#[test]
fn shared_policies_are_merged_once() {
    let mut known = ContentPolicies::default();
    let shared = policies("img-src 'none'");
    known.set_document(&url(0), Arc::clone(&shared));
    for at in 1..MAX_DOCUMENTS {
        known.set_subresource(&url(at), Arc::clone(&shared));
    }
    let all = known.of_all().unwrap();
    assert!(Arc::ptr_eq(&all, &shared));
}

#[test]
fn eviction_of_documents_without_policies_is_harmless() {
    let mut known = ContentPolicies::default();
    for at in 0..2 * MAX_DOCUMENTS {
        known.set_document(&url(at), policies(""));
    }
    assert_eq!(known.documents.entries.len(), MAX_DOCUMENTS);
    assert_eq!(known.of(&url(0)), None);
    assert_eq!(known.of_all(), None);
}

#[test]
fn parts_never_evict_their_document() {
    let mut known = ContentPolicies::default();
    known.set_document(&url(0), policies("img-src 'none'"));
    for at in 0..10 * MAX_DOCUMENTS {
        let policy = format!("img-src /{at}");
        known.set_frame(&url(at), policies(&policy));
    }
    assert_eq!(known.frames.entries.len(), MAX_DOCUMENTS);
    assert_eq!(known.of(&url(0)), Some(policies("img-src 'none'")));
}

#[test]
fn policy_tables_have_bounded_bytes() {
    let path = "x".repeat(10_000);
    // Each host takes more memory than its text: two pointers with lengths, scheme and port.
    let (long, short) = (format!("a.test/{path}"), "a.test ".repeat(500));
    let host = 2 * size_of::<Box<str>>() + size_of::<u32>();
    for (sources, memory) in [(long, 10_000), (short, 500 * host)] {
        let mut known = ContentPolicies::default();
        for at in 0..MAX_DOCUMENTS {
            known.set_frame(
                &url(at),
                policies(&format!("img-src {sources} b.test/{at}")),
            );
            assert!(known.frames.bytes <= MAX_BYTES);
        }
        let entries = &known.frames.entries;
        assert!(entries.len() < MAX_DOCUMENTS && entries.len() * memory <= MAX_BYTES);
        assert!(!known.frames.lost.is_empty());
        let counted: usize = entries.iter().map(Entry::bytes).sum();
        assert_eq!(known.frames.bytes, counted);
        for at in 0..MAX_DOCUMENTS {
            known.set_frame(&url(at), policies(""));
        }
        let entries = known.frames.entries.iter();
        let urls: usize = entries.map(|it| it.url.len() + size_of::<Entry>()).sum();
        let empty = policies("").bytes();
        assert_eq!(known.frames.bytes, urls + MAX_DOCUMENTS * empty);
    }
}

#[test]
fn referrer_finds_its_documents() {
    let mut known = ContentPolicies::default();
    known.set_document("http://a.test/1", policies("img-src 'none'"));
    known.set_frame("http://a.test/2", policies("font-src 'none'"));
    known.set_document("http://a.test/", policies(""));
    let found = |referrer| known.of_referrer(referrer, []);
    assert_eq!(found("http://a.test/1"), Some(policies("img-src 'none'")));
    assert_eq!(
        found("http://a.test/"),
        Some(policies("img-src 'none',font-src 'none'")),
        "it may be the origin of another document"
    );
    assert_eq!(found("http://b.test/"), None);
    known.set_frame("http://a.test/1", policies("font-src 'none'"));
    assert_eq!(
        known.of_referrer("http://a.test/1", []),
        Some(policies("img-src 'none',font-src 'none'"))
    );
}

#[test]
fn unknown_referrer_may_be_any_document_there() {
    let mut known = ContentPolicies::default();
    known.set_document("http://a.test/1", policies("img-src 'none'"));
    known.set_document("http://b.test/1", policies("font-src 'none'"));
    known.set_document("http://c.test/1", policies(""));
    let found = |referrer, page| known.of_referrer(referrer, [page]);
    let image = Some(policies("img-src 'none'"));
    let both = Some(policies("img-src 'none',font-src 'none'"));
    assert_eq!(found("http://a.test/2", "http://c.test/1"), image);
    assert_eq!(found("http://a.test/2", "http://b.test/1"), both);
    assert_eq!(found("http://a.test/", "http://b.test/1"), both);
    assert_eq!(found("http://d.test/s.css", "http://a.test/1"), image);
    assert_eq!(found("http://d.test/s.css", "http://d.test/"), None);
    known.set_document("http://a.test/1", policies("img-src 'none'"));
    let found = |referrer, page| known.of_referrer(referrer, [page]);
    assert_eq!(
        found("http://d.test/s.css", "http://d.test/"),
        image,
        "the last"
    );
    let one = Some(policies("img-src 'none'"));
    assert_eq!(
        found("http://a.test/1", "http://b.test/1"),
        one,
        "it is known"
    );
    known.set_frame("http://e.test/f", policies("font-src 'none'"));
    let found = |referrer, page| known.of_referrer(referrer, [page]);
    assert_eq!(
        found("http://d.test/s.css", "http://d.test/"),
        both,
        "its frame"
    );
    known.set_document("http://c.test/1", policies(""));
    let found = |referrer, page| known.of_referrer(referrer, [page]);
    assert_eq!(
        found("http://d.test/s.css", "http://d.test/"),
        None,
        "an old frame"
    );
}

/// A style sheet from a cache may belong to another document than the one that requested it.
#[test]
fn known_sheet_may_have_another_document() {
    let mut known = ContentPolicies::default();
    known.set_document("http://a.test/1", policies("img-src 'none'"));
    known.set_document("http://a.test/2", policies(""));
    known.set_subresource("http://a.test/s.css", policies(""));
    let found = |page| known.of_referrer("http://a.test/s.css", [page]);
    assert_eq!(found("http://a.test/1"), Some(policies("img-src 'none'")));
    assert_eq!(found("http://a.test/2"), None);
}

#[test]
fn last_response_at_a_url_sets_its_policies() {
    let mut known = ContentPolicies::default();
    known.set_document(&url(0), policies("img-src 'none'"));
    known.set_frame(&url(0), policies("font-src 'none'"));
    assert_eq!(known.of(&url(0)), Some(policies("font-src 'none'")));
    known.update(&url(0), policies("media-src 'none'"));
    assert_eq!(known.of(&url(0)), Some(policies("media-src 'none'")));
    let each = "img-src 'none',media-src 'none'";
    assert_eq!(known.of_each(&url(0)), Some(policies(each)));
    known.set_document(&url(0), policies(""));
    known.update(&url(0), policies("img-src *"));
    assert_eq!(known.of(&url(0)), Some(policies("img-src *")));
    assert_eq!(known.frames.entries.len(), 1);
}
