//! The table of handles: it turns opaque pointers of C into objects.
//!
//! A handle is a number in the form of a pointer: the place in the table and a generation. The
//! library never follows it. A place that is used again has another generation, so a handle that
//! was destroyed, or that the program made up, finds nothing.

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use crate::daemon::{Daemon, RequestEntry, SessionEntry};
use crate::name_value::NameValue;
use crate::response::Response;
use crate::settings::Settings;

/// The bits of a handle that hold the place in the table. The rest holds the generation.
const PLACE_BITS: u32 = place_bits(usize::BITS);
const MAX_PLACES: usize = 1 << PLACE_BITS;
const MAX_GENERATION: usize = usize::MAX >> PLACE_BITS;

/// Returns the bits of a place in a handle of `width` bits.
///
/// On 32-bit machines, the places suffice for the requests of all sessions that `select` permits.
/// One user cannot fill the table for the others. Fewer generations lose nothing: a place without
/// generations retires, and all handles together are as many as there are numbers.
const fn place_bits(width: u32) -> u32 {
    if width >= 64 { width / 2 - 4 } else { 21 }
}

/// A handle as C programs hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Handle(NonZeroUsize);

impl Handle {
    /// Reads a pointer of the program; `None` for NULL.
    pub(crate) fn from_pointer(pointer: *const c_void) -> Option<Self> {
        NonZeroUsize::new(pointer.addr()).map(Self)
    }

    /// Returns the handle as a pointer, which must not be followed.
    pub(crate) const fn pointer(self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.0.get())
    }

    const fn place(self) -> usize {
        self.0.get() & (MAX_PLACES - 1)
    }

    const fn generation(self) -> usize {
        self.0.get() >> PLACE_BITS
    }
}

/// An object that a handle stands for.
#[derive(Clone, Debug)]
pub(crate) enum Object {
    Daemon(Arc<Daemon>),
    Session(Arc<SessionEntry>),
    Request(Arc<RequestEntry>),
    Response(Arc<Response>),
    NameValue(Arc<NameValue>),
    Settings(Arc<Settings>),
}

/// A type that handles stand for.
pub(crate) trait Kind: Sized {
    /// Wraps an object for the table.
    fn wrap(object: Arc<Self>) -> Object;
    /// Returns the object if it is of this type.
    fn unwrap(object: &Object) -> Option<&Arc<Self>>;
}

macro_rules! kinds {
    ($($kind:ident: $type:ty),+) => {$(
        impl Kind for $type {
            fn wrap(object: Arc<Self>) -> Object {
                Object::$kind(object)
            }

            fn unwrap(object: &Object) -> Option<&Arc<Self>> {
                match object {
                    Object::$kind(object) => Some(object),
                    _ => None,
                }
            }
        }
    )+};
}

kinds!(
    Daemon: Daemon,
    Session: SessionEntry,
    Request: RequestEntry,
    Response: Response,
    NameValue: NameValue,
    Settings: Settings
);

#[derive(Debug)]
struct Slot {
    /// At least 1, so that no handle is NULL.
    generation: usize,
    object: Option<Object>,
}

#[derive(Debug)]
struct Table {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

static TABLE: Mutex<Table> = Mutex::new(Table::new());

impl Table {
    const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    fn insert(&mut self, object: Object) -> Option<Handle> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.slots.len() < MAX_PLACES => {
                self.slots.push(Slot {
                    generation: 1,
                    object: None,
                });
                self.slots.len() - 1
            }
            None => return None,
        };
        let slot = &mut self.slots[place];
        slot.object = Some(object);
        NonZeroUsize::new(slot.generation << PLACE_BITS | place).map(Handle)
    }

    fn slot(&mut self, handle: Handle) -> Option<&mut Slot> {
        self.slots
            .get_mut(handle.place())
            .filter(|slot| slot.generation == handle.generation())
    }

    fn remove(&mut self, handle: Handle) -> Option<Object> {
        let slot = self.slot(handle)?;
        let object = slot.object.take()?;
        // A place with no generations left stays unused.
        if slot.generation < MAX_GENERATION {
            slot.generation += 1;
            self.free.push(handle.place());
        }
        Some(object)
    }
}

fn with<T>(work: impl FnOnce(&mut Table) -> T) -> T {
    work(&mut TABLE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Enters an object; `None` if the table is full.
pub(crate) fn insert<T: Kind>(object: Arc<T>) -> Option<Handle> {
    with(|table| table.insert(T::wrap(object)))
}

/// Finds an object; `None` if the handle is stale or stands for another type.
pub(crate) fn get<T: Kind>(handle: Handle) -> Option<Arc<T>> {
    with(|table| T::unwrap(table.slot(handle)?.object.as_ref()?).cloned())
}

/// Removes an object. A handle of another type stays.
pub(crate) fn remove<T: Kind>(handle: Handle) -> Option<Arc<T>> {
    // The object leaves the table before it is dropped: its drop may use the table.
    let object = with(|table| {
        T::unwrap(table.slot(handle)?.object.as_ref()?)?;
        table.remove(handle)
    })?;
    T::unwrap(&object).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_finds_its_object() {
        let handle = insert(Arc::new(Settings::default())).expect("room");
        let again = Handle::from_pointer(handle.pointer()).expect("not NULL");
        assert_eq!(again, handle);
        assert!(get::<Settings>(again).is_some());
        assert!(get::<NameValue>(again).is_none());
        assert!(remove::<NameValue>(again).is_none());
        assert!(remove::<Settings>(again).is_some());
        assert!(remove::<Settings>(again).is_none());
        assert!(get::<Settings>(again).is_none());
    }

    #[test]
    fn table_reuses_places_with_new_generations() {
        let mut table = Table::new();
        let object = || Object::Settings(Arc::default());
        let first = table.insert(object()).expect("room");
        assert!(table.remove(first).is_some());
        let second = table.insert(object()).expect("room");
        assert_eq!(second.place(), first.place());
        assert_ne!(second, first);
        assert!(table.slot(first).is_none());
        assert!(table.remove(first).is_none());
    }

    #[test]
    fn table_retires_places_without_generations() {
        let mut table = Table::new();
        let object = || Object::Settings(Arc::default());
        let first = table.insert(object()).expect("room");
        table.slots[first.place()].generation = MAX_GENERATION;
        let last = Handle(NonZeroUsize::new(MAX_GENERATION << PLACE_BITS).expect("not zero"));
        assert!(table.remove(last).is_some());
        let next = table.insert(object()).expect("room");
        assert_eq!(next.place(), 1);
    }

    #[test]
    fn places_suffice_for_all_clients() {
        let streams = crate::daemon::MAX_STREAMS as usize;
        // An open request has headers and a response, and an ended one has headers.
        let places = 1 + 3 * streams + 2 * streams;
        assert!(libc::FD_SETSIZE * places <= 1 << place_bits(32));
        assert!(place_bits(32) < 32 - 10);
        assert_eq!(place_bits(64), 28);
    }

    #[test]
    fn null_and_foreign_pointers_find_nothing() {
        assert_eq!(Handle::from_pointer(std::ptr::null()), None);
        for number in [1usize, usize::MAX, 1 << PLACE_BITS | (MAX_PLACES - 1)] {
            let pointer = std::ptr::without_provenance(number);
            let handle = Handle::from_pointer(pointer).expect("not NULL");
            assert!(get::<Settings>(handle).is_none());
        }
    }
}
