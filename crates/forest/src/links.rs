//! Finds the names of each inode. Hard links lead to files of the same leaf or, from every second
//! leaf, to files of the leaf before. So two leaves together have all names of an inode.

use crate::tree::{Body, Forest, Leaf};

/// An entry of a leaf as a name of its inode. Positions count entries of a leaf in the order of
/// their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameOfInode {
    /// Whether the file behind the entry is in the partner leaf.
    pub is_in_partner: bool,
    /// Position of that file in its leaf.
    pub file: usize,
    /// Number of names of the inode in this leaf, this one included.
    pub own_count: u64,
    /// Number of names of the inode in the partner.
    pub partner_count: u64,
    /// Position of the inode's first name in this leaf.
    pub own_first: usize,
    /// Position of the inode's first name in the partner, if it has one there.
    pub partner_first: usize,
}

/// The names of an inode in one leaf.
#[derive(Clone, Copy, Default)]
struct Names {
    count: u64,
    first: usize,
}

impl Names {
    fn add(&mut self, position: usize) {
        if self.count == 0 {
            self.first = position;
        }
        self.count += 1;
    }
}

impl Forest {
    /// Whether inodes may have several names.
    pub fn has_links(&self) -> bool {
        !self.spec().hard_links.is_none() || !self.spec().hard_links_across.is_none()
    }

    /// The leaf that may share inodes with leaf `number`, if there is one: the one before or after
    /// it.
    pub fn partner(&self, number: u64) -> Option<u64> {
        if self.has_links_to_leaf_before(number) {
            return number.checked_sub(1);
        }
        let behind = number + 1;
        (behind < self.leaf_count() && self.has_links_to_leaf_before(behind)).then_some(behind)
    }
}

impl Leaf {
    /// Finds the inode of each entry. `partner` is the leaf that [`Forest::partner`] returns.
    ///
    /// # Panics
    /// If a link leads to a missing file: the two leaves are not of one forest.
    /// # Cost
    /// O(entries), and a search by name for each link to the other leaf.
    pub fn names_of_inodes(&self, partner: Option<&Leaf>) -> Vec<NameOfInode> {
        let none = Leaf::default();
        let leaves = [self, partner.unwrap_or(&none)];
        let positions = leaves.map(Leaf::positions);
        // Leaf (as an index of `leaves`) and position of the file behind an entry.
        let file = |which: usize, position: usize| match &leaves[which].entries[position].body {
            Body::File(_) | Body::Symlink(_) => (which, position),
            Body::HardLink(index) => (which, positions[which][*index as usize]),
            Body::HardLinkAcross(name) => {
                let name = &leaves[which].text[name.clone()];
                let other = leaves[1 - which];
                let found = other.entries.binary_search_by(|e| other.name(e).cmp(name));
                (
                    1 - which,
                    found.expect("a link into the leaf before leads to a file of it"),
                )
            }
        };
        // For each file of both leaves, its names in both.
        let mut names = leaves.map(|leaf| vec![[Names::default(); 2]; leaf.entries.len()]);
        for (which, leaf) in leaves.into_iter().enumerate() {
            for position in 0..leaf.entries.len() {
                let (of, file) = file(which, position);
                names[of][file][which].add(position);
            }
        }
        let name = |position| {
            let (of, file) = file(0, position);
            let [own, partner] = names[of][file];
            NameOfInode {
                is_in_partner: of == 1,
                file,
                own_count: own.count,
                partner_count: partner.count,
                own_first: own.first,
                partner_first: partner.first,
            }
        };
        (0..self.entries.len()).map(name).collect()
    }

    /// Position of each entry by its number.
    fn positions(&self) -> Vec<usize> {
        let mut positions = vec![0; self.entries.len()];
        for (position, entry) in self.entries.iter().enumerate() {
            positions[entry.index as usize] = position;
        }
        positions
    }
}

#[cfg(test)]
mod tests {
    use crate::{Body, Forest, Leaf, Spec};
    use std::collections::HashMap;

    /// Catches: names that are counted in one leaf only, a first name that is not the first, a
    /// partner relation that is not symmetric.
    #[test]
    fn both_leaves_agree_on_every_inode() {
        let mut spec = Spec {
            fanout: vec![2, 5, 40],
            ..Spec::default()
        };
        for (key, value) in [
            ("hard-links", "0.2"),
            ("hard-links-across", "0.3"),
            ("names", "hex"),
        ] {
            spec.set(key, value).unwrap();
        }
        let forest = Forest::new(spec).unwrap();
        let leaf = |number| {
            let mut leaf = Leaf::default();
            forest.leaf(number, &mut leaf);
            leaf
        };
        let (mut across, mut inside) = (0, 0);
        for number in 0..forest.leaf_count() {
            let partner = forest.partner(number);
            if let Some(partner) = partner {
                assert_eq!(forest.partner(partner), Some(number));
            }
            let (own, other) = (leaf(number), partner.map(leaf));
            let names = own.names_of_inodes(other.as_ref());
            // By the leaf and the name of the file, as links give them.
            let mut seen: HashMap<(u64, Vec<u8>), Vec<usize>> = HashMap::new();
            for (position, entry) in own.entries.iter().enumerate() {
                let file = match &entry.body {
                    Body::HardLink(index) => {
                        let file = own.entries.iter().find(|e| e.index == *index).unwrap();
                        (number, own.name(file).to_vec())
                    }
                    Body::HardLinkAcross(name) => {
                        (partner.unwrap(), own.text[name.clone()].to_vec())
                    }
                    _ => (number, own.name(entry).to_vec()),
                };
                seen.entry(file).or_default().push(position);
            }
            for ((leaf, name), positions) in seen {
                for &position in &positions {
                    let found = names[position];
                    assert_eq!(found.own_count, positions.len() as u64);
                    assert_eq!(found.own_first, positions[0]);
                    assert_eq!(found.is_in_partner, leaf != number);
                    let of = if leaf == number {
                        &own
                    } else {
                        other.as_ref().unwrap()
                    };
                    assert_eq!(of.name(&of.entries[found.file]), name);
                    across += u64::from(found.partner_count > 0);
                    inside += u64::from(found.partner_count == 0 && found.own_count > 1);
                }
            }
        }
        assert!(across > 20 && inside > 20, "{across} and {inside}");
    }
}
