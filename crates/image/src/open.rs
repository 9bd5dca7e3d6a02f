//! Opening an image: options, the start of the image in its file, its generations, its directory,
//! its base images, second copies of what leads to the rest, and names of trees.

pub mod bases;
pub mod directory;
pub mod generations;
pub mod members;
pub mod mended;
pub mod options;
pub mod place;
