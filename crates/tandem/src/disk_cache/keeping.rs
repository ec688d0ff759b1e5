//! The thread that deletes, writes and reads the files.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tandem_cache::{Incoming, Name};
use tandem_fleet::{FleetKey, GatewayId, Keeper, ResponseSealer, response};
use tokio::sync::oneshot;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::ServedCache;
use super::directory::CacheDirectory;
use crate::journal::Problems;
use crate::metrics::METRICS;
use crate::response_cache::ResponseCache;
use crate::response_cache::link::{LookupQuestion, LookupQuestions};

/// The pause after which the thread looks for changes of the cache.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// The files that are deleted before the thread looks for a question.
const DELETED_AT_ONCE: usize = 64;

/// The time for the writes that wait when the process ends.
const LAST_WRITES_TIMEOUT: Duration = Duration::from_secs(2);

/// The end of the use of a directory.
#[derive(Debug)]
pub(super) enum DiskEnd {
    /// The files serve a later process, which finds this mark.
    Keep(Name),
    /// The files serve nobody.
    Leave,
    /// The files are deleted.
    Delete,
}

/// The state of the thread.
pub(super) struct Keeping {
    directory: CacheDirectory,
    key: FleetKey,
    sealer: ResponseSealer,
    place: ServedCache,
    faults: Arc<Problems>,
    has_warned: bool,
}

/// The name of the fault of a disk that is not used any more.
pub(super) const FAULT: &str = "cache-dir";

impl Keeping {
    /// Prepares the thread. The identifier of the `run` must be random.
    pub(super) fn new(
        directory: CacheDirectory,
        key: &FleetKey,
        run: GatewayId,
        place: ServedCache,
        faults: Arc<Problems>,
    ) -> Self {
        Self {
            directory,
            key: key.clone(),
            sealer: ResponseSealer::new(Keeper::Disk, key, run),
            place,
            faults,
            has_warned: false,
        }
    }

    /// Works until `stopped`, or until the disk fails.
    pub(super) async fn run(
        mut self,
        mut questions: LookupQuestions,
        stopped: oneshot::Receiver<DiskEnd>,
    ) {
        let end = self.work(&mut questions, stopped).await;
        questions.refuse();
        let ended = end.and_then(|end| self.end(end));
        if let Err(error) = ended {
            self.fail(&error);
        }
        METRICS.cache_disk_up.set(0);
    }

    async fn work(
        &mut self,
        questions: &mut LookupQuestions,
        mut stopped: oneshot::Receiver<DiskEnd>,
    ) -> std::io::Result<DiskEnd> {
        let mut looks = interval(LOOK_PAUSE);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_busy = false;
        loop {
            tokio::select! {
                end = &mut stopped => return Ok(end.unwrap_or(DiskEnd::Leave)),
                Some(question) = questions.next() => self.answer(question)?,
                () = pause(is_busy, &mut looks) => is_busy = self.step()?,
            }
        }
    }

    fn cache(&self) -> Arc<ResponseCache> {
        let place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&place)
    }

    /// Deletes some files, or writes one. Returns false if there is nothing to do.
    fn step(&mut self) -> std::io::Result<bool> {
        let cache = self.cache();
        let doomed = cache.with_disk(|index| index.take_doomed(DELETED_AT_ONCE));
        let doomed = doomed.unwrap_or_default();
        for name in &doomed {
            self.directory.remove(name)?;
        }
        if !doomed.is_empty() {
            let bytes = cache.with_disk(|index| index.bytes());
            METRICS.cache_disk_bytes.set(bytes.unwrap_or_default());
            return Ok(true);
        }
        let now = cache.now();
        let Some(outgoing) = cache.lock().take_write(now) else {
            return Ok(false);
        };
        let name = outgoing.name;
        let content = outgoing.write(now);
        let sealed = content.and_then(|content| self.sealer.seal(&name, &content));
        let Some(sealed) = sealed else {
            // Without a clock, or with fields of unusual length, the response stays in memory only.
            cache.with_disk(|index| index.remove(&name));
            return Ok(true);
        };
        match self.directory.write(&name, &sealed) {
            Err(error) if is_of_process(&error) => {
                cache.with_disk(|index| index.remove(&name));
                return Ok(true);
            }
            written => written?,
        }
        let length = sealed.len() as u64;
        let is_kept = cache.with_disk(|index| {
            let is_kept = index.finish(name, length);
            METRICS.cache_disk_bytes.set(index.bytes());
            is_kept
        });
        if is_kept != Some(true) {
            self.directory.remove(&name)?;
        }
        METRICS.cache_disk_written.add(1);
        Ok(true)
    }

    /// Answers a question, unless the file is damaged.
    fn answer(&mut self, question: LookupQuestion) -> std::io::Result<()> {
        let name = question.name;
        let sealed = match self.directory.read(&name, Keeper::Disk.max_sealed() + 1) {
            Err(error) if is_of_process(&error) => return Ok(()),
            sealed => sealed?,
        };
        let content = sealed.and_then(|it| response::open(Keeper::Disk, &self.key, &name, it));
        match content.and_then(|it| Incoming::read_from_disk(&Bytes::from(it))) {
            Some(incoming) => question.answer(incoming),
            None => self.drop_damaged(&name),
        }
        Ok(())
    }

    /// Removes a file with other content than was written from the index, unless its response was
    /// removed before.
    fn drop_damaged(&mut self, name: &Name) {
        if self.cache().with_disk(|index| index.remove(name)) != Some(true) {
            return;
        }
        METRICS.cache_disk_damaged.add(1);
        if !std::mem::replace(&mut self.has_warned, true) {
            let directory = self.directory.path().display();
            tracing::warn!(
                "{directory}: a file is not as it was written; it and others like it are deleted"
            );
        }
    }

    fn end(&mut self, end: DiskEnd) -> std::io::Result<()> {
        match end {
            DiskEnd::Leave => Ok(()),
            DiskEnd::Delete => {
                self.cache().close_disk();
                self.delete_all()
            }
            DiskEnd::Keep(mark) => {
                let began = std::time::Instant::now();
                while began.elapsed() < LAST_WRITES_TIMEOUT && self.step()? {}
                // From now on the cache notes no changes: no session is left that causes any.
                let Some(mut index) = self.cache().close_disk() else {
                    return Ok(());
                };
                loop {
                    let doomed = index.take_doomed(DELETED_AT_ONCE);
                    if doomed.is_empty() {
                        return self.directory.put_mark(&mark);
                    }
                    for name in &doomed {
                        self.directory.remove(name)?;
                    }
                }
            }
        }
    }

    fn delete_all(&self) -> std::io::Result<()> {
        for found in self.directory.list()? {
            self.directory.remove(&found.name)?;
        }
        Ok(())
    }

    /// Ends the use of a disk that failed, and gives back its space as far as possible.
    fn fail(&self, error: &std::io::Error) {
        self.cache().close_disk();
        METRICS.cache_disk_errors.add(1);
        METRICS.cache_disk_bytes.set(0);
        let directory = self.directory.path().display();
        tracing::error!(
            %error,
            "{directory}: the gateway serves on without its disk; a restart tries it again"
        );
        let fault = format!(
            "the cache has lost its disk in {directory} ({error}): check the disk and its free \
             space, and restart the gateway to use it again"
        );
        self.faults.set(FAULT, Some(&fault));
        // The first error is the one to report.
        let _ = self.delete_all();
    }
}

/// Returns true for an error that passes and tells nothing about the disk: many connections use all
/// descriptors. One request goes without the disk then, or one response is not written.
fn is_of_process(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Waits for the next look, or for a moment only in which questions may come.
async fn pause(is_busy: bool, looks: &mut Interval) {
    match is_busy {
        true => tokio::task::yield_now().await,
        false => drop(looks.tick().await),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lack_of_descriptors_is_no_failure_of_the_disk() {
        for (code, expected) in [
            (libc::EMFILE, true),
            (libc::ENFILE, true),
            (libc::ENOSPC, false),
            (libc::EIO, false),
        ] {
            let error = std::io::Error::from_raw_os_error(code);
            assert_eq!(is_of_process(&error), expected, "{error}");
        }
    }
}
