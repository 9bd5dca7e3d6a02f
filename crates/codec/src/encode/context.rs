//! Zstandard contexts: parameters and errors.

use weald_format::{Error, ErrorKind, Result};
use zstd::zstd_safe::{self, CParameter};

pub(super) fn failed(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Limit, format!("encoder: {what}"))
}

/// Converts an error code of Zstandard.
pub(super) fn zstd_error(code: usize) -> Error {
    failed(zstd_safe::get_error_name(code))
}

pub(super) fn set(
    context: &mut zstd::bulk::Compressor<'static>,
    parameter: CParameter,
) -> Result<()> {
    context.set_parameter(parameter).map_err(failed)
}

pub(super) trait WithoutExtras: Sized {
    fn without_extras(self) -> Result<Self>;
}

impl WithoutExtras for zstd::bulk::Compressor<'static> {
    /// Omits what records hold already: checksum and dictionary id. Keeps the content size: with it
    /// the decoder refuses a frame that is too long before it starts.
    fn without_extras(mut self) -> Result<Self> {
        set(&mut self, CParameter::ChecksumFlag(false))?;
        set(&mut self, CParameter::DictIdFlag(false))?;
        Ok(self)
    }
}
