//! The rules of caching hold for any fields. Decisions agree with each other, time never makes a
//! response fresher, and a validation keeps all fields that describe the body.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tandem_http::cache::{
    CacheRules, Receipt, RequestPolicy, ResponsePolicy, Reuse, validation, vary,
};
use tandem_http::{Fields, RequestHead, ResponseHead, Scheme};

// Input: two bytes of status, two of time, then lines `name:value` of the answer, a blank line, and
// those of the request.
fuzz_target!(|data: &[u8]| {
    let [s0, s1, t0, t1, text @ ..] = data else {
        return;
    };
    let at = text.windows(2).position(|pair| pair == b"\n\n");
    let (answer, asked) = text.split_at(at.unwrap_or(text.len()));
    let head = ResponseHead {
        fields: fields(answer),
        ..ResponseHead::new(100 + u16::from_be_bytes([*s0, *s1]) % 500)
    };
    let request = RequestHead {
        fields: fields(asked),
        ..RequestHead::get(Scheme::Http, "h", "/")
    };
    let (policy, asks) = (
        ResponsePolicy::of(&head),
        RequestPolicy::of(&request.fields),
    );
    let time = Duration::from_secs(u64::from(u16::from_be_bytes([*t0, *t1])));
    for rules in [CacheRules::PRIVATE, CacheRules::BROWSER, CacheRules::SHARED] {
        let freshness = policy.freshness(rules, Receipt::at(784_111_777));
        let storable = policy.is_storable(&request, rules);
        assert!(!(storable && policy.forbids_storage()));
        assert!(freshness.remaining(time) <= freshness.remaining(Duration::ZERO));
        match asks.reuse(rules, &policy, &freshness, time) {
            Reuse::Fresh => {
                assert!(freshness.is_fresh(time));
                assert!(!asks.control.no_cache && !policy.needs_validation());
            }
            Reuse::Stale => {
                assert!(!freshness.is_fresh(time) && asks.control.max_stale.is_some());
                assert!(!policy.forbids_stale_use(rules));
            }
            Reuse::Validate => {}
        }
    }
    let same = vary::selects(&head.fields, &request.fields, &request.fields);
    assert_eq!(same, !vary::is_any(&head.fields));
    conditions(&head, &request);
});

fn conditions(head: &ResponseHead, request: &RequestHead) {
    let mut conditional = request.fields.clone();
    let added = validation::add_conditions(&mut conditional, head);
    let (tag, date) = (head.fields.get("etag"), head.fields.get("last-modified"));
    assert_eq!(added, tag.is_some() || date.is_some());
    assert!(!added || validation::is_conditional(&conditional));
    let update = ResponseHead {
        fields: request.fields.clone(),
        ..ResponseHead::new(304)
    };
    let mut fresh = head.clone();
    validation::freshen(&mut fresh, &update);
    for kept in ["content-length", "content-encoding", "content-range"] {
        assert!(fresh.fields.get_all(kept).eq(head.fields.get_all(kept)));
    }
    validation::is_about(&update, head);
    validation::is_not_modified(&request.fields, head);
}

fn fields(lines: &[u8]) -> Fields {
    let lines = lines.split(|&byte| byte == b'\n').take(64);
    lines
        .filter_map(|line| {
            let at = line.iter().position(|&byte| byte == b':')?;
            Some((&line[..at], line[at + 1..].trim_ascii()))
        })
        .collect()
}
