//! The plan of a load: the next resource, and the connection for it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::OnceCell;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{Id, JoinSet};
use tokio_rustls::TlsConnector;

use super::connection::{Goal, LoaderConnection};
use super::cookies::Cookies;
use super::fetch::{Done, Job};
use super::metered::Traffic;
use super::session::LoaderSession;
use super::{Ahead, Discovery, Fault, Load, LoadError, Loader, Protocol};
use crate::page::{Kept, Site};

/// A page load in progress.
pub(super) struct Plan {
    loader: Arc<Loader>,
    site: Site,
    cookies: Arc<Cookies>,
    tls: TlsConnector,
    start: Instant,
    /// The time at which each resource became known.
    known: Vec<Option<Instant>>,
    known_count: usize,
    hosts: Vec<Host>,
    jobs: JoinSet<Result<Done, Fault>>,
    /// The connections in advance, each with its host.
    dials: JoinSet<(usize, Result<LoaderConnection, Fault>)>,
    /// Which resource a task loads, and for which host.
    tasks: HashMap<Id, (usize, usize)>,
    found: (UnboundedSender<usize>, UnboundedReceiver<usize>),
    traffic: Traffic,
    load: Load,
}

/// Requests waiting for an authority, and its connections.
#[derive(Default)]
struct Host {
    /// Most urgent first, in the order of the page among equals.
    waiting: BinaryHeap<Reverse<(u8, usize)>>,
    idle: Vec<LoaderConnection>,
    busy: usize,
    session: Arc<OnceCell<LoaderSession>>,
}

impl Plan {
    pub(super) fn new(loader: Loader, site: Site, tls: TlsConnector, start: Instant) -> Self {
        let count = site.page().resources.len();
        let load = Load::empty(site.page().name.clone());
        Self {
            cookies: match &loader.jar {
                Some(jar) => Arc::clone(&jar.0),
                None => Arc::new(Cookies::new(&site, loader.revisit.is_some())),
            },
            loader: Arc::new(loader),
            tls,
            start,
            known: vec![None; count],
            known_count: 0,
            hosts: site.authorities().iter().map(|_| Host::default()).collect(),
            site,
            jobs: JoinSet::new(),
            dials: JoinSet::new(),
            tasks: HashMap::new(),
            found: unbounded_channel(),
            traffic: Traffic::default(),
            load,
        }
    }

    /// Opens the connections in advance, or begins to dial them. The load starts now.
    pub(super) async fn open_ahead(&mut self) -> Result<(), LoadError> {
        let hosts = match self.loader.ahead {
            Ahead::None => return Ok(()),
            Ahead::Page => self.host_of(0)..self.host_of(0) + 1,
            Ahead::All => 0..self.hosts.len(),
        };
        for host in hosts {
            for _ in 0..self.loader.per_host {
                let (loader, site, tls) = (
                    Arc::clone(&self.loader),
                    self.site.clone(),
                    self.tls.clone(),
                );
                self.dials.spawn(async move {
                    let goal = Goal {
                        scheme: site.scheme(),
                        authority: &site.authorities()[host],
                    };
                    (host, LoaderConnection::open(&loader, &tls, goal).await)
                });
            }
        }
        while self.loader.ahead == Ahead::All
            && let Some(dialled) = self.dials.join_next().await
        {
            self.take_ahead(dialled)?;
        }
        self.start = Instant::now();
        Ok(())
    }

    fn take_ahead(
        &mut self,
        dialled: Result<(usize, Result<LoaderConnection, Fault>), tokio::task::JoinError>,
    ) -> Result<(), LoadError> {
        let (host, connection) =
            dialled.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        let connection = connection.map_err(|fault| LoadError::Resource {
            url: self.site.authorities()[host].clone(),
            fault,
        })?;
        self.load.connections += 1;
        self.hosts[host].idle.push(connection);
        Ok(())
    }

    /// Loads until nothing more is known.
    pub(super) async fn run(&mut self) -> Result<(), LoadError> {
        for index in 0..self.known.len() {
            if self.loader.discovery == Discovery::List
                || self.site.page().resources[index].parent.is_none()
            {
                self.discover(index);
            }
        }
        loop {
            self.dispatch();
            tokio::select! {
                // References first: they came before the end of the resource that mentions them.
                biased;
                Some(index) = self.found.1.recv() => self.discover(index),
                Some(dialled) = self.dials.join_next() => self.take_ahead(dialled)?,
                ended = self.jobs.join_next_with_id() => match ended {
                    None => return Ok(()),
                    Some(ended) => self.finish(ended)?,
                },
            }
        }
    }

    /// Queues a resource that was not known yet.
    fn discover(&mut self, index: usize) {
        if self.known[index].is_some() {
            return;
        }
        self.known[index] = Some(Instant::now());
        self.known_count += 1;
        if self.kept(index) == Kept::Fresh {
            let site = self.site.clone();
            let references = &site.asset(index).references;
            return references.iter().for_each(|one| self.discover(one.child));
        }
        let rank = self.site.page().resources[index].kind.rank();
        let host = self.host_of(index);
        self.hosts[host].waiting.push(Reverse((rank, index)));
    }

    /// The copy of a resource in the browser's cache.
    fn kept(&self, index: usize) -> Kept {
        let age = self.loader.revisit;
        age.map_or(Kept::Absent, |age| self.site.kept(index, age))
    }

    fn host_of(&self, index: usize) -> usize {
        self.site.page().resources[index].host % self.hosts.len()
    }

    /// Starts the requests that may start.
    fn dispatch(&mut self) {
        for host in 0..self.hosts.len() {
            while !self.hosts[host].waiting.is_empty() && self.may_start(host) {
                let Some(Reverse((_, index))) = self.hosts[host].waiting.pop() else {
                    break;
                };
                let connection = self.hosts[host].idle.pop();
                self.hosts[host].busy += 1;
                let job = Job {
                    loader: Arc::clone(&self.loader),
                    site: self.site.clone(),
                    resource: index,
                    is_conditional: self.kept(index) == Kept::Stale,
                    cookies: Arc::clone(&self.cookies),
                    connection,
                    session: Arc::clone(&self.hosts[host].session),
                    tls: self.tls.clone(),
                    found: self.found.0.clone(),
                    origin: self.start,
                    known: self.known[index].unwrap_or(self.start),
                };
                let task = self.jobs.spawn(job.run());
                self.tasks.insert(task.id(), (index, host));
            }
        }
    }

    /// Returns true if `host` has a free connection or may open another one; an idle connection of
    /// another host makes room.
    fn may_start(&mut self, host: usize) -> bool {
        let own = &self.hosts[host];
        if !own.idle.is_empty() {
            return true;
        }
        if own.busy >= self.loader.per_host {
            return false;
        }
        if self.loader.protocol == Protocol::H2 {
            return true;
        }
        let open: usize = self.hosts.iter().map(|h| h.busy + h.idle.len()).sum();
        open < self.loader.total || self.hosts.iter_mut().any(|h| h.idle.pop().is_some())
    }

    fn finish(
        &mut self,
        ended: Result<(Id, Result<Done, Fault>), tokio::task::JoinError>,
    ) -> Result<(), LoadError> {
        let (id, result) = match ended {
            Ok(ended) => ended,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        let (index, host) = self
            .tasks
            .remove(&id)
            .expect("every task is entered when it starts");
        self.hosts[host].busy -= 1;
        let mut done = result.map_err(|fault| LoadError::Resource {
            url: self.site.url(index),
            fault,
        })?;
        self.traffic = self.traffic.and(done.traffic);
        self.load.add(&done);
        if let Some(connection) = done.connection.take() {
            self.hosts[host].idle.push(connection);
        }
        let site = self.site.clone();
        for reference in &site.asset(index).references {
            self.discover(reference.child);
        }
        Ok(())
    }

    pub(super) fn deadline_error(&self) -> LoadError {
        LoadError::Deadline {
            done: self.load.requests.len(),
            known: self.known_count,
            after: self.loader.deadline,
        }
    }

    pub(super) fn into_load(mut self) -> Load {
        if let (Some(first), Some(last)) = (self.traffic.first_sent, self.traffic.last_received) {
            self.load.time = last - first;
        }
        self.load
    }
}
