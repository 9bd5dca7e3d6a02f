//! Which images of a store other images of it have as base images.

use super::bases::{bases_of, image_digests};
use std::collections::BTreeSet;
use weald_format::{Digest, Error, ErrorKind, Result};
use weald_store::{Store, StoredImage};

/// An image of a store, and the base images that it needs.
#[derive(Debug, Clone)]
pub struct Member {
    name: String,
    digests: Vec<Digest>,
    bases: Vec<Digest>,
}

/// The images of a store.
#[derive(Debug)]
pub struct Members(Vec<Member>);

impl Member {
    /// Reads footers and directory of the image `name`; `None` if it cannot be read.
    ///
    /// # Errors
    /// `NotFound`; `Busy` for an image that is being removed.
    pub fn read(store: &Store, name: &str) -> Result<Option<Self>> {
        match member(store, name) {
            Ok(member) => Ok(Some(member)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Busy) => {
                Err(error)
            }
            Err(_) => Ok(None),
        }
    }

    /// Refuses to remove this image, which readers cannot open any more, if another image of
    /// `store` needs it now. A writer of the store calls it in the same hold of the store as the
    /// removal, so that no image can come in between.
    ///
    /// # Errors
    /// `Busy` with the names of those images; `Io`.
    pub fn refuse_if_needed(&self, store: &Store) -> Result<()> {
        let mut members = Members::read(store)?;
        members.0.retain(|member| member.name != self.name);
        members.0.push(self.clone());
        members.refuse_needed(store, std::slice::from_ref(&self.name))
    }
}

impl Members {
    /// Reads footers and directories of all images of `store`. Of an image that cannot be read it
    /// is not known what it needs.
    ///
    /// # Errors
    /// `Io`.
    pub fn read(store: &Store) -> Result<Self> {
        let mut members = Vec::new();
        for name in store.names()? {
            match member(store, &name) {
                Ok(member) => members.push(member),
                // It was removed meanwhile.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Busy) => {}
                Err(error) => {
                    log::warn!(
                        "{}:{name}: its base images are not known: {error}",
                        store.shown()
                    );
                }
            }
        }
        Ok(Self(members))
    }

    /// The images that would lose a base image with the image `name`, if all images `leaving` go.
    pub fn users_of(&self, name: &str, leaving: &[String]) -> Vec<&str> {
        let Some(base) = self.0.iter().find(|member| member.name == name) else {
            return Vec::new();
        };
        let stays = |member: &&Member| member.name != name && !leaving.contains(&member.name);
        let is_elsewhere = |digest: &Digest| {
            let mut others = self.0.iter().filter(stays);
            others.any(|member| member.digests.contains(digest))
        };
        let lost: Vec<&Digest> = base.digests.iter().filter(|d| !is_elsewhere(d)).collect();
        let users = self.0.iter().filter(stays);
        let users = users.filter(|user| user.bases.iter().any(|base| lost.contains(&base)));
        users.map(|user| user.name.as_str()).collect()
    }

    /// `names` in an order in which no image goes before those that need it.
    pub fn in_order(&self, names: &[String]) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let mut left: Vec<&String> = names.iter().filter(|name| seen.insert(*name)).collect();
        let mut ordered = Vec::new();
        while !left.is_empty() {
            let gone = |name: &&&String| {
                self.users_of(name, &ordered)
                    .iter()
                    .all(|user| !left.iter().any(|other| other.as_str() == *user))
            };
            // Base images do not lie on each other.
            let free: Vec<String> = match left.iter().filter(gone).count() {
                0 => left.iter().map(|name| (*name).clone()).collect(),
                _ => left
                    .iter()
                    .filter(gone)
                    .map(|name| (*name).clone())
                    .collect(),
            };
            left.retain(|name| !free.contains(name));
            ordered.extend(free);
        }
        ordered
    }

    /// Refuses to remove all images `leaving` if one that stays needs one of them.
    ///
    /// # Errors
    /// `Busy` with the names of those that stay.
    pub fn refuse_needed(&self, store: &Store, leaving: &[String]) -> Result<()> {
        for name in leaving {
            let users = self.users_of(name, leaving);
            if !users.is_empty() {
                let what = format!(
                    "{}:{name}: is the base image of {}, which cannot be read without it: remove \
                     these with it, or use --force",
                    store.shown(),
                    users.join(", ")
                );
                return Err(Error::new(ErrorKind::Busy, what));
            }
        }
        Ok(())
    }

    /// Says which base images of the image `name` the store does not have.
    ///
    /// # Errors
    /// As those of opening the image.
    pub fn warn_missing(&self, store: &Store, name: &str) -> Result<()> {
        let source = StoredImage::open(store.clone(), name)?;
        for base in bases_of(&source)? {
            let has = |member: &Member| member.digests.contains(&base.image_digest);
            if !self.0.iter().any(has) {
                log::warn!(
                    "{}:{name}: its base image {} is not in the store, and the image cannot be \
                     read from it alone: import that, too",
                    store.shown(),
                    String::from_utf8_lossy(&base.name)
                );
            }
        }
        Ok(())
    }
}

fn member(store: &Store, name: &str) -> Result<Member> {
    let source = StoredImage::open(store.clone(), name)?;
    let bases = bases_of(&source)?;
    Ok(Member {
        name: name.to_owned(),
        digests: image_digests(&source)?,
        bases: bases.iter().map(|base| base.image_digest).collect(),
    })
}
