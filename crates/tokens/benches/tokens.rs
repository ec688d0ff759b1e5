//! Issues and redemptions per second of one core. The bars are 200 and 500 a second.

use criterion::{Criterion, criterion_group, criterion_main};
use tandem_tokens::issuance::{IssuerKey, Unsigned};

fn tokens(criterion: &mut Criterion) {
    let key = IssuerKey::generate().expect("random numbers");
    let (request, unsigned) = Unsigned::new(key.public(), [0; 32]).expect("a request");
    let token = unsigned.sign(&key.sign(&request).expect("a signature"));
    let token = token.expect("a token");
    criterion.bench_function("issue", |bench| {
        bench.iter(|| key.sign(&request).expect("a signature"));
    });
    criterion.bench_function("redeem", |bench| {
        bench.iter(|| assert!(key.public().has_signed(&token)));
    });
    criterion.bench_function("request", |bench| {
        bench.iter(|| Unsigned::new(key.public(), [0; 32]).expect("a request"));
    });
}

criterion_group!(benches, tokens);
criterion_main!(benches);
