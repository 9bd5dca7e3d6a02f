//! Checks an image.
fn main() {
    let p = std::env::args().nth(1).unwrap();
    let image = weald_image::Image::open_path(p.as_ref(), 0, &Default::default()).unwrap();
    let o = weald_image::CheckOptions { digests_only: false, threads: 2, path_count_max: 10 };
    println!("{:#?}", image.check(&o, &mut |f| println!("{f:?}")));
    for s in image.sections().unwrap() { println!("{:?} {:?} items {} {:?}", s.record_type, s.stream, s.item_count, s.total()); }
}
