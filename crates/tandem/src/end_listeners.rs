//! The functions to call when a connection of a browser ends.

use std::cell::RefCell;
use std::rc::Rc;

/// Receives the number of a connection that has ended.
type OnEnd = Rc<dyn Fn(u64)>;

/// Functions that each receive the number of every connection that ends.
#[derive(Default)]
pub struct EndListeners(RefCell<Vec<OnEnd>>);

impl EndListeners {
    /// Adds a function.
    pub fn add(&self, on_end: impl Fn(u64) + 'static) {
        self.0.borrow_mut().push(Rc::new(on_end));
    }

    /// Tells all functions that a connection has ended.
    pub fn notify(&self, connection: u64) {
        let all = self.0.borrow().clone();
        all.iter().for_each(|on_end| on_end(connection));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn listener_may_add_another_one() {
        let listeners = Rc::new(EndListeners::default());
        let seen = Rc::new(Cell::new(0));
        let (again, sum) = (Rc::clone(&listeners), Rc::clone(&seen));
        listeners.add(move |number| {
            sum.set(sum.get() + number);
            let sum = Rc::clone(&sum);
            again.add(move |number| sum.set(sum.get() + 10 * number));
        });
        listeners.notify(1);
        assert_eq!(seen.get(), 1);
        listeners.notify(2);
        assert_eq!(seen.get(), 1 + 2 + 20);
    }
}
