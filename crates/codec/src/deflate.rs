//! DEFLATE streams (RFC 1951) taken apart and put together again bit for bit.
//!
//! A stream is kept as its plain bytes, the zlib level that predicts it best, and *corrections*:
//! where its blocks end, and the few tokens and code descriptions that zlib would not have chosen.
//! `docs/design/0005-deflate.md` says why.

mod bits;
mod correct;
mod make;
mod parse;
mod places;
mod predict;
mod tokens;
mod trees;
mod zlib;

pub use make::{recreate, recreate_part};

use correct::{Cut, correct};
use make::foreseen;
use parse::{Event, Parser};
use predict::{Predicted, with_predicted};
use weald_format::recipes::{Part, Zlib};

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

/// What is tried for streams of archives, in order: what most programs use comes first.
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
/// What is tried for streams of PNG: libpng at its default level makes four of five, and the rest
/// is mostly its as well (`docs/design/0009-recipes-by-kind.md`). Below 4 the strategy makes no
/// difference to tokens.
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
/// Plain bytes that levels are compared on.
const TRIAL_LEN: usize = 128 << 10;
/// At the end of the trial zlib sees less ahead than the real stream's encoder did.
const TRIAL_TAIL_LEN: usize = 1 << 10;
/// Plain bytes of a stream that is made by one recipe.
pub const WHOLE_PLAIN_LEN_MAX: usize = 8 << 20;
/// How to make a stream, or a part of it, from its plain bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// Bytes that it makes.
    pub len: usize,
    /// What predicts the tokens.
    pub zlib: Zlib,
    /// Which part it makes, where it does not make all.
    pub part: Option<Part>,
    /// What zlib would have done otherwise; empty where it would have made the very stream.
    pub corrections: Vec<u8>,
}

/// Plain bytes of the stream that `bytes` begin with, at most `plain_len_max`, and the bytes that
/// the stream takes; `None` where there is no stream or it holds more.
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

/// Appends `len` bytes from `distance` back, which may reach into what is being appended.
fn repeat(plain: &mut Vec<u8>, len: usize, distance: usize) -> Option<()> {
    let start = plain.len().checked_sub(distance)?;
    let mut left = len;
    while left > 0 {
        let step = left.min(distance);
        plain.extend_from_within(start..start.checked_add(step)?);
        left = left.saturating_sub(step);
        if left > 0 && distance < len {
            // The bytes just appended repeat with the same period.
            let from = plain.len().checked_sub(distance)?;
            let step = left.min(distance);
            plain.extend_from_within(from..from.checked_add(step)?);
            left = left.saturating_sub(step);
        }
    }
    Some(())
}

/// Recipes that make `stream`, whose plain bytes are `plain`, one behind the other, by the one of
/// `tried` that foresees most of it; none where they would take too many corrections. Where they
/// can be, recipes are for parts of `part_len` plain bytes or a little more: who reads a byte of
/// the stream needs all these, and a window before them.
///
/// # Cost
/// Up to one choice of tokens for each that is tried over 128 KiB, mostly one, and one or two over
/// everything, one of them to see that it comes back. Memory: [`recreate`]'s, or that of
/// [`recreate_part`] where there are more than [`WHOLE_PLAIN_LEN_MAX`] plain bytes.
pub fn analyze(stream: &[u8], plain: &[u8], tried: &[Zlib], part_len: usize) -> Vec<Recipe> {
    let Some(zlib) = best(stream, plain, tried) else {
        return Vec::new();
    };
    let is_long = plain.len() / 2 > part_len;
    let parts = match is_long && Part::LEVELS.contains(&zlib.level) {
        true => parts(stream, plain, zlib, part_len),
        false => None,
    };
    parts
        .or_else(|| Some(vec![whole(stream, plain, zlib)?]))
        .unwrap_or_default()
}

/// The recipe for all of `stream`, made once to see that it comes back.
fn whole(stream: &[u8], plain: &[u8], zlib: Zlib) -> Option<Recipe> {
    if plain.len() > WHOLE_PLAIN_LEN_MAX {
        return None;
    }
    let predicted = foreseen(plain, zlib, usize::MAX).ok()?;
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

/// Recipes for parts of `stream`, each made once to see that it comes back.
fn parts(stream: &[u8], plain: &[u8], zlib: Zlib, part_len: usize) -> Option<Vec<Recipe>> {
    let predicted = Predicted::from(plain, 0, true, zlib)?;
    let cuts = correct(stream, plain, predicted, part_len)?;
    let ends = cuts.iter().skip(1).map(|c| c.first_byte());
    let ends = ends.chain([stream.len()]);
    let recipe = |(cut, end): (&Cut, usize)| {
        let bytes = stream
            .get(cut.first_byte()..end)
            .filter(|b| !b.is_empty())?;
        let needs = cut.part.input_range(plain.len() as u64)?;
        let run = plain.get(needs.start as usize..needs.end as usize)?;
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
        let corrections = match cut.may_be_foreseen && is_made(&[]) {
            true => Vec::new(),
            false => cut.corrections.clone(),
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

/// The one of `tried` whose tokens differ least from those of `stream` at its front.
fn best(stream: &[u8], plain: &[u8], tried: &[Zlib]) -> Option<Zlib> {
    let trial = plain.get(..TRIAL_LEN).unwrap_or(plain);
    let end = match plain.len() <= TRIAL_LEN {
        true => trial.len(),
        false => trial.len().saturating_sub(TRIAL_TAIL_LEN),
    };
    let mut best = None;
    let mut most = usize::MAX;
    for &zlib in tried {
        let count = with_predicted(trial, zlib, |predicted| {
            count_differences(stream, trial, predicted, end, most)
        });
        let count = count.ok()??;
        if count < most {
            best = Some(zlib);
            most = count;
        }
        if count == 0 {
            break;
        }
    }
    best
}

/// Tokens of `stream` that begin before `end` and that `predicted` does not foresee; counts no
/// further than `most`.
fn count_differences(
    stream: &[u8],
    plain: &[u8],
    mut predicted: Predicted<'_>,
    end: usize,
    most: usize,
) -> Option<usize> {
    let mut parser = Parser::new(stream);
    let (mut at, mut count) = (0usize, 0usize);
    while at < end && count < most {
        match parser.next()? {
            Event::Block { .. } => {}
            Event::Stored(bytes) => at = at.saturating_add(bytes.len()),
            Event::Token(token) => {
                let is_foreseen = predicted.token_at(plain, at) == Some(token);
                count = count.saturating_add(usize::from(!is_foreseen));
                at = at.saturating_add(token.len());
            }
            Event::End => break,
        }
    }
    Some(count)
}

#[cfg(test)]
mod tests;
