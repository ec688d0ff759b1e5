//! The memory of pushes: the bytes that count, and those that a replaced push frees.

use super::*;

const FRESH: &[(&str, &str)] = &[("cache-control", "max-age=60")];

/// Returns a scene with `memory` bytes for pushes. Useless pushes are cancelled.
fn scene(memory: usize) -> Scene {
    Scene::new(StoreLimits {
        memory,
        cancel_useless: true,
    })
}

fn is_taken(scene: &mut Scene, path: &str) -> bool {
    let intake = scene.store.on_promise(scene.now, get(path), true);
    matches!(intake, Intake::Read(_))
}

/// Appends data until a push takes all memory that is left.
fn fill(scene: &mut Scene, id: PushId) {
    let left = scene.store.limits.memory - scene.store.held;
    scene
        .store
        .on_data(scene.now, id, Bytes::from(vec![0; left]));
    assert_eq!(scene.store.held, scene.store.limits.memory);
}

#[test]
fn replaced_push_frees_its_bytes() {
    let mut scene = scene(16 << 10);
    assert!(scene.store.is_empty());
    let first = scene.promise("/a");
    let promise = scene.store.held;
    scene.store.on_head(scene.now, first, ok(FRESH));
    fill(&mut scene, first);
    assert!(!is_taken(&mut scene, "/b"), "no room for another one");
    assert!(is_taken(&mut scene, "/a"), "the first one makes room");
    assert_eq!(scene.store.held, promise);
    assert_eq!(scene.store.len(), 2, "the first one is read to its end");
    assert!(!scene.store.is_empty());
}

#[test]
fn replaced_push_frees_its_entry_after_its_end() {
    let mut scene = scene(usize::MAX / 2);
    let mut last = scene.push("/0", FRESH, "");
    for number in 1..MAX_PUSHES {
        last = scene.promise(&format!("/{number}"));
    }
    assert_eq!(scene.store.len(), MAX_PUSHES);
    assert!(!is_taken(&mut scene, "/new"));
    assert!(!is_taken(&mut scene, "/1"), "its end has not arrived");
    assert!(is_taken(&mut scene, "/0"));
    assert_eq!(scene.store.len(), MAX_PUSHES);
    scene.store.on_end(last, false);
    assert!(is_taken(&mut scene, "/new"));
}

#[test]
fn claimed_push_is_read_ahead_below_the_limit() {
    let mut scene = scene(16 << 10);
    let id = scene.promise("/a");
    scene.store.on_head(scene.now, id, ok(FRESH));
    scene.ask("/a").expect("the push answers");
    let left = scene.store.limits.memory - scene.store.held;
    scene
        .store
        .on_data(scene.now, id, Bytes::from(vec![0; left - 1]));
    assert!(scene.store.has_room(id));
    fill(&mut scene, id);
    assert!(!scene.store.has_room(id));
}

#[test]
fn endless_useless_push_is_cancelled() {
    let memory = 16 << 10;
    let mut scene = Scene::new(StoreLimits {
        memory,
        cancel_useless: false,
    });
    let id = scene.promise("/a");
    scene.store.on_head(scene.now, id, ok(FRESH));
    let is_cancelled = |scene: &mut Scene, bytes: usize| {
        scene
            .store
            .on_data(scene.now, id, Bytes::from(vec![0; bytes]));
        let outputs = std::iter::from_fn(|| scene.store.poll_output());
        outputs.filter(|it| *it == Output::Cancel(id)).count() > 0
    };
    let longest = usize::try_from(LONGEST_USELESS).expect("a small number");
    assert!(!is_cancelled(&mut scene, memory / 2), "the store keeps it");
    assert!(!is_cancelled(&mut scene, memory / 2), "it is thrown away");
    assert_eq!(scene.store.held, 0);
    assert!(!is_cancelled(&mut scene, longest - memory));
    assert!(is_cancelled(&mut scene, 1), "it is too long");
}
