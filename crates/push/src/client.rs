//! The client's half: the store of answers that were pushed on one session.
