//! Packs a directory: `pack SOURCE IMAGE [LEVEL] [THREADS]`.
use weald_build::*;
struct Show;
impl Watch for Show { fn problem(&self, p: &Problem) { eprintln!("{}: {}", String::from_utf8_lossy(&p.path), p.what); } }
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let mut o = BuildOptions::level(a.get(3).map_or(7, |l| l.parse().unwrap())).unwrap();
    o.threads = a.get(4).map_or(0, |l| l.parse().unwrap());
    if let Ok(m) = std::env::var("MATCH") { o.match_len_min = m.parse().unwrap(); }
    if let Ok(m) = std::env::var("ZL") { o.codec = CodecSpec::Zstd(m.parse().unwrap()); }
    if let Ok(m) = std::env::var("BLK") { o.block_len = m.parse().unwrap(); }
    if let Ok(m) = std::env::var("ML") { o.metadata_level = m.parse().unwrap(); }
    if std::env::var("BYNAME").is_ok() { o.order = Order::Name; }
    println!("{:#?}", build_image(a[1].as_ref(), a[2].as_ref(), true, &o, &Show).unwrap());
}
