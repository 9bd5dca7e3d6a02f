//! Checks everything that readers and writers of a store meet.

use super::report::{CheckOptions, Finding, Report};
use super::rows::Rows;
use weald_format::volume::VolumeRow;
use weald_format::{ByteLen, ErrorKind, Result};
use weald_image::{
    CheckOptions as ImageCheckOptions, Finding as ImageFinding, Image, OpenOptions as ImageOptions,
};
use weald_store::{BlockStates, Checked, Store, StoreWriter};

/// Memory for the metadata of an image that is opened, bytes.
const IMAGE_CACHE_LEN: u64 = 8 << 20;
/// Most damaged paths of an image that are told.
const PATH_COUNT_MAX: u64 = 1000;

/// Results of a check of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreReport {
    /// Number of images.
    pub image_count: u64,
    /// Number of volumes.
    pub volume_count: u64,
    /// Number of inodes of volumes.
    pub inode_count: u64,
    /// Number of blocks.
    pub block_count: u64,
    /// Number of segments.
    pub segment_count: u64,
    /// Number of records of sync logs that wait for a commit.
    pub log_record_count: u64,
    /// Bytes of records that were read and compared with their digests.
    pub verified_len: u64,
    /// Defects.
    pub findings: Vec<Finding>,
}

/// Checks the tables, segments and logs of a store, opens every image with its base images, and
/// compares the rows of every volume, as [`super::check`] does. With `reads_data`, it reads every
/// block, and computes the tree digest of every image. Changes nothing.
///
/// # Errors
/// `Io`.
///
/// # Cost
/// As [`StoreWriter::check_store`]; with `reads_data`, decodes all contents of each image, however
/// many images share them.
pub fn check_store(
    writer: &StoreWriter,
    options: &CheckOptions,
    tick: &mut dyn FnMut(&Checked),
) -> Result<StoreReport> {
    let (checked, states) = writer.check_store(options.reads_data, tick)?;
    let mut report = StoreReport {
        image_count: checked.image_count,
        block_count: checked.block_count,
        segment_count: checked.segment_count,
        log_record_count: checked.log_record_count,
        verified_len: checked.verified_len,
        ..StoreReport::default()
    };
    let volumes = match writer.volume_rows() {
        // The check of the store told it.
        Err(error) if error.kind() == ErrorKind::Corrupt => Vec::new(),
        other => other?,
    };
    let shown = writer.store().volume_names()?;
    for finding in checked.findings {
        let is_volume = |name: &String| {
            shown.contains(name) || volumes.iter().any(|(volume, _)| volume == name)
        };
        let (volume, image) = match finding.image {
            Some(name) if is_volume(&name) => (Some(name), None),
            other => (None, other),
        };
        report.findings.push(Finding {
            image,
            volume,
            ..Finding::new(finding.what)
        });
    }
    check_images(writer.store(), options, &mut report)?;
    let has_bad_pages = writer.check_pages()?.is_some();
    for (name, row) in volumes {
        check_volume(writer, (name, row), &states, has_bad_pages, &mut report)?;
    }
    Ok(report)
}

/// Opens all images with their base images. Where data is read, the tree digest that each claims
/// is compared with that of its names, attributes and contents.
fn check_images(store: &Store, wanted: &CheckOptions, report: &mut StoreReport) -> Result<()> {
    let options = ImageOptions {
        cache_len: ByteLen(IMAGE_CACHE_LEN),
        ..ImageOptions::default()
    };
    for name in store.names()? {
        let has = |finding: &Finding| finding.image.as_ref() == Some(&name);
        // It is known that and why it cannot be read.
        if report.findings.iter().any(has) {
            continue;
        }
        match Image::open_stored(store.clone(), &name, 0, &options) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => report.findings.push(Finding {
                image: Some(name),
                ..Finding::new(format!("cannot be opened: {error}"))
            }),
            Ok(image) if wanted.reads_data => check_image(&image, &name, report),
            Ok(_) => {}
        }
    }
    Ok(())
}

/// Checks the image `name` from its blocks, which the check of the store has read.
fn check_image(image: &Image, name: &str, report: &mut StoreReport) {
    let options = ImageCheckOptions {
        digests_only: false,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        path_count_max: PATH_COUNT_MAX,
    };
    let findings = &mut report.findings;
    image.check(&options, &mut |found| {
        let (path, what) = match found {
            ImageFinding::Path { path, what } => (Some(path), what),
            ImageFinding::Structure(error) => (None, error.to_string()),
        };
        findings.push(Finding {
            image: Some(name.to_owned()),
            path,
            ..Finding::new(what)
        });
    });
}

fn check_volume(
    writer: &StoreWriter,
    (name, row): (String, VolumeRow),
    states: &BlockStates,
    has_bad_pages: bool,
    report: &mut StoreReport,
) -> Result<()> {
    let mut of_volume = Report::default();
    let mut rows = Rows::read(writer, row, &mut of_volume)?;
    if has_bad_pages {
        rows.look_up(writer)?;
    }
    rows.check(writer, states, &mut of_volume)?;
    report.volume_count += 1;
    report.inode_count += of_volume.inode_count;
    let findings = of_volume.findings.into_iter();
    report.findings.extend(findings.map(|finding| Finding {
        volume: Some(name.clone()),
        ..finding
    }));
    Ok(())
}
