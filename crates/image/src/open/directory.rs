//! The directory of an image: located by its footer, read, verified.

use weald_format::container::{
    FOOTER_LEN, Footer, FooterRecord, HEADER_LEN, RecordRef, RecordType, SUPERBLOCK_LEN,
    SuperblockRecord,
};
use weald_format::directory::{Directory, check_lens};
use weald_format::limits::DIRECTORY_LEN_MAX;
use weald_format::{ByteOffset, Digest, Error, Result};
use weald_io::ReadAt;
use zerocopy::FromBytes;

/// The offset at which the image in `file` begins. Its footer is at the end of the file and stores
/// its own offset in the image.
///
/// # Errors
/// `Io`; `Corrupt` if the file does not end with a footer.
pub fn find_start(file: &dyn ReadAt) -> Result<ByteOffset> {
    let bad = |offset, rule, what: String| Error::corrupt("footer", offset, rule, what);
    let Some(footer_at) = file.len().checked_sub(FOOTER_LEN as u64) else {
        let what = format!("expected {FOOTER_LEN} bytes, found {}", file.len());
        return Err(bad(0, "F-4.1", what));
    };
    let mut bytes = [0; FOOTER_LEN];
    file.read_exact_at(&mut bytes, footer_at)?;
    let offset = FooterRecord::ref_from_bytes(&bytes).map_or(0, |r| r.footer_offset.get());
    let footer = Footer::parse(&bytes, offset).map_err(|e| e.at_offset(footer_at))?;
    let Some(start) = footer_at.checked_sub(footer.footer_offset) else {
        let what = format!(
            "it is at byte {} of the image but at {footer_at} of the file: truncated at the front?",
            footer.footer_offset
        );
        return Err(bad(footer_at, "F-4.4", what));
    };
    let mut superblock = [0; SUPERBLOCK_LEN];
    file.read_exact_at(&mut superblock, start)?;
    SuperblockRecord::parse(&superblock).map_err(|e| e.at_offset(start))?;
    Ok(ByteOffset(start))
}

/// Reads and verifies the directory of the generation that `footer` ends; compares it with the
/// footer and the superblock.
///
/// # Errors
/// `Io`, `Corrupt`, `Limit`.
pub fn open_directory(
    source: &dyn ReadAt,
    footer: &Footer,
    superblock_digest: &Digest,
) -> Result<Directory> {
    let directory = read_directory(source, footer)?;
    let same = directory.superblock_digest == *superblock_digest
        && directory.generation == footer.generation
        && directory.tree_digest == footer.tree_digest
        && directory.previous_footer == footer.previous_footer.unwrap_or(0);
    if same {
        Ok(directory)
    } else {
        let what = "superblock or footer differ from their copies in the directory";
        Err(Error::corrupt(
            "directory",
            footer.directory_offset,
            "F-7.1",
            what,
        ))
    }
}

/// Reads and verifies the directory of the generation that `footer` ends.
///
/// # Errors
/// `Io`, `Corrupt`, `Limit`.
pub fn read_directory(source: &dyn ReadAt, footer: &Footer) -> Result<Directory> {
    let bad = |rule, what: String| Error::corrupt("directory", footer.directory_offset, rule, what);
    if footer.directory_len > DIRECTORY_LEN_MAX {
        return Err(Error::limit(format!(
            "directory of {} bytes",
            footer.directory_len
        )));
    }
    let mut bytes = vec![0; footer.directory_len as usize];
    source.read_exact_at(&mut bytes, footer.directory_offset)?;
    let mut digest = Digest::of(&bytes);
    if digest != footer.image_digest && source.read_again_at(&mut bytes, footer.directory_offset)? {
        digest = Digest::of(&bytes);
    }
    if digest != footer.image_digest {
        return Err(bad(
            "F-4.5",
            format!(
                "image digest: expected {}, found {digest}",
                footer.image_digest
            ),
        ));
    }
    let (header, stored) = bytes.split_at_checked(HEADER_LEN).unwrap_or((&[], &[]));
    let record = RecordRef::parse_header(header, footer.directory_offset)?;
    let fits =
        record.record_type == RecordType::Directory && record.stored_len == stored.len() as u64;
    if !fits || record.digest != Digest::of(stored) {
        return Err(bad("F-4.6", "record header does not fit the footer".into()));
    }
    check_lens(&record).map_err(|e| e.at_offset(record.offset))?;
    let raw = weald_codec::Decoder::default()
        .decode(record.codec, stored, record.raw_len as usize, None)
        .map_err(|e| e.at_offset(record.offset))?;
    let directory = Directory::parse(&raw).map_err(|e| e.at_offset(record.offset))?;
    directory
        .check_fits(footer.directory_offset)
        .map_err(|e| e.at_offset(record.offset))?;
    Ok(directory)
}
