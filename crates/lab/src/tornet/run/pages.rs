//! Waits until the network carries pages.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use super::{Tornet, site_name};
use crate::tornet::control::Control;
use crate::tornet::{TornetError, check};

/// The time limit for one fetch.
const FETCH: Duration = Duration::from_secs(30);

impl Tornet {
    /// Waits until a page comes through the exit and from each onion service.
    pub(super) fn wait_for_pages(
        &self,
        start: Instant,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), TornetError> {
        let ends = &self.state.endpoints;
        let onions = ends.onions.iter().map(|site| &site.host);
        let onions = ends.onion.iter().chain(onions).cloned().collect();
        self.wait_for_hosts("exit", vec![site_name(1)], start, progress)?;
        self.wait_for_hosts("onion service", onions, start, progress)
    }

    /// Waits until a page comes from each of these hosts. They are asked at the same time, since a
    /// circuit to an onion service takes seconds.
    fn wait_for_hosts(
        &self,
        what: &str,
        mut hosts: Vec<String>,
        start: Instant,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), TornetError> {
        let ends = &self.state.endpoints;
        let socks = &ends.socks_socket;
        while !hosts.is_empty() {
            let pages: Vec<_> = thread::scope(|scope| {
                let fetches = hosts
                    .iter()
                    .map(|host| scope.spawn(move || check::fetch(socks, host, FETCH)));
                let fetches: Vec<_> = fetches.collect();
                let pages = fetches.into_iter().map(thread::ScopedJoinHandle::join);
                let panicked = |_| Err(io::Error::other("the thread of the fetch panicked"));
                pages.map(|page| page.unwrap_or_else(panicked)).collect()
            });
            let mut failed = None;
            let mut pages = pages.into_iter();
            hosts.retain(|_| match pages.next() {
                Some(Ok(page)) => {
                    let (connected, first_byte) = (page.connected, page.first_byte);
                    progress(&format!(
                        "{:3.0} s: {what}: {}, connected in {connected:.0?}, first byte after \
                         {first_byte:.0?}",
                        start.elapsed().as_secs_f64(),
                        page.status
                    ));
                    false
                }
                Some(Err(error)) => {
                    failed = Some(error);
                    true
                }
                None => true,
            });
            if let Some(error) = failed {
                // Until then, tor uses no introduction point again that has failed, for minutes.
                Control::connect(&ends.control_socket)?.ask("SIGNAL NEWNYM")?;
                self.pause(start, &format!("no page through the {what}: {error}"))?;
            }
        }
        Ok(())
    }
}
