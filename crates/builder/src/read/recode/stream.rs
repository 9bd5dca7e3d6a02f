//! A part of a file and the recipes that make it.

use std::borrow::Cow;
use std::ops::Range;
use weald_codec::deflate::{self, WHOLE_PLAIN_LEN_MAX, analyze};
use weald_format::recipes::{CHECK_LEN, DeflatePart, Method, Recipe, Samples, Zlib};
use weald_format::{ContentId, Digest};

/// Longest plain content of a stream, bytes. From [`WHOLE_PLAIN_LEN_MAX`] on the stream is made in
/// parts, which takes no more memory. A shorter one is made whole, with zlib's stream and the
/// resulting stream in memory beside it.
pub const PLAIN_LEN_MAX: usize = WHOLE_PLAIN_LEN_MAX * 3;
/// Shortest stream that is worth a recipe, bytes.
pub const STREAM_LEN_MIN: usize = 128;

/// Method by which a part of a file is decoded and made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A DEFLATE stream, by zlib.
    Deflate { zlib: Zlib },
    /// Samples, by FLAC.
    Pcm { channels: usize, samples: Samples },
    /// A JPEG file, by Lepton.
    Jpeg,
}

impl Kind {
    /// The method that the recipe names.
    pub fn method(self) -> Method {
        match self {
            Self::Deflate { zlib } => Method::Deflate(zlib),
            Self::Pcm { samples, .. } => Method::Pcm(samples),
            Self::Jpeg => Method::Jpeg,
        }
    }

    /// Whether the plain content is compressed already.
    pub fn is_packed(self) -> bool {
        !matches!(self, Self::Deflate { .. })
    }
}

/// A part of a file that recipes can make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// Ranges in the file: ascending, disjoint, none empty.
    pub ranges: Vec<Range<usize>>,
    /// Digest of the plain content.
    pub plain_digest: Digest,
    /// Method.
    pub kind: Kind,
    /// Recipes that make it, in order.
    pub steps: Vec<Step>,
}

/// Part of a stream that one recipe makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Length of the output, bytes.
    pub len: u64,
    /// Part of a DEFLATE stream; `None` for the whole stream.
    pub part: Option<DeflatePart>,
    /// Differences from the output of zlib.
    pub corrections: Vec<u8>,
    /// First bytes of the digest of the output.
    pub check: [u8; CHECK_LEN],
}

impl Stream {
    /// A stream with content `made` at `range`, which one recipe makes of `plain`.
    pub(super) fn from_one_recipe(
        range: Range<usize>,
        kind: Kind,
        plain: &[u8],
        made: &[u8],
    ) -> Self {
        Self {
            ranges: vec![range],
            plain_digest: Digest::of(plain),
            kind,
            steps: vec![Step {
                len: made.len() as u64,
                part: None,
                corrections: Vec::new(),
                check: Recipe::check_of(made),
            }],
        }
    }

    /// The DEFLATE stream `bytes` at `ranges`, whose plain content is `plain`; `None` if none of
    /// the parameters `tried` reproduces it closely.
    pub(super) fn from_deflate(
        bytes: &[u8],
        ranges: Vec<Range<usize>>,
        plain: &[u8],
        tried: &[Zlib],
        part_len: usize,
    ) -> Option<Self> {
        let recipes = analyze(bytes, plain, tried, part_len);
        let zlib = recipes.first()?.zlib;
        let mut at = 0;
        let step = |recipe: deflate::Recipe| {
            let made = &bytes[at..at + recipe.len];
            at += recipe.len;
            Step {
                len: recipe.len as u64,
                part: recipe.part,
                corrections: recipe.corrections,
                check: Recipe::check_of(made),
            }
        };
        Some(Self {
            ranges,
            plain_digest: Digest::of(plain),
            kind: Kind::Deflate { zlib },
            steps: recipes.into_iter().map(step).collect(),
        })
    }

    /// Recipes that make the stream of `plain`, in order.
    pub fn recipes(&self, plain: ContentId) -> impl Iterator<Item = Recipe> {
        self.steps.iter().map(move |step| Recipe {
            len: step.len,
            plain,
            method: self.kind.method(),
            part: step.part,
            check: step.check,
            corrections: step.corrections.clone(),
        })
    }

    /// Whether the recipes make exactly `bytes`.
    pub fn makes(&self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        let is_next = |step: &Step| {
            let made = rest.split_off(..step.len as usize);
            made.is_some_and(|made| Recipe::check_of(made) == step.check)
        };
        self.steps.iter().all(is_next) && rest.is_empty()
    }

    /// Length of the stream, bytes.
    pub fn len(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// Bytes of the stream in the file `data`.
    pub fn bytes_in<'a>(&self, data: &'a [u8]) -> Cow<'a, [u8]> {
        match &self.ranges[..] {
            [range] => Cow::Borrowed(&data[range.clone()]),
            ranges => ranges
                .iter()
                .flat_map(|r| &data[r.clone()])
                .copied()
                .collect(),
        }
    }
}
