//! The access token of a client's session, and the gateway's decision about it.

use std::cell::Cell;
use std::sync::Arc;

use crate::renewal::Renewable;

/// Holds the token until the gateway has accepted it. Each response shows the decision.
pub(super) struct ClientAdmission {
    token: Cell<Option<Arc<String>>>,
    /// The decision about the token or its absence, once it is known.
    decision: Cell<Option<bool>>,
}

impl ClientAdmission {
    /// Begins a session with the present value of a token.
    pub(super) fn new(token: Option<&Renewable<String>>) -> Self {
        Self {
            token: Cell::new(token.map(Renewable::get)),
            decision: Cell::default(),
        }
    }

    /// Returns the field `proxy-authorization` of a request, while requests need it.
    pub(super) fn field(&self) -> Option<String> {
        let token = self.token.take();
        let field = token.as_ref().map(|token| format!("Bearer {token}"));
        self.token.set(token);
        field
    }

    /// Notes the status of a response.
    pub(super) fn note(&self, status: u16) {
        if status != 407 {
            self.token.take();
            self.decision.set(Some(true));
        } else if self.decision.get().is_none() {
            self.decision.set(Some(false));
        }
    }

    /// Returns the decision, once it is known.
    pub(super) fn decision(&self) -> Option<bool> {
        self.decision.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Renewable<String> {
        let read = || Ok::<_, String>("t".to_owned());
        Renewable::new("token".into(), Vec::new(), read).expect("a token")
    }

    #[test]
    fn token_is_shown_until_a_response_accepts_it() {
        let admission = ClientAdmission::new(Some(&token()));
        assert_eq!(admission.decision(), None);
        admission.note(407);
        assert_eq!(admission.decision(), Some(false));
        assert_eq!(admission.field().as_deref(), Some("Bearer t"));
        admission.note(200);
        assert_eq!(
            (admission.field(), admission.decision()),
            (None, Some(true))
        );
        admission.note(407);
        assert_eq!(
            admission.decision(),
            Some(true),
            "a later 407 is of an origin"
        );
    }

    #[test]
    fn session_without_a_token_has_no_field() {
        assert_eq!(ClientAdmission::new(None).field(), None);
    }
}
