//! What a search remembers of the templates it has seen.

use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

/// Templates that are remembered, about 64 bytes each.
const KNOWN_COUNT_MAX: usize = 1 << 20;
/// Positions that are remembered of all of them, 8 bytes each.
const POSITIONS_MAX: usize = 1 << 21;

/// What every instance of a template holds.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Entries that are wanted, at any depth.
    pub count: u64,
    /// Its entries that are wanted or lead to one; `None` where they are too many to be told apart.
    pub positions: Option<Arc<[u64]>>,
}

/// The answers of templates, for all threads of one search.
#[derive(Default)]
pub struct Known(RwLock<Answers>);

#[derive(Default)]
struct Answers {
    of_templates: HashMap<u64, Answer>,
    position_count: usize,
}

impl Known {
    pub fn get(&self, template: u64) -> Option<Answer> {
        self.0.read().of_templates.get(&template).cloned()
    }

    /// Remembers what `template` holds, if there is room. Two threads may come to know the same.
    pub fn insert(&self, template: u64, count: u64, positions: Option<Vec<u64>>) {
        let mut answers = self.0.write();
        let is_full = answers.of_templates.len() >= KNOWN_COUNT_MAX;
        if is_full || answers.of_templates.contains_key(&template) {
            return;
        }
        let room = POSITIONS_MAX - answers.position_count;
        let positions = positions.filter(|positions| positions.len() <= room);
        answers.position_count += positions.as_ref().map_or(0, Vec::len);
        let positions = positions.map(Arc::from);
        answers
            .of_templates
            .insert(template, Answer { count, positions });
    }
}
