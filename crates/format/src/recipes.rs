//! Recipes: how to make the stream of category `made` from contents.

use crate::column::{self, Column};
use crate::cursor::{Cursor, put_varint, unzigzag, zigzag};
use crate::limits::{ITEMS_PER_PAGE, NUMBER_MAX, PAGE_LEN_MAX, RECIPE_LEN_MAX};
use crate::{ContentId, Digest, Result};
use std::borrow::Cow;
use std::ops::Range;

/// Recipe: makes a run of the stream from a content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// Length of the output, bytes.
    pub len: u64,
    /// The input: plain bytes, or a file that holds the output in fewer bytes.
    pub plain: ContentId,
    /// Method that makes the output.
    pub method: Method,
    /// Part of a DEFLATE stream that it makes; `None` if it makes the whole stream.
    pub part: Option<DeflatePart>,
    /// First bytes of the output's digest.
    pub check: [u8; CHECK_LEN],
    /// Differences between the stream and its prediction.
    pub corrections: Vec<u8>,
}

/// A run of tokens of a DEFLATE stream. Thanks to parts, readers need not make all bytes before the
/// ones that they want.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeflatePart {
    /// Plain bytes before its first token.
    pub start: u64,
    /// Number of plain bytes in its tokens, at least 1.
    pub len: u64,
    /// Distance before `start`, bytes, of the last position where zlib has no pending match: a
    /// match ends there.
    pub sync: u64,
    /// Bits of its first byte that belong to the previous part, with a 1 bit above them: 1 … 255.
    pub carry: u8,
    /// Whether its first block began in the previous part.
    pub begins_inside: bool,
    /// Whether its last block continues in the next part.
    pub ends_inside: bool,
    /// Whether its last block is the last of the stream.
    pub is_final: bool,
}

impl DeflatePart {
    /// Plain bytes before a position that decide zlib's choices from there on: its window.
    pub const WINDOW_LEN: u64 = 32 << 10;
    /// Plain bytes after a position that can decide zlib's choice there: the longest match at the
    /// position and the longest one a byte later.
    pub const LOOKAHEAD_LEN: u64 = 512;
    /// Maximum `sync`, bytes.
    pub const SYNC_MAX: u64 = 4096;
    /// Levels of zlib that support parts. At lower levels zlib does not search at all positions.
    pub const LEVELS: std::ops::RangeInclusive<u8> = 4..=9;

    /// Number of plain bytes before its end; `None` on overflow.
    pub fn end(&self) -> Option<u64> {
        self.start.checked_add(self.len)
    }

    /// Range of a content of `plain_len` bytes that is needed to make the part; `None` if the part
    /// ends past the content.
    pub fn input_range(&self, plain_len: u64) -> Option<Range<u64>> {
        let end = self.end().filter(|&end| end <= plain_len)?;
        let start = self.start.saturating_sub(self.sync);
        let start = start.saturating_sub(Self::WINDOW_LEN);
        Some(start..end.saturating_add(Self::LOOKAHEAD_LEN).min(plain_len))
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.start);
        put_varint(out, self.len);
        put_varint(out, self.sync);
        let flags = [self.begins_inside, self.ends_inside, self.is_final];
        let bits = flags.iter().rev();
        let bits = bits.fold(0u64, |bits, &flag| bits.wrapping_shl(1) | u64::from(flag));
        put_varint(out, bits.wrapping_shl(8) | u64::from(self.carry));
    }

    fn read(cursor: &mut Cursor<'_>) -> Result<Self> {
        let mut next = || cursor.varint();
        let (start, len, sync, marks) = (next()?, next()?, next()?, next()?);
        let part = Self {
            start,
            len,
            sync,
            carry: marks as u8,
            begins_inside: marks & 0x100 != 0,
            ends_inside: marks & 0x200 != 0,
            is_final: marks & 0x400 != 0,
        };
        let is_valid = marks < 0x800
            && part.carry > 0
            && (part.ends_inside || !part.is_final)
            && len > 0
            && sync <= start.min(Self::SYNC_MAX)
            && part.end().is_some_and(|end| end <= NUMBER_MAX);
        if is_valid {
            Ok(part)
        } else {
            Err(cursor.error("F-20.8", "part of a stream: a number is out of range"))
        }
    }
}

/// Method of a recipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// Compresses plain bytes to a DEFLATE stream; zlib's choices are the prediction.
    Deflate(Zlib),
    /// Decodes a FLAC stream to samples.
    Pcm(Samples),
    /// Decodes a Lepton file to a JPEG file.
    Jpeg,
}

/// Code of the JPEG method.
const JPEG: u8 = 48;

/// Parameters of zlib.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Zlib {
    /// Level, 1 … 9.
    pub level: u8,
    /// Whether the strategy is `Z_FILTERED`, which libpng chooses, not the default.
    pub is_filtered: bool,
}

/// Offset of the codes of levels with strategy `Z_FILTERED`.
const FILTERED_FIRST: u8 = 32;
/// Offset of the codes of recipes that make a part of a stream.
const PART_FIRST: u64 = 64;

/// Sample format: length, sign and byte order. All samples of a recipe have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Samples(u8);

/// Code of the first sample format.
const SAMPLES_FIRST: u8 = 16;
/// Length of the largest sample, bytes.
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

    /// Bytes per sample, 1 … 4.
    pub const fn sample_len(self) -> usize {
        ((self.0 >> 1) as usize).wrapping_add(1)
    }

    /// Bits per sample.
    pub const fn bits(self) -> u32 {
        (self.sample_len() as u32).wrapping_mul(8)
    }

    /// Whether the high byte comes first.
    pub const fn is_big_endian(self) -> bool {
        self.0 > 1 && self.0 & 1 == 1
    }

    /// Bit mask that converts between a stored sample and its number: the high bit of unsigned
    /// samples.
    pub const fn sign_flip(self) -> u32 {
        match self.0 {
            0 => 0x80,
            _ => 0,
        }
    }
}

impl Method {
    /// Returns the method with this code; `None` if the code is unknown.
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
            JPEG => Some(Self::Jpeg),
            16..=23 => Some(Self::Pcm(Samples(code.wrapping_sub(SAMPLES_FIRST)))),
            _ => None,
        }
    }

    /// Code of the method.
    pub const fn code(self) -> u8 {
        match self {
            Self::Deflate(zlib) if zlib.is_filtered => zlib.level.wrapping_add(FILTERED_FIRST),
            Self::Deflate(zlib) => zlib.level,
            Self::Pcm(samples) => samples.0.wrapping_add(SAMPLES_FIRST),
            Self::Jpeg => JPEG,
        }
    }

    /// Name of the data that it makes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deflate(zlib) if zlib.is_filtered => "deflate filtered",
            Self::Deflate(_) => "deflate",
            Self::Pcm(_) => "pcm",
            Self::Jpeg => "jpeg",
        }
    }
}

/// Returns the method with this code and whether its recipes make parts; `None` if the code is
/// unknown.
fn method_of(code: u64) -> Option<(Method, bool)> {
    let Some(whole) = code.checked_sub(PART_FIRST) else {
        return Some((Method::from_code(code)?, false));
    };
    match Method::from_code(whole)? {
        Method::Deflate(zlib) if DeflatePart::LEVELS.contains(&zlib.level) => {
            Some((Method::Deflate(zlib), true))
        }
        _ => None,
    }
}

/// Length of the check, bytes. Digests of their records already verify the plain bytes and the
/// recipe. So the check only has to find a reader that follows recipes differently from the writer.
pub const CHECK_LEN: usize = 8;

impl Recipe {
    /// Computes the check of an output.
    pub fn check_of(stream: &[u8]) -> [u8; CHECK_LEN] {
        let digest = Digest::of(stream);
        digest.0.first_chunk().copied().unwrap_or_default()
    }

    /// Range of a content of `plain_len` bytes that the recipe reads; `None` if the content is
    /// shorter than the recipe says.
    pub fn input_range(&self, plain_len: u64) -> Option<Range<u64>> {
        match self.part {
            None => Some(0..plain_len),
            Some(part) => part.input_range(plain_len),
        }
    }

    /// Number of bytes of a content of `plain_len` bytes that the output stands for.
    pub fn plain_len(&self, plain_len: u64) -> u64 {
        self.part.map_or(plain_len, |part| part.len)
    }

    fn code(&self) -> u64 {
        let part = self.part.map_or(0, |_| PART_FIRST);
        u64::from(self.method.code()).wrapping_add(part)
    }

    /// Its corrections as stored: after the numbers of the part.
    fn stored_corrections(&self) -> Cow<'_, [u8]> {
        let Some(part) = self.part else {
            return Cow::Borrowed(&self.corrections);
        };
        let mut out = Vec::new();
        part.put(&mut out);
        out.extend_from_slice(&self.corrections);
        Cow::Owned(out)
    }
}

/// A page of up to `ITEMS_PER_PAGE` recipes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecipePage {
    /// Position of each recipe's output from the start of the page; the last element is the sum.
    starts: Vec<u64>,
    recipes: Vec<Recipe>,
}

impl RecipePage {
    /// Encodes consecutive recipes.
    #[allow(clippy::arithmetic_side_effects)] // trusted input: values of this program
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
        let corrections: Vec<_> = recipes.iter().map(Recipe::stored_corrections).collect();
        let mut put = |of: &dyn Fn(usize, &Recipe) -> u64| {
            let values = recipes.iter().enumerate().map(|(i, r)| of(i, r));
            column::encode(&mut out, &values.collect::<Vec<_>>())
        };
        put(&|_, r| r.len);
        put(&|_, r| r.code());
        put(&|i, _| corrections.get(i).map_or(0, |c| c.len() as u64));
        column::encode(&mut out, &steps);
        recipes.iter().for_each(|r| out.extend_from_slice(&r.check));
        corrections.iter().for_each(|c| out.extend_from_slice(c));
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
        let mut are_parts = Vec::with_capacity(count);
        let mut starts = vec![0];
        let (mut start, mut expected) = (0u64, 0u64);
        for i in 0..count {
            let len = lens.get(i);
            let plain = expected.wrapping_add(unzigzag(steps.get(i)) as u64);
            let method = method_of(methods.get(i));
            let (Some((method, is_part)), true) = (method, (1..=RECIPE_LEN_MAX).contains(&len))
            else {
                let what = format!(
                    "recipe {i} of the page: expected a known method and 1 to {RECIPE_LEN_MAX} \
                     bytes"
                );
                return Err(cursor.error("F-20.2", what));
            };
            if plain > NUMBER_MAX {
                return Err(cursor.error(
                    "F-20.3",
                    format!("recipe {i} of the page: content {plain} is out of range"),
                ));
            }
            expected = plain.saturating_add(1);
            start = start.saturating_add(len);
            starts.push(start);
            are_parts.push(is_part);
            recipes.push(Recipe {
                len,
                plain: ContentId(plain),
                method,
                part: None,
                check: [0; CHECK_LEN],
                corrections: Vec::new(),
            });
        }
        for recipe in &mut recipes {
            let check = cursor.bytes(CHECK_LEN)?;
            recipe.check = check.first_chunk().copied().unwrap_or_default();
        }
        for (i, (recipe, is_part)) in recipes.iter_mut().zip(are_parts).enumerate() {
            let len = correction_lens.get(i).min(PAGE_LEN_MAX) as usize;
            let mut stored = Cursor::new(cursor.bytes(len)?, "recipe page");
            if is_part {
                recipe.part = Some(DeflatePart::read(&mut stored)?);
            }
            recipe.corrections = stored.bytes(stored.remaining())?.to_vec();
        }
        cursor.finish()?;
        Ok(Self { starts, recipes })
    }

    /// Number of recipes in the page.
    pub fn count(&self) -> usize {
        self.recipes.len()
    }

    /// Number of bytes that all recipes of the page make.
    pub fn made_len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Finds the recipe that makes byte `offset` of the page: returns its number in the page, the
    /// position of its output, and the recipe.
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

    /// Bytes of memory of the page.
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

    /// Catches: two methods with one code, or a sample format that differs from its code.
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
                method: Method::from_code([4 + i % 6, 16 + i % 8][i as usize % 2]).unwrap(),
                part: (i % 6 == 2).then_some(DeflatePart {
                    start: i * 100_000,
                    len: i,
                    sync: i,
                    carry: 255 - i as u8,
                    begins_inside: i % 4 == 0,
                    ends_inside: i % 3 == 2,
                    is_final: i % 9 == 8,
                }),
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
