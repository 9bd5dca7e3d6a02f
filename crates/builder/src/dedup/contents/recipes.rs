//! Adds contents of which recipes make parts, and the plain contents of those parts.

use super::ContentWriter;
use crate::dedup::streams::INCOMPRESSIBLE;
use crate::read::recode::{self, Plain, Recoded};
use std::borrow::Cow;
use weald_format::{ContentId, Digest, Result};

impl ContentWriter<'_> {
    /// Adds the content `data`, parts of which recipes can make. The plain contents of those parts
    /// are added first.
    ///
    /// # Errors
    /// As [`ContentWriter::data`].
    pub fn add_with_recipes(
        &mut self,
        data: &[u8],
        recoded: &mut Recoded,
        digest: Digest,
    ) -> Result<ContentId> {
        let streams = recoded.streams.clone();
        recoded.plains.resize_with(streams.len(), || None);
        let plains = streams
            .iter()
            .zip(&mut recoded.plains)
            .map(|(s, plain)| self.add_plain(s, &|| s.bytes_in(data), plain.take()))
            .collect::<Result<Vec<_>>>()?;
        self.open_parts.clear();
        let (mut at, mut is_made) = (0, false);
        for (stream, plain) in streams.iter().zip(plains) {
            let Some(mut address) = self.add_recipes(stream, plain)? else {
                continue;
            };
            is_made = true;
            for range in &stream.ranges {
                self.data(&data[at..range.start])?;
                let len = range.len() as u64;
                self.update_fsverity(&data[range.clone()]);
                self.pages.push_made(address, len)?;
                self.content_len += len;
                address += len;
                at = range.end;
            }
        }
        self.data(&data[at..])?;
        let id = self.end(data.len() as u64, digest)?;
        if is_made {
            self.made.insert(id);
        }
        Ok(id)
    }

    /// Adds the recipes that make `stream` of the content `plain`. Returns the address of the data
    /// that they make, or `None` if recipes make `plain` itself.
    fn add_recipes(&mut self, stream: &recode::Stream, plain: ContentId) -> Result<Option<u64>> {
        if self.made.contains(&plain) {
            return Ok(None);
        }
        let address = self.pages.made_len;
        for recipe in stream.recipes(plain) {
            self.pages.push_recipe(recipe)?;
        }
        Ok(Some(address))
    }

    /// Adds to the open content the part `bytes` that recipes make of `plain`, a content that
    /// [`ContentWriter::add_plain`] returned. Returns false if no recipe may refer to `plain`.
    ///
    /// # Errors
    /// As [`ContentWriter::data`].
    pub fn add_made_part(
        &mut self,
        stream: &recode::Stream,
        plain: ContentId,
        bytes: &[u8],
    ) -> Result<bool> {
        let Some(address) = self.add_recipes(stream, plain)? else {
            return Ok(false);
        };
        self.update_fsverity(bytes);
        let len = stream.len() as u64;
        self.content_len += len;
        self.pages.push_made(address, len).map(|()| true)
    }

    /// Ends the open content, parts of which recipes make.
    ///
    /// # Errors
    /// As [`ContentWriter::data`].
    pub fn end_with_recipes(&mut self, len: u64, digest: Digest) -> Result<ContentId> {
        let id = self.end(len, digest)?;
        self.made.insert(id);
        Ok(id)
    }

    /// Returns the plain content that `stream` is made of, and adds it if it is missing. Its bytes
    /// are `plain`, or the builder decodes them from `bytes`. No content may be open.
    ///
    /// # Errors
    /// As [`ContentWriter::data`].
    pub fn add_plain<'b>(
        &mut self,
        stream: &recode::Stream,
        bytes: &dyn Fn() -> Cow<'b, [u8]>,
        plain: Option<Plain>,
    ) -> Result<ContentId> {
        if let Some(id) = self.find(&stream.plain_digest)? {
            return Ok(id);
        }
        let plain = plain.unwrap_or_else(|| recode::plain_of(stream, &bytes()).into());
        let (prepared, plain) = (plain.prepared, plain.bytes);
        self.plain_len += plain.len() as u64;
        let marks = if stream.kind.is_packed() {
            self.open_parts = vec![(u64::MAX, INCOMPRESSIBLE)];
            None
        } else {
            self.begin_prepared(&plain, prepared)
        };
        self.marked_data(&plain, marks.as_ref())?;
        self.end(plain.len() as u64, stream.plain_digest)
    }
}
