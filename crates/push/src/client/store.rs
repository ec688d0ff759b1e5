//! The state machine of the pushes of one session at the client.
//!
//! The caller reads each push with one task and passes the parts on; a reader takes them out
//! again. Decisions that concern other tasks are [`Output`]s.

mod changes;
mod checks;
mod claims;
mod cookies;
mod output;
mod sharing;
mod waiting;

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tandem_http::cache::validation::validates_copy;
use tandem_http::{Fields, Method, RequestHead, ResponseHead};

use super::documents::RequestedDocuments;
use super::later_cookies::LaterCookies;
use super::lifetime::{PageLoad, is_confirmation, is_of_use};
pub use super::pushed::PushId;
use super::pushed::{
    ArrivedResponse, Change, KeptPush, Phase, Pushed, Reader, Target, size_of_fields,
    size_of_promise,
};
pub use output::{Intake, Output, Piece, Serve};

use super::stored_head::with_age;
use crate::wire::{Fate, url_hash};

/// The pushes that a session may have at once, whatever their size.
pub const MAX_PUSHES: usize = 4096;

/// The length in bytes above which a useless push is cancelled, unless [`StoreLimits::memory`] is
/// larger. Only a decompression bomb is so long.
const LONGEST_USELESS: u64 = 32 << 20;

/// The time between two searches for responses that have waited too long.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// The limits of a store, and its treatment of useless pushes.
#[derive(Clone, Copy, Debug)]
pub struct StoreLimits {
    /// The bytes of pushes that wait for a request: promises, heads, bodies and bookkeeping.
    pub memory: usize,
    /// True if useless pushes are cancelled instead of read to their end. Endless ones always are.
    pub cancel_useless: bool,
}

/// The pushes of one session.
#[derive(Debug)]
pub struct PushStore {
    limits: StoreLimits,
    /// The pushes that wait for a request.
    waiting: HashMap<Target, PushId>,
    pushes: HashMap<PushId, Pushed>,
    next_id: u64,
    /// The number of the first push after the last change that a tunnel hides.
    hidden_change: u64,
    /// The bytes that are counted for all pushes.
    held: usize,
    load: PageLoad,
    documents: RequestedDocuments,
    /// The time of the next sweep, while a push waits.
    next_sweep: Option<Instant>,
    outputs: VecDeque<Output>,
    /// True if the gateway's half is in this process.
    is_gateway_local: bool,
    later_cookies: LaterCookies,
}

impl PushStore {
    /// Creates an empty store.
    pub fn new(limits: StoreLimits, now: Instant) -> Self {
        Self {
            limits,
            waiting: HashMap::new(),
            pushes: HashMap::new(),
            next_id: 0,
            hidden_change: 0,
            held: 0,
            load: PageLoad::new(now),
            documents: RequestedDocuments::default(),
            next_sweep: None,
            outputs: VecDeque::new(),
            is_gateway_local: false,
            later_cookies: LaterCookies::default(),
        }
    }

    /// Lets requests join pushes without a head however old these are. A gateway's half in this
    /// process makes the fetch at once, and a separate request would only double it.
    #[must_use]
    pub fn with_local_gateway(mut self) -> Self {
        self.is_gateway_local = true;
        self
    }

    /// Returns whether the store takes any push.
    pub const fn takes_pushes(&self) -> bool {
        self.limits.memory > 0
    }

    /// Returns the bytes that are counted for all pushes.
    pub const fn held(&self) -> usize {
        self.held
    }

    /// Returns the number of pushes that are kept, served, or read to their end.
    pub fn len(&self) -> usize {
        self.pushes.len()
    }

    /// Returns whether there is no push.
    pub fn is_empty(&self) -> bool {
        self.pushes.is_empty()
    }

    /// Returns the next decision for the caller's tasks.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns the time at which [`PushStore::handle_timeout`] has work.
    pub const fn next_timeout(&self) -> Option<Instant> {
        self.next_sweep
    }

    /// Drops the responses that have waited too long.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.next_sweep.is_some_and(|at| at <= now) {
            self.sweep(now);
        }
    }

    /// Takes a promise. If it is kept, it replaces an unclaimed push of the same URL, because the
    /// gateway pushes again only for another page. If `has_own_fields` is true, the promise carries
    /// the fields of the gateway's own request, as in HTTP/2.
    pub fn on_promise(
        &mut self,
        now: Instant,
        request: RequestHead,
        has_own_fields: bool,
    ) -> Intake {
        self.load.note(now);
        let url = url_hash(&request);
        let target = Target::of(&request);
        let replaced = self.waiting.get(&target).copied();
        let (bytes, entries) = replaced.map_or((0, 0), |id| self.would_free(id));
        let size = size_of_promise(&request);
        let has_room = self.held - bytes + size <= self.limits.memory
            && self.pushes.len() - entries < MAX_PUSHES;
        // The head of an earlier push is as good as that of a check, so the check is not needed.
        let is_kept = has_room
            && match request.method {
                Method::Get if !validates_copy(&request.fields) => true,
                Method::Get | Method::Head => !replaced.is_some_and(|id| self.has_head(id)),
                _ => false,
            };
        if !is_kept && (self.limits.cancel_useless || self.pushes.len() >= MAX_PUSHES) {
            self.report(Fate::Cancelled, url, true);
            return Intake::Cancel;
        }
        let id = PushId(self.next_id);
        self.next_id += 1;
        let phase = if is_kept {
            if let Some(replaced) = replaced {
                self.drop_replaced(replaced);
            }
            self.held += size;
            self.waiting.insert(target, id);
            self.next_sweep.get_or_insert(now + SWEEP_INTERVAL);
            let has_own_fields = has_own_fields && !request.fields.is_empty();
            Phase::Kept(Box::new(KeptPush {
                cookies_of: self.later_cookies.count_before_promise(),
                ..KeptPush::new(now, request, has_own_fields)
            }))
        } else {
            Phase::Useless(Fate::Cancelled)
        };
        let pushed = Pushed {
            url,
            phase,
            received: 0,
            used: 0,
            reported: None,
            is_arriving: true,
            copy: None,
            copy_of: None,
        };
        self.pushes.insert(id, pushed);
        Intake::Read(id)
    }

    /// Takes the head of a push.
    pub fn on_head(&mut self, now: Instant, id: PushId, head: ResponseHead) {
        self.load.note(now);
        self.copy_head(now, id, &head);
        if self.arriving_mut(id).is_none() {
            return;
        }
        let arrived = ArrivedResponse::new(now, head);
        let (head, size) = (&arrived.head, size_of_fields(&arrived.head.fields));
        let kept = self.kept_mut(id);
        let is_repeated = kept.as_ref().is_some_and(|kept| kept.response.is_some());
        let was_check = kept.as_ref().is_some_and(|kept| kept.is_check());
        let is_head = kept
            .as_ref()
            .is_some_and(|it| it.request.method == Method::Head);
        let is_check = was_check && (is_head || head.status == 304);
        let is_too_old = kept.as_ref().is_some_and(|kept| kept.is_outdated(&arrived));
        let is_document = kept.is_some_and(|kept| kept.is_document());
        let phase = self.pushes.get(&id).map(|pushed| &pushed.phase);
        let is_awaited = matches!(phase, Some(Phase::Claimed(..)));
        let is_of_use = match is_check {
            true => is_confirmation(head),
            false => is_of_use(head, is_awaited || is_document),
        };
        if is_repeated || is_too_old || !is_of_use || !self.reserve(id, size) {
            return self.discard(id, Fate::Cancelled);
        }
        let Some(pushed) = self.arriving_mut(id) else {
            return;
        };
        let Some(kept) = pushed.phase.kept_mut() else {
            return;
        };
        kept.response = Some(arrived);
        // A request that joined before the head can be compared completely now.
        let fits = match self.pushes.get(&id).map(|pushed| &pushed.phase) {
            Some(Phase::Claimed(kept, reader)) => {
                let asked = &reader.request;
                self.later_cookies.permit(kept, asked)
                    && kept.keeps_limits(now, asked, true, &self.load)
            }
            _ => true,
        };
        if !fits {
            self.discard(id, Fate::Cancelled);
        } else if is_check && is_awaited {
            self.end_check(now, id);
        } else if !self.confirm_joined(now, id) {
            if was_check && is_awaited {
                self.report_late(id);
            }
            self.outputs.push_back(Output::WakeReader(id));
        }
    }

    /// Takes bytes of a push's body.
    pub fn on_data(&mut self, now: Instant, id: PushId, data: Bytes) {
        self.load.note(now);
        self.copy_data(now, id, &data);
        let longest = LONGEST_USELESS.max(self.limits.memory as u64);
        if let Some(pushed) = self.arriving_mut(id) {
            pushed.received += data.len() as u64;
            // The length alone decides, so the cancellation tells nothing about the browser.
            if pushed.received > longest && pushed.phase.kept_mut().is_none() {
                self.end_arrival(id, true);
            }
        }
        if !self.reserve(id, data.len()) {
            return self.discard(id, Fate::Cancelled);
        }
        let Some(pushed) = self.arriving_mut(id) else {
            return;
        };
        let is_first = pushed.received == data.len() as u64;
        let (url, is_claimed) = (pushed.url, matches!(pushed.phase, Phase::Claimed(..)));
        if let Some(kept) = pushed.phase.kept_mut() {
            kept.body.push_back(data);
            if let Some(response) = &mut kept.response {
                response.last_part = now;
            }
            self.outputs.push_back(match is_first && !is_claimed {
                true => Output::Arrives { url },
                false => Output::WakeReader(id),
            });
        }
    }

    /// Takes the fields after a push's body.
    pub fn on_trailers(&mut self, id: PushId, fields: Fields) {
        self.copy_trailers(id, &fields);
        if !self.reserve(id, size_of_fields(&fields)) {
            return self.discard(id, Fate::Cancelled);
        }
        if let Some(kept) = self.kept_mut(id) {
            kept.trailers = Some(fields);
        }
    }

    /// Takes the end of a push. `is_complete` is false for one that broke off or was cancelled.
    pub fn on_end(&mut self, id: PushId, is_complete: bool) {
        self.end_copy(id, is_complete);
        let Some(pushed) = self.arriving_mut(id) else {
            return;
        };
        pushed.is_arriving = false;
        let has_head = pushed
            .phase
            .kept_mut()
            .is_some_and(|kept| kept.response.is_some());
        if is_complete && has_head {
            self.outputs.push_back(Output::WakeReader(id));
        } else {
            if self.is_gateway_local && !has_head {
                self.note_withdrawal(id);
            }
            self.discard(id, Fate::Cancelled);
        }
        self.release(id);
    }

    /// Handles the withdrawal of a push without a head. A gateway in this process has forgotten the
    /// push, and may have promised the same URL again. It would relate a report to the later push.
    fn note_withdrawal(&mut self, id: PushId) {
        let Some(pushed) = self.pushes.get_mut(&id) else {
            return;
        };
        if matches!(pushed.phase, Phase::Kept(_)) {
            pushed.reported = Some(Fate::Cancelled);
            let url = pushed.url;
            self.report(Fate::Cancelled, url, false);
        }
    }

    /// Returns whether the caller should read more of a push. Without free memory, the caller reads
    /// only as fast as the reader takes the data.
    pub fn has_room(&self, id: PushId) -> bool {
        let has_own_room = match self.pushes.get(&id).map(|pushed| &pushed.phase) {
            Some(Phase::Claimed(kept, _)) => kept.body.is_empty() || self.held < self.limits.memory,
            _ => true,
        };
        has_own_room && self.copy_has_room(id)
    }

    /// Takes the next piece of a claimed push.
    pub fn take_piece(&mut self, now: Instant, id: PushId) -> Piece {
        let Some(pushed) = self.pushes.get_mut(&id) else {
            return Piece::Broken;
        };
        let is_arriving = pushed.is_arriving;
        if let Phase::Confirmed(head) = &mut pushed.phase {
            return head.take().map_or(Piece::End, |head| Piece::Head(*head));
        }
        let Phase::Claimed(kept, reader) = &mut pushed.phase else {
            return Piece::Broken;
        };
        if !reader.has_head {
            let is_held = reader.awaits_body && is_arriving && kept.body.is_empty();
            let Some(response) = kept.response.as_ref().filter(|_| !is_held) else {
                return Piece::Pending;
            };
            reader.has_head = true;
            return Piece::Head(with_age(&response.head, now - kept.promised));
        }
        if let Some(data) = kept.body.pop_front() {
            kept.held -= data.len();
            self.held -= data.len();
            pushed.used += data.len() as u64;
            self.outputs
                .push_back(Output::WakeArrival(pushed.copy_of.unwrap_or(id)));
            return Piece::Data(data);
        }
        if is_arriving {
            return Piece::Pending;
        }
        let Some(fields) = kept.trailers.take() else {
            return Piece::End;
        };
        let size = size_of_fields(&fields);
        kept.held -= size;
        self.held -= size;
        Piece::Trailers(fields)
    }

    /// Returns the request of a claimed push.
    pub fn claimed_request(&self, id: PushId) -> Option<&RequestHead> {
        match &self.pushes.get(&id)?.phase {
            Phase::Claimed(_, reader) => Some(&reader.request),
            _ => None,
        }
    }

    /// Handles the end of a reader. The rest of its push is thrown away.
    pub fn on_reader_gone(&mut self, id: PushId) {
        if let Some(pushed) = self.pushes.get_mut(&id)
            && matches!(pushed.phase, Phase::Confirmed(_))
        {
            pushed.phase = Phase::Useless(Fate::Validated);
        }
        self.discard(id, Fate::Cancelled);
        self.release(id);
    }

    /// Returns the push, unless it has ended already.
    fn arriving_mut(&mut self, id: PushId) -> Option<&mut Pushed> {
        self.pushes.get_mut(&id).filter(|pushed| pushed.is_arriving)
    }

    /// Returns the held parts of a push that has not ended.
    fn kept_mut(&mut self, id: PushId) -> Option<&mut KeptPush> {
        self.arriving_mut(id)?.phase.kept_mut()
    }

    /// Returns the bytes and the entries that the store would free with a waiting push.
    fn would_free(&self, id: PushId) -> (usize, usize) {
        match self.pushes.get(&id) {
            Some(Pushed {
                phase: Phase::Kept(kept),
                is_arriving,
                ..
            }) => (kept.held, usize::from(!is_arriving)),
            _ => (0, 0),
        }
    }

    /// Counts more bytes of a push. Returns false if there is no room and no request waits for the
    /// push.
    fn reserve(&mut self, id: PushId, bytes: usize) -> bool {
        let has_room = self.held + bytes <= self.limits.memory;
        let Some(pushed) = self.arriving_mut(id) else {
            return true;
        };
        let may_exceed = matches!(pushed.phase, Phase::Claimed(..));
        let Some(kept) = pushed.phase.kept_mut() else {
            return true;
        };
        let is_counted = may_exceed || has_room;
        if is_counted {
            kept.held += bytes;
            self.held += bytes;
        }
        is_counted
    }

    /// Throws away the parts of a push, and those that are to arrive.
    fn discard(&mut self, id: PushId, fate: Fate) {
        let Some(pushed) = self.pushes.get_mut(&id) else {
            return;
        };
        let (kept, is_claimed) = match std::mem::replace(&mut pushed.phase, Phase::Useless(fate)) {
            Phase::Kept(kept) => (kept, false),
            Phase::Claimed(kept, _) => (kept, true),
            rest @ (Phase::Confirmed(_) | Phase::Useless(_)) => {
                pushed.phase = rest;
                return;
            }
        };
        self.held -= kept.held;
        let is_arriving = pushed.is_arriving;
        if is_claimed {
            self.outputs.push_back(Output::WakeReader(id));
        } else {
            let target = Target::of(&kept.request);
            if self.waiting.get(&target) == Some(&id) {
                self.waiting.remove(&target);
            }
        }
        if is_arriving {
            self.end_arrival(id, self.limits.cancel_useless);
        }
    }

    /// Removes a push that neither arrives nor waits nor is read, and reports it.
    fn release(&mut self, id: PushId) {
        let is_done = self
            .pushes
            .get(&id)
            .is_some_and(|pushed| !pushed.is_arriving && matches!(pushed.phase, Phase::Useless(_)));
        let Some(pushed) = is_done.then(|| self.pushes.remove(&id)).flatten() else {
            return;
        };
        if let (None, Phase::Useless(fate)) = (pushed.reported, &pushed.phase) {
            self.report(*fate, pushed.url, true);
        }
        self.outputs.push_back(Output::Ended {
            push: id,
            wasted: match pushed.is_copy() {
                true => 0,
                false => pushed.received - pushed.used,
            },
        });
    }

    /// Drops a push that a later one of the same URL replaces. The gateway knows that, and would
    /// relate a report to the later push.
    fn drop_replaced(&mut self, id: PushId) {
        if let Some(pushed) = self.pushes.get_mut(&id).filter(|it| !it.is_copy()) {
            pushed.reported = Some(Fate::Wasted);
            let url = pushed.url;
            self.report(Fate::Wasted, url, false);
        }
        self.discard(id, Fate::Wasted);
        self.release(id);
    }

    fn report(&mut self, fate: Fate, url: u32, tell_gateway: bool) {
        self.outputs.push_back(Output::Became {
            fate,
            url,
            tell_gateway,
            cookies: None,
        });
    }
}

#[cfg(test)]
mod tests;
