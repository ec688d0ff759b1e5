//! The issuer: the end of a gateway towards clients, and a stage that issues tokens in place of the
//! origins.

use std::rc::Rc;
use std::sync::Arc;

use super::near::InnerStages;
use super::{Built, Listening, Role};
use crate::config::{ConfigError, IssuerConfig};
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Peer, Reply};
use crate::issuer::IssuerError;
use crate::middle::issuer::Issue;
use crate::path::Facts;
use crate::role_name::RoleName;
use crate::services::Services;
use crate::session::Drain;
use crate::stage::Stage;

impl Role for IssuerConfig {
    fn listening(&self) -> Listening<'_> {
        self.near.listening()
    }

    fn open(&self, services: &Services) -> Result<(), ConfigError> {
        let opened = services.open_issuer(&self.settings);
        opened.map_err(|error| {
            let key = match error {
                IssuerError::Accounts(_) => "accounts",
                IssuerError::Keys(_) | IssuerError::Thread(_) => "keys",
            };
            ConfigError::value(key, error.to_string())
        })
    }

    fn build(
        &self,
        services: &Services,
        _: &[std::net::SocketAddr],
        drain: &Drain,
    ) -> Result<Built, ConfigError> {
        let issuer = services.issuer().map(Arc::clone);
        let issuer = issuer.ok_or_else(|| ConfigError::value("keys", "the issuer is not open"))?;
        let inner = Box::new(move |path: &Rc<dyn Facts>, _: Peer| {
            Rc::new(Issue {
                issuer: Arc::clone(&issuer),
                certificate: path.peer_certificate(),
            }) as Rc<dyn Stage>
        });
        self.listeners(services, drain, inner)
    }
}

impl IssuerConfig {
    /// Builds the listeners alone: opening the issuer would create its keys.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let refuse = |_: Exchange| {
            let problem = "the issuer is not open";
            Reply::fail(Error::new(Kind::Unreachable, Side::Local, problem))
        };
        let inner = Box::new(move |_: &Rc<dyn Facts>, _: Peer| Rc::new(refuse) as Rc<dyn Stage>);
        self.listeners(&Services::default(), &Drain::new(), inner)?;
        Ok(())
    }

    fn listeners(
        &self,
        services: &Services,
        drain: &Drain,
        inner: InnerStages,
    ) -> Result<Built, ConfigError> {
        let permission = Err("an issuer takes no HTTPS of opened hosts");
        let http1 = self.near.http1(RoleName::Issuer);
        self.near
            .ending_path(http1, permission, services, drain, inner)
    }
}
