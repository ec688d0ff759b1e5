//! The access token of a client's session, and the gateway's decision about it.

use std::cell::Cell;
use std::sync::Arc;

use tandem_http::ResponseHead;

use crate::error::{Error, Kind, Side};
use crate::failure::is_refusal;
use crate::renewal::Renewable;

/// Holds the token until the gateway has accepted it. Each response shows the decision.
pub(super) struct ClientAdmission {
    token: Cell<Option<Arc<Renewable<String>>>>,
    /// The value of the token that the last request showed.
    shown: Cell<Option<Arc<String>>>,
    /// The decision about the shown token or its absence, once it is known.
    decision: Cell<Option<bool>>,
}

impl ClientAdmission {
    /// Begins a session with a token, whose file may be renewed before the gateway accepts it.
    pub(super) fn new(token: Option<Arc<Renewable<String>>>) -> Self {
        Self {
            token: Cell::new(token),
            shown: Cell::default(),
            decision: Cell::default(),
        }
    }

    /// Returns the field `proxy-authorization` of a request, while requests need it.
    pub(super) fn field(&self) -> Option<String> {
        self.decision.set(self.decision());
        let value = self.value()?;
        let field = format!("Bearer {value}");
        self.shown.set(Some(value));
        Some(field)
    }

    /// Returns the present value of the token, unless the gateway has accepted it.
    fn value(&self) -> Option<Arc<String>> {
        let token = self.token.take();
        let value = token.as_ref().map(|token| token.get());
        self.token.set(token);
        value
    }

    /// Notes a response.
    ///
    /// # Errors
    /// Fails for a response of an origin with status 407. A browser would take the response for one
    /// of its own proxy, and might send it passwords.
    pub(super) fn note(&self, head: &ResponseHead) -> Result<(), Error> {
        let is_refusal = is_refusal(head);
        if is_refusal && self.decision.get().is_none() {
            self.decision.set(Some(false));
        }
        // Another 407 may be that of a gateway without the mark, which then needs the token.
        if head.status != 407 {
            self.token.take();
            self.decision.set(Some(true));
        } else if !is_refusal {
            return Err(foreign_challenge());
        }
        Ok(())
    }

    /// Returns the decision, once it is known. None is known about a token that was renewed after
    /// its refusal: the next request shows the new one.
    pub(super) fn decision(&self) -> Option<bool> {
        let decision = self.decision.get();
        if decision != Some(false) {
            return decision;
        }
        let shown = self.shown.take();
        let is_renewed = shown.is_some() && shown != self.value();
        self.shown.set(shown);
        decision.filter(|_| !is_renewed)
    }
}

/// Returns the error for a status 407 that the gateway does not send by itself.
pub(super) fn foreign_challenge() -> Error {
    let detail = "the site answered with status 407, which only a proxy may do";
    Error::new(Kind::Protocol, Side::Origin, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::response;
    use crate::renewal::Renewals;
    use crate::role_name::RoleName;

    /// Returns the refusal of a proxy with this role.
    fn refusal(who: RoleName) -> ResponseHead {
        response(&Error::new(Kind::Unauthorized, Side::Local, "x"), who).0
    }

    fn token() -> Arc<Renewable<String>> {
        let read = || Ok::<_, String>("t".to_owned());
        Arc::new(Renewable::new("token".into(), Vec::new(), read).expect("a token"))
    }

    #[test]
    fn token_is_shown_until_a_response_accepts_it() {
        let admission = ClientAdmission::new(Some(token()));
        assert_eq!(admission.decision(), None);
        assert_eq!(admission.note(&refusal(RoleName::Gateway)), Ok(()));
        assert_eq!(admission.decision(), Some(false));
        assert_eq!(admission.field().as_deref(), Some("Bearer t"));
        assert_eq!(admission.note(&ResponseHead::new(200)), Ok(()));
        assert_eq!(
            (admission.field(), admission.decision()),
            (None, Some(true))
        );
        assert_eq!(admission.note(&refusal(RoleName::Gateway)), Ok(()));
        assert_eq!(admission.decision(), Some(true), "a gateway decides once");
    }

    #[test]
    fn renewed_token_is_shown_after_a_refusal() {
        let file = std::env::temp_dir().join(format!("tandem-admission-{}", std::process::id()));
        let write = |text: &str| std::fs::write(&file, text).expect("a writable directory");
        write("old");
        let (files, name) = (vec![file.clone()], "the access token".to_owned());
        let read = file.clone();
        let read = move || std::fs::read_to_string(&read);
        let renewals = Renewals::default();
        let token = renewals.watch(Renewable::new(name, files, read).expect("a token"));
        let admission = ClientAdmission::new(Some(token));
        assert_eq!(admission.field().as_deref(), Some("Bearer old"));
        assert_eq!(admission.note(&refusal(RoleName::Gateway)), Ok(()));
        assert_eq!(admission.decision(), Some(false));
        write("the new one");
        // A file is taken over once it has stayed the same for two looks.
        for _ in 0..2 {
            assert_eq!(admission.decision(), Some(false));
            renewals.look();
        }
        assert_eq!(admission.decision(), None, "nothing is known about it");
        assert_eq!(admission.field().as_deref(), Some("Bearer the new one"));
        assert_eq!(admission.note(&refusal(RoleName::Gateway)), Ok(()));
        assert_eq!(admission.decision(), Some(false));
        assert_eq!(admission.note(&ResponseHead::new(200)), Ok(()));
        assert_eq!(admission.decision(), Some(true));
        std::fs::remove_file(&file).expect("the file that was written");
    }

    #[test]
    fn status_407_of_an_origin_is_no_refusal() {
        let mut forged = ResponseHead::new(407);
        forged.fields.push("proxy-authenticate", "Basic");
        for value in [None, Some("cdn; error=http_request_denied")] {
            if let Some(value) = value {
                forged.fields.push("proxy-status", value);
            }
            let admission = ClientAdmission::new(Some(token()));
            let error = admission.note(&forged).expect_err("a challenge");
            assert_eq!((error.status(), error.side), (502, Side::Origin));
            assert_eq!(admission.decision(), None);
            assert_eq!(admission.field().as_deref(), Some("Bearer t"));
        }
        for who in [RoleName::Gateway, RoleName::Relay] {
            let admission = ClientAdmission::new(None);
            assert_eq!(admission.note(&refusal(who)), Ok(()));
            assert_eq!(admission.decision(), Some(false), "{who}");
        }
    }

    #[test]
    fn session_without_a_token_has_no_field() {
        assert_eq!(ClientAdmission::new(None).field(), None);
    }
}
