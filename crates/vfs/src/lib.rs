//! File system semantics over an image: paths, walks, patterns, searches, comparisons, digests.
//!
//! Neighbours: `image` below answers about single inodes; `export`, `fuse` and `cli` above only
//! translate. This crate does not access the host's file system.
//!
//! ```
//! use weald_image::{Image, OpenOptions};
//! use weald_vfs::{Follow, Step, Walker, resolve};
//!
//! # fn main() -> weald_format::Result<()> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../image/tests/golden/level-1.weald");
//! let image = Image::open_path(path.as_ref(), 0, &OpenOptions::default())?;
//! let linked = resolve(&image, b"link", Follow::Yes)?;
//! assert_eq!(linked.path, b"d/numbers3");
//! let mut walker = Walker::new(&image, resolve(&image, b"d", Follow::No)?);
//! let mut paths = Vec::new();
//! while let Some(step) = walker.step()? {
//!     if matches!(step, Step::Enter(_)) {
//!         paths.push(walker.path().to_vec());
//!     }
//! }
//! assert!(paths.contains(&b"d/e/same".to_vec()));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod choice;
mod content;
mod diff;
pub mod errno;
pub mod error_text;
mod find;
mod glob;
mod image_tree;
pub mod parallel;
mod path;
mod reading;
mod search;
mod selected;
mod selection;
mod size;
mod sum;
mod text;
mod time;
mod walk;
mod writable;

pub use choice::Choice;
pub use content::{ContentPart, each_part, each_zeros};
pub use diff::{
    Aspect, Change, Changed, Child, CompareOptions, Difference, Facts, FileReader, LinkKey, Only,
    Tree, compare, kind_word,
};
pub use find::{Comparison, Permissions, Query};
pub use glob::{Glob, PathGlob};
pub use image_tree::{ImageDir, ImageTree};
pub use path::{Follow, Located, SYMLINK_COUNT_MAX, resolve};
pub use reading::{ReadingCost, Spread, reading_cost};
pub use search::{Found, Hit, SearchOptions, search, search_walk};
pub use selected::{Event, SelectedWalk, Unmatched};
pub use selection::{Reason, Scope, Selection};
pub use size::parse_size;
pub use sum::{Algorithm, Digester, Sum, SumOptions, sums};
pub use text::{is_unsafe, mode_letters, safe_line, safe_text, shown, shown_path};
pub use time::{parse_time, utc_nanoseconds, utc_seconds};
pub use walk::{Step, Visit, Walker};
pub use weald_filter::PathList;
/// The inodes of a file system that can change have the numbers of a volume's.
pub use weald_format::Ino;
pub use writable::{
    AllocateMode, Failure, FilePlace, FsCapacity, Listed, Nanoseconds, NewInode, NewStat, Outcome,
    RenameMode, Stat, WritableFs, XattrMode,
};
