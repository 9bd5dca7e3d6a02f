use super::hash::mix_bits;
use super::key::{CachedKind, CachedValue};
use super::shard::Ring;
use super::shared::{CACHE_ENTRY_LEN, SharedCache};
use super::view::CacheView;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use weald_format::{ByteLen, Digest, Error, ErrorKind};

/// Bytes that count as long as they are alive.
struct Counted {
    bytes: Vec<u8>,
    alive: Arc<AtomicU64>,
}

impl Counted {
    fn new(len: usize, fill: u8, alive: &Arc<AtomicU64>) -> Self {
        alive.fetch_add(len as u64, Ordering::SeqCst);
        Self {
            bytes: vec![fill; len],
            alive: alive.clone(),
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.alive
            .fetch_sub(self.bytes.len() as u64, Ordering::SeqCst);
    }
}

impl CachedValue for Counted {
    fn memory_len(&self) -> usize {
        self.bytes.len()
    }
}

fn digest(no: u8) -> Digest {
    Digest::of(&[no])
}

fn view<V: CachedValue>(
    cache: &Arc<SharedCache>,
    image: u8,
    kind: CachedKind,
) -> CacheView<u64, V> {
    CacheView::new(&cache.tag(&digest(image), 1), kind, None)
}

fn limit(cache: &SharedCache) -> u64 {
    cache.budget.entries_len_max()
}

fn used(cache: &SharedCache) -> u64 {
    cache.budget.used()
}

#[derive(Debug, Clone)]
enum Step {
    Load { key: u64, len: usize },
    Fail { key: u64 },
    Remove { key: u64 },
    Limit { len_max: u64 },
    EvictIdle,
    Clear,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..20u64;
    let step = prop_oneof![
        8 => (key.clone(), 0..6000usize).prop_map(|(key, len)| Step::Load { key, len }),
        1 => key.clone().prop_map(|key| Step::Fail { key }),
        1 => key.prop_map(|key| Step::Remove { key }),
        1 => (0..40_000u64).prop_map(|len_max| Step::Limit { len_max }),
        1 => Just(Step::EvictIdle),
        1 => Just(Step::Clear),
    ];
    proptest::collection::vec(step, 0..200)
}

proptest! {
    /// Would catch: a value of another key, bytes that count twice or never, entries beyond the
    /// limit.
    #[test]
    fn it_holds_what_was_loaded_and_no_more_than_its_limit(steps in steps(), kind_no in 0..2) {
        let kind = if kind_no == 0 { CachedKind::Block } else { CachedKind::Page };
        let (cache, alive) = (SharedCache::new(ByteLen(20_000)), Arc::default());
        let view: CacheView<u64, Counted> = view(&cache, 1, kind);
        let mut lens = BTreeMap::new();
        for step in steps {
            match step {
                Step::Load { key, len } => {
                    let was_there = view.contains(&key);
                    let value = view.get_or_load(&key, || Ok(Counted::new(len, key as u8, &alive)));
                    let value = value.unwrap();
                    let known = *lens.get(&key).unwrap_or(&len);
                    prop_assert_eq!(value.bytes.len(), if was_there { known } else { len });
                    prop_assert!(value.bytes.iter().all(|&b| b == key as u8));
                    lens.insert(key, value.bytes.len());
                    if len as u64 + CACHE_ENTRY_LEN <= limit(&cache) && view.pages_are_few() {
                        prop_assert!(view.contains(&key));
                    }
                }
                Step::Fail { key } => {
                    let was_there = view.contains(&key);
                    let value = view.get_or_load(&key, || Err(Error::invalid("no")));
                    prop_assert_eq!(value.is_ok(), was_there);
                }
                Step::Remove { key } => {
                    view.remove(&key);
                    prop_assert!(!view.contains(&key));
                }
                Step::Limit { len_max } => cache.set_len_max(ByteLen(len_max)),
                Step::EvictIdle => cache.evict_idle(),
                Step::Clear => view.clear(),
            }
            prop_assert!(used(&cache) <= limit(&cache));
            let held = (0..20).filter(|key| view.contains(key));
            let held: u64 = held.map(|key| lens[&key] as u64 + CACHE_ENTRY_LEN).sum();
            prop_assert_eq!(held, used(&cache));
        }
        drop(view);
        prop_assert_eq!(used(&cache), 0);
        prop_assert_eq!(alive.load(Ordering::SeqCst), 0);
    }
}

impl CacheView<u64, Counted> {
    /// Whether blocks may use the whole cache: the caches of these tests hold the values of one
    /// view only.
    fn pages_are_few(&self) -> bool {
        self.kind == CachedKind::Page || self.tag.cache().pages.used() == 0
    }
}

/// Would catch: a limit that holds for each shard or each kind, or only for a single thread.
#[test]
fn many_threads_never_hold_more_than_the_limit() {
    const LIMIT: u64 = 1 << 20;
    const THREADS: u64 = 8;
    const LEN_MAX: u64 = 50_000;
    let (cache, alive) = (
        SharedCache::new(ByteLen(LIMIT)),
        Arc::<AtomicU64>::default(),
    );
    let most = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cache, alive, most) = (&cache, &alive, &most);
            scope.spawn(move || {
                let kinds = [CachedKind::Block, CachedKind::Page];
                let views = kinds.map(|kind| view::<Counted>(cache, (thread % 3) as u8, kind));
                for no in 0..3000u64 {
                    let random = mix_bits(thread << 32 | no);
                    let key = random % 200;
                    let len = 1 + mix_bits(key) % LEN_MAX;
                    let load = || Ok(Counted::new(len as usize, key as u8, alive));
                    let view = &views[(random >> 60) as usize % 2];
                    drop(view.get_or_load(&key, load).unwrap());
                    most.fetch_max(alive.load(Ordering::SeqCst), Ordering::SeqCst);
                    assert!(used(cache) <= LIMIT);
                }
            });
        }
    });
    // A value that a thread has just loaded or removed is not in the cache.
    let most = most.into_inner();
    assert!(most <= LIMIT + THREADS * 2 * LEN_MAX, "{most}");
    assert!(most > LIMIT / 2, "{most}");
    assert_eq!(alive.load(Ordering::SeqCst), 0, "images are closed");
}

/// Would catch: two threads that decode the same block at the same time.
#[test]
fn loads_of_one_key_are_merged() {
    for len_max in [0, 1 << 20] {
        let cache = SharedCache::new(ByteLen(len_max));
        let view = view::<Vec<u8>>(&cache, 1, CachedKind::Block);
        let (loads, asked) = (AtomicUsize::new(0), Barrier::new(5));
        let (sender, receiver) = mpsc::channel::<()>();
        let receiver = Mutex::new(receiver);
        std::thread::scope(|scope| {
            let (view, loads, asked, receiver) = (&view, &loads, &asked, &receiver);
            let first = scope.spawn(move || {
                view.get_or_load(&7, || {
                    loads.fetch_add(1, Ordering::SeqCst);
                    asked.wait();
                    receiver.lock().recv().unwrap();
                    Ok(vec![7; 100])
                })
            });
            let others: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(move || {
                        asked.wait();
                        view.get_or_load(&7, || {
                            loads.fetch_add(1, Ordering::SeqCst);
                            Ok(vec![7; 100])
                        })
                    })
                })
                .collect();
            sender.send(()).unwrap();
            let all = std::iter::once(first).chain(others);
            all.for_each(|thread| assert_eq!(**thread.join().unwrap().unwrap(), [7; 100]));
        });
        // Without a cache, a late request loads again.
        let loads = loads.into_inner();
        assert!(loads == 1 || len_max == 0 && loads <= 5, "{loads}");
    }
}

/// Would catch: threads that wait for ever for a thread that failed.
#[test]
fn a_request_that_waits_for_a_failed_load_loads_itself() {
    for panics in [false, true] {
        let cache = SharedCache::new(ByteLen(1 << 20));
        let view = view::<Vec<u8>>(&cache, 1, CachedKind::Page);
        let begun = Barrier::new(2);
        std::thread::scope(|scope| {
            let (view, begun) = (&view, &begun);
            let loader = scope.spawn(move || {
                view.get_or_load(&1, || {
                    begun.wait();
                    assert!(!panics, "as the test wants it");
                    Err(Error::invalid("as the test wants it"))
                })
                .map(|_| ())
            });
            begun.wait();
            assert_eq!(*view.get_or_load(&1, || Ok(vec![3])).unwrap(), [3]);
            match loader.join() {
                Ok(result) => assert!(!panics && result.is_err()),
                Err(_) => assert!(panics),
            }
        });
        assert!(view.contains(&1));
    }
}

/// Would catch: a thread that waits for itself because a damaged record needs itself.
#[test]
fn an_item_that_needs_itself_is_an_error() {
    let cache = SharedCache::new(ByteLen(1 << 20));
    let view = view::<Vec<u8>>(&cache, 1, CachedKind::Page);
    let error = view.get_or_load(&1, || {
        view.get_or_load(&1, || Ok(vec![1])).map(|v| v.to_vec())
    });
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn images_of_one_digest_share_and_others_do_not() {
    let cache = SharedCache::new(ByteLen(1 << 20));
    let [one, same, other] =
        [1, 1, 2].map(|image| view::<Vec<u8>>(&cache, image, CachedKind::Block));
    one.get_or_load(&5, || Ok(vec![5])).unwrap();
    assert!(same.contains(&5) && !other.contains(&5));
    let generation: CacheView<u64, Vec<u8>> =
        CacheView::new(&cache.tag(&digest(1), 2), CachedKind::Block, None);
    assert!(!generation.contains(&5));
    drop(one);
    assert!(same.contains(&5));
    drop(same);
    assert_eq!(used(&cache), 0);
    assert!(!view::<Vec<u8>>(&cache, 1, CachedKind::Block).contains(&5));
}

/// Would catch: blocks that evict the pages of the tree, or pages that leave no bytes for blocks.
#[test]
fn blocks_and_pages_each_have_their_guaranteed_share() {
    const LEN: usize = 10_000;
    let cache = SharedCache::new(ByteLen(4 << 20));
    let [blocks, pages] =
        [CachedKind::Block, CachedKind::Page].map(|kind| view::<Vec<u8>>(&cache, 1, kind));
    let fill = |view: &CacheView<u64, Vec<u8>>, from: u64| {
        (from..from + 1000)
            .for_each(|key| drop(view.get_or_load(&key, || Ok(vec![0; LEN])).unwrap()));
    };
    let used = |ring: &Ring| ring.used();
    let (all, sure) = (limit(&cache), cache.budget.page_len());
    let spare = 2 * LEN as u64;
    fill(&pages, 0);
    assert!(used(&cache.pages) > all - spare, "there are no blocks yet");
    fill(&blocks, 0);
    assert!(used(&cache.pages).abs_diff(sure) <= spare);
    assert!(used(&cache.blocks) > all - sure - 2 * spare);
    fill(&pages, 5000);
    assert!(used(&cache.blocks) > all - sure - 2 * spare);
    let large = all - sure + 2 * spare;
    blocks
        .get_or_load(&9999, || Ok(vec![0; large as usize]))
        .unwrap();
    assert!(!blocks.contains(&9999) && used(&cache.blocks) > all - sure - 2 * spare);
}

/// A value that claims to be large.
struct Large(usize);

impl CachedValue for Large {
    fn memory_len(&self) -> usize {
        self.0
    }
}

/// Would catch: a large tree, read once here and there, whose pages take all free memory.
#[test]
fn pages_take_a_part_of_a_large_cache() {
    for (cache_len, most) in [
        (64 << 20, 64 << 20),
        (1 << 30, 96 << 20),
        (16 << 30, 1 << 30),
    ] {
        let cache = SharedCache::new(ByteLen(cache_len));
        let [blocks, pages] =
            [CachedKind::Block, CachedKind::Page].map(|kind| view(&cache, 1, kind));
        let fill = |view: &CacheView<u64, Large>| {
            for key in 0..20_000 {
                view.get_or_load(&key, || Ok(Large(1 << 20))).unwrap();
            }
        };
        for view in [&pages, &blocks, &pages] {
            fill(view);
            let used = cache.pages.used();
            assert!(used <= most, "{used} of {cache_len}");
            assert!(
                used > most * 9 / 10 || cache.blocks.used() > 0,
                "{used} of {cache_len}"
            );
        }
        assert!(used(&cache) > limit(&cache) - (2 << 20));
    }
}

/// Would catch: the eviction of entries that are in use while idle ones stay.
#[test]
fn entries_in_use_stay() {
    let cache = SharedCache::new(ByteLen(1 << 20));
    let blocks = view::<Vec<u8>>(&cache, 1, CachedKind::Block);
    let (mut loads, mut once) = (0, 100u64);
    for _ in 0..100 {
        for key in 0..5u64 {
            let load = || {
                loads += 1;
                Ok(vec![0; 40_000])
            };
            blocks.get_or_load(&key, load).unwrap();
        }
        for _ in 0..5 {
            once += 1;
            blocks.get_or_load(&once, || Ok(vec![0; 40_000])).unwrap();
        }
    }
    assert_eq!(loads, 5);
}

#[test]
fn idle_entries_are_evicted() {
    let cache = SharedCache::new(ByteLen(1 << 20));
    let blocks = view::<Vec<u8>>(&cache, 1, CachedKind::Block);
    (0..10u64).for_each(|key| drop(blocks.get_or_load(&key, || Ok(vec![0; 1000])).unwrap()));
    cache.evict_idle();
    assert!((0..10).all(|key| blocks.contains(&key)));
    assert!(blocks.get(&3).is_some());
    cache.evict_idle();
    assert_eq!((0..10).filter(|key| blocks.contains(key)).count(), 1);
    cache.evict_idle();
    assert_eq!(cache.counts().used_len, 0);
}
