//! The builder: turns a source tree into a sealed image.
//!
//! The image has the same bytes for any number of threads, and the build keeps within a memory
//! budget. The modules, in the order in which data flows:
//!
//! 1. `options` says what to pack and how: rules, scripts, levels.
//! 2. `scan` walks the source into a compact tree in memory, and opens its files.
//! 3. `order` decides in which order files are read.
//! 4. `read` reads and hashes files with threads, and finds recipes for compressed data in them.
//! 5. `dedup` drops contents that the image, or an image that it refers to, has already.
//! 6. `segment` finds repeats inside the others, and cuts the fresh bytes into blocks.
//! 7. `compress` turns blocks into records.
//! 8. `write` writes the records, then the directories, and seals the image.
//! 9. `pipeline` calls these stages: [`build_image`], [`stream::build_stream`],
//!    [`rewrite_image`], [`recover_image`], [`salvage()`], [`build_into_store`].
//!
//! Each stage hands its results to the next. All of them use `threads`, and report to the caller
//! through `progress`.
#![forbid(unsafe_code)]

mod compress;
mod dedup;
mod options;
mod order;
mod pipeline;
mod progress;
mod read;
pub mod scan;
mod segment;
mod threads;
mod write;

pub use options::addition::{Addition, Given};
pub use options::attributes::{AttributeRules, RootRules};
pub use options::walk::{FollowLinks, HardLinks, MountPoints};
pub use options::{AddAt, BuildOptions, Categories, Head, MtimeRule, Order, SmallTree};
pub use options::{mode, script};
pub use pipeline::build::{build_from_image, build_image, build_layers};
pub use pipeline::list::{TakePath, list_layers};
pub use pipeline::recover::{Recovered, recover_image};
pub use pipeline::rewrite::{RewriteOptions, RewriteReport, rewrite_image};
pub use pipeline::salvage::{Lost, Salvaged, TellLost, salvage};
pub use pipeline::stored::{
    Added, ReencodeOptions, Reencoded, StoreSource, StoreTarget, build_into_store,
    image_to_continue, not_continued, reencode,
};
pub use pipeline::stream;
pub use progress::{Changes, LeftOut, Observer, Problem, Progress, Report, Silent, Stage};
pub use scan::{Layer, LayerKind, UpperXattrs};
pub use weald_codec::CodecSpec;
pub use weald_io::TargetKind;
