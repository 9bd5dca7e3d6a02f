//! Recipes: how the stream of category `made` is made of contents.

use crate::column::{self, Column};
use crate::cursor::{Cursor, put_varint, unzigzag, zigzag};
use crate::limits::{ITEMS_PER_PAGE, NUMBER_MAX, PAGE_LEN_MAX, RECIPE_LEN_MAX};
use crate::{ContentId, Digest, Result};

/// How to make a run of the stream from a content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// Bytes that it makes.
    pub len: u64,
    /// What it makes them of: plain bytes, or a stream that holds them in less room.
    pub plain: ContentId,
    /// How.
    pub method: Method,
    /// First bytes of the digest of what it makes.
    pub check: [u8; CHECK_LEN],
    /// Where the stream differs from what was predicted.
    pub corrections: Vec<u8>,
}

/// How a recipe makes its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// The plain bytes become a DEFLATE stream, which zlib predicts.
    Deflate(Zlib),
    /// A FLAC stream becomes samples.
    Pcm(Samples),
}

/// How zlib is told to compress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Zlib {
    /// 1 … 9.
    pub level: u8,
    /// Whether the strategy is the one for filtered data, which libpng chooses, not the default.
    pub is_filtered: bool,
}

/// Added to the level where the strategy is that for filtered data.
const FILTERED_FIRST: u8 = 32;

/// How the bytes of a sample lie; the same for all samples of a recipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Samples(u8);

/// Code of the first way in which samples lie.
const SAMPLES_FIRST: u8 = 16;
/// Bytes of the largest sample.
const SAMPLE_LEN_MAX: usize = 4;

impl Samples {
    /// Samples of one byte.
    pub const fn bytes(is_signed: bool) -> Self {
        Self(is_signed as u8)
    }

    /// Signed samples of 2 to 4 bytes; `None` for other lengths.
    pub const fn words(len: usize, is_big_endian: bool) -> Option<Self> {
        match len {
            2 => Some(Self(2 | is_big_endian as u8)),
            3 => Some(Self(4 | is_big_endian as u8)),
            SAMPLE_LEN_MAX => Some(Self(6 | is_big_endian as u8)),
            _ => None,
        }
    }

    /// Bytes of a sample, 1 … 4.
    pub const fn sample_len(self) -> usize {
        ((self.0 >> 1) as usize).wrapping_add(1)
    }

    /// Bits of a sample.
    pub const fn bits(self) -> u32 {
        (self.sample_len() as u32).wrapping_mul(8)
    }

    /// Whether the high byte comes first.
    pub const fn is_big_endian(self) -> bool {
        self.0 > 1 && self.0 & 1 == 1
    }

    /// What is to be flipped between a sample and the number that it stands for: the high bit of unsigned ones.
    pub const fn sign_flip(self) -> u32 {
        match self.0 {
            0 => 0x80,
            _ => 0,
        }
    }
}

impl Method {
    /// The method with this code; `None` where there is none.
    pub fn from_code(code: u64) -> Option<Self> {
        let code = u8::try_from(code).ok()?;
        match code {
            1..=9 => Some(Self::Deflate(Zlib {
                level: code,
                is_filtered: false,
            })),
            33..=41 => Some(Self::Deflate(Zlib {
                level: code.wrapping_sub(FILTERED_FIRST),
                is_filtered: true,
            })),
            16..=23 => Some(Self::Pcm(Samples(code.wrapping_sub(SAMPLES_FIRST)))),
            _ => None,
        }
    }

    /// Its code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Deflate(zlib) if zlib.is_filtered => zlib.level.wrapping_add(FILTERED_FIRST),
            Self::Deflate(zlib) => zlib.level,
            Self::Pcm(samples) => samples.0.wrapping_add(SAMPLES_FIRST),
        }
    }

    /// What kind of data it makes, in a word or two.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deflate(zlib) if zlib.is_filtered => "deflate filtered",
            Self::Deflate(_) => "deflate",
            Self::Pcm(_) => "pcm",
        }
    }
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
        put(|r| u64::from(r.method.code()));
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
        let methods = Column::decode(&mut cursor, count)?;
        let correction_lens = Column::decode(&mut cursor, count)?;
        let steps = Column::decode(&mut cursor, count)?;
        let mut recipes = Vec::with_capacity(count);
        let mut starts = vec![0];
        let (mut start, mut expected) = (0u64, 0u64);
        for i in 0..count {
            let len = lens.get(i);
            let plain = expected.wrapping_add(unzigzag(steps.get(i)) as u64);
            let method = Method::from_code(methods.get(i));
            let (Some(method), true) = (method, (1..=RECIPE_LEN_MAX).contains(&len)) else {
                let what = format!(
                    "recipe {i} of the page: expected a method and 1 to {RECIPE_LEN_MAX} bytes"
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
                method,
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

    /// Would catch: two methods of one code, or samples that lie otherwise than the code says.
    #[test]
    fn methods_have_codes_of_their_own() {
        for code in 0..300 {
            if let Some(method) = Method::from_code(code) {
                assert_eq!(u64::from(method.code()), code);
            }
        }
        let code = |samples| Method::Pcm(samples).code();
        assert_eq!([false, true].map(|s| code(Samples::bytes(s))), [16, 17]);
        for (len, first) in [(2, 18), (3, 20), (4, 22)] {
            for is_big_endian in [false, true] {
                let samples = Samples::words(len, is_big_endian).unwrap();
                assert_eq!(code(samples), first + u8::from(is_big_endian));
                assert_eq!(
                    (samples.sample_len(), samples.bits()),
                    (len, len as u32 * 8)
                );
                assert_eq!(samples.is_big_endian(), is_big_endian);
            }
        }
        for is_signed in [false, true] {
            let samples = Samples::bytes(is_signed);
            assert_eq!((samples.sample_len(), samples.is_big_endian()), (1, false));
            assert_eq!(samples.sign_flip(), if is_signed { 0 } else { 0x80 });
        }
    }

    #[test]
    fn pages_round_trip_and_refuse_prefixes() {
        let recipes: Vec<Recipe> = (0..50u64)
            .map(|i| Recipe {
                len: 100 + i * i,
                plain: ContentId(1000 - i * 3),
                method: Method::from_code([1 + i % 9, 16 + i % 8][i as usize % 2]).unwrap(),
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
