//! Scenes of one test that run at once, because they wait for timers most of the time.

/// Runs a scene for each case, and returns when all have ended. A scene that fails fails the test.
pub(crate) fn at_once<T: Send>(cases: impl IntoIterator<Item = T>, scene: impl Fn(T) + Sync) {
    let scene = &scene;
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(move || scene(case));
        }
    });
}
