//! The roles as the command line sees them: each has options, which are flags and a section of the
//! configuration file, and the configuration that they make.

use std::cell::{OnceCell, RefCell};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::serve::{Fixed, Loaded, read, serve};
use super::{Failure, start_log};
use crate::config::{
    BridgeConfig, BridgeOptions, ClientConfig, ClientOptions, ConfigError, File, GatewayConfig,
    GatewayOptions, NearConfig, RelayConfig, RelayOptions, few_descriptors,
};
use crate::endpoint::Endpoint;
use crate::renewal::Renewals;
use crate::role_name::RoleName;
use crate::roles::Role;
use crate::services::Services;
use crate::session::Drain;
use crate::transport::registry::Transports;
use crate::transport::tcp::SocketOptions;

/// The options of a role.
pub(super) trait Section: Clone + Default + PartialEq {
    /// The configuration that the options make.
    type Config: Configured;

    /// The name of the role and of its table in the file.
    const NAME: RoleName;

    /// Takes the role's table out of a file.
    fn take(file: &mut File) -> Option<Self>;

    /// Returns these options, with `file` for those that are not set.
    fn or(self, file: Self) -> Self;

    /// Returns the filter of the log.
    fn log(&self) -> Option<&str>;

    /// Checks that a reload may replace the options `before` by these.
    fn may_replace(&self, _before: &Self) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Checks the options; the endpoints may name the given transports.
    fn typed_with(self, transports: &Transports) -> Result<Self::Config, ConfigError>;
}

/// The checked configuration of a role.
pub(super) trait Configured: Role + Clone + 'static {
    /// Returns the warnings that hold on every machine, one sentence each.
    fn warnings(&self) -> Vec<String>;

    /// Looks up the names of gateways within a time, as a check. A role that runs does so when it
    /// dials. Returns an error for each name without an address.
    fn look_up_names(&self, _limit: Duration) -> Vec<ConfigError> {
        Vec::new()
    }

    /// Returns the end towards clients, which all roles but the client have.
    fn near(&mut self) -> Option<&mut NearConfig>;

    /// Returns the values that the process needs beside the role: those of the end towards clients.
    fn process(&mut self) -> Process {
        self.near().map(|near| near.process()).unwrap_or_default()
    }

    /// Builds the role completely, including certificates, but opens no listener and no file that
    /// the role writes.
    fn check(&self) -> Result<(), ConfigError> {
        check_role(self)
    }
}

/// The values of a configuration that the process needs beside the role.
#[derive(Default)]
pub(super) struct Process {
    /// The values that need a restart, apart from the log.
    fixed: Fixed,
    /// The time limit for open sessions after a signal.
    drain_limit: Duration,
    /// The maximum number of connections from clients.
    max_connections: usize,
    /// The socket options of a path that loses packets.
    slow_path: Option<SocketOptions>,
}

impl Process {
    /// Returns the warnings about the machine's kernel, and its limits for the process.
    fn warnings(&self) -> Vec<String> {
        let congestion = self.slow_path.as_ref().and_then(warning_of_congestion);
        let descriptors = few_descriptors(self.max_connections);
        congestion.into_iter().chain(descriptors).collect()
    }
}

/// Runs a role until a signal ends it. The flags take precedence over the file.
pub(super) fn start<S: Section>(
    file: Option<&Path>,
    flags: &S,
    transports: &Transports,
) -> Result<(), Failure> {
    let options = || {
        let section = S::take(&mut read(file)?);
        if let (None, Some(file), true) = (&section, file, *flags == S::default()) {
            return Err(ConfigError::Parse {
                file: file.display().to_string(),
                problem: format!("it has no table [{}]", S::NAME),
            });
        }
        Ok::<_, ConfigError>(flags.clone().or(section.unwrap_or_default()))
    };
    start_log(options()?.log())?;
    let first = OnceCell::new();
    let before = RefCell::new(None);
    serve(S::NAME.as_str(), S::NAME, || {
        let options = options()?;
        if let Some(before) = before.borrow().as_ref() {
            options.may_replace(before)?;
        }
        let log = options.log().map(str::to_owned);
        let mut config = options.clone().typed_with(transports)?;
        let warned = config.clone();
        let process = config.process();
        let fixed = Fixed {
            log,
            ..process.fixed.clone()
        };
        let workers = *first.get_or_init(|| config.listening().workers);
        if let Some(near) = config.near() {
            // A reload keeps the number of threads: the limits are divided among them.
            near.workers = workers;
        }
        before.replace(Some(options));
        Ok(Loaded {
            drain_limit: process.drain_limit,
            fixed,
            warnings: Box::new(move || {
                let mut warnings = warned.warnings();
                warnings.extend(process.warnings());
                warnings
            }),
            role: Arc::new(config),
        })
    })
}

/// Implements [`Section`] for options in a table with the role's name.
macro_rules! section {
    ($options:ident => $config:ident, $name:ident, $field:ident $(, $more:item)?) => {
        impl Section for $options {
            type Config = $config;

            const NAME: RoleName = RoleName::$name;

            fn take(file: &mut File) -> Option<Self> {
                file.$field.take()
            }

            fn or(self, file: Self) -> Self {
                $options::or(self, file)
            }

            fn log(&self) -> Option<&str> {
                self.log.as_deref()
            }

            fn typed_with(self, transports: &Transports) -> Result<$config, ConfigError> {
                $options::typed_with(self, transports)
            }

            $($more)?
        }
    };
}
section!(
    ClientOptions => ClientConfig,
    Client,
    client,
    /// A file that is cut while it is written must not let connections show this machine's address.
    fn may_replace(&self, before: &Self) -> Result<(), ConfigError> {
        if before.via.is_some() && self.via.is_none() {
            let problem = "a reload does not remove it, since connections would then show the \
                           address of this machine: restart the client if you mean it";
            return Err(ConfigError::value("via", problem));
        }
        Ok(())
    }
);
section!(GatewayOptions => GatewayConfig, Gateway, gateway);
section!(RelayOptions => RelayConfig, Relay, relay);
section!(BridgeOptions => BridgeConfig, Bridge, bridge);

impl Configured for ClientConfig {
    fn warnings(&self) -> Vec<String> {
        Self::warnings(self)
    }

    fn look_up_names(&self, limit: Duration) -> Vec<ConfigError> {
        Self::look_up_names(self, limit)
    }

    fn near(&mut self) -> Option<&mut NearConfig> {
        None
    }

    fn process(&mut self) -> Process {
        Process {
            fixed: Fixed {
                metrics: self.metrics,
                admin: self.admin,
                control: self.control.clone(),
                workers: self.listening().workers,
                ..Fixed::default()
            },
            drain_limit: Duration::from_secs(10),
            max_connections: self.max_connections,
            slow_path: None,
        }
    }
}

impl Configured for GatewayConfig {
    fn warnings(&self) -> Vec<String> {
        Self::warnings(self)
    }

    fn near(&mut self) -> Option<&mut NearConfig> {
        Some(&mut self.near)
    }

    fn process(&mut self) -> Process {
        let predictor = self.push.as_ref().and_then(|push| push.predictor.clone());
        let mut process = self.near.process();
        process.fixed.predict = predictor;
        process.fixed.store = self.submission.as_ref().map(|it| it.store.clone());
        process
    }

    /// Checks a gateway for submissions without its store: opening the store would create it.
    fn check(&self) -> Result<(), ConfigError> {
        let Some(submission) = &self.submission else {
            return check_role(self);
        };
        submission.watch_rights(&Renewals::default())?;
        check_role(&Self {
            submission: None,
            ..self.clone()
        })
    }
}

impl Configured for RelayConfig {
    fn warnings(&self) -> Vec<String> {
        Self::warnings(self)
    }

    fn look_up_names(&self, limit: Duration) -> Vec<ConfigError> {
        Self::look_up_names(self, limit)
    }

    fn near(&mut self) -> Option<&mut NearConfig> {
        Some(&mut self.near)
    }
}

impl Configured for BridgeConfig {
    fn warnings(&self) -> Vec<String> {
        Self::warnings(self)
    }

    fn near(&mut self) -> Option<&mut NearConfig> {
        Some(&mut self.near)
    }
}

impl NearConfig {
    fn process(&self) -> Process {
        Process {
            fixed: Fixed {
                metrics: self.metrics,
                admin: self.admin,
                control: self.control.clone(),
                workers: self.workers,
                ..Fixed::default()
            },
            drain_limit: self.drain_timeout,
            max_connections: self.max_connections,
            slow_path: Some(self.path.socket.clone()),
        }
    }
}

#[cfg(feature = "submit")]
mod issuer {
    use super::*;
    use crate::config::{IssuerConfig, IssuerOptions};

    section!(IssuerOptions => IssuerConfig, Issuer, issuer);

    impl Configured for IssuerConfig {
        fn warnings(&self) -> Vec<String> {
            self.near.warnings()
        }

        fn near(&mut self) -> Option<&mut NearConfig> {
            Some(&mut self.near)
        }

        fn process(&mut self) -> Process {
            Process {
                slow_path: None,
                ..self.near.process()
            }
        }

        /// Checks the listeners: opening the issuer would create its keys.
        fn check(&self) -> Result<(), ConfigError> {
            Self::check(self)
        }
    }
}

/// Returns a warning if the kernel lacks the congestion control: a lossy path is slow without it.
fn warning_of_congestion(options: &SocketOptions) -> Option<String> {
    let error = options.congestion_refused()?;
    Some(format!(
        "the kernel lacks the congestion control {} ({error}) and uses its default, which takes \
         every loss for congestion and forgets an idle path: load it (modprobe tcp_bbr), or set \
         congestion = \"\" to accept the default",
        options.congestion
    ))
}

fn check_role(role: &dyn Role) -> Result<(), ConfigError> {
    let listen = role.listen().iter();
    let addresses: Vec<_> = listen.filter_map(Endpoint::socket_addr).collect();
    role.build(&Services::default(), &addresses, &Drain::new())?;
    Ok(())
}
