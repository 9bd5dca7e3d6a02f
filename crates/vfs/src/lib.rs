//! File system semantics over an image: paths, walks, patterns, searches, comparisons, digests.
//!
//! Neighbours: `image` below answers about single inodes; `export`, `fuse` and `cli` above only
//! translate. This crate does not access the host's file system.
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
