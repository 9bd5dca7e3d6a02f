//! An open tree: lookups, listings, reads.

use crate::errors::{exception, exception_of_path, of_errno, wrong_kind};
use crate::node::Node;
use crate::process::lacks_threads_for;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use weald_format::{ByteLen, Digest, FileKind, Result};
use weald_image::{Image, Inode, OpenOptions, TreePlace};
use weald_vfs::Follow;

/// Bytes of one read of the image. Between two of them, Python sees whether a signal came.
const READ_LEN_MAX: usize = 1 << 20;

/// An open tree, or a directory of one, which is the root of all paths.
#[pyclass(frozen, module = "weald._weald")]
pub struct Opened {
    image: Arc<Image>,
    place: TreePlace,
}

#[pymethods]
impl Opened {
    /// Opens what `path` names: an image file, `STORE:NAME` or a URL, with `@2` a generation of it
    /// and with `:/DIR` a directory in it.
    #[new]
    fn new(
        py: Python<'_>,
        path: &[u8],
        generation: Option<u64>,
        digest: Option<&str>,
        cache_len: Option<u64>,
    ) -> PyResult<Self> {
        let expected_digest = digest.map(parse_digest).transpose()?;
        let path = Path::new(OsStr::from_bytes(path));
        refuse_without_threads(path)?;
        let usual = OpenOptions::default();
        let options = OpenOptions {
            generation,
            expected_digest,
            cache_len: cache_len.map_or(usual.cache_len, ByteLen),
            ..usual
        };
        let (place, image) = py.detach(|| {
            let place = TreePlace::parse(path);
            let image = open(&place, options);
            (place, image)
        });
        let image = image.map_err(|failure| match failure {
            Failure::Twice => PyValueError::new_err(format!(
                "{}: the name tells a generation, and so does generation=: leave one out",
                weald_remote::shown(path)
            )),
            Failure::Of(error) => exception(py, &error),
        })?;
        let image = Arc::new(image);
        let opened = Self { image, place };
        if opened.locate(py, b"", true)?.kind() != FileKind::Directory {
            let inside = opened.place.path.as_bytes();
            return Err(wrong_kind(Errno::NOTDIR, inside, "is not a directory"));
        }
        Ok(opened)
    }

    /// The entry at `path`; with `follow`, that to which a symlink there leads.
    fn locate(&self, py: Python<'_>, path: &[u8], follow: bool) -> PyResult<Node> {
        let path = self.place.join(OsStr::from_bytes(path));
        let follow = if follow { Follow::Yes } else { Follow::No };
        let located = py.detach(|| weald_vfs::resolve(&self.image, path.as_bytes(), follow));
        let located = located.map_err(|error| exception_of_path(py, &error))?;
        Ok(Node {
            inode: located.inode,
        })
    }

    /// Names and entries of a directory, in the order of the bytes of the names. `path` is for the
    /// text of an exception.
    fn entries<'py>(
        &self,
        py: Python<'py>,
        node: &Node,
        path: &[u8],
    ) -> PyResult<Vec<(Bound<'py, PyBytes>, Node)>> {
        if node.kind() != FileKind::Directory {
            return Err(wrong_kind(Errno::NOTDIR, path, "is not a directory"));
        }
        let found = py.detach(|| self.read_dir(&node.inode));
        let found = found.map_err(|error| exception(py, &error))?;
        let entries = found.into_iter();
        let entries = entries.map(|(name, inode)| (PyBytes::new(py, &name), Node { inode }));
        Ok(entries.collect())
    }

    /// Refuses an entry that has no bytes to read. `path` is for the text of the exception.
    fn check_readable(&self, node: &Node, path: &[u8]) -> PyResult<()> {
        match node.kind() {
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(wrong_kind(Errno::ISDIR, path, "is a directory")),
            _ => Err(wrong_kind(Errno::INVAL, path, "is not a regular file")),
        }
    }

    /// `length` bytes of a regular file from `offset` on, or all; fewer only at its end.
    fn read<'py>(
        &self,
        py: Python<'py>,
        node: &Node,
        offset: u64,
        length: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let left = node.inode.size.0.saturating_sub(offset);
        let len = length.map_or(left, |length| length.min(left));
        let len = usize::try_from(len)?;
        PyBytes::new_with(py, len, |buf| {
            let mut at = offset;
            for part in buf.chunks_mut(READ_LEN_MAX) {
                py.check_signals()?;
                let read = py.detach(|| self.image.read_at(&node.inode, at, part));
                let read = read.map_err(|error| exception(py, &error))?;
                if read != part.len() {
                    let text = format!("expected {} bytes at {at}, found {read}", part.len());
                    return Err(of_errno(Errno::IO.raw_os_error(), text));
                }
                at = at.saturating_add(read as u64);
            }
            Ok(())
        })
    }

    /// The target of a symlink. `path` is for the text of an exception.
    fn link_target<'py>(
        &self,
        py: Python<'py>,
        node: &Node,
        path: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        if node.kind() != FileKind::Symlink {
            return Err(wrong_kind(Errno::INVAL, path, "is not a symlink"));
        }
        let target = py.detach(|| self.image.read_link(&node.inode));
        let target = target.map_err(|error| exception(py, &error))?;
        Ok(PyBytes::new(py, &target))
    }

    /// Names and values of extended attributes.
    fn xattrs<'py>(
        &self,
        py: Python<'py>,
        node: &Node,
    ) -> PyResult<Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        let found = py.detach(|| self.image.xattrs(&node.inode));
        let found = found.map_err(|error| exception(py, &error))?;
        let pairs = found.iter();
        let pairs = pairs.map(|x| (PyBytes::new(py, &x.name), PyBytes::new(py, &x.value)));
        Ok(pairs.collect())
    }

    /// Image digest and tree digest, in hexadecimal digits.
    #[getter]
    fn digests(&self) -> (String, String) {
        let summary = self.image.summary();
        (
            summary.image_digest.to_string(),
            summary.tree_digest.to_string(),
        )
    }

    /// The generation that is open.
    #[getter]
    fn generation(&self) -> u64 {
        self.image.summary().generation
    }

    /// Leaves the image open until the process ends. A forked process calls it: to close what its
    /// parent opened, it might wait for a thread that it lacks.
    fn abandon(&self) {
        std::mem::forget(self.image.clone());
    }
}

impl Opened {
    fn read_dir(&self, dir: &Inode) -> Result<Vec<(Vec<u8>, Inode)>> {
        let mut found = Vec::new();
        self.image.read_dir(dir.ino, 0, &mut |_, name, inode| {
            found.push((name.to_vec(), inode.clone()));
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }
}

/// Why a tree was not opened.
enum Failure {
    /// Two generations are named.
    Twice,
    Of(weald_format::Error),
}

fn open(place: &TreePlace, options: OpenOptions) -> Result<Image, Failure> {
    let named = place.generation().map_err(Failure::Of)?;
    if named.is_some() && options.generation.is_some() {
        return Err(Failure::Twice);
    }
    let options = OpenOptions {
        generation: named.or(options.generation),
        ..options
    };
    Image::open_path(&place.image, 0, &options).map_err(Failure::Of)
}

fn parse_digest(text: &str) -> PyResult<Digest> {
    let digest = Digest::from_hex(text);
    digest.ok_or_else(|| PyValueError::new_err("digest: expected 64 hexadecimal digits"))
}

fn refuse_without_threads(path: &Path) -> PyResult<()> {
    if !lacks_threads_for(path) {
        return Ok(());
    }
    let text = format!(
        "{}: this process was forked from one that reads images by URL, and lacks its threads: \
         start processes by 'spawn' or 'forkserver'",
        weald_remote::shown(path)
    );
    Err(of_errno(Errno::OPNOTSUPP.raw_os_error(), text))
}

/// Number, image digest, tree digest and length of each generation of the image that `path` names,
/// the oldest first.
#[pyfunction]
pub fn generations(py: Python<'_>, path: &[u8]) -> PyResult<Vec<(u64, String, String, u64)>> {
    let path = Path::new(OsStr::from_bytes(path));
    refuse_without_threads(path)?;
    let found = py.detach(|| weald_image::generations(&TreePlace::parse(path).image));
    let found = found.map_err(|error| exception(py, &error))?;
    let rows = found.iter().rev().map(|generation| {
        let digests = (generation.image_digest, generation.tree_digest);
        let (image, tree) = (digests.0.to_string(), digests.1.to_string());
        (generation.number, image, tree, generation.image_len)
    });
    Ok(rows.collect())
}
