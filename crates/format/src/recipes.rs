//! Recipes: how the stream of category `deflate` is made of contents.

use crate::column::{self, Column};
use crate::cursor::{Cursor, put_varint, unzigzag, zigzag};
use crate::limits::{ITEMS_PER_PAGE, NUMBER_MAX, PAGE_LEN_MAX, RECIPE_LEN_MAX};
use crate::{ContentId, Digest, Result};

/// How to make a run of the stream from a content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// Bytes that it makes.
    pub len: u64,
    /// The plain bytes.
    pub plain: ContentId,
    /// zlib level that predicts the stream, 1 … 9.
    pub level: u8,
    /// First bytes of the digest of what it makes.
    pub check: [u8; CHECK_LEN],
    /// Where the stream differs from what was predicted.
    pub corrections: Vec<u8>,
}

/// Bytes of the check: the plain bytes and the recipe are verified by their records already, so that this has to find
/// only a reader that follows recipes otherwise than the writer did.
pub const CHECK_LEN: usize = 8;

impl Recipe {
    /// The check of a stream.
    pub fn check_of(stream: &[u8]) -> [u8; CHECK_LEN] {
        let digest = Digest::of(stream);
        digest.0.first_chunk().copied().unwrap_or_default()
    }
}

/// A page of up to `ITEMS_PER_PAGE` recipes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecipePage {
    /// Where what each recipe makes begins, from the start of the page, and after the last the page's length.
    starts: Vec<u64>,
    recipes: Vec<Recipe>,
}

impl RecipePage {
    /// Encodes consecutive recipes.
    #[allow(clippy::arithmetic_side_effects)] // encodes what this program made
    pub fn encode(recipes: &[Recipe]) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, recipes.len() as u64);
        let mut expected = 0u64;
        let step = |r: &Recipe| {
            let step = zigzag(r.plain.0.wrapping_sub(expected) as i64);
            expected = r.plain.0 + 1;
            step
        };
        let steps: Vec<u64> = recipes.iter().map(step).collect();
        let mut put = |of: fn(&Recipe) -> u64| {
            column::encode(&mut out, &recipes.iter().map(of).collect::<Vec<_>>())
        };
        put(|r| r.len);
        put(|r| u64::from(r.level));
        put(|r| r.corrections.len() as u64);
        column::encode(&mut out, &steps);
        recipes.iter().for_each(|r| out.extend_from_slice(&r.check));
        recipes
            .iter()
            .for_each(|r| out.extend_from_slice(&r.corrections));
        out
    }

    /// Parses a page.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "recipe page");
        let count = cursor.count(ITEMS_PER_PAGE, "recipe count")?;
        let lens = Column::decode(&mut cursor, count)?;
        let levels = Column::decode(&mut cursor, count)?;
        let correction_lens = Column::decode(&mut cursor, count)?;
        let steps = Column::decode(&mut cursor, count)?;
        let mut recipes = Vec::with_capacity(count);
        let mut starts = vec![0];
        let (mut start, mut expected) = (0u64, 0u64);
        for i in 0..count {
            let (len, level) = (lens.get(i), levels.get(i));
            let plain = expected.wrapping_add(unzigzag(steps.get(i)) as u64);
            let level = u8::try_from(level).ok().filter(|l| (1..=9).contains(l));
            let (Some(level), true) = (level, (1..=RECIPE_LEN_MAX).contains(&len)) else {
                let what = format!(
                    "recipe {i} of the page: expected a level of 1 to 9 and 1 to {RECIPE_LEN_MAX} bytes"
                );
                return Err(cursor.error("F-20.2", what));
            };
            if plain > NUMBER_MAX {
                return Err(cursor.error(
                    "F-20.3",
                    format!("recipe {i} of the page: no content {plain}"),
                ));
            }
            expected = plain.saturating_add(1);
            start = start.saturating_add(len);
            starts.push(start);
            recipes.push(Recipe {
                len,
                plain: ContentId(plain),
                level,
                check: [0; CHECK_LEN],
                corrections: Vec::new(),
            });
        }
        for recipe in &mut recipes {
            let check = cursor.bytes(CHECK_LEN)?;
            recipe.check = check.first_chunk().copied().unwrap_or_default();
        }
        for (i, recipe) in recipes.iter_mut().enumerate() {
            let len = correction_lens.get(i).min(PAGE_LEN_MAX) as usize;
            recipe.corrections = cursor.bytes(len)?.to_vec();
        }
        cursor.finish()?;
        Ok(Self { starts, recipes })
    }

    /// Recipes in the page.
    pub fn count(&self) -> usize {
        self.recipes.len()
    }

    /// Bytes that all recipes of the page make.
    pub fn made_len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// The recipe that makes byte `offset` of the page, its number in the page, and where its own bytes begin.
    pub fn find(&self, offset: u64) -> Option<(usize, u64, &Recipe)> {
        let index = self
            .starts
            .partition_point(|&s| s <= offset)
            .checked_sub(1)?;
        let recipe = self.recipes.get(index)?;
        Some((index, self.starts.get(index).copied()?, recipe))
    }

    /// All recipes, in order.
    pub fn recipes(&self) -> &[Recipe] {
        &self.recipes
    }

    /// Bytes of memory behind the page.
    pub fn memory_len(&self) -> usize {
        let corrections: usize = self.recipes.iter().map(|r| r.corrections.len()).sum();
        let each = size_of::<Recipe>().saturating_add(8);
        self.count()
            .saturating_mul(each)
            .saturating_add(corrections)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_round_trip_and_refuse_prefixes() {
        let recipes: Vec<Recipe> = (0..50u64)
            .map(|i| Recipe {
                len: 100 + i * i,
                plain: ContentId(1000 - i * 3),
                level: 1 + (i % 9) as u8,
                check: Recipe::check_of(&i.to_le_bytes()),
                corrections: vec![i as u8; (i % 4) as usize],
            })
            .collect();
        let bytes = RecipePage::encode(&recipes);
        let page = RecipePage::parse(&bytes).unwrap();
        assert_eq!(page.recipes(), recipes);
        let mut start = 0;
        for (i, recipe) in recipes.iter().enumerate() {
            for offset in [start, start + recipe.len - 1] {
                assert_eq!(page.find(offset), Some((i, start, recipe)));
            }
            start += recipe.len;
        }
        assert_eq!((page.made_len(), page.find(start)), (start, None));
        for len in 0..bytes.len() {
            assert!(RecipePage::parse(&bytes[..len]).is_err());
        }
    }
}
