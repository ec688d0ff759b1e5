//! Emulated networks, and the statistics that every measurement needs.
//!
//! [`emulator`] joins network namespaces ([`netns`]) by links of the model `tandem_link`;
//! [`slowpath`] delays the bytes of TCP connections within one process. [`completions`] is a
//! command that the programs of the laboratory share.

pub mod completions;
pub mod emulator;
pub mod netns;
pub mod output;
pub mod slowpath;
pub mod stats;
