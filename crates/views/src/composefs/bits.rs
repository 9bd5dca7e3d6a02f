//! Sets of numbers, one bit each, and the rank of a number in a set.

/// Words whose ones are counted together.
const WORDS_PER_RANK: usize = 8;

#[derive(Default)]
pub(super) struct Bits {
    words: Vec<u64>,
    /// Ones before each group of words; made by [`Bits::rank_ready`].
    ranks: Vec<u64>,
}

impl Bits {
    /// Adds `number`; returns whether it was there.
    pub fn insert(&mut self, number: u64) -> bool {
        let (word, bit) = place(number);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let Some(word) = self.words.get_mut(word) else {
            return false;
        };
        let was_there = *word & bit != 0;
        *word |= bit;
        was_there
    }

    pub fn contains(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Numbers in the set.
    pub fn count(&self) -> u64 {
        let ones = self.words.iter().map(|word| u64::from(word.count_ones()));
        ones.sum()
    }

    /// All numbers, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().enumerate().flat_map(|(index, word)| {
            let bits = (0..u64::from(u64::BITS)).filter(move |bit| word >> bit & 1 == 1);
            bits.map(move |bit| index as u64 * u64::from(u64::BITS) + bit)
        })
    }

    /// Prepares [`Bits::rank`]; the set does not change from here on.
    pub fn rank_ready(&mut self) {
        let mut before = 0;
        self.ranks.clear();
        for group in self.words.chunks(WORDS_PER_RANK) {
            self.ranks.push(before);
            before += group
                .iter()
                .map(|word| u64::from(word.count_ones()))
                .sum::<u64>();
        }
    }

    /// Numbers in the set that are less than `number`.
    pub fn rank(&self, number: u64) -> u64 {
        let (word, bit) = place(number);
        let group = word / WORDS_PER_RANK;
        let before = self.ranks.get(group).copied().unwrap_or_default();
        let words = self.words.get(group * WORDS_PER_RANK..word);
        let words = words.unwrap_or_default().iter();
        let in_group: u64 = words.map(|word| u64::from(word.count_ones())).sum();
        let last = self.words.get(word).copied().unwrap_or_default();
        before + in_group + u64::from((last & (bit - 1)).count_ones())
    }
}

fn place(number: u64) -> (usize, u64) {
    let bits = u64::from(u64::BITS);
    ((number / bits) as usize, 1 << (number % bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a rank that counts the number itself, or loses those of a group before it.
    #[test]
    fn ranks_count_what_is_smaller() {
        let mut bits = Bits::default();
        let numbers: Vec<u64> = (0..500).map(|n| n * n % 5003).collect();
        let mut sorted: Vec<u64> = numbers.clone();
        sorted.sort_unstable();
        sorted.dedup();
        let repeats = numbers
            .iter()
            .filter(|number| bits.insert(**number))
            .count();
        assert_eq!(repeats, numbers.len() - sorted.len());
        bits.rank_ready();
        assert_eq!(bits.iter().collect::<Vec<_>>(), sorted);
        assert_eq!(bits.count(), sorted.len() as u64);
        for (rank, number) in sorted.iter().enumerate() {
            assert_eq!(bits.rank(*number), rank as u64);
        }
        assert!(!bits.contains(5002) || sorted.contains(&5002));
    }
}
