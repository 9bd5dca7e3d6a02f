//! The reader: opens an image, finds inodes, reads files. It verifies every byte before it uses it.
//!
//! Neighbours: `format` parses, `codec` decodes, `io` reads. The reader never links a writer and
//! never prints.
//!
//! The modules, in the order in which data flows from the file to the caller; each uses only those
//! above it:
//!
//! 1. `records` reads, verifies, decodes and parses one record.
//! 2. `cache` keeps what was decoded, within one limit for any number of images.
//! 3. `hotness` records what is used.
//! 4. `cached_records` joins the three: finds records and keeps decoded pages and blocks.
//! 5. `read` maps file offsets to blocks, decodes them, and prefetches for sequential readers.
//! 6. `tree` finds inodes by number and by name.
//! 7. `open` reads superblock, footer and directory, and finds base images.
//! 8. `image` is [`Image`], which joins all of these.
//! 9. `warmup` records and replays hotness; `check` verifies an image; `inspect` reports on it and
//!    gives raw access to programs that write another image from it.
//! 10. `salvage` opens a damaged image, and reads what is left of its tree.
//!
//! ```
//! use std::ops::ControlFlow;
//! use weald_image::{Image, OpenOptions};
//!
//! # fn main() -> weald_format::Result<()> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/level-1.weald");
//! let image = Image::open_path(path.as_ref(), 0, &OpenOptions::default())?;
//! let root = image.root()?;
//! let mut names = Vec::new();
//! image.read_dir(root.ino, 0, &mut |_, name, _| {
//!     names.push(String::from_utf8_lossy(name).into_owned());
//!     ControlFlow::Continue(())
//! })?;
//! assert!(names.contains(&"program".to_owned()));
//! let file = image.lookup(root.ino, b"program")?.expect("it is listed");
//! let mut bytes = vec![0; file.size.0 as usize];
//! assert_eq!(image.read_at(&file, 0, &mut bytes)?, 6000);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
// Untrusted bytes never cause a panic.
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable
    )
)]

mod cache;
mod cached_records;
mod check;
#[cfg(feature = "places")]
mod elsewhere;
mod hotness;
mod image;
mod inspect;
mod open;
mod read;
mod records;
mod salvage;
mod tree;
mod warmup;

pub use cache::block::Block;
pub use cache::counts::CacheCounts;
pub use cache::shared::SharedCache;
pub use cache::{default_cache_len, page_len_max};
pub use check::findings::{CheckOptions, CheckReport, Finding};
pub use hotness::text::Hotness;
pub use image::{Image, OpenedDirectory, Summary, VisitEntryBlock};
pub use inspect::by_directory::{StoredNode, StoredSums, StoredTree, TreeDetail};
pub use inspect::by_generation::AppendedBy;
pub use inspect::placed::{PlacedRange, RangePlace};
pub use inspect::sections::{RecipeShare, SectionInfo, Share};
pub use inspect::space::{SpaceUsage, StreamUsage};
pub use open::bases::{bases_of, image_digests};
pub use open::generations::{Generation, generations, last_whole_generation};
#[cfg(feature = "places")]
pub use open::members::{Member, Members};
pub use open::options::{ImageStart, OpenOptions};
#[cfg(feature = "places")]
pub use open::place::{Named, TreePlace};
pub use read::contents::FileBytes;
pub use read::decode_ahead::{
    AheadReceiver, AheadSender, AheadShare, DecodeAhead, DecodeJob, DecodePlanner, ahead_queue,
};
pub use read::decode_cost::DecodeCost;
pub use read::extent_map::Run;
pub use salvage::overlay::Overlay;
pub use salvage::remains::Left;
pub use salvage::repair::Damaged;
pub use salvage::survey::{Remnant, Survey, WatchSurvey};
pub use tree::inode::{Inode, VisitEntry, kind_name};
pub use warmup::replay::{PrefetchHandle, PrefetchReport, PrefetchSet};
