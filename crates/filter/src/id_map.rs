//! Maps of user and group ids.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use weald_format::Error;

/// Ranges of ids, and what they become; the first range that has an id decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdMap(Vec<IdRange>);

/// A range of ids that become those from `to` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    first: u32,
    last: u32,
    to: u32,
}

impl IdMap {
    /// The map of `ranges`.
    pub fn new(ranges: Vec<IdRange>) -> Self {
        Self(ranges)
    }

    /// Adds a range that counts where no earlier one does.
    pub fn add(&mut self, range: IdRange) {
        self.0.push(range);
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What `id` becomes.
    pub fn apply(&self, id: u32) -> u32 {
        let range = self.0.iter().find(|r| (r.first..=r.last).contains(&id));
        range.map_or(id, |range| range.to + (id - range.first))
    }
}

impl Display for IdRange {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}:{}", self.first, self.last, self.to)
    }
}

impl FromStr for IdRange {
    type Err = Error;

    /// Parses `FROM:TO` or `FIRST-LAST:TO`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || {
            Error::invalid(format!(
                "'{text}': expected FROM:TO or FIRST-LAST:TO with numbers below 2^32 - 1"
            ))
        };
        let number = |word: &str| word.parse::<u32>().map_err(|_| invalid());
        let (from, to) = text.split_once(':').ok_or_else(invalid)?;
        let (first, last) = from.split_once('-').unwrap_or((from, from));
        let range = Self {
            first: number(first)?,
            last: number(last)?,
            to: number(to)?,
        };
        let len = range.last.checked_sub(range.first).ok_or_else(invalid)?;
        // The largest number means no id.
        let end = range.to.checked_add(len).ok_or_else(invalid)?;
        if end == u32::MAX {
            Err(invalid())
        } else {
            Ok(range)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_move_ids() {
        let range = |text: &str| text.parse::<IdRange>();
        let map = IdMap::new(vec![range("0-9:100").unwrap(), range("5:7").unwrap()]);
        assert_eq!([0, 5, 9, 10].map(|id| map.apply(id)), [100, 105, 109, 10]);
        for wrong in [
            "",
            "1",
            "1:",
            ":1",
            "2-1:0",
            "a:1",
            "1-2:4294967294",
            "0:4294967295",
            "-1:0",
            "1:2:3",
        ] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
        assert!(IdMap::default().is_empty() && IdMap::default().apply(3) == 3);
    }
}
