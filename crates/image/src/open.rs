//! Opening an image: options, the start of the image in its file, its generations, its directory,
//! its base images, and second copies of what leads to the rest.

pub mod bases;
pub mod directory;
pub mod generations;
pub mod members;
pub mod mended;
pub mod options;
