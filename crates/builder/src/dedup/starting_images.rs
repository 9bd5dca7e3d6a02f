//! The images that a build starts from: the image that it appends to, and the base images that it
//! refers to.
//!
//! No index of them is stored. The build computes digests and samples anew from the bytes, and
//! verifies all of those against their digests, so that a new tree never builds on damage.

use crate::compress::record_history::HistorySource;
use crate::dedup::streams::CATEGORIES;
use crate::options::BuildOptions;
use crate::options::plan::Plan;
use crate::read::readers::WHOLE_LEN_MAX;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_format::directory::{Base, Category, Stream};
use weald_format::limits::STREAMS_MAX;
use weald_format::{ByteLen, ContentId, Digest, Error, ErrorKind, Result};
use weald_image::{Image, OpenOptions};
use weald_io::ReadAt;
use weald_remote::Location;

/// Memory that a content of an image takes, bytes: its digest three times, its number in a table,
/// and 16 for the choice of similar contents (`similar.rs`): two marks and an entry of its index.
const OLD_CONTENT_MEMORY_LEN: u64 = 128;
/// Memory that a directory of an image takes, bytes: its key and its number in a table.
const TEMPLATE_MEMORY_LEN: u64 = 96;

/// An open image whose content digests are not computed yet.
pub struct OpenedImage {
    image: Arc<Image>,
    path: PathBuf,
    /// Reader of an image that has no path (in a store).
    source: Option<Arc<dyn ReadAt>>,
    /// Digests of the contents of an image of a store, if they are known.
    digests: Option<Vec<Option<Digest>>>,
}

/// All open images, before their content digests are computed.
#[derive(Default)]
pub struct OpenedImages {
    appended: Option<OpenedImage>,
    bases: Vec<OpenedImage>,
}

/// An image with the digests of its contents.
pub struct IndexedImage {
    /// The image.
    pub image: Arc<Image>,
    path: PathBuf,
    /// Digest of every content.
    pub digests: Vec<Digest>,
    /// Contents that recipes make, ascending.
    pub made: Vec<ContentId>,
    /// For each content by number, whether its data is there; empty if that of all is.
    is_used: Vec<bool>,
    /// Whether only those contents are decoded that new ones may repeat.
    pub is_sampled_on_demand: bool,
}

/// All images that the build starts from.
#[derive(Default)]
pub struct StartingImages {
    /// The last generation of the image that is appended to.
    pub appended: Option<IndexedImage>,
    /// Base images.
    pub bases: Vec<IndexedImage>,
    /// Digests of all their contents, sorted.
    pub known: Arc<[Digest]>,
    /// Lengths of the contents that are too long to be read whole, bytes.
    pub long_lens: Vec<u64>,
}

fn category(stream: &Stream) -> Category {
    stream.category
}

/// Length of the cache of each image, bytes.
fn cache_len(options: &BuildOptions) -> u64 {
    (options.memory_len / 8).max(32 << 20) / (options.bases.len() as u64 + 1)
}

fn open_options(options: &BuildOptions, threads: usize) -> OpenOptions {
    OpenOptions {
        cache_len: ByteLen(cache_len(options)),
        prefetch_threads: threads,
        ..OpenOptions::default()
    }
}

fn open(path: &Path, options: &BuildOptions, threads: usize) -> Result<OpenedImage> {
    let options = open_options(options, threads);
    Ok(OpenedImage {
        image: Arc::new(Image::open_path(path, 0, &options)?),
        path: path.to_owned(),
        source: None,
        digests: None,
    })
}

/// Whether the streams of `image` are those that this program writes, so that a build can append to
/// it.
pub fn takes_more(image: &Image) -> bool {
    let streams = &image.directory().streams;
    let found: Vec<Category> = streams.iter().map(category).collect();
    let (own, others) = found.split_at(found.len().min(CATEGORIES.len()));
    own == CATEGORIES && others.iter().all(|c| *c == Category::Base)
}

impl OpenedImages {
    /// Opens the image in `source`, which must be one that [`takes_more`], to be continued. The
    /// `digests` of its contents are computed if they are `None`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `Unsupported`, `Limit`.
    pub fn continued(
        source: Arc<dyn ReadAt>,
        digests: Option<Vec<Option<Digest>>>,
        options: &BuildOptions,
        threads: usize,
    ) -> Result<Self> {
        let image = Image::open(source.clone(), &open_options(options, threads))?;
        let appended = OpenedImage {
            image: Arc::new(image),
            path: PathBuf::new(),
            source: Some(source),
            digests,
        };
        Ok(Self {
            appended: Some(appended),
            bases: Vec::new(),
        })
    }

    /// Opens the base images, and the image at `target` if `is_appended`.
    ///
    /// # Errors
    /// `NotFound`, `Io`, `Corrupt`; `Unsupported` if the streams at `target` are not those that
    /// this program writes; `Limit` for too many streams; `Invalid` for base images together with
    /// an appended image, which has its own.
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
            if appended.image.is_mended() {
                let what = format!(
                    "{}: is damaged, and only read by its second copies: 'weald salvage --image' \
                     writes a whole image, to which this can be appended",
                    target.display()
                );
                return Err(Error::invalid(what));
            }
            if !takes_more(&appended.image) {
                let what =
                    "cannot be appended to: its streams differ from those that this program writes";
                let what = format!("{}: {what}", target.display());
                return Err(Error::new(ErrorKind::Unsupported, what));
            }
            if !all.bases.is_empty() {
                let what = format!(
                    "{}: an appended image keeps its bases: omit the base images",
                    target.display()
                );
                return Err(Error::invalid(what));
            }
            all.appended = Some(appended);
        }
        let count = |opened: &OpenedImage| opened.image.directory().streams.len();
        let stream_count = CATEGORIES.len() + all.bases.iter().map(count).sum::<usize>();
        if stream_count <= STREAMS_MAX {
            Ok(all)
        } else {
            Err(Error::limit(format!(
                "base images: expected at most {STREAMS_MAX} streams in total, found {stream_count}"
            )))
        }
    }

    /// The metadata sections of all base images, each with the first stream that leads to its base.
    pub fn base_sections(&self) -> Vec<HistorySource> {
        let mut first = CATEGORIES.len();
        let section = |opened: &OpenedImage| {
            let base_stream = Some(first as u8);
            first += opened.image.directory().streams.len();
            HistorySource {
                image: opened.image.clone(),
                stream: 0,
                base_stream,
            }
        };
        self.bases.iter().map(section).collect()
    }

    /// The image that is appended to.
    pub fn appended(&self) -> Option<&Arc<Image>> {
        self.appended.as_ref().map(|opened| &opened.image)
    }

    /// Memory that the images take in addition to the build's own, bytes.
    pub fn memory_len(&self, options: &BuildOptions) -> u64 {
        let len = |opened: &OpenedImage| {
            let summary = opened.image.summary();
            // The cache does not count 4 MiB of tables.
            cache_len(options)
                + (4 << 20)
                + summary.content_count * OLD_CONTENT_MEMORY_LEN
                + summary.template_count * TEMPLATE_MEMORY_LEN
        };
        self.appended.iter().chain(&self.bases).map(len).sum()
    }

    /// Computes the digests of all contents.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    /// # Cost
    /// Decodes every image once.
    pub fn read(self, options: &BuildOptions, plan: &Plan) -> Result<StartingImages> {
        let read = |opened| IndexedImage::read(opened, options.memory_len, plan);
        let mut starting = StartingImages {
            appended: self.appended.map(read).transpose()?,
            bases: self.bases.into_iter().map(read).collect::<Result<_>>()?,
            ..StartingImages::default()
        };
        let mut known = Vec::new();
        for indexed in starting.appended.iter().chain(&starting.bases) {
            known.extend_from_slice(&indexed.digests);
            for id in (0..indexed.digests.len() as u64).map(ContentId) {
                let len = indexed.image.content_len(id)?;
                if len > WHOLE_LEN_MAX {
                    starting.long_lens.push(len);
                }
            }
        }
        known.sort_unstable();
        starting.known = known.into();
        Ok(starting)
    }
}

impl IndexedImage {
    fn read(opened: OpenedImage, memory_len: u64, plan: &Plan) -> Result<Self> {
        let OpenedImage {
            image,
            path,
            source,
            digests,
        } = opened;
        let count = image.summary().content_count;
        let known = digests.filter(|digests| digests.len() as u64 == count);
        // Nothing else needs memory yet, and a larger cache decodes fewer blocks twice.
        let options = OpenOptions {
            cache_len: ByteLen(memory_len / 2),
            expected_digest: Some(image.summary().image_digest),
            ..OpenOptions::default()
        };
        let is_sampled_on_demand = source.is_some();
        let mut is_used = Vec::new();
        let digests = match source {
            // In an image of a store, blocks that the tree does not use may hold other data.
            Some(source) => {
                let all = match known {
                    Some(all) => all,
                    None => {
                        let image = Image::open(source, &options)?;
                        let is_used = image.used_contents()?;
                        image.content_digests_of(&is_used, plan.threads)?
                    }
                };
                is_used = all.iter().map(Option::is_some).collect();
                let unused = |id: usize| Digest::of(format!("unused content {id}").as_bytes());
                let digest =
                    |(id, digest): (usize, Option<Digest>)| digest.unwrap_or_else(|| unused(id));
                all.into_iter().enumerate().map(digest).collect()
            }
            None => Image::open_path(&path, 0, &options)?.content_digests(plan.threads)?,
        };
        Ok(Self {
            made: image.contents_from_recipes()?,
            is_used,
            is_sampled_on_demand,
            digests,
            image,
            path,
        })
    }

    /// Whether the data of a content is there. In an image of a store, zeros may have replaced it.
    pub fn is_used(&self, id: ContentId) -> bool {
        self.is_used.is_empty() || self.is_used.get(id.0 as usize) == Some(&true)
    }

    /// Describes the image as a base of the new image.
    fn base(&self) -> Base {
        // The name is a hint only: a reader finds a renamed base by its digest.
        let url = Location::parse(&self.path).and_then(Result::ok);
        let name = match weald_store::split(&self.path) {
            _ if url.is_some() => url.map_or_else(Vec::new, |url| url.name().into_bytes()),
            Some((_, name)) => name.into_bytes(),
            None => {
                let path = std::fs::canonicalize(&self.path);
                let path = path.unwrap_or_else(|_| self.path.clone());
                let name = path.file_name().map(|name| name.as_bytes().to_vec());
                name.unwrap_or_else(|| b"base".to_vec())
            }
        };
        Base {
            image_digest: self.image.summary().image_digest,
            name,
            stream_count: self.image.directory().streams.len() as u64,
        }
    }
}

impl StartingImages {
    pub fn base_list(&self) -> Vec<Base> {
        match &self.appended {
            Some(indexed) => indexed.image.directory().bases.clone(),
            None => self.bases.iter().map(IndexedImage::base).collect(),
        }
    }

    /// The streams of the bases, as the new image lists them.
    pub fn base_streams(&self) -> Vec<Stream> {
        if let Some(indexed) = &self.appended {
            let streams = &indexed.image.directory().streams;
            return streams.get(CATEGORIES.len()..).unwrap_or(&[]).to_vec();
        }
        let streams = self
            .bases
            .iter()
            .flat_map(|indexed| &indexed.image.directory().streams);
        let as_base = |stream: &Stream| Stream {
            category: Category::Base,
            ..*stream
        };
        streams.map(as_base).collect()
    }

    /// Streams whose blocks may resemble the last block of a stream: category, number of the stream
    /// in the new image, and location.
    pub fn tail_sections(&self) -> Vec<(Category, u8, HistorySource)> {
        let own = self.appended.iter().flat_map(|indexed| {
            (0..).zip(CATEGORIES).map(|(no, category)| {
                let section = HistorySource {
                    image: indexed.image.clone(),
                    stream: no,
                    base_stream: None,
                };
                (category, no, section)
            })
        });
        let elsewhere = (CATEGORIES.len() as u8..).zip(self.streams_elsewhere());
        let elsewhere = elsewhere.map(|(no, (image, stream))| {
            let streams = &image.directory().streams;
            let found = streams.get(usize::from(stream)).map(category);
            let section = HistorySource {
                image: image.clone(),
                stream,
                base_stream: Some(no),
            };
            (found.unwrap_or(Category::Base), no, section)
        });
        own.chain(elsewhere).collect()
    }

    /// Images and streams that the base streams of the new image lead to, in the same order.
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
            Some(indexed) => streams(&indexed.image, CATEGORIES.len()).collect(),
            None => (self.bases.iter())
                .flat_map(|indexed| streams(&indexed.image, 0))
                .collect(),
        }
    }
}
