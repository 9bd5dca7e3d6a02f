//! What is there already: the image that a build appends to, and the base images that it refers to.
//!
//! Nothing of them is stored as an index: digests and samples are taken anew from the bytes, all of
//! which pass their digests on the way, so that a new tree never builds on damage.

use crate::contents::CATEGORIES;
use crate::earlier::Place;
use crate::options::BuildOptions;
use crate::plan::Plan;
use crate::read::WHOLE_LEN_MAX;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_format::directory::{Base, Category, Stream};
use weald_format::limits::STREAMS_MAX;
use weald_format::{ByteLen, ContentId, Digest, Error, ErrorKind, Result};
use weald_image::{Image, OpenOptions};

/// Bytes of memory that a content of an image takes: its digest three times, its number in a table.
const CONTENT_LEN: u64 = 112;
/// Bytes of memory that a directory of an image takes: its key and its number in a table.
const TEMPLATE_LEN: u64 = 96;

/// An image before its contents are known.
pub struct Opened {
    image: Arc<Image>,
    path: PathBuf,
}

/// All images, before their contents are known.
#[derive(Default)]
pub struct OpenedAll {
    appended: Option<Opened>,
    bases: Vec<Opened>,
}

/// An image, and what its contents are.
pub struct Prior {
    /// The image.
    pub image: Arc<Image>,
    path: PathBuf,
    /// Digest of every content.
    pub digests: Vec<Digest>,
    /// Contents that recipes make, ascending.
    pub made: Vec<ContentId>,
}

/// All that is there already.
#[derive(Default)]
pub struct Before {
    /// The last generation of the image that is appended to.
    pub appended: Option<Prior>,
    /// Base images.
    pub bases: Vec<Prior>,
    /// Digests of all their contents, sorted.
    pub known: Arc<[Digest]>,
    /// Lengths of contents that are not read whole.
    pub long_lens: Vec<u64>,
}

fn category(stream: &Stream) -> Category {
    stream.category
}

/// The cache of each image, bytes.
fn cache_len(options: &BuildOptions) -> u64 {
    (options.memory_len / 8).max(32 << 20) / (options.bases.len() as u64 + 1)
}

fn open(path: &Path, options: &BuildOptions, threads: usize) -> Result<Opened> {
    let options = OpenOptions {
        cache_len: ByteLen(cache_len(options)),
        prefetch_threads: threads,
        ..OpenOptions::default()
    };
    Ok(Opened {
        image: Arc::new(Image::open_path(path, 0, &options)?),
        path: path.to_owned(),
    })
}

impl OpenedAll {
    /// Opens the image at `target`, if it `is_appended` to, and the base images.
    ///
    /// # Errors
    /// `NotFound`, `Io`, `Corrupt`; `Unsupported` where the streams at `target` are not laid out as
    /// this program does; `Limit` for too many streams; `Invalid` for base images with an appended
    /// one, which has its own.
    pub fn open(
        target: &Path,
        is_appended: bool,
        options: &BuildOptions,
        threads: usize,
    ) -> Result<Self> {
        let bases = options.bases.iter();
        let bases = bases.map(|path| open(path, options, threads));
        let mut all = Self {
            appended: None,
            bases: bases.collect::<Result<_>>()?,
        };
        if is_appended {
            let appended = open(target, options, threads)?;
            let streams = &appended.image.directory().streams;
            let found: Vec<Category> = streams.iter().map(category).collect();
            let (own, others) = found.split_at(found.len().min(CATEGORIES.len()));
            if own != CATEGORIES || others.iter().any(|c| *c != Category::Base) {
                let what = "its streams are not those that this program appends to";
                let what = format!("{}: {what}", target.display());
                return Err(Error::new(ErrorKind::Unsupported, what));
            }
            if !all.bases.is_empty() {
                let what = format!(
                    "{}: base images cannot be added to an image",
                    target.display()
                );
                return Err(Error::invalid(what));
            }
            all.appended = Some(appended);
        }
        let count = |opened: &Opened| opened.image.directory().streams.len();
        let stream_count = CATEGORIES.len() + all.bases.iter().map(count).sum::<usize>();
        match stream_count <= STREAMS_MAX {
            true => Ok(all),
            false => Err(Error::limit(format!(
                "base images: {stream_count} streams together, at most {STREAMS_MAX}"
            ))),
        }
    }

    /// The sections of metadata of all base images, by the first of the streams that lead to each.
    pub fn base_places(&self) -> Vec<Place> {
        let mut first = CATEGORIES.len();
        let place = |opened: &Opened| {
            let base_stream = Some(first as u8);
            first += opened.image.directory().streams.len();
            Place {
                image: opened.image.clone(),
                stream: 0,
                base_stream,
            }
        };
        self.bases.iter().map(place).collect()
    }

    /// The image that is appended to.
    pub fn appended(&self) -> Option<&Arc<Image>> {
        self.appended.as_ref().map(|opened| &opened.image)
    }

    /// Bytes of memory that they take besides what the build itself does.
    pub fn memory_len(&self, options: &BuildOptions) -> u64 {
        let len = |opened: &Opened| {
            let summary = opened.image.summary();
            // 4 MiB of tables are outside of the cache.
            cache_len(options)
                + (4 << 20)
                + summary.content_count * CONTENT_LEN
                + summary.template_count * TEMPLATE_LEN
        };
        self.appended.iter().chain(&self.bases).map(len).sum()
    }

    /// Takes the digests of all contents.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    /// # Cost
    /// Decodes every image once.
    pub fn read(self, options: &BuildOptions, plan: &Plan) -> Result<Before> {
        let read = |opened| Prior::read(opened, options.memory_len, plan);
        let mut before = Before {
            appended: self.appended.map(read).transpose()?,
            bases: self.bases.into_iter().map(read).collect::<Result<_>>()?,
            ..Before::default()
        };
        let mut known = Vec::new();
        for prior in before.appended.iter().chain(&before.bases) {
            known.extend_from_slice(&prior.digests);
            for id in (0..prior.digests.len() as u64).map(ContentId) {
                let len = prior.image.content_len(id)?;
                if len > WHOLE_LEN_MAX {
                    before.long_lens.push(len);
                }
            }
        }
        known.sort_unstable();
        before.known = known.into();
        Ok(before)
    }
}

impl Prior {
    fn read(opened: Opened, memory_len: u64, plan: &Plan) -> Result<Self> {
        let Opened { image, path } = opened;
        // Nothing else needs memory yet, and with a larger cache fewer blocks are decoded twice.
        let options = OpenOptions {
            cache_len: ByteLen(memory_len / 2),
            expected_digest: Some(image.summary().image_digest),
            ..OpenOptions::default()
        };
        let digests = Image::open_path(&path, 0, &options)?.content_digests(plan.threads)?;
        Ok(Self {
            made: image.contents_from_recipes()?,
            digests,
            image,
            path,
        })
    }

    /// The image as a base.
    fn base(&self) -> Base {
        // Renamed or not, the digest finds it.
        let path = std::fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let name = path
            .file_name()
            .map_or(&b"base"[..], |name| name.as_bytes());
        Base {
            image_digest: self.image.summary().image_digest,
            name: name.to_vec(),
            stream_count: self.image.directory().streams.len() as u64,
        }
    }
}

impl Before {
    /// The bases that the new image refers to.
    pub fn base_list(&self) -> Vec<Base> {
        match &self.appended {
            Some(prior) => prior.image.directory().bases.clone(),
            None => self.bases.iter().map(Prior::base).collect(),
        }
    }

    /// The streams of them, as the new image lists them.
    pub fn base_streams(&self) -> Vec<Stream> {
        if let Some(prior) = &self.appended {
            let streams = &prior.image.directory().streams;
            return streams.get(CATEGORIES.len()..).unwrap_or(&[]).to_vec();
        }
        let streams = self
            .bases
            .iter()
            .flat_map(|prior| &prior.image.directory().streams);
        let as_base = |stream: &Stream| Stream {
            category: Category::Base,
            ..*stream
        };
        streams.map(as_base).collect()
    }

    /// Where blocks may lie that the last of a stream resembles: its category, and the stream here
    /// that is or leads to them.
    pub fn tail_places(&self) -> Vec<(Category, u8, Place)> {
        let own = self.appended.iter().flat_map(|prior| {
            (0..).zip(CATEGORIES).map(|(no, category)| {
                let place = Place {
                    image: prior.image.clone(),
                    stream: no,
                    base_stream: None,
                };
                (category, no, place)
            })
        });
        let elsewhere = (CATEGORIES.len() as u8..).zip(self.streams_elsewhere());
        let elsewhere = elsewhere.map(|(no, (image, stream))| {
            let streams = &image.directory().streams;
            let found = streams.get(usize::from(stream)).map(category);
            let place = Place {
                image: image.clone(),
                stream,
                base_stream: Some(no),
            };
            (found.unwrap_or(Category::Base), no, place)
        });
        own.chain(elsewhere).collect()
    }

    /// Where they really are, in the same order.
    pub fn streams_elsewhere(&self) -> Vec<(Arc<Image>, u8)> {
        let streams = |image: &Arc<Image>, first: usize| {
            let image = image.clone();
            let count = image.directory().streams.len();
            (first..count).map(move |no| {
                let no = no as u8;
                image.base_of(no).unwrap_or_else(|| (image.clone(), no))
            })
        };
        match &self.appended {
            Some(prior) => streams(&prior.image, CATEGORIES.len()).collect(),
            None => (self.bases.iter())
                .flat_map(|prior| streams(&prior.image, 0))
                .collect(),
        }
    }
}
