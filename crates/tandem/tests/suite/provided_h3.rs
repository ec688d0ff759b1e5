//! Tests of HTTP/3 over a transport that another crate provides. The root of the suite names the
//! transport (`NAME`, `SCHEME` and `transports`) and imports the support modules.

mod carrying;
pub(crate) mod certificates;
#[expect(dead_code, reason = "the tests of the library use the rest")]
pub(crate) mod file_origin;
#[expect(dead_code, reason = "the tests of the library use the rest")]
pub(crate) mod harness;
pub(crate) mod name_record;
#[path = "provided_pairs.rs"]
pub(crate) mod pairs;
#[path = "provided_paths.rs"]
pub(crate) mod paths;
pub(crate) mod provided;
mod provided_downloads;
pub(crate) mod provided_lives;
mod provided_resume;
mod provided_scenes;
mod provided_shared;
mod provided_streams;
pub(crate) mod provided_ways;
mod push_matrix;
pub(crate) mod tunnel_scenes;
