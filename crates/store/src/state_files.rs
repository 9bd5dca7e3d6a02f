//! The small files of a store that nothing else has once more: what a check says of each if it is
//! damaged. A store goes on without it, as if it had never been there. `tiers.pins` is not among
//! them: it is only kept to save time.

use crate::layout;
use crate::scrub::{ScrubPolicy, ScrubReport, ScrubWish};
use crate::store::{Store, is_bad_file};
use crate::tier::{Heat, TierReport};
use weald_format::{ErrorKind, Result};

/// Most bytes that are read of one of them. A longer one is damaged.
const LEN_MAX: u64 = 256 << 20;

/// A small file.
struct StateFile {
    name: &'static str,
    /// Whether these bytes are a whole one.
    is_whole: fn(&[u8]) -> bool,
    /// What its damage costs, and what helps.
    cost: &'static str,
}

const STATE_FILES: [StateFile; 5] = [
    StateFile {
        name: layout::SCRUB,
        is_whole: |bytes| ScrubWish::parse(bytes).is_some(),
        cost: "the scrub that was asked for is forgotten: 'weald scrub start' begins one",
    },
    StateFile {
        name: layout::SCRUB_REPORT,
        is_whole: |bytes| ScrubReport::parse(bytes).is_some(),
        cost: "what the last scrub found is forgotten: 'weald scrub start' reads everything again",
    },
    StateFile {
        name: layout::SCRUB_POLICY,
        is_whole: |bytes| ScrubPolicy::parse(bytes).is_some(),
        cost: "no scrub begins by itself until 'weald scrub set' says when",
    },
    StateFile {
        name: layout::TIERS_REPORT,
        is_whole: |bytes| TierReport::parse(bytes).is_some(),
        cost: "what the last moves did is forgotten: 'weald tier run' makes it again",
    },
    StateFile {
        name: layout::TIERS_HEAT,
        is_whole: Heat::is_whole,
        cost: "which segments were used is forgotten: 'weald tier run' counts anew",
    },
];

impl Store {
    /// What is wrong with the small files, for a check and a scrub: nothing of one that is missing.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn damaged_state_files(&self) -> Result<Vec<String>> {
        let mut damaged = Vec::new();
        for file in &STATE_FILES {
            // What reads well the second time is not damaged: the disk or its cable failed once.
            if self.is_damaged(file)? && self.is_damaged(file)? {
                damaged.push(format!("{}: is damaged: {}", file.name, file.cost));
            }
        }
        let replicas = self.damaged_replicas()?.into_iter();
        damaged.extend(replicas.map(|error| error.to_string()));
        Ok(damaged)
    }

    fn is_damaged(&self, file: &StateFile) -> Result<bool> {
        match self.disk.read_file(file.name, LEN_MAX) {
            Ok(bytes) => Ok(!(file.is_whole)(&bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) if is_bad_file(&error) => Ok(true),
            Err(error) => Err(error),
        }
    }
}
