//! Measures the time of page loads at the browser, with push and without it, so that the benefit of
//! push is known.
//!
//! A load begins with the request for a page that has a `tandem-push` field from the gateway. It
//! ends with the last response of its isolation key before a second without traffic. This stage
//! removes the field.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use tandem_push::wire::{PUSH_FIELD, Treatment};

use crate::error::Error;
use crate::exchange::{Exchange, Isolation, Part, Parts, Reply};
use crate::journal::saving::LoadTimes;
use crate::metrics::METRICS;
use crate::stage::Stage;

/// The time without an exchange after which a load is over.
const QUIET: Duration = Duration::from_secs(1);

/// The longest load that is counted. A longer one is not a page load.
const LONGEST: Duration = Duration::from_secs(300);

/// The stage that measures page loads.
pub struct Loads {
    next: Rc<dyn Stage>,
    times: Arc<LoadTimes>,
    open: Rc<OpenLoads>,
}

/// The load under way of each isolation key.
#[derive(Default)]
struct OpenLoads(RefCell<HashMap<Isolation, Rc<Load>>>);

impl OpenLoads {
    fn get(&self, isolation: &Isolation) -> Option<Rc<Load>> {
        self.0.borrow().get(isolation).cloned()
    }

    /// Begins a load in place of the one before.
    fn begin(&self, isolation: &Isolation, load: &Rc<Load>) {
        let mut loads = self.0.borrow_mut();
        loads.insert(isolation.clone(), Rc::clone(load));
    }

    fn end(&self, isolation: &Isolation) {
        self.0.borrow_mut().remove(isolation);
    }
}

impl Loads {
    /// Creates a stage before `next`, which adds the loads to `times`.
    pub fn new(times: Arc<LoadTimes>, next: Rc<dyn Stage>) -> Self {
        Self {
            next,
            times,
            open: Rc::default(),
        }
    }
}

/// A page load under way.
struct Load {
    began: Instant,
    last: Cell<Instant>,
    under_way: Cell<usize>,
    treatment: Treatment,
    times: Arc<LoadTimes>,
}

impl Stage for Loads {
    fn call(&self, exchange: Exchange) -> Reply {
        if exchange.request.is_connect() || exchange.request.protocol.is_some() {
            return self.next.call(exchange);
        }
        let isolation = exchange.isolation.clone();
        let load = self.open.get(&isolation);
        if let Some(load) = &load {
            load.under_way.set(load.under_way.get() + 1);
        }
        Reply::new(Timed {
            began: Instant::now(),
            reply: self.next.call(exchange),
            load,
            isolation,
            times: Arc::clone(&self.times),
            open: Rc::clone(&self.open),
        })
    }
}

struct Timed {
    began: Instant,
    reply: Reply,
    load: Option<Rc<Load>>,
    isolation: Isolation,
    times: Arc<LoadTimes>,
    open: Rc<OpenLoads>,
}

impl Parts for Timed {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let mut part = self.reply.poll_part(cx);
        if let Poll::Ready(Some(Ok(Part::Head(head)))) = &mut part
            && let Some(treatment) = head.fields.get(PUSH_FIELD).and_then(Treatment::parse)
        {
            head.fields.remove(PUSH_FIELD);
            self.begin(treatment);
        }
        part
    }
}

impl Timed {
    /// Begins a load: the exchange was a page, and later exchanges belong to it.
    fn begin(&mut self, treatment: Treatment) {
        self.leave();
        let now = Instant::now();
        let load = Rc::new(Load {
            began: self.began,
            last: Cell::new(now),
            under_way: Cell::new(1),
            treatment,
            times: Arc::clone(&self.times),
        });
        self.load = Some(Rc::clone(&load));
        self.open.begin(&self.isolation, &load);
        tokio::task::spawn_local(watch(load, self.isolation.clone(), Rc::clone(&self.open)));
    }

    fn leave(&mut self) {
        if let Some(load) = self.load.take() {
            load.under_way.set(load.under_way.get() - 1);
            load.last.set(Instant::now());
        }
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Waits for the end of a load and counts it.
async fn watch(load: Rc<Load>, isolation: Isolation, open: Rc<OpenLoads>) {
    let is_current = || {
        let current = open.get(&isolation);
        current.is_some_and(|current| Rc::ptr_eq(&current, &load))
    };
    loop {
        tokio::time::sleep(QUIET / 4).await;
        if !is_current() {
            // Another page replaced this load before its end, so its duration is unknown.
            return;
        }
        if load.began.elapsed() > LONGEST {
            break;
        }
        if load.under_way.get() == 0 && load.last.get().elapsed() >= QUIET {
            count(&load, load.last.get() - load.began);
            break;
        }
    }
    open.end(&isolation);
}

fn count(load: &Load, took: Duration) {
    load.times.note(load.treatment == Treatment::Pushed, took);
    let ms = took.as_millis() as u64;
    let (loads, sum, squares) = match load.treatment {
        Treatment::Pushed => (
            &METRICS.loads_pushed,
            &METRICS.loads_pushed_ms,
            &METRICS.loads_pushed_ms_squared,
        ),
        Treatment::HeldOut => (
            &METRICS.loads_held_out,
            &METRICS.loads_held_out_ms,
            &METRICS.loads_held_out_ms_squared,
        ),
    };
    loads.add(1);
    sum.add(ms);
    squares.add(ms * ms);
}
