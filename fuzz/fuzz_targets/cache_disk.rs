//! The files of a cache: no bytes are accepted that no process with the key wrote. The content of a
//! file is refused, or serves within the rules of the cache. The index keeps its bounds, and each
//! file is an entry or is to be deleted.
#![no_main]

use std::collections::HashSet;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tandem_cache::{Cache, Config, Group, Incoming, Index, Key, Lookup, Name, Namer, Now, Sharing};
use tandem_fleet::{FleetKey, Keeper, response};
use tandem_http::{RequestHead, Scheme};

static KEY: LazyLock<FleetKey> = LazyLock::new(|| FleetKey::new(&[7; 32]).expect("32 bytes"));

const NAME: Name = [1; 16];

// The time in the seeds.
const UNIX: u64 = 784_111_777;

fuzz_target!(|input: &[u8]| {
    assert!(response::open(Keeper::Disk, &KEY, &NAME, input.to_vec()).is_none());
    adopt(&Bytes::copy_from_slice(input));
    change(input);
});

/// Serves a request from a file with this content.
fn adopt(content: &Bytes) {
    let Some(incoming) = Incoming::read_from_disk(content) else {
        return;
    };
    let mut cache = Cache::<()>::new(Config {
        sharing: Sharing::Shared,
        memory: 1 << 20,
        min_users: 2,
    });
    let now = |seconds| Now {
        elapsed: Duration::from_secs(seconds),
        unix: Some(UNIX + seconds),
    };
    let mut index = Index::new(1 << 20);
    index.insert(NAME, content.len() as u64);
    cache.open_disk(now(0), index, Namer::new(|_| NAME));
    let request = RequestHead::get(Scheme::Http, "h", "/");
    let key = Key::new(0, b"", &request, false).expect("a plain request");
    let group = || Group::Origin("h".into());
    let Lookup::Fetch(fetch, _) = cache.lookup(now(1), &key, group(), 1, &request, None) else {
        panic!("the store is empty");
    };
    let found = cache.on_disk(now(1), &fetch).expect("it is in the index");
    let is_adopted = cache.adopt_from_disk(now(1), &fetch, found, incoming);
    match cache.lookup(now(1), &key, group(), 1, &request, None) {
        Lookup::Hit(stored) | Lookup::Stale(stored, _) => {
            assert!(is_adopted && stored.fits(&request.fields));
            assert!(!stored.head.fields.contains("set-cookie"));
            assert!(!stored.remaining(now(1)).is_zero());
        }
        _ => assert!(!is_adopted),
    }
}

/// Changes an index, two bytes for each change.
fn change(input: &[u8]) {
    let mut index = Index::new(8 << 12);
    let mut files: HashSet<Name> = HashSet::new();
    for pair in input.chunks_exact(2).take(512) {
        let [operation, size] = [pair[0], pair[1]];
        let name = [operation >> 3; 16];
        match operation & 7 {
            0..=3 => {
                index.insert(name, u64::from(size) << 8);
                files.insert(name);
            }
            4 => drop(index.remove(&name)),
            5 if size == 0 => index.clear(),
            _ => {
                for name in index.take_doomed(usize::from(size)) {
                    assert!(!index.contains(&name));
                    files.remove(&name);
                }
            }
        }
        assert!(index.bytes() <= 8 << 12 && index.len() <= 8);
    }
    let doomed: HashSet<_> = index.take_doomed(usize::MAX).into_iter().collect();
    assert!(
        files
            .iter()
            .all(|name| index.contains(name) != doomed.contains(name))
    );
    assert_eq!(files.len(), index.len() + doomed.len());
}
