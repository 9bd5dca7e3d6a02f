//! What reader threads find out about data for the segmenter, of which there is one.

use crate::compress::entropy::is_incompressible;
use crate::compress::instruction_set;
use crate::dedup::streams::{ARM64, GENERAL, INCOMPRESSIBLE, X86};
use crate::options::Categories;
use crate::segment::samples::{MarkList, SampleRule};
use weald_format::directory::Category;

/// End offset (exclusive) and stream of each part of a content, in order. What lies behind the last
/// one is ordinary data.
pub type Parts = Vec<(u64, u8)>;

/// The parts of a content that is not to be compressed.
pub fn plain_parts() -> Parts {
    vec![(u64::MAX, INCOMPRESSIBLE)]
}

/// What is known about some data.
#[derive(Debug, Default)]
pub struct Prepared {
    /// Its parts.
    pub parts: Parts,
    /// Its marks, if they were looked for.
    pub marks: Option<MarkList>,
}

/// How data is prepared.
#[derive(Debug, Clone, Copy)]
pub struct Preparing {
    /// Categories that have a stream of their own.
    pub categories: Categories,
    /// Marks the data; `None` if nobody needs marks.
    pub rule: Option<SampleRule>,
}

impl Preparing {
    /// Prepares all data of a content.
    pub fn prepare(&self, data: &[u8]) -> Prepared {
        Prepared {
            parts: self.parts(data),
            marks: self.rule.and_then(|rule| rule.marks(data)),
        }
    }

    /// Prepares all data of a content that is not to be compressed.
    pub fn prepare_plain(&self, data: &[u8]) -> Prepared {
        Prepared {
            parts: plain_parts(),
            marks: self.rule.and_then(|rule| rule.marks(data)),
        }
    }

    /// The parts of a content. `probe` is the front of its data, or all of it; entropy and category
    /// are taken from it.
    pub fn parts(&self, probe: &[u8]) -> Parts {
        let categories = &self.categories;
        if categories.incompressible && is_incompressible(probe) {
            return plain_parts();
        }
        if !categories.x86 && !categories.arm64 {
            return Vec::new();
        }
        let stream = |category| match category {
            Category::X86 if categories.x86 => X86,
            Category::Arm64 if categories.arm64 => ARM64,
            _ => GENERAL,
        };
        let parts = instruction_set::detect_parts(probe).into_iter();
        parts.map(|p| (p.end, stream(p.category))).collect()
    }
}
