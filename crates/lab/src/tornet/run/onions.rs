//! The programs of onion services: their origins and gateways. The names of the services are known
//! only when the onion host's `tor` has made their keys.

use std::ffi::OsStr;
use std::fs;

use super::parts::origin_arguments;
use super::{Request, Tornet, TornetOrigin};
use crate::tornet::layout::Role;
use crate::tornet::state::OnionEndpoint;
use crate::tornet::{TornetError, torrc};

impl Tornet {
    /// Learns the names of all services, and starts their programs.
    pub(super) fn start_onions(&mut self, request: &Request) -> Result<(), TornetError> {
        self.learn_onions(request)?;
        self.directory.save(&self.state)?;
        self.launch_onion_origin(request)?;
        self.launch_onion_sites(request)
    }

    fn learn_onions(&mut self, request: &Request) -> Result<(), TornetError> {
        let (root, node) = (self.directory.path(), self.layout.node(Role::Onion));
        let name = |service: std::path::PathBuf| {
            let file = service.join("hostname");
            let name = fs::read_to_string(&file)
                .map_err(TornetError::of(format!("read {}", file.display())))?;
            Ok::<_, TornetError>(name.trim().to_owned())
        };
        let first = name(torrc::service_directory(root, node))?;
        let sites = &request.variant.onions;
        let others = sites.sites().map(|site| {
            Ok(OnionEndpoint {
                host: name(site.directory(root, node))?,
                page: sites.page(site).to_owned(),
                has_gateway: site.has_gateway,
            })
        });
        let others = others.collect::<Result<_, TornetError>>()?;
        self.state.endpoints.onion = Some(first);
        self.state.endpoints.onions = others;
        Ok(())
    }

    /// Starts the origin of the first service, which serves the first page.
    fn launch_onion_origin(&mut self, request: &Request) -> Result<(), TornetError> {
        let TornetOrigin::Pages(program, pages) = &request.origin else {
            return Ok(());
        };
        let (Some(page), Some(name)) = (pages.first(), self.state.endpoints.onion.clone()) else {
            return Ok(());
        };
        let node = self.layout.node(Role::Onion).clone();
        let arguments = origin_arguments("127.0.0.1:80", page, &name);
        self.launch(&node, "origin", program, &arguments)
    }

    fn launch_onion_sites(&mut self, request: &Request) -> Result<(), TornetError> {
        let (TornetOrigin::Pages(origin, _), Some(gateway)) = (&request.origin, &request.gateway)
        else {
            return match request.variant.onions.count {
                0 => Ok(()),
                _ => Err(TornetError::State(
                    "onion services with pages need an origin and a gateway".into(),
                )),
            };
        };
        let node = self.layout.node(Role::Onion).clone();
        let endpoints = self.state.endpoints.onions.clone();
        for (site, OnionEndpoint { host, page, .. }) in
            request.variant.onions.sites().zip(endpoints)
        {
            let (number, listen) = (site.number, site.origin());
            let arguments = origin_arguments(&listen, &page, &host);
            self.launch(&node, &format!("origin-onion{number}"), origin, &arguments)?;
            if site.has_gateway {
                let arguments = site.gateway_arguments(&host);
                let arguments: Vec<&OsStr> = arguments.iter().map(AsRef::as_ref).collect();
                self.launch(
                    &node,
                    &format!("gateway-onion{number}"),
                    gateway,
                    &arguments,
                )?;
            }
        }
        Ok(())
    }
}
