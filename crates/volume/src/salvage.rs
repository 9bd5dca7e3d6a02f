//! Salvage of a whole store: what `weald_store` brings back, and what is lost of images by path.

use weald_format::{ByteLen, Result};
use weald_image::{CheckOptions, Finding, Image, OpenOptions};
use weald_store::{DamagedImage, Loss, SalvageOptions, Salvaged, Store, WriteOptions};

/// Memory for an image that is opened, bytes.
const IMAGE_CACHE_LEN: u64 = 64 << 20;
/// Most damaged paths of an image that are listed.
const PATH_COUNT_MAX: u64 = 1_000_000;

/// Rebuilds the metadata of `store`, as [`Store::salvage`], opens the result as a writer does, and
/// finds what is lost of images and in the logs of volumes.
///
/// # Errors
/// As [`Store::salvage`].
///
/// # Cost
/// As [`Store::salvage`]; decodes all contents of the damaged images.
pub fn salvage_store(store: &Store, options: &SalvageOptions) -> Result<Salvaged> {
    let mut salvaged = store.salvage(options)?;
    let writer = store.write(WriteOptions::new(options.writer_name.clone()))?;
    for (name, row) in writer.volume_rows()? {
        for why in writer.check_sync_log(&row)?.lost {
            salvaged.add_loss(
                &name,
                Loss {
                    why,
                    ..Loss::new("synced changes in its log")
                },
            );
        }
    }
    let open_options = OpenOptions {
        cache_len: ByteLen(IMAGE_CACHE_LEN),
        ..OpenOptions::default()
    };
    let open = |name: &str| Image::open_stored(store.clone(), name, 0, &open_options);
    let is_damaged = !salvaged.damaged.is_empty();
    for name in std::mem::take(&mut salvaged.images) {
        match open(&name) {
            // Its own blocks are whole, and those of its base images may be damaged.
            Ok(image) if is_damaged && image.has_bases() => match losses_of(&image) {
                losses if losses.is_empty() => salvaged.images.push(name),
                losses => salvaged.damaged.push(DamagedImage {
                    name,
                    what: "contents of its base images cannot be read".to_owned(),
                    losses,
                }),
            },
            Ok(_) => salvaged.images.push(name),
            Err(error) => salvaged.damaged.push(DamagedImage {
                name,
                what: format!("it cannot be opened: {error}"),
                losses: Vec::new(),
            }),
        }
    }
    let without = |damaged: &&mut DamagedImage| damaged.losses.is_empty();
    for damaged in salvaged.damaged.iter_mut().filter(without) {
        match open(&damaged.name) {
            Ok(image) => damaged.losses = losses_of(&image),
            Err(error) => damaged.losses = vec![Loss::of(Vec::new(), error.to_string())],
        }
    }
    Ok(salvaged)
}

/// What cannot be read of an image, by path.
fn losses_of(image: &Image) -> Vec<Loss> {
    let options = CheckOptions {
        digests_only: false,
        threads: 1,
        path_count_max: PATH_COUNT_MAX,
    };
    let (mut paths, mut others) = (Vec::new(), Vec::new());
    image.check(&options, &mut |finding| match finding {
        Finding::Path { path, what } => paths.push(Loss {
            why: what,
            ..Loss::of(path, "the content")
        }),
        Finding::Structure(error) => others.push(Loss::new(error.to_string())),
    });
    // The same damage, by record, says less.
    if paths.is_empty() { others } else { paths }
}
