//! Forests: large trees of synthetic files. A few words describe a forest; the same words always
//! give the same forest.
//!
//! A forest is a pure function of its [`Spec`]: any part can be made, or made again, without the
//! others. So an interrupted run can resume without a state file ([`make()`]), and a finished
//! forest can be compared with its specification ([`verify()`]). `docs/design/0011-forests.md`
//! gives the reasons for this design.
#![forbid(unsafe_code)]

mod content;
mod draw;
mod links;
mod make;
mod name_order;
mod names;
mod shapes;
mod spec;
mod totals;
mod tree;
mod verify;
mod work;

pub use content::Content;
pub use draw::{Key, Share};
pub use links::NameOfInode;
pub use make::{MakeOptions, make};
pub use names::{NAME_STYLES, NameStyle};
pub use shapes::{SizeRule, TimeRule};
pub use spec::{KEYS, Spec, SymlinkStyle};
pub use totals::{Totals, totals};
pub use tree::{Body, Entry, Forest, Leaf, LeafEntries};
pub use verify::{Difference, verify};
pub use work::Progress;
