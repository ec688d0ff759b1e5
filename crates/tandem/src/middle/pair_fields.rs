//! Keeps fields named `tandem-*` between the two proxies, since only they understand them
//! ([`tandem_push::wire`]).
//!
//! The stage runs at both edges of the pair: behind the client's front and before the gateway's
//! connections to origins. If a page or an origin writes such a field, the field does not reach the
//! other side and does not change the pair's behaviour.

use std::rc::Rc;

use tandem_http::Fields;

use crate::exchange::{Exchange, Reply};
use crate::stage::Stage;

/// The prefix of the names.
const PREFIX: &[u8] = b"tandem-";

/// The stage that removes the fields.
pub struct PairFields {
    /// The stage that exchanges go on to.
    pub next: Rc<dyn Stage>,
}

impl Stage for PairFields {
    fn call(&self, mut exchange: Exchange) -> Reply {
        if has_pair_fields(&exchange.request.fields) {
            strip(&mut exchange.request_mut().fields);
        }
        self.next.call(exchange).edited(strip)
    }
}

fn has_pair_fields(fields: &Fields) -> bool {
    fields.iter().any(|field| field.name.starts_with(PREFIX))
}

/// Removes the pair's own fields.
fn strip(fields: &mut Fields) {
    if has_pair_fields(fields) {
        fields.retain(|field| !field.name.starts_with(PREFIX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strip_removes_the_pairs_own_fields_only() {
        let mut fields: Fields = [
            ("tandem-push", "1"),
            ("x-tandem-push", "2"),
            ("accept", "3"),
        ]
        .into_iter()
        .collect();
        strip(&mut fields);
        let left: Vec<_> = fields.iter().map(|field| field.name).collect();
        assert_eq!(left, [&b"x-tandem-push"[..], b"accept"]);
    }
}
