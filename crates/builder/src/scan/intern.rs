//! Distinct values, each kept once and known by its number.

use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::{BuildHasher, Hash};

/// Values in the order in which they came first. The index holds numbers only: a value may be
/// large.
pub struct Interner<T> {
    pub values: Vec<T>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl<T: Eq + Hash> Interner<T> {
    /// The number of a value that is equal, if there is one.
    pub fn find(&self, value: &T) -> Option<u32> {
        let hash = self.hasher.hash_one(value);
        let is_same = |&number: &u32| self.values[number as usize] == *value;
        self.index.find(hash, is_same).copied()
    }

    /// The number of `value`, which is kept if it is new.
    pub fn intern(&mut self, value: T) -> u32 {
        if let Some(number) = self.find(&value) {
            return number;
        }
        let number = self.values.len() as u32;
        let hash = self.hasher.hash_one(&value);
        self.values.push(value);
        let (values, hasher) = (&self.values, &self.hasher);
        let rehash = |&number: &u32| hasher.hash_one(&values[number as usize]);
        self.index.insert_unique(hash, number, rehash);
        number
    }
}
