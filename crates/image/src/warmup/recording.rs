//! Recording of hotness, for an image and its base images.

use crate::hotness::text::{
    HotFile, HotImage, Hotness, LINE_COUNT_MAX, PATH_LEN_MAX, RANGE_COUNT_MAX,
};
use crate::image::Image;
use std::collections::HashSet;
use weald_format::limits::DEPTH_MAX;
use weald_format::{Digest, InodeNo, Result};

impl Image {
    /// Starts to record what is used of this image and of its base images.
    pub fn record_hotness(&self) {
        self.each_image(&mut |image| {
            image.records.start_recording();
        });
    }

    /// The hotness since [`Image::record_hotness`]; `None` if that was not called.
    ///
    /// # Cost
    /// A descent from the root for each directory in the path of each file.
    pub fn hotness(&self) -> Option<Hotness> {
        let recorder = self.records.recorder()?;
        let mut images: Vec<HotImage> = Vec::new();
        let mut remaining_lines = LINE_COUNT_MAX;
        self.each_image(&mut |image| {
            let Some(recorder) = image.records.recorder() else {
                return;
            };
            let mut items = recorder.items();
            items.truncate(remaining_lines);
            remaining_lines = remaining_lines.saturating_sub(items.len());
            let digest = image.summary.image_digest;
            images.push(HotImage { digest, items });
        });
        let read = recorder.files();
        debug_assert!(read.iter().all(|(_, r)| r.len() <= RANGE_COUNT_MAX));
        let files = read.into_iter().filter_map(|(no, ranges)| {
            // A file whose path is unreadable could not have been opened either.
            let path = self.path_of(no).ok().flatten()?;
            Some(HotFile { path, ranges })
        });
        Some(Hotness {
            images,
            files: files.collect(),
        })
    }

    /// The path of a name from the root; `None` for the root, and if the path is longer than the
    /// hotness text allows.
    fn path_of(&self, no: u64) -> Result<Option<Vec<u8>>> {
        let (mut no, mut names, mut len) = (no, Vec::new(), 0usize);
        for _ in 0..DEPTH_MAX {
            if no == weald_format::ROOT_INODE.0 {
                break;
            }
            let name = self.tree.name_of(no)?;
            len = len.saturating_add(name.len()).saturating_add(1);
            if len > PATH_LEN_MAX {
                return Ok(None);
            }
            names.push(name);
            no = self.parent(InodeNo(no))?.0;
        }
        names.reverse();
        Ok((!names.is_empty()).then(|| names.join(&b'/')))
    }

    /// Visits this image and each of its base images, at any depth, once.
    fn each_image(&self, visit: &mut dyn FnMut(&Self)) {
        let mut seen: HashSet<Digest> = HashSet::new();
        seen.insert(self.summary.image_digest);
        visit(self);
        let mut waiting = self.bases();
        while let Some(image) = waiting.pop() {
            if seen.insert(image.summary.image_digest) {
                visit(&image);
                waiting.append(&mut image.bases());
            }
        }
    }
}
