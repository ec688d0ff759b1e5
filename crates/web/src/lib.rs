//! Web pages and their measurement.
//!
//! A [`page`] model comes from a recording, a HAR file or a generator; an [`origin`] serves it, and
//! a [`loader`] or a [`browser`] loads it. [`measure`] repeats loads and reports them, also as
//! [`har`] files.

pub mod browser;
pub mod har;
pub mod loader;
pub mod measure;
pub mod origin;
pub mod page;
