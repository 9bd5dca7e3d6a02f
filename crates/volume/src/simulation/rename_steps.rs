//! Images that get another name in a simulated run, chosen from a seed.

use super::steps::{RenameImage, Step};
use weald_store::simulated_disk::{Fault, Random};

/// Calls of the disk that a rename takes, and some more.
const CALL_COUNT: u64 = 40;

/// Adds renames to the steps of a run, after those that change what images there are.
pub fn with_renames(steps: Vec<Step>, random: &mut Random) -> Vec<Step> {
    let mut all = Vec::with_capacity(steps.len() * 2);
    for step in steps {
        let is_of_images = matches!(step, Step::Seal(Some(_)) | Step::RemoveImage(_));
        all.push(step);
        if !is_of_images && !random.is_one_in(20) {
            continue;
        }
        for _ in 0..=random.below(2) {
            if random.is_one_in(2) {
                all.push(Step::Fail(Fault::PowerCut, random.below(CALL_COUNT)));
            }
            all.push(Step::RenameImage(RenameImage {
                which: random.next(),
                number: random.below(4),
                replaces: random.is_one_in(2),
            }));
        }
    }
    all
}
