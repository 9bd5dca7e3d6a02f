//! Output of images: files of the host, a tar stream, archives of cpio and zip, lines of text, one
//! side of a comparison with a directory.
//!
//! Neighbours: `vfs` selects entries and compares trees; `sys` calls the host.
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
