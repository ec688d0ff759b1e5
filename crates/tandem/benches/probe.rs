//! The cost of an observation point: switched off, switched on, and for a measured wait.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use tandem::probe::points::{QUEUE_CORE, SOCKET_WRITE};

/// Passages of one iteration: one alone is less than the clock can tell.
const PASSAGES: u64 = 1000;

fn probe(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("probe");
    group.throughput(criterion::Throughput::Elements(PASSAGES));
    let each = |work: &dyn Fn(u64)| (0..PASSAGES).for_each(work);
    group.bench_function("none", |bencher| {
        bencher.iter(|| each(&|value| _ = black_box(value)))
    });
    group.bench_function("value, off", |bencher| {
        bencher.iter(|| each(&|value| SOCKET_WRITE.note(black_box(value), 1)))
    });
    group.bench_function("time, off", |bencher| {
        bencher.iter(|| each(&|value| QUEUE_CORE.time(1, || _ = black_box(value))));
    });
    SOCKET_WRITE.switch(true);
    group.bench_function("value, on", |bencher| {
        bencher.iter(|| each(&|value| SOCKET_WRITE.note(black_box(value), 1)))
    });
    SOCKET_WRITE.switch(false);
    QUEUE_CORE.switch(true);
    group.bench_function("time, on", |bencher| {
        bencher.iter(|| each(&|value| QUEUE_CORE.time(1, || _ = black_box(value))));
    });
    QUEUE_CORE.switch(false);
    group.finish();
}

criterion_group!(benches, probe);
criterion_main!(benches);
