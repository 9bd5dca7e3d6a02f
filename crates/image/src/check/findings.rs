//! Findings of a check: collected, counted, and reported once each.

use crate::image::Image;
use std::collections::HashSet;
use weald_format::Error;

/// Options of a check.
#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// Only verify the digests of all records; decode nothing.
    pub digests_only: bool,
    /// Threads that read contents, at least 1.
    pub threads: usize,
    /// Most damaged paths that are reported; the others are only counted.
    pub path_count_max: u64,
}

/// One defect.
#[derive(Debug)]
pub enum Finding {
    /// The image breaks a rule of the format.
    Structure(Error),
    /// A file or directory cannot be read completely.
    Path {
        /// Its path from the root, without a leading slash.
        path: Vec<u8>,
        /// Description of the defect.
        what: String,
    },
}

/// Numbers of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CheckReport {
    /// Verified records.
    pub record_count: u64,
    /// Verified stored bytes.
    pub stored_len: u64,
    /// Checked templates.
    pub template_count: u64,
    /// Checked entries.
    pub entry_count: u64,
    /// Decoded and hashed contents.
    pub content_count: u64,
    /// Bytes of these contents.
    pub content_len: u64,
    /// Broken rules.
    pub structure_count: u64,
    /// Paths that cannot be read completely.
    pub path_count: u64,
}

impl CheckReport {
    /// Whether there is no finding.
    pub fn is_clean(&self) -> bool {
        self.structure_count == 0 && self.path_count == 0
    }
}

/// A check in progress.
pub struct Checker<'a> {
    /// The image.
    pub image: &'a Image,
    /// The options.
    pub options: &'a CheckOptions,
    /// The numbers so far.
    pub report: CheckReport,
    /// Data records and contents are not read.
    pub skips_data: bool,
    report_finding: &'a mut dyn FnMut(Finding),
    /// The findings so far, as text: many parts of a check meet the same damaged record.
    reported: HashSet<String>,
}

/// Findings that are remembered, so that each is reported once.
const REPORTED_MAX: usize = 10_000;

impl<'a> Checker<'a> {
    /// A check of `image` without findings; `report_finding` receives them.
    pub fn new(
        image: &'a Image,
        options: &'a CheckOptions,
        report_finding: &'a mut dyn FnMut(Finding),
    ) -> Self {
        Self {
            image,
            options,
            report: CheckReport::default(),
            skips_data: false,
            report_finding,
            reported: HashSet::new(),
        }
    }

    /// Counts and reports a broken rule, unless it was reported before.
    pub fn found(&mut self, error: Error) {
        let is_new = self.reported.len() >= REPORTED_MAX || self.reported.insert(error.to_string());
        if is_new {
            self.report.structure_count = self.report.structure_count.saturating_add(1);
            (self.report_finding)(Finding::Structure(error));
        }
    }

    /// Reports a damaged path.
    pub fn report_path(&mut self, path: Vec<u8>, what: String) {
        (self.report_finding)(Finding::Path { path, what });
    }
}
