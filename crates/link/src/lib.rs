//! Model of a slow link: delay, jitter, loss, rate, queues, in virtual time.
