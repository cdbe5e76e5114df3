//! The tokenization job: units of work read and encoded by all threads, shards written in order.

mod begin;
mod documents;
mod end;
pub mod journal;
mod lanes;
pub mod options;
mod plan;
pub mod progress;
mod run;
mod shuffle;
mod sink;
mod splits;

pub use begin::{check_out, refuse_shards};
pub use documents::DocumentWriter;
pub use options::Options;
pub use plan::{plan, Plan};
pub use run::run;
