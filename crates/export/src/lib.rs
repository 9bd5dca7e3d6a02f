//! Output of images: files of the host, a tar stream, archives of cpio and zip, lines of text, one
//! side of a comparison with a directory.
//!
//! Neighbours: `vfs` selects entries and compares trees; `sys` calls the host.
//!
//! ```
//! use weald_export::{ExtractObserver, TarOptions, write_tar};
//! use weald_image::{Image, OpenOptions};
//!
//! struct Problems;
//!
//! impl ExtractObserver for Problems {
//!     fn problem(&self, path: &[u8], error: &weald_format::Error) {
//!         eprintln!("{}: {error}", String::from_utf8_lossy(path));
//!     }
//! }
//!
//! # fn main() -> weald_format::Result<()> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../image/tests/golden/level-1.weald");
//! let image = Image::open_path(path.as_ref(), 0, &OpenOptions::default())?;
//! let options = TarOptions {
//!     choice: Default::default(),
//!     drops_xattrs: false,
//!     attributes: Default::default(),
//!     is_layer: false,
//!     temp_dir: std::env::temp_dir(),
//! };
//! let mut tar = Vec::new();
//! let report = write_tar(&image, image.root()?, &options, &mut tar, &Problems)?;
//! assert_eq!((report.len, report.problem_count), (tar.len() as u64, 0));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod cpio;
mod extract;
mod host_tree;
mod lines;
mod links;
mod pax;
mod restore;
mod sparse_map;
mod tar;
mod tar_output;
mod target_dir;
mod zip;

pub use cpio::{CpioReport, write_cpio};
pub use extract::{ExtractObserver, ExtractOptions, ExtractProgress, ExtractReport, extract};
pub use host_tree::{HostDir, HostTree};
pub use lines::{LineFormat, LinesReport, write_lines};
pub use pax::{Entry as TarEntry, type_flag};
pub use restore::XattrPolicy;
pub use tar::{TarOptions, TarReport, write_tar};
pub use tar_output::{TarOutput, map_len};
pub use zip::{ZipReport, write_zip};
