//! The issuer: the fronts of a gateway, and a stage that issues tokens in place of the origins.

use std::rc::Rc;
use std::sync::Arc;

use super::gateway::NearRole;
use super::{Built, Listening, Role};
use crate::config::{ConfigError, IssuerConfig};
use crate::exchange::Peer;
use crate::middle::issuer::Issue;
use crate::path::Facts;
use crate::services::Services;
use crate::session::Drain;
use crate::stage::Stage;

impl Role for IssuerConfig {
    fn listening(&self) -> Listening<'_> {
        self.near.listening()
    }

    fn open(&self, _: &Services) -> Result<(), ConfigError> {
        self.issuer().map(drop)
    }

    fn build(
        &self,
        _: &Services,
        _: &[std::net::SocketAddr],
        drain: &Drain,
    ) -> Result<Built, ConfigError> {
        let issuer = self.issuer()?;
        let inner = Box::new(move |path: &Rc<dyn Facts>, _: Peer| {
            Rc::new(Issue {
                issuer: Arc::clone(&issuer),
                certificate: path.peer_certificate(),
            }) as Rc<dyn Stage>
        });
        let permission = Err("an issuer takes no HTTPS of opened hosts");
        let new_stage = self.near.admitted(NearRole::Gateway, permission, inner)?;
        let http1 = self.near.http1("issuer");
        self.near.built(http1, false, new_stage, drain)
    }
}
