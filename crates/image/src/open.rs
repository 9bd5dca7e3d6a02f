//! Opening an image: options, the start of the image in its file, its generations, its directory,
//! its base images, second copies of what leads to the rest, and names of trees.

pub mod bases;
pub mod directory;
pub mod generations;
#[cfg(feature = "places")]
pub mod members;
pub mod mended;
pub mod options;
#[cfg(feature = "places")]
pub mod place;
