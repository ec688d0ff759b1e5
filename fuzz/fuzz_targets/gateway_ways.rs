//! The ways to one gateway in any text give an error, or a list that is parsed again from its
//! display. All ways of a list lead to the same host, and no two are equal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem::config::gateway_ways::GatewayWays;
use tandem::endpoint::Endpoint;

fuzz_target!(|text: &str| {
    let Ok(ways) = text.parse::<GatewayWays>() else {
        return;
    };
    assert_eq!(ways.to_string().parse(), Ok(ways.clone()));
    let endpoints = ways.endpoints();
    assert!((1..=8).contains(&endpoints.len()));
    assert_eq!(ways.last(), &endpoints[endpoints.len() - 1]);
    let place = |it: &Endpoint| (it.session, it.transport.clone(), it.authority());
    for (number, way) in endpoints.iter().enumerate() {
        assert!(way.host.eq_ignore_ascii_case(&endpoints[0].host));
        let mut others = endpoints[..number].iter();
        assert!(others.all(|other| place(other) != place(way)));
        // A list of one way is that endpoint.
        assert_eq!(way.to_string().parse(), Ok(GatewayWays::from(way.clone())));
    }
});
