//! An image that goes to the server which has a volume of its store mounted.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weald_daemon::{HeldVolume, ImageSender};
use weald_format::{Digest, Result};
use weald_store::{Imported, PartsWriter};

/// Callback that sends bytes.
type Put = Box<dyn FnMut(&[u8]) -> Result<()> + Send>;

/// An image whose parts are being sent.
pub struct SentImage<'a> {
    held: &'a HeldVolume,
    sender: Arc<Mutex<ImageSender>>,
}

fn locked(sender: &Mutex<ImageSender>) -> MutexGuard<'_, ImageSender> {
    sender.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> SentImage<'a> {
    /// Begins an image with the name `name`.
    pub fn begin(held: &'a HeldVolume, name: &str) -> Result<Self> {
        let sender = Arc::new(Mutex::new(held.add_image(name)?));
        Ok(Self { held, sender })
    }

    /// Takes the parts.
    pub fn sink(&self) -> PartsWriter<Put> {
        let sender = self.sender.clone();
        PartsWriter::new(Box::new(move |bytes| locked(&sender).put(bytes)))
    }

    /// Ends the image, which the server then lists.
    pub fn finish(self, image_digest: Digest, tree_digest: Digest) -> Result<Imported> {
        self.sink().finish(image_digest, tree_digest)?;
        locked(&self.sender).finish()?;
        self.held.finish_image()
    }
}
