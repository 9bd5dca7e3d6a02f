//! Uploads: the parts of an image first, its name last.
//!
//! A bucket shows an object when its upload is complete, and the whole of it: readers see the old
//! object or the new one, whenever the upload ends.

use crate::client::{connect, runtime};
use crate::failure::{Moment, explain};
use crate::location::{Location, ServerKind};
use crate::source::RemoteSource;
use bytes::Bytes;
use object_store::{ObjectStoreExt, PutPayload, WriteMultipart};
use std::time::Duration;
use weald_format::{ByteLen, Error, ErrorKind, Result};
use weald_io::ReadAt;

/// Least bytes of a part.
const PART_LEN_MIN: u64 = 8 << 20;
/// Most parts of an upload: servers take 10,000.
const PARTS_MAX: u64 = 9_000;
/// Parts that are sent at a time.
const PARTS_IN_FLIGHT: usize = 4;
/// How long a server may take for a part: a slow link sends for minutes without an answer.
const PART_TIMEOUT: Duration = Duration::from_secs(600);

/// The object at `location`, or `None` if there is none.
///
/// # Errors
/// As [`RemoteSource::open`].
pub fn find(location: &Location) -> Result<Option<RemoteSource>> {
    match RemoteSource::open(location) {
        Ok(source) => Ok(Some(source)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes the bytes of `source` to the object at `location`, in place of one that is there.
///
/// # Errors
/// `Unsupported` for a web server; `Io`. There is then no new object.
/// # Cost
/// A request for each part of 8 MiB, and two; memory for five parts.
pub fn publish(source: &dyn ReadAt, location: &Location) -> Result<ByteLen> {
    if location.place() == ServerKind::Web {
        let what = format!(
            "{}: a web server takes no images: publish to a bucket (s3://BUCKET/KEY), or copy the \
             file to the server by its own means",
            location.shown()
        );
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    runtime()?.block_on(upload(source, location))
}

async fn upload(source: &dyn ReadAt, location: &Location) -> Result<ByteLen> {
    let connection = connect(location, PART_TIMEOUT)?;
    let (store, key) = (connection.store, connection.key);
    let failed = |error: object_store::Error| explain(location, Moment::Publishing, &error);
    let len = source.len();
    if len <= PART_LEN_MIN {
        let bytes = read(source, 0, len)?;
        let put = store.put(&key, PutPayload::from(bytes)).await;
        put.map_err(failed)?;
        return Ok(ByteLen(len));
    }
    let part_len = len.div_ceil(PARTS_MAX).max(PART_LEN_MIN);
    let upload = store.put_multipart(&key).await.map_err(failed)?;
    let mut upload = WriteMultipart::new_with_chunk_size(upload, part_len as usize);
    match send(source, part_len, &mut upload, &failed).await {
        Ok(()) => {
            upload.finish().await.map_err(failed)?;
            Ok(ByteLen(len))
        }
        Err(error) => {
            // What cannot be removed is invisible, and the rules of the bucket remove it.
            let _ = upload.abort().await;
            Err(error)
        }
    }
}

async fn send(
    source: &dyn ReadAt,
    part_len: u64,
    upload: &mut WriteMultipart,
    failed: &dyn Fn(object_store::Error) -> Error,
) -> Result<()> {
    let mut at = 0;
    while at < source.len() {
        let room = upload.wait_for_capacity(PARTS_IN_FLIGHT).await;
        room.map_err(failed)?;
        let len = part_len.min(source.len().saturating_sub(at));
        upload.put(read(source, at, len)?);
        at = at.saturating_add(len);
    }
    Ok(())
}

fn read(source: &dyn ReadAt, at: u64, len: u64) -> Result<Bytes> {
    let mut bytes = vec![0; len as usize];
    source.read_exact_at(&mut bytes, at)?;
    Ok(bytes.into())
}
