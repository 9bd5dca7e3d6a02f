//! Takes DEFLATE streams (RFC 1951) apart and makes them again bit for bit.
//!
//! An image keeps a stream as its plain bytes, the zlib level that predicts it best, and
//! *corrections*: the ends of its blocks, and the few tokens and code descriptions that zlib would
//! have chosen differently. `docs/design/0005-deflate.md` gives the reasons.

mod bits;
mod correct;
mod match_index;
mod parse;
mod predict;
mod tokens;
mod trees;
mod write;
mod zlib;

pub use write::{recreate, recreate_part};

use correct::{Cut, correct};
use parse::{Event, Parser};
use predict::{Predicted, with_predicted};
use weald_format::recipes::{DeflatePart, Zlib};
use write::predict_stream;

const fn default(level: u8) -> Zlib {
    Zlib {
        level,
        is_filtered: false,
    }
}

const fn filtered(level: u8) -> Zlib {
    Zlib {
        level,
        is_filtered: true,
    }
}

/// Parameters to try for streams of archives, in order: the most common ones come first.
pub const ARCHIVES: &[Zlib] = &[
    default(6),
    default(9),
    default(1),
    default(5),
    default(4),
    default(7),
    default(8),
    default(3),
    default(2),
];
/// Parameters to try for streams of PNG files. libpng at its default level makes four of five, and
/// most of the rest at other levels (`docs/design/0009-recipes-by-kind.md`). Below level 4 the
/// strategy does not affect tokens.
pub const PNG: &[Zlib] = &[
    filtered(6),
    default(6),
    filtered(9),
    default(9),
    filtered(7),
    filtered(8),
    default(1),
    default(2),
    default(3),
    filtered(4),
    filtered(5),
];
/// Number of plain bytes on which levels are compared.
const TRIAL_LEN: usize = 128 << 10;
/// At the end of the trial zlib sees fewer bytes ahead than the encoder of the real stream did.
const TRIAL_TAIL_LEN: usize = 1 << 10;
/// Maximum number of plain bytes of a stream that one recipe makes.
pub const WHOLE_PLAIN_LEN_MAX: usize = 8 << 20;
/// Parameters that make a stream, or a part of it, from its plain bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// Length of the output, bytes.
    pub len: usize,
    /// Parameters of zlib that predict the tokens.
    pub zlib: Zlib,
    /// Part of the stream that it makes; `None` if it makes the whole stream.
    pub part: Option<DeflatePart>,
    /// Differences from zlib's stream; empty if zlib makes exactly this stream.
    pub corrections: Vec<u8>,
}

/// Inflates the stream at the front of `bytes` to at most `plain_len_max` bytes. Returns the plain
/// bytes and the length of the stream; `None` if there is no stream or it holds more.
pub fn inflate(bytes: &[u8], plain_len_max: usize) -> Option<(Vec<u8>, usize)> {
    let mut parser = Parser::new(bytes);
    let mut plain: Vec<u8> = Vec::new();
    loop {
        match parser.next()? {
            Event::Block { .. } => {}
            Event::Stored(stored) => plain.extend_from_slice(stored),
            Event::Token(token) => match token.as_match() {
                None => plain.push(token.byte()),
                Some((len, distance)) => repeat(&mut plain, len as usize, distance as usize)?,
            },
            Event::End => return Some((plain, parser.stream_len())),
        }
        if plain.len() > plain_len_max {
            return None;
        }
    }
}

/// Appends `len` bytes from `distance` back. The source may overlap the appended bytes.
fn repeat(plain: &mut Vec<u8>, len: usize, distance: usize) -> Option<()> {
    let start = plain.len().checked_sub(distance)?;
    let mut remaining = len;
    while remaining > 0 {
        let step = remaining.min(distance);
        plain.extend_from_within(start..start.checked_add(step)?);
        remaining = remaining.saturating_sub(step);
        if remaining > 0 && distance < len {
            // The bytes just appended repeat with the same period.
            let from = plain.len().checked_sub(distance)?;
            let step = remaining.min(distance);
            plain.extend_from_within(from..from.checked_add(step)?);
            remaining = remaining.saturating_sub(step);
        }
    }
    Some(())
}

/// Finds recipes that together make `stream`, whose plain bytes are `plain`. Uses the element of
/// `candidates` that predicts most of it. The result is empty if the recipes would need too many
/// corrections. If possible, each recipe makes a part of `part_len` plain bytes or a little more:
/// to read a byte of the stream, a reader needs all plain bytes of its part and a window before
/// them.
///
/// # Cost
/// Up to one choice of tokens per candidate over 128 KiB, mostly only one. Then one or two over all
/// plain bytes, one of them to verify the result. Memory: that of [`recreate`], or that of
/// [`recreate_part`] for more than [`WHOLE_PLAIN_LEN_MAX`] plain bytes.
pub fn analyze(stream: &[u8], plain: &[u8], candidates: &[Zlib], part_len: usize) -> Vec<Recipe> {
    let Some(zlib) = best_prediction(stream, plain, candidates) else {
        return Vec::new();
    };
    let is_long = plain.len() / 2 > part_len;
    let parts = if is_long && DeflatePart::LEVELS.contains(&zlib.level) {
        part_recipes(stream, plain, zlib, part_len)
    } else {
        None
    };
    parts
        .or_else(|| Some(vec![whole_recipe(stream, plain, zlib)?]))
        .unwrap_or_default()
}

/// Finds the recipe for all of `stream` and verifies it.
fn whole_recipe(stream: &[u8], plain: &[u8], zlib: Zlib) -> Option<Recipe> {
    if plain.len() > WHOLE_PLAIN_LEN_MAX {
        return None;
    }
    let predicted = predict_stream(plain, zlib, usize::MAX).ok()?;
    let mut recipe = Recipe {
        len: stream.len(),
        zlib,
        part: None,
        corrections: Vec::new(),
    };
    if predicted == stream {
        return Some(recipe);
    }
    let cuts = correct(stream, plain, Predicted::of_stream(&predicted), usize::MAX)?;
    recipe.corrections = cuts.into_iter().next()?.corrections;
    let made = recreate(plain, zlib, &recipe.corrections, stream.len()).ok()?;
    (made == stream).then_some(recipe)
}

/// Finds recipes for parts of `stream` and verifies each.
fn part_recipes(stream: &[u8], plain: &[u8], zlib: Zlib, part_len: usize) -> Option<Vec<Recipe>> {
    let predicted = Predicted::from(plain, 0, true, zlib)?;
    let cuts = correct(stream, plain, predicted, part_len)?;
    let ends = cuts.iter().skip(1).map(|c| c.first_byte());
    let ends = ends.chain([stream.len()]);
    let recipe = |(cut, end): (&Cut, usize)| {
        let bytes = stream
            .get(cut.first_byte()..end)
            .filter(|b| !b.is_empty())?;
        let input = cut.part.input_range(plain.len() as u64)?;
        let run = plain.get(input.start as usize..input.end as usize)?;
        let is_made = |corrections: &[u8]| {
            let made = recreate_part(
                run,
                plain.len() as u64,
                zlib,
                cut.part,
                corrections,
                bytes.len(),
            );
            made.is_ok_and(|made| made == bytes)
        };
        let corrections = if cut.is_probably_predicted && is_made(&[]) {
            Vec::new()
        } else {
            cut.corrections.clone()
        };
        let is_right = corrections.is_empty() || is_made(&corrections);
        is_right.then_some(Recipe {
            len: bytes.len(),
            zlib,
            part: Some(cut.part),
            corrections,
        })
    };
    cuts.iter().zip(ends).map(recipe).collect()
}

/// The element of `candidates` whose tokens differ least from those at the front of `stream`.
fn best_prediction(stream: &[u8], plain: &[u8], candidates: &[Zlib]) -> Option<Zlib> {
    let trial = plain.get(..TRIAL_LEN).unwrap_or(plain);
    let end = if plain.len() <= TRIAL_LEN {
        trial.len()
    } else {
        trial.len().saturating_sub(TRIAL_TAIL_LEN)
    };
    let mut best = None;
    let mut fewest = usize::MAX;
    for &zlib in candidates {
        let count = with_predicted(trial, zlib, |predicted| {
            count_differences(stream, trial, predicted, end, fewest)
        });
        let count = count.ok()??;
        if count < fewest {
            best = Some(zlib);
            fewest = count;
        }
        if count == 0 {
            break;
        }
    }
    best
}

/// Counts the tokens of `stream` that begin before `end` and differ from the prediction. Stops
/// counting at `count_max`.
fn count_differences(
    stream: &[u8],
    plain: &[u8],
    mut predicted: Predicted<'_>,
    end: usize,
    count_max: usize,
) -> Option<usize> {
    let mut parser = Parser::new(stream);
    let (mut at, mut count) = (0usize, 0usize);
    while at < end && count < count_max {
        match parser.next()? {
            Event::Block { .. } => {}
            Event::Stored(bytes) => at = at.saturating_add(bytes.len()),
            Event::Token(token) => {
                let is_predicted = predicted.token_at(plain, at) == Some(token);
                count = count.saturating_add(usize::from(!is_predicted));
                at = at.saturating_add(token.len());
            }
            Event::End => break,
        }
    }
    Some(count)
}

#[cfg(test)]
mod tests;
