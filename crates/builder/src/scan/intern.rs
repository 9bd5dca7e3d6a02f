//! Keeps each distinct value once and numbers it.

use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::{BuildHasher, Hash};

/// Values in the order of first occurrence. The index holds numbers only, because a value may be
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
    /// Returns the number of an equal value, if there is one.
    pub fn find(&self, value: &T) -> Option<u32> {
        let hash = self.hasher.hash_one(value);
        let is_same = |&number: &u32| self.values[number as usize] == *value;
        self.index.find(hash, is_same).copied()
    }

    /// Returns the number of `value` and stores it if it is new.
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
