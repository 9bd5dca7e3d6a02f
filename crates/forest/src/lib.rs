//! Forests: big trees of files made from a few words, always the same ones.
//!
//! A forest is a pure function of its [`Spec`]: any part can be made, or made again, without the
//! others. So making one that was interrupted goes on where it stopped without a file that
//! remembers ([`make()`]), and one that was made can be compared with what it should be
//! ([`verify()`]). `docs/design/0011-forests.md` says why it is built so.
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
