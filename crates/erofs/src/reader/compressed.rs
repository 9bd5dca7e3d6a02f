//! Data of compressed files: a physical cluster of a few blocks holds an extent of the file.

mod codec;
mod extents;
mod index;
mod lz4;

pub(super) use codec::decode;
pub(super) use extents::{ExtentSource, Extents, Mapped};
