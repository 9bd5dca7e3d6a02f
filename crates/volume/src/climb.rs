//! Walks along parents. They end although damaged rows may form a circle.

use weald_format::{Error, Ino, Result};

/// A walk along parents, which finds a circle.
///
/// It keeps one inode of those that it has passed and replaces it after twice as many steps each
/// time. On a circle it meets that inode again, after at most three times as many steps as there
/// are inodes.
///
/// # Source
/// Brent, "An improved Monte Carlo factorization algorithm", BIT 20 (1980), section 2.
#[derive(Debug)]
pub struct Climb {
    from: Ino,
    at: Ino,
    kept: Ino,
    /// Steps since an inode was kept, and those after which another one is.
    steps: u64,
    steps_max: u64,
}

impl Climb {
    /// Begins at the inode `from`.
    pub fn new(from: Ino) -> Self {
        Self {
            from,
            at: from,
            kept: from,
            steps: 0,
            steps_max: 1,
        }
    }

    /// Where the walk is.
    pub fn at(&self) -> Ino {
        self.at
    }

    /// Goes to `parent`.
    ///
    /// # Errors
    /// `Corrupt` on a circle.
    pub fn step(&mut self, parent: Ino) -> Result<()> {
        if parent == self.kept {
            let what = format!(
                "the parents of inode {} lead in a circle, through inode {parent}",
                self.from
            );
            return Err(Error::corrupt("inode row", 0, "V-2.3", what));
        }
        self.at = parent;
        self.steps += 1;
        if self.steps == self.steps_max {
            (self.kept, self.steps) = (parent, 0);
            self.steps_max = self.steps_max.saturating_mul(2);
        }
        Ok(())
    }
}

/// The error of a walk from `from` that ends at an inode without a row.
pub fn no_parent(from: Ino, at: Ino) -> Error {
    let what = format!("the parents of inode {from} lead to inode {at}, which has no row");
    Error::corrupt("inode row", 0, "V-2.3", what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of a walk from 1 along `parents`; `None` if they lead in a circle.
    fn steps(parents: impl Fn(u64) -> u64) -> (u64, bool) {
        let mut climb = Climb::new(Ino::ROOT);
        for step in 0.. {
            let parent = parents(climb.at().0);
            if parent == 0 {
                return (step, true);
            }
            if climb.step(Ino(parent)).is_err() {
                return (step, false);
            }
        }
        unreachable!("the walk ends")
    }

    // Would catch: a walk on a circle that does not end, and a long way that is taken for one.
    #[test]
    fn a_walk_ends_on_every_circle_and_at_every_root() {
        for len in 0..200u64 {
            let way = |at| if at > len { 0 } else { at + 1 };
            assert_eq!(steps(way), (len, true), "{len}");
            for back in 1..=len + 1 {
                let circle = |at| if at > len { back } else { at + 1 };
                let (count, is_root) = steps(circle);
                assert!(!is_root && count <= 3 * (len + 2), "{len}, {back}: {count}");
            }
        }
    }
}
