//! The builder: turns a source tree into a sealed image.
//!
//! The stages are scan, read, share, segment, compress, emit. They write the same bytes for any
//! number of threads, within a memory budget. [`build_image`] calls them; every stage is a module
//! of its own.
#![forbid(unsafe_code)]

mod changes;
mod cluster;
mod compress;
mod contents;
mod dictionary;
mod earlier;
mod emit;
pub mod filter;
mod history;
mod image_writer;
mod known_dirs;
mod machine;
mod match_table;
mod metadata;
pub mod mode;
mod options;
mod order;
mod pipeline;
mod plan;
mod prior;
mod read;
mod recode;
mod recover;
mod report;
mod rewrite;
pub mod scan;
pub mod script;
mod segment;
mod source;
pub mod stream;
mod threads;
mod times;
mod tree_writer;
mod watch;

pub use options::{AddAt, BuildOptions, Categories, MtimeRule, Order};
pub use pipeline::{build_from_image, build_image};
pub use recover::{Recovered, recover_image};
pub use rewrite::{RewriteOptions, RewriteReport, rewrite_image};
pub use watch::{Changes, Problem, Progress, Report, Silent, Stage, Watch};
pub use weald_codec::CodecSpec;
pub use weald_io::TargetKind;
